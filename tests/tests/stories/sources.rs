//! What other people's programs write is ingested as it is: pyarrow, NumPy, Pillow, Python's own modules, the packages of
//! WebDataset and of Hugging Face's tokenizers each make a file of their kind, `shardctl` makes a version of it, and
//! pyarrow finds the same rows in the same order in its shards, in the types that docs/INGEST.md says.
//!
//! The files, and what should become of them, are in `reference/sources.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use shardd_tests::{binary, python, run};
use tempfile::TempDir;

/// A file or directory of some kind.
#[derive(Deserialize)]
struct Case {
    case: String,
    kind: String,
    given: PathBuf,
    options: Vec<String>,
    bytes: u64,
}

/// What became of it.
#[derive(Deserialize)]
struct Found {
    case: String,
    made: u64,
    found: u64,
    columns: usize,
    types: Vec<String>,
}

#[test]
fn rows_that_other_programs_write_come_out_the_same_in_the_same_order() {
    let Some(python) = python() else { return };
    let root = TempDir::new().expect("a temporary directory can be made");
    let (files, store) = (root.path().join("files"), root.path().join("store"));
    std::fs::create_dir(&files).expect("the directory can be made");
    let cases: Vec<Case> = lines(Command::new(&python).arg(script()).arg("write").arg(&files));
    let ingested = cases.iter().map(|case| (case.case.as_str(), ingest(case, &store)));
    let ingested: BTreeMap<&str, (String, Duration)> = ingested.collect();
    let versions: BTreeMap<_, _> = ingested.iter().map(|(case, (version, _))| (case, version)).collect();
    let versions = serde_json::to_string(&versions).expect("names and digests");
    let mut check = Command::new(&python);
    check.arg(script()).arg("check").arg(&files).arg(store.join("store")).arg(versions);
    let found: Vec<Found> = lines(&mut check);

    println!(
        "{:<30} {:>9} {:>8} {:>8} {:>7}  {:<32} {:>6}",
        "kind", "bytes", "rows in", "rows out", "columns", "types", "ms"
    );
    for case in &cases {
        let found = found.iter().find(|found| found.case == case.case).expect("every case is checked");
        let types = match found.types.as_slice() {
            few @ ([] | [_] | [_, _] | [_, _, _]) => few.join(", "),
            many => format!("{} types", many.len()),
        };
        let (_, took) = &ingested[case.case.as_str()];
        println!(
            "{:<30} {:>9} {:>8} {:>8} {:>7}  {types:<32} {:>6}",
            case.kind,
            case.bytes,
            found.made,
            found.found,
            found.columns,
            took.as_millis()
        );
        assert_eq!(found.made, found.found);
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/sources.py")
}

/// What a command prints: a line of JSON for each.
fn lines<T: for<'de> Deserialize<'de>>(command: &mut Command) -> Vec<T> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    run(command).lines().map(parse).collect()
}

/// The version that comes of a case, and how long it takes, the start of the program included.
fn ingest(case: &Case, store: &Path) -> (String, Duration) {
    let mut command = Command::new(binary("shardctl"));
    command.arg("--store").arg(store).args(["--json", "ingest"]).arg(&case.given);
    command.args(["--name", &case.case, "--mix", "sequential", "--threads", "2"]).args(&case.options);
    let began = Instant::now();
    let printed = run(&mut command);
    let took = began.elapsed();
    let done: Value = serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON");
    let version = done["version"].as_str().unwrap_or_else(|| panic!("{command:?}: {printed}"));
    (version.to_owned(), took)
}
