//! Commands that a reader gives, run as they are written: the blocks `sh by-hand` of the README and `sh tutorial` of the tutorial,
//! each page in order and in one shell.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use shardd_tests::blocks::{Block, blocks};
use shardd_tests::{binary, is_quick, run};
use tempfile::TempDir;

/// One bash script of all blocks: those for other terminals run in the background until the script ends.
fn script(blocks: &[Block]) -> String {
    let mut script = String::from(
        "set -euo pipefail\n\
         cargo() { echo \"(built already: cargo $*)\"; }\n\
         stop() { kill ${others:-} 2>/dev/null || true; for other in ${others:-}; do wait \"$other\" || true; done; }\n\
         trap stop EXIT\n",
    );
    for (number, block) in blocks.iter().enumerate() {
        if block.is_background {
            // A node that ends before it is ready is an error, not a hang.
            write!(
                script,
                "{} >terminal-{number} 2>&1 &\nothers=\"${{others:-}} $!\"\n\
                 until grep -q 'ready: http' terminal-{number}; do\n\
                 kill -0 $! 2>/dev/null || {{ cat terminal-{number}; exit 1; }}\n\
                 sleep 0.05\ndone\n",
                block.text
            )
        } else {
            // `wait` in a block means the block's own processes, not the nodes.
            let text = block.text.replace("\nwait", "\nwait $!");
            writeln!(script, "{text}")
        }
        .expect("writing to a string cannot fail");
    }
    script
}

/// The default ports of nodes, and the one at which the ranks of the README meet: for one page at a time.
static PORTS: Mutex<[u16; 3]> = Mutex::new([7700, 7701, 7790]);

/// Runs the blocks of a page that have the label, of which there are `least` at least. Returns the directory that they ran in, or
/// `None` if they cannot run here.
fn run_page(page: &str, label: &str, least: usize) -> Option<TempDir> {
    if is_quick() {
        return None;
    }
    let ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    for port in *ports {
        if TcpListener::bind(("127.0.0.1", port)).is_err() {
            println!("skipped: port {port} of the examples in {page} is in use");
            return None;
        }
    }
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: no curl");
        return None;
    }
    let root = root();
    let text = std::fs::read_to_string(root.join(page)).expect("there is such a page");
    let blocks = blocks(&text, |found| found == label);
    assert!(blocks.len() >= least, "only {} blocks found in {page}", blocks.len());

    let home = TempDir::new().expect("a temporary directory can be made");
    symlink(root.join("client"), home.path().join("client")).expect("a link can be made");
    let built = binary("shardctl").parent().expect("binaries lie in a directory").to_owned();
    std::fs::create_dir(home.path().join("target")).expect("a directory can be made");
    symlink(built, home.path().join("target/release")).expect("a link can be made");
    let printed = run(Command::new("bash").current_dir(home.path()).arg("-c").arg(script(&blocks)));
    println!("{printed}");
    Some(home)
}

/// A report of `shardtrain`.
fn report(directory: &Path, name: &str) -> Value {
    let text = std::fs::read_to_string(directory.join(name)).expect("the training writes a report");
    serde_json::from_str(&text).expect("a report is JSON")
}

/// Both trainings ended with the same weights, and these are good.
#[track_caller]
fn assert_same_weights(first: &Value, second: &Value) {
    assert!(first["weights_digest"].is_string());
    assert_eq!(first["weights_digest"], second["weights_digest"]);
    let accuracy = first["test_accuracy"].as_f64().expect("the test set was evaluated");
    assert!(accuracy > 0.9, "{accuracy}");
}

#[test]
fn the_job_by_hand_works_as_written() {
    let Some(home) = run_page("README.md", "by-hand", 8) else { return };
    assert_same_weights(&report(home.path(), "rank-0.json"), &report(home.path(), "rank-1.json"));
}

#[test]
fn the_tutorial_works_as_written() {
    let Some(home) = run_page("docs/tutorial.md", "tutorial", 12) else { return };
    let directory = home.path().join("target/tutorial");
    let (first, second) = (report(&directory, "first.json"), report(&directory, "second.json"));
    assert_same_weights(&first, &second);
    assert!(second["resumed_from"].is_u64(), "it was killed and resumed");
    if has_the_page_s_bits() {
        let page = std::fs::read_to_string(root().join("docs/tutorial.md")).expect("there is such a page");
        let digest = first["weights_digest"].as_str().expect("a digest is text");
        let accuracy = 100.0 * first["test_accuracy"].as_f64().expect("the test set was evaluated");
        assert!(page.contains(&format!("weights blake3 {digest}\n")), "the tutorial lacks {digest}");
        assert!(
            page.contains(&format!("test accuracy {accuracy:.1} %")),
            "the tutorial lacks {accuracy:.1} %"
        );
        let reported = page.matches(&format!("\"weights_digest\": \"{digest}\"")).count();
        assert_eq!(reported, page.matches("\"weights_digest\": ").count(), "of both trainings");
    }
}

/// Whether this machine has the processor and the C library that the tutorial gives the digest of its weights for.
fn has_the_page_s_bits() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx2 = false;
    let version = Command::new("ldd").arg("--version").output();
    has_avx2 && version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("GLIBC 2.36"))
}

/// The directory of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}
