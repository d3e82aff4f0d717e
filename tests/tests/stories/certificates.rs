//! Who is a node, and who is believed to be one: real processes behind TLS, joining, renewing, revoked, refused.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use shardd_tests::{Node, binary, ended, error_line, run, wait_until};
use tempfile::TempDir;

/// A cluster behind TLS that asks for tokens. Its certificates are good for this time.
struct House {
    root: TempDir,
    first: Node,
}

const PROTECTED: [(&str, &str); 2] = [("SHARDD_TLS", "true"), ("SHARDD_AUTH", "tokens")];

impl House {
    fn new(lifetime: &str) -> House {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let mut variables = PROTECTED.map(|(name, value)| (name, value.to_owned())).to_vec();
        variables.push(("SHARDD_CERTIFICATE_LIFETIME", lifetime.to_owned()));
        let first = Node::start_with(root.path(), "n1", None, &variables);
        House { root, first }
    }

    fn ca(&self) -> PathBuf {
        self.first.data.join("tls/ca.pem")
    }

    /// `shardctl` of the administrator.
    fn admin(&self) -> Command {
        let mut command = self.stranger();
        command.env("SHARDD_CA", self.ca()).env("SHARDD_TOKEN_FILE", self.first.data.join("admin-token"));
        command
    }

    /// `shardctl` of a stranger without certificates.
    fn stranger(&self) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", &self.first.http]);
        for variable in ["SHARDD_TOKEN", "SHARDD_TOKEN_FILE", "SHARDD_CA", "SHARDD_CONTEXT"] {
            command.env_remove(variable);
        }
        command
    }

    /// A file with a new join token.
    fn token(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.root.path().join(name);
        run(self.admin().args(["token", "create", "--join", "--to"]).arg(&path).args(options));
        path
    }

    fn join(&self, id: &str) -> Node {
        let token = self.token(&format!("token-{id}"), &[]);
        Node::start(self.root.path(), id, Some(&token))
    }

    /// `shardd serve` that is not expected to come far.
    fn try_join(&self, data: &str, id: &str, token: &Path) -> Command {
        let mut command = Command::new(binary("shardd"));
        command.args(["serve", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--id", id]);
        command.arg("--data").arg(self.root.path().join(data));
        command.arg("--join").arg(format!("@{}", token.display()));
        command
    }

    fn certificates(&self) -> Vec<Value> {
        let listed = run(self.admin().args(["--json", "certs", "ls"]));
        serde_json::from_str::<Vec<Value>>(&listed).expect("JSON")
    }

    /// The state shown of live nodes; one that died stays in sight, as not ready.
    fn nodes(&self) -> String {
        let shown = run(self.admin().arg("status"));
        shown.lines().filter(|line| !line.contains("not ready")).collect::<Vec<_>>().join("\n")
    }
}

fn refused(what: &str, command: &mut Command, wants: &str) {
    let output = ended(command);
    let line = error_line(&output);
    println!("{what}\n  {line} (exit {})", output.status.code().unwrap_or(-1));
    assert!(!output.status.success() && line.contains(wants), "{what}: {line}");
}

#[test]
fn who_is_not_let_in_is_told_why_and_costs_nobody_else() {
    let house = House::new("30d");
    let good = house.token("good", &[]);
    let second = Node::start(house.root.path(), "n2", Some(&good));
    let leave_no_trace = |name: &str| assert!(!house.root.path().join(name).join("tls/node.pem").exists());

    refused("a join secret that was used", &mut house.try_join("x1", "n3", &good), "node n2 has joined with");
    leave_no_trace("x1");
    let short = house.token("short", &["--expires", "1s"]);
    wait_until("it has expired", || {
        error_line(&ended(&mut house.try_join("x2", "n2", &short))).contains("expired")
    });
    refused("one that expired", &mut house.try_join("x2", "n3", &short), "the join token expired");
    let line = std::fs::read_to_string(house.token("cut", &[])).expect("text");
    let forged = house.root.path().join("forged");
    let (kept, secret) = line.trim().rsplit_once(',').expect("parts");
    std::fs::write(&forged, format!("{kept},{}", "0".repeat(secret.len()))).expect("written");
    refused("one that was forged", &mut house.try_join("x3", "n3", &forged), "not that of a join token");
    let parts: Vec<&str> = line.trim().split(',').collect();
    let other = format!("{},{},{},{}", parts[0], parts[1], "0".repeat(64), parts[3]);
    std::fs::write(&forged, other).expect("written");
    refused("a first node that is another", &mut house.try_join("x4", "n3", &forged), "which the token pins");
    leave_no_trace("x4");
    let fresh = house.token("fresh", &[]);
    refused(
        "a name that lives",
        &mut house.try_join("x5", "n2", &fresh),
        "node id n2 belongs to a live node",
    );

    let unprotected = ["serve", "--http", "0.0.0.0:0", "--quic", "127.0.0.1:0"];
    for (flags, wants) in [
        (&[][..], "without TLS and without asking for tokens; give --tls and --auth tokens too"),
        (&["--tls"], "without asking for tokens; give --auth tokens too, or --allow-insecure-http"),
        (&["--auth", "tokens"], "without TLS; give --tls too, or --allow-insecure-http"),
    ] {
        let mut command = Command::new(binary("shardd"));
        command.args(unprotected).args(flags).arg("--data").arg(house.root.path().join("x6"));
        refused(&format!("serving other machines with {flags:?}"), &mut command, wants);
        assert!(!house.root.path().join("x6").exists(), "nothing is left of it");
    }

    refused("a client that does not know the authority", house.stranger().arg("ls"), "--ca");
    let mut wrong = house.admin();
    let another = tempfile::tempdir().expect("a temporary directory can be made");
    run(house.stranger().args(["certs", "init"]).arg(another.path().join("ca")));
    wrong.env("SHARDD_CA", another.path().join("ca/ca.pem"));
    refused("a client that knows another", wrong.arg("ls"), "--ca");
    let mut plain = Command::new(binary("shardctl"));
    plain.args(["--server", &house.first.http.replace("https", "http"), "ls"]);
    refused("plain HTTP", plain.env_remove("SHARDD_TOKEN_FILE"), "this node speaks https");
    let mut nobody = house.stranger();
    refused("no token", nobody.env("SHARDD_CA", house.ca()).arg("ls"), "this needs a token");
    refused(
        "the first node's own key",
        house.admin().args(["certs", "revoke", "n1", "--yes"]),
        "n1 is the first node",
    );
    refused(
        "a node that is none",
        house.admin().args(["certs", "rotate", "n9"]),
        "no certificate of node n9",
    );

    let line = std::fs::read_to_string(&good).expect("text");
    let secret = line.trim().rsplit(',').next().expect("a secret");
    assert!(!house.first.log().contains(secret) && !second.log().contains(secret), "no secret is in a log");
    let status = house.nodes();
    assert!(status.contains("n1 ") && status.contains("n2 ") && !status.contains("n3 "), "{status}");
}

#[test]
fn certificates_are_renewed_while_nodes_serve() {
    let house = House::new("15s");
    let second = house.join("n2");
    let before = house.certificates();
    let first_end = before.iter().filter_map(|one| one["expires_at"].as_u64()).max().expect("a time");
    wait_until("the first certificates are over, and both nodes have others", || {
        // A machine that is slow may lose one for a moment.
        let Ok(listed) = house.admin().args(["--json", "certs", "ls"]).output() else { return false };
        let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        listed.len() == 2
            && listed.iter().zip(&before).all(|(now, before)| {
                now["key"] == before["key"] && now["expires_at"].as_u64() > before["expires_at"].as_u64()
            })
            && shardd_api::duration::now() > first_end
    });
    wait_until("both are nodes still", || {
        let status = house.admin().arg("status").output().expect("shardctl starts");
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        status.contains("n1 ") && status.contains("n2 ")
    });
    drop(second);
}

#[test]
fn an_administrator_renews_and_revokes() {
    let house = House::new("30d");
    let (mut second, third) = (house.join("n2"), house.join("n3"));
    let before = house.certificates();
    let renewed = run(house.admin().args(["--json", "certs", "rotate"]));
    let renewed: Vec<Value> = serde_json::from_str(&renewed).expect("JSON");
    assert_eq!(renewed.len(), 3, "{renewed:?}");
    for (before, now) in before.iter().zip(house.certificates()) {
        assert!(now["issued_at"].as_u64() > before["issued_at"].as_u64() && now["key"] == before["key"]);
    }

    let said = run(house.stranger().args(["--json", "certs", "authority"]));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["pem"], std::fs::read_to_string(house.ca()).expect("PEM"));
    let digest = said["authority"].as_str().expect("a digest");
    run(house.stranger().args(["certs", "authority", "--digest", digest]));
    let wrong = "0".repeat(64);
    refused(
        "another digest",
        house.stranger().args(["certs", "authority", "--digest", &wrong]),
        "is not 0000",
    );

    refused(
        "a revocation of an unknown node",
        house.admin().args(["certs", "revoke", "nix"]),
        "there is no certificate of node nix: there is n1, n2, n3",
    );
    refused(
        "a revocation without a confirmation",
        house.admin().args(["certs", "revoke", "n2"]),
        "revoke all that was signed for node n2?",
    );
    let said = run(house.admin().args(["--json", "certs", "revoke", "n2", "--yes"]));
    assert_eq!(serde_json::from_str::<Value>(&said).expect("JSON")["revoked"], "n2");
    wait_until("n2 is no node any more", || !house.nodes().contains("n2 "));
    wait_until("n2 knows why", || second.log().contains("the key of node n2 was revoked"));
    second.stop();
    let again = house.token("again", &[]);
    refused("a revoked key", &mut house.try_join("n2", "n2", &again), "the key of node n2 was revoked");
    std::fs::remove_dir_all(&second.data).expect("removed");
    let _second = Node::start(house.root.path(), "n2", Some(&again));
    wait_until("n2 is back, with another key", || house.nodes().contains("n2 "));

    // A machine of that name that was put away, and one that came in its place: both have keys of it.
    let mut third = third;
    third.kill();
    let away = house.root.path().join("away");
    std::fs::rename(&third.data, &away).expect("renamed");
    let anew = house.token("anew", &[]);
    let mut joined = None;
    wait_until("the name lapses, and the new machine has it", || {
        let lapsed = !house.nodes().contains("n3 ");
        if lapsed && joined.is_none() {
            joined = Some(Node::start(house.root.path(), "n3", Some(&anew)));
        }
        joined.is_some()
    });
    let keys = |listed: Vec<Value>| listed.iter().filter(|one| one["node"] == "n3").count();
    assert_eq!(keys(house.certificates()), 2);
    run(house.admin().args(["certs", "revoke", "n3", "--yes"]));
    wait_until("the new one is no node any more", || !house.nodes().contains("n3 "));
    drop(joined);
    let mut old = Command::new(binary("shardd"));
    old.args(["serve", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--data"]).arg(&away);
    refused("the one that was put away", &mut old, "the key of node n3 was revoked");
}

#[test]
fn the_newer_of_two_processes_of_a_node_wins_and_another_machine_waits() {
    let house = House::new("30d");
    let mut second = house.join("n2");
    let before = second.http.clone();
    let token = house.token("for-another", &[]);
    refused("another machine", &mut house.try_join("other", "n2", &token), "belongs to a live node");
    // As after a crash that its lease has not heard of yet; the file that it joined with has been thrown away.
    second.kill();
    std::fs::remove_file(house.root.path().join("token-n2")).expect("it was there");
    second.restart();
    assert_eq!(second.http, before);
    wait_until("it is listed", || house.nodes().contains(&before));
    second.kill();
    let mut other: Option<Child> = None;
    wait_until("the name lapses, and another machine has it", || {
        if let Some(child) = &mut other
            && child.try_wait().expect("it can be asked").is_none()
        {
            return house.nodes().contains("n2 ");
        }
        let mut command = house.try_join("other", "n2", &token);
        other = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts"));
        false
    });
    let mut other = other.expect("it runs");
    other.kill().expect("it can be killed");
    other.wait().expect("it is reaped");
}

#[test]
fn a_clock_that_is_hours_off_is_named() {
    let house = House::new("30d");
    let Some(library) = faketime() else {
        println!("skipped: no libfaketime (tests/run installs it)");
        return;
    };
    for (offset, wants) in [("-3h", "behind the first node's"), ("+3h", "ahead of the first node's")] {
        let token = house.token(&format!("at{offset}"), &[]);
        let mut command = house.try_join(&format!("clock{offset}"), "n2", &token);
        command.env("LD_PRELOAD", &library).env("FAKETIME", offset).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        refused(&format!("a clock at {offset}"), &mut command, wants);
    }
}

fn faketime() -> Option<PathBuf> {
    let found = Command::new("find").args(["/usr/lib", "-name", "libfaketimeMT.so.1"]).output().ok()?;
    String::from_utf8(found.stdout).ok()?.lines().next().map(PathBuf::from)
}

#[test]
fn an_authority_away_from_all_nodes_signs_by_hand() {
    let root = tempfile::tempdir().expect("a temporary directory can be made");
    let safe = root.path().join("safe");
    let shardctl = || Command::new(binary("shardctl"));
    run(shardctl().args(["certs", "init"]).arg(&safe));
    refused(
        "another authority there",
        shardctl().args(["certs", "init"]).arg(&safe),
        "exists; name another \
        directory",
    );
    let issue = |node: &str, to: &Path| {
        let mut command = shardctl();
        command.args(["certs", "issue", node, "--host", "127.0.0.1", "--host", "localhost", "--authority"]);
        command.arg(&safe).arg("--to").arg(to);
        command
    };
    for node in ["n1", "n2"] {
        run(&mut issue(node, &root.path().join(node).join("tls")));
    }
    refused(
        "another node's directory",
        &mut issue("n3", &root.path().join("n1/tls")),
        "exists; name \
        another directory",
    );
    refused("the authority's own", &mut issue("n3", &safe), "exists; name another directory");

    let tls = [("SHARDD_TLS", "true".to_owned())];
    let first = Node::start_with(root.path(), "n1", None, &tls);
    assert!(!first.data.join("tls/ca.key").exists());
    let mut second = Node::start(root.path(), "n2", Some(&first.data.join("join-token")));
    let status =
        || run(shardctl().args(["--server", &first.http, "status"]).env("SHARDD_CA", safe.join("ca.pem")));
    wait_until("both are there", || status().contains("n2 "));
    let listed = || {
        run(shardctl().args(["--server", &first.http, "certs", "ls"]).env("SHARDD_CA", safe.join("ca.pem")))
    };
    wait_until("both are on the list", || listed().contains("n1 ") && listed().contains("n2 "));
    let mut rotate = shardctl();
    rotate.args(["--server", &first.http, "certs", "rotate"]).env("SHARDD_CA", safe.join("ca.pem"));
    refused("a certificate that no authority here can sign", &mut rotate, "shardctl certs issue n1");
    let mut third = Command::new(binary("shardd"));
    third.args(["serve", "--id", "n3", "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0", "--data"]);
    third
        .arg(root.path().join("n3"))
        .arg("--join")
        .arg(format!("@{}", first.data.join("join-token").display()));
    refused("a node without a certificate", &mut third, "shardctl certs issue n3");

    let before = std::fs::read(second.data.join("tls/node.pem")).expect("a certificate");
    run(&mut issue("n2", &second.data.join("tls")));
    assert_ne!(std::fs::read(second.data.join("tls/node.pem")).expect("another"), before);
    wait_until("n2 shows it", || second.log().contains("the certificate in <data>/tls is another"));
    second.stop();
    second.restart();
    wait_until("it is back without a token", || status().contains("n2 "));
}

#[test]
fn a_certificate_of_ones_own_is_shown_and_read_again() {
    let root = tempfile::tempdir().expect("a temporary directory can be made");
    let (safe, files) = (root.path().join("safe"), root.path().join("files"));
    let shardctl = || Command::new(binary("shardctl"));
    run(shardctl().args(["certs", "init"]).arg(&safe));
    // Any certificate will do; this one is signed by an authority that is not the cluster's.
    let issue = || {
        let mut command = shardctl();
        command.args(["certs", "issue", "proxy", "--host", "127.0.0.1", "--authority"]).arg(&safe);
        run(command.arg("--to").arg(&files));
    };
    issue();
    let path = |name: &str| files.join(name).display().to_string();
    let variables = [("SHARDD_TLS_CERT", path("node.pem")), ("SHARDD_TLS_KEY", path("node.key"))];
    let node = Node::start_with(root.path(), "n1", None, &variables);
    assert!(node.http.starts_with("https://"));
    let ls = |ca: PathBuf| shardctl().args(["--server", &node.http, "ls"]).env("SHARDD_CA", ca).output();
    assert!(ls(safe.join("ca.pem")).expect("starts").status.success());
    assert!(!ls(node.data.join("tls/ca.pem")).expect("starts").status.success(), "it is not the cluster's");
    issue();
    wait_until("it was read again", || node.log().contains("the certificate for https was read again"));
    assert!(ls(safe.join("ca.pem")).expect("starts").status.success());
    std::fs::write(files.join("node.key"), "x").expect("written");
    wait_until("the message says that it does not fit", || node.log().contains("stays as it was"));
    assert!(ls(safe.join("ca.pem")).expect("starts").status.success());
    // A node that joins by the token trusts who shows this one, if its machine does.
    let join = [("SHARDD_CA", safe.join("ca.pem").display().to_string())];
    let second = Node::start_with(root.path(), "n2", Some(&node.data.join("join-token")), &join);
    assert!(second.http.starts_with("https://"));
}
