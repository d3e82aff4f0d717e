//! How far an ingest is: a bar with rate and time left on a terminal, JSON lines for scripts, silence elsewhere.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde_json::json;
use shardd_ingest::Progress;

use crate::human::{count, plural};
use crate::{output, signals};

/// The phase in which the number of samples is not known yet.
const READING: &str = "reading";

/// Between two JSON lines.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Shows the progress; several threads may report to it.
pub(crate) struct IngestProgress {
    show: Show,
    started: Instant,
    read: AtomicU64,
    written: AtomicU64,
    bytes: AtomicU64,
}

enum Show {
    Nothing,
    Lines(Mutex<Option<Instant>>),
    Bar { bar: ProgressBar, is_writing: Mutex<bool> },
}

impl IngestProgress {
    /// JSON lines if `json`, else a bar if standard error is a terminal. `samples` is how many there will be, if known.
    pub(crate) fn new(json: bool, samples: Option<u64>) -> IngestProgress {
        let show = match (json, std::io::stderr().is_terminal()) {
            (true, _) => Show::Lines(Mutex::new(None)),
            (false, true) => Show::Bar { bar: reading_bar(samples), is_writing: Mutex::new(false) },
            (false, false) => Show::Nothing,
        };
        Self::with(show)
    }

    /// Shows nothing.
    pub(crate) fn silent() -> IngestProgress {
        Self::with(Show::Nothing)
    }

    fn with(show: Show) -> IngestProgress {
        let (read, written, bytes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        IngestProgress { show, started: Instant::now(), read, written, bytes }
    }

    /// Says something between, without disturbing the bar.
    pub(crate) fn note(&self, text: &str) {
        match &self.show {
            Show::Nothing => output::note(false, text),
            Show::Lines(_) => output::json(&json!({ "event": "note", "text": text })),
            Show::Bar { bar, .. } => bar.println(format!("note: {text}")),
        }
    }

    /// Clears the bar.
    pub(crate) fn finish(&self) {
        if let Show::Bar { bar, .. } = &self.show {
            bar.finish_and_clear();
        }
    }

    /// Ends the process at Ctrl-C, with a word on what becomes of the work.
    pub(crate) fn end_on_signals(self: &Arc<Self>) -> io::Result<()> {
        let progress = self.clone();
        signals::end_with(move |exit| {
            progress.finish();
            let words = "interrupted: the same command continues where this one stopped";
            match progress.show {
                Show::Lines(_) => output::error(true, words, exit),
                Show::Nothing | Show::Bar { .. } => eprintln!("{words}"),
            }
        })
    }

    fn line(&self, phase: &str, last: &Mutex<Option<Instant>>) {
        let mut last = last.lock().expect("no panic while held");
        if last.is_some_and(|at| at.elapsed() < JSON_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        let (read, written) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        let seconds = self.started.elapsed().as_secs_f64();
        output::json(&json!({
            "event": "progress",
            "phase": phase,
            "read": read,
            "written": written,
            "bytes": self.bytes.load(Ordering::Relaxed),
            "seconds": seconds,
        }));
    }
}

impl Progress for IngestProgress {
    fn resumed(&self, rows: u64, shards: u64) {
        let (read, stored) = (plural(rows, "sample"), plural(shards, "shard"));
        self.note(&format!("continuing where an earlier attempt stopped: {read} read, {stored} stored"));
    }

    fn advanced(&self, rows: u64, bytes: u64, phase: &str) {
        let is_reading = phase == READING;
        let counter = if is_reading { &self.read } else { &self.written };
        let done = counter.fetch_add(rows, Ordering::Relaxed) + rows;
        if !is_reading {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        match &self.show {
            Show::Nothing => {}
            Show::Lines(last) => self.line(phase, last),
            Show::Bar { bar, .. } if is_reading => bar.set_position(done),
            Show::Bar { bar, is_writing } => {
                let mut is_writing = is_writing.lock().expect("no panic while held");
                if !*is_writing {
                    *is_writing = true;
                    bar.reset();
                    bar.set_length(self.read.load(Ordering::Relaxed));
                    bar.set_style(style(
                        "writing {wide_bar} {human_pos}/{human_len} samples, {rate}, {eta} left",
                    ));
                }
                bar.set_position(done);
            }
        }
    }
}

fn reading_bar(samples: Option<u64>) -> ProgressBar {
    let bar = samples.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_style(style(match samples {
        Some(_) => "reading {wide_bar} {human_pos}/{human_len} samples, {rate}, {eta} left",
        None => "{spinner} reading {human_pos} samples, {rate}",
    }));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A style that knows the `rate` in whole samples.
pub(crate) fn style(template: &str) -> ProgressStyle {
    let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
        let _ = write!(out, "{}/s", count(state.per_sec().round() as u64));
    };
    ProgressStyle::with_template(template).expect("the template is well formed").with_key("rate", rate)
}
