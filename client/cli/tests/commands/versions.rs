//! Versions as people and scripts use them on the command line: a history is listed, tagged, restored, and at
//! last removed.

use serde_json::Value;

use crate::desk::{Desk, digits, text};

/// A desk whose dataset `digits` has two versions; the first is planned.
fn with_two_versions() -> Desk {
    let desk = Desk::with_digits();
    desk.done(&["ingest", &digits("test"), "--name", "digits", "-m", "the other part\nby mistake"]);
    desk
}

fn version(desk: &Desk, reference: &str) -> Value {
    desk.json(&["info", reference])[0]["version"].clone()
}

#[test]
fn a_history_is_told_tagged_and_named() {
    let desk = with_two_versions();
    let log = desk.json(&["log", "digits"])[0].clone();
    assert_eq!(log.as_array().expect("commits").len(), 2);
    assert_eq!((&log[0]["number"], &log[0]["parent"]), (&2.into(), &log[1]["id"]));
    assert_eq!(log[0]["message"], "the other part\nby mistake");
    let (second, first) = (&log[0]["version"], &log[1]["version"]);
    assert_eq!((version(&desk, "digits"), version(&desk, "digits@~1")), (second.clone(), first.clone()));

    assert!(desk.done(&["tag", "digits"]).contains("no tags yet"));
    desk.done(&["tag", "digits@~1", "v1"]);
    desk.done(&["tag", "digits@~1", "v1"]);
    let begins = &first.as_str().expect("text")[..6];
    for reference in ["digits@v1", &format!("digits@{begins}")] {
        assert_eq!(version(&desk, reference), *first, "{reference}");
    }
    assert!(desk.done(&["verify", "digits@v1"]).contains("1,437 samples"));
    let told = desk.done(&["log", "digits"]);
    let line = |n| told.lines().nth(n).expect("a line").to_owned();
    assert!(line(1).contains("ingest") && line(1).ends_with("the other part…"), "{told}");
    assert!(line(2).starts_with("~1") && line(2).ends_with("v1"), "{told}");
    assert!(desk.done(&["log", "digits", "-n", "1"]).contains("1 more"));
    assert!(desk.done(&["ls"]).contains("v1 (older)"));
    assert_eq!(desk.json(&["ls"])[0][0]["tags"][0]["version"], *first);

    // The plan was made for the version that is now an older one, and continues.
    assert!(desk.done(&["plan", "ls"]).contains("(not current)"));
    let read = desk.json(&["read", "--plan", "digits@v1", "--quiet"]);
    assert_eq!(read[0]["samples"], 1437);
    let other = &desk.json(&["partition", "--q", "0.1", "digits"])[0];
    assert_eq!(other["version"], *second);
    let current = |plan: &Value| plan["current"] == true;
    let plans = desk.json(&["plan", "ls"])[0].clone();
    assert_eq!(plans.as_array().expect("plans").iter().filter(|plan| current(plan)).count(), 1);
}

#[test]
fn an_older_version_comes_back_in_a_commit_of_its_own() {
    let desk = with_two_versions();
    let first = version(&desk, "digits@~1");
    let said = desk.done(&["restore", "digits@~1", "-m", "that was the test set"]);
    assert!(said.contains("in place of"), "{said}");
    let log = desk.json(&["log", "digits"])[0].clone();
    assert_eq!((&log[0]["version"], &log[0]["operation"]), (&first, &"restore".into()));
    assert_eq!(log.as_array().expect("commits").len(), 3);
    assert!(desk.done(&["restore", "digits@~2"]).contains("as it was"));
    assert_eq!(desk.json(&["log", "digits"])[0], log);
}

#[test]
fn what_is_removed_can_come_back_until_nothing_names_it() {
    let desk = with_two_versions();
    desk.done(&["tag", "digits@~1", "v1"]);
    let (first, second) = (version(&desk, "digits@~1"), version(&desk, "digits"));
    assert!(desk.refused(2, &["rm", "digits"]).contains("give --yes"));
    let said = desk.done(&["rm", "digits", "--yes"]);
    assert!(said.contains("digits@v1, plan "), "it says what stays: {said}");
    assert!(desk.refused(1, &["info", "digits"]).contains("there is digits@v1"));
    assert!(desk.done(&["ls"]).contains("removed: digits@v1"));

    let spared = desk.done(&["gc"]);
    assert!(spared.contains("nothing to delete") && spared.contains("too young"), "{spared}");
    let all: &[&str] = &["gc", "--older-than", "0s"];
    let planned = desk.json(all)[0].clone();
    assert_eq!((&planned["dry_run"], &planned["versions"][0]["version"]), (&true.into(), &second));
    assert!(desk.done(all).contains("--delete deletes them"));
    let deleted = desk.done(&[all, &["--delete"]].concat());
    assert!(deleted.contains("1 manifest") || deleted.contains("manifests"), "{deleted}");
    let done = desk.json(&[all, &["--delete"]].concat())[0].clone();
    assert_eq!(done["shards"]["objects"], 0, "it has gone");

    assert!(desk.done(&["restore", "digits@v1"]).contains("again"));
    assert_eq!(version(&desk, "digits"), first);
    desk.done(&["verify", "digits"]);
    desk.done(&["rm", "digits@v1", "--yes"]);
    desk.done(&["plan", "rm", "--plan", "digits"]);
    desk.done(&["rm", "digits", "--yes"]);
    let last = desk.json(&[all, &["--delete"]].concat())[0].clone();
    assert_eq!((&last["manifests"]["objects"], &last["reached"]["objects"]), (&1.into(), &0.into()));
    assert!(desk.done(&["ls"]).contains("no datasets yet"));
}

#[test]
fn a_history_is_pruned_and_what_only_it_kept_is_freed() {
    let desk = with_two_versions();
    desk.done(&["reshard", "digits", "--shard-size", "4KiB"]);
    let bytes = |reference: &str| desk.json(&["info", reference])[0]["bytes"].as_u64().expect("bytes");
    let on_disk = || -> u64 {
        let mut files = Vec::new();
        let mut folders = vec![desk.dir.path().join("store/store/shards")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
                match entry.file_type().expect("a type").is_dir() {
                    true => folders.push(entry.path()),
                    false => files.push(entry),
                }
            }
        }
        let shards = files.iter().filter(|file| file.path().extension().is_some_and(|end| end == "arrow"));
        shards.map(|file| file.metadata().expect("a size").len()).sum()
    };
    let (first, second) = (version(&desk, "digits@~2"), version(&desk, "digits@~1"));
    let (of_first, of_second, of_third) = (bytes("digits@~2"), bytes("digits@~1"), bytes("digits"));
    assert_eq!(on_disk(), of_first + of_second + of_third);

    let planned = desk.json(&["prune", "digits", "--keep", "1"])[0].clone();
    assert_eq!((&planned["dry_run"], planned["cut"].as_array().map(Vec::len)), (&true.into(), Some(2)));
    assert_eq!((&planned["held"][0]["version"], planned["held"].as_array().map(Vec::len)), (&first, Some(1)));
    assert_eq!(planned["freed_bytes"], of_second, "the plan keeps the first");
    assert_eq!(desk.json(&["log", "digits"])[0].as_array().map(Vec::len), Some(3), "nothing was cut");
    let said = desk.done(&["prune", "digits", "--keep", "1", "--delete"]);
    assert!(said.contains("stays: plan ") && said.contains("2 versions cut off"), "{said}");
    let told = desk.done(&["log", "digits"]);
    assert!(told.lines().count() == 3 && told.contains("2 versions before that, pruned"), "{told}");
    assert!(desk.refused(1, &["info", "digits@~1"]).contains("since its history was pruned"));
    assert!(desk.done(&["prune", "digits", "--keep", "1", "--delete"]).contains("nothing to cut off"));

    let gc: &[&str] = &["gc", "--older-than", "0s", "--delete"];
    assert_eq!(desk.json(gc)[0]["versions"][0]["version"], second);
    assert_eq!(on_disk(), of_first + of_third);
    let plan = desk.json(&["plan", "ls"])[0][0]["id"].as_str().expect("an id").to_owned();
    desk.done(&["plan", "rm", "--plan", &plan]);
    desk.done(gc);
    assert_eq!(on_disk(), of_third);
    desk.done(&["verify", "digits"]);
    assert!(desk.refused(2, &["prune", "digits"]).contains("--keep"));
    assert!(desk.refused(2, &["prune", "digits", "--keep", "0"]).contains("1.."));
}

#[test]
fn names_whose_commits_are_lost_can_be_removed() {
    let desk = with_two_versions();
    desk.done(&["tag", "digits@~1", "v1"]);
    desk.done(&["tag", "digits@~1", "v2"]);
    let log = desk.json(&["log", "digits"])[0].clone();
    let first = log[1]["id"].as_str().expect("an id");
    let commit = desk.dir.path().join(format!("store/store/commits/{first}.json"));
    std::fs::remove_file(commit).expect("a commit");
    assert!(desk.refused(1, &["gc"]).contains("nothing is deleted"));
    assert!(desk.refused(1, &["rm", "digits@v3", "--yes"]).contains("there is digits@v1"));
    desk.done(&["tag", "digits", "v1", "--delete"]);
    desk.done(&["rm", "digits@v2", "--yes"]);
    let removed = desk.run(&["rm", "digits", "--yes"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    let said = text(&removed.stderr);
    assert!(said.contains("note: the history of digits is broken") && said.contains(first), "{said}");
    desk.done(&["gc"]);
}

#[test]
fn what_cannot_be_named_tagged_or_removed_is_refused_in_one_line_with_a_way_out() {
    let desk = with_two_versions();
    desk.done(&["tag", "digits@~1", "v1"]);
    let refusals: [(i32, &[&str], &str); 13] = [
        (1, &["info", "digits@~2"], "digits has 2 in all, the first is digits@~1"),
        (1, &["info", "digits@v2"], "there is digits@v1"),
        (1, &["info", "digits@0123456789"], "shardctl log digits"),
        (1, &["log", "nothing"], "there is digits"),
        (2, &["info", "digits@~x"], "not a number of commits"),
        (2, &["tag", "digits", "20261001"], "could begin a version"),
        (2, &["tag", "digits", "V1"], "cannot be a tag"),
        (2, &["tag", "digits@~1"], "name the tag"),
        (1, &["tag", "digits", "v1"], "--force moves it"),
        (1, &["tag", "digits", "v2", "--delete"], "there is digits@v1"),
        (2, &["rm", "digits@~1", "--yes"], "shardctl rm digits"),
        (2, &["gc", "--older-than", "1w"], "such as 30m"),
        (1, &["plan", "rm", "--plan", "nothing"], "there is no plan nothing"),
    ];
    for (code, args, said) in refusals {
        let line = desk.refused(code, args);
        assert!(line.contains(said), "{args:?}: {line}");
    }
    desk.done(&["tag", "digits", "v1", "--force"]);
    assert_eq!(version(&desk, "digits@v1"), version(&desk, "digits"));
    desk.done(&["tag", "digits", "v1", "--delete"]);
    assert!(desk.done(&["tag", "digits"]).contains("no tags yet"));
    let output = desk.run(&["log", "digits"]);
    assert!(text(&output.stdout).lines().count() == 3, "a heading and two versions");
}
