//! What ranks send between machines, by the counters of the machines' links.

use std::path::Path;
use std::process::Command;

use shardd_tests::machines::Lan;
use shardd_tests::{binary, is_quick, run};

const MACHINES: [(&str, u8); 2] = [("n1", 1), ("n2", 2)];

/// Bytes that each machine sent for a training of two ranks on each.
fn sent(lan: &mut Lan, store: &Path, algorithm: &str) -> [u64; 2] {
    let count = "cat /proc/net/dev | sed -n 's/^ *eth0: *//p' | awk '{ print $9 }'";
    let bytes = |lan: &mut Lan| {
        MACHINES.map(|(name, _)| lan.machine(name).run(count).parse::<u64>().expect("a number of bytes"))
    };
    let train = |node: usize| {
        format!(
            "shardtrain run --nodes 2 --node {node} --nproc 2 -- --store {} --dataset digits --epochs 4 --virtual-ranks 4 \
             --reduce fast --all-reduce {algorithm} --master 10.77.0.1:29500",
            store.display()
        )
    };
    let before = bytes(lan);
    lan.machine("n2").run(&format!("( exec {} ) > /srv/ranks 2>&1 & echo $! > /srv/launcher", train(1)));
    lan.machine("n1").run(&train(0));
    lan.machine("n2")
        .run("while kill -0 $(cat /srv/launcher) 2> /dev/null; do sleep 0.05; done; cat /srv/ranks");
    let after = bytes(lan);
    [after[0] - before[0], after[1] - before[1]]
}

/// Of a flat sum each machine sends twice the bytes: both of its ranks send to both ranks elsewhere. Of a hierarchical one they add
/// up first.
#[test]
fn gradients_cross_between_machines_once() {
    if is_quick() {
        return;
    }
    let Some(mut lan) = Lan::new() else { return };
    for (name, n) in MACHINES {
        lan.add(name, n, &[("RAYON_NUM_THREADS", "1")]);
    }
    let store = lan.srv("store");
    let data = format!("{}/../client/data/digits/train.parquet", env!("CARGO_MANIFEST_DIR"));
    let shardctl =
        |words: &[&str]| run(Command::new(binary("shardctl")).arg("--store").arg(&store).args(words));
    shardctl(&["ingest", &data, "--name", "digits"]);
    shardctl(&["partition", "digits", "--q", "0.1", "--partitions", "8"]);

    let (flat, hierarchical) = (sent(&mut lan, &store, "direct"), sent(&mut lan, &store, "hierarchical"));
    println!("each machine sent {flat:?} bytes for flat sums, {hierarchical:?} for hierarchical ones");
    for (flat, hierarchical) in flat.into_iter().zip(hierarchical) {
        let part = hierarchical as f64 / flat as f64;
        assert!((0.45..0.6).contains(&part), "{part} of the bytes of a flat sum left the machine");
    }
}
