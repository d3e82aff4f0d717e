//! `shardctl events`: changes of a cluster as they happen, a line each.
//!
//! A node that goes away is replaced by another one of its cluster. The id of the last change leads back into the stream, so
//! that nothing is missed where the nodes still know it.

mod stream;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use shardd_api::duration;
use shardd_store::connect::Connect;
use shardd_store::http::HttpError;

use self::stream::{Assembler, Connection, Heard};
use crate::addresses::{Addresses, reason};
use crate::failure::Failure;
use crate::human::{date, parse_duration};
use crate::plain::plain;
use crate::{output, signals};

/// The time between two attempts to reach a node.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often signals and the limit of time are looked at.
const GLANCE: Duration = Duration::from_millis(100);

/// Follow changes of datasets, tags, plans, runs, nodes, placements and the health of nodes
///
/// Each line has the time of its arrival (UTC), the kind of object, its name, and `changed` or `removed`. Nodes keep no log: the
/// first change is the first one after the start of this command, or after --since. SIGINT and SIGTERM end it with exit code 0.
#[derive(Args)]
pub(crate) struct Events {
    /// Continue until a signal: the default without --for
    #[arg(long, short = 'f', conflicts_with = "limit")]
    follow: bool,

    /// End after this time, such as 30s or 10m
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    limit: Option<Duration>,

    /// Begin after the change with this id, which --json and the end of this command show; nodes know some thousand changes
    #[arg(long, value_name = "ID")]
    since: Option<u64>,

    /// Show only these kinds
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<Kind>,
}

/// The kinds of objects that change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Dataset,
    Tag,
    Plan,
    Run,
    Node,
    Placement,
    Health,
}

impl Kind {
    /// Its name in events.
    fn name(self) -> &'static str {
        match self {
            Kind::Dataset => "dataset",
            Kind::Tag => "tag",
            Kind::Plan => "plan",
            Kind::Run => "run",
            Kind::Node => "node",
            Kind::Placement => "placement",
            Kind::Health => "health",
        }
    }
}

/// Something that has changed, as nodes send it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    kind: String,
    name: String,
    removed: bool,
    revision: u64,
}

/// A change and its arrival, as --json shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Shown {
    /// The time of its arrival, in seconds since 1970.
    at: u64,
    #[serde(flatten)]
    change: Change,
    /// With it as --since, the stream continues after this change. Not every change has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
}

/// A part of the output.
#[derive(Debug, PartialEq, Eq)]
enum Say {
    Change(Shown),
    Note(String),
}

/// A stream so far. Pure.
#[derive(Debug, Default)]
struct Followed {
    kinds: BTreeSet<&'static str>,
    /// The id up to which everything has been seen.
    last: Option<u64>,
    assembler: Assembler,
}

/// How a connection ended.
enum End {
    /// By a signal or the limit of time.
    Wanted,
    /// The node closed it.
    Closed,
    Failed(HttpError),
}

impl Events {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let servers = connect.servers()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        signals::at_first(move || stop.store(true, Ordering::Relaxed))?;
        let limit = if self.follow { None } else { self.limit };
        let mut followed = Followed {
            kinds: self.kind.iter().map(|kind| kind.name()).collect(),
            last: self.since,
            assembler: Assembler::default(),
        };
        let mut addresses = Addresses::new(&servers.urls, servers.first_that_answers());
        let (mut until, mut was_lost, mut has_begun) = (None, false, false);
        loop {
            let address = addresses.current().to_owned();
            let connection = Connection::open(&servers, &address, followed.last)?;
            followed.assembler = Assembler::default();
            let end = loop {
                if is_over(until, &stopped) {
                    break End::Wanted;
                }
                match connection.heard.recv_timeout(GLANCE) {
                    Ok(Heard::Begun) => {
                        if was_lost {
                            output::note(json, &back(&address, followed.last));
                        }
                        (was_lost, has_begun) = (false, true);
                        until = until.or_else(|| limit.and_then(|limit| Instant::now().checked_add(limit)));
                    }
                    Ok(Heard::Nodes(nodes)) => addresses.learn(nodes.iter().map(String::as_str)),
                    Ok(Heard::Line(line)) => {
                        followed.take(&line, duration::now()).iter().for_each(|say| say.print(json));
                    }
                    Ok(Heard::Failed(error)) => break End::Failed(error),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break End::Closed,
                }
            };
            connection.close();
            let why = match end {
                End::Wanted => break,
                End::Failed(error) if !has_begun || is_hopeless(&error) => return Err(error.into()),
                End::Failed(error) => format!("{address} does not answer ({})", reason(&error)),
                End::Closed => format!("{address} ended the stream"),
            };
            if !was_lost {
                output::note(json, &format!("{}; trying again", plain(&why)));
            }
            was_lost = true;
            addresses.turn();
            let next = Instant::now() + AGAIN_AFTER;
            while Instant::now() < next && !is_over(until, &stopped) {
                std::thread::sleep(GLANCE);
            }
            if is_over(until, &stopped) {
                break;
            }
        }
        if let Some(last) = followed.last.filter(|last| !json && Some(*last) != self.since) {
            output::note(json, &format!("`shardctl events --since {last}` continues from here"));
        }
        Ok(())
    }
}

fn is_over(until: Option<Instant>, stopped: &AtomicBool) -> bool {
    stopped.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until)
}

/// Whether no node will answer this request later: a token without the right, say. Too many followers become fewer.
fn is_hopeless(error: &HttpError) -> bool {
    error.is_final() && error.status() != Some(429)
}

fn back(address: &str, last: Option<u64>) -> String {
    match last {
        Some(_) => format!("following {}", plain(address)),
        None => format!("following {}; changes in between may be missing", plain(address)),
    }
}

impl Followed {
    /// One more line of the stream, which arrives at `now`.
    fn take(&mut self, line: &str, now: u64) -> Option<Say> {
        let sent = self.assembler.take(line)?;
        let id = sent.id.as_deref().and_then(|id| id.parse::<u64>().ok());
        match sent.event.as_str() {
            "reset" => {
                let since = self.last.take().map_or_else(String::new, |last| format!(" since {last}"));
                return Some(Say::Note(format!(
                    "the changes{since} are not known any more: list the objects again; later changes follow"
                )));
            }
            "lagged" => {
                return Some(Say::Note(
                    "this reader was too slow: changes may be missing; list the objects again".to_owned(),
                ));
            }
            _ => {}
        }
        self.last = id.or(self.last);
        let Ok(change) = serde_json::from_str::<Change>(&sent.data) else {
            return Some(Say::Note(format!(
                "an event that this release cannot read: {}",
                plain(&sent.event)
            )));
        };
        let is_wanted = self.kinds.is_empty() || self.kinds.contains(change.kind.as_str());
        is_wanted.then_some(Say::Change(Shown { at: now, change, id }))
    }
}

impl Say {
    fn print(&self, json: bool) {
        match self {
            Say::Change(shown) if json => output::json(shown),
            Say::Change(shown) => output::print(&shown.line()),
            Say::Note(text) => output::note(json, text),
        }
    }
}

impl Shown {
    /// As a line.
    fn line(&self) -> String {
        let Change { kind, name, removed, .. } = &self.change;
        let what = if *removed { "removed" } else { "changed" };
        format!("{}  {:9}  {}  {what}\n", date(self.at), plain(kind), plain(name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: u64 = 1_790_000_000;

    fn followed(kinds: &[Kind], last: Option<u64>) -> Followed {
        let kinds = kinds.iter().map(|kind| kind.name()).collect();
        Followed { kinds, last, assembler: Assembler::default() }
    }

    fn event(kind: &str, data: &str, id: Option<u64>) -> Vec<String> {
        let id = id.map(|id| format!("id: {id}"));
        [format!("event: {kind}"), format!("data: {data}")]
            .into_iter()
            .chain(id)
            .chain([String::new()])
            .collect()
    }

    fn change(kind: &str, name: &str, removed: bool, revision: u64) -> String {
        serde_json::json!({ "kind": kind, "name": name, "removed": removed, "revision": revision })
            .to_string()
    }

    fn take(followed: &mut Followed, lines: &[String]) -> Vec<Say> {
        lines.iter().filter_map(|line| followed.take(line, AT)).collect()
    }

    fn texts(says: &[Say]) -> Vec<String> {
        let text = |say: &Say| match say {
            Say::Change(shown) => shown.line(),
            Say::Note(text) => text.clone(),
        };
        says.iter().map(text).collect()
    }

    #[test]
    fn changes_are_lines_and_the_last_id_is_where_to_continue() {
        let mut followed = followed(&[], None);
        let lines = [
            event("dataset", &change("dataset", "digits", false, 7), None),
            event("tag", &change("tag", "digits/v1", true, 9), Some(9)),
            vec![": still here".to_owned(), String::new()],
        ];
        let said = take(&mut followed, &lines.concat());
        assert_eq!(
            texts(&said),
            [
                "2026-09-21 14:13:20  dataset    digits  changed\n",
                "2026-09-21 14:13:20  tag        digits/v1  removed\n"
            ]
        );
        assert_eq!(followed.last, Some(9));
        let Say::Change(shown) = &said[1] else { panic!("a change") };
        assert_eq!(
            serde_json::to_string(shown).expect("plain data"),
            r#"{"at":1790000000,"kind":"tag","name":"digits/v1","removed":true,"revision":9,"id":9}"#
        );
    }

    #[test]
    fn an_unwanted_kind_is_not_shown_and_moves_the_id() {
        let mut followed = followed(&[Kind::Node, Kind::Run], Some(1));
        let said = take(&mut followed, &event("dataset", &change("dataset", "digits", false, 7), Some(7)));
        assert_eq!((said, followed.last), (vec![], Some(7)));
        let said = take(&mut followed, &event("run", &change("run", "r", false, 8), None));
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn gaps_are_named() {
        let mut followed = followed(&[], Some(5));
        let said = take(&mut followed, &event("reset", "what happened since is not known any more", None));
        assert!(texts(&said)[0].starts_with("the changes since 5 are not known any more"), "{said:?}");
        assert_eq!(followed.last, None, "asking for them again would be answered in the same way");
        let said = take(&mut followed, &event("lagged", "too slow", None));
        assert!(matches!(&said[..], [Say::Note(text)] if text.contains("too slow")));
        let said = take(&mut followed, &event("weather", "rain", None));
        assert!(matches!(&said[..], [Say::Note(text)] if text.contains("weather")));
    }

    #[test]
    fn kinds_are_named_as_on_the_command_line() {
        for kind in Kind::value_variants() {
            let value = kind.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), kind.name());
        }
    }

    proptest! {
        #[test]
        fn no_stream_brings_it_down_or_steers_the_terminal(lines in prop::collection::vec(
            prop_oneof![
                any::<String>(),
                "(event|data|id|retry|x): ?[ -~]{0,20}",
                any::<String>().prop_map(|name| format!("data: {}", change("dataset", &name, false, 1))),
                Just(String::new()),
            ],
            0..40,
        )) {
            let mut followed = followed(&[], None);
            for text in texts(&take(&mut followed, &lines)) {
                prop_assert!(!text.trim_end_matches('\n').contains(char::is_control), "{text:?}");
            }
        }
    }
}
