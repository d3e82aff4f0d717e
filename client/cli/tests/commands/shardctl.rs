//! `shardctl` as people and scripts use it, on a plain directory: its output, its refusals, its exit codes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::desk::{Desk, digits, text};

#[test]
fn a_dataset_is_ingested_planned_read_and_verified_without_any_node() {
    let desk = Desk::with_digits();
    let info = &desk.json(&["info"])[0];
    assert_eq!((&info["samples"], &info["labels"]["3"]), (&1437.into(), &146.into()));
    let read = desk.json(&["read", "--epochs", "3", "--batch-size", "50", "--virtual-ranks", "4"]);
    let (end, steps) = read.split_last().expect("lines");
    assert_eq!(steps.len(), 3 * 8);
    for audit in end["audits"].as_array().expect("audits") {
        assert_eq!((&audit["samples"], &audit["digest_sum"]), (&1437.into(), &info["digest_sum"]));
    }
    assert!(desk.done(&["verify"]).contains("as the manifest says"));
    assert!(desk.done(&["ls"]).lines().nth(1).is_some_and(|line| line.starts_with("digits")));
}

#[test]
fn what_two_ranks_are_given_adds_up_to_what_one_is_given() {
    let desk = Desk::with_digits();
    let sums = |rank: &str, world: &str| -> Vec<u128> {
        let args = ["read", "--rank", rank, "--world", world, "--virtual-ranks", "4", "--batch-size", "16"];
        let steps = desk.json(&args);
        let sum =
            |step: &Value| u128::from_str_radix(step["sum"].as_str().expect("hex"), 16).expect("128 bits");
        steps[..steps.len() - 1].iter().map(sum).collect()
    };
    let (first, second) = (sums("0", "2"), sums("1", "2"));
    let both: Vec<u128> = first.iter().zip(&second).map(|(a, b)| a.wrapping_add(*b)).collect();
    assert_eq!(both, sums("0", "1"));
}

#[test]
fn lookups_in_a_plan_agree_in_both_directions() {
    let desk = Desk::with_digits();
    let step = desk.json(&["plan", "at", "--epoch", "7", "--position", "640", "--global-batch-size", "5"]);
    for read in step[0].as_array().expect("reads") {
        let sample = read["sample"].to_string();
        let found = &desk.json(&["plan", "where", &sample, "--epoch", "7"])[0];
        for fact in ["position", "partition", "grain", "shard", "row"] {
            assert_eq!(found[fact], read[fact], "{fact} of sample {sample}");
        }
    }
}

#[test]
fn the_same_input_is_the_same_version_however_often_and_by_however_many_threads() {
    let desk = Desk::with_digits();
    let again = desk.json(&[
        "ingest",
        &digits("train"),
        "--name",
        "digits",
        "--shard-size",
        "16KiB",
        "--threads",
        "3",
    ]);
    let done = again.last().expect("the end");
    assert_eq!(done["version"], done["before"]);
}

#[test]
fn with_several_datasets_one_must_be_named() {
    let desk = Desk::with_digits();
    desk.done(&["ingest", &digits("test"), "--name", "digits-test"]);
    let line = desk.refused(2, &["partition", "--q", "0.1"]);
    assert!(
        line.contains("digits, digits-test") && line.contains("shardctl partition --q 0.1 digits"),
        "{line}"
    );
}

#[test]
fn damage_is_found_named_and_repaired_by_another_ingest() {
    let desk = Desk::with_digits();
    let shard = find(&desk.dir.path().join("store/store/shards"), "arrow");
    let mut bytes = std::fs::read(&shard).expect("a shard");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).expect("a damaged shard");
    let output = desk.run(&["verify", "digits"]);
    assert_eq!(output.status.code(), Some(1));
    let name = shard.file_stem().expect("a name").to_string_lossy().into_owned();
    assert!(text(&output.stdout).contains(&name), "the damaged shard is named");
    assert!(text(&output.stderr).starts_with("error: 1 of 7 shards of digits damaged"));
    desk.done(&["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
    desk.done(&["verify", "digits"]);
}

#[test]
fn what_cannot_be_done_is_refused_in_one_line_with_a_way_out() {
    let desk = Desk::with_digits();
    let refusals: [(i32, &[&str], &str); 8] = [
        (2, &["partition", "--q", "1.5"], "outside 0 to 1"),
        (2, &["partition"], "--q"),
        (1, &["partition", "--q", "0.1", "--partitions", "9999"], "use --partitions 1437"),
        (1, &["ingest", "/no/such/place", "--name", "x"], "/no/such/place: no such file or directory"),
        (2, &["ingest", "x", "--name", "Not A Name"], "Not A Name"),
        (1, &["info", "nothing"], "there is digits"),
        (2, &["plan", "where", "1437"], "there is no sample 1437"),
        (2, &["demo"], "the demo starts nodes of its own"),
    ];
    for (code, args, said) in refusals {
        let line = desk.refused(code, args);
        assert!(line.contains(said), "{args:?}: {line}");
    }
}

#[test]
fn a_directory_that_is_not_there_is_named_and_not_made() {
    let desk = Desk::new();
    assert!(desk.refused(1, &["ls"]).contains("there is no directory"));
    assert!(!desk.dir.path().join("store").exists());
}

/// A file with this extension somewhere below `dir`.
fn find(dir: &Path, extension: &str) -> PathBuf {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    let folders = paths.iter().filter(|path| path.is_dir()).map(|folder| find(folder, extension));
    let files = paths.iter().filter(|path| path.extension().is_some_and(|found| found == extension)).cloned();
    files.chain(folders).next().expect("a file")
}
