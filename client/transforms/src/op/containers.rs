//! Operations of operations.

use serde::{Deserialize, Serialize};

use super::Op;
use crate::companions::Companions;
use crate::document::{choose, probabilities};
use crate::operation::{At, Operation};
use crate::ops::arguments::{half, probability};
use crate::value::{Kind, Value};

/// One after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compose {
    /// The operations.
    pub transforms: Vec<Op>,
}

/// The kind behind operations of which each gets the pictures of the one before.
pub(crate) fn kind_of_all<'a>(ops: impl IntoIterator<Item = &'a Op>, input: Kind) -> Result<Kind, String> {
    ops.into_iter().try_fold(input, |kind, op| {
        op.operation().kind(kind).map_err(|error| format!("has {}, which {error}", op.name()))
    })
}

/// How many operations these count for.
pub(crate) fn count_of(ops: &[Op]) -> u64 {
    ops.iter().map(|op| op.operation().count()).sum()
}

/// The number of the operation at each index of a list whose first has the number `first`.
fn numbers(ops: &[Op], first: u64) -> Vec<u64> {
    let mut next = first;
    let number = |op: &Op| {
        let own = next;
        next += op.operation().count();
        own
    };
    ops.iter().map(number).collect()
}

/// Applies operations one after the other, of which the first has this number.
pub(crate) fn apply_all(
    ops: &[Op],
    value: Value,
    companions: &mut Companions,
    at: At,
) -> Result<Value, String> {
    let numbers = numbers(ops, at.op);
    ops.iter().zip(numbers).try_fold(value, |value, (op, number)| {
        op.operation().apply_with(value, companions, At { op: number, ..at })
    })
}

/// Applies an operation to a picture that comes alone.
fn alone(operation: &impl Operation, value: Value, at: At) -> Result<Value, String> {
    let mut none = Companions::none(value.size());
    operation.apply_with(value, &mut none, at)
}

/// Where the operations inside an operation are applied.
fn inside(at: At) -> At {
    At { op: at.op + 1, ..at }
}

impl Operation for Compose {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        kind_of_all(&self.transforms, input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        alone(self, value, at)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        apply_all(&self.transforms, value, companions, inside(at))
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

/// All or none of them.
///
/// Random numbers: `chance(p)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomApply {
    /// The operations.
    pub transforms: Vec<Op>,
    /// The probability of all.
    #[serde(default = "half")]
    pub p: f64,
}

impl Operation for RandomApply {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probability(self.p)?;
        either([input, kind_of_all(&self.transforms, input)?])
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        alone(self, value, at)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        match at.draws().chance(self.p) {
            true => apply_all(&self.transforms, value, companions, inside(at)),
            false => Ok(value),
        }
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

/// The kind of pictures that are of one of these kinds, of which there is one.
fn either(kinds: impl IntoIterator<Item = Kind>) -> Result<Kind, String> {
    let mut kinds = kinds.into_iter();
    let first = kinds.next().expect("at least one kind");
    kinds.try_fold(first, |one, other| {
        let alike = |kind: Kind| Kind { size: None, ..kind };
        if alike(one) != alike(other) {
            return Err(format!(
                "makes either {one} or {other}: all its pictures need one dtype, number of channels and format of boxes"
            ));
        }
        Ok(Kind { size: one.size.filter(|_| one.size == other.size), ..one })
    })
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

impl Operation for RandomChoice {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probabilities(self.p.as_deref(), self.transforms.len())?;
        let kinds: Result<Vec<Kind>, String> =
            self.transforms.iter().map(|op| kind_of_all([op], input)).collect();
        either(kinds?)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        alone(self, value, at)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        let probabilities = probabilities(self.p.as_deref(), self.transforms.len())?;
        let chosen = choose(&probabilities, at.draws().uniform());
        let op = numbers(&self.transforms, at.op + 1)[chosen];
        self.transforms[chosen].operation().apply_with(value, companions, At { op, ..at })
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}

/// All of them, in random order.
///
/// Random numbers: for each place from the last to the second `below(place + 1)`, with which it swaps (Fisher and Yates).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomOrder {
    /// The operations. Each has to accept the pictures that come, and to keep their kind.
    pub transforms: Vec<Op>,
}

impl Operation for RandomOrder {
    fn kind(&self, input: Kind) -> Result<Kind, String> {
        for op in &self.transforms {
            let kind = kind_of_all([op], input)?;
            if kind != input {
                return Err(format!(
                    "has {}, which makes {kind} of {input}: operations in random order keep the kind",
                    op.name()
                ));
            }
        }
        Ok(input)
    }

    fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        alone(self, value, at)
    }

    fn apply_with(&self, value: Value, companions: &mut Companions, at: At) -> Result<Value, String> {
        let numbers = numbers(&self.transforms, at.op + 1);
        at.draws().order(self.transforms.len()).into_iter().try_fold(value, |value, index| {
            self.transforms[index].operation().apply_with(value, companions, At { op: numbers[index], ..at })
        })
    }

    fn count(&self) -> u64 {
        1 + count_of(&self.transforms)
    }
}
