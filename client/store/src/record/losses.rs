//! The losses of the samples of a step, which `shardtrain rerun --save` keeps beside the record: an Arrow IPC file of one row for each
//! sample, in the order of positions. Pure.
//!
//! It is written and read as a [`Shard`], as the parts of the steps table are.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, UInt32Type, UInt64Type};
use bytes::Bytes;
use shardfmt::{Shard, ShardWriter};

use super::RecordError;
use super::steps::{check_format, said};

/// The format of a file of losses, which its schema says beside the step.
const FORMAT: u32 = 1;
const FORMAT_KEY: &str = "shardd.losses";
const STEP_KEY: &str = "shardd.step";

/// The loss of a sample in a step: after augmentation, and by the weights before the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleLoss {
    /// Its number in the order of the dataset.
    pub sample: u64,
    /// Its position in the epoch.
    pub position: u64,
    /// The virtual rank that read it.
    pub virtual_rank: u32,
    /// The mean loss of its answers.
    pub loss: f64,
    /// One; of sequences, tokens that have a next one in their document.
    pub answers: u64,
}

fn schema(step: u64) -> Schema {
    let number = |name: &str, of: DataType| Field::new(name, of, false);
    let fields = vec![
        number("sample", DataType::UInt64),
        number("position", DataType::UInt64),
        number("virtual_rank", DataType::UInt32),
        number("loss", DataType::Float64),
        number("answers", DataType::UInt64),
    ];
    let known = [(FORMAT_KEY, FORMAT.to_string()), (STEP_KEY, step.to_string())];
    Schema::new_with_metadata(fields, known)
}

/// The file of a step's losses: the same for the same losses in any order.
///
/// # Errors
/// [`RecordError::Unfit`] when there are none, or more than a file takes; `what` is the name of the file for people.
pub fn encode_losses(what: &str, step: u64, losses: &[SampleLoss]) -> Result<Bytes, RecordError> {
    let mut losses = losses.to_vec();
    losses.sort_by_key(|loss| (loss.position, loss.sample));
    let of = |number: fn(&SampleLoss) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(losses.iter().map(number)))
    };
    let columns: Vec<ArrayRef> = vec![
        of(|loss| loss.sample),
        of(|loss| loss.position),
        Arc::new(UInt32Array::from_iter_values(losses.iter().map(|loss| loss.virtual_rank))),
        Arc::new(Float64Array::from_iter_values(losses.iter().map(|loss| loss.loss))),
        of(|loss| loss.answers),
    ];
    let batch =
        RecordBatch::try_new(Arc::new(schema(step)), columns).expect("columns are those of the schema");
    let write = || {
        let mut writer = ShardWriter::new(batch.schema())?;
        writer.push(&batch)?;
        writer.finish()
    };
    let unfit = |reason: String| RecordError::Unfit { what: what.to_owned(), reason };
    write().map(|file| file.bytes).map_err(|error| unfit(said(&error)))
}

/// The losses in a file, in the order of positions.
///
/// # Errors
/// [`RecordError::Damaged`] when it does not have those of this step, [`RecordError::TooNew`] when it has a later format; `what` is the name of the file for people.
pub fn decode_losses(bytes: Bytes, what: &str, step: u64) -> Result<Vec<SampleLoss>, RecordError> {
    let damaged = |reason: String| RecordError::Damaged { what: what.to_owned(), reason };
    let file = Shard::from_bytes(bytes).map_err(|error| damaged(said(&error)))?;
    let (found, expected) = (file.schema(), schema(step));
    check_format(found, FORMAT_KEY, FORMAT, what)?;
    if found.fields() != expected.fields()
        || found.metadata().get(STEP_KEY) != expected.metadata().get(STEP_KEY)
    {
        return Err(damaged(format!("it does not have the losses of step {step}")));
    }
    let mut losses = Vec::new();
    for batch in file.record_batches() {
        let numbers = |at: usize| batch.column(at).as_primitive::<UInt64Type>();
        let (samples, positions, answers) = (numbers(0), numbers(1), numbers(4));
        let ranks = batch.column(2).as_primitive::<UInt32Type>();
        let values = batch.column(3).as_primitive::<Float64Type>();
        losses.extend((0..batch.num_rows()).map(|row| SampleLoss {
            sample: samples.value(row),
            position: positions.value(row),
            virtual_rank: ranks.value(row),
            loss: values.value(row),
            answers: answers.value(row),
        }));
    }
    Ok(losses)
}

/// The larger loss first; NaN is larger than all others.
#[must_use]
pub fn largest_first(one: &SampleLoss, other: &SampleLoss) -> Ordering {
    let place = |of: &SampleLoss| if of.loss.is_nan() { f64::INFINITY } else { of.loss };
    let by_loss = place(other).total_cmp(&place(one));
    by_loss.then(other.loss.is_nan().cmp(&one.loss.is_nan())).then(one.position.cmp(&other.position))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loss() -> impl Strategy<Value = SampleLoss> {
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(sample, position, virtual_rank, loss, answers)| SampleLoss {
                sample,
                position,
                virtual_rank,
                loss: f64::from_bits(loss),
                answers,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn losses_come_back_bit_by_bit_whatever_their_order(losses in prop::collection::vec(loss(), 1..40)) {
            let bytes = encode_losses("it", 7, &losses).unwrap();
            let reversed: Vec<SampleLoss> = losses.iter().rev().copied().collect();
            let back = decode_losses(bytes.clone(), "it", 7).unwrap();
            prop_assert_eq!(back.len(), losses.len());
            prop_assert_eq!(encode_losses("it", 7, &back).unwrap(), bytes.clone());
            let mut positions: Vec<u64> = losses.iter().map(|loss| loss.position).collect();
            positions.sort_unstable();
            positions.dedup();
            if positions.len() == losses.len() {
                prop_assert_eq!(encode_losses("it", 7, &reversed).unwrap(), bytes.clone(), "the same losses are the same bytes");
            }
            let is_damaged = matches!(decode_losses(bytes, "it", 8), Err(RecordError::Damaged { .. }));
            prop_assert!(is_damaged);
        }
    }

    #[test]
    fn a_later_format_is_refused_by_its_number_and_is_no_damage() {
        let losses = [SampleLoss { sample: 1, position: 2, virtual_rank: 3, loss: 0.5, answers: 1 }];
        let file = Shard::from_bytes(encode_losses("it", 7, &losses).unwrap()).unwrap();
        let of_format = |format: &str| {
            let known = [(FORMAT_KEY.to_owned(), format.to_owned()), (STEP_KEY.to_owned(), "7".to_owned())];
            let other = Arc::new(Schema::new_with_metadata(schema(7).fields().clone(), known));
            let mut writer = ShardWriter::new(Arc::clone(&other)).unwrap();
            let batch = RecordBatch::try_new(other, file.record_batches()[0].columns().to_vec()).unwrap();
            writer.push(&batch).unwrap();
            decode_losses(writer.finish().unwrap().bytes, "the file", 7)
        };
        assert_eq!(of_format("1").unwrap(), losses);
        let error = of_format("2").unwrap_err();
        assert!(matches!(error, RecordError::TooNew { found: 2, known: 1, .. }), "{error}");
        assert!(error.to_string().starts_with("the file has format 2, this program reads 1"), "{error}");
        for format in ["0", "x", ""] {
            assert!(matches!(of_format(format), Err(RecordError::Damaged { .. })), "{format:?}");
        }
    }

    #[test]
    fn a_step_without_answers_has_no_file() {
        let error = encode_losses("the losses of step 7", 7, &[]).unwrap_err();
        assert!(error.to_string().starts_with("the losses of step 7 cannot be saved: "), "{error}");
    }

    #[test]
    fn nan_comes_before_infinity_and_the_largest() {
        let of = |position: u64, loss: f64| SampleLoss {
            sample: position,
            position,
            virtual_rank: 0,
            loss,
            answers: 1,
        };
        let mut losses = [of(0, 1.0), of(1, f64::INFINITY), of(2, f64::NAN), of(3, 3.0), of(4, 1.0)];
        losses.sort_by(largest_first);
        assert_eq!(losses.map(|loss| loss.position), [2, 1, 3, 0, 4]);
    }
}
