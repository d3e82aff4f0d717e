//! `shardtrain run --elastic`: ranks that stay when others die, and ranks that come.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::DigitsStore;
use crate::launch::{Launcher, outcome, read_report, undisturbed};

const SETTINGS: [&str; 6] = ["--epochs", "6", "--virtual-ranks", "4", "--timeout", "20"];

/// With checkpoints of every third step.
fn kept(store: &DigitsStore, more: &[&str]) -> Vec<String> {
    let kept = store.path().join("kept").to_str().unwrap().to_owned();
    let kept = ["--checkpoints".to_owned(), kept, "--checkpoint-every".to_owned(), "3".to_owned()];
    SETTINGS.iter().chain(more).map(|it| (*it).to_owned()).chain(kept).collect()
}

fn start(store: &DigitsStore, launch: &[&str], arguments: &[String]) -> Launcher {
    let launch = [&["--elastic"], launch].concat();
    Launcher::start(store, &launch, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The steps that rank 0 tells of until one says how its group was formed.
fn until_reformed(launcher: &Launcher) -> Value {
    let lines = launcher.progress.iter().map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let reformed = lines.into_iter().find_map(|mut line| line.get_mut("reformed").map(Value::take));
    reformed.expect("it continues training")
}

/// The process that is started for a rank that has died.
fn returned(launcher: &Launcher) -> Pid {
    let said = launcher.said.iter().inspect(|line| println!("{line}"));
    let pid = said.filter_map(|line| line.rsplit_once("returns, process ")?.1.parse().ok()).next();
    Pid::from_raw(pid.expect("one returns")).unwrap()
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

fn ends_well(launcher: Launcher) {
    let (code, said) = launcher.end();
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
}

fn worlds(report: &Value) -> Vec<(u64, u64)> {
    let world = |formed: &Value, name: &str| formed[name].as_u64().unwrap();
    let formed = report["reformings"].as_array().unwrap().iter();
    formed.map(|it| (world(it, "world_before"), world(it, "world"))).collect()
}

#[test]
fn ranks_stay_when_others_die_and_go_on_with_those_that_come() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let launcher = start(&store, &["--nproc", "4"], &kept(&store, &["--zero", "2"]));
    let first = launcher.world(4);
    launcher.train(20);
    kill(first[1]);
    let second = launcher.world(3);
    assert_eq!(second, [first[0], first[2], first[3]], "the others are the same processes");
    let lost = until_reformed(&launcher);
    assert_eq!((&lost["world_before"], &lost["world"]), (&4.into(), &3.into()), "{lost}");
    assert_eq!(lost["state"], "checkpoint", "a slice is gone: {lost}");
    launcher.signal(Signal::USR1);
    let newcomer = returned(&launcher);
    let third = launcher.world(4);
    assert_eq!(third, [&second[..], &[newcomer]].concat(), "and stay so when one comes");
    let come = until_reformed(&launcher);
    assert_eq!(come["to_step"], come["from_step"], "nothing is trained twice: {come}");
    assert_eq!(come["state"], "ranks", "{come}");
    // Rank 0 itself: the next one writes the outputs.
    kill(third[0]);
    assert_eq!(launcher.world(3), third[1..]);
    ends_well(launcher);
    let last = read_report(&store);
    assert_eq!(outcome(&last), outcome(&whole));
    assert_eq!(worlds(&last), [(4, 3), (3, 4), (4, 3)], "{last}");
}

#[test]
fn ranks_that_have_everything_need_no_checkpoint() {
    let store = DigitsStore::new();
    // Running statistics are with one rank each; this model has none.
    let whole = undisturbed(&store, &[&SETTINGS[..], &["--norm", "group"]].concat());
    let arguments = [&SETTINGS[..], &["--norm", "group"]].concat();
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let launcher = start(&store, &["--nproc", "3"], &arguments);
    let first = launcher.world(3);
    launcher.train(20);
    kill(first[0]);
    assert_eq!(launcher.world(2), first[1..]);
    let lost = until_reformed(&launcher);
    assert_eq!(lost["state"], "ranks", "{lost}");
    let (from, to) = (lost["from_step"].as_u64().unwrap(), lost["to_step"].as_u64().unwrap());
    assert!(to == from || to == from + 1, "at most the step is trained again in which it died: {lost}");
    ends_well(launcher);
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn ranks_that_die_while_a_group_forms_are_done_without() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let launcher = start(&store, &["--nproc", "4"], &kept(&store, &["--zero", "1"]));
    let first = launcher.world(4);
    launcher.train(10);
    kill(first[3]);
    // It has been given its place, and has not met the others.
    kill(launcher.world(3)[1]);
    assert_eq!(launcher.world(2), [first[0], first[2]]);
    until_reformed(&launcher);
    // No rank waits for one that dies on its way.
    launcher.signal(Signal::USR1);
    for newcomer in [returned(&launcher), returned(&launcher)] {
        kill(newcomer);
    }
    ends_well(launcher);
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn a_rank_that_hangs_is_given_up_and_the_others_stay() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let arguments = [&kept(&store, &[])[..], &["--timeout=5".to_owned()]].concat();
    let arguments: Vec<String> = arguments.into_iter().filter(|it| it != "--timeout" && it != "20").collect();
    let launcher = start(&store, &["--nproc", "3", "--grace", "1"], &arguments);
    let first = launcher.world(3);
    launcher.train(10);
    kill_process(first[1], Signal::STOP).unwrap();
    assert_eq!(launcher.world(2), [first[0], first[2]]);
    ends_well(launcher);
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn ranks_that_stay_end_with_their_launcher_and_say_so() {
    let store = DigitsStore::new();
    let endless = ["--epochs", "100000", "--virtual-ranks", "4"].map(str::to_owned);
    let mut launcher = start(&store, &["--nproc", "3"], &endless);
    let first = launcher.world(3);
    launcher.train(5);
    kill(first[2]);
    launcher.world(2);
    until_reformed(&launcher);
    launcher.process.kill().unwrap();
    // The pipes end when no writer is left.
    let said: Vec<String> = launcher.said.iter().filter(|line| !line.contains("gone on")).collect();
    assert!(!said.is_empty() && said.iter().all(|line| line.contains("the launcher has ended")), "{said:?}");
    launcher.progress.iter().for_each(drop);
}

#[test]
fn ranks_that_stay_stop_well_and_go_on_when_launched_again() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let launcher = start(&store, &["--nproc", "3"], &kept(&store, &[]));
    let first = launcher.world(3);
    launcher.train(10);
    kill(first[0]);
    launcher.world(2);
    until_reformed(&launcher);
    launcher.signal(Signal::TERM);
    ends_well(launcher);
    let launcher = start(&store, &["--nproc", "4"], &kept(&store, &[]));
    launcher.world(4);
    ends_well(launcher);
    let last = read_report(&store);
    assert_eq!(outcome(&last), outcome(&whole));
    assert!(last["resumed_from"].as_u64() > Some(0), "it does not begin again: {last}");

    // Who keeps no checkpoints has nothing to do first.
    let endless = ["--epochs", "100000", "--virtual-ranks", "4"].map(str::to_owned);
    let launcher = start(&store, &["--nproc", "2"], &endless);
    launcher.world(2);
    launcher.train(5);
    launcher.signal(Signal::TERM);
    let (code, said) = launcher.end();
    assert!(code == Some(143) && said.contains("as requested"), "{code:?}: {said}");
}

#[test]
fn what_cannot_go_well_ends_with_its_cause() {
    let store = DigitsStore::new();
    let ended = |launch: &[&str], arguments: &[&str]| {
        start(&store, launch, &arguments.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()).end()
    };
    let (code, said) = ended(&["--nproc", "2", "--nodes", "2"], &["--master", "127.0.0.1:1"]);
    assert!(code == Some(2) && said.contains("one machine"), "{said}");
    let (code, said) = ended(&["--nproc", "2", "--program", "/bin/true"], &[]);
    assert!(code == Some(2) && said.contains("--program"), "{said}");
    let (code, said) = ended(&["--nproc", "2"], &["--checkpoints", "kept", "--resume", "7"]);
    assert!(code == Some(2) && said.contains("--resume"), "{said}");
    let (code, said) = ended(&["--nproc", "2"], &["--image-size", "0"]);
    assert!(code == Some(2) && said.contains("--image-size"), "{said}");
    // What befalls one rank befalls all, and no group is ever formed.
    let (code, said) = ended(&["--nproc", "3"], &["--classes", "7"]);
    assert!(code == Some(1) && said.contains("not one of the 7 classes"), "{said}");
    assert!(said.contains("--max-restarts") || said.contains("--min-ranks"), "{said}");

    let launcher = start(&store, &["--nproc", "3", "--min-ranks", "3"], &kept(&store, &[]));
    let first = launcher.world(3);
    launcher.train(5);
    kill(first[1]);
    let (code, said) = launcher.end();
    assert!(code == Some(1) && said.contains("--min-ranks"), "{said}");
}
