//! How much to exchange: the smallest constant share, and a schedule of one large exchange and then little, after which
//! virtual ranks see labels nearly as evenly as if samples were drawn from all, early in a training. By the formulas of
//! `docs/PLAN.md`; plays nothing.

use serde::Serialize;
use shardd_client::label_skew::Spread;
use shardd_plan::{Epoch, Schedule, Selection, Share};

use crate::simulate_plan::{LinkRate, fraction, unexchanged};

/// The share in the second part of a schedule, unless less is enough for all.
const LITTLE: &str = "0.01";
/// Shares are rounded up to this part of 1.
const STEPS: f64 = 10_000.0;

/// Epochs that are still added up.
const MOST_EPOCHS: u32 = 100_000;

/// The question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// How the plan begins.
    pub spread: Spread,
    /// How it selects the exchanged grains.
    pub selection: Selection,
    /// Epochs that are trained; an exchange is made after each.
    pub epochs: u32,
    /// The distance, above that of samples drawn at random, to come below...
    pub skew: f64,
    /// ...within this part of the epochs.
    pub within: f64,
    /// Canonical bytes of all samples.
    pub row_bytes: u64,
    /// Between how many nodes grains move, or partitions, if it is not known on how many nodes they will be.
    pub nodes: u32,
    /// The bandwidth of a node, in each direction.
    pub link: LinkRate,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum AdviceError {
    /// None, or more than anyone trains.
    #[error("{epochs} epochs are outside 1 to {MOST_EPOCHS}")]
    Epochs { epochs: u32 },
    /// A skew that cannot be.
    #[error("a skew of {skew} is not above 0 and at most 1: use --skew 0.05")]
    Skew { skew: f64 },
    /// A part that cannot be.
    #[error("{within} of the epochs is not above 0 and at most 1: use --within 0.25")]
    Within { within: f64 },
    /// No nodes.
    #[error("a cluster needs at least 1 node")]
    NoNodes,
}

/// How much to exchange.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Advice {
    /// How the plan begins.
    pub spread: Spread,
    /// Epochs that are trained.
    pub epochs: u32,
    /// The epoch from which the skew is to be below the requested limit.
    pub from_epoch: u32,
    /// The skew that was asked for.
    pub skew: f64,
    /// The smallest share that is enough after every epoch.
    pub constant: Choice,
    /// One large exchange after epoch 0, then little; none where nothing need be exchanged.
    pub two_parts: Option<Choice>,
}

/// A schedule and its effects.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Choice {
    /// As for `--q`.
    pub q: String,
    /// The skew in the epoch asked for, above the floor.
    pub skew_then: f64,
    /// Bytes between nodes after epoch 0...
    pub bytes_first: u64,
    /// ...and after the last epoch.
    pub bytes_last: u64,
    /// Bytes between nodes over all epochs.
    pub bytes: u64,
    /// Seconds that a node's link is busy with the largest exchange.
    pub seconds_at_most: f64,
}

/// The smallest sufficient schedules.
///
/// # Errors
/// [`AdviceError`], if the question makes no sense.
pub(crate) fn advise(question: &Question) -> Result<Advice, AdviceError> {
    let Question { spread, selection, epochs, skew, within, .. } = *question;
    if !(1..=MOST_EPOCHS).contains(&epochs) {
        return Err(AdviceError::Epochs { epochs });
    }
    if !(skew > 0.0 && skew <= 1.0) {
        return Err(AdviceError::Skew { skew });
    }
    if !(within > 0.0 && within <= 1.0) {
        return Err(AdviceError::Within { within });
    }
    if question.nodes == 0 {
        return Err(AdviceError::NoNodes);
    }
    let from_epoch = ((f64::from(epochs) * within).floor() as u32).clamp(1, epochs);
    // The part that may still be in its first place.
    let rest = if spread.distance > 0.0 { (skew / spread.distance).min(1.0) } else { 1.0 };
    let exchanges = f64::from(from_epoch);
    let constant = match selection {
        Selection::Cyclic => (1.0 - rest) / exchanges,
        Selection::Independent => 1.0 - rest.powf(1.0 / exchanges),
    };
    let constant = rounded_up(constant);
    let little = LITTLE.parse::<Share>().expect("a share").min(constant);
    let after_little = exchanges - 1.0;
    let large = match selection {
        Selection::Cyclic => 1.0 - rest - fraction(little) * after_little,
        Selection::Independent => 1.0 - rest / (1.0 - fraction(little)).powf(after_little),
    };
    let two_parts = Schedule::try_from(vec![rounded_up(large), little]).expect("two shares are a schedule");
    Ok(Advice {
        spread,
        epochs,
        from_epoch,
        skew,
        constant: question.choice(Schedule::constant(constant), from_epoch),
        two_parts: (constant > Share::NONE).then(|| question.choice(two_parts, from_epoch)),
    })
}

fn rounded_up(share: f64) -> Share {
    let steps = (share * STEPS - 1e-6).ceil().clamp(0.0, STEPS);
    format!("{:.4}", steps / STEPS).parse().expect("a share of four decimals")
}

impl Question {
    fn choice(&self, schedule: Schedule, from_epoch: u32) -> Choice {
        let skew_then = unexchanged(&schedule, self.selection, Epoch(from_epoch)) * self.spread.distance;
        let elsewhere = self.row_bytes as f64 * (1.0 - 1.0 / f64::from(self.nodes));
        let bytes_after = |epoch: u32| (fraction(schedule.after(Epoch(epoch))) * elsewhere) as u64;
        let largest = (fraction(schedule.largest()) * elsewhere / f64::from(self.nodes)) as u64;
        Choice {
            q: schedule.to_string(),
            skew_then,
            bytes_first: bytes_after(0),
            bytes_last: bytes_after(self.epochs - 1),
            bytes: (0..self.epochs).map(bytes_after).fold(0, u64::saturating_add),
            seconds_at_most: self.link.time_of(largest).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use shardd_client::label_skew::Origins;
    use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape, SlotTable};
    use shardfmt::VersionId;
    use shardfmt::manifest::Labels;

    use super::*;
    use crate::simulate_plan::{Scenario, simulate};

    const ROWS: [u32; 16] = [1000; 16];

    fn plan(q: &str, selection: Selection) -> Plan {
        let shape = Shape { shard_rows: ROWS.to_vec(), row_bytes: 16_000_000 };
        let q = q.parse().expect("a schedule");
        let options =
            PlanOptions { q, selection, partitions: Some(16), grain_rows: Some(1), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId::of(b"sorted"), &shape, options).expect("fits");
        Plan::new(document, &ROWS).expect("fits")
    }

    /// 16,000 samples of ten classes, sorted, in 16 partitions.
    fn question(selection: Selection) -> Question {
        let labels: Vec<Labels> = (0..16_u64)
            .map(|shard| {
                let mut labels = Labels::new();
                for sample in shard * 1000..(shard + 1) * 1000 {
                    *labels.entry((sample / 1600).to_string().into()).or_default() += 1;
                }
                labels
            })
            .collect();
        let origins = Origins::labels(labels.iter().map(|labels| (1000, Some(labels)))).expect("labels");
        Question {
            spread: origins.spread(&plan("0.1", selection), 16, 32),
            selection,
            epochs: 40,
            skew: 0.05,
            within: 0.25,
            row_bytes: 16_000_000,
            nodes: 16,
            link: "8Gbit/s".parse().expect("a rate"),
        }
    }

    /// The mean distance of partitions from all samples, counted.
    fn distance(plan: &Plan, epoch: u32) -> f64 {
        let table = SlotTable::at(plan, Epoch(epoch));
        let of = |partition| {
            let mut counts = [0.0; 10];
            table.grains_of(plan, partition).for_each(|grain| counts[grain.0 as usize / 1600] += 1.0);
            0.5 * counts.iter().map(|count| (count / 1000.0 - 0.1_f64).abs()).sum::<f64>()
        };
        plan.partitions().map(of).sum::<f64>() / 16.0
    }

    #[test]
    fn what_is_advised_is_enough_and_half_of_it_is_not() {
        for selection in [Selection::Cyclic, Selection::Independent] {
            let question = question(selection);
            let advice = advise(&question).expect("a question");
            let Spread { distance: begins, floor, .. } = question.spread;
            assert!((begins - distance(&plan("0.1", selection), 0)).abs() < 0.05);
            for choice in [&advice.constant, advice.two_parts.as_ref().expect("some is to be exchanged")] {
                let advised = plan(&choice.q, selection);
                let then = distance(&advised, advice.from_epoch);
                assert!(then < 0.05 + floor * 1.15, "{}: {then} with a floor of {floor}", choice.q);
                assert!(choice.skew_then <= 0.0501, "{choice:?}");
                // The samples predicted at home are counted there, in the simulation of the very plan.
                let scenario = Scenario {
                    nodes: 16,
                    epochs: advice.from_epoch + 1,
                    events: vec![],
                    link: question.link,
                    step: None,
                    global_batch_size: 512,
                };
                let played = simulate(&advised, 16_000_000, &scenario, &|_, _| {}).expect("it fits");
                let home = played.epochs[advice.from_epoch as usize].home_share.expect("it was played");
                let stayed = choice.skew_then / begins;
                assert!((home.counted - (stayed + (1.0 - stayed) / 16.0)).abs() < 0.02, "{home:?}");
                let first = played.epochs[0].exchanged_bytes;
                assert!(
                    first.abs_diff(choice.bytes_first) < choice.bytes_first / 20 + 50_000,
                    "{first} {choice:?}"
                );
            }
            let constant = &advice.constant;
            let half = constant.q.parse::<f64>().expect("a number") / 2.0;
            let then = distance(&plan(&format!("{half:.4}"), selection), advice.from_epoch);
            assert!(then > 0.05 + floor, "{then} with a floor of {floor}");
            assert!(
                advice.two_parts.as_ref().expect("one").bytes < constant.bytes,
                "early is worth more than late"
            );
        }
    }

    #[test]
    fn nothing_is_to_be_exchanged_where_all_begin_alike_and_nonsense_is_refused() {
        let question = question(Selection::Cyclic);
        let even = Question { spread: Spread { distance: 0.01, ..question.spread }, ..question };
        let nothing = advise(&even).expect("a question");
        assert_eq!((nothing.constant.q.as_str(), nothing.two_parts.is_none()), ("0", true));
        let refused = |question| advise(&question).expect_err("nonsense").to_string();
        assert!(refused(Question { epochs: 0, ..question }).contains("0 epochs"));
        assert!(refused(Question { nodes: 0, ..question }).contains("at least 1 node"));
        for skew in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(refused(Question { skew, ..question }).contains("--skew 0.05"));
        }
        for within in [0.0, 1.01, f64::NAN] {
            assert!(refused(Question { within, ..question }).contains("--within 0.25"));
        }
    }
}
