//! What batches are made of micro-batches: tensors, or whatever a batcher of single items makes.

use arrow::array::RecordBatch;
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use shardd_client::loader::MicroBatch;

use crate::data::{InputError, InputSpec, Samples};
use crate::loss::IGNORED;
use crate::models::InputShape;

/// The target of a token that has no next one, as PyTorch's `cross_entropy` leaves it out.
const IGNORED_TARGET: i64 = -100;

/// The samples of a step, as tensors.
#[derive(Clone, Debug)]
pub struct TensorBatch {
    /// A row of numbers for each sample: `[rows, features]`; tokens are whole numbers, and sparse rows have their
    /// zeros. Of packed sequences, the places where documents begin follow the tokens: `[rows, 2 x length]`.
    pub inputs: Tensor<2>,
    /// The class of each: `[rows]`; of sequences, what follows each token: `[rows x length]`, and -100 where nothing does
    /// in its document.
    pub targets: Tensor<1, Int>,
    /// The kind of a sample's features.
    pub shape: InputShape,
}

impl TensorBatch {
    /// The inputs as `[rows, channels, height, width]`, if they are images.
    pub fn images(&self) -> Option<Tensor<4>> {
        let InputShape::Image([channels, height, width]) = self.shape else { return None };
        let rows = self.inputs.dims()[0];
        Some(self.inputs.clone().reshape([rows, channels, height, width]))
    }
}

/// Makes one batch of tensors of a rank's micro-batches.
#[derive(Clone, Debug)]
pub struct TensorBatcher {
    spec: InputSpec,
}

impl TensorBatcher {
    /// One for rows that are read like this.
    pub fn new(spec: InputSpec) -> Self {
        Self { spec }
    }

    /// The rows of all micro-batches, one after the other.
    ///
    /// # Errors
    /// Names the first sample that has no usable label or input. When sparse rows are too many numbers with their
    /// zeros.
    pub fn try_batch(
        &self,
        micro_batches: &[MicroBatch],
        device: &Device,
    ) -> Result<TensorBatch, InputError> {
        if let Some(column) = self.spec.shares() {
            return Err(InputError::Shares { column: column.to_owned() });
        }
        let mut all = Samples { features: Vec::new(), labels: Vec::new() };
        for micro_batch in micro_batches.iter().filter(|micro_batch| !micro_batch.positions.is_empty()) {
            let mut samples = self.spec.read(&micro_batch.batch, &micro_batch.positions)?;
            if let InputShape::Sparse(features) = self.spec.shape() {
                samples.features = with_zeros(&samples, features)?;
            }
            if all.labels.is_empty() {
                all = samples;
            } else {
                all.features.extend(samples.features);
                all.labels.extend(samples.labels);
            }
        }
        let (answers, shape) = (all.labels.len(), self.spec.shape());
        let rows = answers / shape.answers();
        let target = |label| if label == IGNORED { IGNORED_TARGET } else { i64::from(label) };
        let targets: Vec<i64> = all.labels.into_iter().map(target).collect();
        Ok(TensorBatch {
            inputs: Tensor::from_data(TensorData::new(all.features, [rows, shape.len()]), device),
            targets: Tensor::from_data(TensorData::new(targets, [answers]), device),
            shape,
        })
    }
}

/// Sparse rows with their zeros.
fn with_zeros(sparse: &Samples, features: usize) -> Result<Vec<f32>, InputError> {
    const MOST: usize = 1 << 28;
    let rows = sparse.labels.len();
    if rows.saturating_mul(features) > MOST {
        return Err(InputError::TooWide { rows, features, most: MOST });
    }
    let mut dense = vec![0.0; rows * features];
    let present = sparse.features.len() / rows.max(1);
    for (row, dense) in sparse.features.chunks(present.max(1)).zip(dense.chunks_mut(features)) {
        let (indices, values) = row.split_at(present / 2);
        indices.iter().zip(values).for_each(|(index, value)| dense[*index as usize] += value);
    }
    Ok(dense)
}

/// Feeds a batcher of single items with the rows of micro-batches: for one that is there already.
///
/// A row becomes an item by itself, which costs more than making tensors of whole columns ([`TensorBatcher`]).
pub struct EachRow<R, B> {
    read: R,
    batcher: B,
}

impl<R, B> EachRow<R, B> {
    /// `read` makes an item of a row, given its record batch and its number there.
    pub fn new<I>(read: R, batcher: B) -> Self
    where
        R: Fn(&RecordBatch, usize) -> I,
    {
        Self { read, batcher }
    }
}

impl<I, O, R, B> Batcher<MicroBatch, O> for EachRow<R, B>
where
    R: Fn(&RecordBatch, usize) -> I + Send + Sync,
    B: Batcher<I, O>,
{
    fn batch(&self, micro_batches: Vec<MicroBatch>, device: &Device) -> O {
        let rows = micro_batches.iter().flat_map(|micro_batch| {
            (0..micro_batch.batch.num_rows()).map(|row| (self.read)(&micro_batch.batch, row))
        });
        self.batcher.batch(rows.collect(), device)
    }
}
