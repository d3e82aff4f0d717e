//! Masks over frequencies and over time (Park et al., "SpecAugment", Interspeech 2019).

use serde::{Deserialize, Serialize};

use super::within;
use crate::draw::Draw;
use crate::error::{OpError, arguments};
use crate::operation::{Operation, Planned};
use crate::value::Kind;
use crate::waveform::Specgram;

/// The direction along which a mask has a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Frequency,
    Time,
}

/// A mask of random place and width.
#[derive(Clone, Copy, Debug)]
struct Mask {
    axis: Axis,
    /// The width is under this.
    param: usize,
    /// One for each channel, and not one for all.
    iid: bool,
    /// The greatest part of the axis.
    p: f64,
    value: f32,
}

impl Mask {
    fn apply(self, specgram: &mut Specgram, draw: &mut impl Draw) {
        let [channels, bins, frames] = specgram.shape();
        let size = match self.axis {
            Axis::Frequency => bins,
            Axis::Time => frames,
        };
        let param = if self.p == 1.0 { self.param } else { self.param.min((size as f64 * self.p) as usize) };
        if param < 1 {
            return;
        }
        let count = if self.iid { channels } else { 1 };
        let widths: Vec<f64> = (0..count).map(|_| draw.uniform() * param as f64).collect();
        // Negative if the mask is wider than the axis; both ends are then outside.
        let starts: Vec<f64> = widths.iter().map(|width| draw.uniform() * (size as f64 - width)).collect();
        for channel in 0..channels {
            let index = if self.iid { channel } else { 0 };
            let start = starts[index] as i64;
            let end = start.saturating_add(widths[index] as i64);
            let [start, end] = [start, end].map(|at| at.clamp(0, size as i64) as usize);
            self.fill(specgram.channel_mut(channel), frames, start..end);
        }
    }

    fn fill(self, channel: &mut [f32], frames: usize, masked: std::ops::Range<usize>) {
        match self.axis {
            Axis::Frequency => channel[masked.start * frames..masked.end * frames].fill(self.value),
            Axis::Time if frames > 0 => {
                channel.chunks_exact_mut(frames).for_each(|row| row[masked.clone()].fill(self.value));
            }
            Axis::Time => {}
        }
    }
}

/// `torchaudio.transforms.FrequencyMasking`: sets neighbouring bins to 0.
///
/// Draws the width, `floor(uniform() * freq_mask_param)`, and then the first bin, `floor(uniform() * (bins - w))`, where `w`
/// is `uniform() * freq_mask_param` before it is rounded. With `iid_masks`, draws the widths of all channels before the
/// first bins of all channels. Draws nothing if `freq_mask_param` is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrequencyMasking {
    /// The width is under this, in bins.
    pub freq_mask_param: usize,
    /// Whether each channel has a mask of its own.
    #[serde(default)]
    pub iid_masks: bool,
}

impl FrequencyMasking {
    /// Whether the arguments can be used: all can.
    ///
    /// # Errors
    /// None.
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The masked spectrogram.
    ///
    /// # Errors
    /// None.
    pub fn apply(&self, mut specgram: Specgram, draw: &mut impl Draw) -> Result<Specgram, OpError> {
        let Self { freq_mask_param: param, iid_masks: iid } = *self;
        Mask { axis: Axis::Frequency, param, iid, p: 1.0, value: 0.0 }.apply(&mut specgram, draw);
        Ok(specgram)
    }
}

impl Operation for FrequencyMasking {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        input.specgram()?;
        let op = self.clone();
        Ok(Planned::of_specgrams(input, move |specgram, at| op.apply(specgram, &mut at.draws())))
    }
}

/// `torchaudio.transforms.TimeMasking`: sets neighbouring frames to 0.
///
/// Draws as [`FrequencyMasking`], for frames. If `p` is under 1, the bound of the width is at most `floor(frames * p)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeMasking {
    /// The width is under this, in frames.
    pub time_mask_param: usize,
    /// Whether each channel has a mask of its own.
    #[serde(default)]
    pub iid_masks: bool,
    /// The greatest part of the frames.
    #[serde(default = "all")]
    pub p: f64,
}

fn all() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

impl TimeMasking {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        within("p", self.p, 0.0..=1.0)
    }

    /// The masked spectrogram.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn apply(&self, mut specgram: Specgram, draw: &mut impl Draw) -> Result<Specgram, OpError> {
        self.check().map_err(OpError::argument("TimeMasking"))?;
        let Self { time_mask_param: param, iid_masks: iid, p } = *self;
        Mask { axis: Axis::Time, param, iid, p, value: 0.0 }.apply(&mut specgram, draw);
        Ok(specgram)
    }
}

impl Operation for TimeMasking {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        input.specgram()?;
        let op = self.clone();
        Ok(Planned::of_specgrams(input, move |specgram, at| op.apply(specgram, &mut at.draws())))
    }
}

/// `torchaudio.transforms.SpecAugment`: several masks over time, and then several over frequencies.
///
/// Each mask draws as [`TimeMasking`], and both kinds are bounded by `p`. Masked numbers become the mean of the
/// spectrogram before the first mask, or 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecAugment {
    /// Masks over time, at most 1000.
    pub n_time_masks: usize,
    /// The width of one is under this, in frames.
    pub time_mask_param: usize,
    /// Masks over frequencies, at most 1000.
    pub n_freq_masks: usize,
    /// The width of one is under this, in bins.
    pub freq_mask_param: usize,
    /// Whether each channel has masks of its own.
    #[serde(default = "yes")]
    pub iid_masks: bool,
    /// The greatest part of an axis that one mask takes.
    #[serde(default = "all")]
    pub p: f64,
    /// Whether masked numbers become 0.
    #[serde(default)]
    pub zero_masking: bool,
}

impl SpecAugment {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        super::between("n_time_masks", self.n_time_masks, 0..=1000)?;
        super::between("n_freq_masks", self.n_freq_masks, 0..=1000)?;
        within("p", self.p, 0.0..=1.0)
    }

    /// The masked spectrogram.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn apply(&self, mut specgram: Specgram, draw: &mut impl Draw) -> Result<Specgram, OpError> {
        self.check().map_err(OpError::argument("SpecAugment"))?;
        let value = if self.zero_masking { 0.0 } else { mean(specgram.data()) };
        let mask = |axis, param| Mask { axis, param, iid: self.iid_masks, p: self.p, value };
        for _ in 0..self.n_time_masks {
            mask(Axis::Time, self.time_mask_param).apply(&mut specgram, draw);
        }
        for _ in 0..self.n_freq_masks {
            mask(Axis::Frequency, self.freq_mask_param).apply(&mut specgram, draw);
        }
        Ok(specgram)
    }
}

impl Operation for SpecAugment {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        input.specgram()?;
        let op = self.clone();
        Ok(Planned::of_specgrams(input, move |specgram, at| op.apply(specgram, &mut at.draws())))
    }
}

fn mean(data: &[f32]) -> f32 {
    (data.iter().map(|&x| f64::from(x)).sum::<f64>() / data.len().max(1) as f64) as f32
}
