//! A chain of operations on sounds as data, to be written in a file, sent, compared and recorded.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use shardd_transforms::OnError;
use shardd_transforms::document::{self, VERSION};
use thiserror::Error;

use crate::decode::{DecodeOptions, Truncated};
use crate::op::Op;
use crate::op::containers::count_of;
use crate::waveform::Span;

/// The most channels of a sound.
pub(crate) const MOST_CHANNELS: usize = 64;

/// A chain cannot be read, or cannot change the sounds that it gets.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The text is no chain.
    #[error("the transforms are no chain: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("the transforms have version {0}, and this program reads version 1: update it")]
    Version(u32),
    /// It is no chain of sounds.
    #[error(
        "the transforms have no \"audio\", so they are of pictures: for sounds, give its options, at least {{}}"
    )]
    NoAudio,
    /// An option of `audio` has no meaning, or none for this input.
    #[error("\"audio\" of the transforms {0}")]
    Audio(String),
    /// An operation does not accept the sounds that it gets, or has arguments without a meaning.
    #[error("operation {index} of the transforms, {name}, {reason}")]
    Op {
        /// Its index in the list.
        index: usize,
        /// Its name.
        name: &'static str,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
    /// The sounds at the end have no common length.
    #[error(
        "the transforms make sounds of various lengths, and a batch has one length: put RandomTimeCrop or PadOrTrim before \
         any spectrogram"
    )]
    Lengths,
    /// The sounds at the end have no common number of channels.
    #[error(
        "the transforms make sounds of any number of channels, and a batch has one number: set \"channels\" of \"audio\" to \
         1 for their mean, or to 2"
    )]
    Channels,
    /// A sound's column has other values.
    #[error(
        "the transforms take encoded sounds, or float32 or int16 of [samples] or [channels, samples], and get {0}"
    )]
    Input(String),
}

/// How the bytes of a sample become a waveform, before the first operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AudioOptions {
    /// Samples per second, to which all sounds are resampled as by [`Resample`](crate::ops::Resample) with its defaults. None:
    /// each sound keeps its own.
    pub sample_rate: Option<u32>,
    /// Channels of all sounds, at most 64: 1 is the mean of all channels, and a sound of one channel has it again and again. A
    /// sound with any other number is an error. None: each sound keeps its own.
    pub channels: Option<usize>,
    /// Samples per second of raw samples, which do not name it. Not for encoded sounds.
    pub rate: Option<u32>,
    /// Where an encoded sound begins.
    pub start: Span,
    /// The length of an encoded sound, or less if it ends before. Default: all that follows.
    pub length: Option<Span>,
    /// What to do with a file that ends too soon or is damaged.
    pub truncated: Truncated,
    /// The most numbers of a waveform before the first operation, all channels together; a sound that has more is an error.
    /// Default: 2^25, which is 128 MiB, or 12 minutes of one channel at 44.1 kHz.
    pub max_samples: u64,
}

impl Default for AudioOptions {
    fn default() -> Self {
        let DecodeOptions { start, length, truncated, .. } = DecodeOptions::default();
        Self { sample_rate: None, channels: None, rate: None, start, length, truncated, max_samples: 1 << 25 }
    }
}

impl AudioOptions {
    /// Whether the options can be used.
    ///
    /// # Errors
    /// [`ChainError::Audio`] with the option and its range.
    pub fn check(&self) -> Result<(), ChainError> {
        let refused = |text: String| Err(ChainError::Audio(text));
        if let Err(text) = self.decoding().check() {
            return refused(format!("has an option out of range: {text}"));
        }
        for (option, rate) in [("sample_rate", self.sample_rate), ("rate", self.rate)] {
            if rate == Some(0) {
                return refused(format!("has {option} = 0: give samples per second"));
            }
        }
        match self.channels {
            Some(channels) if !(1..=MOST_CHANNELS).contains(&channels) => {
                refused(format!("has channels = {channels}: give 1 to {MOST_CHANNELS}"))
            }
            _ => Ok(()),
        }
    }

    /// Those of the decoder.
    pub(crate) fn decoding(&self) -> DecodeOptions {
        DecodeOptions {
            start: self.start,
            length: self.length,
            mono: self.channels == Some(1),
            truncated: self.truncated,
            max_samples: self.max_samples,
        }
    }
}

/// A chain of operations on sounds, with all that the numbers of a batch depend on but the samples and the seed of their plan.
///
/// Its JSON has `audio`, which no chain of pictures has: [`is_audio`](Self::is_audio) tells the two apart.
///
/// ```
/// use shardd_audio::Chain;
///
/// # fn main() -> Result<(), shardd_audio::ChainError> {
/// let chain: Chain = r#"{
///     "audio": {"sample_rate": 16000, "channels": 1},
///     "transforms": [{"type": "PadOrTrim", "length": {"seconds": 30}}, {"type": "LogMel"}]
/// }"#
/// .parse()?;
/// assert_eq!(chain.transforms[1].to_string(), "LogMel(sample_rate=16000, n_fft=400, hop_length=160, n_mels=80)");
///
/// let mistaken = r#"{"audio": {}, "transforms": [{"type": "MelSpectrum"}]}"#.parse::<Chain>();
/// assert!(mistaken.is_err_and(|error| error.to_string().contains("the nearest is MelSpectrogram")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chain {
    /// The version of this document: 1.
    #[serde(default = "Chain::version")]
    pub version: u32,
    /// How the bytes of a sample become a waveform.
    pub audio: AudioOptions,
    /// The column of sounds; the only one if none is given.
    #[serde(default)]
    pub column: Option<String>,
    /// The operations, one after the other.
    pub transforms: Vec<Op>,
    /// The key of the random numbers; the seed of the plan if none is given.
    #[serde(default)]
    pub seed: Option<u64>,
    /// What happens with a sample whose sound cannot be decoded or changed.
    #[serde(default)]
    pub on_error: OnError,
}

impl Chain {
    /// Of these operations, with the defaults of everything else.
    pub fn new(transforms: Vec<Op>) -> Self {
        Self {
            version: VERSION,
            audio: AudioOptions::default(),
            column: None,
            transforms,
            seed: None,
            on_error: OnError::default(),
        }
    }

    fn version() -> u32 {
        VERSION
    }

    /// Whether this JSON is meant as a chain of sounds: an object that has `audio`. Without it, it is one of pictures, for
    /// `shardd_transforms::Chain`.
    pub fn is_audio(json: &str) -> bool {
        #[derive(Deserialize)]
        struct Marked {
            #[serde(default)]
            audio: Option<IgnoredAny>,
        }
        let is_object = json.trim_start().starts_with('{');
        is_object && serde_json::from_str::<Marked>(json).is_ok_and(|marked| marked.audio.is_some())
    }

    /// How many numbers its operations have, those inside of others among them.
    pub fn count(&self) -> u64 {
        count_of(&self.transforms)
    }

    /// The JSON with all defaults written out, in one way for equal chains.
    ///
    /// # Panics
    /// Never: a chain has no maps whose keys are not strings.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a chain is JSON")
    }

    /// The BLAKE3 of its JSON: the name of the chain in records and audits. No chain of pictures has the same JSON.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(self.to_json().as_bytes())
    }
}

impl std::str::FromStr for Chain {
    type Err = ChainError;

    /// Reads a chain, or a list of operations, whose sounds then are decoded with the default options.
    fn from_str(json: &str) -> Result<Self, ChainError> {
        if json.trim_start().starts_with('[') {
            return Ok(Self::new(serde_json::from_str(json)?));
        }
        let version = document::version(json)?;
        if version != VERSION {
            return Err(ChainError::Version(version));
        }
        if !Self::is_audio(json) {
            return Err(ChainError::NoAudio);
        }
        Ok(serde_json::from_str(json)?)
    }
}
