//! Cepstral coefficients.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::decibels::AmplitudeToDB;
use super::mel::{MelSpectrogram, MelSpectrogramPlan, Norm, Scale};
use super::spectrogram::{Normalized, PadMode, WindowFn};
use super::{between, decibels};
use crate::error::OpError;
use crate::fft::{LANES, Lanes};
use crate::math::ln;
use crate::operation::{Operation, Planned};
use crate::value::Kind;
use crate::waveform::{Specgram, Waveform};

/// The norm of the cosine transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DctNorm {
    /// The transform is orthonormal.
    Ortho,
}

/// `torchaudio.transforms.MFCC`: the cosine transform of a mel spectrogram in decibels.
///
/// Makes `[channels, n_mfcc, frames]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MFCC {
    /// Samples per second; a waveform of another rate is refused.
    pub sample_rate: u32,
    /// Coefficients, at most `n_mels`.
    pub n_mfcc: usize,
    /// The type of the cosine transform: 2.
    pub dct_type: u8,
    /// Default: `"ortho"`.
    pub norm: Option<DctNorm>,
    /// `log(mel + 1e-6)` instead of decibels, of which those 80 under the maximum are raised.
    pub log_mels: bool,
    /// Arguments of the mel spectrogram.
    pub melkwargs: MelKwargs,
}

impl Default for MFCC {
    fn default() -> Self {
        Self {
            sample_rate: 16_000,
            n_mfcc: 40,
            dct_type: 2,
            norm: Some(DctNorm::Ortho),
            log_mels: false,
            melkwargs: MelKwargs::default(),
        }
    }
}

/// The arguments of a [`MelSpectrogram`] but its rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the fields are those of MelSpectrogram")]
pub struct MelKwargs {
    pub n_fft: usize,
    pub win_length: Option<usize>,
    pub hop_length: Option<usize>,
    pub f_min: f64,
    pub f_max: Option<f64>,
    pub pad: usize,
    pub n_mels: usize,
    pub window_fn: WindowFn,
    pub power: f64,
    pub normalized: Normalized,
    pub center: bool,
    pub pad_mode: PadMode,
    pub norm: Option<Norm>,
    pub mel_scale: Scale,
}

impl Default for MelKwargs {
    fn default() -> Self {
        let MelSpectrogram {
            sample_rate: _,
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            pad,
            n_mels,
            window_fn,
            power,
            normalized,
            center,
            pad_mode,
            norm,
            mel_scale,
        } = MelSpectrogram::default();
        Self {
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            pad,
            n_mels,
            window_fn,
            power,
            normalized,
            center,
            pad_mode,
            norm,
            mel_scale,
        }
    }
}

impl MelKwargs {
    fn at(&self, sample_rate: u32) -> MelSpectrogram {
        let &Self {
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            pad,
            n_mels,
            window_fn,
            power,
            normalized,
            center,
            pad_mode,
            norm,
            mel_scale,
        } = self;
        MelSpectrogram {
            sample_rate,
            n_fft,
            win_length,
            hop_length,
            f_min,
            f_max,
            pad,
            n_mels,
            window_fn,
            power,
            normalized,
            center,
            pad_mode,
            norm,
            mel_scale,
        }
    }
}

impl MFCC {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        if self.dct_type != 2 {
            return Err(format!("`dct_type` is {}: only 2 is there", self.dct_type));
        }
        self.melkwargs.at(self.sample_rate).check()?;
        between("n_mfcc", self.n_mfcc, 1..=self.melkwargs.n_mels)
    }

    /// The tables, to be kept for many waveforms.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn plan(&self) -> Result<MfccPlan, OpError> {
        self.check().map_err(OpError::argument("MFCC"))?;
        let mel = self.melkwargs.at(self.sample_rate).plan_for("MFCC")?;
        Ok(MfccPlan { mel, log_mels: self.log_mels, n_mfcc: self.n_mfcc, cosines: self.cosines() })
    }

    /// As [`MfccPlan::apply`], with tables that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`MfccPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        self.plan()?.apply(waveform)
    }

    /// `[n_mfcc, n_mels]`.
    fn cosines(&self) -> Vec<f32> {
        let n_mels = self.melkwargs.n_mels as f64;
        let mut cosines = Vec::with_capacity(self.n_mfcc * self.melkwargs.n_mels);
        for k in 0..self.n_mfcc {
            let scale = match self.norm {
                None => 2.0,
                Some(DctNorm::Ortho) if k == 0 => (1.0 / n_mels).sqrt(),
                Some(DctNorm::Ortho) => (2.0 / n_mels).sqrt(),
            };
            let cosine = |mel: usize| (libm::cos(PI / n_mels * (mel as f64 + 0.5) * k as f64) * scale) as f32;
            cosines.extend((0..self.melkwargs.n_mels).map(cosine));
        }
        cosines
    }
}

/// The tables of an [`MFCC`].
#[derive(Clone, Debug)]
pub struct MfccPlan {
    mel: MelSpectrogramPlan,
    log_mels: bool,
    n_mfcc: usize,
    cosines: Vec<f32>,
}

impl MfccPlan {
    /// Frames of a waveform of this many samples.
    ///
    /// # Errors
    /// [`OpError::TooShort`] where torch refuses a waveform for its length.
    pub fn frames(&self, samples: usize) -> Result<usize, OpError> {
        self.mel.frames(samples)
    }

    /// Bins of a frame.
    pub fn bins(&self) -> usize {
        self.n_mfcc
    }

    /// The coefficients of each channel.
    ///
    /// # Errors
    /// As [`MelSpectrogramPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        let mut mel = self.mel.apply(waveform)?;
        if self.log_mels {
            mel.data_mut().iter_mut().for_each(|x| *x = ln(*x + 1e-6));
        } else {
            let decibels = AmplitudeToDB { stype: decibels::Stype::Power, top_db: Some(80.0) };
            mel = decibels.apply(mel)?;
        }
        let [channels, n_mels, frames] = mel.shape();
        let mut made = Specgram::zeros("MFCC", [channels, self.n_mfcc, frames])?;
        for channel in 0..channels {
            transform(&self.cosines, n_mels, mel.channel_mut(channel), made.channel_mut(channel), frames);
        }
        Ok(made)
    }
}

impl Operation for MFCC {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let plan = self.plan().map_err(|error| error.reason())?;
        let samples = input.waveform_at("sample_rate", self.sample_rate)?;
        let kind = input.to_specgram("MFCC", plan.bins(), samples, |samples| plan.frames(samples))?;
        Ok(Planned::to_specgrams(kind, move |waveform| plan.apply(waveform)))
    }
}

/// The product of the cosines with a channel.
fn transform(cosines: &[f32], n_mels: usize, mels: &[f32], made: &mut [f32], frames: usize) {
    let mut block = vec![[Lanes::default(); 2]; n_mels];
    for start in (0..frames).step_by(2 * LANES) {
        let width = (2 * LANES).min(frames - start);
        for (copy, mel) in block.iter_mut().zip(mels.chunks_exact(frames)) {
            let slots = copy.iter_mut().flat_map(|lanes| &mut lanes.0);
            slots.zip(&mel[start..start + width]).for_each(|(slot, &x)| *slot = x);
        }
        for (row, weights) in made.chunks_exact_mut(frames).zip(cosines.chunks_exact(n_mels)) {
            let mut sums = [Lanes::default(); 2];
            for (&[one, two], &weight) in block.iter().zip(weights) {
                sums = [sums[0] + one * weight, sums[1] + two * weight];
            }
            let sums = sums.iter().flat_map(|lanes| lanes.0);
            row[start..start + width].iter_mut().zip(sums).for_each(|(slot, sum)| *slot = sum);
        }
    }
}
