//! Cuts the numbers of a training into one part for each virtual rank, and joins them. Pure.
//!
//! A part is a safetensors file of two tensors: `common`, the virtual rank's share of what all ranks have in common, and
//! `statistics`, which are its own.

use std::ops::Range;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use shardfmt::Digest;

/// The numbers of a training, as one rank holds them.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Weights, first and second moments of the blocks, one after the other: the same on all ranks.
    pub common: Vec<f32>,
    /// Of each virtual rank of this rank, its number and its running statistics, the blocks' one after the other.
    pub statistics: Vec<(u32, Vec<f32>)>,
}

/// A part as a manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Of its bytes.
    pub digest: Digest,
    /// How many there are.
    pub bytes: u64,
}

/// Which of `count` numbers are the virtual rank's.
pub(super) fn share(count: usize, virtual_ranks: u32, virtual_rank: u32) -> Range<usize> {
    let bound = |rank: u32| (count as u128 * u128::from(rank) / u128::from(virtual_ranks)) as usize;
    bound(virtual_rank)..bound(virtual_rank + 1)
}

/// The numbers of a range of slices that are thought of as one.
pub(super) fn cut(slices: &[&[f32]], range: Range<usize>) -> Vec<f32> {
    let mut found = Vec::with_capacity(range.len());
    let mut start = 0;
    for slice in slices {
        let end = start + slice.len();
        let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
        found.extend_from_slice(&slice[from - start..to - start]);
        start = end;
    }
    found
}

/// A part as bytes: the same for the same numbers.
pub(super) fn encode(common: &[f32], statistics: &[f32]) -> Vec<u8> {
    let tensors = [("common", common), ("statistics", statistics)].map(|(name, numbers)| {
        let bytes = bytemuck::cast_slice(numbers);
        (name, TensorView::new(Dtype::F32, vec![numbers.len()], bytes).expect("as many numbers as it says"))
    });
    safetensors::serialize(tensors, None).expect("two names of their own")
}

/// The two rows of numbers of a part, which are as long as the layout says.
pub(super) fn decode(bytes: &[u8], common: usize, statistics: usize) -> Result<[Vec<f32>; 2], String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let read = |(name, count): (&str, usize)| {
        let tensor = file.tensor(name).map_err(|error| error.to_string())?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [count] {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(format!("{name} is {shape:?} of {dtype:?}, not [{count}] of F32"));
        }
        Ok(bytemuck::pod_collect_to_vec(tensor.data()))
    };
    Ok([read(("common", common))?, read(("statistics", statistics))?])
}
