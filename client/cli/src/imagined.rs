//! A dataset that need not exist.

use shardd_ingest::default_shard_rows;
use shardd_plan::Shape;

/// Shards that are imagined at most: a plan keeps some words of each.
const MOST_SHARDS: u64 = 1 << 24;
/// The default size of a large dataset's shards.
const SHARD_BYTES: u64 = 64 << 20;

/// Why a dataset cannot be imagined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ImaginedError {
    /// Nothing to move.
    #[error("a dataset needs at least 1 sample: use --samples 1 or more")]
    NoSamples,
    /// Samples of nothing.
    #[error("a sample has at least 1 byte: use --sample-bytes 1 or more")]
    NoBytes,
    /// More than a plan could be made of here.
    #[error(
        "{samples} samples of {sample_bytes} bytes are more than 2^24 shards of 64 MiB: use fewer or smaller ones"
    )]
    TooLarge { samples: u64, sample_bytes: u64 },
}

/// The shape that `samples` samples of `sample_bytes` bytes have when they are ingested with the default
/// shards.
///
/// # Errors
/// [`ImaginedError`] if there are none, or more than fit into some memory.
pub(crate) fn shape(samples: u64, sample_bytes: u64) -> Result<Shape, ImaginedError> {
    if samples == 0 {
        return Err(ImaginedError::NoSamples);
    }
    if sample_bytes == 0 {
        return Err(ImaginedError::NoBytes);
    }
    let too_large = ImaginedError::TooLarge { samples, sample_bytes };
    let row_bytes = samples.checked_mul(sample_bytes).ok_or_else(|| too_large.clone())?;
    // A sample that is larger than a shard has one of its own.
    if row_bytes.div_ceil(SHARD_BYTES).min(samples) > MOST_SHARDS {
        return Err(too_large);
    }
    Ok(Shape { shard_rows: default_shard_rows(samples, row_bytes), row_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_has_samples_and_fits_into_a_plan() {
        assert_eq!(shape(0, 1).unwrap_err(), ImaginedError::NoSamples);
        assert_eq!(shape(1, 0).unwrap_err(), ImaginedError::NoBytes);
        for (samples, bytes) in [(u64::MAX, 2), (u64::MAX, 1), (1 << 40, 1 << 20)] {
            assert!(
                matches!(shape(samples, bytes), Err(ImaginedError::TooLarge { .. })),
                "{samples} {bytes}"
            );
        }
        let imagined = shape(1_281_167, 110_000).expect("it fits");
        assert_eq!(imagined.shard_rows.iter().map(|rows| u64::from(*rows)).sum::<u64>(), 1_281_167);
    }
}
