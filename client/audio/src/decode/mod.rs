//! From the bytes of a file to a waveform.

mod coded;
mod format;
mod ogg;
mod sink;
mod vorbis;
mod wav;

use serde::{Deserialize, Serialize};

pub use format::Format;

use crate::waveform::{Span, Waveform};
use sink::Sink;

/// How a file is decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecodeOptions {
    /// Where the waveform begins in the file.
    pub start: Span,
    /// Its length, or less if the file ends before. Default: all that follows.
    pub length: Option<Span>,
    /// Whether the channels are averaged to one.
    pub mono: bool,
    /// What to do with a file that ends too soon or is damaged.
    pub truncated: Truncated,
    /// The most numbers of a waveform, all channels together; a file that has more is refused. Default: 2^28, which is
    /// 1 GiB, or 46 minutes of stereo at 48 kHz.
    pub max_samples: u64,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            start: Span::Samples(0),
            length: None,
            mono: false,
            truncated: Truncated::Raise,
            max_samples: 1 << 28,
        }
    }
}

impl DecodeOptions {
    /// Whether the options can be used.
    ///
    /// # Errors
    /// A text that names the option and its range.
    pub fn check(&self) -> Result<(), String> {
        self.start.check("start")?;
        self.length.map_or(Ok(()), |length| length.check("length"))
    }
}

/// What to do with a file that ends too soon or is damaged.
///
/// A file that does not say how long it is, as an MP3 without a Xing header or a FLAC without a length, may end anywhere. FLAC
/// frames and Ogg pages have checksums; changed bits in WAV, and most in MP3, are sounds like others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truncated {
    /// An error.
    #[default]
    Raise,
    /// The samples before the first damage, if there are any.
    Keep,
}

/// What a file says of its sound before the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The file's format.
    pub format: Format,
    /// Channels.
    pub channels: usize,
    /// Samples per second.
    pub rate: u32,
    /// Samples of each channel; none if the file does not say. The file may be wrong.
    pub samples: Option<u64>,
}

/// Why bytes did not become a waveform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum DecodeError {
    /// The bytes start like no known format.
    #[error(
        "unknown audio format: the bytes start with {first}; known are WAV, FLAC, MP3 and Ogg Vorbis. Check that the \
         column holds encoded sounds, or convert them"
    )]
    UnknownFormat { first: String },
    /// More samples than the options allow.
    #[error(
        "{format} of over {max_samples} samples, the limit: take a part of it by `start` and `length`, or raise \
         `max_samples` if you trust its source"
    )]
    TooLong { format: Format, max_samples: u64 },
    /// The data end before the last sample.
    #[error(
        "{format} ends too soon: {detail}; fetch it again or leave it out, or set `truncated` to \"keep\" to keep the \
         samples before"
    )]
    Truncated { format: Format, detail: String },
    /// The data contradict the format.
    #[error(
        "{format} is broken: {detail}; fetch it again or leave it out, or set `truncated` to \"keep\" to keep the samples \
         before the damage"
    )]
    Broken { format: Format, detail: String },
    /// A valid file of a kind that is not read.
    #[error("{format} is not supported: {detail}; convert it to WAV, FLAC, MP3 or Ogg Vorbis")]
    Unsupported { format: Format, detail: String },
    /// The file has no samples where the waveform is to begin.
    #[error("{format} ends after {samples} samples, before the start at {start}: choose an earlier `start`")]
    OutsideStart { format: Format, start: u64, samples: u64 },
    /// An option is outside its range.
    #[error("option {detail}")]
    Option { detail: String },
}

impl DecodeError {
    fn truncated(format: Format, detail: impl Into<String>) -> Self {
        Self::Truncated { format, detail: detail.into() }
    }

    fn broken(format: Format, detail: impl Into<String>) -> Self {
        Self::Broken { format, detail: detail.into() }
    }

    fn unsupported(format: Format, detail: impl Into<String>) -> Self {
        Self::Unsupported { format, detail: detail.into() }
    }
}

/// The waveform in `bytes`.
///
/// Integers become floats from -1 to 1, as by `torchaudio.load(normalize=True)`; floats stay as they are. Only the asked part
/// is kept in memory, and it is bit for bit that part of the whole.
///
/// # Errors
/// See [`DecodeError`]. No input makes it panic.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<Waveform, DecodeError> {
    options.check().map_err(|detail| DecodeError::Option { detail })?;
    let format = Format::of(bytes)?;
    let mut sink = Sink::new(format, options);
    let read = guarded(format, || match format {
        Format::Wav => wav::read(bytes, &mut sink),
        Format::Flac | Format::Mp3 => coded::read(bytes, format, &mut sink),
        Format::OggVorbis => vorbis::read(bytes, &mut sink),
    });
    sink.finish(read)
}

/// Channels, rate and length of the sound in `bytes`. Decodes no samples.
///
/// # Errors
/// See [`DecodeError`]. No input makes it panic.
pub fn info(bytes: &[u8]) -> Result<Info, DecodeError> {
    let format = Format::of(bytes)?;
    guarded(format, || match format {
        Format::Wav => wav::info(bytes),
        Format::Flac | Format::Mp3 => coded::info(bytes, format),
        Format::OggVorbis => vorbis::info(bytes),
    })
}

/// Samples per second of the sound in `bytes`; and of each channel the samples that [`decode`] makes of it, if the file says so and
/// another number would be an error.
pub(crate) fn rate_and_samples(bytes: &[u8]) -> Result<(u32, Option<u64>), DecodeError> {
    match Format::of(bytes)? {
        // Its last page may count samples from another place than its first.
        Format::OggVorbis => guarded(Format::OggVorbis, || vorbis::rate(bytes)).map(|rate| (rate, None)),
        _ => info(bytes).map(|info| (info.rate, info.samples)),
    }
}

/// Makes an error of a panic in a decoder of another crate: one file must not end a training.
fn guarded<T>(format: Format, work: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(DecodeError::broken(format, "its decoder panicked")))
}

#[cfg(test)]
mod tests;
