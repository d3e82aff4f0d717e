//! How far an operation on a version is: a bar with rate and time left on a terminal, JSON lines for scripts, silence
//! elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::json;
use shardd_ingest::Progress;

use crate::output;
use crate::progress::style;

/// Between two JSON lines.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Counts samples in one pass over them; several threads may report to it.
pub(crate) struct WorkProgress {
    show: Show,
    started: Instant,
    samples: AtomicU64,
    bytes: AtomicU64,
}

enum Show {
    Nothing,
    Lines(Mutex<Option<Instant>>),
    Bar(ProgressBar),
}

impl WorkProgress {
    /// JSON lines if `json`, else a bar if standard error is a terminal. `verb` names the work that is
    /// counted in samples.
    pub(crate) fn new(json: bool, verb: &str, samples: u64) -> WorkProgress {
        let show = match (json, std::io::stderr().is_terminal()) {
            (true, _) => Show::Lines(Mutex::new(None)),
            (false, true) => {
                let template = format!(
                    "{verb} {{wide_bar}} {{human_pos}}/{{human_len}} samples, {{rate}}, {{eta}} left"
                );
                Show::Bar(ProgressBar::new(samples).with_style(style(&template)))
            }
            (false, false) => Show::Nothing,
        };
        WorkProgress { show, started: Instant::now(), samples: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Clears the bar, and says how long it took.
    pub(crate) fn finish(&self) -> Duration {
        if let Show::Bar(bar) = &self.show {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

impl Progress for WorkProgress {
    fn advanced(&self, rows: u64, bytes: u64, phase: &str) {
        let samples = self.samples.fetch_add(rows, Ordering::Relaxed) + rows;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.show {
            Show::Nothing => {}
            Show::Bar(bar) => bar.set_position(samples),
            Show::Lines(last) => {
                let mut last = last.lock().expect("no panic while held");
                if last.is_none_or(|at| at.elapsed() >= JSON_INTERVAL) {
                    *last = Some(Instant::now());
                    output::json(&json!({
                        "event": "progress",
                        "phase": phase,
                        "samples": samples,
                        "bytes": bytes,
                        "seconds": self.started.elapsed().as_secs_f64(),
                    }));
                }
            }
        }
    }
}
