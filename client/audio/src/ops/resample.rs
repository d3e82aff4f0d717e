//! Another number of samples per second.

use std::f64::consts::PI;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::{between, within};
use crate::error::{OpError, arguments, fits};
use crate::math::bessel_i0;
use crate::operation::{Operation, Planned};
use crate::value::{Form, Kind, Value};
use crate::waveform::Waveform;

/// Products that are summed side by side.
const LANES: usize = 8;

/// The most numbers of all kernels: 64 MiB.
const MOST_TAPS: usize = 1 << 24;

/// The most rates whose kernels are kept.
const MOST_KEPT: usize = 64;

/// The window of the sinc function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// A Hann window.
    #[default]
    SincInterpHann,
    /// A Kaiser window.
    SincInterpKaiser,
}

/// `torchaudio.transforms.Resample`: interpolation by a windowed sinc function (Smith, "Digital audio resampling home page",
/// 2002).
///
/// Makes `ceil(samples * new_freq / orig_freq)` samples. The kernels are those of torchaudio, rounded as there. Of each only
/// the taps inside the window are kept; the others are 0 but for rounding errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resample {
    /// Samples per second before; a waveform of another rate is refused. Default: the waveform's own rate, whichever that is.
    pub orig_freq: Option<u32>,
    /// Samples per second after.
    pub new_freq: u32,
    /// The window.
    pub resampling_method: Method,
    /// Zero crossings of the sinc function on each side of its middle: more are sharper and slower.
    pub lowpass_filter_width: u32,
    /// The cutoff as a part of the lower of the two Nyquist frequencies.
    pub rolloff: f64,
    /// The shape of the Kaiser window, 0 to 500. Default: 14.769656459379492.
    pub beta: Option<f64>,
}

impl Default for Resample {
    fn default() -> Self {
        Self {
            orig_freq: None,
            new_freq: 16_000,
            resampling_method: Method::SincInterpHann,
            lowpass_filter_width: 6,
            rolloff: 0.99,
            beta: None,
        }
    }
}

impl Resample {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        let rates = 1..=u32::MAX as usize;
        between("orig_freq", self.orig_freq.unwrap_or(1) as usize, rates.clone())?;
        between("new_freq", self.new_freq as usize, rates)?;
        between("lowpass_filter_width", self.lowpass_filter_width as usize, 1..=1 << 16)?;
        within("rolloff", self.rolloff, 1e-3..=1.0)?;
        self.beta.map_or(Ok(()), |beta| within("beta", beta, 0.0..=500.0))?;
        match self.orig_freq {
            Some(rate) => self.kernel_size(rate).map(drop),
            None => Ok(()),
        }
    }

    /// The kernels for waveforms of this rate, to be kept for many.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check), and for a pair of rates whose kernels are over 64 MiB.
    pub fn plan(&self, rate: u32) -> Result<Resampler, OpError> {
        self.check().map_err(OpError::argument("Resample"))?;
        let orig_freq = self.orig_freq.unwrap_or(rate);
        if orig_freq == 0 {
            return Err(OpError::Argument { op: "Resample", detail: "the rate is 0".into() });
        }
        if orig_freq == self.new_freq {
            return Ok(Resampler::identity(orig_freq));
        }
        let size = self.kernel_size(orig_freq).map_err(OpError::argument("Resample"))?;
        Ok(Resampler::new(self, orig_freq, size))
    }

    /// As [`Resampler::apply`], with kernels that are made for this call.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`Resampler::apply`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Waveform, OpError> {
        self.plan(waveform.rate())?.apply(waveform)
    }

    /// The sizes of the kernels from this rate.
    fn kernel_size(&self, orig_freq: u32) -> Result<Size, String> {
        let divisor = gcd(orig_freq, self.new_freq);
        let [orig, new] = [orig_freq / divisor, self.new_freq / divisor];
        let base = f64::from(orig.min(new)) * self.rolloff;
        let reach = f64::from(self.lowpass_filter_width) * f64::from(orig) / base;
        let taps = ((2.0 * reach) as usize + 2).next_multiple_of(LANES);
        if taps.saturating_mul(new as usize) > MOST_TAPS {
            return Err(format!(
                "from {orig_freq} to {} Hz takes {new} kernels of {taps} numbers: choose rates with a greater common \
                 divisor, or a smaller `lowpass_filter_width`",
                self.new_freq
            ));
        }
        Ok(Size { orig, new, base, reach, taps })
    }

    /// The value of the kernel at `t` zero crossings from its middle.
    fn kernel(&self, t: f64) -> f64 {
        let width = f64::from(self.lowpass_filter_width);
        let t = t.clamp(-width, width);
        let window = match self.resampling_method {
            Method::SincInterpHann => {
                let cos = libm::cos(t * PI / width / 2.0);
                cos * cos
            }
            Method::SincInterpKaiser => {
                let beta = self.beta.unwrap_or(14.769_656_459_379_492);
                bessel_i0(beta * (1.0 - (t / width) * (t / width)).sqrt()) / bessel_i0(beta)
            }
        };
        let angle = t * PI;
        window * if angle == 0.0 { 1.0 } else { libm::sin(angle) / angle }
    }
}

/// The sizes of the kernels for a pair of rates.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// The rates, divided by their greatest common divisor.
    orig: u32,
    new: u32,
    /// Zero crossings per `orig` samples.
    base: f64,
    /// Samples before and after the middle of a kernel.
    reach: f64,
    taps: usize,
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The kernels of a [`Resample`] for waveforms of one rate.
#[derive(Clone, Debug)]
pub struct Resampler {
    orig_freq: u32,
    new_freq: u32,
    /// The rates, divided by their greatest common divisor.
    orig: usize,
    new: usize,
    /// For each sample of a period of `new`: the first input, relative to the period's, plus `margin`.
    firsts: Vec<usize>,
    /// Zeros before the waveform.
    margin: usize,
    taps: usize,
    /// `taps` of each sample of a period.
    kernels: Vec<f32>,
}

impl Resampler {
    fn identity(rate: u32) -> Self {
        let kernels = Vec::new();
        Self { orig_freq: rate, new_freq: rate, orig: 1, new: 1, firsts: vec![], margin: 0, taps: 0, kernels }
    }

    fn new(settings: &Resample, orig_freq: u32, size: Size) -> Self {
        let Size { orig, new, base, reach, taps } = size;
        let margin = reach.ceil() as usize;
        let scale = base / f64::from(orig);
        let mut firsts = Vec::with_capacity(new as usize);
        let mut kernels = Vec::with_capacity(new as usize * taps);
        for phase in 0..new {
            // torchaudio rounds this quotient to single precision.
            let middle = f64::from(phase as f32 / new as f32);
            let first = (middle * f64::from(orig) - reach).ceil();
            firsts.push((first + margin as f64) as usize);
            for tap in 0..taps {
                let t = ((first + tap as f64) / f64::from(orig) - middle) * base;
                let inside = t.abs() < f64::from(settings.lowpass_filter_width);
                kernels.push(if inside { (settings.kernel(t) * scale) as f32 } else { 0.0 });
            }
        }
        Self {
            orig_freq,
            new_freq: settings.new_freq,
            orig: orig as usize,
            new: new as usize,
            firsts,
            margin,
            taps,
            kernels,
        }
    }

    /// The waveform at the new rate.
    ///
    /// # Errors
    /// [`OpError::Rate`] for a waveform of another rate than the kernels', [`OpError::TooLarge`].
    pub fn apply(&self, waveform: &Waveform) -> Result<Waveform, OpError> {
        waveform.expect_rate("Resample", "orig_freq", self.orig_freq)?;
        if self.is_identity() {
            return Ok(waveform.clone());
        }
        let samples = usize::try_from(self.samples(waveform.samples() as u64)).unwrap_or(usize::MAX);
        fits("Resample", [waveform.channels().len(), samples, 1])?;
        let channels = waveform.channels().iter().map(|channel| self.channel(channel, samples));
        Ok(Waveform::with(channels.collect(), self.new_freq))
    }

    /// As [`apply`](Self::apply), without a copy of a waveform that has the new rate.
    pub(crate) fn apply_to(&self, waveform: Waveform) -> Result<Waveform, OpError> {
        if self.is_identity() && waveform.rate() == self.orig_freq {
            return Ok(waveform);
        }
        self.apply(&waveform)
    }

    fn is_identity(&self) -> bool {
        self.orig_freq == self.new_freq
    }

    /// Samples that it makes of this many.
    pub(crate) fn samples(&self, samples: u64) -> u64 {
        let made = (u128::from(samples) * self.new as u128).div_ceil(self.orig as u128);
        u64::try_from(made).unwrap_or(u64::MAX)
    }

    /// The samples from which a part of the new ones is made: [`apply`](Self::apply) makes of them, from the sample with this
    /// number on, the same as of the whole. Beyond the last sample the waveform may end.
    pub(crate) fn needs(&self, part: &Range<u64>) -> (Range<u64>, u64) {
        if self.is_identity() || part.is_empty() {
            return (part.clone(), 0);
        }
        let [orig, new] = [self.orig, self.new].map(|count| count as u64);
        // Whole periods, so that each sample is made by the same kernel.
        let periods = part.start / new..(part.end - 1) / new + 1;
        let first = (periods.start * orig).saturating_sub(self.margin as u64) / orig;
        let end = periods.end.saturating_mul(orig).saturating_add(self.taps as u64);
        (first * orig..end, part.start - first * new)
    }

    /// Numbers of the kernels.
    fn numbers(&self) -> usize {
        self.kernels.len()
    }

    fn channel(&self, input: &[f32], samples: usize) -> Vec<f32> {
        let mut made = Vec::with_capacity(samples);
        let mut padded = vec![0.0; self.margin + input.len() + self.orig + self.margin + self.taps];
        padded[self.margin..][..input.len()].copy_from_slice(input);
        for period in 0..samples.div_ceil(self.new) {
            let inputs = &padded[period * self.orig..];
            let count = self.new.min(samples - made.len());
            let kernels = self.kernels.chunks_exact(self.taps).take(count);
            made.extend(
                self.firsts.iter().zip(kernels).map(|(&first, kernel)| dot(&inputs[first..], kernel)),
            );
        }
        made
    }
}

/// The sum of the products, in eight sums side by side, which are then added in pairs.
#[inline(always)]
fn dot(inputs: &[f32], kernel: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (inputs, kernel) in inputs.as_chunks::<LANES>().0.iter().zip(kernel.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            sums[lane] += inputs[lane] * kernel[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

impl Operation for Resample {
    /// The kernels for a known rate are made at once, those for the rates of files when one comes.
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        let (rate, samples) = input.waveform()?;
        if let (Some(found), Some(expected)) = (rate, self.orig_freq)
            && found != expected
        {
            return Err(other_rate(expected, found));
        }
        let resamplers = Arc::new(Resamplers::new(self.clone()));
        let samples = match rate {
            Some(rate) => {
                let resampler = resamplers.of(rate).map_err(|error| error.reason())?;
                samples
                    .map(|samples| usize::try_from(resampler.samples(samples as u64)).unwrap_or(usize::MAX))
            }
            None => None,
        };
        fits("Resample", [input.channels.unwrap_or(1), samples.unwrap_or(1), 1])
            .map_err(|error| error.reason())?;
        let kind = Kind { form: Form::Waveform { rate: Some(self.new_freq), samples }, ..input };
        Ok(Planned::new(kind, move |value, _| {
            let Value::Waveform(waveform) = value else {
                unreachable!("a checked chain gives this operation waveforms")
            };
            let rate = waveform.rate();
            if let Some(expected) = resamplers.settings.orig_freq.filter(|expected| *expected != rate) {
                return Err(other_rate(expected, rate));
            }
            let resampler = resamplers.of(rate).map_err(|error| error.reason())?;
            let made = resampler.apply_to(waveform).map_err(|error| error.reason())?;
            Ok(Value::Waveform(made))
        }))
    }
}

fn other_rate(expected: u32, found: u32) -> String {
    format!(
        "is set to sounds of {expected} Hz and gets {found} Hz: leave `orig_freq` out, or set it to {found}"
    )
}

/// The kernels of a [`Resample`] for waveforms of several rates: at most 64 MiB of them, those that were used last. For any
/// number of threads.
#[derive(Debug)]
pub(crate) struct Resamplers {
    settings: Resample,
    /// Those that were used last come last.
    kept: Mutex<Vec<(u32, Arc<Resampler>)>>,
}

impl Resamplers {
    /// For arguments that were checked.
    pub(crate) fn new(settings: Resample) -> Self {
        Self { settings, kept: Mutex::default() }
    }

    /// The kernels for waveforms of a rate.
    ///
    /// # Errors
    /// [`OpError::Argument`] for a rate whose kernels are over 64 MiB.
    pub(crate) fn of(&self, rate: u32) -> Result<Arc<Resampler>, OpError> {
        if let Some(found) = self.find(rate) {
            return Ok(found);
        }
        // Without the lock: other threads need not wait, and kernels that two of them make are the same.
        let made = Arc::new(self.settings.plan(rate)?);
        if let Some(found) = self.find(rate) {
            return Ok(found);
        }
        let mut kept = self.kept();
        kept.push((rate, Arc::clone(&made)));
        let mut numbers: usize = kept.iter().map(|(_, kernels)| kernels.numbers()).sum();
        let mut dropped = 0;
        while numbers > MOST_TAPS || kept.len() - dropped > MOST_KEPT {
            numbers -= kept[dropped].1.numbers();
            dropped += 1;
        }
        kept.drain(..dropped);
        Ok(made)
    }

    fn find(&self, rate: u32) -> Option<Arc<Resampler>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(known, _)| *known == rate)?;
        kept[at..].rotate_left(1);
        kept.last().map(|(_, found)| Arc::clone(found))
    }

    /// The rates whose kernels are kept, that of the last use last.
    #[cfg(test)]
    pub(crate) fn kept_rates(&self) -> Vec<u32> {
        self.kept().iter().map(|(rate, _)| *rate).collect()
    }

    /// Numbers of all kernels that are kept.
    #[cfg(test)]
    pub(crate) fn kept_numbers(&self) -> usize {
        self.kept().iter().map(|(_, kernels)| kernels.numbers()).sum()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(u32, Arc<Resampler>)>> {
        // A thread that panicked left whole entries.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
