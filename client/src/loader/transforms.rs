//! The transforms of a loader: those of pictures, or with the feature `audio` those of sounds, and those of other columns.

use std::str::FromStr;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use shardd_columns::Columns;
use shardd_transforms::document::{self, VERSION};
use shardd_transforms::{Chain, OnError};

use super::error::LoadError;

/// Transforms as data: of single samples, of whole columns, or of both.
///
/// ```
/// use shardd_client::loader::Transforms;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pictures: Transforms = r#"[{"type": "Resize", "size": [32, 32]}]"#.parse()?;
/// assert!(pictures.pictures().is_some());
///
/// let both: Transforms = r#"{
///     "columns": {"age": [{"type": "Normalize", "mean": 40, "std": 10}]},
///     "samples": {"transforms": [{"type": "Resize", "size": [32, 32]}]}
/// }"#
/// .parse()?;
/// assert!(both.pictures() == pictures.pictures() && both.columns().is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Transforms {
    /// One of the two is there.
    samples: Option<SampleTransforms>,
    columns: Option<shardd_columns::Chain>,
}

/// Transforms of one column, sample by sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SampleTransforms {
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

    /// Those of single samples.
    pub fn samples(&self) -> Option<&SampleTransforms> {
        self.samples.as_ref()
    }

    /// Those of columns.
    pub fn columns(&self) -> Option<&shardd_columns::Chain> {
        self.columns.as_ref()
    }

    /// Those of pictures.
    pub fn pictures(&self) -> Option<&Chain> {
        match self.samples.as_ref()? {
            SampleTransforms::Pictures(chain) => Some(chain),
            #[cfg(feature = "audio")]
            SampleTransforms::Sounds(_) => None,
        }
    }

    /// Those of pictures, to be changed.
    pub fn pictures_mut(&mut self) -> Option<&mut Chain> {
        match self.samples.as_mut()? {
            SampleTransforms::Pictures(chain) => Some(chain),
            #[cfg(feature = "audio")]
            SampleTransforms::Sounds(_) => None,
        }
    }

    /// What happens with a sample that cannot be decoded or changed. A value of a column that has no result is always an error.
    pub fn on_error(&self) -> OnError {
        self.samples.as_ref().map_or(OnError::Raise, SampleTransforms::on_error)
    }

    /// Does something else with such a sample.
    pub fn set_on_error(&mut self, on_error: OnError) {
        match &mut self.samples {
            Some(SampleTransforms::Pictures(chain)) => chain.on_error = on_error,
            #[cfg(feature = "audio")]
            Some(SampleTransforms::Sounds(chain)) => chain.on_error = on_error,
            None => {}
        }
    }

    /// How many numbers their operations on samples have.
    pub fn count(&self) -> u64 {
        match &self.samples {
            Some(SampleTransforms::Pictures(chain)) => chain.count(),
            #[cfg(feature = "audio")]
            Some(SampleTransforms::Sounds(chain)) => chain.count(),
            None => 0,
        }
    }

    /// Their JSON, with all defaults.
    ///
    /// # Panics
    /// Never: all keys are strings.
    pub fn to_json(&self) -> String {
        /// The document of both.
        #[derive(Serialize)]
        struct Both<'a> {
            #[serde(flatten)]
            columns: &'a shardd_columns::Chain,
            samples: &'a SampleTransforms,
        }

        match (&self.samples, &self.columns) {
            (Some(samples), None) => samples.to_json(),
            (None, Some(columns)) => columns.to_json(),
            (Some(samples), Some(columns)) => {
                serde_json::to_string(&Both { columns, samples }).expect("transforms are JSON")
            }
            (None, None) => unreachable!("made of at least one of the two"),
        }
    }

    /// The BLAKE3 of their JSON, in hexadecimal digits.
    pub fn digest(&self) -> String {
        blake3::hash(self.to_json().as_bytes()).to_hex().to_string()
    }
}

impl SampleTransforms {
    /// The column that they name.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Pictures(chain) => chain.column.as_deref(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.column.as_deref(),
        }
    }

    /// Those of pictures, if they are.
    pub fn pictures(&self) -> Option<&Chain> {
        match self {
            Self::Pictures(chain) => Some(chain),
            #[cfg(feature = "audio")]
            Self::Sounds(_) => None,
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

    fn to_json(&self) -> String {
        match self {
            Self::Pictures(chain) => chain.to_json(),
            #[cfg(feature = "audio")]
            Self::Sounds(chain) => chain.to_json(),
        }
    }
}

impl From<SampleTransforms> for Transforms {
    fn from(samples: SampleTransforms) -> Self {
        Self { samples: Some(samples), columns: None }
    }
}

impl From<Chain> for Transforms {
    fn from(chain: Chain) -> Self {
        SampleTransforms::Pictures(Box::new(chain)).into()
    }
}

#[cfg(feature = "audio")]
impl From<shardd_audio::Chain> for Transforms {
    fn from(chain: shardd_audio::Chain) -> Self {
        SampleTransforms::Sounds(Box::new(chain)).into()
    }
}

impl From<shardd_columns::Chain> for Transforms {
    fn from(chain: shardd_columns::Chain) -> Self {
        Self { samples: None, columns: Some(chain) }
    }
}

impl From<(SampleTransforms, shardd_columns::Chain)> for Transforms {
    fn from((samples, columns): (SampleTransforms, shardd_columns::Chain)) -> Self {
        Self { samples: Some(samples), columns: Some(columns) }
    }
}

/// The document of transforms of columns, and of single samples beside them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default, rename = "version")]
    _version: Option<u32>,
    columns: Columns,
    #[serde(default)]
    samples: Option<serde_json::Value>,
}

impl FromStr for Transforms {
    type Err = LoadError;

    /// From JSON: a document with `columns` is of columns, and has other transforms as `samples`; one with `audio` is of sounds.
    fn from_str(json: &str) -> Result<Self, LoadError> {
        if !has_columns(json) {
            return json.parse().map(|samples: SampleTransforms| samples.into());
        }
        let refused = |error| LoadError::from(shardd_columns::ChainError::Json(error));
        match document::version(json).map_err(refused)? {
            VERSION => {}
            version => return Err(shardd_columns::ChainError::Version(version).into()),
        }
        let document: Document = serde_json::from_str(json).map_err(refused)?;
        let samples = document.samples.map(|samples| samples.to_string().parse()).transpose()?;
        Ok(Self { samples, columns: Some(shardd_columns::Chain::new(document.columns)) })
    }
}

/// Whether a document has transforms of columns.
fn has_columns(json: &str) -> bool {
    #[derive(Deserialize)]
    struct Head {
        columns: Option<IgnoredAny>,
    }

    // Serde takes a list for a struct, too.
    let is_object = json.trim_start().starts_with('{');
    is_object && serde_json::from_str(json).is_ok_and(|head: Head| head.columns.is_some())
}

impl FromStr for SampleTransforms {
    type Err = LoadError;

    fn from_str(json: &str) -> Result<Self, LoadError> {
        #[cfg(feature = "audio")]
        if shardd_audio::Chain::is_audio(json) {
            return Ok(Self::Sounds(Box::new(json.parse()?)));
        }
        #[cfg(not(feature = "audio"))]
        if is_audio(json) {
            let message =
                "the transforms are of sounds, and this program is built without the feature `audio`";
            return Err(LoadError::Config(message.into()));
        }
        Ok(Self::Pictures(Box::new(json.parse()?)))
    }
}

#[cfg(not(feature = "audio"))]
fn is_audio(json: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(json).is_ok_and(|document| document.get("audio").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURES: &str = r#"{"transforms": [{"type": "Resize", "size": [32, 32]}]}"#;
    const COLUMNS: &str = r#"{"columns": {"age": [{"type": "Normalize", "mean": 38.6, "std": 13.6}]}}"#;

    #[test]
    fn a_document_of_both_is_its_two_parts() {
        let [pictures, columns]: [Transforms; 2] = [PICTURES, COLUMNS].map(|json| json.parse().unwrap());
        let both: Transforms =
            format!("{}, \"samples\": {PICTURES}}}", &COLUMNS[..COLUMNS.len() - 1]).parse().unwrap();
        assert_eq!((both.pictures(), both.columns()), (pictures.pictures(), columns.columns()));
        for transforms in [pictures, columns, both] {
            let again: Transforms = transforms.to_json().parse().unwrap();
            assert_eq!((again.digest(), &again), (transforms.digest(), &transforms));
        }
    }

    #[test]
    fn transforms_of_pictures_keep_the_digest_of_their_chain() {
        let chain: Chain = PICTURES.parse().unwrap();
        let digest = chain.digest().to_hex().to_string();
        let operations = serde_json::to_string(&chain.transforms).unwrap();
        let of_list: Transforms = operations.parse().unwrap();
        assert_eq!([Transforms::from(chain).digest(), of_list.digest()], [digest.clone(), digest]);
    }

    #[test]
    fn a_document_of_columns_is_refused_with_anything_else() {
        for (json, message) in [
            (r#"{"columns": {}, "layout": "HWC"}"#, "unknown field `layout`"),
            (r#"{"columns": {}, "samples": {"columns": {}}}"#, "unknown field `columns`"),
            (r#"{"columns": {}, "version": 7}"#, "version 7"),
            (r#"{"columns": {"a": 3}}"#, "invalid type"),
        ] {
            let error = json.parse::<Transforms>().expect_err(json).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
