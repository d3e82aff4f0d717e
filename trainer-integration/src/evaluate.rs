//! How well a model does on rows it was not trained on: the same figures for every world size.
//!
//! Rows are cut into chunks of a fixed size, ranks take contiguous runs of chunks, and everyone adds up all chunks in
//! order: neither the shape of a computation nor the order of a sum depends on how many ranks there are.

use arrow::compute::concat_batches;
use serde::Serialize;

use crate::collective::{CollectiveError, slice_of};
use crate::data::{InputSpec, Rows};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::flat_block::to_numbers;
use crate::loss::{counted, cross_entropy};
use crate::reduce::Comm;
use crate::tensor_tree::from_parts;
use crate::weights::Running;

const CHUNK_ROWS: u64 = 256;

/// Figures over a whole data set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Samples; of sequences, tokens that have a next one in their document.
    pub samples: u64,
    /// Those that were answered rightly.
    pub correct: u64,
    /// Mean loss.
    pub loss: f64,
}

impl Evaluation {
    /// Share of samples that were answered rightly.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }
}

/// One chunk's part, as it travels.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Chunk {
    samples: u64,
    correct: u64,
    loss: f64,
}

/// Evaluates `engine` with these running numbers on all rows, this rank its share of them.
///
/// # Errors
/// When rows cannot be read or used, or another rank is gone.
pub fn evaluate(
    engine: &mut Engine,
    running: &Running,
    spec: &InputSpec,
    rows: &dyn Rows,
    comm: &Comm,
) -> Result<Evaluation, TrainError> {
    let count = rows.row_count();
    let chunks = count.div_ceil(CHUNK_ROWS);
    let mine = slice_of(chunks as usize, comm.rank(), comm.world());
    let mut found = Vec::with_capacity(mine.len());
    // Where parameters are gathered, those who have no chunk left help the others.
    let rounds = if engine.gathers() { chunks.div_ceil(comm.world().into()) } else { 0 };
    for chunk in mine.clone() {
        let start = chunk as u64 * CHUNK_ROWS;
        let range = start..(start + CHUNK_ROWS).min(count);
        let parts = rows.read(range.clone()).map_err(TrainError::Rows)?;
        let batch = concat_batches(&rows.schema(), &parts).map_err(|error| TrainError::Rows(error.into()))?;
        if batch.num_rows() as u64 != range.end - range.start {
            let message = format!("{} rows came for rows {range:?}", batch.num_rows());
            return Err(TrainError::Rows(message.into()));
        }
        let positions: Vec<u64> = range.collect();
        let samples = spec.read(&batch, &positions)?;
        let input = spec.shape().parts(samples.features, batch.num_rows(), engine.device());
        let output = engine.output(Some(input), running)?;
        let logits = from_parts::<burn::tensor::Tensor<2>>(output.expect("what goes in comes out"));
        let loss = cross_entropy(&to_numbers(logits), &samples.labels, spec.classes());
        found.push(Chunk { samples: counted(&samples.labels), correct: loss.correct, loss: loss.sum });
    }
    for _ in mine.len() as u64..rounds {
        engine.output(None, running)?;
    }
    let all = comm.run(move |collective| {
        let gathered = collective.all_gather(bytemuck::cast_slice(&found))?;
        let mut all = Vec::new();
        for (rank, message) in gathered.iter().enumerate() {
            let chunks = message.numbers::<Chunk>().ok_or_else(|| CollectiveError::Malformed {
                rank: rank as u32,
                what: format!("{} bytes of figures", message.bytes().len()),
            })?;
            all.extend_from_slice(&chunks);
        }
        Ok(all)
    })?;
    let samples = all.iter().map(|chunk| chunk.samples).sum::<u64>();
    let correct = all.iter().map(|chunk| chunk.correct).sum();
    let loss = all.iter().map(|chunk| chunk.loss).sum::<f64>() / samples.max(1) as f64;
    Ok(Evaluation { samples, correct, loss })
}
