//! Three machines that make a cluster by the commands of docs/CLUSTER.md, and of docs/how-to/three-nodes.md, each block run on
//! the machine it is for.

use std::path::Path;

use serde_json::Value;
use shardd_tests::blocks::blocks;
use shardd_tests::machines::{Lan, is_listening};
use shardd_tests::{is_quick, wait_until};

const MACHINES: [(&str, u8); 3] = [("n1", 1), ("n2", 2), ("n3", 3)];

/// The blocks of a page after this heading are for a cluster that has lost its first node.
const LOSS: &str = "\n## Replace the first node\n";

/// Runs the blocks of a page on three machines, up to the loss of the first node. Returns these and the output, or `None` if
/// they cannot be had here.
fn follow(page: &str) -> Option<(Lan, String)> {
    if is_quick() {
        return None;
    }
    let Some(s3s) = std::env::var_os("SHARDD_S3S_FS").filter(|path| Path::new(path).exists()) else {
        println!("skipped: SHARDD_S3S_FS is not the path of s3s-fs (tests/run installs it and sets this)");
        return None;
    };
    let mut lan = Lan::new()?;
    let bucket = lan.srv("bucket");
    std::fs::create_dir_all(bucket.join("training")).expect("a bucket is a directory");
    let (key, secret) = ("the-key", "the-secret");
    lan.serve(&[
        s3s.to_str().expect("UTF-8"),
        "--host",
        "10.77.0.9",
        "--port",
        "9000",
        "--access-key",
        key,
        "--secret-key",
        secret,
        bucket.to_str().expect("UTF-8"),
    ]);
    let credentials =
        [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_REGION", "us-east-1")];
    for (name, n) in MACHINES {
        lan.add(name, n, &credentials);
    }
    wait_until("the bucket answers", || is_listening(&mut lan, "n1", "10.77.0.9:9000"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    for file in ["train.parquet", "test.parquet"] {
        std::fs::copy(root.join("client/data/digits").join(file), lan.srv("n1").join(file))
            .expect("the data are there");
    }

    let text = text_of(page);
    let said = run_blocks(&mut lan, text.split(LOSS).next().unwrap_or_default(), 9);
    Some((lan, said))
}

fn text_of(page: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    std::fs::read_to_string(root.join(page)).expect("the page")
}

/// Runs the blocks of a text, each on its machine, and returns the output.
fn run_blocks(lan: &mut Lan, text: &str, at_least: usize) -> String {
    let blocks = blocks(text, |label| MACHINES.iter().any(|(name, _)| *name == label));
    assert!(blocks.len() >= at_least, "only {} blocks found", blocks.len());
    let mut said = String::new();
    for block in &blocks {
        println!("{}# {}", block.label, block.text.replace('\n', "\n  > "));
        if block.is_background {
            lan.machine(&block.label).start(&block.text);
            continue;
        }
        let output = lan.machine(&block.label).run(&block.text);
        println!("{output}\n");
        said.push_str(&output);
    }
    said
}

#[test]
fn three_machines_make_a_cluster_by_the_documents_commands() {
    let Some((mut lan, said)) = follow("docs/CLUSTER.md") else { return };
    for name in ["n1", "n2", "n3"] {
        let http = format!("https://10.77.0.{}:7700", &name[1..]);
        assert!(said.contains(&http), "{name} is in the list of nodes");
    }
    assert!(said.contains("2,874 samples"), "both epochs were read\n{said}");

    refusals(&mut lan);
}

#[test]
fn three_machines_train_by_the_commands_of_the_guide() {
    let Some((mut lan, said)) = follow("docs/how-to/three-nodes.md") else { return };
    assert!(said.contains("was read, each sample once in 10 epochs"), "{said}");
    let report = lan.machine("n1").run("cat /srv/report.json");
    let report: Value = serde_json::from_str(&report).expect("rank 0 writes a report");
    assert_eq!(report["world"], 6);
    assert!(report["test_accuracy"].as_f64().is_some_and(|accuracy| accuracy > 0.9), "{report}");

    // The copies that the page asks for are in a safe place; then the machine is lost, and another one comes in its place.
    let safe = lan.srv("n2").join("safe");
    std::fs::create_dir_all(&safe).expect("a directory can be made");
    for file in ["tls/ca.key", "tls/ca.pem", "admin-token"] {
        let copy = safe.join(Path::new(file).file_name().expect("a file"));
        std::fs::copy(lan.srv("n1").join("shardd").join(file), copy).expect("the first node has it");
    }
    wait_until("the metadata is copied", || {
        lan.machine("n1").attempt("test ! -e /srv/shardd/meta.ahead").0 == 0
    });
    lan.machine("n1").run(
        "kill -KILL $!; while kill -0 $! 2> /dev/null; do sleep 0.05; done; rm -r /srv/shardd /srv/terminal",
    );
    let text = text_of("docs/how-to/three-nodes.md");
    let (_, loss) = text.split_once(LOSS).expect("the page says how the first node is replaced");
    let said = run_blocks(&mut lan, loss, 5);
    assert!(said.contains("n2 keeps the metadata now"), "{said}");
    wait_until("all three are there", || {
        let (_, said) = lan.machine("n2").attempt("shardctl status");
        (1..=3).all(|n| said.contains(&format!("https://10.77.0.{n}:7700"))) && !said.contains("not ready")
    });
}

/// The commands that fail from another machine, and their errors.
fn refusals(lan: &mut Lan) {
    let joining = "shardd serve --data /srv/other --http 10.77.0.2:7710 --quic 10.77.0.2:7711 --id n4";
    let attempts = [
        ("n2", "shardctl --server https://10.77.0.1:7700 ls", "--ca"),
        ("n2", "shardctl --server http://10.77.0.1:7700 ls", "speaks https"),
        ("n2", "shardctl --server https://10.77.0.1:7700 --ca /srv/shardd/tls/ca.pem ls", "needs a token"),
        ("n3", "shardctl token create --join", "this needs admin"),
        ("n2", &format!("{joining} --join @/srv/join"), "has joined with this join token"),
        (
            "n2",
            "shardd serve --data /srv/alone --http 10.77.0.2:7710 --quic 10.77.0.2:7711",
            "--tls and --auth",
        ),
    ];
    for (machine, command, wants) in attempts {
        let (code, said) = lan.machine(machine).attempt(command);
        println!("{machine}# {command}\n{said} (exit {code})");
        assert!(code != 0 && said.contains(wants), "{machine}: {command}: {said}");
    }
}
