//! Sounds as training samples: decoding, and the operations and numbers of `torchaudio.transforms`.
//!
//! [`decode()`] makes a [`Waveform`] of a wav, flac, mp3 or ogg file. Each operation in [`ops`] is a serde struct with the
//! names, arguments and defaults of torchaudio. Its `check` finds wrong arguments before the first sample, and its `apply`
//! makes a new waveform or a [`Specgram`]. Operations with tables have a `plan`, which you keep for many samples.
//!
//! The operations use additions, multiplications, divisions and square roots of single floats, and `libm` for the rest:
//! their results have the same bits on every processor, and for any number of threads. Random operations take their
//! numbers from a [`Draw`].
//!
//! ```
//! use shardd_audio::ops::{AmplitudeToDB, MelSpectrogram};
//! use shardd_audio::Waveform;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mel: MelSpectrogram = serde_json::from_str(r#"{"n_mels": 40, "hop_length": 160}"#)?;
//! mel.check()?;
//! let plan = mel.plan()?;
//!
//! let second = Waveform::new(vec![vec![0.25; 16_000]], 16_000)?;
//! let decibels = AmplitudeToDB::default().apply(plan.apply(&second)?)?;
//! assert_eq!(decibels.shape(), [1, 40, 101]);
//! # Ok(())
//! # }
//! ```

pub mod decode;
mod draw;
mod error;
mod fft;
mod math;
pub mod ops;
mod stft;
mod waveform;

pub use decode::{DecodeError, DecodeOptions, decode, info};
pub use draw::Draw;
pub use error::OpError;
pub use waveform::{Span, Specgram, Waveform};
