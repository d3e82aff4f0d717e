//! How much to exchange: the smallest constant share, and a schedule of one large exchange and then little, with which virtual
//! ranks see labels evenly enough in the mean over a training. `docs/PAPER.md` measured how even that is; the formulas are
//! those of `docs/PLAN.md`. Simulates nothing.

use std::time::Duration;

use serde::Serialize;
use shardd_client::label_skew::Spread;
use shardd_plan::{Epoch, Schedule, Selection, Share};

use shardd_simulation::hiding::{Hiding, MEASURED, MEASURED_STEPS};
use shardd_simulation::{LinkRate, fraction, unexchanged};

/// The share in the second part of a schedule, unless less is enough for all.
const LITTLE: &str = "0.01";
/// Shares are multiples of this part of 1.
const STEPS: u32 = 10_000;

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
    /// The distance that is allowed above that of samples drawn at random, in the mean over all epochs.
    pub skew: f64,
    /// Canonical bytes of all samples.
    pub row_bytes: u64,
    /// Between how many nodes grains move, or partitions, if it is not known on how many nodes they will be.
    pub nodes: u32,
    /// The bandwidth of a node, in each direction.
    pub link: LinkRate,
    /// The round-trip time between nodes.
    pub round_trip: Duration,
    /// Parts of an exchange.
    pub chunks: u32,
    /// Steps of an epoch.
    pub steps: u64,
    /// How long a step takes, if that is known.
    pub step: Option<Duration>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum AdviceError {
    /// None, or more than anyone trains.
    #[error("{epochs} epochs are outside 1 to {MOST_EPOCHS}")]
    Epochs { epochs: u32 },
    /// A skew that cannot be.
    #[error("a skew of {skew} is not above 0 and at most 1: use --skew 0.25")]
    Skew { skew: f64 },
    /// No nodes.
    #[error("a cluster needs at least 1 node")]
    NoNodes,
    /// No sample in a step.
    #[error("a step needs at least 1 sample: use --global-batch-size 1 or more")]
    NoBatch,
}

/// How much to exchange.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Advice {
    /// How the plan begins.
    pub spread: Spread,
    /// Epochs that are trained.
    pub epochs: u32,
    /// The mean skew that is allowed.
    pub skew: f64,
    /// The smallest share that is enough after every epoch.
    pub constant: Choice,
    /// One large exchange after epoch 0, then little; none where nothing need be exchanged.
    pub two_parts: Option<Choice>,
    /// The largest share, as for `--q`, that hides behind training by the closed form, if the time of a step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_hidden_q: Option<String>,
    /// The same with the margin that measurements ask for; none for epochs so short that these show no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_measured_q: Option<String>,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
}

/// A schedule and its effects.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Choice {
    /// As for `--q`.
    pub q: String,
    /// The skew above the floor, in the mean over all epochs.
    pub mean_skew: f64,
    /// Whether that is allowed. With few epochs no exchange is enough, since the first epoch is read as placed.
    pub is_enough: bool,
    /// Bytes between nodes after epoch 0...
    pub bytes_first: u64,
    /// ...and after the last epoch.
    pub bytes_last: u64,
    /// Bytes between nodes over all epochs.
    pub bytes: u64,
    /// Seconds that a node's link is busy with the largest exchange.
    pub seconds_at_most: f64,
    /// A step of at least this many seconds hides it.
    pub hiding_step_seconds: f64,
    /// The part of it that is hidden, if the time of a step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_share: Option<f64>,
    /// Seconds for which training waits for it, if the time of a step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_seconds: Option<f64>,
}

/// The smallest sufficient schedules.
///
/// # Errors
/// [`AdviceError`], if the question makes no sense.
pub(crate) fn advise(question: &Question) -> Result<Advice, AdviceError> {
    let Question { spread, epochs, skew, .. } = *question;
    if !(1..=MOST_EPOCHS).contains(&epochs) {
        return Err(AdviceError::Epochs { epochs });
    }
    if !(skew > 0.0 && skew <= 1.0) {
        return Err(AdviceError::Skew { skew });
    }
    if question.nodes == 0 {
        return Err(AdviceError::NoNodes);
    }
    if question.steps == 0 {
        return Err(AdviceError::NoBatch);
    }
    let constant = question.smallest(Schedule::constant);
    let little = LITTLE.parse::<Share>().expect("a share").min(constant);
    let then_little = |large| Schedule::try_from(vec![large, little]).expect("two shares are a schedule");
    let large = question.smallest(then_little);
    Ok(Advice {
        spread,
        epochs,
        skew,
        constant: question.choice(Schedule::constant(constant)),
        two_parts: (constant > Share::NONE).then(|| question.choice(then_little(large))),
        largest_hidden_q: question.step.map(|step| question.largest_hidden(step, 1.0).to_string()),
        largest_measured_q: question
            .step
            .filter(|_| question.steps >= MEASURED_STEPS)
            .map(|step| question.largest_hidden(step, MEASURED).to_string()),
        steps_per_epoch: question.steps,
    })
}

/// How far the labels of virtual ranks are from those of all, above the distance of samples drawn at random, in the mean over
/// the epochs.
pub(crate) fn mean_skew(spread: &Spread, schedule: &Schedule, selection: Selection, epochs: u32) -> f64 {
    let sum: f64 = unexchanged(schedule, selection).take(epochs as usize).sum();
    spread.distance * sum / f64::from(epochs)
}

fn share_of(steps: u32) -> Share {
    format!("{:.4}", f64::from(steps) / f64::from(STEPS)).parse().expect("a share of four decimals")
}

impl Question {
    /// The smallest share whose schedule is enough, or all if none is.
    fn smallest(&self, schedule_of: impl Fn(Share) -> Schedule) -> Share {
        let is_enough = |steps: u32| self.is_enough(self.mean_skew(&schedule_of(share_of(steps))));
        let (mut below, mut enough) = (0, STEPS);
        if is_enough(0) {
            return Share::NONE;
        }
        while enough - below > 1 {
            let middle = below.midpoint(enough);
            *(if is_enough(middle) { &mut enough } else { &mut below }) = middle;
        }
        share_of(enough)
    }

    fn mean_skew(&self, schedule: &Schedule) -> f64 {
        mean_skew(&self.spread, schedule, self.selection, self.epochs)
    }

    fn is_enough(&self, mean_skew: f64) -> bool {
        mean_skew <= self.skew
    }

    fn choice(&self, schedule: Schedule) -> Choice {
        let mean_skew = self.mean_skew(&schedule);
        let elsewhere = self.row_bytes as f64 * (1.0 - 1.0 / f64::from(self.nodes));
        let bytes_after = |epoch: u32| (fraction(schedule.after(Epoch(epoch))) * elsewhere) as u64;
        let largest = schedule.largest();
        let hiding = self.hiding(largest);
        Choice {
            q: schedule.to_string(),
            mean_skew,
            is_enough: self.is_enough(mean_skew),
            bytes_first: bytes_after(0),
            bytes_last: bytes_after(self.epochs - 1),
            bytes: (0..self.epochs).map(bytes_after).fold(0, u64::saturating_add),
            seconds_at_most: self.link_time(largest).as_secs_f64(),
            hiding_step_seconds: hiding.hiding_step_s(),
            hidden_share: self.step.map(|step| hiding.hidden_share(step)),
            exposed_seconds: self.step.map(|step| hiding.exposed_s(step)),
        }
    }

    /// The time that a node's link is busy with an exchange of a share.
    fn link_time(&self, share: Share) -> Duration {
        let nodes = f64::from(self.nodes);
        self.link.time_of((fraction(share) * self.row_bytes as f64 * (1.0 - 1.0 / nodes) / nodes) as u64)
    }

    fn hiding(&self, share: Share) -> Hiding {
        Hiding::new(self.link_time(share), self.round_trip, self.chunks, self.steps)
    }

    /// The largest share that takes at most this `part` of what hides.
    fn largest_hidden(&self, step: Duration, part: f64) -> Share {
        let multiple = part * self.hiding(share_of(STEPS)).hidden_multiple(step);
        share_of((multiple.min(1.0) * f64::from(STEPS)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use shardd_client::label_skew::Origins;
    use shardd_plan::{Plan, PlanDocument, PlanOptions, Shape, SlotTable};
    use shardfmt::VersionId;
    use shardfmt::manifest::Labels;

    use super::*;
    use shardd_simulation::{Scenario, simulate};

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
            skew: 0.25,
            row_bytes: 16_000_000,
            nodes: 16,
            link: "8Gbit/s".parse().expect("a rate"),
            round_trip: Duration::ZERO,
            chunks: 16,
            steps: 32,
            step: None,
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

    /// The same in the mean over all epochs.
    fn mean_distance(plan: &Plan, epochs: u32) -> f64 {
        (0..epochs).map(|epoch| distance(plan, epoch)).sum::<f64>() / f64::from(epochs)
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
                let counted = mean_distance(&advised, question.epochs);
                assert!(counted < 0.25 + floor * 1.15, "{}: {counted} with a floor of {floor}", choice.q);
                assert!(choice.is_enough && choice.mean_skew <= 0.25, "{choice:?}");
                // The bytes predicted are counted in the simulation of the very plan.
                let scenario = Scenario {
                    nodes: 16,
                    epochs: 3,
                    events: vec![],
                    link: question.link,
                    round_trip: Duration::ZERO,
                    step: None,
                    global_batch_size: 512,
                };
                let simulated = simulate(&advised, 16_000_000, &scenario, &|_, _| {}).expect("it fits");
                let first = simulated.epochs[0].exchanged_bytes;
                assert!(
                    first.abs_diff(choice.bytes_first) < choice.bytes_first / 20 + 50_000,
                    "{first} {choice:?}"
                );
            }
            let constant = &advice.constant;
            let half = constant.q.parse::<f64>().expect("a number") / 2.0;
            let counted = mean_distance(&plan(&format!("{half:.4}"), selection), question.epochs);
            assert!(counted > 0.25 + floor, "{counted} with a floor of {floor}");
            assert!(
                advice.two_parts.as_ref().expect("one").bytes < constant.bytes,
                "early is worth more than late"
            );
        }
    }

    #[test]
    fn with_few_epochs_no_exchange_is_enough() {
        let advice = advise(&Question { epochs: 2, ..question(Selection::Cyclic) }).expect("a question");
        assert_eq!((advice.constant.q.as_str(), advice.constant.is_enough), ("1", false));
        assert!(advice.constant.mean_skew > 0.4, "{:?}", advice.constant);
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
            assert!(refused(Question { skew, ..question }).contains("--skew 0.25"));
        }
    }
}
