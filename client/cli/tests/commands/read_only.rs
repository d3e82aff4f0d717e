//! A store that may only be read: another user's, or on a file system that takes no writes. Listing, reading,
//! verifying and exporting need no write; other commands are refused by name, and leave nothing half done.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::desk::{Desk, digits, text};

/// A user who owns nothing.
const OTHER: u32 = 65534;

/// A user who may read the store of a desk, and write nowhere but into a directory of their own.
struct Reader {
    desk: Desk,
    own: tempfile::TempDir,
    is_root: bool,
}

impl Reader {
    fn new() -> Reader {
        let desk = Desk::with_digits();
        let own = tempfile::tempdir().expect("a temporary directory");
        let is_root = fs::metadata("/proc/self")
            .map(|of| std::os::unix::fs::MetadataExt::uid(&of))
            .is_ok_and(|uid| uid == 0);
        if is_root {
            std::os::unix::fs::chown(own.path(), Some(OTHER), Some(OTHER)).expect("root may");
        }
        let reader = Reader { desk, own, is_root };
        reader.set(0o555, 0o444);
        fs::set_permissions(reader.desk.dir.path(), Permissions::from_mode(0o755)).expect("ours");
        reader
    }

    fn store(&self) -> PathBuf {
        self.desk.dir.path().join("store")
    }

    fn set(&self, directories: u32, files: u32) {
        for path in below(&self.store()).into_iter().chain([self.store()]) {
            let mode = if path.is_dir() { directories } else { files };
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
        }
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardctl"));
        command.arg("--store").arg(self.store()).args(args).env_remove("SHARDD_SERVER");
        command.env("HOME", self.own.path()).env("TMPDIR", self.own.path());
        command.env("SHARDD_CACHE_DIR", self.own.path().join("cache"));
        if self.is_root {
            // Root may do everything: another user reads.
            command.uid(OTHER).gid(OTHER);
        }
        command.output().expect("shardctl starts")
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr).trim_end().to_owned()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.set(0o755, 0o644);
    }
}

/// All that lies below a directory.
fn below(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.insert(path);
    }
    found
}

#[test]
fn a_store_that_may_only_be_read_is_listed_verified_and_exported() {
    let reader = Reader::new();
    let before = below(&reader.store());
    let listed = [
        (&["ls"][..], "digits"),
        (&["info", "digits"], "digits"),
        (&["log", "digits"], "ingest"),
        (&["plan", "ls"], "digits"),
    ];
    for (command, shows) in listed {
        assert!(reader.done(command).contains(shows), "{command:?}");
    }
    let version = reader.desk.json(&["info", "digits"])[0]["version"].to_string();
    assert!(reader.done(&["--json", "info", "digits"]).contains(&version), "its owner has the same");
    let missing = ["info", "nothing"];
    assert_eq!(reader.refused(&missing), format!("error: {}", reader.desk.refused(1, &missing)));
    assert!(reader.done(&["verify", "digits"]).contains("1,437 samples"));
    assert!(reader.done(&["--json", "read", "--quiet"]).contains("\"samples\":1437"), "all samples are read");
    let to = reader.own.path().join("out");
    reader.done(&["export", "digits", to.to_str().expect("text"), "--format", "parquet"]);
    assert!(to.join("part-000000.parquet").exists());
    assert!(reader.done(&["gc"]).contains("nothing to delete"), "looking for garbage deletes none");
    assert_eq!(below(&reader.store()), before, "nothing was made there");
}

#[test]
fn what_needs_to_write_says_where_it_may_not_and_changes_nothing() {
    let reader = Reader::new();
    let before = below(&reader.store());
    let test = digits("test");
    for command in [
        &["tag", "digits", "v1"][..],
        &["rm", "digits", "--yes"],
        &["partition", "--q", "0.5"],
        &["gc", "--delete"],
        &["ingest", &test, "--name", "more"],
    ] {
        let line = reader.refused(command);
        assert!(line.contains(&reader.store().display().to_string()), "{command:?}: {line}");
        assert!(
            line.contains("Permission denied") && !line.contains("you cannot begin"),
            "{command:?}: {line}"
        );
    }
    assert_eq!(below(&reader.store()), before);
}

#[test]
fn a_store_that_may_not_even_be_read_is_named_with_the_reason() {
    let reader = Reader::new();
    let hidden = reader.store();
    fs::set_permissions(&hidden, Permissions::from_mode(0o000)).expect("ours");
    let line = reader.refused(&["ls"]);
    fs::set_permissions(&hidden, Permissions::from_mode(0o555)).expect("ours");
    assert!(line.contains(&hidden.display().to_string()) && line.contains("Permission denied"), "{line}");
    assert!(line.contains("ask its owner"), "{line}");
}
