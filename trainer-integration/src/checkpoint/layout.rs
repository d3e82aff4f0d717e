//! The layout of a training: its blocks, and how many numbers each has of each kind. Pure.

use serde::{Deserialize, Serialize};

/// The kind of a block's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Its parameters, the trained ones first.
    Weights,
    /// The optimizer's first moment, of the trained ones.
    First,
    /// Its second.
    Second,
}

impl Kind {
    /// All, in the order in which they are kept.
    pub const ALL: [Kind; 3] = [Kind::Weights, Kind::First, Kind::Second];

    /// Its name in files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::First => "first",
            Kind::Second => "second",
        }
    }
}

/// How many numbers a block has of each kind, and their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockLayout {
    /// Names and dimensions of its parameters, in their order.
    pub parameters: Vec<(String, Vec<usize>)>,
    /// Numbers in its weights.
    pub weights: usize,
    /// The number of trained ones, which come first, the others frozen. Format 1 does not say it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trained: usize,
    /// Numbers in the optimizer's first moment: as many as are trained, or none yet.
    pub first: usize,
    /// Numbers in its second moment: as many, or none.
    pub second: usize,
    /// Updates so far.
    pub updates: u32,
    /// Numbers in the running statistics of one virtual rank.
    pub statistics: usize,
    /// Names and dimensions of these, in their order. Format 1 does not say it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<(String, Vec<usize>)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The layout of a training's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// In the model's order.
    pub blocks: Vec<BlockLayout>,
}

impl Layout {
    /// Numbers that all ranks have in common.
    pub fn common(&self) -> usize {
        self.blocks.iter().map(|block| block.weights + block.first + block.second).sum()
    }

    /// Both, if the numbers of each block are as many as its shapes say, and all of them can be counted.
    pub(super) fn checked(&self) -> Result<(usize, usize), String> {
        let of_shapes = |tensors: &[(String, Vec<usize>)]| {
            let size = |(_, shape): &(String, Vec<usize>)| {
                shape.iter().try_fold(1_usize, |size, dimension| size.checked_mul(*dimension))
            };
            tensors.iter().try_fold(0_usize, |sum, tensor| sum.checked_add(size(tensor)?))
        };
        let (mut common, mut statistics) = (0_usize, 0_usize);
        for (number, block) in self.blocks.iter().enumerate() {
            let BlockLayout { parameters, weights, trained, first, second, buffers, .. } = block;
            let is_named = !buffers.is_empty();
            if of_shapes(parameters) != Some(*weights)
                || is_named && of_shapes(buffers) != Some(block.statistics)
                || [trained, first, second].into_iter().any(|count| count > weights)
            {
                return Err(format!("block {number} has other numbers than its shapes say"));
            }
            let sum = |sum: usize, more: usize| {
                sum.checked_add(more).ok_or_else(|| format!("block {number} has more numbers than there are"))
            };
            common = sum(sum(sum(common, *weights)?, *first)?, *second)?;
            statistics = sum(statistics, block.statistics)?;
        }
        Ok((common, statistics))
    }

    /// Numbers that each virtual rank has of its own.
    pub fn statistics(&self) -> usize {
        self.blocks.iter().map(|block| block.statistics).sum()
    }
}

impl BlockLayout {
    /// Numbers of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Weights => self.weights,
            Kind::First => self.first,
            Kind::Second => self.second,
        }
    }
}
