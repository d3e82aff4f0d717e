//! The files that `shardtrain` writes when a training has ended.

use std::process::Command;

use crate::common::DigitsStore;

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_first_step() {
    let store = DigitsStore::new();
    let folder = tempfile::tempdir().unwrap();
    let (nowhere, here) = (folder.path().join("nowhere/file"), folder.path().to_owned());
    for flag in ["--save", "--report", "--trace"] {
        for (path, why) in [(&nowhere, "No such file or directory"), (&here, "is a directory")] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
            command.arg("--store").arg(store.path()).args(["--dataset", "digits", "--epochs", "1"]);
            let output = command.args(["--virtual-ranks", "4", flag]).arg(path).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{flag}: {error}");
            let expected = format!("cannot write {}: ", path.display());
            assert!(error.contains(&expected) && error.contains(why), "{flag}: {error}");
            assert!(output.stdout.is_empty(), "{flag}: it has not trained");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}
