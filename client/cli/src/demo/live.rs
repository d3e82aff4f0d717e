//! The demo's progress: one moving line on a terminal, a line per epoch elsewhere, nothing at all with `--json`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::human::count;

/// What `shardtrain --progress` writes after each step.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct TrainerLine {
    pub(crate) epoch: u32,
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) loss: Option<f64>,
    #[serde(default)]
    pub(crate) samples_per_s: Option<f64>,
}

/// Says what the demo is doing.
pub(crate) struct Live {
    mode: Mode,
    started: Instant,
    epochs: u32,
    steps_per_epoch: u64,
}

enum Mode {
    Quiet,
    Lines,
    Bar(ProgressBar),
}

impl Live {
    /// A display fit for where standard error goes; a silent one if `quiet`.
    pub(crate) fn new(quiet: bool) -> Live {
        let mode = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Mode::Quiet,
            (false, false) => Mode::Lines,
            (false, true) => {
                let bar = ProgressBar::new(1);
                let style =
                    ProgressStyle::with_template("{spinner} {msg}").expect("the template is well formed");
                bar.set_style(style);
                bar.enable_steady_tick(Duration::from_millis(100));
                Mode::Bar(bar)
            }
        };
        Live { mode, started: Instant::now(), epochs: 0, steps_per_epoch: 0 }
    }

    /// A step of the demo that is worth a line of its own.
    pub(crate) fn say(&self, text: &str) {
        let text = format!("[{:5.1} s] {text}", self.started.elapsed().as_secs_f64());
        match &self.mode {
            Mode::Quiet => {}
            Mode::Lines => eprintln!("{text}"),
            Mode::Bar(bar) => bar.println(text),
        }
    }

    /// The present activity; shown only where a line can be overwritten.
    pub(crate) fn doing(&self, text: &str) {
        if let Mode::Bar(bar) = &self.mode {
            bar.set_message(text.to_owned());
        }
    }

    /// Training begins.
    pub(crate) fn training(&mut self, epochs: u32, steps_per_epoch: u64) {
        (self.epochs, self.steps_per_epoch) = (epochs, steps_per_epoch);
        if let Mode::Bar(bar) = &self.mode {
            bar.set_length(u64::from(epochs) * steps_per_epoch);
            let template = "{spinner} {wide_bar} {msg}";
            bar.set_style(ProgressStyle::with_template(template).expect("the template is well formed"));
        }
    }

    /// The slowest rank has come this far.
    pub(crate) fn step(&mut self, line: TrainerLine) {
        let described = describe(line, self.epochs, self.steps_per_epoch);
        match &self.mode {
            Mode::Quiet => {}
            Mode::Bar(bar) => {
                bar.set_position(u64::from(line.epoch) * self.steps_per_epoch + line.step + 1);
                bar.set_message(described);
            }
            Mode::Lines => {}
        }
    }

    /// A rank has done the last step of an epoch.
    pub(crate) fn epoch_done(&self, line: TrainerLine) {
        if matches!(self.mode, Mode::Lines) {
            self.say(&describe(line, self.epochs, self.steps_per_epoch));
        }
    }

    /// Clears the moving line.
    pub(crate) fn finish(&self) {
        if let Mode::Bar(bar) = &self.mode {
            bar.finish_and_clear();
        }
    }
}

fn describe(line: TrainerLine, epochs: u32, steps: u64) -> String {
    let loss = line.loss.map(|loss| format!(", loss {loss:.4}")).unwrap_or_default();
    let speed = line
        .samples_per_s
        .map(|speed| format!(", {} samples/s", count(speed.max(0.0).round() as u64)))
        .unwrap_or_default();
    format!("epoch {:>2}/{epochs} step {:>3}/{steps}{loss}{speed}", line.epoch + 1, line.step + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_described_in_one_line() {
        let line = TrainerLine { epoch: 2, step: 9, loss: Some(0.12345), samples_per_s: Some(3210.7) };
        assert_eq!(describe(line, 12, 23), "epoch  3/12 step  10/23, loss 0.1235, 3,211 samples/s");
        let bare: TrainerLine = serde_json::from_str(r#"{"rank":0,"epoch":0,"step":0}"#).unwrap();
        assert_eq!(describe(bare, 12, 23), "epoch  1/12 step   1/23");
    }
}
