//! Documents in sequences of tokens: the first token to which each token attends, and the tokens that predict no other.

use arrow::array::{Array, Float32Array, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Schema};

use super::convert::{converted, present};
use super::error::InputError;
use super::sparse::lists;
use crate::loss::IGNORED;

/// The tokens of a sequence to which each of its tokens attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Those before it in the sequence, and itself.
    Causal,
    /// Those before it in its document, and itself. Positions count from the beginning of the document.
    BlockCausal,
}

/// The places where documents begin, of each sequence.
pub(super) const DOCUMENTS: &str = "documents";

/// How many tokens of each sequence are of documents; zeros follow.
pub(super) const LENGTH: &str = "length";

/// For each token of each sequence 1 if it has a loss, and 0 if it has none.
pub(super) const LOSS_MASK: &str = "loss_mask";

/// Of each token of `width` in each row, the place of the first one to which it attends. Padding attends to itself.
pub(super) fn begins(
    rows: &RecordBatch,
    width: usize,
    attention: Attention,
    positions: &[u64],
) -> Result<Vec<i32>, InputError> {
    let used = lengths(rows, positions)?;
    let documents = match attention {
        Attention::Causal => None,
        Attention::BlockCausal => Some(starts(rows, positions)?),
    };
    let mut begins = Vec::with_capacity(rows.num_rows() * width);
    for (row, &position) in positions.iter().enumerate() {
        let length = used.as_ref().map_or(width, |used| used.value(row) as usize);
        let starts = match &documents {
            Some((ends, starts)) => &starts.values()[ends[row]..ends[row + 1]],
            None => &[],
        };
        let is_ascending = starts.is_sorted_by(|one, other| one < other);
        if length > width || !is_ascending || starts.last().is_some_and(|&last| last as usize >= length) {
            return Err(InputError::Documents { position, width, length, starts: starts.to_vec() });
        }
        push_begins(&mut begins, starts, length, width);
    }
    Ok(begins)
}

/// A sequence that begins within a document begins one of its own.
fn push_begins(begins: &mut Vec<i32>, starts: &[u32], length: usize, width: usize) {
    let (mut begin, mut next) = (0, starts.iter().peekable());
    for place in 0..length {
        if next.next_if(|&&start| start as usize == place).is_some() {
            begin = place;
        }
        begins.push(begin as i32);
    }
    begins.extend((length..width).map(|place| place as i32));
}

/// Replaces the labels of tokens that are the last of what attends to them, by [`IGNORED`]. `begins` has a token more in each
/// row of `width` than `labels`.
pub(super) fn ignore_ends(begins: &[i32], width: usize, labels: &mut [u32]) {
    for (begins, labels) in begins.chunks_exact(width).zip(labels.chunks_exact_mut(width - 1)) {
        for (pair, label) in begins.windows(2).zip(labels) {
            if pair[0] != pair[1] {
                *label = IGNORED;
            }
        }
    }
}

/// Replaces the labels that the mask does not mark by [`IGNORED`]. The mask has a token more in each row of `width` than `labels`:
/// the first, which nothing predicts.
pub(super) fn ignore_unmarked(mask: &Float32Array, width: usize, labels: &mut [u32]) {
    for (mask, labels) in mask.values().chunks_exact(width).zip(labels.chunks_exact_mut(width - 1)) {
        for (mark, label) in mask[1..].iter().zip(labels) {
            if *mark == 0.0 {
                *label = IGNORED;
            }
        }
    }
}

/// Whether there is a column of marks, one for each token of sequences of this length.
pub(super) fn has_loss_mask(schema: &Schema, width: usize) -> bool {
    schema.field_with_name(LOSS_MASK).is_ok_and(|field| match field.data_type() {
        DataType::FixedSizeList(item, size) => item.data_type().is_integer() && *size as usize == width,
        _ => false,
    })
}

/// Those of all tokens but the last of each sequence.
pub(super) fn of_inputs(begins: &[i32], width: usize) -> Vec<i32> {
    begins.chunks_exact(width).flat_map(|row| &row[..width - 1]).copied().collect()
}

/// Whether there is a column of lists of places.
pub(super) fn has_documents(schema: &Schema) -> bool {
    schema.field_with_name(DOCUMENTS).is_ok_and(|field| match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) => item.data_type().is_integer(),
        _ => false,
    })
}

/// Whether there is a column of numbers of tokens.
pub(super) fn has_length(schema: &Schema) -> bool {
    schema.field_with_name(LENGTH).is_ok_and(|field| field.data_type().is_integer())
}

fn lengths(rows: &RecordBatch, positions: &[u64]) -> Result<Option<UInt32Array>, InputError> {
    let Some(lengths) = rows.column_by_name(LENGTH) else { return Ok(None) };
    converted(LENGTH, present(LENGTH, lengths, positions)?, &DataType::UInt32).map(Some)
}

fn starts(rows: &RecordBatch, positions: &[u64]) -> Result<(Vec<usize>, UInt32Array), InputError> {
    let missing = || InputError::Column { column: DOCUMENTS.to_owned() };
    let column = present(DOCUMENTS, rows.column_by_name(DOCUMENTS).ok_or_else(missing)?, positions)?;
    let (ends, starts) = lists(column).ok_or_else(missing)?;
    let (first, last) = (ends[0], ends[ends.len() - 1]);
    if let Some(null) = (first..last).find(|&at| starts.is_null(at)) {
        let row = ends.partition_point(|end| *end <= null) - 1;
        return Err(InputError::Null { column: DOCUMENTS.to_owned(), position: positions[row] });
    }
    Ok((ends, converted(DOCUMENTS, starts, &DataType::UInt32)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tokens_attend_from_the_begin_of_their_document_and_padding_to_itself() {
        let mut begins = Vec::new();
        push_begins(&mut begins, &[0, 3], 5, 7);
        assert_eq!(begins, [0, 0, 0, 3, 3, 5, 6]);
        let mut labels = vec![1, 2, 3, 4, 0, 0];
        ignore_ends(&begins, 7, &mut labels);
        assert_eq!(labels, [1, 2, IGNORED, 4, IGNORED, IGNORED]);
        assert_eq!(of_inputs(&begins, 7), [0, 0, 0, 3, 3, 5]);
    }

    #[test]
    fn a_sequence_without_a_start_is_the_rest_of_a_document() {
        let mut begins = Vec::new();
        push_begins(&mut begins, &[2], 4, 4);
        assert_eq!(begins, [0, 0, 2, 2]);
    }

    proptest! {
        #[test]
        fn each_document_predicts_its_tokens_but_the_first(
            lengths in prop::collection::vec(1usize..9, 1..6), padding in 0usize..5,
        ) {
            let ends: Vec<usize> = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) }).collect();
            let (length, width) = (ends[ends.len() - 1], ends[ends.len() - 1] + padding);
            prop_assume!(width > 1);
            let starts: Vec<u32> = ends.iter().zip(&lengths).map(|(end, length)| (end - length) as u32).collect();
            let mut begins = Vec::new();
            push_begins(&mut begins, &starts, length, width);
            let mut labels: Vec<u32> = (1..width as u32).collect();
            ignore_ends(&begins, width, &mut labels);
            let predicted: Vec<u32> = labels.into_iter().filter(|&label| label != IGNORED).collect();
            let expected: Vec<u32> = (1..length as u32).filter(|place| !starts.contains(place)).collect();
            prop_assert_eq!(predicted, expected);
        }
    }
}
