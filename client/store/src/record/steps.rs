//! The steps table of a record as bytes: Arrow IPC files, one row for each step. Pure.
//!
//! A part is written and read as a [`Shard`](shardfmt::Shard): the same rows are the same bytes on every machine, and a file from elsewhere
//! is checked before Arrow's decoder sees it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array,
    Float64Array, PrimitiveArray, RecordBatch, UInt32Array, UInt64Array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float32Type, Float64Type, Schema, UInt32Type, UInt64Type,
};
use bytes::Bytes;
use shardfmt::{Digest, Shard, ShardWriter};

use super::RecordError;

/// The number of steps in a part of the table; the last one may have fewer.
pub const STEPS_PER_PART: u64 = 1024;

/// The format of a part, which its schema says.
const FORMAT: u32 = 1;
const FORMAT_KEY: &str = "shardd.steps";

/// The first 128 bits of a BLAKE3 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest128(pub [u8; 16]);

impl Digest128 {
    /// Of the hashed bytes.
    pub fn of(hasher: &blake3::Hasher) -> Digest128 {
        let mut first = [0; 16];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Digest128(first)
    }
}

impl fmt::Display for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// How many steps of the training came before it.
    pub step: u64,
    /// Its epoch.
    pub epoch: u32,
    /// The learning rate.
    pub rate: f32,
    /// Answers that the loss is of: samples, or tokens of sequences.
    pub samples: u64,
    /// The sum of their losses.
    pub loss: f64,
    /// How many were right.
    pub correct: u64,
    /// The length of the gradient of the mean loss before it was clipped.
    pub gradient_norm: f64,
    /// The step was bad, and changed nothing.
    pub is_skipped: bool,
    /// The weights after it, in steps with digests.
    pub weights: Option<Digest>,
    /// By virtual rank.
    pub shares: Vec<ShareRow>,
}

impl StepRow {
    /// The loss of an answer, on average.
    pub fn mean(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Names its bits: the same for the same step in every record.
    pub fn digest(&self) -> Digest {
        let mut bytes = Vec::from(b"shardd.step.1");
        let numbers = [
            self.step,
            u64::from(self.epoch),
            u64::from(self.rate.to_bits()),
            self.samples,
            self.loss.to_bits(),
            self.correct,
            self.gradient_norm.to_bits(),
            u64::from(self.is_skipped),
        ];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        let digest = |bytes: &mut Vec<u8>, digest: Option<&[u8]>| {
            bytes.push(u8::from(digest.is_some()));
            bytes.extend(digest.unwrap_or_default());
        };
        digest(&mut bytes, self.weights.as_ref().map(|weights| &weights.0[..]));
        for share in &self.shares {
            let numbers = [share.samples, share.loss.to_bits(), share.correct];
            numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            digest(&mut bytes, share.input.as_ref().map(|input| &input.0[..]));
            digest(&mut bytes, share.gradient.as_ref().map(|gradient| &gradient.0[..]));
        }
        Digest::of(&bytes)
    }
}

/// A virtual rank's part in a step.
#[derive(Clone, Debug)]
pub struct ShareRow {
    /// Answers of its micro-batch.
    pub samples: u64,
    /// The sum of their losses.
    pub loss: f64,
    /// How many were right.
    pub correct: u64,
    /// The model's inputs and targets: numbers after decoding and augmentation, and labels. In steps with
    /// digests.
    pub input: Option<Digest128>,
    /// The gradient of the sum of its losses, before it met that of any other. In steps with digests.
    pub gradient: Option<Digest128>,
}

/// The file of these steps, all of which have as many shares.
///
/// # Panics
/// If there are none, or they have different numbers of shares.
pub fn encode_part(rows: &[StepRow]) -> Bytes {
    let width = rows.first().expect("a part has steps").shares.len();
    assert!(rows.iter().all(|row| row.shares.len() == width), "every step has V shares");
    let batch = batch_of(rows, width);
    let write = || {
        let mut writer = ShardWriter::new(batch.schema())?;
        writer.push(&batch)?;
        writer.finish()
    };
    write().expect("numbers and digests fit into a shard").bytes
}

fn schema(virtual_ranks: usize) -> Schema {
    let (fixed, size) = (DataType::FixedSizeBinary, virtual_ranks as i32);
    let by_rank = |name: &str, of: DataType| {
        let item = Arc::new(Field::new("item", of, false));
        Field::new(name, DataType::FixedSizeList(item, size), false)
    };
    let fields = vec![
        Field::new("step", DataType::UInt64, false),
        Field::new("epoch", DataType::UInt32, false),
        Field::new("rate", DataType::Float32, false),
        Field::new("samples", DataType::UInt64, false),
        Field::new("loss_sum", DataType::Float64, false),
        Field::new("correct", DataType::UInt64, false),
        Field::new("gradient_norm", DataType::Float64, false),
        Field::new("skipped", DataType::Boolean, false),
        Field::new("weights", fixed(32), true),
        by_rank("rank_samples", DataType::UInt64),
        by_rank("rank_loss_sum", DataType::Float64),
        by_rank("rank_correct", DataType::UInt64),
        by_rank("rank_input", fixed(16)).with_nullable(true),
        by_rank("rank_gradient", fixed(16)).with_nullable(true),
    ];
    Schema::new_with_metadata(fields, [(FORMAT_KEY.to_owned(), FORMAT.to_string())])
}

fn batch_of(rows: &[StepRow], width: usize) -> RecordBatch {
    let schema = Arc::new(schema(width));
    let shares = || rows.iter().flat_map(|row| &row.shares);
    let by_rank = |values: ArrayRef, nulls: Option<NullBuffer>| -> ArrayRef {
        let item = Arc::new(Field::new("item", values.data_type().clone(), false));
        Arc::new(FixedSizeListArray::new(item, width as i32, values, nulls))
    };
    let digests = |of: fn(&ShareRow) -> Option<Digest128>| -> ArrayRef {
        let mut bytes = Vec::with_capacity(rows.len() * width * 16);
        shares().for_each(|share| bytes.extend(of(share).unwrap_or(Digest128([0; 16])).0));
        let are_there = |row: &StepRow| row.shares.iter().all(|share| of(share).is_some());
        let nulls: NullBuffer = rows.iter().map(are_there).collect();
        by_rank(Arc::new(FixedSizeBinaryArray::new(16, Buffer::from_vec(bytes), None)), Some(nulls))
    };
    let weights: Vec<u8> =
        rows.iter().flat_map(|row| row.weights.map_or([0; 32], |digest| digest.0)).collect();
    let has_weights: NullBuffer = rows.iter().map(|row| row.weights.is_some()).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.step))),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.epoch))),
        Arc::new(Float32Array::from_iter_values(rows.iter().map(|row| row.rate))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.samples))),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.loss))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.correct))),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.gradient_norm))),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|row| Some(row.is_skipped)))),
        Arc::new(FixedSizeBinaryArray::new(32, Buffer::from_vec(weights), Some(has_weights))),
        by_rank(Arc::new(UInt64Array::from_iter_values(shares().map(|share| share.samples))), None),
        by_rank(Arc::new(Float64Array::from_iter_values(shares().map(|share| share.loss))), None),
        by_rank(Arc::new(UInt64Array::from_iter_values(shares().map(|share| share.correct))), None),
        digests(|share| share.input),
        digests(|share| share.gradient),
    ];
    RecordBatch::try_new(schema, columns).expect("columns are those of the schema")
}

/// The rows of a part, which has these steps of a training with this number of virtual ranks.
///
/// # Errors
/// [`RecordError::Damaged`] when it is not that, [`RecordError::TooNew`] when it has a later format; `what` is what people call it.
pub fn decode_part(
    bytes: Bytes,
    what: &str,
    steps: Range<u64>,
    virtual_ranks: u32,
) -> Result<Vec<StepRow>, RecordError> {
    let damaged = |reason: String| RecordError::Damaged { what: what.to_owned(), reason };
    let part = Shard::from_bytes(bytes).map_err(|error| damaged(said(&error)))?;
    let expected = schema(virtual_ranks as usize);
    check_format(part.schema(), FORMAT_KEY, FORMAT, what)?;
    let types = |schema: &Schema| -> Vec<(String, DataType)> {
        schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
    };
    if types(part.schema()) != types(&expected) {
        return Err(damaged(format!("it has other columns than the steps of {virtual_ranks} virtual ranks")));
    }
    let mut rows = Vec::new();
    for batch in part.record_batches() {
        read_batch(batch, virtual_ranks as usize, &mut rows);
    }
    if !rows.iter().map(|row| row.step).eq(steps.clone()) {
        return Err(damaged(format!("it does not tell steps {} to {}", steps.start, steps.end)));
    }
    Ok(rows)
}

/// Checks that a file has format `known`, which its schema says under `key`.
///
/// # Errors
/// [`RecordError::TooNew`] for a later one, [`RecordError::Damaged`] for none.
pub(super) fn check_format(schema: &Schema, key: &str, known: u32, what: &str) -> Result<(), RecordError> {
    let found: Option<u64> = schema.metadata().get(key).and_then(|format| format.parse().ok());
    match found {
        Some(found) if found == u64::from(known) => Ok(()),
        Some(found) if found > u64::from(known) => {
            Err(RecordError::TooNew { what: what.to_owned(), found, known })
        }
        _ => {
            let reason = format!("its schema does not have format {known} under {key}");
            Err(RecordError::Damaged { what: what.to_owned(), reason })
        }
    }
}

/// An error with its causes.
pub(super) fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Appends the rows of a batch of the schema.
fn read_batch(batch: &RecordBatch, width: usize, rows: &mut Vec<StepRow>) {
    let column = |name: &str| batch.column_by_name(name).expect("the schema was compared");
    let numbers = |name: &str| column(name).as_primitive::<UInt64Type>().clone();
    let exact = |name: &str| column(name).as_primitive::<Float64Type>().clone();
    let epochs = column("epoch").as_primitive::<UInt32Type>();
    let rates = column("rate").as_primitive::<Float32Type>();
    let (steps, samples, correct) = (numbers("step"), numbers("samples"), numbers("correct"));
    let (losses, norms) = (exact("loss_sum"), exact("gradient_norm"));
    let (skipped, weights) = (column("skipped").as_boolean(), column("weights").as_fixed_size_binary());
    let rank_samples = ByRank::<UInt64Type>::of(column("rank_samples"));
    let rank_losses = ByRank::<Float64Type>::of(column("rank_loss_sum"));
    let rank_correct = ByRank::<UInt64Type>::of(column("rank_correct"));
    let (inputs, gradients) =
        (column("rank_input").as_fixed_size_list(), column("rank_gradient").as_fixed_size_list());
    let digest = |list: &FixedSizeListArray, row: usize, rank: usize| -> Option<Digest128> {
        let place = list.value_offset_at(row) + rank;
        let found = || list.values().as_fixed_size_binary().value(place).try_into().ok();
        (!list.is_null(row)).then(found).flatten().map(Digest128)
    };
    for row in 0..batch.num_rows() {
        let share = |rank: usize| ShareRow {
            samples: rank_samples.at(row, rank),
            loss: rank_losses.at(row, rank),
            correct: rank_correct.at(row, rank),
            input: digest(inputs, row, rank),
            gradient: digest(gradients, row, rank),
        };
        let hash = || weights.value(row).try_into().ok().map(Digest);
        rows.push(StepRow {
            step: steps.value(row),
            epoch: epochs.value(row),
            rate: rates.value(row),
            samples: samples.value(row),
            loss: losses.value(row),
            correct: correct.value(row),
            gradient_norm: norms.value(row),
            is_skipped: skipped.value(row),
            weights: (!weights.is_null(row)).then(hash).flatten(),
            shares: (0..width).map(share).collect(),
        });
    }
}

/// Numbers by row and virtual rank.
struct ByRank<T: ArrowPrimitiveType> {
    list: FixedSizeListArray,
    values: PrimitiveArray<T>,
}

impl<T: ArrowPrimitiveType> ByRank<T> {
    fn of(column: &ArrayRef) -> ByRank<T> {
        let list = column.as_fixed_size_list().clone();
        ByRank { values: list.values().as_primitive::<T>().clone(), list }
    }

    fn at(&self, row: usize, rank: usize) -> T::Native {
        self.values.value(self.list.value_offset_at(row) + rank)
    }
}
