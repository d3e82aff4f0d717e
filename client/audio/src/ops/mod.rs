//! The operations, with the names, arguments and defaults of torchaudio.transforms. Those that torchaudio does not have are
//! `RandomTimeCrop`, `PadOrTrim`, `LogMel`, `Normalize`, `ToDtype` and `Identity`.

pub mod crop;
pub mod decibels;
pub mod gain;
pub mod log_mel;
pub mod mask;
pub mod mel;
pub mod mfcc;
pub mod mu_law;
pub mod numbers;
pub mod resample;
pub mod spectrogram;

pub use crop::{PadOrTrim, RandomTimeCrop};
pub use decibels::AmplitudeToDB;
pub use gain::{Fade, Vol};
pub use log_mel::LogMel;
pub use mask::{FrequencyMasking, SpecAugment, TimeMasking};
pub use mel::{MelScale, MelSpectrogram};
pub use mfcc::{MFCC, MelKwargs};
pub use mu_law::MuLawEncoding;
pub use numbers::{Identity, Normalize, ToDtype};
pub use resample::Resample;
pub use spectrogram::Spectrogram;

/// Refuses a count outside of its range.
pub(crate) fn between(
    argument: &str,
    value: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("`{argument}` is {value}: give {} to {}", range.start(), range.end()))
}

/// Refuses a number outside of its range, or NaN.
pub(crate) fn within(argument: &str, value: f64, range: std::ops::RangeInclusive<f64>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("`{argument}` is {value}: give {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests;
