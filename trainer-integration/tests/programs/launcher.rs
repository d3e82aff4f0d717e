//! `shardtrain run`: ranks that die, hang or get a signal to stop.

use rustix::process::{Signal, kill_process};

use crate::common::DigitsStore;
use crate::launch::{Launcher, outcome, read_report, undisturbed};

const SETTINGS: [&str; 4] = ["--epochs", "6", "--virtual-ranks", "4"];

#[test]
fn a_training_goes_on_with_the_ranks_that_are_left() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let arguments =
        [&SETTINGS[..], &["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3"]].concat();

    let launcher = Launcher::start(&store, &["--nproc", "4"], &arguments);
    for (ranks, killed) in [(4, 3), (3, 0), (2, 1)] {
        let pids = launcher.world(ranks);
        launcher.train(20);
        kill_process(pids[killed], Signal::KILL).unwrap();
    }
    launcher.world(1);
    let (code, said) = launcher.end();
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    let last = read_report(&store);
    assert_eq!(outcome(&last), outcome(&whole));
    assert!(last["resumed_from"].as_u64() > Some(20), "{last}");
}

#[test]
fn a_rank_that_hangs_is_given_up() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let kept = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3", "--timeout", "5"];
    let launcher =
        Launcher::start(&store, &["--nproc", "3", "--grace", "1"], &[&SETTINGS[..], &kept].concat());
    let pids = launcher.world(3);
    launcher.train(10);
    kill_process(pids[1], Signal::STOP).unwrap();
    launcher.world(2);
    let (code, said) = launcher.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn a_training_that_is_stopped_ends_well_and_goes_on_when_it_is_launched_again() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let kept = kept.to_str().unwrap();
    // The launcher settles how many virtual ranks there are; here they are given, as those of one rank would
    // be others.
    let arguments = [&SETTINGS[..], &["--checkpoints", kept]].concat();
    for (signal, ranks) in [(Signal::TERM, 4), (Signal::INT, 2)] {
        let launcher = Launcher::start(&store, &["--nproc", &ranks.to_string()], &arguments);
        let pids = launcher.world(ranks);
        launcher.train(10);
        // Service managers tell all processes, and the launcher tells its ranks once more.
        for pid in pids {
            // The first may be quicker than this.
            let _ = kill_process(pid, signal);
        }
        launcher.signal(signal);
        let (code, said) = launcher.end();
        assert_eq!((code, &said[..]), (Some(0), ""));
    }
    let (code, said) = Launcher::start(&store, &["--nproc", "3"], &arguments).end();
    assert_eq!(code, Some(0), "{said}");
    let last = read_report(&store);
    assert_eq!(outcome(&last), outcome(&whole));
    assert!(last["resumed_from"].as_u64() > Some(20), "{last}");
}

#[test]
fn launchers_of_several_machines_start_anew_what_dies_there() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let kept = store.path().join("kept");
    let master = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let more = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3", "--master", &master];
    let arguments = [&SETTINGS[..], &more].concat();
    let launch =
        |node: &str| Launcher::start(&store, &["--nproc", "2", "--nodes", "2", "--node", node], &arguments);
    let launchers = ["0", "1"].map(launch);
    launchers[0].world(2);
    let pids = launchers[1].world(2);
    launchers[0].train(20);
    kill_process(pids[1], Signal::KILL).unwrap();
    launchers.iter().for_each(|launcher| assert_eq!(launcher.world(2).len(), 2));
    for launcher in launchers {
        let (code, said) = launcher.end();
        assert_eq!(code, Some(0), "{said}");
    }
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn ranks_end_with_their_launcher() {
    let store = DigitsStore::new();
    let mut launcher = Launcher::start(&store, &["--nproc", "3"], &["--epochs", "100000"]);
    launcher.world(3);
    launcher.train(5);
    launcher.process.kill().unwrap();
    // The pipe ends when no writer is left.
    assert_eq!(launcher.said.iter().collect::<Vec<_>>(), [] as [String; 0]);
    launcher.progress.iter().for_each(drop);
}

#[test]
fn a_second_signal_ends_everything_at_once() {
    let store = DigitsStore::new();
    let launcher =
        Launcher::start(&store, &["--nproc", "2"], &["--epochs", "100000", "--checkpoints", "/dev/null/no"]);
    let (code, said) = launcher.end();
    assert!(code == Some(1) && said.contains("/dev/null/no"), "{said}");

    // Who keeps no checkpoints has nothing to do first.
    let launcher = Launcher::start(&store, &["--nproc", "2"], &["--epochs", "100000"]);
    launcher.world(2);
    launcher.train(5);
    launcher.signal(Signal::TERM);
    let (code, said) = launcher.end();
    assert!(code == Some(143) && said.contains("as requested"), "{code:?}: {said}");

    let kept = store.path().join("kept");
    let arguments = ["--epochs", "100000", "--checkpoints", kept.to_str().unwrap()];
    let launcher = Launcher::start(&store, &["--nproc", "2"], &arguments);
    let pids = launcher.world(2);
    launcher.train(5);
    // One that is stopped cannot obey the first signal.
    kill_process(pids[1], Signal::STOP).unwrap();
    launcher.signal(Signal::TERM);
    launcher.signal(Signal::INT);
    let (code, said) = launcher.end();
    assert!(matches!(code, Some(130 | 143)), "{code:?}: {said}");
}

#[test]
fn what_cannot_go_well_ends_with_its_cause() {
    let store = DigitsStore::new();
    let ended = |launch: &[&str], arguments: &[&str]| Launcher::start(&store, launch, arguments).end();
    let (code, said) = ended(&["--nproc", "2"], &["--device", "cuda:0"]);
    assert!(code == Some(2) && said.contains("CUDA") && said.contains("exit code 2"), "{said}");
    let (code, said) = ended(&["--nproc", "1"], &["--nonsense"]);
    assert!(code == Some(2) && said.contains("--nonsense"), "{said}");
    let (code, said) = ended(&["--nproc", "2"], &["--image-size", "0"]);
    assert!(code == Some(2) && said.contains("--image-size"), "{said}");
    let (code, said) = ended(&["--nproc", "2", "--nodes", "2"], &[]);
    assert!(code == Some(2) && said.contains("--master"), "{said}");
    // A rank that fails takes the others' work with it, again and again.
    let (code, said) = ended(&["--nproc", "3", "--max-restarts", "2"], &["--classes", "7"]);
    assert!(code == Some(1) && said.contains("not one of the 7 classes"), "{said}");
    assert!(said.contains("--max-restarts") || said.contains("--min-ranks"), "{said}");
    let (code, said) = ended(&["--nproc", "3", "--min-ranks", "4"], &["--classes", "7"]);
    assert!(code == Some(1) && said.contains("--min-ranks"), "{said}");
}
