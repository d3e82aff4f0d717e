//! Answers to malicious and outdated clients over raw sockets; other clients are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::*;

/// The limit of waits.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The limits of these tests.
const SHORT: Duration = Duration::from_millis(200);

fn strict() -> Server {
    Server::with(Limits { head: SHORT, body: SHORT, stall: SHORT }, |_| "memory://".into())
}

/// A connection on which `bytes` were sent.
fn sent(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    // The server may have refused before it has seen all.
    let _ = stream.write_all(bytes);
    stream
}

/// All that comes back until the server ends it.
fn answer(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        // It closed with something of ours unread.
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn asked(server: &Server, bytes: &[u8]) -> String {
    answer(sent(server, bytes))
}

/// Whether others are answered, and at once.
fn answers_others(server: &Server) {
    let began = Instant::now();
    assert_eq!(server.get("health", &[]).0, 200);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("nothing")
}

#[test]
fn who_does_not_get_to_the_point_is_cut_off_and_others_are_answered_meanwhile() {
    let server = strict();
    let slow: Vec<TcpStream> =
        (0..64).map(|_| sent(&server, b"GET /v1/health HTTP/1.1\r\nhost: localhost\r\nx-slow")).collect();
    answers_others(&server);
    for stream in slow {
        assert_eq!(answer(stream), "", "the head has had its time");
    }
}

#[test]
fn a_body_that_crawls_is_refused_and_its_place_goes_to_others() {
    let server = strict();
    let shard = ShardId::of(b"x");
    let head =
        format!("PUT /v1/shards/{shard} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nabc");
    // More than there are places for uploads of one client.
    let slow: Vec<TcpStream> = (0..12).map(|_| sent(&server, head.as_bytes())).collect();
    answers_others(&server);
    let offered = b"not that";
    assert_eq!(server.put(&format!("shards/{shard}"), offered).0, 422, "its turn comes");
    for stream in slow {
        let answer = answer(stream);
        assert_eq!(status(&answer), "408");
        assert!(answer.contains("urn:shardd:problem:too-slow"), "{answer}");
    }
}

#[test]
fn who_takes_nothing_of_the_answer_is_cut_off() {
    let server = strict();
    let big = big_shard();
    server.catalog().put_shard(&big).expect("put");
    let request = format!("GET /v1/shards/{} HTTP/1.1\r\nhost: localhost\r\n\r\n", big.id);
    let mut slow = sent(&server, request.as_bytes());
    // The answer has begun: from here on nothing of it is taken.
    slow.read_exact(&mut [0]).expect("an answer");
    let cut = |text: &str| text.lines().any(|line| line == "shardd_http_connections 1");
    let began = Instant::now();
    while !cut(&server.metrics()) {
        assert!(began.elapsed() < TIMEOUT, "{}", server.metrics());
        std::thread::yield_now();
    }
    assert!(answer(slow).len() < big.bytes.len());
}

/// More than sockets hold on the way.
fn big_shard() -> FinishedShard {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let mut writer = ShardWriter::new(schema.clone()).unwrap();
    for part in 0..32 {
        // Nothing that would compress well.
        let scattered = |x: i64| (x + (part << 17)).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
        let column = Int64Array::from_iter_values((0..1 << 17).map(scattered));
        writer.push(&RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).unwrap()).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn heads_without_end_and_what_is_no_http_are_refused() {
    let server = Server::start();
    let get = |rest: &str| {
        asked(&server, format!("GET /v1/health HTTP/1.1\r\nhost: localhost\r\n{rest}").as_bytes())
    };
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    assert_eq!(status(&get(&format!("{many}\r\n"))), "431", "too many headers");
    let plain = get("connection: close\r\n\r\n");
    for (bytes, answer) in [(60_000, status(&plain)), (66_000, "431"), (100_000, "431")] {
        let head = format!("connection: close\r\nx: {}\r\n\r\n", "y".repeat(bytes));
        assert_eq!(status(&get(&head)), answer, "a header of {bytes} bytes");
    }
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(100_000));
    assert!(["414", "431"].contains(&status(&asked(&server, long.as_bytes()))), "too long a path");
    for nonsense in
        ["\r\n\r\n\r\nhello?\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}"]
    {
        let answer = asked(&server, nonsense.as_bytes());
        assert!(answer.is_empty() || status(&answer) == "400", "{nonsense:?}: {answer}");
    }
    let smuggled = "transfer-encoding: chunked\r\ncontent-length: 5\r\nconnection: close\r\n\r\n0\r\n\r\n";
    let answer = get(smuggled);
    assert!(["400", "200"].contains(&status(&answer)) && answer.matches("HTTP/1.1").count() == 1, "{answer}");
    answers_others(&server);
}

#[test]
fn paths_lead_to_what_is_named_and_nowhere_else() {
    let server = Server::start();
    for (path, expected) in [
        ("/../../../../etc/passwd", "404"),
        ("/v1/shards/../../../etc/passwd", "404"),
        ("/v1/shards/..%2f..%2f..%2fetc%2fpasswd", "400"),
        ("/v1/shards/%2e%2e/%2e%2e/tls/node.key", "404"),
        ("/v1/manifests/%00", "400"),
        ("/v1/datasets/%ff%fe", "400"),
        ("/v1/datasets/%zz", "400"),
        ("/v1/datasets/%", "400"),
        ("/v1/datasets/a%2Fb", "400"),
        ("//v1/health", "404"),
        ("/v1/health/", "404"),
        ("/V1/HEALTH", "404"),
        ("http://elsewhere/v1/health", "421"),
        ("http://localhost/v1/health", "200"),
    ] {
        let answer = asked(
            &server,
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
        );
        assert_eq!(status(&answer), expected, "{path}: {answer}");
        assert!(expected == "200" || answer.contains("urn:shardd:problem:"), "{path}: {answer}");
        assert!(!answer.contains("root:"), "{path}");
    }
}

#[test]
fn older_clients_and_hasty_ones_are_answered_in_turn() {
    let server = Server::start();
    let old = asked(&server, b"GET /v1/health HTTP/1.0\r\n\r\n");
    assert!(old.starts_with("HTTP/1.0 200") && old.contains("\"status\":\"ok\""), "{old}");

    let hasty = "GET /v1/health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n\
                 HEAD /v1/tags HTTP/1.1\r\nhost: localhost\r\n\r\nGET /v1/plans HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let all = asked(&server, hasty.as_bytes());
    let statuses: Vec<&str> = all.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "404", "200", "200"], "{all}");
}

#[test]
fn a_bomb_of_ranges_is_answered_with_no_more_than_the_whole() {
    let server = Server::start();
    let shard = shard(0);
    server.catalog().put_shard(&shard).expect("put");
    let path = format!("shards/{}", shard.id);
    for range in [
        format!("bytes={}", vec!["0-"; 1000].join(",")),
        format!("bytes={}", (0..1000).map(|n| format!("{n}-{n}")).collect::<Vec<_>>().join(",")),
        "bytes=0-,1-,2-".to_owned(),
        "bytes=-5,-6".to_owned(),
    ] {
        let (status, whole) = server.get(&path, &[("range", &range)]);
        assert_eq!((status.as_u16(), bytes(whole).len()), (200, shard.bytes.len()), "{range}");
    }
    let (status, _) = server.get(&path, &[("range", "bytes=99999999-,99999999-")]);
    assert_eq!(status, 416);
}
