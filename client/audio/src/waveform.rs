//! Sounds and spectra in memory.

use serde::{Deserialize, Serialize};

use crate::error::OpError;

/// A sound: one row of samples for each channel, all of the same length.
#[derive(Clone, Debug, PartialEq)]
pub struct Waveform {
    channels: Vec<Vec<f32>>,
    rate: u32,
}

impl Waveform {
    /// From the samples of each channel and the number of samples per second.
    ///
    /// # Errors
    /// [`OpError::Argument`] if there is no channel, the rate is 0, or the channels differ in length.
    pub fn new(channels: Vec<Vec<f32>>, rate: u32) -> Result<Self, OpError> {
        let detail = match channels.split_first() {
            None => Some("there is no channel: give at least one, which may be empty"),
            Some((first, others)) if others.iter().any(|other| other.len() != first.len()) => {
                Some("the channels differ in length: pad the shorter ones")
            }
            Some(_) if rate == 0 => Some("the rate is 0: give the samples per second"),
            Some(_) => None,
        };
        match detail {
            Some(detail) => Err(OpError::Argument { op: "Waveform", detail: detail.into() }),
            None => Ok(Self { channels, rate }),
        }
    }

    /// The samples of each channel.
    pub fn channels(&self) -> &[Vec<f32>] {
        &self.channels
    }

    /// The samples of each channel.
    pub fn into_channels(self) -> Vec<Vec<f32>> {
        self.channels
    }

    /// Samples of each channel.
    pub fn samples(&self) -> usize {
        self.channels.first().map_or(0, Vec::len)
    }

    /// Samples per second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// The samples of each channel, to be changed.
    pub fn channels_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.channels.iter_mut().map(Vec::as_mut_slice)
    }

    /// Changes every sample.
    pub(crate) fn map(mut self, change: impl Fn(f32) -> f32) -> Self {
        self.channels.iter_mut().flatten().for_each(|sample| *sample = change(*sample));
        self
    }

    /// The same sound with other samples, of one length, at some rate that is not 0.
    pub(crate) fn with(channels: Vec<Vec<f32>>, rate: u32) -> Self {
        debug_assert!(rate > 0 && channels.windows(2).all(|pair| pair[0].len() == pair[1].len()));
        Self { channels, rate }
    }

    /// A sound of one channel again and again.
    pub(crate) fn repeated(mut self, channels: usize) -> Self {
        let first = self.channels.first().cloned().unwrap_or_default();
        self.channels.resize(channels, first);
        self
    }

    /// The samples of a range, or those of it that are there.
    pub(crate) fn cut(mut self, range: std::ops::Range<usize>) -> Self {
        for channel in &mut self.channels {
            channel.truncate(range.end);
            channel.drain(..range.start.min(channel.len()));
        }
        self
    }

    /// Refuses another rate than that of an operation's argument.
    pub(crate) fn expect_rate(
        &self,
        op: &'static str,
        argument: &'static str,
        expected: u32,
    ) -> Result<(), OpError> {
        match self.rate {
            found if found == expected => Ok(()),
            found => Err(OpError::Rate { op, argument, expected, found }),
        }
    }
}

/// Numbers of shape `[channels, bins, frames]`: a spectrogram, a mel spectrogram or cepstral coefficients.
///
/// A bin's frames are neighbours in memory, as in torch.
#[derive(Clone, Debug, PartialEq)]
pub struct Specgram {
    data: Vec<f32>,
    shape: [usize; 3],
}

impl Specgram {
    /// From the numbers of `[channels, bins, frames]`.
    ///
    /// # Errors
    /// [`OpError::Shape`] if there are more or fewer numbers.
    pub fn new([channels, bins, frames]: [usize; 3], data: Vec<f32>) -> Result<Self, OpError> {
        let expected = channels.saturating_mul(bins).saturating_mul(frames);
        if data.len() != expected {
            return Err(OpError::Shape {
                op: "Specgram",
                unit: "numbers",
                found: data.len(),
                expected,
                way_out: "give channels * bins * frames of them",
            });
        }
        Ok(Self { data, shape: [channels, bins, frames] })
    }

    /// All numbers are 0.
    pub(crate) fn zeros(op: &'static str, shape: [usize; 3]) -> Result<Self, OpError> {
        crate::error::fits(op, shape)?;
        Ok(Self { data: vec![0.0; shape.iter().product()], shape })
    }

    /// `[channels, bins, frames]`.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.shape[0]
    }

    /// Bins of a frame.
    pub fn bins(&self) -> usize {
        self.shape[1]
    }

    /// Frames of a bin.
    pub fn frames(&self) -> usize {
        self.shape[2]
    }

    /// All numbers.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All numbers, to be changed.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// All numbers.
    pub fn into_data(self) -> Vec<f32> {
        self.data
    }

    /// The frames of a bin.
    ///
    /// # Panics
    /// If the channel or the bin is outside.
    pub fn row(&self, channel: usize, bin: usize) -> &[f32] {
        let [_, bins, frames] = self.shape;
        assert!(bin < bins, "bin {bin} of {bins}");
        &self.data[(channel * bins + bin) * frames..][..frames]
    }

    /// The bins of a channel, one after the other.
    pub(crate) fn channel_mut(&mut self, channel: usize) -> &mut [f32] {
        let [_, bins, frames] = self.shape;
        &mut self.data[channel * bins * frames..][..bins * frames]
    }
}

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// A number of samples of each channel.
    Samples(u64),
    /// Seconds, which become `round(seconds * rate)` samples.
    Seconds(f64),
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Samples(samples) => write!(f, "{samples} samples"),
            Self::Seconds(seconds) => write!(f, "{seconds} seconds"),
        }
    }
}

impl Span {
    /// In samples at this rate.
    pub fn samples(self, rate: u32) -> u64 {
        match self {
            Self::Samples(samples) => samples,
            // A cast of a float ends at the bounds of the integer.
            Self::Seconds(seconds) => libm::round(seconds * f64::from(rate)) as u64,
        }
    }

    /// Refuses seconds that are no length.
    pub(crate) fn check(self, argument: &str) -> Result<(), String> {
        match self {
            Self::Seconds(seconds) if !(0.0..1e12).contains(&seconds) => {
                Err(format!("`{argument}` is {seconds} seconds: give 0 or more, and fewer than 1e12"))
            }
            _ => Ok(()),
        }
    }
}

/// Appends the mean of channels of one length.
pub(crate) fn extend_by_mean<'a>(kept: &mut Vec<f32>, channels: impl ExactSizeIterator<Item = &'a [f32]>) {
    let (before, count) = (kept.len(), channels.len() as f32);
    for (index, channel) in channels.enumerate() {
        match index {
            0 => kept.extend_from_slice(channel),
            _ => kept[before..].iter_mut().zip(channel).for_each(|(sum, x)| *sum += x),
        }
    }
    kept[before..].iter_mut().for_each(|sum| *sum /= count);
}

#[cfg(test)]
mod tests;
