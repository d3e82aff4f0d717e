//! What a rank does when, for `chrome://tracing` and Perfetto (the Trace Event Format): one file for all ranks, a process for each rank, a row for
//! data, one for computing and one for communication; what nodes did meanwhile is added by [`node_events`].

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
pub use shardd_api::timeline::node_events;

/// Beyond this number of events of a rank a trace is cut short, and says so: rank 0 gathers those of all.
const MOST_EVENTS: usize = 250_000;

/// A row of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Waiting for samples, and making numbers of them.
    Data,
    /// Forward, backward and update.
    Compute,
    /// Other ranks.
    Communication,
}

impl Lane {
    const ALL: [Lane; 3] = [Lane::Data, Lane::Compute, Lane::Communication];

    fn name(self) -> &'static str {
        match self {
            Lane::Data => "data",
            Lane::Compute => "compute",
            Lane::Communication => "communication",
        }
    }
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What.
    pub name: Cow<'static, str>,
    /// Where.
    pub lane: Lane,
    /// Since the tracer was made.
    pub start: Duration,
    /// How long.
    pub length: Duration,
}

/// Collects events, or does nothing at all. Clones collect together.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Collected>>);

#[derive(Debug)]
struct Collected {
    began: Instant,
    /// By the clock that machines share.
    began_at: Duration,
    events: Mutex<Vec<Event>>,
    counts: Mutex<Vec<Count>>,
}

/// How much there was of several things.
#[derive(Debug)]
struct Count {
    name: &'static str,
    at: Duration,
    values: Vec<(&'static str, usize)>,
}

/// An event that ends when this is dropped.
#[derive(Debug)]
#[must_use = "it ends at once otherwise"]
pub struct Span<'a> {
    tracer: &'a Tracer,
    name: Option<Cow<'static, str>>,
    lane: Lane,
    began: Instant,
}

impl Tracer {
    /// One that does nothing.
    pub fn off() -> Tracer {
        Tracer::default()
    }

    /// One that collects, beginning now.
    pub fn on() -> Tracer {
        let began_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (began, events, counts) = (Instant::now(), Mutex::default(), Mutex::default());
        Tracer(Some(Arc::new(Collected { began, began_at, events, counts })))
    }

    /// Begins an event; what makes its name is called only if it is wanted.
    pub fn span<N: Into<Cow<'static, str>>>(&self, lane: Lane, name: impl FnOnce() -> N) -> Span<'_> {
        let name = self.0.is_some().then(|| name().into());
        Span { tracer: self, name, lane, began: Instant::now() }
    }

    /// Says how much there is of several things by now, drawn as a curve over time.
    pub fn count(&self, name: &'static str, values: impl IntoIterator<Item = (&'static str, usize)>) {
        let Some(collected) = &self.0 else { return };
        let mut counts = lock(&collected.counts);
        if counts.len() < MOST_EVENTS {
            let values = values.into_iter().collect();
            counts.push(Count { name, at: collected.began.elapsed(), values });
        }
    }

    /// The ended events, in the order of their ends.
    pub fn events(&self) -> Vec<Event> {
        self.0.as_ref().map_or(Vec::new(), |collected| lock(&collected.events).clone())
    }

    /// The events of a rank in the Trace Event Format, without the frame around them.
    pub fn to_json(&self, rank: u32) -> Vec<Value> {
        let Some(collected) = &self.0 else { return Vec::new() };
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let events = lock(&collected.events);
        let mut json: Vec<Value> = events
            .iter()
            .map(|Event { name, lane, start, length }| {
                json!({
                    "name": name, "ph": "X", "pid": rank, "tid": *lane as u32,
                    "ts": micros(collected.began_at + *start), "dur": micros(*length),
                })
            })
            .collect();
        json.extend(lock(&collected.counts).iter().map(|Count { name, at, values }| {
            let values: serde_json::Map<String, Value> =
                values.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            json!({"name": name, "ph": "C", "pid": rank, "ts": micros(collected.began_at + *at), "args": values})
        }));
        let about = |what: &str, lane: Option<Lane>, name: String| json!({"name": what, "ph": "M", "pid": rank, "tid": lane.map(|lane| lane as u32), "args": {"name": name}});
        let is_cut = events.len() >= MOST_EVENTS;
        let cut = if is_cut { ", cut short" } else { "" };
        json.push(about("process_name", None, format!("rank {rank}{cut}")));
        json.extend(Lane::ALL.map(|lane| about("thread_name", Some(lane), lane.name().to_owned())));
        json
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        if let (Some(name), Some(collected)) = (self.name.take(), &self.tracer.0) {
            let (start, length) = (self.began - collected.began, self.began.elapsed());
            let mut events = lock(&collected.events);
            if events.len() < MOST_EVENTS {
                events.push(Event { name, lane: self.lane, start, length });
            }
        }
    }
}

fn lock<T>(events: &Mutex<Vec<T>>) -> std::sync::MutexGuard<'_, Vec<T>> {
    events.lock().expect("no panic while an event is added")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_collected_with_their_rows_and_nothing_without_a_tracer() {
        let tracer = Tracer::on();
        {
            let _outer = tracer.clone().span(Lane::Compute, || "step").name.is_some();
            let _step = tracer.span(Lane::Compute, || "step");
            let _inner = tracer.span(Lane::Communication, || format!("bucket {}", 1));
        }
        tracer.count("bytes", [("weights", 7)]);
        let events = tracer.events();
        let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
        assert_eq!(names, ["step", "bucket 1", "step"]);
        assert!(events[2].start <= events[1].start && events[1].length <= events[2].length);
        let json = tracer.to_json(3);
        assert_eq!(json.len(), 3 + 1 + 1 + 3);
        assert_eq!((&json[3]["ph"], &json[3]["args"]), (&json!("C"), &json!({"weights": 7})));
        assert!(json.iter().all(|event| event["pid"] == 3));
        assert_eq!((&json[1]["tid"], &json[1]["ph"]), (&json!(2), &json!("X")));
        let off = Tracer::off();
        drop(off.span(Lane::Data, || -> String { unreachable!("no reader wants it") }));
        assert!(off.events().is_empty() && off.to_json(0).is_empty());
    }
}
