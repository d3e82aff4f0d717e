//! The colour of pixels from outside a picture.

use serde::{Deserialize, Serialize};

/// What pixels from outside become: `null`, a number, or a list with a number for each channel.
///
/// As in torchvision, `null` and 0 differ where bilinear interpolation mixes the edge with the outside:
/// `null` weights the edge once, 0 twice.
///
/// ```
/// use shardd_transforms::ops::geometry::Fill;
///
/// assert_eq!(serde_json::from_str::<Fill>("[124, 116, 104]").unwrap().values(), [124.0, 116.0, 104.0]);
/// assert_eq!(Fill::default().values(), [0.0]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Fill {
    /// Black, mixed with the edge.
    None,
    /// This number in all channels.
    Number(f32),
    /// A number for each channel.
    Channels(Vec<f32>),
}

impl Fill {
    /// The numbers, from 0 to 255: none, one for all channels, or one for each.
    ///
    /// Operations round fractions half to even after they mix them with the picture, and take numbers beyond
    /// as 0 or 255. A channel without a number takes the last one. Channels that a picture lacks do not
    /// matter.
    pub fn values(&self) -> &[f32] {
        match self {
            Self::None => &[],
            Self::Number(value) => std::slice::from_ref(value),
            Self::Channels(values) => values,
        }
    }
}

impl Default for Fill {
    fn default() -> Self {
        Self::Number(0.0)
    }
}

impl From<f32> for Fill {
    fn from(value: f32) -> Self {
        Self::Number(value)
    }
}

/// The number of a channel, in `0.0..=255.0`; `None` for no fill.
pub(super) fn fill_of(values: &[f32], channel: usize) -> Option<f32> {
    let value = values.get(channel).or(values.last())?;
    Some(value.clamp(0.0, 255.0))
}
