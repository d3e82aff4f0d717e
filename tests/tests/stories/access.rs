//! Who may ask a node over HTTP: real nodes that want tokens, and people with good, weak, old and no ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use shardd_tests::{Node, binary, error_line, run, wait_until};
use tempfile::TempDir;

/// A node that wants tokens, with two datasets.
struct House {
    root: TempDir,
    node: Node,
}

impl House {
    fn new() -> House {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let node = Node::start_with(root.path(), "n1", None, &[("SHARDD_AUTH", "tokens".to_owned())]);
        let house = House { root, node };
        for (name, seed) in [("ours", "0"), ("theirs", "1")] {
            run(house.admin().args(["ingest", "--name", name, "--seed", seed]).arg(digits()));
            run(house.admin().args(["partition", name, "--q", "0.1"]));
        }
        house
    }

    /// `shardctl` of the administrator, who has the file that the node left.
    fn admin(&self) -> Command {
        self.with("SHARDD_TOKEN_FILE", self.node.data.join("admin-token").to_str().expect("UTF-8"))
    }

    /// `shardctl` with a token.
    fn with(&self, variable: &str, value: &str) -> Command {
        let mut command = self.nobody();
        command.env(variable, value);
        command
    }

    /// `shardctl` without one.
    fn nobody(&self) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", &self.node.http]);
        for variable in ["SHARDD_TOKEN", "SHARDD_TOKEN_FILE", "SHARDD_CA", "SHARDD_CONTEXT"] {
            command.env_remove(variable);
        }
        command
    }

    /// Makes a token.
    fn token(&self, options: &[&str]) -> String {
        let made = run(self.admin().args(["--json", "token", "create"]).args(options));
        let made: Value = serde_json::from_str(&made).expect("JSON");
        made["token"].as_str().expect("a token").to_owned()
    }

    /// The status of a request, and what its document says.
    fn ask(&self, method: &str, path: &str, authorization: Option<&str>) -> (u16, Value, Option<String>) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let url = format!("{}{path}", self.node.http);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        if let Some(shown) = authorization {
            request = request.header("authorization", shown);
        }
        let mut answer = agent.run(request.body(()).expect("a request")).expect("it answers");
        let challenge =
            answer.headers().get("www-authenticate").map(|value| value.to_str().expect("text").to_owned());
        let status = answer.status().as_u16();
        (status, answer.body_mut().read_json().unwrap_or(Value::Null), challenge)
    }
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet")
}

fn refused(command: &mut Command) -> String {
    let output: Output = command.output().expect("shardctl starts");
    let line = error_line(&output);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {line}");
    println!("{line}");
    line
}

#[test]
fn without_a_token_a_node_says_only_that_it_lives() {
    let house = House::new();
    let shown = std::fs::read_to_string(house.node.data.join("admin-token")).expect("the node left it");
    let mode = std::fs::metadata(house.node.data.join("admin-token")).map(|file| {
        use std::os::unix::fs::PermissionsExt;
        file.permissions().mode() & 0o777
    });
    assert_eq!(mode.expect("a file"), 0o600);
    for path in ["/v1/health", "/v1/ready", "/v1/openapi.json"] {
        assert_eq!(house.ask("GET", path, None).0, 200, "{path}");
    }
    for (method, path) in [
        ("GET", "/v1/datasets"),
        ("GET", "/v1/nodes"),
        ("GET", "/metrics"),
        ("DELETE", "/v1/datasets/ours"),
        ("GET", "/v1/none"),
    ] {
        let (status, problem, challenge) = house.ask(method, path, None);
        assert_eq!(
            (status, &problem["type"]),
            (401, &json!("urn:shardd:problem:unauthorized")),
            "{method} {path}"
        );
        assert_eq!(challenge.as_deref(), Some("Bearer realm=\"shardd\""));
    }
    let forged = format!("{}0", &shown.trim()[..shown.trim().len() - 1]);
    for wrong in [forged.as_str(), "shardd_0_0", "x"] {
        let (status, problem, challenge) = house.ask("GET", "/v1/datasets", Some(&format!("Bearer {wrong}")));
        // One in sixteen secrets ends with the digit that was put there.
        if wrong == shown.trim() {
            continue;
        }
        assert_eq!(status, 401, "{problem}");
        assert!(challenge.is_some_and(|challenge| challenge.contains("invalid_token")), "{problem}");
        assert!(wrong == "x" || !problem.to_string().contains(wrong), "{problem}");
    }
    assert_eq!(house.ask("GET", "/v1/datasets", Some("Basic Zm9vOmJhcg==")).0, 401);
    assert_eq!(house.ask("GET", "/v1/datasets", Some(&format!("bearer {}", shown.trim()))).0, 200);
    let line = refused(house.nobody().arg("ls"));
    assert!(line.contains("this needs a token"), "{line}");
    assert!(!house.node.log().contains(shown.trim()), "no secret is in the log");
}

#[test]
fn a_token_is_good_for_its_role_and_its_datasets() {
    let house = House::new();
    let reader = house.token(&["a trainer"]);
    let reader = || house.with("SHARDD_TOKEN", &reader);
    run(reader().args(["info", "ours"]));
    run(reader().args(["read", "--plan", "ours", "--epochs", "1", "--quiet"]));
    let line = refused(reader().args(["tag", "ours", "v1"]));
    assert!(line.contains("the token of SHARDD_TOKEN has the role read; this needs write"), "{line}");
    let line = refused(reader().args(["token", "ls"]));
    assert!(line.contains("this needs admin"), "{line}");

    let writer = house.token(&["a pipeline", "--role", "write", "--dataset", "ours"]);
    let writer = || house.with("SHARDD_TOKEN", &writer);
    run(writer().args(["tag", "ours", "v1"]));
    let seen: Value = serde_json::from_str(&run(writer().args(["--json", "ls"]))).expect("JSON");
    let names: Vec<&str> =
        seen.as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["ours"]);
    let line = refused(writer().args(["info", "theirs"]));
    assert!(line.contains("not for dataset theirs") || line.contains("there is no"), "{line}");
    let theirs: Value =
        serde_json::from_str(&run(house.admin().args(["--json", "info", "theirs"]))).expect("JSON");
    let version = theirs["version"].as_str().expect("an id");
    let plans: Value =
        serde_json::from_str(&run(house.admin().args(["--json", "plan", "ls"]))).expect("JSON");
    assert_eq!(plans.as_array().map(Vec::len), Some(2), "{plans}");
    let line = refused(writer().args(["partition", &format!("theirs@{version}"), "--q", "0.2"]));
    assert!(line.contains("theirs"), "{line}");
    let line = refused(writer().args(["gc"]));
    assert!(line.contains("this needs admin"), "{line}");
}

#[test]
fn a_revoked_or_expired_token_is_none_on_every_node() {
    let house = House::new();
    let join = house.node.data.join("join-token");
    let second = Node::start(house.root.path(), "n2", Some(&join));
    let token = house.token(&["short", "--expires", "1s"]);
    let lasting = house.token(&["lasting", "--expires", "1d"]);
    let ask = |server: &str, token: &str| {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", server, "ls"]).env("SHARDD_TOKEN", token).env_remove("SHARDD_TOKEN_FILE");
        command.output().expect("shardctl starts")
    };
    // The second node asks for tokens as the first one does, without a setting.
    assert!(!ask(&second.http, "").status.success());
    wait_until("the second node knows the token", || ask(&second.http, &lasting).status.success());
    wait_until("the short one has expired", || !ask(&house.node.http, &token).status.success());
    let line = error_line(&ask(&house.node.http, &token));
    println!("{line}");
    assert!(line.contains("the token of SHARDD_TOKEN expired at"), "{line}");

    let listed: Value =
        serde_json::from_str(&run(house.admin().args(["--json", "token", "ls"]))).expect("JSON");
    let id =
        listed.as_array().expect("a list").iter().find(|one| one["name"] == "lasting").expect("it is there");
    assert!(!listed.to_string().contains(lasting.rsplit('_').next().expect("its secret")));
    let revoked = run(house.admin().args(["--json", "token", "revoke", id["id"].as_str().expect("an id")]));
    assert_eq!(serde_json::from_str::<Value>(&revoked).expect("JSON")["revoked"], id["id"]);
    assert!(!ask(&house.node.http, &lasting).status.success());
    wait_until("the second node knows that it is revoked", || !ask(&second.http, &lasting).status.success());
    let line = refused(house.admin().args(["token", "revoke", id["id"].as_str().expect("an id")]));
    assert!(line.contains("there is no token"), "{line}");
}

#[test]
fn a_token_in_a_file_is_for_its_owner_only() {
    let house = House::new();
    let path = house.root.path().join("mine");
    run(house.admin().args(["token", "create", "me", "--to"]).arg(&path));
    run(house.with("SHARDD_TOKEN_FILE", path.to_str().expect("UTF-8")).arg("ls"));
    let line = refused(house.admin().args(["token", "create", "me", "--to"]).arg(&path));
    assert!(line.contains("exists; remove it, or name another file"), "{line}");
    let line = refused(house.with("SHARDD_TOKEN_FILE", "/not/there").arg("ls"));
    assert!(line.contains("/not/there"), "{line}");
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = Command::new(binary("shardctl"));
    let output = command.arg("--store").arg(directory.path()).args(["token", "ls"]).output().expect("starts");
    assert_eq!(output.status.code(), Some(2), "{}", error_line(&output));
}

/// Posts JSON with a token.
fn post(node: &Node, path: &str, token: &str, body: &Value) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = format!("{}{path}", node.http);
    let asked = agent.post(url).header("authorization", format!("Bearer {token}")).send_json(body);
    let mut answer = asked.expect("it answers");
    (answer.status().as_u16(), answer.body_mut().read_json().unwrap_or(Value::Null))
}

#[test]
fn a_run_is_seen_by_who_may_read_its_dataset_and_spoken_for_by_who_began_it() {
    let house = House::new();
    let trainer = house.token(&["a trainer"]);
    let stranger = house.token(&["another trainer"]);
    let theirs = house.token(&["of theirs", "--dataset", "theirs"]);
    let keeper = house.token(&["a keeper", "--role", "write", "--dataset", "ours"]);
    let reading = ["read", "--plan", "ours", "--epochs", "1", "--quiet", "--run", "r"];
    run(house.with("SHARDD_TOKEN", &trainer).args(reading));
    let get = |path: &str, token: &str| house.ask("GET", path, Some(&format!("Bearer {token}")));

    // The facts about a run lead to the digests of its data: that is for who may read them.
    for path in ["", "/placement", "/audit", "/cursor", "/rendezvous", "/filled", "/misses", "/timeline"] {
        let (status, problem, _) = get(&format!("/v1/runs/r{path}"), &theirs);
        assert_eq!((status, &problem["type"]), (403, &json!("urn:shardd:problem:forbidden")), "{path}");
        assert_ne!(get(&format!("/v1/runs/r{path}"), &stranger).0, 403, "{path}");
    }
    let run_view = get("/v1/runs/r", &trainer).1;
    let told = get("/v1/runs/r", &theirs).1.to_string();
    assert!(!told.contains(run_view["run"]["plan"].as_str().expect("an id")), "{told}");
    let reports = get("/v1/runs/r/audit", &trainer).1;
    let report = reports[0].clone();
    assert_eq!(reports.as_array().map(Vec::len), Some(1), "{reports}");

    // Only the token that began it speaks for its ranks, or one that may write; and nothing is replaced.
    let mut other = report.clone();
    other["samples"] = 1.into();
    let more = json!({ "rank": 1, "world": 2, "epoch": 0, "samples": 1, "digest_sum": report["digest_sum"] });
    for (token, body, expected) in [
        (&stranger, &report, 403),
        (&stranger, &more, 403),
        (&theirs, &more, 403),
        (&trainer, &report, 204),
        (&trainer, &other, 409),
        (&keeper, &other, 409),
    ] {
        let (status, problem) = post(&house.node, "/v1/runs/r/audit", token, body);
        assert_eq!(status, expected, "{problem}");
    }
    let plan = &run_view["run"]["plan"];
    let again = json!({ "id": "r", "plan": plan, "virtual_ranks": run_view["run"]["virtual_ranks"] });
    for (token, expected) in [(&stranger, 403), (&theirs, 403), (&trainer, 201), (&keeper, 201)] {
        assert_eq!(post(&house.node, "/v1/runs", token, &again).0, expected);
    }
    let own = json!({ "id": "mine", "plan": plan, "virtual_ranks": 4 });
    assert_eq!(post(&house.node, "/v1/runs", &theirs, &own).0, 403, "a plan over another dataset");
    let rank = |token: &str| house.ask("DELETE", "/v1/runs/r/ranks/0", Some(&format!("Bearer {token}"))).0;
    assert_eq!((rank(&stranger), rank(&trainer)), (403, 204));
    assert_eq!(get("/v1/runs/r/audit", &trainer).1, reports, "it is as it was");
    run(house.with("SHARDD_TOKEN", &trainer).args(reading));
}

#[test]
fn the_first_token_closes_all_nodes_at_once_and_their_data_to_other_users() {
    let root = tempfile::tempdir().expect("a temporary directory can be made");
    let mut first = Node::start(root.path(), "n1", None);
    let second = Node::start(root.path(), "n2", Some(&first.data.join("join-token")));
    let control = |server: &str, token: &str| {
        let mut command = Command::new(binary("shardctl"));
        command.args(["--server", server]).env("SHARDD_TOKEN", token).env_remove("SHARDD_TOKEN_FILE");
        command
    };
    let line = refused(control(&second.http, "").args(["token", "create", "ci"]));
    assert!(line.contains("--role admin"), "{line}");
    run(control(&second.http, "").arg("ls"));

    let made = run(control(&second.http, "").args(["--json", "token", "create", "me", "--role", "admin"]));
    let made: Value = serde_json::from_str(&made).expect("JSON");
    let token = made["token"].as_str().expect("a token");
    assert!(refused(control(&second.http, "").arg("ls")).contains("this needs a token"));
    wait_until("the other node asks for a token", || {
        !control(&first.http, "").arg("ls").output().expect("shardctl starts").status.success()
    });
    run(control(&first.http, token).arg("ls"));
    let mode = |node: &Node| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(&node.data).expect("it is there").permissions().mode() & 0o777
    };
    wait_until("other users are kept out", || mode(&first) == 0o700 && mode(&second) == 0o700);

    // No client is locked out by a restart, and no door opens.
    first.stop();
    first.restart();
    run(control(&first.http, token).arg("ls"));
    refused(control(&first.http, "").arg("ls"));

    // With its metadata gone the copy in the store has the tokens.
    first.stop();
    std::fs::rename(first.data.join("meta"), root.path().join("backup")).expect("renames");
    first.restart();
    run(control(&first.http, token).arg("ls"));
    refused(control(&first.http, "").arg("ls"));

    // With the copy gone, too, the node asks for a token still, and the owner of the machine has one.
    first.stop();
    for lost in ["meta", "store/meta"] {
        std::fs::remove_dir_all(first.data.join(lost)).expect("removes");
    }
    first.restart();
    refused(control(&first.http, "").arg("ls"));
    let read = || std::fs::read_to_string(first.data.join("admin-token")).expect("the node left it");
    let owner = read();
    run(control(&first.http, owner.trim()).arg("ls"));
}

#[test]
fn the_owner_of_the_machine_stays_in_when_the_metadata_is_lost_and_restored() {
    let mut house = House::new();
    let file = house.node.data.join("admin-token");
    let before = std::fs::read_to_string(&file).expect("the node left it");
    let (meta, backup) = (house.node.data.join("meta"), house.root.path().join("backup"));
    house.node.stop();
    std::fs::rename(&meta, &backup).expect("renames");
    house.node.restart();
    run(house.admin().arg("ls"));
    house.node.stop();
    std::fs::remove_dir_all(&meta).expect("removes");
    std::fs::rename(&backup, &meta).expect("renames");
    house.node.restart();
    assert!(run(house.admin().arg("ls")).contains("ours"));
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), before, "no secret was overwritten");
}
