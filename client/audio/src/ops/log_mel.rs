//! The input of Whisper.

use serde::{Deserialize, Serialize};

use super::decibels::{at_least, maximum};
use super::mel::{MelSpectrogram, MelSpectrogramPlan, Norm, Scale};
use crate::error::OpError;
use crate::math::log10;
use crate::operation::{Operation, Planned};
use crate::value::Kind;
use crate::waveform::{Specgram, Waveform};

/// The log-mel spectrogram of Whisper (Radford et al., "Robust speech recognition via large-scale weak supervision", 2022).
///
/// A mel spectrogram with Slaney's scale and norm, without its last frame; then `log10` of at least 1e-10, at least 8 under
/// the maximum, and `(x + 4) / 4`. Whisper pads waveforms to 30 seconds before. Makes
/// `[channels, n_mels, samples / hop_length]`; the maximum is that of all channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogMel {
    /// Samples per second; a waveform of another rate is refused.
    pub sample_rate: u32,
    /// Samples of a frame.
    pub n_fft: usize,
    /// Samples from a frame to the next.
    pub hop_length: usize,
    /// Filters: 80, or 128 for large-v3.
    pub n_mels: usize,
}

impl Default for LogMel {
    fn default() -> Self {
        Self { sample_rate: 16_000, n_fft: 400, hop_length: 160, n_mels: 80 }
    }
}

impl LogMel {
    fn mel_spectrogram(&self) -> MelSpectrogram {
        MelSpectrogram {
            sample_rate: self.sample_rate,
            n_fft: self.n_fft,
            hop_length: Some(self.hop_length),
            n_mels: self.n_mels,
            norm: Some(Norm::Slaney),
            mel_scale: Scale::Slaney,
            ..MelSpectrogram::default()
        }
    }

    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        self.mel_spectrogram().check()
    }

    /// The tables, to be kept for many waveforms.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn plan(&self) -> Result<LogMelPlan, OpError> {
        Ok(LogMelPlan { mel: self.mel_spectrogram().plan_for("LogMel")? })
    }

    /// As [`LogMelPlan::apply`], with tables that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`LogMelPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        self.plan()?.apply(waveform)
    }
}

/// The tables of a [`LogMel`].
#[derive(Clone, Debug)]
pub struct LogMelPlan {
    mel: MelSpectrogramPlan,
}

impl LogMelPlan {
    /// Frames of a waveform of this many samples.
    ///
    /// # Errors
    /// [`OpError::TooShort`] where torch refuses a waveform for its length.
    pub fn frames(&self, samples: usize) -> Result<usize, OpError> {
        self.mel.frames(samples).map(|frames| frames - 1)
    }

    /// Bins of a frame.
    pub fn bins(&self) -> usize {
        self.mel.bins()
    }

    /// The log-mel spectrogram.
    ///
    /// # Errors
    /// As [`MelSpectrogramPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        let mut made = self.mel.first_frames(waveform, |frames| frames - 1)?;
        made.data_mut().iter_mut().for_each(|x| *x = log10(at_least(*x, 1e-10)));
        let floor = maximum(made.data()) - 8.0;
        made.data_mut().iter_mut().for_each(|x| *x = (at_least(*x, floor) + 4.0) / 4.0);
        Ok(made)
    }
}

impl Operation for LogMel {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let plan = self.plan().map_err(|error| error.reason())?;
        let samples = input.waveform_at("sample_rate", self.sample_rate)?;
        let kind = input.to_specgram("LogMel", plan.bins(), samples, |samples| plan.frames(samples))?;
        Ok(Planned::to_specgrams(kind, move |waveform| plan.apply(waveform)))
    }
}
