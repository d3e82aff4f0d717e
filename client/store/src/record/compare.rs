//! What two records differ in: settings, and the first step, and in it the first thing that could have been the cause. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::{Record, ShareRow, StepRow};

/// A setting that two trainings do not have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingDifference {
    /// Its name.
    pub name: String,
    /// As JSON text, of the first training.
    pub a: Option<String>,
    /// Of the second.
    pub b: Option<String>,
}

/// The differing parts of a step, in causal order: an earlier one can be the cause of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Differing {
    /// Its place: the epoch, or how many samples it has.
    Place,
    /// The inputs of virtual ranks.
    Input,
    /// With equal inputs, what the model made of them.
    Forward,
    /// With equal losses, the gradients of virtual ranks.
    Backward,
    /// With equal gradients, their sum.
    Reduction,
    /// With the same sum, whether the step was taken.
    Skipped,
    /// The learning rate.
    Rate,
    /// With all else equal, the weights after it.
    Update,
}

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Differing::Place => "another part of the data (plan, batch size, or epochs)",
            Differing::Input => "other samples, or other numbers made of them (data, order, augmentation)",
            Differing::Forward => {
                "the same samples and another loss (weights before the step, dropout, model, or another kind of processor)"
            }
            Differing::Backward => "the same loss and another gradient (model, or another kind of processor)",
            Differing::Reduction => {
                "the same gradients of all virtual ranks and another sum of them (--reduce, --compress, or a fault)"
            }
            Differing::Skipped => "taken by one and skipped by the other (--on-bad-step, --loss-spike-factor)",
            Differing::Rate => "the same gradient and another learning rate (--lr, --schedule, --warmup-epochs, --epochs)",
            Differing::Update => {
                "the same gradient and rate, and other weights after it (optimizer, weight decay, --clip-grad-norm)"
            }
        })
    }
}

/// The first step at which two trainings differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepDifference {
    /// The step.
    pub step: u64,
    /// Its epoch in the first training.
    pub epoch: u32,
    /// The differing part.
    pub what: Differing,
    /// The virtual ranks of which that differs; none where the step differs as a whole.
    pub virtual_ranks: Vec<u32>,
    /// Mean loss of the step, of both.
    pub loss: [f64; 2],
}

impl fmt::Display for StepDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepDifference { step, epoch, what, virtual_ranks, loss: [a, b] } = self;
        write!(f, "step {step} (epoch {epoch}) is the first that differs")?;
        match &virtual_ranks[..] {
            [] => {}
            [rank] => write!(f, ", in virtual rank {rank}")?,
            ranks => {
                let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(f, ", in virtual ranks {}", ranks.join(", "))?;
            }
        }
        write!(f, ": {what}; its mean loss is {a} and {b}")
    }
}

/// Two records beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The settings that differ.
    pub settings: Vec<SettingDifference>,
    /// The steps that both tell: from the first to before the second.
    pub steps: [u64; 2],
    /// The first of these that differs.
    pub first: Option<StepDifference>,
    /// Whether the weights before the first step that both begin with differ; unknown where they begin at other steps.
    pub began_differently: Option<bool>,
    /// Whether the weights at the end differ; unknown unless both were trained to the end.
    pub ended_differently: Option<bool>,
}

impl Comparison {
    /// Whether there is something to compare, and nothing of it differs, settings aside.
    pub fn is_same(&self) -> bool {
        self.steps[0] < self.steps[1]
            && self.first.is_none()
            && self.began_differently != Some(true)
            && self.ended_differently != Some(true)
    }

    /// The differences that show without the steps.
    pub(super) fn of_documents(a: &Record, b: &Record, first: Option<StepDifference>) -> Comparison {
        let both = a.weights.zip(b.weights);
        let (start, end) = (a.steps.first.max(b.steps.first), a.steps.end.min(b.steps.end));
        Comparison {
            settings: setting_differences(a, b),
            steps: [start.min(end), end],
            first,
            began_differently: (a.steps.first == b.steps.first).then(|| a.first_weights != b.first_weights),
            ended_differently: both.filter(|_| a.steps.of == b.steps.of).map(|(a, b)| a != b),
        }
    }
}

impl fmt::Display for Comparison {
    /// Lines for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [start, end] = self.steps;
        if self.began_differently == Some(true) {
            writeln!(f, "they begin with other weights (--seed, --init, or model)")?;
        }
        match &self.first {
            Some(first) => writeln!(f, "{first}")?,
            None if start >= end => writeln!(f, "they have no step in common")?,
            None => writeln!(f, "steps {start} to {} are the same to the last bit", end - 1)?,
        }
        if self.first.is_none() && self.ended_differently == Some(true) {
            writeln!(f, "the weights at the end differ: in running statistics, or in steps without digests")?;
        }
        if !self.settings.is_empty() {
            writeln!(f, "settings that differ:")?;
        }
        for SettingDifference { name, a, b } in &self.settings {
            let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
            writeln!(f, "  {name}: {} and {}", said(a), said(b))?;
        }
        Ok(())
    }
}

/// The settings that two trainings do not have in common, data and shares among them.
pub fn setting_differences(a: &Record, b: &Record) -> Vec<SettingDifference> {
    let own = |record: &Record| {
        let mut settings = record.settings.clone();
        settings.insert("data version".to_owned(), format!("\"{}\"", record.data.version));
        settings.insert("plan".to_owned(), format!("\"{}\"", record.data.plan));
        settings.insert("virtual ranks".to_owned(), record.virtual_ranks.to_string());
        if let Some(launch) = record.launches.last() {
            settings.insert("version".to_owned(), format!("\"{}\"", launch.version));
            settings.insert("processor".to_owned(), format!("\"{}\"", launch.processor));
            settings.extend(launch.program.map(|program| ("program".to_owned(), format!("\"{program}\""))));
        }
        settings
    };
    let (a, b) = (own(a), own(b));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = names.into_iter().filter(|name| a.get(*name) != b.get(*name));
    differing
        .map(|name| SettingDifference {
            name: name.clone(),
            a: a.get(name).cloned(),
            b: b.get(name).cloned(),
        })
        .collect()
}

/// The first step of which the two tell different things. Both tell the same steps.
pub fn first_difference(a: &[StepRow], b: &[StepRow]) -> Option<StepDifference> {
    a.iter().zip(b).find_map(|(a, b)| difference(a, b))
}

/// Whether something of two shares differs.
type Differs = fn(&ShareRow, &ShareRow) -> bool;

fn difference(a: &StepRow, b: &StepRow) -> Option<StepDifference> {
    let found = |what, virtual_ranks| {
        Some(StepDifference { step: a.step, epoch: a.epoch, what, virtual_ranks, loss: [a.mean(), b.mean()] })
    };
    if (a.epoch, a.samples) != (b.epoch, b.samples) {
        return found(Differing::Place, Vec::new());
    }
    // Other virtual ranks are other shares: only the steps as a whole can be compared.
    if a.shares.len() == b.shares.len() {
        let of = |differs: Differs| -> Vec<u32> {
            let pairs = a.shares.iter().zip(&b.shares).enumerate();
            pairs.filter(|(_, (a, b))| differs(a, b)).map(|(rank, _)| rank as u32).collect()
        };
        let kinds: [(Differing, Differs); 3] = [
            (Differing::Input, |a, b| a.samples != b.samples || unlike(a.input, b.input)),
            (Differing::Forward, |a, b| a.loss.to_bits() != b.loss.to_bits() || a.correct != b.correct),
            (Differing::Backward, |a, b| unlike(a.gradient, b.gradient)),
        ];
        for (what, differs) in kinds {
            let virtual_ranks = of(differs);
            if !virtual_ranks.is_empty() {
                return found(what, virtual_ranks);
            }
        }
    } else if a.loss.to_bits() != b.loss.to_bits() || a.correct != b.correct {
        return found(Differing::Forward, Vec::new());
    }
    let sums = |row: &StepRow| (row.loss.to_bits(), row.correct, row.gradient_norm.to_bits());
    if sums(a) != sums(b) {
        return found(Differing::Reduction, Vec::new());
    }
    if a.is_skipped != b.is_skipped {
        return found(Differing::Skipped, Vec::new());
    }
    if a.rate.to_bits() != b.rate.to_bits() {
        return found(Differing::Rate, Vec::new());
    }
    if unlike(a.weights, b.weights) {
        return found(Differing::Update, Vec::new());
    }
    None
}

/// Whether two digests are there and differ.
fn unlike<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
    a.zip(b).is_some_and(|(a, b)| a != b)
}
