//! The first steps of a person with a table of their own: a context, a look at samples, a training and a longer one.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use shardd_tests::{binary, run};
use tempfile::TempDir;

/// Rows with three numbers and a class in text.
fn table() -> String {
    let row = |n: usize| format!("{},{},{},{}\n", n % 7, n % 5, n % 3, ["cat", "dog", "bird"][n % 3]);
    "a,b,c,label\n".to_owned() + &(0..300).map(row).collect::<String>()
}

fn command(home: &Path, program: &str, words: &str) -> Command {
    let mut command = Command::new(binary(program));
    command.args(words.split_whitespace()).env_clear().env("HOME", home).current_dir(home);
    command.stdin(Stdio::null());
    command
}

fn refused(output: Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_table_with_text_labels_is_shown_trained_and_trained_for_longer() {
    let home = TempDir::new().expect("a temporary directory");
    let home = home.path();
    std::fs::write(home.join("animals.csv"), table()).expect("writes");
    let shardctl = |words: &str| run(&mut command(home, "shardctl", words));
    // From here on, neither program needs a place.
    shardctl("context set lab --store data");
    shardctl("context use lab");
    shardctl("ingest animals.csv --name animals --mix sequential");
    let head = shardctl("head animals -n 2 --columns c,label");
    let lines: Vec<Vec<&str>> = head.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["row", "c", "label"], ["0", "0", "cat"], ["1", "1", "dog"]]);
    let row = shardctl("--json head --from 299 --columns label");
    assert_eq!(row, "{\"label\":\"bird\"}\n");
    let past = refused(command(home, "shardctl", "head --from 300").output().expect("starts"));
    assert!(past.contains("300 samples") && past.contains("at most 299"), "{past}");

    let train = |epochs: u32| {
        let words =
            format!("--dataset animals --checkpoints kept --threads 1 --virtual-ranks 3 --epochs {epochs}");
        command(home, "shardtrain", &words)
    };
    let first = run(&mut train(1));
    assert!(first.starts_with("trained 1 epoch on 1 rank of 3 virtual ranks"), "{first}");
    let again = run(&mut train(1));
    assert!(again.starts_with("already trained: 1 epoch in "), "{again}");
    let weights = |text: &str| text.lines().last().expect("a line").to_owned();
    assert_eq!(weights(&first), weights(&again));
    let longer = run(&mut train(2));
    assert!(longer.starts_with("trained 2 epochs"), "{longer}");
    assert_ne!(weights(&first), weights(&longer));
    // Mistakes about classes are found before the training.
    let counted = train(3).args(["--classes", "5"]).output().expect("starts");
    assert_eq!(counted.status.code(), Some(1));
    let counted = String::from_utf8(counted.stderr).expect("text");
    assert!(counted.contains("has 3 classes of text, but --classes is 5; leave --classes out"), "{counted}");
    std::fs::write(home.join("more.csv"), table().replace(",bird\n", ",wolf\n")).expect("writes");
    shardctl("ingest more.csv --name more");
    let unknown = refused(train(3).args(["--test-dataset", "more"]).output().expect("starts"));
    assert!(unknown.contains("the test data more has the label \"wolf\""), "{unknown}");
    let shorter = refused(train(1).output().expect("starts"));
    assert!(shorter.contains("after --epochs 1: give at least 2"), "{shorter}");
}

#[test]
fn a_training_that_names_an_unknown_dataset_is_answered_with_the_known_ones() {
    let home = TempDir::new().expect("a temporary directory");
    let home = home.path();
    std::fs::write(home.join("animals.csv"), table()).expect("writes");
    run(&mut command(home, "shardctl", "--store data ingest animals.csv --name animals"));
    let output =
        command(home, "shardtrain", "--store data --dataset animal --epochs 1").output().expect("starts");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("there is no dataset animal: there is animals; is it animals?"), "{error}");
}

#[test]
fn flags_of_nodes_and_stores_are_not_dropped_by_the_launcher() {
    let home = TempDir::new().expect("a temporary directory");
    let words = "run --nproc 1 --store data -- --dataset animals";
    let refusal = refused(command(home.path(), "shardtrain", words).output().expect("starts"));
    assert!(refusal.contains("give them after --"), "{refusal}");
}
