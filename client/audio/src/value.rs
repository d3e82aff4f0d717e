//! The values in a chain: a sound or its spectrum, and before any sound is there its kind.

use std::fmt;

use shardd_transforms::Dtype;

use crate::error::{MOST_NUMBERS, OpError};
use crate::waveform::{Span, Specgram, Waveform};

/// The form of all sounds at a place of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Samples: `[channels, samples]`.
    Waveform {
        /// Samples per second, if all sounds have the same.
        rate: Option<u32>,
        /// Samples of each channel, if all sounds have as many.
        samples: Option<usize>,
    },
    /// A spectrogram, or one made of it: `[channels, bins, frames]`.
    Specgram {
        /// Bins of a frame.
        bins: usize,
        /// Frames, if all sounds have as many.
        frames: Option<usize>,
    },
    /// Levels of [`MuLawEncoding`](crate::ops::MuLawEncoding): `[channels, samples]`.
    Levels {
        /// Levels of each channel, if all sounds have as many.
        samples: Option<usize>,
    },
}

/// The kind of all sounds at a place of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Waveforms or spectrograms, and their lengths.
    pub form: Form,
    /// Channels, if all sounds have as many.
    pub channels: Option<usize>,
    /// The type of the numbers in a batch. On their way they are floats of 32 bits.
    pub dtype: Dtype,
}

impl Kind {
    /// The length along the last axis, if it is that of all sounds.
    pub fn length(&self) -> Option<usize> {
        match self.form {
            Form::Waveform { samples, .. } | Form::Levels { samples } => samples,
            Form::Specgram { frames, .. } => frames,
        }
    }

    /// The shape in a batch, if it is that of all sounds.
    pub fn shape(&self) -> Option<Vec<usize>> {
        let (channels, len) = (self.channels?, self.length()?);
        Some(match self.form {
            Form::Specgram { bins, .. } => vec![channels, bins, len],
            Form::Waveform { .. } | Form::Levels { .. } => vec![channels, len],
        })
    }

    /// Samples per second and samples of waveforms.
    pub(crate) fn waveform(self) -> Result<(Option<u32>, Option<usize>), String> {
        match self.form {
            Form::Waveform { rate, samples } => Ok((rate, samples)),
            Form::Specgram { .. } => {
                Err(format!("takes waveforms, and gets {self}: move it before the spectrogram"))
            }
            Form::Levels { .. } => {
                Err(format!("takes waveforms, and gets {self}: move it before MuLawEncoding"))
            }
        }
    }

    /// Bins and frames of spectrograms.
    pub(crate) fn specgram(self) -> Result<(usize, Option<usize>), String> {
        match self.form {
            Form::Specgram { bins, frames } => Ok((bins, frames)),
            Form::Waveform { .. } | Form::Levels { .. } => Err(format!(
                "takes spectrograms, and gets {self}: put Spectrogram or MelSpectrogram before it"
            )),
        }
    }

    /// Samples of waveforms of the rate of an operation's argument.
    pub(crate) fn waveform_at(self, argument: &str, expected: u32) -> Result<Option<usize>, String> {
        match self.waveform()? {
            (Some(found), samples) if found == expected => Ok(samples),
            (Some(found), _) => Err(format!(
                "is set to {expected} Hz and gets {found} Hz: put Resample before it, or set `{argument}` to {found}"
            )),
            (None, _) => Err(format!(
                "is set to {expected} Hz and gets sounds of any rate: set \"sample_rate\" of \"audio\" to {expected}, or \
                 put Resample before it"
            )),
        }
    }

    /// A length in samples of sounds of this kind.
    pub(crate) fn samples_of(self, span: Span) -> Result<usize, String> {
        let samples = match (span, self.waveform()?.0) {
            (Span::Samples(samples), _) => samples,
            (span, Some(rate)) => span.samples(rate),
            (span, None) => {
                return Err(format!(
                    "has a length of {span} and gets sounds of any rate: set \"sample_rate\" of \"audio\", or put Resample \
                     before it"
                ));
            }
        };
        let channels = self.channels.unwrap_or(1) as u64;
        match samples.checked_mul(channels).and_then(|numbers| usize::try_from(numbers).ok()) {
            _ if samples == 0 => Err(format!("has a length of {span}, which is no sample: give more")),
            Some(numbers) if numbers <= MOST_NUMBERS => Ok(samples as usize),
            _ => Err(format!("has a length of {span}: give {MOST_NUMBERS} numbers or fewer")),
        }
    }

    /// The same sounds as waveforms of this many samples.
    pub(crate) fn with_samples(self, samples: Option<usize>) -> Self {
        match self.form {
            Form::Waveform { rate, .. } => Self { form: Form::Waveform { rate, samples }, ..self },
            _ => self,
        }
    }

    /// Spectrograms with these bins, and frames as `frames` has them for a number of samples.
    pub(crate) fn to_specgram(
        self,
        op: &'static str,
        bins: usize,
        samples: Option<usize>,
        frames: impl FnOnce(usize) -> Result<usize, OpError>,
    ) -> Result<Self, String> {
        let frames = samples.map(frames).transpose().map_err(|error| error.reason())?;
        crate::error::fits(op, [self.channels.unwrap_or(1), bins, frames.unwrap_or(1)])
            .map_err(|error| error.reason())?;
        Ok(Self { form: Form::Specgram { bins, frames }, ..self })
    }

    /// The same, of no known length.
    pub(crate) fn of_any_length(self) -> Self {
        let form = match self.form {
            Form::Waveform { rate, .. } => Form::Waveform { rate, samples: None },
            Form::Specgram { bins, .. } => Form::Specgram { bins, frames: None },
            Form::Levels { .. } => Form::Levels { samples: None },
        };
        Self { form, ..self }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number =
            |known: Option<usize>, name: &str| known.map_or(name.to_owned(), |count| count.to_string());
        let channels = number(self.channels, "channels");
        let dtype = self.dtype;
        match self.form {
            Form::Waveform { rate, samples } => {
                let rate = rate.map_or("any rate".to_owned(), |rate| format!("{rate} Hz"));
                write!(f, "{dtype} waveforms [{channels}, {}] of {rate}", number(samples, "samples"))
            }
            Form::Specgram { bins, frames } => {
                write!(f, "{dtype} spectrograms [{channels}, {bins}, {}]", number(frames, "frames"))
            }
            Form::Levels { samples } => {
                write!(f, "{dtype} levels [{channels}, {}]", number(samples, "samples"))
            }
        }
    }
}

/// A sound on its way through a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Samples, or their levels.
    Waveform(Waveform),
    /// A spectrogram, or one made of it.
    Specgram(Specgram),
}

impl Value {
    /// `[channels, samples]` or `[channels, bins, frames]`.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Waveform(waveform) => vec![waveform.channels().len(), waveform.samples()],
            Self::Specgram(specgram) => specgram.shape().to_vec(),
        }
    }

    /// All numbers in the order of the [shape](Self::shape), in pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[f32]> {
        let (channels, specgram) = match self {
            Self::Waveform(waveform) => (waveform.channels(), None),
            Self::Specgram(specgram) => (&[][..], Some(specgram.data())),
        };
        channels.iter().map(Vec::as_slice).chain(specgram)
    }

    /// Changes every number.
    pub(crate) fn map(self, change: impl Fn(f32) -> f32) -> Self {
        match self {
            Self::Waveform(waveform) => Self::Waveform(waveform.map(change)),
            Self::Specgram(mut specgram) => {
                specgram.data_mut().iter_mut().for_each(|number| *number = change(*number));
                Self::Specgram(specgram)
            }
        }
    }
}
