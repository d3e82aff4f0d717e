//! Models for rows of which most numbers are zero. Their first layer picks the weights of the features that are
//! present, and nothing else.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::module::embedding;
use burn::tensor::{Device, FloatDType, Int, Tensor};

use super::conv::{Head, before_relu};
use super::perceptron::Dense;
use crate::block::{Block, Pass};
use crate::model::Chain;
use crate::nn::{BatchNorm, Dropout};
use crate::weights::Init;

/// Rows by their present features. A feature that a row has twice counts twice; one of value 0 changes nothing.
#[derive(Clone, Debug)]
pub struct SparseRows {
    /// The features' numbers, `[rows, present]`.
    pub indices: Tensor<2, Int>,
    /// Their values, likewise.
    pub values: Tensor<2>,
}

crate::tensor_tree!(SparseRows { indices, values });

/// A linear layer with bias: rows of `features` features to logits `[rows, classes]`.
pub fn sparse_linear(
    features: usize,
    classes: usize,
    dropout: f32,
    device: &Device,
) -> Chain<SparseRows, Tensor<2>> {
    let head = SparseHead { dropout: Dropout::new(dropout), linear: linear(features, classes, true, device) };
    Chain::start(head).named("head")
}

/// Two linear layers of 64 with batch normalisation and ReLU, of which the first takes sparse rows, then one linear
/// layer: rows of `features` features to logits `[rows, classes]`. Values are not standardised first: of sparse rows
/// zero has to stay zero.
pub fn sparse_perceptron(
    features: usize,
    classes: usize,
    dropout: f32,
    device: &Device,
) -> Chain<SparseRows, Tensor<2>> {
    const WIDTH: usize = 64;
    let first =
        SparseDense { linear: linear(features, WIDTH, false, device), norm: BatchNorm::new(WIDTH, device) };
    Chain::start(first)
        .named("1")
        .then(Dense::new(WIDTH, WIDTH, device))
        .named("2")
        .then(Head::<2>::new(WIDTH, classes, dropout, device))
        .named("head")
}

fn linear(inputs: usize, outputs: usize, has_bias: bool, device: &Device) -> Linear {
    let linear = LinearConfig::new(inputs, outputs).with_bias(has_bias);
    linear.with_initializer(Initializer::Zeros).init(device)
}

/// The layer's output for sparse rows, added up in 32 bits in the order of their features.
fn forward(linear: &Linear, SparseRows { indices, values }: SparseRows) -> Tensor<2> {
    let weight = linear.weight.val();
    let ([rows, present], [_, outputs]) = (indices.dims(), weight.dims());
    let precision = FloatDType::from(weight.dtype());
    let picked: Tensor<3> = embedding(weight, indices).cast(FloatDType::F32);
    let weighted = picked * values.reshape([rows, present, 1]);
    let sum = weighted.sum_dim(1).reshape([rows, outputs]);
    let sum = match &linear.bias {
        Some(bias) => sum + bias.val().cast(FloatDType::F32).reshape([1, outputs]),
        None => sum,
    };
    sum.cast(precision)
}

/// Dropout of present features, then a linear layer.
#[derive(Module, Debug)]
struct SparseHead {
    dropout: Dropout,
    linear: Linear,
}

impl Block for SparseHead {
    type Input = SparseRows;
    type Output = Tensor<2>;

    fn forward(&self, SparseRows { indices, values }: SparseRows, pass: &mut Pass) -> Tensor<2> {
        let values = self.dropout.forward(values, pass);
        forward(&self.linear, SparseRows { indices, values })
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        path.ends_with("weight").then(|| Init::Uniform { bound: 1.0 / (shape[0] as f32).sqrt() })
    }

    fn wants_full_input(&self) -> bool {
        true
    }
}

/// Linear layer, batch normalisation, ReLU.
#[derive(Module, Debug)]
struct SparseDense {
    linear: Linear,
    norm: BatchNorm,
}

impl Block for SparseDense {
    type Input = SparseRows;
    type Output = Tensor<2>;

    fn forward(&self, input: SparseRows, pass: &mut Pass) -> Tensor<2> {
        relu(self.norm.forward(forward(&self.linear, input), pass))
    }

    fn init(&self, path: &str, shape: &[usize]) -> Option<Init> {
        before_relu(path, shape)
    }

    fn wants_full_input(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::collective::ThreadCollective;
    use crate::random::Key;
    use crate::tensor_tree::TensorTree;
    use crate::weights::Weights;
    use crate::{CrossEntropy, Optimizer, Trainer, Zero, spawn};

    const FEATURES: usize = 700;
    const STEPS: u64 = 40;

    /// Rows of up to nine features, some of them twice, and a class that a few of them decide.
    fn rows(step: u64, virtual_rank: u32) -> (Vec<Vec<(usize, f32)>>, Vec<u32>) {
        let key = Key::new(9).of(step).of(u64::from(virtual_rank));
        let row = |row: u64| {
            let draw = |at: u64| key.at(row * 64 + at);
            let present = (0..draw(0) % 10).map(|at| {
                let index = (draw(2 * at + 1) % FEATURES as u64) as usize;
                (index, (draw(2 * at + 2) % 16) as f32 / 8.0 - 0.5)
            });
            let class = u32::from(draw(63) % 2 == 1);
            present.chain([(class as usize * 3 + 1, 1.0)]).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<(usize, f32)>> = (0..8).map(row).collect();
        let classes = rows.iter().map(|row| u32::from(row.last().is_some_and(|last| last.0 > 1))).collect();
        (rows, classes)
    }

    fn sparse(rows: &[Vec<(usize, f32)>]) -> SparseRows {
        let longest = rows.iter().map(Vec::len).max().unwrap();
        let padded: Vec<(usize, f32)> = rows
            .iter()
            .flat_map(|row| row.iter().copied().chain(std::iter::repeat((0, 0.0))).take(longest))
            .collect();
        let dims = [rows.len(), longest];
        let indices: Vec<i64> = padded.iter().map(|(index, _)| *index as i64).collect();
        let values: Vec<f32> = padded.iter().map(|(_, value)| *value).collect();
        SparseRows {
            indices: Tensor::from_data(TensorData::new(indices, dims), &Device::flex()),
            values: Tensor::from_data(TensorData::new(values, dims), &Device::flex()),
        }
    }

    fn dense(rows: &[Vec<(usize, f32)>]) -> Tensor<2> {
        let mut numbers = vec![0.0; rows.len() * FEATURES];
        for (row, numbers) in rows.iter().zip(numbers.chunks_mut(FEATURES)) {
            row.iter().for_each(|(index, value)| numbers[*index] += value);
        }
        Tensor::from_data(TensorData::new(numbers, [rows.len(), FEATURES]), &Device::flex())
    }

    /// The loss of each step, and the weights.
    fn trained<Input: TensorTree>(
        world: u32,
        zero: Zero,
        model: impl Fn() -> Chain<Input, Tensor<2>> + Sync,
        of: impl Fn(&[Vec<(usize, f32)>]) -> Input + Sync,
    ) -> (Vec<f64>, Weights) {
        let ranks = spawn(world, |collective: ThreadCollective| {
            let mut trainer = Trainer::new(model(), CrossEntropy, Box::new(collective))
                .virtual_ranks(4)
                .zero(zero)
                .optimizer(Optimizer::sgd(1e-4))
                .build()
                .unwrap();
            let losses = (0..STEPS).map(|step| {
                let share = |virtual_rank| {
                    let (rows, classes) = rows(step, virtual_rank);
                    [(of(&rows), classes)]
                };
                trainer.step(0.1, share).unwrap().mean()
            });
            (losses.collect::<Vec<f64>>(), trainer.weights().unwrap())
        });
        assert!(ranks.iter().all(|rank| *rank == ranks[0]));
        ranks.into_iter().next().unwrap()
    }

    fn assert_like_the_dense<I: TensorTree>(
        sparse_model: impl Fn() -> Chain<SparseRows, Tensor<2>> + Sync,
        dense_model: impl Fn() -> Chain<I, Tensor<2>> + Sync,
        dense_rows: impl Fn(&[Vec<(usize, f32)>]) -> I + Sync,
    ) {
        let (losses, weights) = trained(1, Zero::Nothing, &sparse_model, sparse);
        assert!(losses[losses.len() - 1] < losses[0] / 4.0, "{losses:?}");
        let (expected, _) = trained(1, Zero::Nothing, dense_model, dense_rows);
        for (step, (loss, expected)) in losses.iter().zip(&expected).enumerate() {
            assert!((loss - expected).abs() < 1e-5, "step {step}: {loss}, and {expected} with zeros");
        }
        for zero in Zero::ALL {
            for world in [1, 2, 4] {
                let found = trained(world, zero, &sparse_model, sparse);
                assert_eq!(found.0, losses, "{zero:?}, W={world}");
                assert!(found.1 == weights, "{zero:?}, W={world}: weights differ");
            }
        }
    }

    #[test]
    fn a_linear_layer_learns_from_sparse_rows_as_from_the_same_rows_with_their_zeros() {
        let dense_model = || Chain::start(Head::<2>::new(FEATURES, 2, 0.0, &Device::flex())).named("head");
        assert_like_the_dense(|| sparse_linear(FEATURES, 2, 0.0, &Device::flex()), dense_model, dense);
    }

    #[test]
    fn so_does_a_perceptron() {
        let dense_model = || {
            let device = Device::flex();
            Chain::start(Dense::new(FEATURES, 64, &device))
                .named("1")
                .then(Dense::new(64, 64, &device))
                .named("2")
                .then(Head::<2>::new(64, 2, 0.0, &device))
                .named("head")
        };
        assert_like_the_dense(|| sparse_perceptron(FEATURES, 2, 0.0, &Device::flex()), dense_model, dense);
    }
}
