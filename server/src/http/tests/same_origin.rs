//! What a web page of another site gets from a node that asks for no token: nothing, and it changes nothing.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// The status and the body of the answer.
fn asked(server: &Server, request: &str, headers: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let all = format!("{request}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(all.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer}")), answer)
}

/// A node with a dataset that a tag and a plan name, and garbage beside them.
fn filled() -> (Server, VersionId) {
    let server = Server::start();
    let catalog = server.catalog();
    let shard = shard(0);
    catalog.put_shard(&shard).expect("put");
    let manifest = long_manifest();
    catalog.put_manifest(&manifest).expect("put");
    let name = "d".parse().expect("a name");
    catalog.commit(&name, None, &manifest, &CommitNote::of(Operation::INGEST)).expect("commits");
    (server, manifest.id())
}

#[test]
fn a_page_of_another_site_empties_no_node_and_makes_no_token() {
    let (server, version) = filled();
    let at = format!("host: {}", server.address);
    let delete = format!("DELETE /v1/datasets/d?expected={version} HTTP/1.1");
    let (gc, token) = (r#"{"dry_run":false,"older_than_s":0}"#, r#"{"name":"x","role":"admin"}"#);
    let foreign = "origin: http://evil.example";
    let (json, text) = ("content-type: application/json", "content-type: text/plain");
    let table: &[(&str, &[&str], &str, u16, &str)] = &[
        // A form, or a fetch without being asked for leave.
        ("POST /v1/gc HTTP/1.1", &[&at, foreign, text], gc, 403, "foreign-origin"),
        (
            "POST /v1/tokens HTTP/1.1",
            &[&at, "sec-fetch-site: cross-site", text],
            token,
            403,
            "foreign-origin",
        ),
        ("POST /v1/tokens HTTP/1.1", &[&at, "sec-fetch-site: same-site", json], token, 403, "foreign-origin"),
        ("POST /v1/tokens HTTP/1.1", &[&at, "origin: null", json], token, 403, "foreign-origin"),
        (
            "POST /v1/tokens HTTP/1.1",
            &[&at, "origin: http://localhost:1", json],
            token,
            403,
            "foreign-origin",
        ),
        (&delete, &[&at, foreign], "", 403, "foreign-origin"),
        ("OPTIONS /v1/datasets/d HTTP/1.1", &[&at, foreign], "", 403, "foreign-origin"),
        ("GET /v1/datasets HTTP/1.1", &[&at, "sec-fetch-site: cross-site"], "", 403, "foreign-origin"),
        // Its own name leads here now.
        ("GET /v1/datasets HTTP/1.1", &["host: evil.example"], "", 421, "foreign-host"),
        ("POST /v1/gc HTTP/1.1", &["host: evil.example", foreign, json], gc, 421, "foreign-host"),
        ("GET http://evil.example/v1/health HTTP/1.1", &[&at], "", 421, "foreign-host"),
        ("GET /v1/health HTTP/1.0", &["host: evil.example"], "", 421, "foreign-host"),
        // A browser too old to say where its page is from.
        ("POST /v1/gc HTTP/1.1", &[&at, text], gc, 415, "unsupported-media-type"),
        ("POST /v1/tokens HTTP/1.1", &[&at], token, 415, "unsupported-media-type"),
        ("GET /v1/health HTTP/1.1", &[], "", 400, "malformed"),
        ("GET /v1/health HTTP/1.1", &["host: localhost", "host: evil.example"], "", 400, "malformed"),
    ];
    for (request, headers, body, status, kind) in table {
        let (found, answer) = asked(&server, request, headers, body);
        assert_eq!(found, *status, "{request} {headers:?}: {answer}");
        assert!(answer.contains(&format!("urn:shardd:problem:{kind}")), "{answer}");
        assert!(answer.contains("x-request-id"), "{answer}");
    }
    let tokens = server.get("tokens", &[]).1;
    assert_eq!(serde_json::from_slice::<Value>(&bytes(tokens)).expect("JSON"), json!([]));
    assert_eq!(
        server.catalog().resolve(&"d".parse().expect("a name")).expect("it is there").version,
        version
    );
    server.catalog().manifest(version).expect("it is there");
}

#[test]
fn a_link_of_another_site_opens_the_console_and_nothing_else() {
    let (server, _) = filled();
    let at = format!("host: {}", server.address);
    let window = [&*at, "sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: document"];
    assert_eq!(asked(&server, "GET / HTTP/1.1", &window, "").0, 200);
    let renamed = ["host: evil.example", window[1], window[2], window[3]];
    let frame = [window[0], window[1], window[2], "sec-fetch-dest: iframe"];
    let fetch = [window[0], window[1], "sec-fetch-mode: no-cors", "sec-fetch-dest: empty"];
    let posted = [window[0], window[1], window[2], window[3], "origin: http://evil.example"];
    for (request, headers, status) in [
        ("GET / HTTP/1.1", &renamed[..], 421),
        ("GET / HTTP/1.1", &frame, 403),
        ("GET / HTTP/1.1", &fetch, 403),
        ("GET / HTTP/1.1", &posted, 403),
        ("POST / HTTP/1.1", &window, 403),
        ("GET /v1/overview HTTP/1.1", &window, 403),
        ("GET /console.js HTTP/1.1", &window, 403),
    ] {
        assert_eq!(asked(&server, request, headers, "").0, status, "{request} {headers:?}");
    }
}

#[test]
fn programs_probes_and_own_pages_are_answered() {
    let (server, _) = filled();
    let port = server.address.port();
    let own = format!("http://localhost:{port}");
    let (origin, host) = (format!("origin: {own}"), format!("host: localhost:{port}"));
    for (request, headers) in [
        ("GET /v1/health HTTP/1.0", vec![]),
        ("GET /v1/datasets HTTP/1.1", vec!["host: localhost"]),
        ("GET /v1/datasets HTTP/1.1", vec!["host: LOCALHOST.:1"]),
        ("GET /v1/datasets HTTP/1.1", vec!["host: [::1]:7700"]),
        ("GET /metrics HTTP/1.1", vec!["host: 127.0.0.1:7700"]),
        ("GET /v1/datasets HTTP/1.1", vec![&host, &origin, "sec-fetch-site: same-origin"]),
        ("GET /v1/datasets HTTP/1.1", vec![&host, "sec-fetch-site: none"]),
    ] {
        let (status, answer) = asked(&server, request, &headers, "");
        assert_eq!(status, 200, "{request} {headers:?}: {answer}");
    }
    let kind = "content-type: application/json; charset=utf-8";
    let (status, answer) = asked(&server, "POST /v1/gc HTTP/1.1", &[&host, &origin, kind], "{}");
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn the_first_token_is_an_administrators_and_closes_the_node_at_once() {
    let server = Server::start();
    let (status, reply) = server.send("tokens", &json!({ "name": "ci", "role": "read" }));
    let detail = detail(reply);
    assert!(status == 409 && detail.contains("--role admin"), "{detail}");
    let of_one = json!({ "name": "ci", "role": "admin", "datasets": ["d"] });
    assert_eq!(server.send("tokens", &of_one).0, 409);
    assert_eq!(server.get("datasets", &[]).0, 200, "nothing was made");

    let (status, reply) = server.send("tokens", &json!({ "name": "boss", "role": "admin" }));
    let made: Value = serde_json::from_slice(&bytes(reply)).expect("JSON");
    assert_eq!(status, 201);
    assert_eq!(server.get("datasets", &[]).0, 401, "from now on");
    let bearer = format!("Bearer {}", made["token"].as_str().expect("a token"));
    let authorized = [("authorization", bearer.as_str())];
    assert_eq!(server.get("datasets", &authorized).0, 200);
    // Any name will do now: no page has the token.
    assert_eq!(server.get("datasets", &[authorized[0], ("host", "data.example")]).0, 200);

    let post =
        |body: &Value| agent().post(server.url("tokens")).header("authorization", &bearer).send_json(body);
    let (status, reply) = server.ask(post(&json!({ "name": "ci", "role": "read" })));
    let reader: Value = serde_json::from_slice(&bytes(reply)).expect("JSON");
    assert_eq!(status, 201);
    let revoke = |made: &Value| {
        let path = format!("tokens/{}", made["id"].as_str().expect("an id"));
        server.ask(agent().delete(server.url(&path)).header("authorization", &bearer).call()).0
    };
    assert_eq!(revoke(&made), 409, "who would make others?");
    assert_eq!(revoke(&reader), 204);
    assert_eq!(revoke(&made), 204);
    assert_eq!(server.get("datasets", &[]).0, 200, "without tokens it is as it was");
}
