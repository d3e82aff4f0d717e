//! Metadata in a real etcd: it keeps the promises of a metastore, outlives its own leader and every node of
//! ours, and while it is unreachable only changes wait for it.
//!
//! Skipped where etcd is not installed, and in builds without the feature `cluster-etcd`.

#[cfg(feature = "cluster-etcd")]
mod client;
#[cfg(feature = "cluster-etcd")]
mod nodes;

#[cfg(not(feature = "cluster-etcd"))]
#[test]
fn a_build_without_etcd_says_which_has_it() {
    use std::process::Command;

    println!(
        "skipped: built without the feature cluster-etcd, which needs protoc; only the refusal is tried"
    );
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let mut command = Command::new(shardd_tests::binary("shardd"));
    command.args(["serve", "--http", "127.0.0.1:0", "--metastore", "etcd://127.0.0.1:1/x", "--data"]);
    let output = command.arg(root.path()).output().expect("starts");
    let error = shardd_tests::error_line(&output);
    assert!(
        !output.status.success() && error.contains("cluster-etcd") && error.contains("protoc"),
        "{error}"
    );
}
