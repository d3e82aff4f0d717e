//! Power at each frequency over time.

use serde::{Deserialize, Serialize};

use super::{between, within};
use crate::error::OpError;
use crate::operation::{Operation, Planned};
use crate::stft::{Framing, Stft};
use crate::value::Kind;
use crate::waveform::{Specgram, Waveform};

pub use crate::stft::{Normalized, PadMode, WindowFn};

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

impl Spectrogram {
    /// Samples of the window.
    fn window_len(&self) -> usize {
        self.win_length.unwrap_or(self.n_fft)
    }

    /// Samples from a frame to the next.
    fn hop(&self) -> usize {
        self.hop_length.unwrap_or(self.window_len() / 2)
    }

    /// The same with all defaults filled in.
    pub(crate) fn framing(&self) -> Framing {
        let &Self { n_fft, pad, window_fn, power, normalized, center, pad_mode, .. } = self;
        let (win_length, hop) = (self.window_len(), self.hop());
        Framing { n_fft, win_length, hop, pad, window_fn, power, normalized, center, pad_mode }
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
        Ok(SpectrogramPlan { stft: Stft::new("Spectrogram", self.framing()) })
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
    /// Frames of a waveform of this many samples.
    ///
    /// # Errors
    /// [`OpError::TooShort`] where torch refuses a waveform for its length.
    pub fn frames(&self, samples: usize) -> Result<usize, OpError> {
        self.stft.frames(samples)
    }

    /// Bins of a frame.
    pub fn bins(&self) -> usize {
        self.stft.bins()
    }

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

impl Operation for Spectrogram {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        let plan = self.plan().map_err(|error| error.reason())?;
        let samples = input.waveform()?.1;
        let kind = input.to_specgram("Spectrogram", plan.bins(), samples, |samples| plan.frames(samples))?;
        Ok(Planned::to_specgrams(kind, move |waveform| plan.apply(waveform)))
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
