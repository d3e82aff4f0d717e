//! Data and sources for tests, here and in other crates: no files, no nodes, everything from a seed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use shardd_client::loader::Delivered;
use shardfmt::RowDigest;

use crate::reduce::VirtualRanks;
use crate::source::{Audit, MicroBatch, SourceError, Step, StepSource};

/// A few numbers from a seed, the same everywhere.
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// `count` images of 8x8 with values 0 to 16 and ten classes: a class is a pattern, a sample its pattern with noise.
pub fn digits_like(count: usize, seed: u64) -> (Vec<f32>, Vec<u32>) {
    let mut numbers = Numbers(seed);
    let mut features = Vec::with_capacity(count * 64);
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let label = numbers.below(10);
        let mut pattern = Numbers(label + 1);
        let pixel = |_| {
            let base = if pattern.below(2) == 1 { 12 } else { 2 };
            (base + numbers.below(5)) as f32
        };
        features.extend((0..64).map(pixel));
        labels.push(label as u32);
    }
    (features, labels)
}

/// [`digits_like`] as rows with the schema of the demo's digits.
pub fn digits_like_rows(count: usize, seed: u64) -> RecordBatch {
    let (features, labels) = digits_like(count, seed);
    let pixels = UInt8Array::from_iter_values(features.iter().map(|&value| value as u8));
    tensor_rows(pixels, &[1, 8, 8], 10, labels.iter().map(|&label| i64::from(label)).collect())
}

/// `count` coloured images of `side` x `side`, two classes that differ in their pattern.
pub fn pattern_images(count: usize, side: usize, seed: u64) -> RecordBatch {
    patterns(count, &[3, side, side], seed)
}

/// `count` vectors of `width` numbers, two classes that differ in their pattern.
pub fn pattern_vectors(count: usize, width: usize, seed: u64) -> RecordBatch {
    patterns(count, &[width], seed)
}

fn patterns(count: usize, shape: &[usize], seed: u64) -> RecordBatch {
    let mut numbers = Numbers(seed);
    let labels: Vec<i64> = (0..count).map(|_| numbers.below(2) as i64).collect();
    let width: usize = shape.iter().product();
    let mut values = Vec::with_capacity(count * width);
    for &label in &labels {
        for at in 0..width {
            let bright = (at / (4 + label as usize)).is_multiple_of(2);
            values.push(if bright { 120 } else { 20 } + numbers.below(100) as u8);
        }
    }
    tensor_rows(UInt8Array::from(values), shape, 2, labels)
}

fn tensor_rows(pixels: UInt8Array, shape: &[usize], classes: usize, labels: Vec<i64>) -> RecordBatch {
    let item = Arc::new(Field::new("item", DataType::UInt8, true));
    let width = shape.iter().product::<usize>() as i32;
    let images = FixedSizeListArray::new(Arc::clone(&item), width, Arc::new(pixels), None);
    let tensor = HashMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), serde_json::json!({ "shape": shape }).to_string()),
    ]);
    let names: Vec<String> = (0..classes).map(|class| class.to_string()).collect();
    let classes = HashMap::from([("shardd.classes".to_owned(), serde_json::json!(names).to_string())]);
    let schema = Schema::new(vec![
        Field::new("image", DataType::FixedSizeList(item, width), false).with_metadata(tensor),
        Field::new("label", DataType::Int64, false).with_metadata(classes),
    ]);
    let labels: ArrayRef = Arc::new(Int64Array::from(labels));
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(images), labels])
        .expect("columns match their schema")
}

/// Rows in memory as a source of steps: epochs in a seeded order, position p of a step for virtual rank p mod V.
#[derive(Debug)]
pub struct MemorySteps {
    rows: RecordBatch,
    seed: u64,
    ranks: VirtualRanks,
    rank: u32,
    batch_size: u64,
    epochs: u32,
    epoch: u32,
    step: u64,
    counts: bool,
}

impl MemorySteps {
    /// All steps of `epochs` epochs over `rows`, for `rank`; `batch_size` is a virtual rank's micro-batch.
    pub fn new(
        rows: RecordBatch,
        ranks: VirtualRanks,
        rank: u32,
        batch_size: u64,
        epochs: u32,
    ) -> MemorySteps {
        MemorySteps { rows, seed: 0, ranks, rank, batch_size, epochs, epoch: 0, step: 0, counts: false }
    }

    /// The same, from a position of an epoch on, which is where a step begins.
    #[must_use]
    pub fn from(mut self, (epoch, position): (u32, u64)) -> MemorySteps {
        let step = position / (self.batch_size * u64::from(self.ranks.count));
        (self.epoch, self.step) = (epoch, step);
        self
    }

    /// The same, with an account of the given samples: the digest of a row is that of its number.
    #[must_use]
    pub fn counted(self) -> MemorySteps {
        MemorySteps { counts: true, ..self }
    }

    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.rows.num_rows() as u32).collect();
        let mut numbers = Numbers(self.seed ^ u64::from(self.epoch) << 32);
        for last in (1..order.len()).rev() {
            order.swap(last, numbers.below(last as u64 + 1) as usize);
        }
        order
    }
}

impl StepSource for MemorySteps {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn name(&self) -> String {
        let (rows, size) = (self.rows.num_rows(), self.batch_size * u64::from(self.ranks.count));
        format!("{rows} rows in memory, in steps of {size}")
    }

    fn steps_per_epoch(&self) -> u64 {
        (self.rows.num_rows() as u64).div_ceil(self.batch_size * u64::from(self.ranks.count))
    }

    fn next_step(&mut self) -> Result<Option<Step>, SourceError> {
        if self.step == self.steps_per_epoch() {
            (self.epoch, self.step) = (self.epoch + 1, 0);
        }
        if self.epoch >= self.epochs {
            return Ok(None);
        }
        let (count, order) = (u64::from(self.ranks.count), self.order());
        let start = self.step * self.batch_size * count;
        let end = (start + self.batch_size * count).min(order.len() as u64);
        let micro_batch = |virtual_rank: u32| -> Result<MicroBatch, SourceError> {
            let mine = |position: &u64| (position - start) % count == u64::from(virtual_rank);
            let positions: Vec<u64> = (start..end).filter(mine).collect();
            let rows = positions.iter().map(|&position| u64::from(order[position as usize]));
            let rows = arrow::compute::take_record_batch(
                &self.rows,
                &arrow::array::UInt64Array::from_iter_values(rows),
            )?;
            Ok(MicroBatch { virtual_rank, positions, rows })
        };
        let micro_batches =
            self.ranks.of(self.rank).map(micro_batch).collect::<Result<Vec<_>, SourceError>>()?;
        let delivered = |micro_batch: &MicroBatch| Delivered {
            samples: micro_batch.positions.len() as u64,
            digest_sum: (micro_batch.positions.iter())
                .map(|position| RowDigest::of(&order[*position as usize].to_le_bytes()))
                .sum(),
        };
        let delivered = if self.counts { micro_batches.iter().map(delivered).collect() } else { Vec::new() };
        let next = if end == order.len() as u64 { (self.epoch + 1, 0) } else { (self.epoch, end) };
        let (epoch, global_samples, start) = (self.epoch, end - start, (self.epoch, start));
        let step = Step { epoch, step: self.step, global_samples, start, next, micro_batches, delivered };
        self.step += 1;
        Ok(Some(step))
    }

    fn audits(&self) -> Vec<Audit> {
        Vec::new()
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}
