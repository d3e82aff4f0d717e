//! The fuzzer's seeds and findings, run through its targets without it.

mod seeds;
#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use targets::TARGETS;

/// What corpus and regressions together may take in the repository.
const MOST_BYTES: u64 = 1 << 20;

#[test]
fn every_input_that_was_ever_kept_is_survived() {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        let mut accepted = 0;
        for path in inputs("corpus", name).into_iter().chain(inputs("regressions", name)) {
            let bytes = fs::read(&path).expect("a listed file can be read");
            match catch_unwind(|| target(&bytes)) {
                Ok(went_all_the_way) => accepted += u32::from(went_all_the_way),
                Err(_) => failed.push(path),
            }
        }
        assert!(accepted > 0, "no input of {name} is accepted: its seeds lead nowhere");
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_folder_of_inputs_belongs_to_a_target_and_all_are_small() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut bytes = 0;
    for kind in ["corpus", "regressions"] {
        for folder in list(&home().join(kind)) {
            let name = folder.file_name().expect("a listed folder").to_string_lossy().into_owned();
            assert!(targets.contains(&name), "{} has no target", folder.display());
            bytes += list(&folder).iter().map(|file| file.metadata().expect("a file").len()).sum::<u64>();
        }
    }
    assert!(bytes <= MOST_BYTES, "{bytes} bytes of inputs");
}

/// Writes the seeds that are made and not found. For a change of a target's use of its bytes.
#[test]
#[ignore = "writes seeds into tests/fuzz/corpus"]
fn write_seeds() {
    for (target, name, bytes) in seeds::all() {
        let folder = home().join("corpus").join(target);
        fs::create_dir_all(&folder).expect("the folder can be made");
        fs::write(folder.join(name), bytes).expect("the folder can be written");
    }
}

fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    list(&home().join(kind).join(target))
}

/// What lies in a folder, by name; nothing if it is not there.
fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    paths.retain(|path| !path.ends_with("README.md"));
    paths.sort();
    paths
}

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}
