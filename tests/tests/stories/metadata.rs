//! The first node, which keeps the metadata: its disk refuses, its files are damaged or gone, its clock was
//! wrong, and it is lost for good. Real processes, SIGKILL, and the commands that the documents name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shardd_api::duration::now;
use shardd_certificates::{Authority, CertificateInfo, LIFETIME, read_certificate, read_key};
use shardd_tests::s3::S3;
use shardd_tests::{Cluster, Node, binary, ended, error_line, run, wait_until};
use tempfile::TempDir;

/// Some rows to ingest.
fn table(root: &Path, name: &str, rows: usize) -> PathBuf {
    let path = root.join(format!("{name}.csv"));
    let lines: String = (0..rows).map(|row| format!("{row},{}\n", row * row)).collect();
    fs::write(&path, format!("a,b\n{lines}")).expect("written");
    path
}

fn shardctl(node: &Node) -> Command {
    let mut command = Command::new(binary("shardctl"));
    command.args(["--server", &node.http]);
    command
}

/// Ingests a dataset, tags it and plans over it.
fn fill(root: &Path, node: &Node) {
    run(shardctl(node).arg("ingest").arg(table(root, "digits", 500)).args(["--name", "digits"]));
    run(shardctl(node).args(["tag", "digits", "paper"]));
    run(shardctl(node).args(["partition", "digits", "--q", "0.1"]));
}

/// All names that a node knows.
fn names(node: &Node) -> String {
    let asked = [&["ls"][..], &["tag", "digits"], &["log", "digits"], &["plan", "ls"]];
    asked.iter().map(|words| run(shardctl(node).arg("--json").args(*words))).collect()
}

fn metadata(node: &Node) -> Value {
    node.get("/v1/status")["metadata"].clone()
}

fn wait_until_copied(node: &Node) {
    wait_until("the metadata is copied", || {
        metadata(node)["is_behind"] == false && !node.data.join("meta.ahead").exists()
    });
}

/// What a start says that is not to succeed.
fn refused(data: &Path, more: &[&str]) -> String {
    let mut command = Command::new(binary("shardd"));
    command.args(["serve", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--data"]).arg(data).args(more);
    let output = ended(&mut command);
    assert!(!output.status.success(), "it was to be refused");
    error_line(&output)
}

#[test]
fn a_first_node_that_is_lost_is_replaced_by_one_command_and_refuses_to_serve_when_it_comes_back() {
    let store = TempDir::new().expect("a directory");
    let mut cluster = Cluster::start_with(3, &[("SHARDD_STORE", store.path().display().to_string())]);
    fill(cluster.root(), &cluster.nodes[0]);
    let before = names(&cluster.nodes[1]);
    wait_until_copied(&cluster.nodes[0]);
    let alive = ended(shardctl(&cluster.nodes[1]).args(["promote", "n2"]));
    assert!(error_line(&alive).contains("node n1 keeps the metadata and answers"), "{}", error_line(&alive));

    cluster.nodes[0].kill();
    // The key of another authority is refused before the node stops or fences the one before.
    let (stranger, key) = (TempDir::new().expect("a directory"), cluster.nodes[1].data.join("tls/ca.key"));
    Authority::found(stranger.path()).expect("founds");
    fs::copy(stranger.path().join("ca.key"), &key).expect("copied");
    let wrong = ended(shardctl(&cluster.nodes[1]).args(["promote", "n2"]));
    assert!(error_line(&wrong).contains("it is not the key of ca.pem"), "{}", error_line(&wrong));
    // The owner puts the authority's key there first, so that the promoted node signs from the beginning.
    fs::copy(cluster.nodes[0].data.join("tls/ca.key"), &key).expect("copied");
    let began = std::time::Instant::now();
    println!("{}", run(shardctl(&cluster.nodes[1]).args(["promote", "n2"])).trim());
    println!("promoted after {:?}", began.elapsed());
    assert_eq!(metadata(&cluster.nodes[1])["epoch"], 2);
    let log = cluster.nodes[1].log();
    assert!(
        log.contains("continues from the copy of 20")
            && log.contains("that n1 acknowledged after that are lost"),
        "{log}"
    );
    wait_until("the third node has found it", || {
        ended(shardctl(&cluster.nodes[2]).args(["tag", "digits"])).status.success()
    });
    assert_eq!((names(&cluster.nodes[1]), names(&cluster.nodes[2])), (before.clone(), before));
    run(shardctl(&cluster.nodes[2]).args(["certs", "rotate", "n3"]));
    let more = table(cluster.root(), "more", 100);
    run(shardctl(&cluster.nodes[2]).arg("ingest").arg(more).args(["--name", "more"]));
    wait_until_copied(&cluster.nodes[1]);

    // The node before comes back, with its own disk: it does not serve old metadata, and joins.
    let line = refused(&cluster.nodes[0].data, &["--store", &store.path().display().to_string()]);
    println!("{line}");
    assert!(
        line.contains("node n2") && line.contains("token create --join") && line.contains("--join @FILE"),
        "{line}"
    );
    let token = cluster.nodes[1].data.join("join-token");
    let data = cluster.nodes[0].data.clone();
    let old = Node::start(cluster.root(), "n1", Some(&token));
    assert!(!data.join("meta").exists() && !data.join("tls/ca.key").exists(), "it keeps nothing any more");
    wait_until("all are there", || {
        cluster.nodes[1].get("/v1/nodes").as_array().is_some_and(|nodes| nodes.len() == 3)
    });
    assert_eq!(names(&old), names(&cluster.nodes[1]));

    // The promoted node is the first one from now on, over restarts too.
    cluster.nodes[1].kill();
    cluster.nodes[1].restart();
    assert_eq!(metadata(&cluster.nodes[1])["epoch"], 2);
    wait_until("it serves", || ended(shardctl(&cluster.nodes[2]).args(["tag", "digits"])).status.success());
    assert_eq!(names(&cluster.nodes[2]), names(&cluster.nodes[1]));
}

#[test]
fn a_flipped_bit_in_the_metadata_costs_a_start_and_no_name() {
    let root = TempDir::new().expect("a directory");
    let mut node = Node::start(root.path(), "n1", None);
    fill(root.path(), &node);
    let before = names(&node);
    let mut restored = 0;
    for part in 1..=6 {
        wait_until_copied(&node);
        node.kill();
        let path = node.data.join("meta/db");
        let mut bytes = fs::read(&path).expect("sled's file");
        let length = bytes.iter().rposition(|byte| *byte != 0).expect("not empty");
        bytes[length * part / 7] ^= 4;
        fs::write(&path, bytes).expect("written");
        node.restart();
        assert_eq!(names(&node), before, "bit in part {part}");
        restored = node.log().matches("was made again of its copy").count();
    }
    println!("of 6 flipped bits {restored} were answered by the copy");
    assert!(restored >= 3, "most bits are seen by sled: {restored}");
    let set_aside = fs::read_dir(&node.data).expect("lists").flatten();
    let set_aside =
        set_aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("meta.damaged-"));
    assert_eq!(set_aside.count(), restored, "nothing is deleted");
}

#[test]
fn a_first_node_without_its_metadata_says_so_and_gets_it_back() {
    let root = TempDir::new().expect("a directory");
    let mut node = Node::start(root.path(), "n1", None);
    fill(root.path(), &node);
    let before = names(&node);
    wait_until_copied(&node);
    node.stop();
    fs::remove_dir_all(node.data.join("meta")).expect("removed");
    node.restart();
    assert_eq!(names(&node), before);
    assert!(node.log().contains("was made again of its copy"), "{}", node.log());

    // Without the copy, too, the commits are still there.
    node.stop();
    fs::remove_dir_all(node.data.join("meta")).expect("removed");
    fs::remove_dir_all(node.data.join("store/meta")).expect("removed");
    node.restart();
    assert!(node.log().contains("`shardctl recover` brings back"), "{}", node.log());
    assert_eq!(node.get("/v1/datasets"), serde_json::json!([]));
    let shown = run(shardctl(&node).args(["recover", "--dry-run"]));
    assert!(shown.contains("1 dataset, 0 tags, 1 plan and 0 runs would come back"), "{shown}");
    println!("{}", run(shardctl(&node).arg("recover")));
    run(shardctl(&node).args(["tag", "digits", "paper"]));
    let without_times = |names: String| {
        let values = serde_json::Deserializer::from_str(&names).into_iter::<Value>();
        let mut values: Vec<Value> = values.collect::<Result<_, _>>().expect("JSON");
        assert!(values.len() >= 4, "{names}");
        values.iter_mut().for_each(strip);
        values
    };
    assert_eq!(without_times(names(&node)), without_times(before));
}

#[test]
fn a_node_that_founds_a_second_cluster_over_a_store_says_whose_the_store_is() {
    let store = TempDir::new().expect("a directory");
    let over_it = [("SHARDD_STORE", store.path().display().to_string())];
    let cluster = Cluster::start_with(1, &over_it);
    fill(cluster.root(), &cluster.nodes[0]);
    wait_until_copied(&cluster.nodes[0]);
    assert!(!cluster.nodes[0].log().contains("belongs to a cluster"), "{}", cluster.nodes[0].log());

    let elsewhere = TempDir::new().expect("a directory");
    let second = Node::start_with(elsewhere.path(), "n1", None, &over_it);
    let said = format!("belongs to a cluster whose metadata node n1 ({}) keeps", cluster.nodes[0].http);
    let log = second.log();
    assert!(
        log.contains(&said)
            && log.contains("--join")
            && log.contains("if that cluster is gone or its key is lost, run `shardctl recover`"),
        "{log}"
    );
}

/// Takes out the times of changes to a name: that of a commit is part of it.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| key != "tagged_at" && key != "created");
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// A node that learns of a full disk by an error, and not by a signal.
struct Limited {
    child: Child,
    http: String,
}

impl Limited {
    fn start(root: &Path) -> Limited {
        let ready = root.join("ready");
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(binary("shardd"));
        command
            .args(["serve", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--data"])
            .arg(root.join("n1"));
        command
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().expect("starts");
        wait_until("it serves", || ready.exists());
        let line = fs::read_to_string(&ready).expect("text");
        let at = line.find(" http ").expect("the ready line names the address") + " http ".len();
        Limited { child, http: line[at..].split([',', ' ']).next().expect("not empty").to_owned() }
    }

    /// No file of it grows beyond this number of bytes.
    fn limit(&self, bytes: &str) {
        let pid = self.child.id().to_string();
        run(Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:unlimited")]));
    }

    fn ready(&self) -> (u16, String) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut answer = agent.get(format!("{}/v1/ready", self.http)).call().expect("it answers");
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("text"))
    }

    fn shardctl(&self, words: &[&str]) -> std::process::Output {
        ended(Command::new(binary("shardctl")).args(["--server", &self.http]).args(words))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_disk_that_takes_nothing_shows_in_readiness_and_needs_no_restart_afterwards() {
    if Command::new("prlimit").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: prlimit is not installed");
        return;
    }
    let root = TempDir::new().expect("a directory");
    let node = Limited::start(root.path());
    let file = table(root.path(), "digits", 500).display().to_string();
    assert!(node.shardctl(&["ingest", &file, "--name", "digits"]).status.success());
    wait_until("ready", || node.ready().0 == 200);

    node.limit("1");
    let failed = node.shardctl(&["tag", "digits", "paper"]);
    assert!(!failed.status.success(), "nothing can be written");
    println!("{}", error_line(&failed));
    wait_until("readiness tells", || node.ready().0 == 503);
    let (_, why) = node.ready();
    assert!(why.contains("takes no changes") && why.contains("make room"), "{why}");

    node.limit("unlimited");
    wait_until("ready again", || node.ready().0 == 200);
    let again = node.shardctl(&["tag", "digits", "paper"]);
    assert!(again.status.success(), "{}", error_line(&again));
    let listed = String::from_utf8(node.shardctl(&["ls"]).stdout).expect("text");
    assert!(listed.contains("digits"), "{listed}");
}

#[test]
fn a_first_node_signs_anew_what_a_clock_that_was_ahead_signed_and_says_that_its_authority_is_lost() {
    let mut cluster = Cluster::start(2);
    let tls = cluster.nodes[0].data.join("tls");
    cluster.nodes[0].kill();
    let authority = Authority::open(&tls).expect("it is there");
    let key = read_key(&tls.join("node.key")).expect("a key");
    let hosts = ["127.0.0.1".parse().expect("a host")];
    let ahead = now() + 40 * 24 * 3600;
    let certificate = authority.certify_at(&"n1".parse().expect("a name"), &hosts, &key, LIFETIME, ahead);
    fs::write(tls.join("node.pem"), certificate.expect("signed").pem()).expect("written");
    cluster.nodes[0].restart();
    let info = CertificateInfo::of(&read_certificate(&tls.join("node.pem")).expect("there")).expect("good");
    assert!(info.not_before <= now(), "it begins {} s from now", info.not_before - now());
    assert!(cluster.nodes[0].log().contains("begins in the future"), "{}", cluster.nodes[0].log());
    wait_until("the other node is back", || {
        cluster.nodes[0].get("/v1/nodes").as_array().is_some_and(|nodes| nodes.len() == 2)
    });

    cluster.nodes[0].kill();
    fs::rename(tls.join("ca.key"), cluster.root().join("ca.key")).expect("moved");
    cluster.nodes[0].restart();
    assert!(cluster.nodes[0].log().contains("tls/ca.key is lost"), "{}", cluster.nodes[0].log());
}

#[test]
fn a_first_node_behind_tls_and_tokens_over_a_bucket_is_replaced_too() {
    let Some(s3) = S3::files() else { return };
    // All that a node has of its own. It gets the store and its address from the first node.
    let credentials: Vec<(&str, String)> = s3
        .variables()
        .into_iter()
        .filter(|(name, _)| *name != "AWS_ENDPOINT_URL")
        .map(|(name, value)| (name, value.to_owned()))
        .collect();
    let mut variables = credentials.clone();
    variables.push(("SHARDD_STORE", "s3://data/lab".to_owned()));
    variables.push(("SHARDD_STORE_ENDPOINT", s3.endpoint.clone()));
    variables.push(("SHARDD_TLS", "true".to_owned()));
    variables.push(("SHARDD_AUTH", "tokens".to_owned()));
    let mut cluster = Cluster::start_with(1, &variables);
    // What an administrator keeps elsewhere: the authority, its key, and the token.
    let kept = TempDir::new().expect("a directory");
    for file in ["tls/ca.pem", "tls/ca.key", "admin-token"] {
        let name = Path::new(file).file_name().expect("a file");
        fs::copy(cluster.nodes[0].data.join(file), kept.path().join(name)).expect("the first node has it");
    }
    let admin = |node: &Node| {
        let mut command = shardctl(node);
        command.env("SHARDD_CA", kept.path().join("ca.pem"));
        command.env("SHARDD_TOKEN_FILE", kept.path().join("admin-token"));
        command
    };
    for id in ["n2", "n3"] {
        let token = cluster.root().join(format!("join-{id}"));
        run(admin(&cluster.nodes[0]).args(["token", "create", "--join", "--to"]).arg(&token));
        let node = Node::start_with(cluster.root(), id, Some(&token), &credentials);
        cluster.nodes.push(node);
    }
    let reader = cluster.root().join("reader");
    run(admin(&cluster.nodes[0]).args(["token", "create", "reader", "--role", "read", "--to"]).arg(&reader));
    let csv = table(cluster.root(), "digits", 500);
    run(admin(&cluster.nodes[0]).arg("ingest").arg(csv).args(["--name", "digits"]));
    run(admin(&cluster.nodes[0]).args(["tag", "digits", "paper"]));
    let status = |node: &Node| -> Value {
        let shown = run(admin(node).args(["--json", "status"]));
        serde_json::from_str(shown.lines().last().expect("a line")).expect("JSON")
    };
    println!("{}", status(&cluster.nodes[0]));
    wait_until("the metadata is copied", || !cluster.nodes[0].data.join("meta.ahead").exists());
    let names = |node: &Node| run(admin(node).args(["--json", "tag", "digits"]));
    let before = names(&cluster.nodes[1]);

    cluster.nodes[0].kill();
    let mut as_reader = shardctl(&cluster.nodes[1]);
    as_reader.env("SHARDD_CA", kept.path().join("ca.pem")).env("SHARDD_TOKEN_FILE", &reader);
    let refused = ended(as_reader.args(["promote", "n2"]));
    assert!(!refused.status.success() && error_line(&refused).contains("admin"), "{}", error_line(&refused));
    println!("{}", run(admin(&cluster.nodes[1]).args(["promote", "n2"])).trim());
    wait_until("the third node has found it", || {
        ended(admin(&cluster.nodes[2]).args(["tag", "digits"])).status.success()
    });
    assert_eq!((names(&cluster.nodes[1]), names(&cluster.nodes[2])), (before.clone(), before));
    let key = cluster.nodes[1].data.join("tls/ca.key");
    assert!(!key.exists(), "the key is nobody's but its owner's");

    // It starts with the flags that it joined with. Without the authority's key every node refuses at once what needs a
    // signature.
    cluster.nodes[1].kill();
    cluster.nodes[1].restart();
    let token = cluster.root().join("join-n4");
    let make_token = |node: &Node| {
        // That of an attempt before, if the node did not know yet.
        let _ = fs::remove_file(&token);
        let mut command = admin(node);
        command.args(["token", "create", "--join", "--to"]).arg(&token);
        ended(&mut command)
    };
    for node in &cluster.nodes[1..] {
        wait_until("a join token is refused", || {
            error_line(&make_token(node)).contains("n2 has no tls/ca.key")
        });
        let rotated = error_line(&ended(admin(node).args(["certs", "rotate", "n3"])));
        assert!(rotated.contains("n2 has no tls/ca.key") && rotated.contains("restart it"), "{rotated}");
    }

    // With it nodes join again: at the node that signs now, whichever node made the token.
    fs::copy(kept.path().join("ca.key"), &key).expect("the owner puts it there");
    cluster.nodes[1].kill();
    cluster.nodes[1].restart();
    wait_until("the third node makes a join token", || make_token(&cluster.nodes[2]).status.success());
    let line = fs::read_to_string(&token).expect("a line");
    assert!(line.contains(&format!(",{},", cluster.nodes[1].http)), "it leads to n2");
    let fourth = Node::start_with(cluster.root(), "n4", Some(&token), &credentials);
    assert_eq!(names(&fourth), names(&cluster.nodes[1]));
    run(admin(&fourth).args(["head", "digits"]));
}
