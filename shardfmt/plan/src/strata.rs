//! Strata: a part of the samples for each label, or for each range of sizes, of which every partition always holds as many.
//! Which stratum each sample is in does not follow from the rows of the shards, so it is written down, in an object that the
//! plan document names by its digest. Knows nothing of partitions.
//!
//! Encoding, integers little-endian: `SHSTRATA`, u32 format 1, u32 number of strata S, u64 number of samples
//! N; the column of the strata and then the name of each stratum, a text as u32 length and UTF-8; the stratum
//! of each sample in manifest order, a u8 where S is at most 256, else a u16.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{PlanError, SampleNo};
use crate::digest::StrataId;

const MAGIC: &[u8; 8] = b"SHSTRATA";
const FORMAT: u32 = 1;
/// Most strata there can be.
pub(crate) const MOST: usize = 1 << 16;
/// Strata up to this many take a byte of each sample.
const BYTE: usize = 1 << 8;
/// Most samples in strata: a plan lists them by stratum, 4 bytes each.
const MOST_SAMPLES: u64 = 1 << 32;

/// Which stratum each sample of a version is in.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::{SampleNo, Strata};
///
/// let strata = Strata::new("label", vec!["cat".into(), "dog".into()], &[0, 1, 1])?;
/// assert_eq!(strata.sizes(), [1, 2]);
/// assert_eq!(strata.of(SampleNo(2)), 1);
/// assert_eq!(Strata::decode(&strata.encode())?, strata);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strata {
    by: String,
    names: Vec<String>,
    of_sample: OfSample,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OfSample {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

impl Strata {
    /// Strata with these names, `by` the property they are made by, and the stratum of each sample in
    /// manifest order.
    ///
    /// # Errors
    /// [`PlanError::Strata`] if there are none or more than 65,536, or a sample is in none of them.
    pub fn new(by: &str, names: Vec<String>, of_sample: &[u16]) -> Result<Self, PlanError> {
        let refused = |reason: String| PlanError::Strata { reason };
        if names.is_empty() || names.len() > MOST {
            return Err(refused(format!("there are {}, and a plan has 1 to {MOST}", names.len())));
        }
        if of_sample.len() as u64 > MOST_SAMPLES {
            return Err(refused(format!(
                "they are of {} samples, and at most 2^32 have strata",
                of_sample.len()
            )));
        }
        if let Some((sample, stratum)) =
            (0_u64..).zip(of_sample).find(|(_, stratum)| usize::from(**stratum) >= names.len())
        {
            return Err(refused(format!("sample {sample} is in stratum {stratum} of {}", names.len())));
        }
        let of_sample = match names.len() {
            ..=BYTE => OfSample::Bytes(of_sample.iter().map(|stratum| *stratum as u8).collect()),
            _ => OfSample::Words(of_sample.to_vec()),
        };
        Ok(Strata { by: by.to_owned(), names, of_sample })
    }

    /// The property of the strata, such as `label`.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// The names of the strata.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many samples are in strata.
    pub fn sample_count(&self) -> u64 {
        match &self.of_sample {
            OfSample::Bytes(strata) => strata.len() as u64,
            OfSample::Words(strata) => strata.len() as u64,
        }
    }

    /// The stratum of a sample.
    ///
    /// # Panics
    /// If there is no such sample.
    #[inline]
    pub fn of(&self, sample: SampleNo) -> u16 {
        match &self.of_sample {
            OfSample::Bytes(strata) => strata[sample.0 as usize].into(),
            OfSample::Words(strata) => strata[sample.0 as usize],
        }
    }

    /// How many samples are in each stratum.
    pub fn sizes(&self) -> Vec<u64> {
        let mut sizes = vec![0; self.names.len()];
        (0..self.sample_count()).for_each(|sample| sizes[usize::from(self.of(SampleNo(sample)))] += 1);
        sizes
    }

    /// The encoding, which gives the strata their id.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes =
            [&MAGIC[..], &FORMAT.to_le_bytes(), &(self.names.len() as u32).to_le_bytes()].concat();
        bytes.extend(self.sample_count().to_le_bytes());
        for text in std::iter::once(&self.by).chain(&self.names) {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        match &self.of_sample {
            OfSample::Bytes(strata) => bytes.extend(strata),
            OfSample::Words(strata) => bytes.extend(strata.iter().flat_map(|stratum| stratum.to_le_bytes())),
        }
        bytes
    }

    /// Reads the encoding.
    ///
    /// # Errors
    /// [`PlanError::Strata`] if the bytes are none, are cut off or are of a later format.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let mut rest = bytes;
        let strata = Self::read(&mut rest);
        strata.map_err(|reason| PlanError::Strata { reason })
    }

    fn read(rest: &mut &[u8]) -> Result<Self, String> {
        if take(rest, 8)? != MAGIC {
            return Err("this is not their encoding".to_owned());
        }
        let format = u32_of(rest)?;
        if format != FORMAT {
            return Err(format!(
                "they have format {format}, and this release reads {FORMAT}: upgrade shardd"
            ));
        }
        let count = u32_of(rest)? as usize;
        if count > MOST {
            return Err(format!("there are {count}, and a plan has 1 to {MOST}"));
        }
        let samples = u64::from_le_bytes(take(rest, 8)?.try_into().expect("8 bytes"));
        let by = text(rest)?;
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(text(rest)?);
        }
        let width = if count <= BYTE { 1 } else { 2 };
        if samples.checked_mul(width) != Some(rest.len() as u64) {
            return Err(format!("{} bytes are no list of {samples} samples", rest.len()));
        }
        let of_sample: Vec<u16> = match width {
            1 => rest.iter().map(|stratum| u16::from(*stratum)).collect(),
            _ => rest.as_chunks::<2>().0.iter().map(|stratum| u16::from_le_bytes(*stratum)).collect(),
        };
        Self::new(&by, names, &of_sample).map_err(|error| match error {
            PlanError::Strata { reason } => reason,
            other => other.to_string(),
        })
    }
}

fn take<'b>(rest: &mut &'b [u8], length: usize) -> Result<&'b [u8], String> {
    let (head, tail) = rest.split_at_checked(length).ok_or("they are cut off")?;
    *rest = tail;
    Ok(head)
}

fn u32_of(rest: &mut &[u8]) -> Result<u32, String> {
    Ok(u32::from_le_bytes(take(rest, 4)?.try_into().expect("4 bytes")))
}

fn text(rest: &mut &[u8]) -> Result<String, String> {
    let length = u32_of(rest)? as usize;
    let bytes = take(rest, length)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name is not UTF-8".to_owned())
}

/// The strata as a plan document has them: their id, which is all that is written of them, and themselves once they are
/// [supplied](super::PlanDocument::supply_strata).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::VersionId;
/// # let version = VersionId::of(b"a manifest");
/// use shardd_plan::{PlanDocument, PlanOptions, Shape, Strata};
/// use std::sync::Arc;
///
/// let strata = Arc::new(Strata::new("label", vec!["cat".into(), "dog".into()], &[0, 1, 1, 0])?);
/// let shape = Shape { shard_rows: vec![4], row_bytes: 400 };
/// let options = PlanOptions { strata: Some(strata.clone()), ..PlanOptions::default() };
/// let document = PlanDocument::with_defaults(version, &shape, options)?;
///
/// // The document's bytes have only the id: supply the strata after you read them.
/// let mut read = PlanDocument::from_bytes(&document.to_bytes())?;
/// assert!(read.strata.as_ref().is_some_and(|strata| strata.get().is_none()));
/// read.supply_strata(&strata.encode())?;
/// assert_eq!(read.strata.as_ref().and_then(|strata| strata.get()), Some(&strata));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StrataOf {
    id: StrataId,
    strata: Option<Arc<Strata>>,
}

impl StrataOf {
    /// Their id.
    pub fn id(&self) -> StrataId {
        self.id
    }

    /// Themselves, if they are here.
    pub fn get(&self) -> Option<&Arc<Strata>> {
        self.strata.as_ref()
    }

    /// The same with the strata whose encoding `bytes` is.
    pub(super) fn supplied(&self, bytes: &[u8]) -> Result<Self, PlanError> {
        if StrataId::of(bytes) != self.id {
            return Err(PlanError::Strata { reason: format!("these are not {}", self.id.short()) });
        }
        Ok(StrataOf { id: self.id, strata: Some(Arc::new(Strata::decode(bytes)?)) })
    }
}

impl From<Arc<Strata>> for StrataOf {
    fn from(strata: Arc<Strata>) -> Self {
        StrataOf { id: StrataId::of(&strata.encode()), strata: Some(strata) }
    }
}

impl PartialEq for StrataOf {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for StrataOf {}

impl Hash for StrataOf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for StrataOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl Serialize for StrataOf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.id.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StrataOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StrataId::deserialize(deserializer).map(|id| StrataOf { id, strata: None })
    }
}
