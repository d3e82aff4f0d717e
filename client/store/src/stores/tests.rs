//! Requests to a store: retried, hedged, counted, paced. Over real sockets, from a small server with scripted
//! answers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::*;

/// How a request is answered.
#[derive(Clone, Copy)]
enum Answer {
    Good,
    Status(u16),
    /// The connection is reset without a word.
    Reset,
    /// The connection is reset in the middle of the body.
    Cut,
    /// The same, of a body that names the error.
    CutRefusal,
    /// Nothing comes until the client gives up.
    Never,
}

const BODY: &[u8] = b"0123456789abcdef";

/// Answers each request as the next of `script` says, then well.
fn serve(script: Vec<Answer>) -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (script, asked) = (Arc::new(Mutex::new(VecDeque::from(script))), Arc::new(Mutex::new(0)));
    let count = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (script, count) = (script.clone(), count.clone());
            thread::spawn(move || {
                let mut stream = stream;
                while let Some(range) = request(&mut stream) {
                    *count.lock().expect("held shortly") += 1;
                    let next = script.lock().expect("held shortly").pop_front();
                    if answer(&mut stream, next.unwrap_or(Answer::Good), range).is_none() {
                        return;
                    }
                }
            });
        }
    });
    (address, asked)
}

/// Reads a request without a body; where its range begins, if it has one.
fn request(stream: &mut TcpStream) -> Option<usize> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        (stream.read(&mut byte).ok()? == 1).then(|| head.push(byte[0]))?;
    }
    let head = String::from_utf8(head).ok()?.to_lowercase();
    let range = head.split_once("range: bytes=").map(|(_, rest)| rest.split('-').next().unwrap_or_default());
    Some(range.and_then(|from| from.parse().ok()).unwrap_or(0))
}

/// Answers; nothing, if the connection is to end.
fn answer(stream: &mut TcpStream, answer: Answer, from: usize) -> Option<()> {
    let status = match answer {
        Answer::Reset => return None,
        Answer::Status(status) => status,
        Answer::Never => {
            let _ = stream.read(&mut [0]);
            return None;
        }
        Answer::CutRefusal => 404,
        Answer::Good | Answer::Cut => 200,
    };
    let is_good = status == 200;
    let body = match answer {
        Answer::CutRefusal => b"there is nothing of that name",
        _ if is_good => &BODY[from..],
        _ => b"",
    };
    let status = if is_good && from > 0 { 206 } else { status };
    let last = BODY.len() - 1;
    let head = format!(
        "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nETag: \"e\"\r\nContent-Range: bytes {from}-{last}/{}\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n",
        body.len(),
        BODY.len(),
    );
    stream.write_all(head.as_bytes()).ok()?;
    if let Answer::Cut | Answer::CutRefusal = answer {
        stream.write_all(&body[..body.len() / 2]).ok()?;
        return None;
    }
    stream.write_all(body).ok()
}

fn opened(address: SocketAddr, options: &StoreOptions) -> Opened {
    open(&format!("http://{address}"), options, Late::AskedAgain).expect("an address")
}

async fn get(opened: &Opened) -> Vec<u8> {
    let read = async { opened.store.get(&Path::from("x")).await?.bytes().await };
    read.await.expect("read in the end").to_vec()
}

#[tokio::test]
async fn what_fails_for_a_while_is_asked_again_and_counted() {
    use Answer::{Cut, CutRefusal, Good, Reset, Status};
    let (address, asked) = serve(vec![Status(503), Status(429), Reset, CutRefusal, Cut, Good]);
    let opened = opened(address, &StoreOptions::default());
    assert_eq!(get(&opened).await, BODY);
    let counts = opened.wire.counts();
    assert_eq!((counts.requests, counts.failed), (6, 4), "{counts:?}");
    assert_eq!(*asked.lock().expect("held shortly"), 6);
    // Half of it came twice at most.
    assert!((16..=24).contains(&counts.received), "{counts:?}");
}

#[tokio::test]
async fn what_a_service_does_not_implement_is_asked_once() {
    let (address, asked) = serve(vec![Answer::Status(501)]);
    let error = opened(address, &StoreOptions::default()).store.get(&Path::from("x")).await.expect_err("501");
    let refusal = Refusal::of(Service::Web, &error).to_string();
    assert!(refusal.contains("does not implement this request (501)"), "{refusal}");
    assert_eq!(*asked.lock().expect("held shortly"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_address_without_a_server_is_given_up_soon_where_a_person_waits() {
    let opened = open("http://127.0.0.1:1", &StoreOptions::default(), Late::WaitedFor).expect("an address");
    let file =
        open_file("http://127.0.0.1:1/x?y", ClientOptions::new().with_allow_http(true)).expect("a URL");
    for (store, path) in [(opened.store, Path::from("x")), (file, Path::ROOT)] {
        let begun = tokio::time::Instant::now();
        let error = store.get(&path).await.expect_err("there is no server");
        let refusal = Refusal::of(Service::Web, &error).to_string();
        assert!(refusal.contains("cannot be reached") && refusal.contains("refused"), "{refusal}");
        assert!((5..12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_late_answer_is_not_waited_for() {
    let mut script = vec![Answer::Good; 40];
    script.push(Answer::Never);
    let (address, _) = serve(script);
    let opened = opened(address, &StoreOptions::default());
    for _ in 0..40 {
        get(&opened).await;
    }
    assert_eq!(get(&opened).await, BODY);
    let counts = opened.wire.counts();
    assert_eq!(counts.hedged as usize, counts.requests as usize - 41, "{counts:?}");
    assert!(counts.hedged >= 1, "{counts:?}");
}

#[tokio::test]
async fn bytes_come_no_faster_than_allowed() {
    let (address, _) = serve(Vec::new());
    let options = StoreOptions { bandwidth: Some(ByteSize(160)), ..StoreOptions::default() };
    let opened = opened(address, &options);
    let begun = Instant::now();
    for _ in 0..5 {
        get(&opened).await;
    }
    // Eighty bytes at 160 a second, but for a tenth of a second that was saved before.
    assert!(begun.elapsed() >= Duration::from_millis(390), "{:?}", begun.elapsed());
}

#[test]
fn what_is_no_store_is_refused_by_name() {
    let refused =
        |url: &str, options: &StoreOptions| open(url, options, Late::AskedAgain).expect_err(url).to_string();
    let none = StoreOptions::default();
    assert!(refused("s3://", &none).contains("s3://BUCKET/FOLDER"));
    assert!(refused("ftp://x/y", &none).contains("no URL of a store"));
    let ca = |path: &std::path::Path| StoreOptions { ca: Some(path.to_owned()), ..StoreOptions::default() };
    let said = refused("https://x/y", &ca("/not/there.pem".as_ref()));
    assert!(said.contains("/not/there.pem"), "{said}");
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let said = refused("https://x/y", &ca(file.path()));
    assert!(said.contains("no certificate"), "{said}");
}

#[test]
fn a_store_that_is_away_is_asked_again_for_half_a_minute_whatever_is_drawn() {
    let RetryConfig { backoff, max_retries, retry_timeout } = retries();
    let shortest = backoff.init_backoff * u32::try_from(max_retries).expect("a small number");
    let half_a_minute = Duration::from_secs(30);
    assert!(shortest.min(retry_timeout) >= half_a_minute, "{shortest:?}, {retry_timeout:?}");
}
