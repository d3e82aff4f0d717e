//! A node whose disk takes 60 ms for each read hosts less after a while, ranks read faster again, and no step
//! changes.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use shardd_tests::{
    Cluster, Delivered, Node, RankProcess, Reading, digits, is_quick, run, wait_until_within,
};

/// What the ranks were given so far, and the processes, which end when this is dropped.
struct Ranks {
    delivered: Arc<Mutex<Delivered>>,
    /// Of the slowest rank, the epoch that it has reached.
    epochs: Arc<Mutex<Vec<u64>>>,
    pids: Vec<u32>,
}

impl Ranks {
    /// Reads in the background.
    fn start(ranks: Vec<RankProcess>) -> Ranks {
        let pids = ranks.iter().map(RankProcess::pid).collect();
        let (delivered, epochs) =
            (Arc::<Mutex<Delivered>>::default(), Arc::new(Mutex::new(vec![0; ranks.len()])));
        for (number, mut rank) in ranks.into_iter().enumerate() {
            let (delivered, epochs) = (Arc::clone(&delivered), Arc::clone(&epochs));
            std::thread::spawn(move || {
                while let Some(line) = rank.next_line() {
                    if let Some(epoch) = line["epoch"].as_u64() {
                        epochs.lock().expect("no panic while held")[number] = epoch;
                    }
                    delivered.lock().expect("no panic while held").take(&line);
                }
            });
        }
        Ranks { delivered, epochs, pids }
    }

    fn slowest(&self) -> u64 {
        *self.epochs.lock().expect("no panic while held").iter().min().expect("there are ranks")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

/// Lets each read of a file by a process take 60 ms longer.
struct SlowDisk(Child);

impl SlowDisk {
    fn of(node: &Node) -> Option<SlowDisk> {
        let probe =
            Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
        if !probe.is_ok_and(|status| status.success()) {
            println!("skipped: strace is not installed, or may not trace here");
            return None;
        }
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=pread64"]);
        strace.args(["-e", "inject=pread64:delay_enter=60000", "-p", &node.pid().to_string()]);
        Some(SlowDisk(strace.stderr(Stdio::null()).spawn().expect("strace starts")))
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hosted(cluster: &Cluster) -> Vec<usize> {
    let view = cluster.nodes[0].get("/v1/runs/r");
    let of_partition = view["placement"]["of_partition"].as_array().expect("it is placed").clone();
    (0..3).map(|host| of_partition.iter().filter(|at| at.as_u64() == Some(host)).count()).collect()
}

#[test]
fn a_node_with_a_slow_disk_hosts_less_and_each_step_stays_what_it_was() {
    if is_quick() {
        return;
    }
    // Loaders get bytes, so that nodes read what they host.
    let cluster = Cluster::start_with(3, &[("SHARDD_SHARE", "none".to_owned())]);
    run(cluster.shardctl().args(["ingest", &digits("train"), "--name", "digits"]));
    let plan = cluster.ask(0, &["partition", "digits", "--q", "0.1", "--partitions", "12"]);
    let read = Reading { world: 3, virtual_ranks: 12, ..Reading::alone(&plan, 100_000) };
    let ranks = Ranks::start(cluster.read(&read));
    cluster.ask(0, &["balancer", "on"]);
    wait_until_within(60, "an epoch was read", || ranks.slowest() > 0);
    assert_eq!(hosted(&cluster), [4, 4, 4]);

    let Some(slow) = SlowDisk::of(&cluster.nodes[2]) else { return };
    wait_until_within(240, "the slow node hosts less", || hosted(&cluster)[2] < 2);
    let journal = cluster.nodes[1].get("/v1/balancer")["journal"].clone();
    println!("{journal}");
    let decision = &journal[0];
    assert_eq!(
        (&decision["node"], &decision["from"], &decision["carried_out"]),
        (&"n3".into(), &8.into(), &true.into())
    );
    assert!(decision["times"].as_f64().is_some_and(|times| times > 2.0), "{decision}");
    drop(slow);

    let epochs = ranks.slowest();
    let undisturbed = Reading { run: "undisturbed".to_owned(), ..Reading::alone(&plan, epochs as u32) };
    let undisturbed = Reading { virtual_ranks: 12, ..undisturbed };
    let undisturbed = Delivered::collect(cluster.read(&undisturbed), |_, _| {});
    let delivered = ranks.delivered.lock().expect("no panic while held");
    println!("{epochs} epochs of {} steps", undisturbed.steps.len() as u64 / epochs);
    for (step, expected) in &undisturbed.steps {
        assert_eq!(delivered.steps.get(step), Some(expected), "{step:?}");
    }
}
