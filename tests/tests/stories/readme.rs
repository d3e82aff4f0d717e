//! The README's job by hand, run as it is written there: every `sh by-hand` block, in order, in one shell.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use shardd_tests::blocks::{Block, blocks};
use shardd_tests::{binary, is_quick, run};

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

#[test]
fn the_job_by_hand_works_as_written() {
    if is_quick() {
        return;
    }
    for port in [7700, 7701, 7790] {
        if TcpListener::bind(("127.0.0.1", port)).is_err() {
            println!("skipped: port {port} of the README's example is in use");
            return;
        }
    }
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: no curl");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("there is a README");
    let blocks = blocks(&readme, |label| label == "by-hand");
    assert!(blocks.len() >= 8, "only {} blocks found", blocks.len());

    let home = tempfile::TempDir::new().expect("a temporary directory can be made");
    symlink(root.join("client"), home.path().join("client")).expect("a link can be made");
    let built = binary("shardctl").parent().expect("binaries lie in a directory").to_owned();
    std::fs::create_dir(home.path().join("target")).expect("a directory can be made");
    symlink(built, home.path().join("target/release")).expect("a link can be made");
    let printed = run(Command::new("bash").current_dir(home.path()).arg("-c").arg(script(&blocks)));
    println!("{printed}");

    let report = |rank: u32| -> Value {
        let path = home.path().join(format!("rank-{rank}.json"));
        let text = std::fs::read_to_string(&path).expect("each rank writes a report");
        serde_json::from_str(&text).expect("a report is JSON")
    };
    let (first, second) = (report(0), report(1));
    assert!(first["weights_digest"].is_string());
    assert_eq!(first["weights_digest"], second["weights_digest"]);
    let accuracy = first["test_accuracy"].as_f64().expect("the test set was evaluated");
    assert!(accuracy > 0.9, "{accuracy}");
}
