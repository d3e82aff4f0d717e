//! The main job: for any number of trainers and nodes, and any deaths on the way, the weights are the same.

use std::process::Command;

use serde_json::Value;
use shardd_tests::{binary, is_quick, run};

fn demo(flags: &[&str]) -> Value {
    let text = run(Command::new(binary("shardctl")).args(["--json", "demo", "--epochs", "12"]).args(flags));
    let report = text.lines().last().expect("the demo prints a report");
    let report: Value = serde_json::from_str(report).expect("the report is JSON");
    let accuracy = report["test_accuracy"].as_f64().expect("an accuracy");
    assert!(accuracy >= 0.95, "{flags:?}: {accuracy}");
    for epoch in report["epochs"].as_array().expect("epochs") {
        assert_eq!(epoch["exactly_once"], true, "{flags:?}: {epoch}");
    }
    println!(
        "demo {}: {} %, weights {}, origin {} x",
        flags.join(" "),
        accuracy * 100.0,
        report["weights_digest"],
        report["origin"]["per_dataset"]
    );
    report
}

#[test]
fn the_weights_depend_on_nothing_but_the_plan() {
    if is_quick() {
        return;
    }
    let usual = demo(&[]);
    let share = usual["origin"]["per_dataset"].as_f64().expect("a share");
    assert!((0.99..=1.05).contains(&share), "{share} x the data set was read from the store");
    let others: &[&[&str]] = &[
        &["--ranks", "1"],
        &["--ranks", "2"],
        &["--ranks", "3"],
        &["--nodes", "1"],
        &["--nodes", "2"],
        &["--kill=first@0.5"],
        &["--kill=n3@4.2"],
        &["--kill=n2@9.9"],
    ];
    for flags in others {
        assert_eq!(demo(flags)["weights_digest"], usual["weights_digest"], "{flags:?}");
    }
}

#[test]
fn a_schedule_and_another_share_work_too() {
    if is_quick() {
        return;
    }
    demo(&["--q", "1,0.01"]);
    demo(&["--q", "0"]);
}
