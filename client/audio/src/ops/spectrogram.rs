//! Power at each frequency over time.

use serde::{Deserialize, Serialize};

use super::{between, within};
use crate::error::OpError;
use crate::math::turn;
use crate::stft::Stft;
use crate::waveform::{Specgram, Waveform};

/// The longest frame, in samples.
pub(crate) const LONGEST_FRAME: usize = 1 << 16;

/// `torchaudio.transforms.Spectrogram`: magnitudes of short-time Fourier transforms, raised to `power`.
///
/// Makes `[channels, n_fft / 2 + 1, frames]`. Complex spectrograms (`power=None`) and those of both sides are not made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spectrogram {
    /// Samples of a frame, 1 to 65,536. Lengths of factors 2, 3 and 5 are fastest.
    pub n_fft: usize,
    /// Samples of the window, in the middle of a frame. Default: `n_fft`.
    pub win_length: Option<usize>,
    /// Samples from a frame to the next. Default: half of `win_length`.
    pub hop_length: Option<usize>,
    /// Zeros before and after the waveform.
    pub pad: usize,
    /// The window.
    pub window_fn: WindowFn,
    /// The power of the magnitudes, over 0: 1 for magnitudes, 2 for energy.
    pub power: f64,
    /// Divides the transform by a norm.
    pub normalized: Normalized,
    /// Whether frame t has sample `t * hop_length` in its middle; else it begins there.
    pub center: bool,
    /// The margins of centered frames.
    pub pad_mode: PadMode,
}

impl Default for Spectrogram {
    fn default() -> Self {
        Self {
            n_fft: 400,
            win_length: None,
            hop_length: None,
            pad: 0,
            window_fn: WindowFn::Hann,
            power: 2.0,
            normalized: Normalized::Flag(false),
            center: true,
            pad_mode: PadMode::Reflect,
        }
    }
}

/// A window, periodic as those of torch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WindowFn {
    /// `torch.hann_window`.
    #[default]
    #[serde(rename = "hann_window", alias = "hann")]
    Hann,
    /// `torch.hamming_window`.
    #[serde(rename = "hamming_window", alias = "hamming")]
    Hamming,
}

impl WindowFn {
    /// The values of a window of this length.
    pub(crate) fn values(self, len: usize) -> Vec<f32> {
        let [offset, scale] = match self {
            Self::Hann => [0.5, 0.5],
            Self::Hamming => [0.54, 0.46],
        };
        if len == 1 {
            return vec![1.0];
        }
        (0..len).map(|at| (offset - scale * turn(at as u64, len as u64)[0]) as f32).collect()
    }
}

/// The norm by which a transform is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NormalizedForm", into = "NormalizedForm")]
pub enum Normalized {
    /// `true`: that of the window; `false`: none.
    Flag(bool),
    /// `"window"`: the root of the sum of the window's squares.
    Window,
    /// `"frame_length"`: the root of `n_fft`.
    FrameLength,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NormalizedForm {
    Flag(bool),
    Name(NormalizedName),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NormalizedName {
    Window,
    FrameLength,
}

impl From<NormalizedForm> for Normalized {
    fn from(form: NormalizedForm) -> Self {
        match form {
            NormalizedForm::Flag(flag) => Self::Flag(flag),
            NormalizedForm::Name(NormalizedName::Window) => Self::Window,
            NormalizedForm::Name(NormalizedName::FrameLength) => Self::FrameLength,
        }
    }
}

impl From<Normalized> for NormalizedForm {
    fn from(normalized: Normalized) -> Self {
        match normalized {
            Normalized::Flag(flag) => Self::Flag(flag),
            Normalized::Window => Self::Name(NormalizedName::Window),
            Normalized::FrameLength => Self::Name(NormalizedName::FrameLength),
        }
    }
}

/// From where the samples beyond the ends come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadMode {
    /// Mirrored at the outermost sample, which is not repeated.
    #[default]
    Reflect,
    /// Zeros.
    Constant,
    /// The outermost sample.
    Replicate,
    /// From the other end.
    Circular,
}

impl Spectrogram {
    /// Samples of the window.
    pub(crate) fn window_len(&self) -> usize {
        self.win_length.unwrap_or(self.n_fft)
    }

    /// Samples from a frame to the next.
    pub(crate) fn hop(&self) -> usize {
        self.hop_length.unwrap_or(self.window_len() / 2)
    }

    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        between("n_fft", self.n_fft, 1..=LONGEST_FRAME)?;
        between("win_length", self.window_len(), 1..=self.n_fft)?;
        between("hop_length", self.hop(), 1..=usize::MAX / 4)?;
        between("pad", self.pad, 0..=1 << 30)?;
        if self.power > 0.0 && self.power.is_finite() {
            return Ok(());
        }
        Err(format!("`power` is {}: give a number over 0, as 1 for magnitudes or 2 for energy", self.power))
    }

    /// The tables, to be kept for many waveforms.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn plan(&self) -> Result<SpectrogramPlan, OpError> {
        self.check().map_err(OpError::argument("Spectrogram"))?;
        Ok(SpectrogramPlan { stft: Stft::new("Spectrogram", self) })
    }

    /// As [`SpectrogramPlan::apply`], with tables that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`SpectrogramPlan::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        self.plan()?.apply(waveform)
    }
}

/// The tables of a [`Spectrogram`].
#[derive(Clone, Debug)]
pub struct SpectrogramPlan {
    stft: Stft,
}

impl SpectrogramPlan {
    /// The spectrogram of each channel.
    ///
    /// # Errors
    /// [`OpError::TooShort`] where torch refuses a waveform for its length, [`OpError::TooLarge`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Specgram, OpError> {
        let frames = self.stft.frames(waveform.samples())?;
        let mut made = Specgram::zeros("Spectrogram", [waveform.channels().len(), self.stft.bins(), frames])?;
        for (channel, samples) in waveform.channels().iter().enumerate() {
            let rows = made.channel_mut(channel);
            self.stft.run(samples, frames, |first, count, powers| {
                for (row, power) in rows.chunks_exact_mut(frames).zip(powers.iter()) {
                    row[first..first + count].copy_from_slice(&power.0[..count]);
                }
            });
        }
        Ok(made)
    }
}

/// Refuses a range of frequencies that is empty or reaches outside.
pub(crate) fn check_range(f_min: f64, f_max: f64, sample_rate: u32) -> Result<(), String> {
    let most = f64::from(sample_rate);
    within("f_min", f_min, 0.0..=most)?;
    within("f_max", f_max, 0.0..=most)?;
    if f_min >= f_max {
        return Err(format!("`f_min` is {f_min} and `f_max` is {f_max}: give f_min < f_max"));
    }
    Ok(())
}
