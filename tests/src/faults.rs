//! A proxy between clients and an HTTP server that lets a share of the requests fail, each in one of the ways in which
//! networks and services do. Which ones is a matter of a seed and of the order in which they come.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// 503 Service Unavailable; the server is not asked.
    Unavailable,
    /// 429 Too Many Requests; the server is not asked.
    TooMany,
    /// The server carries out the request, and the connection is closed without an answer.
    NoAnswer,
    /// The connection is closed in the middle of the body.
    Truncated,
    /// The answer begins late.
    Late,
    /// A bit of the body is flipped, if it is part of an Arrow file: once for each file, as a fault on the
    /// way is over the next time.
    WrongBytes,
}

/// All of them.
pub const FAULTS: [Fault; 6] =
    [Fault::Unavailable, Fault::TooMany, Fault::NoAnswer, Fault::Truncated, Fault::Late, Fault::WrongBytes];

/// How late a late answer is.
const LATE: Duration = Duration::from_secs(1);

/// A proxy that runs until the process ends.
pub struct FaultyProxy {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    requests: u64,
    faults: BTreeMap<Fault, u64>,
    /// Paths of which an answer had wrong bytes.
    spoiled: BTreeSet<String>,
}

impl FaultyProxy {
    /// Passes requests on to `upstream`, `http://HOST:PORT`; of a hundred, `percent` fail.
    pub fn start(upstream: &str, percent: u64, seed: u64) -> FaultyProxy {
        let upstream = upstream.strip_prefix("http://").expect("plain HTTP").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Mutex<Seen>>::default();
        let counted = seen.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, counted) = (upstream.clone(), counted.clone());
                let draw = move |request: &str| {
                    let mut seen = counted.lock().expect("no panic while held");
                    seen.requests += 1;
                    let fault = match fault(seen.requests, percent, seed) {
                        Some(Fault::WrongBytes) if !may_spoil(&mut seen.spoiled, request) => None,
                        drawn => drawn,
                    };
                    if let Some(fault) = fault {
                        *seen.faults.entry(fault).or_default() += 1;
                    }
                    fault
                };
                // A client that goes away in the middle is one of the things that happen.
                thread::spawn(move || drop(pass(client, &upstream, draw)));
            }
        });
        FaultyProxy { address, seen }
    }

    /// Where clients find it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far, and how many of them failed in which way.
    pub fn seen(&self) -> (u64, BTreeMap<Fault, u64>) {
        let seen = self.seen.lock().expect("no panic while held");
        (seen.requests, seen.faults.clone())
    }
}

/// What happens to a request, by its number.
fn fault(number: u64, percent: u64, seed: u64) -> Option<Fault> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).update(&number.to_le_bytes());
    let drawn = hasher.finalize();
    let [chance, which, ..] = drawn.as_bytes();
    let fails = u64::from(*chance) * 100 < percent * 256;
    fails.then(|| FAULTS[usize::from(*which) % FAULTS.len()])
}

/// Whether the answer to this request may have wrong bytes; from then on that path's may not.
fn may_spoil(spoiled: &mut BTreeSet<String>, request: &str) -> bool {
    let path = request.split(' ').nth(1).unwrap_or_default();
    request.starts_with("GET ") && path.contains(".arrow") && spoiled.insert(path.to_owned())
}

/// A message of HTTP/1.1.
pub(crate) struct Message {
    pub(crate) head: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// One request and its answer. Connections are not used twice.
fn pass(client: TcpStream, upstream: &str, draw: impl FnOnce(&str) -> Option<Fault>) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let request = read(&mut reader, false)?;
    let mut client = client;
    let fault = draw(&request.head[0]);
    let refuse =
        |status: &str| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    match fault {
        Some(Fault::Unavailable) => return client.write_all(refuse("503 Service Unavailable").as_bytes()),
        Some(Fault::TooMany) => return client.write_all(refuse("429 Too Many Requests").as_bytes()),
        _ => {}
    }
    let mut server = TcpStream::connect(upstream)?;
    write(&mut server, &request, request.body.len())?;
    let is_head = request.head[0].starts_with("HEAD ");
    let mut answer = read(&mut BufReader::new(server), is_head)?;
    let mut sent = answer.body.len();
    match fault {
        Some(Fault::NoAnswer) => return Ok(()),
        Some(Fault::Truncated) => sent /= 2,
        Some(Fault::Late) => thread::sleep(LATE),
        Some(Fault::WrongBytes) => {
            if let Some(byte) = answer.body.get_mut(sent / 2) {
                *byte ^= 1;
            }
        }
        _ => {}
    }
    write(&mut client, &answer, sent)
}

/// Reads a message; an answer to HEAD has no body, whatever it says.
pub(crate) fn read(reader: &mut impl BufRead, is_headless: bool) -> io::Result<Message> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let value = |name: &str| {
        let mut fields = head.iter().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    };
    let mut body = Vec::new();
    let is_request = !head.first().is_some_and(|line| line.starts_with("HTTP/"));
    // No content, and not modified.
    let is_headless = is_headless
        || !is_request && head[0].split(' ').nth(1).is_some_and(|status| ["204", "304"].contains(&status));
    if value("transfer-encoding").is_some_and(|encoding| encoding.eq_ignore_ascii_case("chunked")) {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size)?;
            let size = usize::from_str_radix(size.trim().split(';').next().unwrap_or_default(), 16)
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            let begin = body.len();
            body.resize(begin + size, 0);
            reader.read_exact(&mut body[begin..])?;
            reader.read_line(&mut String::new())?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = value("content-length").filter(|_| !is_headless) {
        let length = length.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
    } else if !is_request && !is_headless {
        reader.read_to_end(&mut body)?;
    }
    Ok(Message { head, body })
}

/// Writes a message that says how long its body is, and that nothing follows; of the body as much as is to be `sent`.
fn write(stream: &mut TcpStream, message: &Message, sent: usize) -> io::Result<()> {
    write_with(stream, message, sent, "Connection: close\r\n")
}

/// The same, with these fields in its head and without the word that nothing follows.
pub(crate) fn write_with(
    stream: &mut TcpStream,
    message: &Message,
    sent: usize,
    more: &str,
) -> io::Result<()> {
    let [first, fields @ ..] = message.head.as_slice() else { return Err(io::ErrorKind::InvalidData.into()) };
    let mut text = format!("{first}\r\n{more}");
    let mut has_length = false;
    for field in fields {
        let name = field.split(':').next().unwrap_or_default().to_ascii_lowercase();
        has_length |= name == "content-length";
        if !["connection", "transfer-encoding", "keep-alive"].contains(&name.as_str()) {
            text.push_str(field);
            text.push_str("\r\n");
        }
    }
    if !has_length {
        text.push_str(&format!("Content-Length: {}\r\n", message.body.len()));
    }
    text.push_str("\r\n");
    stream.write_all(text.as_bytes())?;
    stream.write_all(&message.body[..sent])?;
    stream.flush()
}
