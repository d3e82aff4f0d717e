//! A checked chain: from a sample's bytes to its numbers in a batch.

use std::sync::Arc;

use half::{bf16, f16};
use shardd_transforms::{Dtype, Place};
use thiserror::Error;

use crate::chain::{AudioOptions, Chain, ChainError, MOST_CHANNELS};
use crate::decode::{self, DecodeError, DecodeOptions, Truncated, decode};
use crate::error::{MOST_NUMBERS, OpError};
use crate::op::Op;
use crate::operation::{At, Step};
use crate::ops::Resample;
use crate::ops::resample::Resamplers;
use crate::value::{Form, Kind, Value};
use crate::waveform::{Span, Waveform, extend_by_mean};

/// The type of raw samples, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// Whole numbers of 16 bits; -32,768 becomes -1.0.
    Int16,
    /// Floats of 32 bits, which stay as they are.
    Float32,
}

impl Number {
    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::Int16 => 2,
            Self::Float32 => 4,
        }
    }

    fn floats(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::Int16 => {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0).collect()
            }
            Self::Float32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        }
    }
}

/// The samples that a chain gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Files of sounds.
    Encoded,
    /// Raw samples, one channel behind the other. Their rate is [`AudioOptions::rate`].
    Samples {
        /// Channels of all sounds.
        channels: usize,
        /// Samples of each channel of all sounds.
        samples: usize,
        /// The type of the numbers.
        number: Number,
    },
}

impl Input {
    /// Of tensors with this shape: `[samples]` or `[channels, samples]`, with 1 to 64 channels.
    ///
    /// # Errors
    /// [`ChainError::Input`] for any other shape.
    pub fn of_shape(shape: &[usize], number: Number) -> Result<Self, ChainError> {
        let (channels, samples) = match *shape {
            [samples] => (1, samples),
            [channels, samples] => (channels, samples),
            _ => (0, 0),
        };
        match (1..=MOST_CHANNELS).contains(&channels) && samples > 0 {
            true => Ok(Self::Samples { channels, samples, number }),
            false => Err(ChainError::Input(format!("samples of {shape:?}"))),
        }
    }
}

/// A sample's sound cannot be changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// It is no sound that can be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It has too many or too few channels.
    #[error(
        "the sound has {found} channels, and a batch has {expected}: set \"channels\" of \"audio\" to 1 for their mean, or \
         leave the sound out"
    )]
    Channels {
        /// The channels that it has.
        found: usize,
        /// The channels of a batch.
        expected: usize,
    },
    /// It cannot be resampled.
    #[error("the sound of {from} Hz cannot be resampled to {to} Hz: Resample {reason}")]
    Rate {
        /// Its samples per second.
        from: u32,
        /// The samples per second of all sounds.
        to: u32,
        /// The end of the sentence that begins with Resample.
        reason: String,
    },
    /// It has too many numbers before the first operation.
    #[error(
        "the sound takes {numbers} numbers of all channels at its new rate, over the limit of {max_samples}: take a part of \
         it by `start` and `length`, or raise `max_samples` if you trust its source"
    )]
    TooLong {
        /// The numbers that it takes.
        numbers: u64,
        /// The limit.
        max_samples: u64,
    },
    /// An operation does not accept it.
    #[error("operation {index} of the transforms, {name}, {reason}")]
    Op {
        /// The operation's index.
        index: usize,
        /// Its name.
        name: &'static str,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
    /// There are not as many bytes of raw samples as the shape has.
    #[error("the sample has {0} bytes, and its sounds have {1}")]
    Bytes(usize, usize),
}

/// A chain that fits its input.
#[derive(Clone, Debug)]
pub struct Transform {
    chain: Chain,
    input: Input,
    /// That of the sounds before the first operation, and behind each.
    kinds: Vec<Kind>,
    steps: Vec<Step>,
    /// The numbers of the operations.
    numbers: Vec<u64>,
    /// The kernels from the rates of sounds to that of all sounds.
    resamplers: Option<Arc<Resamplers>>,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// A sound on its way, for those who look at each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The operation as a call in Python; nothing for the waveform before the first.
    pub op: Option<String>,
    /// The sound behind it.
    pub value: Value,
}

impl Transform {
    /// Checks a chain for sounds of this kind, and makes the tables of its operations.
    ///
    /// # Errors
    /// [`ChainError`] if an operation does not accept the sounds that it gets, or if batches would have sounds of several lengths
    /// or numbers of channels.
    pub fn new(chain: Chain, input: Input) -> Result<Self, ChainError> {
        let audio = &chain.audio;
        audio.check()?;
        let resamplers = audio
            .sample_rate
            .map(|new_freq| Arc::new(Resamplers::new(Resample { new_freq, ..Resample::default() })));
        let mut kind = first_kind(audio, input, resamplers.as_deref())?;
        let (mut kinds, mut steps, mut numbers) = (vec![kind], Vec::new(), Vec::new());
        let mut number = 0;
        for (index, op) in chain.transforms.iter().enumerate() {
            let planned = op.operation().plan(kind);
            let planned = planned.map_err(|reason| ChainError::Op { index, name: op.name(), reason })?;
            kind = planned.kind;
            kinds.push(kind);
            steps.push(planned.step);
            numbers.push(number);
            number += op.operation().count();
        }
        if kind.channels.is_none() {
            return Err(ChainError::Channels);
        }
        let shape = kind.shape().ok_or(ChainError::Lengths)?;
        Ok(Self { chain, input, kinds, steps, numbers, resamplers, dtype: kind.dtype, shape })
    }

    /// Its operations with numbers from `first` on, for one that follows other operations.
    #[must_use]
    pub fn numbered_from(mut self, first: u64) -> Self {
        self.numbers.iter_mut().for_each(|number| *number += first);
        self
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The type of the numbers of a batch.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The shape of a sound in a batch: `[channels, samples]`, or `[channels, bins, frames]` of spectrograms.
    pub fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// The kinds of the sounds: before the first operation, and behind each.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Bytes of a sound in a batch.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// The most bytes of one sound on its way through the chain: three times the largest waveform that may be decoded, while its
    /// memory grows, or twice the largest value. Kernels of [`Resample`], which all threads share, add 64 MiB at most for each.
    pub fn largest(&self) -> u64 {
        let max_samples = self.chain.audio.max_samples;
        let decoded = if self.input == Input::Encoded { max_samples.saturating_mul(3) } else { 0 };
        let mut before: Option<(Kind, u64)> = None;
        let numbers = self.kinds.iter().map(|&kind| {
            let numbers = match (kind.shape(), before) {
                (Some(shape), _) => {
                    shape.iter().fold(1, |product: u64, &side| product.saturating_mul(side as u64))
                }
                (None, None) => max_samples,
                (None, Some((same, numbers))) if same.of_any_length() == kind.of_any_length() => numbers,
                (None, Some(_)) => MOST_NUMBERS as u64,
            };
            before = Some((kind, numbers));
            numbers.saturating_mul(2)
        });
        numbers.fold(decoded, u64::max).saturating_mul(size_of::<f32>() as u64)
    }

    /// Changes the sound of a sample, and writes its numbers, little-endian, into memory of [`bytes`](Self::bytes).
    ///
    /// If the first operation is [`RandomTimeCrop`](crate::ops::RandomTimeCrop) or [`PadOrTrim`](crate::ops::PadOrTrim), only
    /// the part that it needs is decoded and resampled, with the same numbers. Damage elsewhere in the file then goes unnoticed.
    /// Files that do not say how long they are, and all of Ogg Vorbis, are decoded to the end unless the part begins at the
    /// start.
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed; the memory is then unchanged.
    ///
    /// # Panics
    /// If the memory has another size.
    pub fn apply(&self, sample: &[u8], place: Place, out: &mut [u8]) -> Result<(), SampleError> {
        assert_eq!(out.len(), self.bytes(), "the memory of a sound");
        let place = self.keyed(place);
        let first = match self.part(sample, place)? {
            Some(part) => part,
            None => self.whole(sample)?,
        };
        let value = (0..self.steps.len())
            .try_fold(Value::Waveform(first), |value, index| self.step(index, value, place))?;
        debug_assert_eq!(value.shape(), self.shape, "a checked chain makes one shape");
        write(&value, self.dtype, out);
        Ok(())
    }

    /// A sample's sound behind each operation, as floats of 32 bits. The waveform before the first operation comes first: decoded,
    /// resampled, and with the channels of all sounds.
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed.
    pub fn stages(&self, sample: &[u8], place: Place) -> Result<Vec<Stage>, SampleError> {
        let place = self.keyed(place);
        let mut value = Value::Waveform(self.whole(sample)?);
        let mut stages = vec![Stage { op: None, value: value.clone() }];
        for (index, op) in self.chain.transforms.iter().enumerate() {
            value = self.step(index, value, place)?;
            stages.push(Stage { op: Some(op.to_string()), value: value.clone() });
        }
        Ok(stages)
    }

    fn keyed(&self, place: Place) -> Place {
        Place { seed: self.chain.seed.unwrap_or(place.seed), ..place }
    }

    fn step(&self, index: usize, value: Value, place: Place) -> Result<Value, SampleError> {
        let done = self.steps[index].apply(value, At { place, op: self.numbers[index] });
        done.map_err(|reason| SampleError::Op { index, name: self.chain.transforms[index].name(), reason })
    }

    /// The waveform of a sample.
    fn whole(&self, sample: &[u8]) -> Result<Waveform, SampleError> {
        let waveform = match self.input {
            Input::Encoded => decode(sample, &self.chain.audio.decoding())?,
            Input::Samples { samples, .. } => self.raw(sample, 0, samples as u64)?,
        };
        let waveform = self.resampled(waveform)?;
        self.with_channels(waveform)
    }

    /// The part of that waveform from which the first operation makes the same as from the whole; none if it needs the whole,
    /// or if the length of the whole is not known.
    fn part(&self, sample: &[u8], place: Place) -> Result<Option<Waveform>, SampleError> {
        let Some(op) = self.chain.transforms.first().filter(|op| cuts(op)) else { return Ok(None) };
        let (rate, start, limit, len) = self.extent(sample)?;
        let kernels = self.resamplers.as_ref().map(|resamplers| resamplers.of(rate)).transpose();
        let kernels = kernels.map_err(|error| self.not_resampled(rate, &error))?;
        let new_rate = self.chain.audio.sample_rate.unwrap_or(rate);
        let new_len = len.map(|len| kernels.as_ref().map_or(len, |kernels| kernels.samples(len)));
        let at = At { place, op: self.numbers[0] };
        let Some(part) = op.operation().part(new_len, new_rate, at).filter(|part| !part.is_empty()) else {
            return Ok(None);
        };
        let (needed, skipped) =
            kernels.as_ref().map_or_else(|| (part.clone(), 0), |kernels| kernels.needs(&part));
        let needed = needed.start..needed.end.min(len.unwrap_or(limit));
        if needed.is_empty() {
            return Ok(None);
        }
        let count = needed.end - needed.start;
        let waveform = match self.input {
            Input::Encoded => {
                let options = DecodeOptions {
                    start: Span::Samples(start.saturating_add(needed.start)),
                    length: Some(Span::Samples(count)),
                    ..self.chain.audio.decoding()
                };
                decode(sample, &options)?
            }
            Input::Samples { .. } => self.raw(sample, needed.start, count)?,
        };
        let waveform = self.resampled(waveform)?;
        let end = skipped.saturating_add(part.end - part.start);
        let [skipped, end] = [skipped, end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        self.with_channels(waveform.cut(skipped..end)).map(Some)
    }

    /// Of the waveform before it is resampled: its rate, its first sample in the file, the most samples that it may have, and the
    /// number that it has, if that is known.
    fn extent(&self, sample: &[u8]) -> Result<(u32, u64, u64, Option<u64>), SampleError> {
        let audio = &self.chain.audio;
        if let Input::Samples { samples, .. } = self.input {
            let len = samples as u64;
            return Ok((audio.rate.expect("checked: raw samples have a rate"), 0, len, Some(len)));
        }
        let (rate, samples) = decode::rate_and_samples(sample)?;
        let (start, limit) =
            (audio.start.samples(rate), audio.length.map_or(u64::MAX, |length| length.samples(rate)));
        // A damaged file may have fewer.
        let known = samples.filter(|_| audio.truncated == Truncated::Raise);
        Ok((rate, start, limit, known.map(|samples| samples.saturating_sub(start).min(limit))))
    }

    /// Raw samples from `start` on, `count` of each channel.
    fn raw(&self, sample: &[u8], start: u64, count: u64) -> Result<Waveform, SampleError> {
        let Input::Samples { channels, samples, number } = self.input else {
            unreachable!("encoded sounds are decoded")
        };
        let row = samples.saturating_mul(number.size());
        let all = row.saturating_mul(channels);
        if sample.len() != all {
            return Err(SampleError::Bytes(sample.len(), all));
        }
        let [start, count] = [start, count].map(|of| of as usize * number.size());
        let mut planes: Vec<Vec<f32>> =
            sample.chunks_exact(row).map(|row| number.floats(&row[start..start + count])).collect();
        if self.chain.audio.channels == Some(1) && channels > 1 {
            let mut mean = Vec::new();
            extend_by_mean(&mut mean, planes.iter().map(Vec::as_slice));
            planes = vec![mean];
        }
        Ok(Waveform::with(planes, self.chain.audio.rate.expect("checked: raw samples have a rate")))
    }

    fn resampled(&self, waveform: Waveform) -> Result<Waveform, SampleError> {
        let Some(resamplers) = &self.resamplers else { return Ok(waveform) };
        let rate = waveform.rate();
        let failed = |error: OpError| self.not_resampled(rate, &error);
        let kernels = resamplers.of(rate).map_err(failed)?;
        let samples = kernels.samples(waveform.samples() as u64);
        self.fits(samples.saturating_mul(waveform.channels().len() as u64))?;
        kernels.apply_to(waveform).map_err(failed)
    }

    fn not_resampled(&self, from: u32, error: &OpError) -> SampleError {
        let to = self.chain.audio.sample_rate.unwrap_or(from);
        SampleError::Rate { from, to, reason: error.reason() }
    }

    fn with_channels(&self, waveform: Waveform) -> Result<Waveform, SampleError> {
        let expected = self.kinds[0].channels.expect("checked: a batch has one number of channels");
        match waveform.channels().len() {
            found if found == expected => Ok(waveform),
            1 => {
                self.fits((waveform.samples() as u64).saturating_mul(expected as u64))?;
                Ok(waveform.repeated(expected))
            }
            found => Err(SampleError::Channels { found, expected }),
        }
    }

    fn fits(&self, numbers: u64) -> Result<(), SampleError> {
        let max_samples = self.chain.audio.max_samples;
        if numbers > max_samples {
            return Err(SampleError::TooLong { numbers, max_samples });
        }
        Ok(())
    }
}

/// Whether an operation begins by cutting a part out.
fn cuts(op: &Op) -> bool {
    matches!(op, Op::RandomTimeCrop(_) | Op::PadOrTrim(_))
}

/// The kind of the waveforms before the first operation.
fn first_kind(
    audio: &AudioOptions,
    input: Input,
    resamplers: Option<&Resamplers>,
) -> Result<Kind, ChainError> {
    let refused = |reason: String| Err(ChainError::Audio(reason));
    let dtype = Dtype::Float32;
    let Input::Samples { channels, samples, .. } = input else {
        if audio.rate.is_some() {
            return refused(
                "has rate, and encoded sounds name their own: leave it out, or set sample_rate".into(),
            );
        }
        let form = Form::Waveform { rate: audio.sample_rate, samples: None };
        return Ok(Kind { form, channels: audio.channels, dtype });
    };
    let Some(rate) = audio.rate else {
        return refused("needs rate for raw samples: set it to their samples per second".into());
    };
    let encoded = AudioOptions::default();
    if (audio.start, audio.length, audio.truncated) != (encoded.start, encoded.length, encoded.truncated) {
        return refused(
            "has start, length or truncated, which are for encoded sounds: cut raw samples by PadOrTrim"
                .into(),
        );
    }
    let expected = audio.channels.unwrap_or(channels);
    if ![1, channels].contains(&expected) && channels != 1 {
        return refused(format!(
            "has channels = {expected}, and raw samples have {channels}: leave it out, or set it to 1 for their mean"
        ));
    }
    let (mut rate, mut samples) = (rate, samples as u64);
    if let (Some(resamplers), Some(new_rate)) = (resamplers, audio.sample_rate) {
        let kernels = resamplers.of(rate);
        let kernels = kernels.map_err(|error| ChainError::Audio(format!("resamples: {}", error.reason())))?;
        (rate, samples) = (new_rate, kernels.samples(samples));
    }
    if samples.saturating_mul(expected as u64) > audio.max_samples {
        return refused(format!(
            "has max_samples = {}, and {expected} channels of {samples} raw samples are more: raise it",
            audio.max_samples
        ));
    }
    let form = Form::Waveform { rate: Some(rate), samples: usize::try_from(samples).ok() };
    Ok(Kind { form, channels: Some(expected), dtype })
}

/// Writes the numbers of a sound in this type.
fn write(value: &Value, dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::Uint8 => write_as(value, out, |level| [level as u8]),
        Dtype::Float16 => write_as(value, out, |float| f16::from_f32(float).to_le_bytes()),
        Dtype::Bfloat16 => write_as(value, out, |float| bf16::from_f32(float).to_le_bytes()),
        Dtype::Float32 => write_as(value, out, f32::to_le_bytes),
    }
}

fn write_as<const N: usize>(value: &Value, out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (mut rest, _) = out.as_chunks_mut::<N>();
    for piece in value.pieces() {
        let (slots, behind) = rest.split_at_mut(piece.len());
        slots.iter_mut().zip(piece).for_each(|(slot, &number)| *slot = bytes(number));
        rest = behind;
    }
}

#[cfg(test)]
mod tests;
