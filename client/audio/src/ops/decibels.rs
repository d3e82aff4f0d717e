//! From power to decibels.

use serde::{Deserialize, Serialize};

use super::within;
use crate::error::{OpError, arguments};
use crate::math::log10;
use crate::operation::{Operation, Planned};
use crate::value::Kind;
use crate::waveform::Specgram;

/// The kind of numbers in a spectrogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stype {
    /// Energy: 10 decibels are a factor of 10.
    #[default]
    Power,
    /// Magnitudes: 20 decibels are a factor of 10.
    Magnitude,
}

/// `torchaudio.transforms.AmplitudeToDB`: `10 * log10(max(x, 1e-10))`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AmplitudeToDB {
    /// The kind of numbers.
    pub stype: Stype,
    /// Raises all that lies more than this many decibels under the maximum of all channels. Default: none.
    pub top_db: Option<f64>,
}

impl AmplitudeToDB {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        self.top_db.map_or(Ok(()), |top_db| within("top_db", top_db, 0.0..=1e6))
    }

    /// The numbers in decibels.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn apply(&self, mut specgram: Specgram) -> Result<Specgram, OpError> {
        self.check().map_err(OpError::argument("AmplitudeToDB"))?;
        let factor = match self.stype {
            Stype::Power => 10.0,
            Stype::Magnitude => 20.0,
        };
        specgram.data_mut().iter_mut().for_each(|x| *x = factor * log10(at_least(*x, 1e-10)));
        if let Some(top_db) = self.top_db {
            let floor = maximum(specgram.data()) - top_db as f32;
            specgram.data_mut().iter_mut().for_each(|x| *x = at_least(*x, floor));
        }
        Ok(specgram)
    }
}

impl Operation for AmplitudeToDB {
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        input.specgram()?;
        let op = self.clone();
        Ok(Planned::of_specgrams(input, move |specgram, _| op.apply(specgram)))
    }
}

/// The greater of the two, and NaN for NaN.
#[inline(always)]
pub(crate) fn at_least(x: f32, least: f32) -> f32 {
    if x < least { least } else { x }
}

/// The greatest number.
pub(crate) fn maximum(data: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = data.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(most, &x)| *most = at_least(*most, x));
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |most, &x| at_least(most, x))
}
