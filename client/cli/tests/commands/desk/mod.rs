//! A directory to work in and the program, for tests that use it as people and scripts do.

use std::process::{Command, Output};

use serde_json::Value;

/// A directory to work in, and the program.
pub(crate) struct Desk {
    pub(crate) dir: tempfile::TempDir,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        Desk { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    /// A desk with the digits and their plan.
    pub(crate) fn with_digits() -> Desk {
        let desk = Desk::new();
        desk.done(&["ingest", &digits("train"), "--name", "digits", "--shard-size", "16KiB"]);
        desk.done(&["partition", "--q", "0.1", "--partitions", "16"]);
        desk
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardctl"));
        command.arg("--store").arg(self.dir.path().join("store")).args(args).env_remove("SHARDD_SERVER");
        command.output().expect("shardctl starts")
    }

    /// Its output; it must have succeeded.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The JSON it printed, one value per line.
    pub(crate) fn json(&self, args: &[&str]) -> Vec<Value> {
        let printed = self.done(&[&["--json"], args].concat());
        printed.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// The one line of its error; it must have exited with `code` and printed nothing else.
    pub(crate) fn refused(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        let line = error.strip_prefix("error: ").expect("an error").trim_end().to_owned();
        assert!(!line.contains('\n'), "{args:?} is refused in one line: {error}");
        line
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

pub(crate) fn digits(part: &str) -> String {
    format!("{}/../data/digits/{part}.parquet", env!("CARGO_MANIFEST_DIR"))
}
