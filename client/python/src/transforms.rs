//! Chains of transforms, for Python to check and to try on single samples.

use arrow::datatypes::FieldRef;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shardd_client::loader::{SampleTransforms, Transforms};
use shardd_transforms::{Companion, Companions, Dtype, Given, Image, Input, Op, Place, Transform, Value};
use shardfmt::row::{plain_batch, plain_schema};

use crate::batches::Batch;
use crate::column::Column;

/// Transforms of pictures or sounds, of columns, or of both.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Chain {
    pub(crate) inner: Transforms,
}

/// The type of numbers, their shape, and their bytes; and the companions of a picture.
type Numbers<'py> = (String, Vec<usize>, Bound<'py, PyByteArray>, Vec<Moved>);

/// A companion as Python gives it: its kind, numbers, shape, bytes and count.
type Beside = (String, Vec<f32>, Vec<usize>, Vec<u8>, usize);

/// A companion as Python gets it: numbers, shape, bytes, and the indices of the boxes that are left.
type Moved = (Vec<f32>, Vec<usize>, Vec<u8>, Vec<usize>);

#[pymethods]
impl Chain {
    #[new]
    fn new(json: &str) -> PyResult<Self> {
        Ok(Self { inner: json.parse().map_err(refused)? })
    }

    /// Its JSON, with all defaults.
    #[getter]
    fn json(&self) -> String {
        self.inner.to_json()
    }

    /// The BLAKE3 of its JSON, in hexadecimal digits.
    #[getter]
    fn digest(&self) -> String {
        self.inner.digest()
    }

    /// How many numbers its operations on samples have.
    #[getter]
    fn count(&self) -> u64 {
        self.inner.count()
    }

    /// The names of all operations.
    #[staticmethod]
    #[pyo3(signature = (audio=false))]
    fn names(audio: bool) -> Vec<&'static str> {
        if audio { shardd_audio::Op::NAMES.to_vec() } else { Op::NAMES.to_vec() }
    }

    /// The name of an operation that is nearest to this one.
    #[staticmethod]
    #[pyo3(signature = (name, audio=false))]
    fn nearest(name: &str, audio: bool) -> &'static str {
        if audio { shardd_audio::Op::nearest(name) } else { Op::nearest(name) }
    }

    /// The name of an operation on columns that is nearest to this one.
    #[staticmethod]
    fn nearest_of_columns(name: &str) -> &'static str {
        shardd_columns::Op::nearest(name)
    }

    /// The columns of a record batch as a batch has them. Pictures and sounds stay as they are.
    fn apply_to_columns(&self, py: Python<'_>, batch: &Batch) -> PyResult<Vec<Column>> {
        let Some(chain) = self.inner.columns() else {
            return Err(PyValueError::new_err("these transforms change no columns: call them with a sample"));
        };
        let schema = plain_schema(&batch.0.schema()).map_err(refused)?;
        let batch = plain_batch(&batch.0, &schema).map_err(refused)?;
        let transform = shardd_columns::Transform::new(chain.clone(), &schema).map_err(refused)?;
        let changed = py.detach(|| transform.apply(&batch)).map_err(|error| {
            refused(format!("row {} of column {:?} cannot be transformed: {error}", error.row, error.column))
        })?;
        let column = |(field, array): (&FieldRef, _)| Column::new(field, array);
        Ok(transform.schema().fields().iter().zip(changed.columns()).map(column).collect())
    }

    /// A sample's picture as a batch has it. `shape` is that of its bytes, if they are pixels. Its operations have numbers from
    /// `first` on.
    #[pyo3(signature = (sample, shape, seed, epoch, position, first, given))]
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn apply<'py>(
        &self,
        py: Python<'py>,
        sample: Vec<u8>,
        shape: Option<Vec<usize>>,
        seed: u64,
        epoch: u64,
        position: u64,
        first: u64,
        given: Vec<Beside>,
    ) -> PyResult<Numbers<'py>> {
        let place = Place { seed, epoch, position };
        let chain = match self.samples()? {
            SampleTransforms::Pictures(chain) => chain,
            SampleTransforms::Sounds(chain) => {
                let transform = sounds(chain, shape.as_deref())?.numbered_from(first);
                let mut numbers = vec![0; transform.bytes()];
                py.detach(|| transform.apply(&sample, place, &mut numbers)).map_err(refused)?;
                let dtype = transform.dtype().to_string();
                return Ok((dtype, transform.shape(), PyByteArray::new(py, &numbers), Vec::new()));
            }
        };
        let mut transform = pictures(chain, shape.as_deref())?.numbered_from(first);
        let given = given.iter().map(companion).collect::<PyResult<Vec<_>>>()?;
        if transform.size() == [0, 0] {
            let stages = py.detach(|| transform.stages_with(&sample, &given, place)).map_err(refused)?;
            let size = stages.last().map(|stage| stage.value.size());
            transform = transform.sized(size.unwrap_or_default());
        }
        let mut numbers = vec![0; transform.bytes()];
        let moved =
            py.detach(|| transform.apply_with(&sample, &given, place, &mut numbers)).map_err(refused)?;
        let (dtype, shape) = (transform.dtype().to_string(), transform.shape().to_vec());
        Ok((dtype, shape, PyByteArray::new(py, &numbers), moved_of(moved)))
    }

    /// The operations, and a sample's picture behind each; the decoded one first, without an operation. Channels are last.
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn stages<'py>(
        &self,
        py: Python<'py>,
        sample: Vec<u8>,
        shape: Option<Vec<usize>>,
        seed: u64,
        epoch: u64,
        position: u64,
        given: Vec<Beside>,
    ) -> PyResult<Vec<(Option<String>, Numbers<'py>)>> {
        let place = Place { seed, epoch, position };
        let chain = match self.samples()? {
            SampleTransforms::Pictures(chain) => chain,
            SampleTransforms::Sounds(chain) => {
                let transform = sounds(chain, shape.as_deref())?;
                let stages = py.detach(|| transform.stages(&sample, place)).map_err(refused)?;
                let stage = |stage: shardd_audio::Stage| {
                    let pieces = stage.value.pieces();
                    let bytes: Vec<u8> = pieces.flatten().flat_map(|float| float.to_le_bytes()).collect();
                    let shape = stage.value.shape();
                    (stage.op, (Dtype::Float32.to_string(), shape, PyByteArray::new(py, &bytes), Vec::new()))
                };
                return Ok(stages.into_iter().map(stage).collect());
            }
        };
        let transform = pictures(chain, shape.as_deref())?;
        let given = given.iter().map(companion).collect::<PyResult<Vec<_>>>()?;
        let stages = py.detach(|| transform.stages_with(&sample, &given, place)).map_err(refused)?;
        let picture = |value: Value| match value {
            Value::Bytes(image) => (Dtype::Uint8, image.shape(), image.into_pixels()),
            Value::Floats(image) => (Dtype::Float32, image.shape(), bytes(&image)),
        };
        let stages = stages.into_iter().map(|stage| {
            let (dtype, shape, bytes) = picture(stage.value);
            (
                stage.op,
                (dtype.to_string(), shape.to_vec(), PyByteArray::new(py, &bytes), moved_of(stage.companions)),
            )
        });
        Ok(stages.collect())
    }
}

impl Chain {
    fn samples(&self) -> PyResult<&SampleTransforms> {
        self.inner.samples().ok_or_else(|| {
            PyValueError::new_err("these transforms change whole columns: call them with a record batch")
        })
    }
}

fn pictures(chain: &shardd_transforms::Chain, shape: Option<&[usize]>) -> PyResult<Transform> {
    let input = shape.map_or(Ok(Input::Encoded), Input::of_shape).map_err(refused)?;
    Transform::of_one(chain.clone(), input).map_err(refused)
}

/// Of float32, if a shape is given.
fn sounds(chain: &shardd_audio::Chain, shape: Option<&[usize]>) -> PyResult<shardd_audio::Transform> {
    use shardd_audio::{Input, Number, Transform};
    let input = shape.map_or(Ok(Input::Encoded), |shape| Input::of_shape(shape, Number::Float32));
    Transform::new(chain.clone(), input.map_err(refused)?).map_err(refused)
}

fn companion((kind, numbers, shape, bytes, count): &Beside) -> PyResult<Given<'_>> {
    Ok(match kind.as_str() {
        "boxes" => Given::Boxes(numbers),
        "keypoints" => Given::KeyPoints(numbers),
        "pixels" => Given::Pixels { shape, bytes },
        "encoded" => Given::Encoded(bytes),
        "labels" => Given::Labels(*count),
        other => return Err(PyValueError::new_err(format!("{other:?} is no kind of companion"))),
    })
}

fn moved_of(companions: Companions) -> Vec<Moved> {
    let Companions { all, kept, size } = companions;
    let moved = |companion| match companion {
        Companion::Boxes(boxes) => (boxes.boxes.concat(), Vec::new(), Vec::new(), Vec::new()),
        Companion::KeyPoints(points) => (points.points.concat(), Vec::new(), Vec::new(), Vec::new()),
        Companion::Mask(mask) => {
            let planes = mask.is_stack().then(|| mask.planes().len());
            (Vec::new(), planes.into_iter().chain(size).collect(), mask.into_pixels(), Vec::new())
        }
        Companion::Labels => (Vec::new(), Vec::new(), Vec::new(), kept.clone()),
    };
    all.into_iter().map(moved).collect()
}

fn bytes(image: &Image<f32>) -> Vec<u8> {
    image.pixels().iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
