//! Rows as they are stored, and the two ways to make of them what a model takes: on the host, or with a quarter of the bytes on the way,
//! on the device. Both give the same bits where a device divides as IEEE 754 says.

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use shardd_store::record::Digest128;

use super::Augmentation;
use super::augment::{Move, apply};
use super::sparse::SparseValues;
use crate::loss::largest;
use crate::models::{InputShape, PackedTokens, SparseRows};
use crate::tensor_tree::{Part, parts_of};

/// Rows as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// One row of [`InputSpec::shape`](super::InputSpec::shape) after the other; tokens are whole numbers, which are exact up to 2^24.
    /// Of a sparse row: its indices, which are exact likewise, then as many values; all rows are as long as the
    /// longest. Of tokens of documents: the tokens of a row, then of each the place of the first one to which it attends.
    pub features: Vec<f32>,
    /// The class of each; of tokens, what follows each of them; [`IGNORED`](crate::loss::IGNORED) behind the end of a document.
    pub labels: Vec<u32>,
}

/// Rows as they are stored, and their transformation.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSamples {
    values: Values,
    labels: Vec<u32>,
    /// Of mixed samples, the share of each class in each.
    shares: Option<Vec<f32>>,
    shape: InputShape,
    /// By image; none if nothing is done to any.
    moves: Vec<Move>,
}

/// The values of rows, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    /// In the order of the shape; `max` becomes 1.
    Bytes { values: Vec<u8>, max: f32 },
    /// Pixel by pixel, red, green and blue; 255 becomes 1.
    Pixels(Vec<u8>),
    /// In the order of the shape; `max` becomes 1.
    Floats { values: Vec<f32>, max: f32 },
    /// Numbers of tokens.
    Tokens(Vec<i32>),
    /// Numbers of tokens, and of each the place of the first to which it attends.
    Packed { tokens: Vec<i32>, begins: Vec<i32> },
    /// The present features of sparse rows.
    Sparse(SparseValues),
}

/// The largest byte of a decoded image.
const BRIGHTEST: f32 = 255.0;

impl StoredSamples {
    pub(super) fn new(values: Values, labels: Vec<u32>, shape: InputShape) -> StoredSamples {
        StoredSamples { values, labels, shares: None, shape, moves: Vec::new() }
    }

    /// Samples that have shares of several classes, row by row; their labels are the classes of the largest shares.
    pub(super) fn mixed(
        values: Values,
        shares: Vec<f32>,
        classes: usize,
        shape: InputShape,
    ) -> StoredSamples {
        let labels = shares.chunks_exact(classes).map(|shares| largest(shares) as u32).collect();
        StoredSamples { shares: Some(shares), ..StoredSamples::new(values, labels, shape) }
    }

    /// Takes the share of each class in each sample, where samples are mixed.
    pub fn take_shares(&mut self) -> Option<Vec<f32>> {
        self.shares.take()
    }

    /// The class of each sample; of tokens, what follows each of them.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The model's inputs and targets: values, their transformation, and labels.
    pub fn digest(&self) -> Digest128 {
        let mut hasher = blake3::Hasher::new();
        let (kind, bytes, max): (u8, &[u8], f32) = match &self.values {
            Values::Bytes { values, max } => (0, values, *max),
            Values::Pixels(values) => (1, values, BRIGHTEST),
            Values::Floats { values, max } => (2, bytemuck::cast_slice(values), *max),
            Values::Tokens(values) => (3, bytemuck::cast_slice(values), 1.0),
            Values::Sparse(sparse) => (4, bytemuck::cast_slice(&sparse.values), 1.0),
            Values::Packed { tokens, .. } => (5, bytemuck::cast_slice(tokens), 1.0),
        };
        hasher.update(&[kind]).update(&max.to_le_bytes());
        // Lengths keep what follows each other apart.
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        if let Values::Sparse(SparseValues { indices, longest, .. }) = &self.values {
            hasher.update(&(*longest as u64).to_le_bytes()).update(bytemuck::cast_slice(indices));
        }
        if let Values::Packed { begins, .. } = &self.values {
            hasher.update(bytemuck::cast_slice(begins));
        }
        hasher.update(&(self.labels.len() as u64).to_le_bytes()).update(bytemuck::cast_slice(&self.labels));
        hasher.update(bytemuck::cast_slice(self.shares.as_deref().unwrap_or_default()));
        for change in &self.moves {
            hasher.update(&change.to_bytes());
        }
        Digest128::of(&hasher)
    }

    /// Images changed for an epoch, at these positions of its order; others as they are.
    ///
    /// # Panics
    /// If there is not a position for every image.
    #[must_use]
    pub fn augmented(self, by: Augmentation, seed: u64, epoch: u32, positions: &[u64]) -> StoredSamples {
        let InputShape::Image(shape) = self.shape else { return self };
        assert_eq!(positions.len(), self.labels.len(), "a position for every image");
        StoredSamples { moves: by.moves(shape, seed, epoch, positions), ..self }
    }

    /// Bytes that go to a device.
    pub fn bytes(&self) -> usize {
        match &self.values {
            Values::Bytes { values, .. } | Values::Pixels(values) => values.len(),
            Values::Floats { values, .. } => size_of_val(&values[..]),
            Values::Tokens(values) => size_of_val(&values[..]),
            Values::Packed { tokens, begins } => size_of_val(&tokens[..]) + size_of_val(&begins[..]),
            Values::Sparse(sparse) => size_of_val(&sparse.indices[..]) + size_of_val(&sparse.values[..]),
        }
    }

    /// As numbers, made here.
    pub fn on_host(self) -> Samples {
        let StoredSamples { values, labels, shape, moves, .. } = self;
        let mut features: Vec<f32> = match values {
            Values::Bytes { values, max } => values.into_iter().map(|value| f32::from(value) / max).collect(),
            Values::Pixels(values) => channels_first(&values, shape.len()),
            Values::Floats { mut values, max } => {
                values.iter_mut().for_each(|value| *value /= max);
                values
            }
            Values::Tokens(values) => values.into_iter().map(|token| token as f32).collect(),
            Values::Packed { tokens, begins } => {
                let length = shape.answers();
                let rows = tokens.chunks_exact(length).zip(begins.chunks_exact(length));
                let row = |(tokens, begins): (&[i32], &[i32])| [tokens, begins].concat();
                rows.flat_map(row).map(|number| number as f32).collect()
            }
            Values::Sparse(sparse) => sparse.into_features(),
        };
        if let InputShape::Image(shape) = shape
            && !moves.is_empty()
        {
            apply(&moves, &mut features, shape);
        }
        Samples { features, labels }
    }

    /// The input of a model's first block, made on the device from stored values; and the labels.
    pub fn on_device(self, device: &Device) -> (Vec<Part>, Vec<u32>) {
        let StoredSamples { values, labels, shape, moves, .. } = self;
        let rows = labels.len() / shape.answers();
        let dims = shape.rows(rows);
        let features = match values {
            Values::Bytes { values, max } => bytes_there(values, device).div_scalar(max),
            Values::Pixels(values) => {
                let [height, width] = [dims[2], dims[3]];
                let pixels = bytes_there(values, device).reshape([rows, height, width, 3]);
                let planes: Tensor<4> = pixels.permute([0, 3, 1, 2]);
                planes.reshape([rows * shape.len()]).div_scalar(BRIGHTEST)
            }
            Values::Floats { values, max } => {
                let count = [values.len()];
                Tensor::from_data(TensorData::new(values, count), (device, DType::F32)).div_scalar(max)
            }
            Values::Tokens(values) => {
                let count = [values.len()];
                let tokens =
                    Tensor::<1, Int>::from_data(TensorData::new(values, count), (device, DType::I32));
                return (parts_of(tokens.reshape([rows, shape.len()])), labels);
            }
            Values::Packed { tokens, begins } => {
                let there = |numbers: Vec<i32>| {
                    let count = [numbers.len()];
                    let numbers =
                        Tensor::<1, Int>::from_data(TensorData::new(numbers, count), (device, DType::I32));
                    numbers.reshape([rows, shape.answers()])
                };
                return (parts_of(PackedTokens { tokens: there(tokens), begins: there(begins) }), labels);
            }
            Values::Sparse(SparseValues { indices, values, longest }) => {
                let (count, dims) = ([values.len()], [rows, longest]);
                let indices =
                    Tensor::<1, Int>::from_data(TensorData::new(indices, count), (device, DType::I32));
                let values = Tensor::<1>::from_data(TensorData::new(values, count), (device, DType::F32));
                let sparse = SparseRows { indices: indices.reshape(dims), values: values.reshape(dims) };
                return (parts_of(sparse), labels);
            }
        };
        let parts = match shape {
            InputShape::Image([channels, height, width]) => {
                let images = features.reshape([rows, channels, height, width]);
                parts_of(if moves.is_empty() { images } else { moved(images, &moves) })
            }
            _ => parts_of(features.reshape([rows, shape.len()])),
        };
        (parts, labels)
    }
}

/// Bytes as numbers on a device. Where a device has none, four travel in a word, and are parted there.
fn bytes_there(mut values: Vec<u8>, device: &Device) -> Tensor<1> {
    let count = values.len();
    if device.supports_dtype(DType::U8) {
        let stored = Tensor::<1, Int>::from_data(TensorData::new(values, [count]), (device, DType::U8));
        return stored.cast(FloatDType::F32);
    }
    values.resize(count.next_multiple_of(4), 0);
    let words: Vec<i32> = bytemuck::pod_collect_to_vec(&values);
    parted(words, device).slice(0..count).cast(FloatDType::F32)
}

/// The bytes of words, the lowest of each first.
fn parted(words: Vec<i32>, device: &Device) -> Tensor<1, Int> {
    let count = words.len();
    let words = Tensor::<1, Int>::from_data(TensorData::new(words, [count]), (device, DType::I32));
    let words = words.reshape([count, 1]);
    let byte = |place| words.clone().bitwise_right_shift_scalar(8 * place).bitwise_and_scalar(255);
    Tensor::cat((0..4).map(byte).collect(), 1).reshape([4 * count])
}

/// All of a channel before the next one, image by image.
fn channels_first(pixels: &[u8], size: usize) -> Vec<f32> {
    let mut planes = Vec::with_capacity(pixels.len());
    for image in pixels.chunks_exact(size.max(1)) {
        for channel in 0..3 {
            let plane = image[channel..].iter().step_by(3);
            planes.extend(plane.map(|&value| f32::from(value) / BRIGHTEST));
        }
    }
    planes
}

/// Each image moved. A row and a column of zeros are added, from which comes what lies outside; then rows are picked, then columns.
fn moved(images: Tensor<4>, moves: &[Move]) -> Tensor<4> {
    let ([rows, channels, height, width], device) = (images.dims(), images.device());
    let picked = |places: Vec<i32>, shape: [usize; 4]| {
        let count = [places.len()];
        Tensor::<1, Int>::from_data(TensorData::new(places, count), (&device, DType::I32)).reshape(shape)
    };
    let below = Tensor::zeros([rows, channels, 1, width], &device);
    let images = Tensor::cat(vec![images, below], 2);
    let from_rows = picked(moves.iter().flat_map(|it| it.rows(height)).collect(), [rows, 1, height, 1]);
    let images = images.gather(2, from_rows.expand([rows, channels, height, width]));
    let beside = Tensor::zeros([rows, channels, height, 1], &device);
    let images = Tensor::cat(vec![images, beside], 3);
    let from_columns = picked(moves.iter().flat_map(|it| it.columns(width)).collect(), [rows, 1, 1, width]);
    images.gather(3, from_columns.expand([rows, channels, height, width]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `rows` samples of any kind of input, with anything in them.
    fn stored(kind: usize, rows: usize, shape: [usize; 3], max: f32, seed: u64) -> StoredSamples {
        let byte = |at: usize| (crate::random::Key::new(seed).at(at as u64) & 255) as u8;
        let size: usize = shape.iter().product();
        let pixels = || (0..rows * size).map(byte);
        let image = InputShape::Image(shape);
        let (values, shape) = match kind {
            0 => (Values::Bytes { values: pixels().collect(), max }, image),
            1 => {
                let shape = [3, shape[1], shape[2]];
                let count = rows * shape.iter().product::<usize>();
                (Values::Pixels((0..count).map(byte).collect()), InputShape::Image(shape))
            }
            2 => (
                Values::Floats { values: pixels().map(|byte| f32::from(byte) * 0.37 - 9.0).collect(), max },
                image,
            ),
            3 => {
                let values = pixels().map(f32::from).collect();
                (Values::Floats { values, max: 1.0 }, InputShape::Features(size))
            }
            4 => (Values::Tokens(pixels().map(i32::from).collect()), InputShape::Tokens(size)),
            5 => {
                let tokens = pixels().map(i32::from).collect();
                let begins = pixels().map(|byte| i32::from(byte) % size as i32).collect();
                (Values::Packed { tokens, begins }, InputShape::PackedTokens(size))
            }
            _ => {
                let indices = pixels().map(i32::from).collect();
                let values = pixels().map(|byte| f32::from(byte) * 0.37 - 9.0).collect();
                (Values::Sparse(SparseValues { indices, values, longest: size }), InputShape::Sparse(256))
            }
        };
        StoredSamples::new(values, vec![0; rows * shape.answers()], shape)
    }

    fn bits(part: &Part) -> Vec<u32> {
        let numbers = match part.float() {
            Some(tensor) => tensor.to_data().try_into_vec::<f32>().unwrap(),
            None => {
                let tokens: Tensor<2, Int> = crate::tensor_tree::from_parts(vec![part.clone()]);
                tokens.into_data().try_into_vec_as::<f32>().unwrap()
            }
        };
        numbers.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn words_are_parted_into_their_bytes() {
        let bytes: Vec<u8> = (0..=255).collect();
        let words: Vec<i32> = bytemuck::pod_collect_to_vec(&bytes);
        let parted = parted(words, &Device::flex()).into_data().try_into_vec_as::<i32>().unwrap();
        assert!(parted.into_iter().eq(0..256));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_device_makes_the_same_bits_of_what_is_stored_as_the_host(
            kind in 0usize..7, rows in 1usize..5, channels in 1usize..4, height in 1usize..20, width in 1usize..20,
            max in prop::sample::select(vec![255.0f32, 16.0, 1.0, 3.7]), seed: u64, epoch in 0u32..9, augments: bool,
        ) {
            let by = if augments { Augmentation::CropFlip } else { Augmentation::None };
            let positions: Vec<u64> = (0..rows as u64).map(|row| row * 7 + seed % 1000).collect();
            let stored = stored(kind, rows, [channels, height, width], max, seed);
            let stored = stored.augmented(by, seed, epoch, &positions);
            let shape = stored.shape;
            let host = stored.clone().on_host();
            let (there, labels) = stored.on_device(&Device::flex());
            let here = shape.parts(host.features, rows, &Device::flex());
            prop_assert_eq!(here.len(), there.len());
            for (here, there) in here.iter().zip(&there) {
                prop_assert_eq!(here.shape(), there.shape());
                prop_assert_eq!(bits(here), bits(there));
            }
            prop_assert_eq!(labels, host.labels);
        }
    }

    #[test]
    fn a_byte_travels_as_a_byte() {
        let images = stored(0, 4, [1, 8, 8], 255.0, 1);
        assert_eq!(images.bytes(), 4 * 64);
        assert_eq!(stored(4, 2, [1, 1, 5], 1.0, 1).bytes(), 2 * 5 * 4);
    }
}
