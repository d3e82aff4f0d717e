//! The console's files, and the views that it shows.

use super::*;

fn file(server: &Server, path: &str, known: &str) -> Response<ureq::Body> {
    let url = format!("http://{}{path}", server.address);
    agent().get(url).header("if-none-match", known).call().expect("an answer")
}

#[test]
fn the_console_is_served_with_a_policy_that_lets_it_run_its_own_script_alone() {
    let server = Server::start();
    for (path, kind) in [("/", "text/html"), ("/console.js", "text/javascript"), ("/console.css", "text/css")]
    {
        let reply = file(&server, path, "");
        assert_eq!(reply.status(), 200, "{path}");
        assert!(
            header(&reply, "content-type").starts_with(kind),
            "{path}: {}",
            header(&reply, "content-type")
        );
        let policy = header(&reply, "content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&reply, "x-content-type-options"), "nosniff");
        let tag = header(&reply, "etag").to_owned();
        assert!(!bytes(reply).is_empty());
        let again = file(&server, path, &tag);
        assert_eq!((again.status().as_u16(), bytes(again).len()), (304, 0), "{path}");
    }
    let page = String::from_utf8(bytes(file(&server, "/", ""))).expect("text");
    assert!(!page.contains("style=") && !page.contains("\"/"), "it works below any path: {page}");
    assert_eq!(file(&server, "/console.map", "").status(), 404);
    let posted = agent().post(format!("http://{}/", server.address)).send_empty().expect("an answer");
    assert_eq!(posted.status(), 405);
}

#[test]
fn the_files_need_no_token_and_what_they_show_does() {
    let server = Server::start();
    let (_, made) = server.send("tokens", &json!({ "name": "boss", "role": "admin" }));
    let boss: Value = serde_json::from_slice(&bytes(made)).expect("JSON");
    let bearer = |made: &Value| format!("Bearer {}", made["token"].as_str().expect("a token"));
    let boss = bearer(&boss);
    let make = |body: &Value| {
        let reply = agent().post(server.url("tokens")).header("authorization", &boss).send_json(body);
        bearer(&serde_json::from_slice(&bytes(reply.expect("an answer"))).expect("JSON"))
    };
    let reader = make(&json!({ "name": "reader", "role": "read" }));
    let scoped = make(&json!({ "name": "scoped", "role": "read", "datasets": ["a"] }));
    assert_eq!(file(&server, "/", "").status(), 200);
    assert_eq!(file(&server, "/console.js", "").status(), 200);
    let copies = format!("shards/{}/copies", "0".repeat(64));
    for path in ["overview", "cluster/nodes", "nodes/n1/series", "hot", "nodes/n1/hot", &copies] {
        assert_eq!(server.get(path, &[]).0, 401, "{path}");
        assert_eq!(
            server.get(path, &[("authorization", "Bearer shardd_0000000000000000_x")]).0,
            401,
            "{path}"
        );
        let (status, reply) = server.get(path, &[("authorization", &scoped)]);
        assert_eq!(
            (status.as_u16(), detail(reply)),
            (403, "the token is for some datasets, this is about all".into())
        );
        assert!(server.get(path, &[("authorization", &reader)]).0 != 401, "{path}");
    }
    let rights = |bearer: &str| -> Value {
        serde_json::from_slice(&bytes(server.get("access", &[("authorization", bearer)]).1)).expect("JSON")
    };
    assert_eq!(rights(&reader), json!({ "required": true, "role": "read", "datasets": null }));
    assert_eq!(rights(&scoped), json!({ "required": true, "role": "read", "datasets": ["a"] }));
}

#[test]
fn a_node_shows_itself_and_refuses_questions_that_are_none() {
    let server = Server::start();
    let get = |path: &str| -> Value {
        let (status, reply) = server.get(path, &[]);
        assert_eq!(status, 200, "{path}");
        serde_json::from_slice(&bytes(reply)).expect("JSON")
    };
    let overview = get("overview");
    assert_eq!((&overview["runs"], &overview["findings"]), (&json!([]), &json!([])));
    let own = get("status")["node"].as_str().expect("a name").to_owned();
    assert_eq!(overview["node"], own);
    let series = get(&format!("nodes/{own}/series?names=cache_used,process&points=3"));
    let names: Vec<&str> =
        series["series"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["cache_used_bytes", "process_resident_bytes"]);
    assert_eq!(get(&format!("nodes/{own}/hot?by=latency"))["shards"], json!([]));
    assert_eq!(get(&format!("nodes/{own}/status"))["machine"]["release"], env!("CARGO_PKG_VERSION"));
    assert_eq!(get("access"), json!({ "required": false, "role": null, "datasets": null }));
    for (path, status, says) in [
        ("nodes/nobody/status".to_owned(), 404, "there is no live node nobody"),
        ("nodes/A/status".to_owned(), 400, "cannot name a node"),
        (format!("shards/{}/copies", "0".repeat(64)), 404, "there is no shard 0000"),
        (format!("nodes/{own}/series?points=0"), 400, "0 is not a number from 1 to 720"),
        ("hot?by=heat".to_owned(), 400, "unknown variant `heat`"),
        ("cluster/nodes?limit=100000".to_owned(), 400, "not a number from 1 to 1000"),
        ("cluster/nodes?sort=name".to_owned(), 400, "unknown field `sort`"),
    ] {
        let (answered, reply) = server.get(&path, &[]);
        let said = detail(reply);
        assert!(answered == status && said.contains(says), "{path}: {answered} {said}");
    }
}
