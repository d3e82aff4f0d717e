//! The weights of a model: the place and the initial value of each parameter, the digest of all, and their
//! file. Knows nothing of tensors or training.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo, TensorView};
use shardfmt::digest::Digest;
use thiserror::Error;

use crate::name_pattern::{NamePattern, listed, without_match};

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in [-bound, bound).
    Uniform {
        /// The largest magnitude.
        bound: f32,
    },
}

/// One named tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Unique in the model, such as `conv1.weight`.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How it starts; `None` as its module was made.
    pub init: Option<Init>,
    /// How much of the optimizer's weight decay applies; nothing of it to biases and normalisation.
    pub decay: f32,
    /// Whether it is trained, or frozen.
    pub is_trained: bool,
}

/// Running numbers of a model, such as the mean of a normalisation layer: each virtual rank has its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Unique in the model, such as `conv1.norm.running_mean`.
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Its initial values.
    pub initial: Vec<f32>,
}

/// The running numbers of a virtual rank: by block, then by buffer.
pub type Running = Vec<Vec<Vec<f32>>>;

impl Parameter {
    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its first values, `None` if they are those of its module. A function of seed and name alone, the same on every machine: the k-th number
    /// is made of the k-th four bytes of a BLAKE3 output stream, so neither order nor thread count enters.
    pub fn initial(&self, seed: u64) -> Option<Vec<f32>> {
        let bound = match self.init? {
            Init::Zeros => return Some(vec![0.0; self.len()]),
            Init::Ones => return Some(vec![1.0; self.len()]),
            Init::Uniform { bound } => bound,
        };
        let mut hasher = blake3::Hasher::new_derive_key("shardd 2026 parameter initialisation v1");
        hasher.update(&seed.to_le_bytes());
        hasher.update(self.name.as_bytes());
        let mut stream = vec![0; self.len() * 4];
        hasher.finalize_xof().fill(&mut stream);
        let uniform = |bytes: &[u8; 4]| {
            // 24 bits fit a float exactly; every operation below is exact but the last multiplication.
            let unit = (u32::from_le_bytes(*bytes) >> 8) as f32 / (1 << 23) as f32 - 1.0;
            unit * bound
        };
        Some(stream.as_chunks().0.iter().map(uniform).collect())
    }
}

/// Where the parameters of one block lie in its flat buffer: one after the other, in the block's order.
pub fn ranges(parameters: &[Parameter]) -> Vec<Range<usize>> {
    let mut start = 0;
    let range = |parameter: &Parameter| {
        let end = start + parameter.len();
        std::mem::replace(&mut start, end)..end
    };
    parameters.iter().map(range).collect()
}

/// A named tensor with its values, in the model's order: the part that is hashed and saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Unique in the model.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// All parameters of a trained model, then its averaged running numbers.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_trainer::weights::{Named, Weights};
///
/// let head = Named { name: "head.bias".into(), shape: vec![2], values: vec![0.5, -0.5] };
/// let weights = Weights(vec![head]);
/// let read = Weights::from_safetensors(&weights.to_safetensors()?)?;
/// assert_eq!(read.digest(), weights.digest());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(pub Vec<Named>);

/// Why weights could not be saved or read.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The bytes are not a safetensors file, or not one of ours.
    #[error("not a safetensors file of f32 tensors")]
    Format(#[from] safetensors::SafeTensorError),
    /// The file cannot be written.
    #[error("the file cannot be written")]
    Write(#[source] safetensors::SafeTensorError),
    /// A tensor has another type.
    #[error("tensor {name} has type {found:?}, only f32 is read")]
    Type {
        /// Which tensor.
        name: String,
        /// Its type in the file.
        found: Dtype,
    },
    /// The file lacks tensors of the model.
    #[error("there is no tensor {names}; the model is another one")]
    Missing {
        /// Which.
        names: String,
    },
    /// The file has tensors that the model lacks.
    #[error("the model has no tensor {names}; it is another one")]
    Unknown {
        /// Which.
        names: String,
    },
    /// A tensor has other dimensions.
    #[error("tensor {name} is {found:?}, the model's is {expected:?}")]
    Shape {
        /// Which.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// In the model.
        expected: Vec<usize>,
    },
    /// A pattern of tensors to leave out matches none.
    #[error("no tensor matches {pattern}; the file has {names}")]
    NoMatch {
        /// Which.
        pattern: String,
        /// The tensors of the file.
        names: String,
    },
    /// The header lacks the order of the tensors, or names others.
    #[error("the file does not say in which order its tensors come")]
    Order,
}

/// The file's metadata key that keeps the model's order, which the format itself does not.
const ORDER: &str = "shardd.order";

/// How a file begins that [`Weights::to_safetensors`] makes of tensors of these names and dimensions, in this order; and where after that each
/// tensor's bytes begin.
///
/// # Errors
/// When the format cannot hold them.
pub(crate) fn safetensors_header(
    tensors: &[(&str, &[usize])],
) -> Result<(Vec<u8>, Vec<usize>), WeightsError> {
    let mut by_name: Vec<usize> = (0..tensors.len()).collect();
    by_name.sort_by_key(|&index| tensors[index].0);
    let (mut starts, mut infos) = (vec![0; tensors.len()], Vec::with_capacity(tensors.len()));
    let mut end = 0;
    for index in by_name {
        let (name, shape) = (tensors[index].0.to_owned(), tensors[index].1.to_vec());
        starts[index] = end;
        end += shape.iter().product::<usize>() * size_of::<f32>();
        infos.push((name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (starts[index], end) }));
    }
    let header = Metadata::new(Some(order_of(tensors.iter().map(|(name, _)| *name))), infos)?;
    let mut json = serde_json::to_vec(&header).expect("names and numbers serialize");
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok(([&(json.len() as u64).to_le_bytes()[..], &json].concat(), starts))
}

/// The metadata that keeps the order of tensors.
fn order_of<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<String, String> {
    // One entry only: the writer keeps them in a hash map.
    [(ORDER.to_owned(), serde_json::json!(names.collect::<Vec<_>>()).to_string())].into()
}

/// Tensors by name.
type Views<'a> = Vec<(&'a str, TensorView<'a>)>;

impl Weights {
    /// BLAKE3 over every tensor's name, shape and little-endian values, in the model's order; lengths go
    /// before the measured parts. Equal digests mean equal models to the last bit.
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for Named { name, shape, values } in &self.0 {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
            hasher.update(&(shape.len() as u64).to_le_bytes());
            for &size in shape {
                hasher.update(&(size as u64).to_le_bytes());
            }
            hasher.update(bytemuck::cast_slice(values));
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// The weights as a safetensors file, the same bytes for the same weights.
    ///
    /// # Errors
    /// When the format cannot hold them.
    pub fn to_safetensors(&self) -> Result<Vec<u8>, WeightsError> {
        let (views, metadata) = self.views()?;
        Ok(safetensors::serialize(views, Some(metadata))?)
    }

    /// Writes the same to a file, without a second copy of them in memory.
    ///
    /// # Errors
    /// When the format cannot hold them, or the file cannot be written.
    pub fn write_safetensors(&self, path: &Path) -> Result<(), WeightsError> {
        let (views, metadata) = self.views()?;
        safetensors::serialize_to_file(views, Some(metadata), path).map_err(WeightsError::Write)
    }

    /// The parts of a safetensors file.
    fn views(&self) -> Result<(Views<'_>, HashMap<String, String>), WeightsError> {
        let mut views = Vec::with_capacity(self.0.len());
        for Named { name, shape, values } in &self.0 {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))?;
            views.push((name.as_str(), view));
        }
        Ok((views, order_of(self.0.iter().map(|named| named.name.as_str()))))
    }

    /// Reads what [`Weights::to_safetensors`] wrote.
    ///
    /// # Errors
    /// When the bytes are not such a file.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Weights, WeightsError> {
        let (_, header) = safetensors::SafeTensors::read_metadata(bytes)?;
        let order = header.metadata().as_ref().and_then(|metadata| metadata.get(ORDER));
        let order: Vec<String> =
            order.and_then(|json| serde_json::from_str(json).ok()).ok_or(WeightsError::Order)?;
        let file = safetensors::SafeTensors::deserialize(bytes)?;
        if order.len() != file.len() {
            return Err(WeightsError::Order);
        }
        Weights::read(&file, order)
    }

    /// Reads any safetensors file of f32 tensors, in the order of their names.
    ///
    /// # Errors
    /// When the bytes are not such a file.
    pub fn import(bytes: &[u8]) -> Result<Weights, WeightsError> {
        let file = safetensors::SafeTensors::deserialize(bytes)?;
        let mut names: Vec<String> = file.names().iter().map(ToString::to_string).collect();
        names.sort();
        Weights::read(&file, names)
    }

    fn read(file: &safetensors::SafeTensors<'_>, names: Vec<String>) -> Result<Weights, WeightsError> {
        let read = |name: String| {
            let tensor = file.tensor(&name)?;
            if tensor.dtype() != Dtype::F32 {
                return Err(WeightsError::Type { name, found: tensor.dtype() });
            }
            let values = bytemuck::pod_collect_to_vec(tensor.data());
            Ok(Named { shape: tensor.shape().to_vec(), name, values })
        };
        names.into_iter().map(read).collect::<Result<_, _>>().map(Weights)
    }
}

/// A tensor that a model takes from a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: &'a [usize],
    /// Whether the file may lack it.
    pub(crate) is_optional: bool,
}

impl Weights {
    /// The values of these tensors, in the order of `wanted`; of a tensor that `skip` matches, or that is optional
    /// and not there, none.
    ///
    /// # Errors
    /// Names the tensors that are missing, unwanted, or of other dimensions, and the pattern that matches none.
    pub(crate) fn pick(
        &self,
        wanted: &[Wanted<'_>],
        skip: &[NamePattern],
    ) -> Result<Vec<Option<&[f32]>>, WeightsError> {
        let by_name: HashMap<&str, &Named> = self.0.iter().map(|named| (&named.name[..], named)).collect();
        let list = |names: Vec<&str>| names.join(", ");
        let of_file: Vec<&str> = self.0.iter().map(|named| &named.name[..]).collect();
        let all: Vec<&str> = wanted.iter().map(|it| it.name).chain(of_file.iter().copied()).collect();
        if let Some(pattern) = without_match(skip, &all) {
            return Err(WeightsError::NoMatch { pattern: pattern.to_string(), names: listed(&of_file) });
        }
        let is_skipped = |name: &str| skip.iter().any(|pattern| pattern.matches(name));
        let find = |name: &str| by_name.get(name).copied().filter(|_| !is_skipped(name));
        let is_missing =
            |it: &&Wanted<'_>| !it.is_optional && !is_skipped(it.name) && find(it.name).is_none();
        let missing: Vec<&str> = wanted.iter().filter(is_missing).map(|it| it.name).collect();
        if !missing.is_empty() {
            return Err(WeightsError::Missing { names: list(missing) });
        }
        let names: HashSet<&str> = wanted.iter().map(|it| it.name).collect();
        let is_unknown = |name: &&str| !names.contains(name) && !is_skipped(name);
        let unknown: Vec<&str> = of_file.into_iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            return Err(WeightsError::Unknown { names: list(unknown) });
        }
        let pick = |Wanted { name, shape, .. }: &Wanted<'_>| match find(name) {
            Some(named) if named.shape != *shape => {
                let (found, expected) = (named.shape.clone(), shape.to_vec());
                Err(WeightsError::Shape { name: (*name).to_owned(), found, expected })
            }
            found => Ok(found.map(|named| &named.values[..])),
        };
        wanted.iter().map(pick).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str) -> Parameter {
        Parameter {
            name: name.to_owned(),
            shape: vec![40, 50],
            init: Some(Init::Uniform { bound: 0.5 }),
            decay: 1.0,
            is_trained: true,
        }
    }

    fn weights() -> Weights {
        let named = |name: &str| Named {
            name: name.to_owned(),
            shape: vec![40, 50],
            values: parameter(name).initial(1).unwrap(),
        };
        Weights(vec![named("zebra"), named("ant")])
    }

    #[test]
    fn initial_values_follow_from_seed_and_name() {
        let first = parameter("a").initial(7).unwrap();
        assert_eq!(first, parameter("a").initial(7).unwrap());
        assert_ne!(first, parameter("b").initial(7).unwrap());
        assert_ne!(first, parameter("a").initial(8).unwrap());
        // A golden value: weights must not change between releases.
        assert_eq!(first[..3].iter().map(|value| value.to_bits()).collect::<Vec<_>>(), GOLDEN);
    }
    const GOLDEN: [u32; 3] = [1_053_383_346, 3_189_017_068, 1_051_394_696];

    #[test]
    fn initial_values_are_uniform() {
        let values = parameter("a").initial(7).unwrap();
        assert!(values.iter().all(|value| (-0.5..0.5).contains(value)));
        let mean = values.iter().sum::<f32>() / 2_000.0;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 2_000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((variance - 1.0 / 12.0).abs() < 0.01, "{variance}");
    }

    #[test]
    fn saved_weights_come_back_in_order() {
        let bytes = weights().to_safetensors().unwrap();
        assert_eq!(Weights::from_safetensors(&bytes).unwrap(), weights());
        assert_eq!(bytes, weights().to_safetensors().unwrap(), "same weights, same bytes");
    }

    #[test]
    fn the_header_is_that_of_the_file() {
        let bytes = weights().to_safetensors().unwrap();
        let (header, starts) = safetensors_header(&[("zebra", &[40, 50]), ("ant", &[40, 50])]).unwrap();
        assert_eq!(starts, [8_000, 0], "by name, whatever the model's order");
        assert_eq!(&bytes[..header.len()], header);
        assert_eq!(bytes.len(), header.len() + 16_000);
    }

    #[test]
    fn the_digest_sees_every_bit_name_and_shape() {
        let digest = weights().digest();
        let mut changed = weights();
        changed.0[1].values[3] = f32::from_bits(changed.0[1].values[3].to_bits() ^ 1);
        assert_ne!(changed.digest(), digest);
        let mut renamed = weights();
        renamed.0[0].name.push('s');
        assert_ne!(renamed.digest(), digest);
        let mut reshaped = weights();
        reshaped.0[0].shape = vec![50, 40];
        assert_ne!(reshaped.digest(), digest);
    }

    #[test]
    fn anything_else_is_refused() {
        assert!(Weights::from_safetensors(b"no tensors here").is_err());
        let none: [(&str, TensorView<'_>); 0] = [];
        let without_order = safetensors::serialize(none, None).unwrap();
        assert!(matches!(Weights::from_safetensors(&without_order), Err(WeightsError::Order)));
    }
}
