//! Where the time of a training loop goes: its own work, and the stages that it waits for.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The parts of a loader that a training loop may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Data of the store or of nodes.
    Network,
    /// Files of the rank's machine.
    Disk,
    /// Threads that gather and decode rows.
    Decode,
    /// Threads that transform pictures and sounds.
    Transform,
    /// The user's own Python code that makes batches.
    Python,
}

impl Stage {
    /// All of them, in the order in which data passes.
    pub const ALL: [Stage; 5] = [Stage::Network, Stage::Disk, Stage::Decode, Stage::Transform, Stage::Python];

    /// Its name in JSON and in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Network => "network",
            Stage::Disk => "disk",
            Stage::Decode => "decode",
            Stage::Transform => "transform",
            Stage::Python => "python",
        }
    }
}

/// The time of a rank's loop since its loader began, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoopTime {
    /// Steps taken.
    pub steps: u64,
    /// Samples taken, by this rank alone.
    pub samples: u64,
    /// In which the loop worked by itself, and did not wait for data.
    pub compute_ms: u64,
    /// In which it waited for other ranks, if the trainer notes that.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub ranks_ms: u64,
    /// In which it waited, by the stage that was the bottleneck then.
    pub waits: Waits,
    /// The loss of the last step, if the trainer notes it; null for NaN and infinity.
    #[serde(default, deserialize_with = "null_is_nan", skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

impl LoopTime {
    /// The same without the notes of the trainer, which an earlier release refuses.
    #[must_use]
    pub fn without_notes(self) -> LoopTime {
        let compute_ms = self.compute_ms.saturating_add(self.ranks_ms);
        LoopTime { compute_ms, ranks_ms: 0, loss: None, ..self }
    }
}

/// A trainer that does not note its waits leaves them out, as earlier releases do.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

/// JSON has neither NaN nor infinity: `serde_json` writes both as null.
fn null_is_nan<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    Ok(Some(Option::deserialize(value)?.unwrap_or(f64::NAN)))
}

/// Time that a loop waited for data, in milliseconds, by the stage that it waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Waits {
    /// For the store or nodes.
    pub network_ms: u64,
    /// For files of the rank's machine.
    pub disk_ms: u64,
    /// For gathering and decoding.
    pub decode_ms: u64,
    /// For transforms.
    pub transform_ms: u64,
    /// For Python code that makes batches.
    pub python_ms: u64,
}

impl Waits {
    /// The time of one stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Network => self.network_ms,
            Stage::Disk => self.disk_ms,
            Stage::Decode => self.decode_ms,
            Stage::Transform => self.transform_ms,
            Stage::Python => self.python_ms,
        }
    }

    /// The same with more of a stage.
    #[must_use]
    pub fn with(mut self, stage: Stage, ms: u64) -> Waits {
        let field = match stage {
            Stage::Network => &mut self.network_ms,
            Stage::Disk => &mut self.disk_ms,
            Stage::Decode => &mut self.decode_ms,
            Stage::Transform => &mut self.transform_ms,
            Stage::Python => &mut self.python_ms,
        };
        *field = field.saturating_add(ms);
        self
    }

    /// The time of all stages: the exposed data-loading time.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        Stage::ALL.iter().fold(0, |total, stage| total.saturating_add(self.of(*stage)))
    }

    /// The stage that was waited for longest, if any was.
    #[must_use]
    pub fn longest(&self) -> Option<Stage> {
        Stage::ALL.into_iter().filter(|stage| self.of(*stage) > 0).max_by_key(|stage| self.of(*stage))
    }
}

/// The time of a rank's loop over the last minute, as it reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RecentTime {
    /// Seconds between the first and the last report that count.
    pub over_s: f64,
    /// Samples that the rank took per second.
    pub samples_per_second: f64,
    /// Its steps per second.
    pub steps_per_second: f64,
    /// The part of the time in which the loop worked, from 0 to 1.
    pub compute_share: f64,
    /// The part in which it waited for other ranks, if the trainer notes that.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub ranks_share: f64,
    /// The parts in which it waited for data, by stage. Together they are the exposed data-loading time.
    pub wait_shares: BTreeMap<Stage, f64>,
}

impl RecentTime {
    /// The part of the time in which the loop waited for data: 0 is best.
    #[must_use]
    pub fn exposed_share(&self) -> f64 {
        self.wait_shares.values().sum::<f64>().min(1.0)
    }

    /// The stage that it waited for longest, and the part of the time.
    #[must_use]
    pub fn bottleneck(&self) -> Option<(Stage, f64)> {
        let waits = self.wait_shares.iter().filter(|(_, share)| **share > 0.0);
        waits.max_by(|one, other| one.1.total_cmp(other.1)).map(|(stage, share)| (*stage, *share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_release_gets_the_fields_that_it_knows() {
        let time = LoopTime { compute_ms: 3, ranks_ms: 4, loss: Some(0.5), ..LoopTime::default() };
        let json = serde_json::to_value(time.without_notes()).expect("plain data");
        let mut names: Vec<&str> = json.as_object().expect("fields").keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["compute_ms", "samples", "steps", "waits"]);
        assert_eq!(json["compute_ms"], 7);
        let later = r#"{"steps":1,"samples":1,"compute_ms":1,"waits":{"network_ms":0,"disk_ms":0,"decode_ms":0,"transform_ms":0,"python_ms":0},"later":1}"#;
        assert!(serde_json::from_str::<LoopTime>(later).is_ok(), "of a later release");
    }

    #[test]
    fn a_loss_that_is_no_number_comes_through_json() {
        let sent = |loss| {
            let time = LoopTime { loss, ..LoopTime::default() };
            let json = serde_json::to_string(&time).expect("plain data");
            (json.contains("loss"), serde_json::from_str::<LoopTime>(&json).expect("the same").loss)
        };
        assert_eq!(sent(None), (false, None));
        assert_eq!(sent(Some(0.25)), (true, Some(0.25)));
        assert!(sent(Some(f64::INFINITY)).1.is_some_and(f64::is_nan));
    }

    #[test]
    fn each_stage_has_its_own_time() {
        let waits = Stage::ALL
            .into_iter()
            .zip(1..)
            .fold(Waits::default(), |waits, (stage, ms)| waits.with(stage, ms));
        assert_eq!(Stage::ALL.map(|stage| waits.of(stage)), [1, 2, 3, 4, 5]);
        assert_eq!((waits.total_ms(), waits.longest()), (15, Some(Stage::Python)));
        assert_eq!(Waits::default().longest(), None);
        let json = serde_json::to_value(waits).expect("plain data");
        for stage in Stage::ALL {
            assert_eq!(json[format!("{}_ms", stage.name())], waits.of(stage));
        }
    }
}
