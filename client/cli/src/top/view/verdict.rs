//! Whether training is held up by data, in a sentence.

use shardd_api::duration::about;
use shardd_api::overview::{EXPOSED, Overview, RunOverview, RunWaits};

use super::words::{forecast, share, time};

/// The first line of the screen.
pub(super) struct Verdict {
    pub(super) text: String,
    /// Whether training waits; `None` if that is not known.
    pub(super) is_held_up: Option<bool>,
}

/// The answer for the run that waits most.
pub(super) fn verdict(overview: &Overview) -> Verdict {
    let Some(run) = overview.runs.first() else {
        return Verdict { text: "Nothing trains: no run is being read.".to_owned(), is_held_up: None };
    };
    let others = match overview.runs.iter().skip(1).filter(|run| waits(run).is_some()).count() {
        0 => String::new(),
        1 => "; another run waits, too".to_owned(),
        others => format!("; {others} other runs wait, too"),
    };
    let done = run.epoch_ends.as_ref().map_or_else(
        || "; when its epoch ends is not known yet".to_owned(),
        |ends| format!("; epoch {} done in {}", run.epoch, forecast(ends)),
    );
    let id = &run.run;
    match (&run.waits, waits(run)) {
        (None, _) => Verdict {
            text: format!("Run {id} does not report yet whether it waits for data{done}"),
            is_held_up: None,
        },
        (Some(found), None) => Verdict {
            text: format!(
                "Training is not held up by data: {} of the time exposed (run {id}, rank {}){done}",
                share(found.exposed_share),
                found.rank
            ),
            is_held_up: Some(false),
        },
        (Some(_), Some(found)) => {
            let stage = found.stage.map_or_else(String::new, |stage| format!(" for {}", stage.name()));
            let alone = if found.is_straggler { " alone" } else { "" };
            let since = found.since.map_or_else(String::new, |since| {
                let ago = about(overview.at.saturating_sub(since) as f64);
                format!(" since {} UTC ({ago})", time(since))
            });
            Verdict {
                text: format!(
                    "TRAINING WAITS FOR DATA: {} of the time exposed; rank {} of run {id} (node {}){alone} waits{stage}{since}{done}{others}",
                    share(found.exposed_share),
                    found.rank,
                    found.node
                ),
                is_held_up: Some(true),
            }
        }
    }
}

/// What a run waits for, if it is held up.
fn waits(run: &RunOverview) -> Option<&RunWaits> {
    run.waits.as_ref().filter(|waits| waits.exposed_share > EXPOSED)
}
