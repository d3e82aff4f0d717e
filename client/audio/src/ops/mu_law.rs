//! Companding to few levels.

use serde::{Deserialize, Serialize};

use super::between;
use crate::error::OpError;
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

/// -1, 0 or 1, as `torch.sign`.
fn sign(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0f32.copysign(x) }
}
