//! The keys of a flattened batch, for attention without padding.

use thiserror::Error;

use crate::packed::Piece;

/// The document of padding in [`FlatBatch::documents`].
pub const PADDING_DOCUMENT: i64 = -1;

/// A batch cannot be flattened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlatError {
    /// Positions and offsets are `i32`.
    #[error(
        "the batch has more than {} tokens, which its 32-bit offsets cannot name: use fewer rows",
        i32::MAX
    )]
    Tokens,
    /// A row has more tokens than a sequence.
    #[error(
        "row {row} has {tokens} tokens, and a sequence {length}: give the length that its documents were packed with"
    )]
    Row {
        /// Its index, from 0.
        row: usize,
        /// Its tokens.
        tokens: u64,
        /// The length.
        length: u32,
    },
    /// Labels belong to other tokens.
    #[error(
        "{found} tokens were given for labels, and the batch has {expected}: give the tokens of the same rows"
    )]
    Labels {
        /// Tokens of the batch.
        expected: usize,
        /// Tokens that were given.
        found: usize,
    },
}

/// What becomes of the places behind the last document of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Padding {
    /// They are left out, as by `DataCollatorWithFlattening`: the batch has tokens of documents only, and its length differs
    /// from step to step.
    #[default]
    Exclude,
    /// They are a last segment of their row, of document [`PADDING_DOCUMENT`]. The batch then has `rows * length` tokens in
    /// each step, for compiled graphs. Kernels read `cu_seq_lens` as a partition of all tokens, and leave the output of any
    /// other token undefined. Padding inside of a document's segment would take part in its attention.
    Segment {
        /// Tokens of a row.
        length: u32,
    },
}

/// A batch of rows as one row of `n` tokens in `s` segments, each a piece of a document.
///
/// The names are those of transformers' `FlashAttentionKwargs`: give `cu_seq_lens` as `cu_seq_lens_q` and `cu_seq_lens_k`,
/// and `max_length` as `max_length_q` and `max_length_k`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlatBatch {
    /// Per token, its place in its segment, from 0. Shape `[n]`.
    pub position_ids: Vec<i32>,
    /// The start of each segment, and the end of the last. Shape `[s + 1]`.
    pub cu_seq_lens: Vec<i32>,
    /// The length of the longest segment; 0 if there is none.
    pub max_length: i32,
    /// Per segment, its document, at most 2^63 - 1, or [`PADDING_DOCUMENT`]. Shape `[s]`.
    pub documents: Vec<i64>,
}

impl FlatBatch {
    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.position_ids.len()
    }

    /// Per token, the number of its segment, from 0: `seq_idx` of transformers. Shape `[n]`.
    pub fn segment_ids(&self) -> Vec<i32> {
        let mut ids = Vec::with_capacity(self.tokens());
        for (segment, bounds) in (0..).zip(self.cu_seq_lens.windows(2)) {
            ids.resize(bounds[1] as usize, segment);
        }
        ids
    }

    /// The labels of these tokens: the tokens themselves, but `ignore` for the first of each segment and for padding.
    ///
    /// transformers shifts labels in its loss, so that each token predicts the next one. The first token of a segment has no
    /// predecessor in it. `ignore` is -100 there.
    ///
    /// # Errors
    /// [`FlatError::Labels`] if there are more or fewer tokens than in the batch.
    pub fn labels<T: Copy>(&self, tokens: &[T], ignore: T) -> Result<Vec<T>, FlatError> {
        if tokens.len() != self.tokens() {
            return Err(FlatError::Labels { expected: self.tokens(), found: tokens.len() });
        }
        let mut labels = tokens.to_vec();
        for (bounds, &document) in self.cu_seq_lens.windows(2).zip(&self.documents) {
            let (start, end) = (bounds[0] as usize, bounds[1] as usize);
            let ignored = if document == PADDING_DOCUMENT { end } else { start + 1 };
            labels[start..ignored].fill(ignore);
        }
        Ok(labels)
    }

    fn push(&mut self, document: i64, length: u32) -> Result<(), FlatError> {
        let length = i32::try_from(length).map_err(|_| FlatError::Tokens)?;
        let end =
            self.cu_seq_lens.last().copied().unwrap_or(0).checked_add(length).ok_or(FlatError::Tokens)?;
        self.cu_seq_lens.push(end);
        self.position_ids.extend(0..length);
        self.max_length = self.max_length.max(length);
        self.documents.push(document);
        Ok(())
    }
}

/// The keys of a batch whose rows are these sequences, one row behind the other.
///
/// Equal to those of transformers' `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` for the pieces of all rows as
/// its features, if padding is excluded. Pieces of no tokens are left out.
///
/// # Errors
/// [`FlatError::Tokens`] for 2^31 tokens or more, and [`FlatError::Row`] for a row that is longer than its padded length.
pub fn flatten<'a>(
    rows: impl IntoIterator<Item = &'a [Piece]>,
    padding: Padding,
) -> Result<FlatBatch, FlatError> {
    let mut batch = FlatBatch { cu_seq_lens: vec![0], ..FlatBatch::default() };
    for (row, pieces) in rows.into_iter().enumerate() {
        let tokens: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            batch.push(i64::try_from(piece.document).unwrap_or(i64::MAX), piece.length)?;
        }
        if let Padding::Segment { length } = padding {
            let padding =
                u64::from(length).checked_sub(tokens).ok_or(FlatError::Row { row, tokens, length })?;
            if padding > 0 {
                batch.push(PADDING_DOCUMENT, padding as u32)?;
            }
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests;
