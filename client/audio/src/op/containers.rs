//! Operations of operations.

use serde::{Deserialize, Serialize};
use shardd_transforms::document::{choose, probabilities};

use super::Op;
use crate::error::arguments;
use crate::operation::{At, Operation, Planned, Step};
use crate::ops::within;
use crate::value::{Kind, Value};

/// One after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compose {
    /// The operations.
    pub transforms: Vec<Op>,
}

/// All or none of them.
///
/// Random numbers: `uniform()`; below `p`, all are applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomApply {
    /// The operations.
    pub transforms: Vec<Op>,
    /// The probability of all.
    #[serde(default = "half")]
    pub p: f64,
}

/// One of them.
///
/// Random numbers: `uniform()`, which falls into the part of the sum of probabilities of the one that is applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomChoice {
    /// The operations.
    pub transforms: Vec<Op>,
    /// The probability of each, in any unit: they are divided by their sum. All alike if there are none.
    #[serde(default)]
    pub p: Option<Vec<f64>>,
}

/// All of them, in random order.
///
/// Random numbers: for each place from the last to the second `floor(uniform() * (place + 1))`, with which it swaps (Fisher and
/// Yates).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomOrder {
    /// The operations. Each has to accept the sounds that come, and to keep their kind.
    pub transforms: Vec<Op>,
}

fn half() -> f64 {
    0.5
}

/// How many operations these count for.
pub(crate) fn count_of(ops: &[Op]) -> u64 {
    ops.iter().map(|op| op.operation().count()).sum()
}

/// A step inside of an operation.
#[derive(Clone, Debug)]
struct Inner {
    name: &'static str,
    /// Its number, counted from that of the operation that has it.
    number: u64,
    step: Step,
}

impl Inner {
    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        self.step
            .apply(value, At { op: at.op + self.number, ..at })
            .map_err(|reason| format!("has {}, which {reason}", self.name))
    }
}

/// Plans each operation for the kind that `input` makes of the kinds behind those before it.
fn inner(ops: &[Op], mut input: impl FnMut(Option<Kind>) -> Kind) -> Result<(Vec<Inner>, Vec<Kind>), String> {
    let (mut number, mut last) = (1, None);
    let (mut steps, mut kinds) = (Vec::new(), Vec::new());
    for op in ops {
        let planned = op.operation().plan(input(last));
        let Planned { kind, step } =
            planned.map_err(|reason| format!("has {}, which {reason}", op.name()))?;
        steps.push(Inner { name: op.name(), number, step });
        kinds.push(kind);
        number += op.operation().count();
        last = Some(kind);
    }
    Ok((steps, kinds))
}

/// Plans operations of which each gets the sounds of the one before.
fn in_line(ops: &[Op], input: Kind) -> Result<(Vec<Inner>, Kind), String> {
    let (steps, kinds) = inner(ops, |before| before.unwrap_or(input))?;
    Ok((steps, kinds.last().copied().unwrap_or(input)))
}

/// Plans operations of which each gets these sounds.
fn side_by_side(ops: &[Op], input: Kind) -> Result<(Vec<Inner>, Vec<Kind>), String> {
    inner(ops, |_| input)
}

fn apply_all(steps: &[Inner], value: Value, at: At) -> Result<Value, String> {
    steps.iter().try_fold(value, |value, step| step.apply(value, at))
}

/// The kind of sounds that are of one of these kinds.
fn either(first: Kind, others: &[Kind]) -> Result<Kind, String> {
    others.iter().try_fold(first, |one, &other| {
        if one.of_any_length() != other.of_any_length() {
            return Err(format!(
                "makes either {one} or {other}: all its sounds need one form, rate, number of channels and dtype"
            ));
        }
        Ok(if one.length() == other.length() { one } else { one.of_any_length() })
    })
}

impl Operation for Compose {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let (steps, kind) = in_line(&self.transforms, input)?;
        Ok(Planned::new(kind, move |value, at| apply_all(&steps, value, at)))
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

impl Operation for RandomApply {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let p = self.p;
        within("p", p, 0.0..=1.0).map_err(|detail| arguments(&detail))?;
        let (steps, kind) = in_line(&self.transforms, input)?;
        Ok(Planned::new(either(input, &[kind])?, move |value, at| match at.draws().chance(p) {
            true => apply_all(&steps, value, at),
            false => Ok(value),
        }))
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

impl Operation for RandomChoice {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let probabilities = probabilities(self.p.as_deref(), self.transforms.len())?;
        let (steps, kinds) = side_by_side(&self.transforms, input)?;
        let (first, others) = kinds.split_first().expect("at least one operation");
        Ok(Planned::new(either(*first, others)?, move |value, at| {
            steps[choose(&probabilities, at.draws().uniform())].apply(value, at)
        }))
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

impl Operation for RandomOrder {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let (steps, kinds) = side_by_side(&self.transforms, input)?;
        if let Some((step, kind)) = steps.iter().zip(kinds).find(|(_, kind)| *kind != input) {
            return Err(format!(
                "has {}, which makes {kind} of {input}: operations in random order keep the kind",
                step.name
            ));
        }
        Ok(Planned::new(input, move |value, at| {
            let order = at.draws().order(steps.len()).into_iter();
            order.map(|index| &steps[index]).try_fold(value, |value, step| step.apply(value, at))
        }))
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}
