//! Small HTTP services of a test: those that give credentials, and one that passes requests on to a real server. Each notes
//! the requests that it sees.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::faults::{Message, read, write_with};

/// A request that a service has seen.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `GET`, `PUT`, ...
    pub method: String,
    /// The path with its query. Of a request to a proxy, the whole URL.
    pub target: String,
    /// The body, as text.
    pub body: String,
    head: Vec<String>,
}

impl Asked {
    /// The value of a field of the head.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.iter().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// Whether it has this method and its target begins like this.
    pub fn is(&self, method: &str, target: &str) -> bool {
        self.method == method && self.target.starts_with(target)
    }
}

/// What a service answers.
pub struct Answer(Message);

impl Answer {
    /// A text.
    pub fn text(status: u16, text: &str) -> Answer {
        Answer::of(status, "text/plain", text)
    }

    /// A document.
    pub fn json(status: u16, value: &Value) -> Answer {
        Answer::of(status, "application/json", &value.to_string())
    }

    /// The same, with a field in the head.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Answer {
        self.0.head.push(format!("{name}: {value}"));
        self
    }

    fn of(status: u16, kind: &str, text: &str) -> Answer {
        let head = vec![format!("HTTP/1.1 {status} x"), format!("Content-Type: {kind}")];
        Answer(Message { head, body: text.as_bytes().to_vec() })
    }
}

/// A service that runs until the process ends.
pub struct Service {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Service {
    /// Answers each request.
    pub fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Service {
        Service::serve(move |asked, _| Ok(answer(asked)))
    }

    /// Passes requests on to `upstream`, `http://HOST:PORT`.
    pub fn before(upstream: &str) -> Service {
        let upstream = upstream.strip_prefix("http://").expect("plain HTTP").to_owned();
        Service::serve(move |_, request| {
            let mut server = TcpStream::connect(&upstream)?;
            write_with(&mut server, request, request.body.len(), "Connection: close\r\n")?;
            let is_head = request.head[0].starts_with("HEAD ");
            Ok(Answer(read(&mut BufReader::new(server), is_head)?))
        })
    }

    fn serve(answer: impl Fn(&Asked, &Message) -> io::Result<Answer> + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (noted, answer) = (asked.clone(), Arc::new(answer));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (noted, answer) = (noted.clone(), answer.clone());
                // A client that goes away is no fault.
                thread::spawn(move || drop(converse(client, &noted, &*answer)));
            }
        });
        Service { address, asked }
    }

    /// Its address, `http://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its address, `HOST:PORT`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic while held").clone()
    }
}

/// The requests of one connection, one after the other.
fn converse(
    client: TcpStream,
    noted: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(&Asked, &Message) -> io::Result<Answer>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut requests = BufReader::new(client.try_clone()?);
    let mut client = client;
    loop {
        let request = read(&mut requests, false)?;
        let mut words = request.head[0].split(' ').map(str::to_owned);
        let asked = Asked {
            method: words.next().unwrap_or_default(),
            target: words.next().unwrap_or_default(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
            head: request.head[1..].to_vec(),
        };
        noted.lock().expect("no panic while held").push(asked.clone());
        let Answer(message) = answer(&asked, &request)?;
        write_with(&mut client, &message, message.body.len(), "")?;
    }
}
