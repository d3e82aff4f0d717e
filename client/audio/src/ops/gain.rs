//! Loudness: constant, or rising and falling.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::within;
use crate::error::{OpError, arguments};
use crate::math::linspace;
use crate::operation::{Operation, Planned};
use crate::value::Kind;
use crate::waveform::Waveform;

/// The unit of a gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GainType {
    /// A factor of the samples.
    #[default]
    Amplitude,
    /// A factor of the energy.
    Power,
    /// Decibels.
    Db,
}

/// `torchaudio.transforms.Vol`: samples times a gain, then cut off at -1 and 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vol {
    /// The gain; at least 0 unless in decibels.
    pub gain: f64,
    /// Its unit.
    #[serde(default)]
    pub gain_type: GainType,
}

impl Vol {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        match self.gain_type {
            GainType::Amplitude => within("gain", self.gain, 0.0..=1e30),
            // torchaudio takes the logarithm of the gain.
            GainType::Power => within("gain", self.gain, f64::MIN_POSITIVE..=1e30),
            GainType::Db => within("gain", self.gain, -1e4..=600.0),
        }
    }

    /// The louder or quieter waveform.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn apply(&self, waveform: Waveform) -> Result<Waveform, OpError> {
        self.check().map_err(OpError::argument("Vol"))?;
        let ratio = match self.gain_type {
            GainType::Amplitude => self.gain,
            GainType::Power => self.gain.sqrt(),
            GainType::Db => libm::pow(10.0, self.gain / 20.0),
        } as f32;
        Ok(waveform.map(|x| (x * ratio).clamp(-1.0, 1.0)))
    }
}

impl Operation for Vol {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        input.waveform()?;
        let op = self.clone();
        Ok(Planned::of_waveforms(input, move |waveform, _| op.apply(waveform)))
    }
}

/// The shape of a fade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are torchaudio's; `FadeShape::rising` has the formulas")]
pub enum FadeShape {
    #[default]
    Linear,
    Exponential,
    Logarithmic,
    QuarterSine,
    HalfSine,
}

impl FadeShape {
    /// The factor at a part of a fade in, from 0 to 1.
    fn rising(self, part: f32) -> f32 {
        let x = f64::from(part);
        let factor = match self {
            Self::Linear => return part,
            Self::Exponential => libm::pow(2.0, x - 1.0) * x,
            Self::Logarithmic => libm::log10(0.1 + x) + 1.0,
            Self::QuarterSine => libm::sin(x * PI / 2.0),
            Self::HalfSine => libm::sin(x * PI - PI / 2.0) / 2.0 + 0.5,
        };
        (factor as f32).clamp(0.0, 1.0)
    }

    /// The factor at a part of a fade out, from 0 to 1.
    fn falling(self, part: f32) -> f32 {
        match self {
            Self::Linear => 1.0 - part,
            _ => self.rising((1.0 - f64::from(part)) as f32),
        }
    }
}

/// `torchaudio.transforms.Fade`: rises from silence and falls back to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fade {
    /// Samples of the rise.
    pub fade_in_len: usize,
    /// Samples of the fall.
    pub fade_out_len: usize,
    /// The shape of both.
    pub fade_shape: FadeShape,
}

impl Fade {
    /// Whether the arguments can be used: all can, for waveforms that are long enough.
    ///
    /// # Errors
    /// None.
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The faded waveform.
    ///
    /// # Errors
    /// [`OpError::TooShort`] if a fade is longer than the waveform.
    pub fn apply(&self, mut waveform: Waveform) -> Result<Waveform, OpError> {
        let found = waveform.samples();
        self.long_enough(found)?;
        let shape = self.fade_shape;
        let mut factors = vec![1.0f32; found];
        for (factor, part) in factors.iter_mut().zip(linspace(0.0, 1.0, self.fade_in_len)) {
            *factor = shape.rising(part);
        }
        let fall = linspace(0.0, 1.0, self.fade_out_len);
        for (factor, part) in factors[found - self.fade_out_len..].iter_mut().zip(fall) {
            *factor *= shape.falling(part);
        }
        for samples in waveform.channels_mut() {
            samples.iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor);
        }
        Ok(waveform)
    }

    fn long_enough(&self, found: usize) -> Result<(), OpError> {
        let needed = self.fade_in_len.max(self.fade_out_len);
        if found < needed {
            let way_out = "shorten `fade_in_len` and `fade_out_len`, or pad the waveform";
            return Err(OpError::TooShort { op: "Fade", found, needed, way_out });
        }
        Ok(())
    }
}

impl Operation for Fade {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        if let Some(samples) = input.waveform()?.1 {
            self.long_enough(samples).map_err(|error| error.reason())?;
        }
        let op = self.clone();
        Ok(Planned::of_waveforms(input, move |waveform, _| op.apply(waveform)))
    }
}
