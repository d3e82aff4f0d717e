//! The bytes of an object: a safetensors file, whose tensors are called by block, kind and first number
//! (`12.weights.0`), or `statistics`, or by the parts of a residual. Pure.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::objects::Object;
use super::pieces::{Stretch, length};
use crate::compress::Residual;

/// The tensor that holds running statistics.
const STATISTICS: &str = "statistics";

/// The tensors of a residual.
const GRADIENTS: &str = "gradients";
const VELOCITY: &str = "velocity";
const SUMS: &str = "sums";

/// A piece as bytes: the same for the same numbers of the same place.
pub(super) fn encode_piece(piece: &[Stretch], numbers: &[f32]) -> Vec<u8> {
    let mut rest = numbers;
    let tensors = piece.iter().map(|stretch| {
        let (taken, after) = rest.split_at(stretch.range.len());
        rest = after;
        (stretch.name(), taken)
    });
    encode(tensors.collect())
}

/// The running statistics of a virtual rank as bytes.
pub(super) fn encode_statistics(numbers: &[f32]) -> Vec<u8> {
    encode(vec![(STATISTICS.to_owned(), numbers)])
}

/// The residual of a rank as bytes: the tensors `gradients`, `velocity` and `sums`, those that there are.
pub(super) fn encode_residual(Residual { gradients, velocity, sums }: &Residual) -> Vec<u8> {
    let all = [(GRADIENTS, gradients), (VELOCITY, velocity), (SUMS, sums)];
    let present = all.into_iter().filter(|(_, numbers)| !numbers.is_empty());
    encode(present.map(|(name, numbers)| (name.to_owned(), &numbers[..])).collect())
}

/// The residual again. How many numbers it is to have is known to those who continue with it.
pub(super) fn decode_residual(bytes: &[u8]) -> Result<Residual, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let read = |name: &str| {
        let Ok(tensor) = file.tensor(name) else { return Ok(Vec::new()) };
        if tensor.dtype() != Dtype::F32 || tensor.shape().len() != 1 {
            return Err(format!("{name} is {:?} of {:?}, and no row of F32", tensor.shape(), tensor.dtype()));
        }
        Ok(bytemuck::pod_collect_to_vec(tensor.data()))
    };
    Ok(Residual { gradients: read(GRADIENTS)?, velocity: read(VELOCITY)?, sums: read(SUMS)? })
}

fn encode(tensors: Vec<(String, &[f32])>) -> Vec<u8> {
    let tensors = tensors.into_iter().map(|(name, numbers)| {
        let bytes = bytemuck::cast_slice(numbers);
        (name, TensorView::new(Dtype::F32, vec![numbers.len()], bytes).expect("as many numbers as it says"))
    });
    safetensors::serialize(tensors, None).expect("names of their own")
}

/// The numbers of an object: of its piece one after the other, and the running statistics.
pub(super) fn decode(bytes: &[u8], object: &Object) -> Result<(Vec<f32>, Vec<f32>), String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let read = |name: &str, count: usize, numbers: &mut Vec<f32>| {
        let tensor = file.tensor(name).map_err(|error| error.to_string())?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != [count] {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            return Err(format!("{name} is {shape:?} of {dtype:?}, not [{count}] of F32"));
        }
        let start = numbers.len();
        numbers.resize(start + count, 0.0);
        bytemuck::cast_slice_mut(&mut numbers[start..]).copy_from_slice(tensor.data());
        Ok(())
    };
    let mut common = Vec::with_capacity(length(&object.piece()));
    for (name, piece) in &object.tensors {
        read(name, length(piece), &mut common)?;
    }
    let mut statistics = Vec::new();
    if let Some((_, count)) = object.statistics {
        read(STATISTICS, count, &mut statistics)?;
    }
    Ok((common, statistics))
}
