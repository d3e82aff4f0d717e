//! A proxy in front of an S3 server that counts the requests as services bill them, and answers `503 SlowDown` to those that are
//! too many for a budget which several proxies may share.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use crate::faults::{Message, read, write_with};

/// Requests that a server has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// PUT, POST and listings.
    pub class_a: u64,
    /// GET and HEAD.
    pub class_b: u64,
    /// DELETE.
    pub deletes: u64,
    /// Of them, those that were refused.
    pub refused: u64,
    /// Bytes of the bodies of answers.
    pub sent_bytes: u64,
}

impl Seen {
    /// All requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.class_a + self.class_b + self.deletes
    }

    /// Requests that were carried out.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.requests() - self.refused
    }

    /// Those since `before`.
    #[must_use]
    pub fn since(&self, before: &Seen) -> Seen {
        Seen {
            class_a: self.class_a - before.class_a,
            class_b: self.class_b - before.class_b,
            deletes: self.deletes - before.deletes,
            refused: self.refused - before.refused,
            sent_bytes: self.sent_bytes - before.sent_bytes,
        }
    }
}

/// Requests that a server takes: some per second, and those that were saved up for a tenth of a second.
pub struct Budget {
    per_second: f64,
    saved: Mutex<(f64, Instant)>,
}

impl Budget {
    /// A budget of this number of requests per second.
    #[must_use]
    pub fn new(per_second: f64) -> Arc<Budget> {
        Arc::new(Budget { per_second, saved: Mutex::new((0.0, Instant::now())) })
    }

    fn admits(&self) -> bool {
        let mut saved = self.saved.lock().expect("no panic while held");
        let (tokens, filled) = *saved;
        let now = Instant::now();
        let more = now.duration_since(filled).as_secs_f64() * self.per_second;
        let tokens = (tokens + more).min((self.per_second / 10.0).max(1.0));
        let admits = tokens >= 1.0;
        *saved = (tokens - f64::from(admits), now);
        admits
    }
}

/// A proxy that runs until the process ends.
pub struct MeteredProxy {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl MeteredProxy {
    /// Passes requests on to `upstream`, `http://HOST:PORT`.
    pub fn start(upstream: &str) -> MeteredProxy {
        MeteredProxy::within(upstream, None)
    }

    /// The same, and refuses what is too much for the budget.
    pub fn within(upstream: &str, budget: Option<Arc<Budget>>) -> MeteredProxy {
        let upstream = upstream.strip_prefix("http://").expect("plain HTTP").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Mutex<Seen>>::default();
        let counted = seen.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, counted, budget) = (upstream.clone(), counted.clone(), budget.clone());
                // A client that goes away is no fault.
                thread::spawn(move || drop(pass(client, &upstream, &counted, budget.as_deref())));
            }
        });
        MeteredProxy { address, seen }
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far.
    pub fn seen(&self) -> Seen {
        *self.seen.lock().expect("no panic while held")
    }
}

/// The requests of one connection, one after the other.
fn pass(client: TcpStream, upstream: &str, seen: &Mutex<Seen>, budget: Option<&Budget>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut requests = BufReader::new(client.try_clone()?);
    let mut client = client;
    loop {
        let request = read(&mut requests, false)?;
        let is_refused = budget.is_some_and(|budget| !budget.admits());
        count(seen, &request, is_refused);
        if is_refused {
            write_with(&mut client, &slow_down(), slow_down().body.len(), "")?;
            continue;
        }
        // Some servers close a connection after each answer.
        let mut server = TcpStream::connect(upstream)?;
        server.set_nodelay(true)?;
        write_with(&mut server, &request, request.body.len(), "Connection: close\r\n")?;
        let answer = read(&mut BufReader::new(server), request.head[0].starts_with("HEAD "))?;
        seen.lock().expect("no panic while held").sent_bytes += answer.body.len() as u64;
        write_with(&mut client, &answer, answer.body.len(), "")?;
    }
}

fn count(seen: &Mutex<Seen>, request: &Message, is_refused: bool) {
    let mut words = request.head[0].split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let lists = target.contains("list-type=2");
    let mut seen = seen.lock().expect("no panic while held");
    match method {
        "GET" | "HEAD" if !lists => seen.class_b += 1,
        "DELETE" => seen.deletes += 1,
        _ => seen.class_a += 1,
    }
    seen.refused += u64::from(is_refused);
}

/// What S3 answers to requests that are too many.
fn slow_down() -> Message {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>SlowDown</Code><Message>Please reduce your request \
                rate.</Message></Error>";
    let head = ["HTTP/1.1 503 Slow Down", "Content-Type: application/xml"].map(str::to_owned);
    Message { head: head.to_vec(), body: body.as_bytes().to_vec() }
}
