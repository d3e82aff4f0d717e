//! Sounds as training samples: decoding, and the operations and numbers of `torchaudio.transforms`.
//!
//! A [`Chain`] is a document. [`Transform::new`] checks it for the sounds that it gets, and [`Transform::apply`] makes a
//! sample's numbers in a batch. Each random parameter is a pure function of a seed, an epoch, a position in its order and the
//! operation's number, as for pictures ([`Draws`](shardd_transforms::Draws)). So a sample has the same bytes for any number of
//! threads, processes, ranks and restarts.
//!
//! ```
//! use shardd_audio::{Chain, Input, Number, Transform};
//! use shardd_transforms::Place;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let chain: Chain = r#"{"audio": {"rate": 16000}, "transforms": [
//!     {"type": "RandomTimeCrop", "length": {"seconds": 0.5}},
//!     {"type": "MelSpectrogram", "n_mels": 40},
//!     {"type": "AmplitudeToDB"},
//!     {"type": "TimeMasking", "time_mask_param": 8}
//! ]}"#
//! .parse()?;
//! let transform = Transform::new(chain, Input::of_shape(&[16_000], Number::Int16)?)?;
//! assert_eq!(transform.shape(), [1, 40, 41]);
//!
//! let mut numbers = vec![0; transform.bytes()];
//! transform.apply(&[7; 32_000], Place { seed: 7, epoch: 0, position: 12 }, &mut numbers)?;
//! # Ok(())
//! # }
//! ```
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

mod chain;
pub mod decode;
mod draw;
mod error;
mod fft;
#[cfg(test)]
mod fixtures;
mod math;
pub mod op;
mod operation;
pub mod ops;
mod stft;
mod transform;
mod value;
mod waveform;

pub use chain::{AudioOptions, Chain, ChainError};
pub use decode::{DecodeError, DecodeOptions, decode, info};
pub use draw::Draw;
pub use error::OpError;
pub use op::Op;
pub use transform::{Input, Number, SampleError, Stage, Transform};
pub use value::{Form, Kind, Value};
pub use waveform::{Span, Specgram, Waveform};
