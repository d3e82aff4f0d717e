//! A connection to the stream of events of one node, and the events in its lines.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use shardd_api::drain::NodeState;
use shardd_store::connect::{HEALTH_TIMEOUT, Servers};
use shardd_store::http::{HttpClient, HttpError};

/// Nodes send a sign of life every 15 s; without one for this time, the connection counts as lost.
const SILENCE: Duration = Duration::from_secs(40);
/// Lines that may wait to be shown.
const WAITING: usize = 256;
/// How many nodes of the cluster are noted for the case that this one goes away.
const NOTED: usize = 32;
/// The longest data of an event, in bytes.
const LONGEST: usize = 1 << 20;

/// News of a connection.
pub(super) enum Heard {
    /// The node answers; from now on no change is missed.
    Begun,
    /// Where other nodes of the cluster answer.
    Nodes(Vec<String>),
    /// A line of the stream.
    Line(String),
    /// It cannot be continued.
    Failed(HttpError),
}

/// A connection, read on a thread of its own.
pub(super) struct Connection {
    /// Its news; disconnected at its end.
    pub(super) heard: Receiver<Heard>,
    http: HttpClient,
    reader: JoinHandle<()>,
}

impl Connection {
    /// Asks `server` for the changes after `last`, or else from now on.
    pub(super) fn open(servers: &Servers, server: &str, last: Option<u64>) -> std::io::Result<Connection> {
        let (tell, heard) = sync_channel(WAITING);
        let http = servers.http_within(HEALTH_TIMEOUT);
        let (client, server) = (http.clone(), server.to_owned());
        let read = move || {
            // A receiver that is gone ends the connection.
            let _ = follow(&client, &server, last, |heard| tell.send(heard).ok());
        };
        let reader = std::thread::Builder::new().name("events".to_owned()).spawn(read)?;
        Ok(Connection { heard, http, reader })
    }

    /// Ends it.
    pub(super) fn close(self) {
        let Connection { heard, http, reader } = self;
        http.shut_down();
        drop(heard);
        reader.join().expect("the reader of a stream does not panic");
    }
}

/// Reads a stream to its end; `None` if nothing takes its news any more.
fn follow(
    http: &HttpClient,
    server: &str,
    last: Option<u64>,
    tell: impl Fn(Heard) -> Option<()>,
) -> Option<()> {
    let headers: Vec<(&str, String)> =
        last.map(|last| ("last-event-id", last.to_string())).into_iter().collect();
    let lines = match http.get_lines(&format!("{server}/v1/events"), &headers, SILENCE) {
        Ok(lines) => lines,
        Err(error) => return tell(Heard::Failed(error)),
    };
    tell(Heard::Begun)?;
    // An answer or none: only the next outage shows the difference.
    if let Ok(nodes) = http.get_list::<NodeState>(&format!("{server}/v1/nodes"), NOTED) {
        tell(Heard::Nodes(nodes.into_iter().map(|node| node.record.http).collect()))?;
    }
    for line in lines {
        match line {
            Ok(line) => tell(Heard::Line(line))?,
            Err(error) => return tell(Heard::Failed(error)),
        }
    }
    Some(())
}

/// An event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Its name.
    pub(super) event: String,
    pub(super) data: String,
    pub(super) id: Option<String>,
}

/// Puts lines together to events, as browsers do.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    begun: Option<Sent>,
}

impl Assembler {
    /// One more line; the event that it ends.
    pub(super) fn take(&mut self, line: &str) -> Option<Sent> {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return self.begun.take().filter(|sent| !sent.data.is_empty());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        let sent = self.begun.get_or_insert_default();
        match field {
            "event" => value.clone_into(&mut sent.event),
            "id" => sent.id = Some(value.to_owned()),
            "data" if sent.data.len() + value.len() < LONGEST => {
                if !sent.data.is_empty() {
                    sent.data.push('\n');
                }
                sent.data.push_str(value);
            }
            // A comment has no field's name; other fields are not for us.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_browsers_do() {
        let mut assembler = Assembler::default();
        let lines = [
            ": still here",
            "",
            "event: node\r",
            "data:{",
            "data: }",
            "id: 12\r",
            "retry: 3",
            "\r",
            "event: empty",
            "",
            "data: alone",
            "",
        ];
        let sent: Vec<Sent> = lines.iter().filter_map(|line| assembler.take(line)).collect();
        let expected = [
            Sent { event: "node".to_owned(), data: "{\n}".to_owned(), id: Some("12".to_owned()) },
            Sent { data: "alone".to_owned(), ..Sent::default() },
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_event_without_end_takes_bounded_memory() {
        let mut assembler = Assembler::default();
        let line = format!("data: {}", "x".repeat(100_000));
        assert!((0..100).all(|_| assembler.take(&line).is_none()));
        assert!(assembler.take("").is_some_and(|sent| sent.data.len() < LONGEST));
    }
}
