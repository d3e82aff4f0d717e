//! Short-time Fourier transforms: frames of a waveform, windowed, and their power at each frequency.

use serde::{Deserialize, Serialize};

use crate::error::OpError;
use crate::fft::{LANES, Lanes, RealFft};
use crate::math::turn;

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
    fn values(self, len: usize) -> Vec<f32> {
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

/// The arguments of a [`Spectrogram`](crate::ops::Spectrogram), with all defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Framing {
    pub(crate) n_fft: usize,
    pub(crate) win_length: usize,
    pub(crate) hop: usize,
    pub(crate) pad: usize,
    pub(crate) window_fn: WindowFn,
    pub(crate) power: f64,
    pub(crate) normalized: Normalized,
    pub(crate) center: bool,
    pub(crate) pad_mode: PadMode,
}

/// The tables of short-time Fourier transforms.
#[derive(Clone, Debug)]
pub(crate) struct Stft {
    /// The operation that it is part of, for errors.
    op: &'static str,
    settings: Framing,
    /// As long as a frame, with the square root of the normalization in it.
    window: Vec<f32>,
    fft: RealFft,
}

impl Stft {
    /// For arguments that were checked.
    pub(crate) fn new(op: &'static str, settings: Framing) -> Self {
        let fft = RealFft::new(settings.n_fft);
        Self { op, window: frame_window(&settings), settings, fft }
    }

    /// Bins of a frame.
    pub(crate) fn bins(&self) -> usize {
        self.fft.bins()
    }

    /// Frames of a waveform of this many samples.
    pub(crate) fn frames(&self, samples: usize) -> Result<usize, OpError> {
        let Framing { n_fft, pad, center, pad_mode, .. } = self.settings;
        let short =
            |needed: usize, way_out| OpError::TooShort { op: self.op, found: samples, needed, way_out };
        let mut len = samples + 2 * pad;
        if center {
            let needed = (pad_mode.needs(n_fft / 2)).saturating_sub(2 * pad).max(usize::from(pad == 0));
            if samples < needed {
                return Err(short(needed, "pad the waveform, or set `pad_mode` to \"constant\""));
            }
            len += 2 * (n_fft / 2);
        }
        if len < n_fft {
            return Err(short(n_fft - 2 * pad, "pad the waveform, or set `center` to true"));
        }
        Ok(1 + (len - n_fft) / self.settings.hop)
    }

    /// Calls `each` with the first frame, the number of frames and the powers of each group of up to eight frames.
    pub(crate) fn run(
        &self,
        samples: &[f32],
        frames: usize,
        mut each: impl FnMut(usize, usize, &mut [Lanes]),
    ) {
        if frames == 0 {
            return;
        }
        let padded = self.padded(samples);
        let n_fft = self.settings.n_fft;
        let mut buffer = self.fft.buffer();
        let mut powers = vec![Lanes::default(); self.bins()];
        for first in (0..frames).step_by(LANES) {
            let count = LANES.min(frames - first);
            // Spare lanes repeat the last frame.
            let inputs = std::array::from_fn(|lane| {
                let start = (first + lane.min(count - 1)) * self.settings.hop;
                &padded[start..start + n_fft]
            });
            self.fft.fill(inputs, &self.window, &mut buffer);
            self.fft.squares(&mut buffer, &mut powers);
            raise(&mut powers, self.settings.power);
            each(first, count, &mut powers);
        }
    }

    /// The waveform with zeros, and then margins for centered frames, on both sides.
    fn padded(&self, samples: &[f32]) -> Vec<f32> {
        let Framing { n_fft, pad, center, pad_mode, .. } = self.settings;
        let margin = if center { n_fft / 2 } else { 0 };
        let len = samples.len() + 2 * pad;
        let mut padded = vec![0.0; len + 2 * margin];
        padded[margin + pad..][..samples.len()].copy_from_slice(samples);
        for at in 0..margin {
            padded[at] =
                pad_mode.source(at as isize - margin as isize, len).map_or(0.0, |from| padded[margin + from]);
            let right = margin + len + at;
            padded[right] =
                pad_mode.source((len + at) as isize, len).map_or(0.0, |from| padded[margin + from]);
        }
        padded
    }
}

impl PadMode {
    /// Samples that a margin of this width needs.
    fn needs(self, margin: usize) -> usize {
        match self {
            Self::Reflect => margin + 1,
            Self::Circular => margin.max(1),
            Self::Constant | Self::Replicate => 1,
        }
    }

    /// The place in `0..len` from which a place outside is filled; none for zero. A margin is as narrow as it needs.
    fn source(self, at: isize, len: usize) -> Option<usize> {
        let last = len as isize - 1;
        match self {
            Self::Constant => None,
            Self::Replicate => Some(at.clamp(0, last) as usize),
            Self::Reflect if at < 0 => Some(-at as usize),
            Self::Reflect => Some((2 * last - at) as usize),
            Self::Circular => Some(at.rem_euclid(last + 1) as usize),
        }
    }
}

/// The window in the middle of a frame, divided by the norm that `normalized` asks for.
fn frame_window(settings: &Framing) -> Vec<f32> {
    let win_length = settings.win_length;
    let window = settings.window_fn.values(win_length);
    let norm = match settings.normalized {
        Normalized::Flag(false) => 1.0,
        Normalized::Flag(true) | Normalized::Window => {
            window.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
        }
        Normalized::FrameLength => (settings.n_fft as f64).sqrt(),
    };
    let mut frame = vec![0.0; settings.n_fft];
    let left = (settings.n_fft - win_length) / 2;
    for (slot, &x) in frame[left..].iter_mut().zip(&window) {
        *slot = (f64::from(x) / norm) as f32;
    }
    frame
}

/// Raises squares of magnitudes to the magnitudes' power.
fn raise(squares: &mut [Lanes], power: f64) {
    if power == 2.0 {
        return;
    }
    for square in squares.iter_mut().flat_map(|lanes| &mut lanes.0) {
        let magnitude = square.sqrt();
        *square = if power == 1.0 { magnitude } else { libm::powf(magnitude, power as f32) };
    }
}
