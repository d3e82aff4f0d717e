//! Ids do not change: an input has the same version, the same objects, the same plan and the same order as
//! before, for every kind of source and every option of a plan.
//!
//! `golden/inputs` holds the sources, which `golden/make.py` made, and `golden/table.jsonl` the ids. When this test fails, every id that
//! users have noted is another one. A change that is meant replaces the line, and says why in its `note`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardd_tests::{binary, run};
use shardfmt::Digest;
use tempfile::TempDir;

/// A source, and the ids of what becomes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    case: String,
    /// Why the ids are others than before, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Arguments of `shardctl ingest`.
    ingest: Vec<String>,
    version: String,
    /// The digest of names and bytes of the shards, sidecars and manifests.
    objects: String,
    plans: Vec<Planned>,
}

/// A plan over the version, and what its first three epochs are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Planned {
    /// Arguments of `shardctl partition`.
    partition: Vec<String>,
    plan: String,
    /// The digest of the digests of all steps, in order.
    epochs: String,
}

#[test]
fn versions_objects_plans_and_orders_have_the_ids_they_had() {
    let table = std::fs::read_to_string(golden("table.jsonl")).expect("the table is there");
    let lines: Vec<Line> = table
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    assert!(lines.len() > 30, "{} cases", lines.len());
    let found: Vec<Line> = lines.iter().map(again).collect();
    let differ = found.iter().zip(&lines).filter(|(found, line)| found != line);
    let differ: Vec<String> =
        differ.map(|(found, _)| serde_json::to_string(found).expect("plain data")).collect();
    assert!(
        differ.is_empty(),
        "{} lines have other ids; they would be:\n{}",
        differ.len(),
        differ.join("\n")
    );
}

/// The same line, with the ids that come out now.
fn again(line: &Line) -> Line {
    let root = TempDir::new().expect("a temporary directory can be made");
    let shardctl = || {
        let mut command = Command::new(binary("shardctl"));
        // The names of the inputs are in its provenance, which is an object too.
        command.current_dir(golden("inputs")).arg("--store").arg(root.path()).arg("--json");
        command
    };
    let ingested = last(shardctl().args(["ingest", "--name", "golden"]).args(&line.ingest));
    let objects = objects_digest(&root.path().join("store"));
    let plans = line.plans.iter().map(|planned| {
        let made = last(shardctl().args(["partition", "golden"]).args(&planned.partition));
        let plan = text(&made, "plan");
        let read = run(shardctl().args(["read", "--epochs", "3", "--plan", &plan]));
        let steps = read.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let digests: String = steps.filter_map(|step| Some(step.get("digest")?.to_string())).collect();
        assert!(!digests.is_empty(), "{read}");
        Planned { plan, epochs: Digest::of(digests.as_bytes()).to_string(), ..planned.clone() }
    });
    Line { version: text(&ingested, "version"), objects, plans: plans.collect(), ..line.clone() }
}

/// The digest of what a store has of a version. Commits are left out: they have the time in them.
fn objects_digest(store: &Path) -> String {
    let mut files = Vec::new();
    for kind in ["shards", "manifests"] {
        list(&store.join(kind), &mut files);
    }
    files.sort();
    assert!(!files.is_empty(), "{} has objects", store.display());
    let mut all = Vec::new();
    for file in files {
        let name = file.strip_prefix(store).expect("it is in the store").to_str().expect("ASCII");
        let bytes = std::fs::read(&file).expect("a file");
        all.extend_from_slice(format!("{name} {}\n", Digest::of(&bytes)).as_bytes());
    }
    Digest::of(&all).to_string()
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn last(command: &mut Command) -> Value {
    let printed = run(command);
    serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON")
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("{value} has no {key}")).to_owned()
}
