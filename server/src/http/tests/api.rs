//! The promises of the API as a whole: it fits its description, everything has a head, lists have pages,
//! parts fit together, changes are sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use shardd_api::problem::TABLE;

use super::*;

/// The limit of waits.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server with a dataset `d` of a few commits, tags, and a plan over the last version.
fn filled() -> (Server, Value) {
    let server = Server::start();
    let catalog = server.catalog();
    let mut expected = None;
    for number in 1..=3 {
        let shards: Vec<FinishedShard> = (0..number).map(|at| shard(at * 1000)).collect();
        shards.iter().for_each(|shard| catalog.put_shard(shard).expect("put"));
        let schema = shardfmt::Shard::from_bytes(shards[0].bytes.clone()).expect("own").schema().clone();
        let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
        let manifest = Manifest::new(schema, entries, json!({}));
        let note = CommitNote::of(Operation::INGEST);
        let info = catalog.commit(&"d".parse().unwrap(), expected, &manifest, &note).expect("committed");
        let tag = format!("v{number}").parse().expect("a tag");
        catalog
            .put_tag(&info.name, &tag, info.commit, shardd_store::catalog::TagExpected::Absent)
            .expect("tagged");
        expected = Some(info.version);
    }
    let shape = shardd_plan::Shape { shard_rows: vec![1000; 3], row_bytes: 27_000 };
    let options = shardd_plan::PlanOptions {
        partitions: Some(4),
        grain_rows: Some(8),
        ..shardd_plan::PlanOptions::default()
    };
    let document =
        shardd_plan::PlanDocument::with_defaults(expected.expect("three"), &shape, options).expect("a plan");
    let plan = catalog.put_plan(&document).expect("put");
    (server, json!({ "version": expected, "plan": plan }))
}

fn document(reply: Response<ureq::Body>) -> Value {
    serde_json::from_slice(&bytes(reply)).expect("JSON")
}

/// A path of the description with names of things that are there.
fn concrete(path: &str, names: &Value, shard: ShardId) -> String {
    let id = match path {
        _ if path.starts_with("/v1/plans/") => names["plan"].as_str().expect("a plan").to_owned(),
        _ if path.starts_with("/v1/shards/") => shard.to_string(),
        _ if path.starts_with("/v1/runs/") => "r".to_owned(),
        _ => names["version"].as_str().expect("a version").to_owned(),
    };
    let path = path.replace("{id}", &id).replace("{name}", "d").replace("{tag}", "v1").replace("{rank}", "0");
    let path = path.replace("{sample}", "0").replace("{column}", "x").replace("{step}", "0");
    path.replace("{record}", names["version"].as_str().expect("a digest"))
}

#[test]
fn each_route_is_in_the_description_and_the_other_way_round() {
    // A route comes with its documentation, as there is no other way in.
    assert!(!include_str!("../mod.rs").contains(".route("), "routes are added with `routes!`");
    let (server, names) = filled();
    let described = document(server.get("openapi.json", &[]).1);
    let methods = ["get", "head", "put", "post", "delete", "patch", "options", "trace"];
    for (path, item) in described["paths"].as_object().expect("paths") {
        let url = format!("http://{}{}", server.address, concrete(path, &names, shard(0).id));
        for method in methods {
            let request = ureq::http::Request::builder().method(method.to_uppercase().as_str()).uri(&url);
            let reply = match method {
                "put" | "post" | "patch" => agent().run(request.body("").expect("a request")),
                _ => agent().run(request.body(()).expect("a request")),
            };
            let reply = reply.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
            let (status, allow) = (reply.status().as_u16(), header(&reply, "allow").to_lowercase());
            match item.get(method) {
                Some(operation) => {
                    let known = operation["responses"].get(status.to_string());
                    assert!(known.is_some(), "{method} {path} answers {status}, and does not say so");
                    assert_ne!(status, 405, "{method} {path}");
                }
                None => {
                    assert_eq!(status, 405, "{method} {path}");
                    assert!(
                        item.as_object().unwrap().keys().all(|known| allow.contains(known)),
                        "{path}: {allow}"
                    );
                }
            }
        }
    }
}

#[test]
fn plans_that_do_not_fit_are_refused_by_name_and_change_nothing() {
    let (server, names) = filled();
    let plan = names["plan"].as_str().expect("a plan");
    let good = document(server.get(&format!("plans/{plan}"), &[]).1);
    let before = document(server.get("plans", &[]).1);
    let nothing = VersionId::of(b"nothing");
    for (field, value, said) in [
        ("schedule", json!([4_294_967_297_u64]), "outside 0 to 1"),
        ("schedule", json!([-1]), "the body is not what"),
        ("schedule", json!([]), "empty"),
        ("schedule", json!([0, null, 0]), "null"),
        ("schedule", json!({ "0": 1, "2": 1 }), "map"),
        ("partitions", json!(0), "at least 1 partition"),
        ("partitions", json!(376), "only 375 grains"),
        ("grain_rows", json!(3), "power of two"),
        ("chunks", json!(0), "chunks"),
        ("format", json!(2), "upgrade shardd"),
        ("version", json!(nothing), "version"),
        ("strata", json!(nothing), "strata"),
        ("surprise", json!(1), "surprise"),
    ] {
        let mut bad = good.clone();
        bad[field] = value.clone();
        let (status, reply) = server.send("plans", &bad);
        let said_is = detail(reply);
        assert!([400, 404, 422].contains(&status.as_u16()), "{field} {value}: {status} {said_is}");
        assert!(said_is.contains(said), "{field} {value}: {said_is}");
        assert_eq!(document(server.get("plans", &[]).1), before, "{field} {value}");
    }
    assert_eq!(server.send("plans", &good).0, 201);
    assert_eq!(document(server.get("plans", &[]).1), before, "it was there");
}

#[test]
fn a_list_of_values_is_not_the_structure_that_has_them() {
    let (server, _) = filled();
    let (status, reply) = server.send("evict", &json!([null, false]));
    assert_eq!(
        (status.as_u16(), detail(reply)),
        (400, "the body is not what /v1/evict takes: it is a list, not an object".to_owned())
    );
}

#[test]
fn every_answer_names_its_request_and_so_does_every_problem() {
    let server = Server::start();
    let named = |headers: &[(&str, &str)], path: &str| {
        let (_, reply) = server.get(path, headers);
        let id = header(&reply, "x-request-id").to_owned();
        (id, document(reply))
    };
    let (id, problem) = named(&[("x-request-id", "train-7.step_3")], "datasets/none");
    assert_eq!(id, "train-7.step_3");
    assert_eq!(problem["instance"], "urn:shardd:request:train-7.step_3");
    assert_eq!(problem["type"], "urn:shardd:problem:not-found");
    for bad in ["a b", "x\"y", &"x".repeat(65), ""] {
        let (id, problem) = named(&[("x-request-id", bad)], "nothing");
        assert!(id.len() == 16 && id != *bad, "{id}");
        assert_eq!(problem["instance"], format!("urn:shardd:request:{id}"));
    }
    assert_ne!(named(&[], "health").0, named(&[], "health").0);
}

#[test]
fn lists_come_in_pages_and_clients_put_them_together() {
    let (server, names) = filled();
    for (path, count) in
        [("datasets/d/log", 3), ("datasets/d/tags", 3), ("tags", 3), ("datasets", 1), ("plans", 1)]
    {
        let whole = document(server.get(path, &[]).1);
        assert_eq!(whole.as_array().map(Vec::len), Some(count), "{path}");
        let url = format!("{}?limit=2", server.url(path));
        let paged: Vec<Value> =
            shardd_store::http::HttpClient::new(TIMEOUT).get_list(&url, usize::MAX).expect("pages");
        assert_eq!(Value::from(paged), whole, "{path}");
    }
    assert_eq!(server.catalog().log(&"d".parse().unwrap(), 2).expect("a log").len(), 2);
    for (query, expected, word) in [
        ("limit=0", 400, "limit"),
        ("limit=x", 400, "limit"),
        ("page=zz", 422, "page"),
        ("pages=1", 400, "pages"),
    ] {
        let (status, reply) = server.get(&format!("plans?{query}"), &[]);
        assert_eq!(status, expected, "{query}");
        assert!(detail(reply).contains(word), "{query}");
    }
    let version = document(server.get(&format!("versions/{}", names["version"].as_str().unwrap()), &[]).1);
    assert_eq!((&version["samples"], &version["shards"]), (&json!(3000), &json!(3)));
    assert_eq!(version["columns"], json!([{ "name": "x", "type": "Int64", "nullable": false }]));
    assert_eq!(
        (version["commits"][0]["number"].as_u64(), version["commits"][0]["parent"].is_string()),
        (Some(3), true)
    );
}

#[test]
fn several_parts_come_as_multipart() {
    let server = Server::start();
    let shard = shard(0);
    server.catalog().put_shard(&shard).expect("put");
    let size = shard.bytes.len();
    let (status, reply) = server.get(&format!("shards/{}", shard.id), &[("range", "bytes=0-9,100-199,-5")]);
    assert_eq!(status, 206);
    let kind = header(&reply, "content-type").to_owned();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("several parts");
    let length: usize = header(&reply, "content-length").parse().expect("a length");
    let body = bytes(reply);
    assert_eq!(body.len(), length);
    let mut expected = Vec::new();
    for part in [0..10, 100..200, size - 5..size] {
        expected.extend(
            format!(
                "\r\n--{boundary}\r\ncontent-type: application/vnd.apache.arrow.file\r\ncontent-range: bytes {}-{}/{size}\r\n\r\n",
                part.start,
                part.end - 1
            )
            .into_bytes(),
        );
        expected.extend(&shard.bytes[part]);
    }
    expected.extend(format!("\r\n--{boundary}--\r\n").into_bytes());
    assert!(body == expected);
}

#[test]
fn plans_are_looked_up_and_read_along_over_http() {
    use arrow::array::AsArray;
    let (server, names) = filled();
    let plan = names["plan"].as_str().expect("a plan");
    let found = |path: &str| document(server.get(&format!("plans/{plan}/{path}"), &[]).1);
    let at = found("at?epoch=2&position=100&global_batch_size=8");
    let one = found(&format!("where?epoch=2&sample={}", at[3]["sample"]));
    assert_eq!((one["position"].as_u64(), &one["shard"]), (Some(103), &at[3]["shard"]));

    // The stream agrees with the lookups.
    let path = format!(
        "plans/{plan}/batches?epoch=2&position=100&global_batch_size=40&world=2&rank=1&virtual_ranks=4&steps=3"
    );
    let (status, reply) = server.get(&path, &[]);
    assert_eq!(
        (status.as_u16(), header(&reply, "content-type")),
        (200, "application/vnd.apache.arrow.stream")
    );
    let body = bytes(reply);
    let stream = arrow::ipc::reader::StreamReader::try_new(body.as_slice(), None).expect("a stream");
    let metadata = stream.schema().metadata().clone();
    let fact = |name: &str| metadata[&format!("shardd.{name}")].clone();
    assert_eq!(
        (fact("plan"), fact("epoch"), fact("position"), fact("step")),
        (plan.into(), "2".into(), "100".into(), "2".into())
    );
    assert_eq!((fact("virtual_rank"), fact("micro_batches")), ("2".into(), "2".into()));
    let read: Vec<Vec<i64>> = stream
        .map(|batch| {
            let batch = batch.expect("a record batch");
            batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().to_vec()
        })
        .collect();
    assert_eq!(read.len(), 6, "two micro-batches in each of three steps");
    let mut of_virtual_rank: BTreeMap<(u64, u64), Vec<i64>> = BTreeMap::new();
    let all = found("at?epoch=2&position=100&global_batch_size=120&world=2&rank=1&virtual_ranks=4");
    for one in all.as_array().expect("a list") {
        let step = (one["position"].as_u64().unwrap() - 100) / 40;
        // The shards hold 0..1000, 1000..2000, 2000..3000: a sample's number is its value.
        let key = (step, one["virtual_rank"].as_u64().unwrap());
        of_virtual_rank.entry(key).or_default().push(one["sample"].as_i64().unwrap());
    }
    assert_eq!(read, of_virtual_rank.into_values().collect::<Vec<_>>());

    // Without a bound it ends with the epoch, and at its end there is nothing.
    for (position, rows) in [(0, 3000), (2960, 40), (3000, 0)] {
        let (_, reply) =
            server.get(&format!("plans/{plan}/batches?position={position}&global_batch_size=64"), &[]);
        let body = bytes(reply);
        let stream = arrow::ipc::reader::StreamReader::try_new(body.as_slice(), None).expect("a stream");
        assert_eq!(stream.map(|batch| batch.expect("a record batch").num_rows()).sum::<usize>(), rows);
    }

    for (query, status, word) in [
        ("batches", 400, "global_batch_size"),
        ("batches?global_batch_size=-1", 400, "global_batch_size"),
        ("batches?global_batch_size=0", 422, "global_batch_size"),
        ("batches?global_batch_size=8&rank=1", 422, "rank 1"),
        ("batches?global_batch_size=8&virtual_ranks=3", 422, "virtual_ranks"),
        ("batches?global_batch_size=8&world=9", 422, "world"),
        ("batches?global_batch_size=8&position=3001", 422, "position 3001"),
        ("batches?global_batch_size=8&steps=0", 422, "steps"),
        ("batches?global_batch_size=8&epoch=4000000000", 422, "epoch 4000000000"),
        ("batches?global_batch_size=8&epochs=1", 400, "epochs"),
        ("at?position=3000", 422, "position 3000"),
        ("at?global_batch_size=10001", 400, "global_batch_size"),
        ("where", 400, "sample"),
        ("where?sample=3000", 422, "sample 3000"),
    ] {
        let (found, reply) = server.get(&format!("plans/{plan}/{query}"), &[]);
        let detail = detail(reply);
        assert!(found == status && detail.contains(word), "{query}: {found} {detail}");
    }
}

#[test]
fn ranks_are_told_where_they_meet_until_all_have() {
    let server = Server::start();
    let put = |body: &Value| {
        let ask = agent().put(server.url("runs/r/rendezvous"));
        ask.content_type("application/json").send(body.to_string()).expect("an answer").status().as_u16()
    };
    assert_eq!(server.get("runs/r/rendezvous", &[]).0, 404, "the run need not be known");
    for port in [1, 2] {
        let meeting = json!({ "address": format!("10.0.0.1:{port}"), "world": 4 });
        assert_eq!(put(&meeting), 204);
        let (status, reply) = server.get("runs/r/rendezvous", &[]);
        assert_eq!((status, document(reply)), (StatusCode::OK, meeting), "the last override");
    }
    assert_eq!(put(&json!({ "address": "10.0.0.1:3" })), 400);
    let earlier = agent().delete(server.url("runs/r/rendezvous?address=10.0.0.1:1")).call();
    assert_eq!(earlier.expect("an answer").status().as_u16(), 204);
    assert_eq!(server.get("runs/r/rendezvous", &[]).0, StatusCode::OK, "an earlier rank 0 removes its own");
    for _ in 0..2 {
        let ended = agent().delete(server.url("runs/r/rendezvous")).call().expect("an answer");
        assert_eq!(ended.status().as_u16(), 204);
        assert_eq!(server.get("runs/r/rendezvous", &[]).0, 404);
    }
}

#[test]
fn a_cursor_is_changed_by_whoever_read_the_last_one() {
    let (server, names) = filled();
    let create = json!({ "id": "r", "plan": names["plan"], "virtual_ranks": 4 });
    assert_eq!(server.send("runs", &create).0, 201);
    let cursor = |position: u64| json!({ "plan": names["plan"], "epoch": 1, "position": position });
    let put = |condition: Option<(&str, &str)>, body: &Value| {
        let ask = agent().put(server.url("runs/r/cursor"));
        let ask = condition.into_iter().fold(ask, |ask, (name, value)| ask.header(name, value));
        server.ask(ask.send_json(body))
    };
    assert_eq!(server.get("runs/r/cursor", &[]).0, 404);
    assert_eq!(put(None, &cursor(0)).0, 428);
    let (status, reply) = put(Some(("if-none-match", "*")), &cursor(8));
    let first = header(&reply, "etag").to_owned();
    assert_eq!((status.as_u16(), document(reply)), (200, cursor(8)));
    assert_eq!(put(Some(("if-none-match", "*")), &cursor(9)).0, 412);
    assert_eq!(put(Some(("if-match", &first)), &cursor(16)).0, 200);
    let (status, reply) = put(Some(("if-match", &first)), &cursor(24));
    let now = header(&reply, "etag").to_owned();
    assert_eq!((status.as_u16(), now != first), (412, true));
    assert!(detail(reply).contains(&now));
    assert_eq!(document(server.get("runs/r/cursor", &[]).1), cursor(16));

    let other = json!({ "plan": names["version"], "epoch": 0, "position": 0 });
    assert_eq!(put(Some(("if-match", &now)), &other).0, 422);
    assert_eq!(put(Some(("if-match", "7")), &cursor(1)).0, 412, "no tag of ours is that of the cursor");
    let delete =
        |tag: &str| server.ask(agent().delete(server.url("runs/r/cursor")).header("if-match", tag).call());
    assert_eq!(
        (delete(&first).0.as_u16(), delete(&now).0.as_u16(), delete(&now).0.as_u16()),
        (412, 204, 404)
    );
}

#[test]
fn changes_are_told_as_they_happen_and_again_to_who_was_away() {
    let server = Server::start();
    let follow = |last: Option<&str>| {
        let ask = agent().get(server.url("events"));
        let ask = last.into_iter().fold(ask, |ask, id| ask.header("last-event-id", id));
        BufReader::new(ask.call().expect("a stream").into_body().into_reader())
    };
    let next = |stream: &mut dyn BufRead| {
        let mut event = BTreeMap::new();
        loop {
            let mut line = String::new();
            assert_ne!(stream.read_line(&mut line).expect("a line"), 0, "the stream ended after {event:?}");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => _ = event.insert(name.to_owned(), value.to_owned()),
                None if event.is_empty() => {}
                None => return event,
            }
        }
    };
    let mut stream = follow(None);
    // Its first look at what there is may come after the first change: changes are made until one is sent.
    let (told, heard) = std::sync::mpsc::sync_channel(1);
    let reader = std::thread::spawn(move || {
        let first = next(&mut stream);
        told.send(()).expect("the test waits");
        first
    });
    let began = Instant::now();
    let metastore = &server.metastore;
    for number in 0.. {
        let put = metastore.put("refs/d", vec![number as u8], shardd_store::metastore::Expected::Any, None);
        server.runtime.block_on(put).expect("written");
        if heard.recv_timeout(Duration::from_millis(100)).is_ok() {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "no event was sent");
    }
    let event = reader.join().expect("an event");
    let data: Value = serde_json::from_str(&event["data"]).expect("JSON");
    assert_eq!(
        (event["event"].as_str(), &data["kind"], &data["name"], &data["removed"]),
        ("dataset", &json!("dataset"), &json!("d"), &json!(false))
    );

    let delete = metastore.delete("refs/d", shardd_store::metastore::Expected::Any);
    server.runtime.block_on(delete).expect("removed");
    let mut later = follow(Some(&event["id"]));
    let mut data: Value = json!({ "removed": false });
    while data["removed"] == false {
        data = serde_json::from_str(&next(&mut later)["data"]).expect("JSON");
    }
    assert_eq!(data["name"], "d");
    assert_eq!(next(&mut follow(Some("999999")))["event"], "reset");
    let (status, reply) = server.get("events", &[("last-event-id", "x")]);
    assert_eq!(status, 400);
    assert!(detail(reply).contains("last-event-id"));
}

#[test]
fn metrics_are_what_prometheus_reads_and_count_what_was_asked() {
    let server = Server::start();
    server.get("datasets/none", &[]);
    server.get("no/such/path", &[]);
    let text = server.metrics();
    for line in [
        r#"shardd_http_requests_total{route="/v1/datasets/{name}",method="GET",status="404"} 1"#,
        r#"shardd_http_requests_total{route="none",method="GET",status="404"} 1"#,
        r#"shardd_http_request_duration_seconds_count{route="none"} 1"#,
        r#"shardd_misses_total{from="origin"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains(&server.secret.reveal()) && !text.contains("no/such/path"));
    assert!(text.contains("# TYPE shardd_http_requests_total counter"), "{text}");
}

#[test]
fn the_page_about_the_api_lists_its_routes_and_its_problems() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/API.md");
    let page = std::fs::read_to_string(&path).expect("docs/API.md");
    let mut problems = "| `type` ends in | status | meaning | the way out |\n|---|---|---|---|\n".to_owned();
    for line in TABLE {
        let row = format!("| `{}` | {} | {} | {} |\n", line.name, line.status, line.meaning, line.way_out);
        problems.push_str(&row);
    }
    let (_, described) = routes().split_for_parts();
    let described: Value = serde_json::from_slice(&openapi::finish(described)).expect("JSON");
    let mut table = "| | | |\n|---|---|---|\n".to_owned();
    for (path, item) in described["paths"].as_object().expect("paths") {
        for (method, operation) in
            item.as_object().expect("operations").iter().filter(|(method, _)| *method != "head")
        {
            let summary = operation["summary"].as_str().expect("a summary");
            table.push_str(&format!("| {} | `{path}` | {summary} |\n", method.to_uppercase()));
        }
    }
    let mut expected = page.clone();
    for (name, table) in [("routes", table), ("problems", problems)] {
        let (begin, end) =
            (format!("<!-- {name}: written by a test -->\n"), format!("<!-- end of {name} -->"));
        let (before, rest) = expected.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
        expected = format!("{before}{begin}\n{table}\n{end}{after}");
    }
    if std::env::var_os("SHARDD_WRITE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("written");
    } else {
        assert!(page == expected, "docs/API.md differs from the code: SHARDD_WRITE_DOCS=1 writes it again");
    }
}

#[test]
fn a_stopping_server_says_so_first_and_streams_have_their_time() {
    let (mut server, names) = filled();
    let plan = names["plan"].as_str().expect("a plan");
    let ready = |server: &Server| server.get("ready", &[]).0.as_u16();
    // The engine of these tests follows no metastore: its node is never among the nodes.
    assert_eq!(ready(&server), 503);
    let (_, reply) = server.get("ready", &[]);
    assert_eq!(header(&reply, "retry-after"), "1");
    assert!(detail(reply).contains("not among the nodes"));

    let stream =
        agent().get(server.url(&format!("plans/{plan}/batches?global_batch_size=16"))).call().expect("begun");
    let events = agent().get(server.url("events")).call().expect("begun");
    server.stop.cancel();
    assert!(detail(server.get("ready", &[]).1).contains("stopping"), "it still answers");
    let body = bytes(stream);
    let rows = arrow::ipc::reader::StreamReader::try_new(body.as_slice(), None).expect("a stream");
    assert_eq!(rows.map(|batch| batch.expect("a record batch").num_rows()).sum::<usize>(), 3000);
    // It has no end of its own.
    let _ = bytes(events);
    let serving = server.serving.take().expect("running");
    server.runtime.block_on(serving).expect("no panic");
}
