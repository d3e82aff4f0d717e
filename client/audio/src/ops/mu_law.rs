//! Companding to few levels.

use serde::{Deserialize, Serialize};
use shardd_transforms::Dtype;

use super::between;
use crate::error::{OpError, arguments};
use crate::operation::{Operation, Planned};
use crate::value::{Form, Kind};
use crate::waveform::Waveform;

/// `torchaudio.transforms.MuLawEncoding`: levels of a logarithmic scale (ITU-T G.711 without its table).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MuLawEncoding {
    /// Levels, 2 to 2^23.
    pub quantization_channels: usize,
}

impl Default for MuLawEncoding {
    fn default() -> Self {
        Self { quantization_channels: 256 }
    }
}

impl MuLawEncoding {
    /// Whether the arguments can be used.
    ///
    /// # Errors
    /// A text that names the argument and its range.
    pub fn check(&self) -> Result<(), String> {
        between("quantization_channels", self.quantization_channels, 2..=1 << 23)
    }

    /// The levels of each channel's samples: `0..quantization_channels` for samples from -1 to 1.
    ///
    /// # Errors
    /// [`OpError::Argument`] as [`check`](Self::check).
    pub fn apply(&self, waveform: &Waveform) -> Result<Vec<Vec<i64>>, OpError> {
        self.check().map_err(OpError::argument("MuLawEncoding"))?;
        let mu = (self.quantization_channels - 1) as f32;
        let most = libm::log1pf(mu);
        let level = |&x: &f32| {
            let companded = sign(x) * libm::log1pf(mu * x.abs()) / most;
            ((companded + 1.0) / 2.0 * mu + 0.5) as i64
        };
        Ok(waveform.channels().iter().map(|samples| samples.iter().map(level).collect()).collect())
    }
}

impl Operation for MuLawEncoding {
    /// Levels are `uint8` if there are 256 or fewer, and else `float32`.
    fn plan(&self, input: Kind) -> Result<Planned, String> {
        self.check().map_err(|detail| arguments(&detail))?;
        let (_, samples) = input.waveform()?;
        let dtype = if self.quantization_channels <= 256 { Dtype::Uint8 } else { Dtype::Float32 };
        let kind = Kind { form: Form::Levels { samples }, dtype, ..input };
        let op = self.clone();
        Ok(Planned::of_waveforms(kind, move |waveform, _| {
            let levels = op.apply(&waveform)?.into_iter();
            // Levels below 2^23 are exact floats.
            let channels = levels.map(|channel| channel.into_iter().map(|level| level as f32).collect());
            Ok(Waveform::with(channels.collect(), waveform.rate()))
        }))
    }
}

/// -1, 0 or 1, as `torch.sign`.
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0f32.copysign(x) }
}
