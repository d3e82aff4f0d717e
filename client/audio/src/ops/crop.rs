//! Sounds of one length: a part of a longer one, and a shorter one with more at its ends.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::error::{OpError, fits};
use crate::operation::{At, Operation, Planned};
use crate::value::Kind;
use crate::waveform::{Span, Waveform};

/// The samples that a short waveform gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Padding {
    /// Zeros.
    #[default]
    Constant,
    /// The waveform again, as often as it takes.
    Circular,
}

/// Cuts out a part of a fixed length at a random place.
///
/// Draws one number, also where there is but one place: the part begins at `floor(uniform() * (samples - length + 1))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomTimeCrop {
    /// The length of the part.
    pub length: Span,
    /// Whether a waveform that is shorter gets samples at its end; else it is refused.
    #[serde(default)]
    pub pad: bool,
    /// The samples that it gets.
    #[serde(default)]
    pub pad_mode: Padding,
}

impl RandomTimeCrop {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        check_length(self.length)
    }

    /// The samples that [`apply`](Self::apply) cuts out of a waveform of this many: the first, and their number. For a part of
    /// a file that is not decoded yet.
    pub fn place(&self, samples: usize, rate: u32, draw: &mut impl Draw) -> [usize; 2] {
        let length = in_samples(self.length, rate);
        let places = (samples.saturating_sub(length)) as f64 + 1.0;
        let first = (draw.uniform() * places) as usize;
        [first.min(samples), length.min(samples)]
    }

    /// The part.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check), [`OpError::TooShort`] if the waveform is shorter and `pad` is not set, or
    /// if it has no samples to repeat, [`OpError::TooLarge`].
    pub fn apply(&self, waveform: Waveform, draw: &mut impl Draw) -> Result<Waveform, OpError> {
        self.check().map_err(OpError::argument("RandomTimeCrop"))?;
        let (found, rate) = (waveform.samples(), waveform.rate());
        let needed = in_samples(self.length, rate);
        self.long_enough(found, needed)?;
        fits("RandomTimeCrop", [waveform.channels().len(), needed, 1])?;
        let [first, kept] = self.place(found, rate, draw);
        padded("RandomTimeCrop", waveform.cut(first..first + kept), 0, needed, self.pad_mode)
    }

    fn long_enough(&self, found: usize, needed: usize) -> Result<(), OpError> {
        if found < needed && !self.pad {
            let way_out = "set `pad` to true, or leave shorter ones out";
            return Err(OpError::TooShort { op: "RandomTimeCrop", found, needed, way_out });
        }
        Ok(())
    }
}

impl Operation for RandomTimeCrop {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| crate::error::arguments(&detail))?;
        let length = input.samples_of(self.length)?;
        if let Some(samples) = input.waveform()?.1 {
            self.long_enough(samples, length).map_err(|error| error.reason())?;
        }
        let op = self.clone();
        Ok(Planned::of_waveforms(input.with_samples(Some(length)), move |waveform, at| {
            op.apply(waveform, &mut at.draws())
        }))
    }

    fn part(&self, samples: Option<u64>, rate: u32, at: At) -> Option<Range<u64>> {
        let samples = usize::try_from(samples?).ok()?;
        let [first, kept] = self.place(samples, rate, &mut at.draws()).map(|count| count as u64);
        Some(first..first + kept)
    }
}

/// The part of a waveform that [`PadOrTrim`] keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Anchor {
    /// The start; more samples are put behind a short waveform.
    #[default]
    Start,
    /// The middle; more samples are put on both sides of a short waveform, at most one more behind it.
    Center,
}

/// Gives waveforms a fixed length: cuts off of longer ones, and adds to shorter ones. With its defaults it is `pad_or_trim` of
/// Whisper.
///
/// Draws no random numbers: for tests, and for models that take sounds of one length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PadOrTrim {
    /// The length.
    pub length: Span,
    /// The part that is kept.
    #[serde(default)]
    pub anchor: Anchor,
    /// The samples that short waveforms get.
    #[serde(default)]
    pub pad_mode: Padding,
}

impl PadOrTrim {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        check_length(self.length)
    }

    /// The waveform with this length.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check), [`OpError::TooShort`] if it has no samples to repeat,
    /// [`OpError::TooLarge`].
    pub fn apply(&self, waveform: Waveform) -> Result<Waveform, OpError> {
        self.check().map_err(OpError::argument("PadOrTrim"))?;
        let (found, length) = (waveform.samples(), in_samples(self.length, waveform.rate()));
        fits("PadOrTrim", [waveform.channels().len(), length, 1])?;
        let (cut, added) = (found.saturating_sub(length), length.saturating_sub(found));
        let [first, before] = match self.anchor {
            Anchor::Start => [0, 0],
            Anchor::Center => [cut / 2, added / 2],
        };
        padded("PadOrTrim", waveform.cut(first..found - (cut - first)), before, length, self.pad_mode)
    }
}

impl Operation for PadOrTrim {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| crate::error::arguments(&detail))?;
        let length = input.samples_of(self.length)?;
        let op = self.clone();
        Ok(Planned::of_waveforms(input.with_samples(Some(length)), move |waveform, _| op.apply(waveform)))
    }

    fn part(&self, samples: Option<u64>, rate: u32, _: At) -> Option<Range<u64>> {
        let length = self.length.samples(rate);
        let first = match self.anchor {
            Anchor::Start => 0,
            Anchor::Center => samples?.saturating_sub(length) / 2,
        };
        Some(first..first.saturating_add(length).min(samples.unwrap_or(u64::MAX)))
    }
}

fn check_length(length: Span) -> Result<(), String> {
    length.check("length")?;
    match length {
        Span::Samples(0) => Err("`length` is 0 samples: give at least 1".into()),
        Span::Seconds(seconds) if seconds <= 0.0 => {
            Err(format!("`length` is {seconds} seconds: give more than 0"))
        }
        _ => Ok(()),
    }
}

fn in_samples(length: Span, rate: u32) -> usize {
    usize::try_from(length.samples(rate)).unwrap_or(usize::MAX)
}

/// A waveform of at most `length` samples, with others before and behind it to have as many.
fn padded(
    op: &'static str,
    waveform: Waveform,
    before: usize,
    length: usize,
    mode: Padding,
) -> Result<Waveform, OpError> {
    let (found, rate) = (waveform.samples(), waveform.rate());
    if found == length {
        return Ok(waveform);
    }
    if found == 0 && mode == Padding::Circular {
        let way_out = "leave empty ones out, or set `pad_mode` to \"constant\"";
        return Err(OpError::TooShort { op, found, needed: 1, way_out });
    }
    let channels = waveform.into_channels().into_iter().map(|mut samples| match mode {
        Padding::Constant if before == 0 => {
            samples.resize(length, 0.0);
            samples
        }
        Padding::Constant => {
            let mut made = vec![0.0; length];
            made[before..before + found].copy_from_slice(&samples);
            made
        }
        Padding::Circular => {
            let first = (found - before % found) % found;
            samples.iter().cycle().skip(first).take(length).copied().collect()
        }
    });
    Ok(Waveform::with(channels.collect(), rate))
}
