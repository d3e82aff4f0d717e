//! Micro-batches that the device's memory does not hold: they go through the model in pieces. Pure, but for telling such a failure from others.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::{ExecutionError, Tensor};

use super::EngineError;
use crate::collective::CollectiveError;

/// Some rows of a micro-batch, and what of them is done already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) rows: Range<usize>,
    /// Its loss is counted.
    pub(super) is_measured: bool,
    /// Of how many buckets, the last blocks' first, its gradient is handed over.
    pub(super) buckets: usize,
}

impl Piece {
    fn new(rows: Range<usize>) -> Piece {
        Piece { rows, is_measured: false, buckets: 0 }
    }

    /// In two, with the same already done; none if it is a single row.
    pub(super) fn halves(&self) -> Option<[Piece; 2]> {
        let Range { start, end } = self.rows;
        let middle = start + (end - start).div_ceil(2);
        let half = |rows| Piece { rows, ..*self };
        (middle < end).then(|| [half(start..middle), half(middle..end)])
    }
}

/// `rows` rows, in pieces of at most `at_most`.
pub(super) fn pieces(rows: usize, at_most: Option<usize>) -> VecDeque<Piece> {
    let at_most = at_most.unwrap_or(rows).max(1);
    let starts = (0..rows).step_by(at_most);
    starts.map(|start| Piece::new(start..(start + at_most).min(rows))).collect()
}

/// Whether this is what a thread dies of when a device has no memory left; burn's operations say so in no other way.
pub(super) fn is_out_of_memory(panic: &(dyn Any + Send)) -> bool {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    tells_of_memory(message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default())
}

fn tells_of_memory(message: &str) -> bool {
    let message = message.to_ascii_lowercase().replace(['-', '_'], " ");
    ["out of memory", "out of device memory", "can't allocate buffer"]
        .iter()
        .any(|words| message.contains(words))
}

/// Waits until a device has made tensors. A device reports that it had no memory for something when numbers are read that depend on it.
///
/// # Panics
/// If it had none, as [`is_out_of_memory`] recognises.
pub(super) fn wait_for_memory(tensors: &[Tensor<1>]) {
    for tensor in tensors.iter().filter(|tensor| tensor.dims()[0] > 0) {
        if let Err(error) = tensor.clone().slice(0..1).try_into_data() {
            panic!("{error:?}");
        }
    }
}

/// The failure of a device that is found at the end of a step of micro-batches of as many rows.
///
/// # Panics
/// If it is of another kind.
pub(super) fn at_the_end(error: &ExecutionError, rows: usize) -> EngineError {
    let message = format!("{error:?}");
    assert!(tells_of_memory(&message), "{message}");
    EngineError::OutOfMemory { rows, way_out: "" }
}

/// An attempt with a number of rows, those of all virtual ranks of a rank: without memory for them it ends in
/// an error with the way out. Whatever was on its way is dropped.
pub(super) fn at_once(
    rows: usize,
    attempt: impl FnOnce() -> Result<(), CollectiveError>,
) -> Result<(), EngineError> {
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(outcome) => Ok(outcome?),
        Err(panic) if is_out_of_memory(&*panic) => {
            Err(EngineError::OutOfMemory { rows, way_out: ", or use more ranks, which share them" })
        }
        Err(panic) => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn devices_say_it_in_several_ways() {
        let panic = |message: &str| -> Box<dyn Any + Send> { Box::new(message.to_owned()) };
        for message in [
            "out of device memory allocating 1024 bytes",
            "An out-of-memory error happened during launch",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "An IO error happened\nCaused by:\n  can't allocate buffer of size: 205520896",
        ] {
            assert!(is_out_of_memory(&*panic(message)), "{message}");
        }
        assert!(!is_out_of_memory(&*panic("index out of bounds")));
        assert!(!is_out_of_memory(&7));
        let literal: Box<dyn Any + Send> = Box::new("out of memory");
        assert!(is_out_of_memory(&*literal));
    }

    proptest! {
        #[test]
        fn pieces_and_their_halves_are_all_rows_once(rows in 0usize..200, at_most in prop::option::of(1usize..50)) {
            let whole = pieces(rows, at_most);
            let halves = whole.iter().flat_map(|piece| match piece.halves() {
                Some(halves) => halves.to_vec(),
                None => vec![piece.clone()],
            });
            let all: Vec<usize> = halves.flat_map(|piece| piece.rows).collect();
            prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
            prop_assert!(whole.iter().all(|piece| piece.rows.len() <= at_most.unwrap_or(rows)));
        }
    }
}
