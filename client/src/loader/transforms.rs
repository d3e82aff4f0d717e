//! The transforms of a loader: those of pictures, or with the feature `audio` those of sounds.

use std::str::FromStr;

use shardd_transforms::{Chain, OnError};

use super::error::LoadError;

/// Transforms of one column, as data.
///
/// ```
/// use shardd_client::loader::Transforms;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let transforms: Transforms = r#"[{"type": "Resize", "size": [32, 32]}]"#.parse()?;
/// assert!(transforms.pictures().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Transforms {
    /// Of pictures.
    Pictures(Box<Chain>),
    /// Of sounds.
    #[cfg(feature = "audio")]
    Sounds(Box<shardd_audio::Chain>),
}

impl Transforms {
    /// Reads transforms from a file, or from JSON, which begins with a bracket: as programs are given them.
    ///
    /// # Errors
    /// When the file cannot be read, or has no transforms.
    pub fn of_argument(given: &str) -> Result<Self, String> {
        let read = |text: &str| text.parse().map_err(|error: LoadError| error.to_string());
        if given.trim_start().starts_with(['[', '{']) {
            return read(given);
        }
        let text = std::fs::read_to_string(given).map_err(|error| error.to_string())?;
        read(&text)
    }

    /// Those of pictures, if they are.
    pub fn pictures(&self) -> Option<&Chain> {
        match self {
            Self::Pictures(chain) => Some(chain),
            #[cfg(feature = "audio")]
            Self::Sounds(_) => None,
        }
    }

    /// Those of pictures, to be changed.
    pub fn pictures_mut(&mut self) -> Option<&mut Chain> {
        match self {
            Self::Pictures(chain) => Some(chain),
            #[cfg(feature = "audio")]
            Self::Sounds(_) => None,
        }
    }

    /// The column that they name.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Pictures(chain) => chain.column.as_deref(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.column.as_deref(),
        }
    }

    /// What happens with a sample that cannot be decoded or changed.
    pub fn on_error(&self) -> OnError {
        match self {
            Self::Pictures(chain) => chain.on_error,
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.on_error,
        }
    }

    /// Does something else with such a sample.
    pub fn set_on_error(&mut self, on_error: OnError) {
        match self {
            Self::Pictures(chain) => chain.on_error = on_error,
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.on_error = on_error,
        }
    }

    /// How many numbers their operations on samples have.
    pub fn count(&self) -> u64 {
        match self {
            Self::Pictures(chain) => chain.count(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.count(),
        }
    }

    /// Their JSON, with all defaults.
    pub fn to_json(&self) -> String {
        match self {
            Self::Pictures(chain) => chain.to_json(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.to_json(),
        }
    }

    /// The BLAKE3 of their JSON, in hexadecimal digits.
    pub fn digest(&self) -> String {
        let digest = match self {
            Self::Pictures(chain) => chain.digest(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.digest(),
        };
        digest.to_hex().to_string()
    }
}

impl From<Chain> for Transforms {
    fn from(chain: Chain) -> Self {
        Self::Pictures(Box::new(chain))
    }
}

#[cfg(feature = "audio")]
impl From<shardd_audio::Chain> for Transforms {
    fn from(chain: shardd_audio::Chain) -> Self {
        Self::Sounds(Box::new(chain))
    }
}

impl FromStr for Transforms {
    type Err = LoadError;

    /// From JSON: a document with `audio` is of sounds.
    fn from_str(json: &str) -> Result<Self, LoadError> {
        #[cfg(feature = "audio")]
        if shardd_audio::Chain::is_audio(json) {
            let chain: shardd_audio::Chain = json.parse()?;
            return Ok(chain.into());
        }
        #[cfg(not(feature = "audio"))]
        if is_audio(json) {
            let message =
                "the transforms are of sounds, and this program is built without the feature `audio`";
            return Err(LoadError::Config(message.into()));
        }
        let chain: Chain = json.parse()?;
        Ok(chain.into())
    }
}

#[cfg(not(feature = "audio"))]
fn is_audio(json: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(json).is_ok_and(|document| document.get("audio").is_some())
}
