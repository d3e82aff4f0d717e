//! A random part of a sound.

use serde::{Deserialize, Serialize};

use crate::draw::Draw;
use crate::error::OpError;
use crate::waveform::{Span, Waveform};

/// Cuts out a part of a fixed length at a random place.
///
/// Draws one number, also where there is but one place: the part begins at `floor(uniform() * (samples - length + 1))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomTimeCrop {
    /// The length of the part.
    pub length: Span,
    /// Whether a waveform that is shorter gets zeros at its end; else it is refused.
    #[serde(default)]
    pub pad: bool,
}

impl RandomTimeCrop {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        self.length.check("length")?;
        match self.length {
            Span::Samples(0) => Err("`length` is 0 samples: give at least 1".into()),
            Span::Seconds(seconds) if seconds <= 0.0 => {
                Err(format!("`length` is {seconds} seconds: give more than 0"))
            }
            _ => Ok(()),
        }
    }

    /// The samples that [`apply`](Self::apply) cuts out of a waveform of this many: the first, and their number. For a part of
    /// a file that is not decoded yet.
    pub fn place(&self, samples: usize, rate: u32, draw: &mut impl Draw) -> [usize; 2] {
        let length = self.length.samples(rate).min(usize::MAX as u64) as usize;
        let places = (samples.saturating_sub(length)) as f64 + 1.0;
        let first = (draw.uniform() * places) as usize;
        [first.min(samples), length.min(samples)]
    }

    /// The part.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check), [`OpError::TooShort`] if the waveform is shorter and `pad` is not set,
    /// [`OpError::TooLarge`].
    pub fn apply(&self, waveform: Waveform, draw: &mut impl Draw) -> Result<Waveform, OpError> {
        self.check().map_err(OpError::argument("RandomTimeCrop"))?;
        let [found, rate] = [waveform.samples(), waveform.rate() as usize];
        let needed = self.length.samples(rate as u32).min(usize::MAX as u64) as usize;
        if found < needed && !self.pad {
            let way_out = "set `pad` to true, or leave shorter ones out";
            return Err(OpError::TooShort { op: "RandomTimeCrop", found, needed, way_out });
        }
        crate::error::fits("RandomTimeCrop", [waveform.channels().len(), needed, 1])?;
        let [first, kept] = self.place(found, rate as u32, draw);
        let cut = |mut samples: Vec<f32>| {
            samples.truncate(first + kept);
            samples.drain(..first);
            samples.resize(needed, 0.0);
            samples
        };
        Ok(Waveform::with(waveform.into_channels().into_iter().map(cut).collect(), rate as u32))
    }
}
