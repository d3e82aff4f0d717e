//! `shardtrain run` on several machines, each with a number of ranks of its own. All of them are this one.

use std::process::Command;
use std::sync::mpsc::sync_channel;

use rustix::process::{Signal, kill_process};

use crate::certificates::Authority;
use crate::common::DigitsStore;
use crate::launch::{Launcher, outcome, read_report, undisturbed};
use crate::rank::{Rank, free_address};

const SETTINGS: [&str; 4] = ["--epochs", "6", "--virtual-ranks", "4"];

#[test]
fn machines_with_different_numbers_of_ranks_train_the_same_weights_and_start_again_what_dies() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let master = free_address();
    let authority = Authority::new();
    let certificates = ["n1", "n2"].map(|name| authority.issue(name));
    let launch = |node: usize, nproc: &str| {
        let node_rank = node.to_string();
        let kept = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3", "--master", &master];
        let arguments = [&SETTINGS[..], &kept, &certificates[node].flags()].concat();
        let launch = ["--nproc", nproc, "--min-ranks", "4", "--nnodes", "2", "--node-rank", &node_rank];
        Launcher::start(&store, &launch, &arguments)
    };
    // The machines may come in any order.
    let second = launch(1, "3");
    let first = launch(0, "1");
    first.world(1);
    let pids = second.world(3);
    first.train(20);
    kill_process(pids[2], Signal::KILL).unwrap();
    let again = (first.world(1), second.world(3));
    first.train(20);
    // A rank 0 that dies is started again, too.
    kill_process(again.0[0], Signal::KILL).unwrap();
    first.world(1);
    second.world(3);
    for launcher in [first, second] {
        let (code, said) = launcher.end();
        assert_eq!(code, Some(0), "{said}");
    }
    let report = read_report(&store);
    assert_eq!(outcome(&report), outcome(&whole));
    assert!(report["resumed_from"].as_u64() > Some(0), "{report}");
}

#[test]
fn a_launcher_that_is_started_again_comes_with_as_many_ranks_as_it_now_has() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let master = free_address();
    let kept = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3", "--master", &master];
    let arguments = [&SETTINGS[..], &kept].concat();
    let launch = |node: &str, nproc: &str| {
        Launcher::start(&store, &["--nproc", nproc, "--nodes", "2", "--node", node], &arguments)
    };
    let (first, second) = (launch("0", "1"), launch("1", "3"));
    first.world(1);
    second.world(3);
    first.train(20);
    drop(second);
    let second = launch("1", "1");
    first.world(1);
    second.world(1);
    for launcher in [first, second] {
        let (code, said) = launcher.end();
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn the_least_number_of_ranks_is_that_of_all_machines() {
    let store = DigitsStore::new();
    let master = free_address();
    let arguments = [&SETTINGS[..], &["--master", &master]].concat();
    let launch = |node: &str| {
        let launch = ["--nproc", "1", "--min-ranks", "3", "--nodes", "2", "--node", node];
        Launcher::start(&store, &launch, &arguments)
    };
    for launcher in [launch("0"), launch("1")] {
        let (code, said) = launcher.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("together have 2 ranks, and --min-ranks asks for 3"), "{said}");
    }
}

/// The launcher of a program that writes its environment to a file of its rank.
fn environment(folder: &std::path::Path, node: &str, nproc: &str, master: &str) -> Rank {
    let (host, port) = master.rsplit_once(':').unwrap();
    let echo = r#"echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK" > "$0""#;
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.args(["run", "--nproc", nproc, "--nodes", "3", "--node", node, "--program", "/bin/sh", "--"]);
    command.args(["-c", echo]).arg(folder.join("{rank}"));
    Rank::spawn(command.env("MASTER_ADDR", host).env("MASTER_PORT", port))
}

#[test]
fn ranks_are_numbered_machine_by_machine() {
    let folder = tempfile::tempdir().unwrap();
    let master = free_address();
    let launchers: Vec<Rank> = [("0", "2"), ("1", "1"), ("2", "3")]
        .iter()
        .map(|(node, nproc)| environment(folder.path(), node, nproc, &master))
        .collect();
    for launcher in launchers {
        let (code, said) = launcher.end();
        assert_eq!(code, Some(0), "{said}");
    }
    let found: Vec<String> =
        (0..6).map(|rank| std::fs::read_to_string(folder.path().join(rank.to_string())).unwrap()).collect();
    let expected = ["0 6 0 2 0", "1 6 1 2 0", "2 6 0 1 1", "3 6 0 3 2", "4 6 1 3 2", "5 6 2 3 2"];
    assert_eq!(found, expected.map(|line| format!("{line}\n")));
}

#[test]
fn two_machines_of_one_number_and_machines_that_never_come_are_named() {
    let store = DigitsStore::new();
    let master = free_address();
    let launch = |node: &str| {
        let launch = ["--nproc", "1", "--nodes", "3", "--node", node];
        Launcher::start(&store, &launch, &[&SETTINGS[..], &["--master", &master]].concat())
    };
    let _first = launch("0");
    // The second of the two is refused, whichever that is; the other waits for machine 2.
    let (tell, told) = sync_channel(2);
    let twins = ["1", "1"].map(launch).map(|mut launcher| {
        let (tell, said) = (tell.clone(), std::mem::replace(&mut launcher.said, sync_channel(1).1));
        std::thread::spawn(move || said.iter().for_each(|line| tell.send(line).unwrap_or_default()));
        launcher
    });
    let said = told.recv().unwrap();
    assert!(said.contains("machine 1 is already there") && said.contains("--node"), "{said}");
    drop(twins);

    let master = free_address();
    let launch = |node: &str| {
        let launch = ["--nproc", "1", "--nodes", "3", "--node", node];
        let hasty = ["--master", &master, "--join-timeout", "1"];
        Launcher::start(&store, &launch, &[&SETTINGS[..], &hasty].concat()).end()
    };
    let (code, said) = launch("0");
    assert!(code == Some(1) && said.contains("machine 1, 2 of 3 did not appear"), "{code:?}: {said}");
    assert!(said.contains(&master) && said.contains("--join-timeout"), "{said}");
    let (code, said) = launch("2");
    assert!(code == Some(1) && said.contains(&format!("no machine 0 at {master}")), "{code:?}: {said}");
}
