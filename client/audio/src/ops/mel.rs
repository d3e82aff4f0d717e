//! Spectra on the mel scale.

use serde::{Deserialize, Serialize};

use super::between;
use super::spectrogram::{Normalized, PadMode, Spectrogram, WindowFn, check_range};
use crate::error::OpError;
use crate::fft::{LANES, Lanes};
use crate::math::linspace;
use crate::operation::{Operation, Planned};
use crate::stft::Stft;
use crate::value::Kind;
use crate::waveform::{Specgram, Waveform};

/// The most filters, and the most bins of a filter bank.
const MOST_MELS: usize = 1 << 16;

/// The area of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Each filter is divided by half of its width in Hz.
    Slaney,
}

/// A scale of frequencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// `2595 * log10(1 + f / 700)`, of the toolkit HTK (O'Shaughnessy, "Speech communication", 1987).
    #[default]
    Htk,
    /// Linear below 1000 Hz and logarithmic above, of the Auditory Toolbox (Slaney, 1998).
    Slaney,
}

/// `torchaudio.transforms.MelScale`: sums of the bins of a spectrogram, weighted by triangles on the mel scale.
///
/// Makes `[channels, n_mels, frames]` of `[channels, n_stft, frames]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MelScale {
    /// Filters.
    pub n_mels: usize,
    /// Samples per second of the waveform.
    pub sample_rate: u32,
    /// The lowest frequency, in Hz.
    pub f_min: f64,
    /// The highest frequency, in Hz. Default: half of `sample_rate`, rounded down.
    pub f_max: Option<f64>,
    /// Bins of the spectrogram: `n_fft / 2 + 1`.
    pub n_stft: usize,
    /// Default: none, each filter has its peak at 1.
    pub norm: Option<Norm>,
    /// The scale.
    pub mel_scale: Scale,
}

impl Default for MelScale {
    fn default() -> Self {
        Self {
            n_mels: 128,
            sample_rate: 16_000,
            f_min: 0.0,
            f_max: None,
            n_stft: 201,
            norm: None,
            mel_scale: Scale::Htk,
        }
    }
}

impl MelScale {
    fn highest(&self) -> f64 {
        self.f_max.unwrap_or_else(|| f64::from(self.sample_rate / 2))
    }

    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        between("n_mels", self.n_mels, 1..=MOST_MELS)?;
        between("n_stft", self.n_stft, 1..=MOST_MELS)?;
        between("sample_rate", self.sample_rate as usize, 2..=u32::MAX as usize)?;
        check_range(self.f_min, self.highest(), self.sample_rate)
    }

    /// The tables, to be kept for many spectrograms.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn plan(&self) -> Result<MelScalePlan, OpError> {
        self.check().map_err(OpError::argument("MelScale"))?;
        Ok(MelScalePlan { bank: FilterBank::new(self), n_stft: self.n_stft })
    }

    /// As [`MelScalePlan::apply`], with tables that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`MelScalePlan::apply`].
    pub fn apply(&self, specgram: &Specgram) -> Result<Specgram, OpError> {
        self.plan()?.apply(specgram)
    }
}

impl Operation for MelScale {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let plan = self.plan().map_err(|error| error.reason())?;
        let (found, frames) = input.specgram()?;
        if found != self.n_stft {
            return Err(format!(
                "is set to {} bins and gets {found}: set `n_stft` to n_fft / 2 + 1 of the spectrogram",
                self.n_stft
            ));
        }
        let kind = input.to_specgram("MelScale", self.n_mels, frames, Ok)?;
        Ok(Planned::of_specgrams(kind, move |specgram, _| plan.apply(&specgram)))
    }
}

/// The tables of a [`MelScale`].
#[derive(Clone, Debug)]
pub struct MelScalePlan {
    bank: FilterBank,
    n_stft: usize,
}

impl MelScalePlan {
    /// The weighted sums of each channel.
    ///
    /// # Errors
    /// [`OpError::Shape`] if the spectrogram does not have `n_stft` bins.
    pub fn apply(&self, specgram: &Specgram) -> Result<Specgram, OpError> {
        let [channels, bins, frames] = specgram.shape();
        if bins != self.n_stft {
            return Err(OpError::Shape {
                op: "MelScale",
                unit: "bins",
                found: bins,
                expected: self.n_stft,
                way_out: "set `n_stft` to n_fft / 2 + 1 of the spectrogram",
            });
        }
        let mut made = Specgram::zeros("MelScale", [channels, self.bank.len(), frames])?;
        for channel in 0..channels {
            let rows = made.channel_mut(channel);
            for (filter, row) in self.bank.filters().zip(rows.chunks_exact_mut(frames.max(1))) {
                for (bin, &weight) in (filter.first..).zip(filter.weights) {
                    for (sum, &power) in row.iter_mut().zip(specgram.row(channel, bin)) {
                        *sum += power * weight;
                    }
                }
            }
        }
        Ok(made)
    }
}

/// Triangular filters, of which only the weights over 0 are kept.
#[derive(Clone, Debug)]
pub(crate) struct FilterBank {
    /// First bin of each filter, and the end of its weights.
    filters: Vec<(usize, usize)>,
    weights: Vec<f32>,
}

struct Filter<'a> {
    first: usize,
    weights: &'a [f32],
}

impl FilterBank {
    /// The filters of `torchaudio.functional.melscale_fbanks`, in single precision as there.
    pub(crate) fn new(scale: &MelScale) -> Self {
        let frequencies = linspace(0.0, (scale.sample_rate / 2) as f32, scale.n_stft);
        let [low, high] = [scale.f_min, scale.highest()].map(|hz| scale.mel_scale.mels(hz) as f32);
        let points: Vec<f32> =
            linspace(low, high, scale.n_mels + 2).into_iter().map(|mels| scale.mel_scale.hz(mels)).collect();
        let mut filters = Vec::new();
        let mut weights = Vec::new();
        for corner in points.windows(3) {
            let [left, middle, right] = [corner[0], corner[1], corner[2]];
            let norm = scale.norm.map_or(1.0, |Norm::Slaney| 2.0 / (right - left));
            let weight = |hz: f32| {
                let [up, down] = [(hz - left) / (middle - left), (right - hz) / (right - middle)];
                up.min(down).max(0.0) * norm
            };
            let first = frequencies.iter().position(|&hz| weight(hz) > 0.0).unwrap_or(0);
            weights.extend(frequencies[first..].iter().map(|&hz| weight(hz)).take_while(|&w| w > 0.0));
            filters.push((first, weights.len()));
        }
        Self { filters, weights }
    }

    /// Filters.
    pub(crate) fn len(&self) -> usize {
        self.filters.len()
    }

    fn filters(&self) -> impl Iterator<Item = Filter<'_>> {
        let mut start = 0;
        self.filters.iter().map(move |&(first, end)| {
            let weights = &self.weights[start..end];
            start = end;
            Filter { first, weights }
        })
    }

    /// Calls `each` with the weighted sum of each filter for a group of frames.
    pub(crate) fn run(&self, powers: &[Lanes], mut each: impl FnMut(usize, Lanes)) {
        for (index, filter) in self.filters().enumerate() {
            let mut sum = Lanes([0.0; LANES]);
            for (&power, &weight) in powers[filter.first..].iter().zip(filter.weights) {
                sum = sum + power * weight;
            }
            each(index, sum);
        }
    }
}

impl Scale {
    const SLANEY_STEP: f64 = 200.0 / 3.0;
    const SLANEY_CORNER_HZ: f64 = 1000.0;
    const SLANEY_CORNER_MELS: f64 = Self::SLANEY_CORNER_HZ / Self::SLANEY_STEP;

    fn slaney_log_step() -> f64 {
        libm::log(6.4) / 27.0
    }

    fn mels(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * libm::log10(1.0 + hz / 700.0),
            Self::Slaney if hz < Self::SLANEY_CORNER_HZ => hz / Self::SLANEY_STEP,
            Self::Slaney => {
                Self::SLANEY_CORNER_MELS + libm::log(hz / Self::SLANEY_CORNER_HZ) / Self::slaney_log_step()
            }
        }
    }

    /// In single precision, with the roundings of torch.
    fn hz(self, mels: f32) -> f32 {
        match self {
            Self::Htk => 700.0 * (libm::pow(10.0, f64::from(mels / 2595.0)) as f32 - 1.0),
            Self::Slaney if mels < Self::SLANEY_CORNER_MELS as f32 => Self::SLANEY_STEP as f32 * mels,
            Self::Slaney => {
                let above = Self::slaney_log_step() as f32 * (mels - Self::SLANEY_CORNER_MELS as f32);
                1000.0 * libm::exp(f64::from(above)) as f32
            }
        }
    }
}

/// `torchaudio.transforms.MelSpectrogram`: [`Spectrogram`] and [`MelScale`] in one pass, without the spectrogram in memory.
///
/// Makes `[channels, n_mels, frames]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MelSpectrogram {
    /// Samples per second; a waveform of another rate is refused.
    pub sample_rate: u32,
    /// As [`Spectrogram::n_fft`].
    pub n_fft: usize,
    /// As [`Spectrogram::win_length`].
    pub win_length: Option<usize>,
    /// As [`Spectrogram::hop_length`].
    pub hop_length: Option<usize>,
    /// As [`MelScale::f_min`].
    pub f_min: f64,
    /// As [`MelScale::f_max`].
    pub f_max: Option<f64>,
    /// As [`Spectrogram::pad`].
    pub pad: usize,
    /// As [`MelScale::n_mels`].
    pub n_mels: usize,
    /// As [`Spectrogram::window_fn`].
    pub window_fn: WindowFn,
    /// As [`Spectrogram::power`].
    pub power: f64,
    /// As [`Spectrogram::normalized`].
    pub normalized: Normalized,
    /// As [`Spectrogram::center`].
    pub center: bool,
    /// As [`Spectrogram::pad_mode`].
    pub pad_mode: PadMode,
    /// As [`MelScale::norm`].
    pub norm: Option<Norm>,
    /// As [`MelScale::mel_scale`].
    pub mel_scale: Scale,
}

impl Default for MelSpectrogram {
    fn default() -> Self {
        let Spectrogram {
            n_fft,
            win_length,
            hop_length,
            pad,
            window_fn,
            power,
            normalized,
            center,
            pad_mode,
        } = Spectrogram::default();
        let MelScale { n_mels, sample_rate, f_min, f_max, norm, mel_scale, n_stft: _ } = MelScale::default();
        Self {
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

impl MelSpectrogram {
    /// The first of the two operations.
    pub fn spectrogram(&self) -> Spectrogram {
        Spectrogram {
            n_fft: self.n_fft,
            win_length: self.win_length,
            hop_length: self.hop_length,
            pad: self.pad,
            window_fn: self.window_fn,
            power: self.power,
            normalized: self.normalized,
            center: self.center,
            pad_mode: self.pad_mode,
        }
    }

    /// The second of the two operations.
    pub fn mel_scale(&self) -> MelScale {
        MelScale {
            n_mels: self.n_mels,
            sample_rate: self.sample_rate,
            f_min: self.f_min,
            f_max: self.f_max,
            n_stft: self.n_fft / 2 + 1,
            norm: self.norm,
            mel_scale: self.mel_scale,
        }
    }

    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        self.spectrogram().check()?;
        self.mel_scale().check()
    }

    /// The tables, to be kept for many waveforms.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn plan(&self) -> Result<MelSpectrogramPlan, OpError> {
        self.plan_for("MelSpectrogram")
    }

    /// The tables, with errors in the name of another operation.
    pub(crate) fn plan_for(&self, op: &'static str) -> Result<MelSpectrogramPlan, OpError> {
        self.check().map_err(OpError::argument(op))?;
        let bank = FilterBank::new(&self.mel_scale());
        let stft = Stft::new(op, self.spectrogram().framing());
        Ok(MelSpectrogramPlan { op, sample_rate: self.sample_rate, stft, bank })
    }

    /// As [`MelSpectrogramPlan::apply`], with tables that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`MelSpectrogramPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        self.plan()?.apply(waveform)
    }
}

/// The tables of a [`MelSpectrogram`].
#[derive(Clone, Debug)]
pub struct MelSpectrogramPlan {
    op: &'static str,
    sample_rate: u32,
    stft: Stft,
    bank: FilterBank,
}

impl MelSpectrogramPlan {
    /// Frames of a waveform of this many samples.
    ///
    /// # Errors
    /// [`OpError::TooShort`] where torch refuses a waveform for its length.
    pub fn frames(&self, samples: usize) -> Result<usize, OpError> {
        self.stft.frames(samples)
    }

    /// Bins of a frame.
    pub fn bins(&self) -> usize {
        self.bank.len()
    }

    /// The mel spectrogram of each channel.
    ///
    /// # Errors
    /// [`OpError::Rate`] for a waveform of another rate, [`OpError::TooShort`] where torch refuses one for its length,
    /// [`OpError::TooLarge`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        self.first_frames(waveform, |frames| frames)
    }

    /// The first of the frames, as many as `keep` makes of their number.
    pub(crate) fn first_frames(
        &self,
        waveform: &Waveform,
        keep: impl Fn(usize) -> usize,
    ) -> Result<Specgram, OpError> {
        waveform.expect_rate(self.op, "sample_rate", self.sample_rate)?;
        let frames = keep(self.stft.frames(waveform.samples())?);
        let mut made = Specgram::zeros(self.op, [waveform.channels().len(), self.bank.len(), frames])?;
        for (channel, samples) in waveform.channels().iter().enumerate() {
            let rows = made.channel_mut(channel);
            self.stft.run(samples, frames, |first, count, powers| {
                self.bank.run(powers, |filter, sums| {
                    rows[filter * frames + first..][..count].copy_from_slice(&sums.0[..count]);
                });
            });
        }
        Ok(made)
    }
}

impl Operation for MelSpectrogram {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let plan = self.plan().map_err(|error| error.reason())?;
        let samples = input.waveform_at("sample_rate", self.sample_rate)?;
        let kind =
            input.to_specgram("MelSpectrogram", plan.bins(), samples, |samples| plan.frames(samples))?;
        Ok(Planned::to_specgrams(kind, move |waveform| plan.apply(waveform)))
    }
}
