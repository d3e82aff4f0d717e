//! Chains of transforms, for Python to check and to try on single samples.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use shardd_transforms::{Dtype, Image, Input, Op, Place, Transform, Value};

/// A chain of transforms.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Chain {
    pub(crate) inner: shardd_transforms::Chain,
}

/// The type of numbers, their shape, and their bytes.
type Numbers<'py> = (String, [usize; 3], Bound<'py, PyByteArray>);

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
        self.inner.digest().to_hex().to_string()
    }

    /// How many numbers its operations on samples have.
    #[getter]
    fn count(&self) -> u64 {
        self.inner.count()
    }

    /// The names of all operations.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        Op::NAMES.to_vec()
    }

    /// The name of an operation that is nearest to this one.
    #[staticmethod]
    fn nearest(name: &str) -> &'static str {
        Op::nearest(name)
    }

    /// A sample's picture as a batch has it. `shape` is that of its bytes, if they are pixels. Its operations have numbers from
    /// `first` on.
    #[pyo3(signature = (sample, shape, seed, epoch, position, first=0))]
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
    ) -> PyResult<Numbers<'py>> {
        let transform = self.transform(shape.as_deref())?.numbered_from(first);
        let mut numbers = vec![0; transform.bytes()];
        let place = Place { seed, epoch, position };
        py.detach(|| transform.apply(&sample, place, &mut numbers)).map_err(refused)?;
        Ok((transform.dtype().to_string(), transform.shape(), PyByteArray::new(py, &numbers)))
    }

    /// The operations, and a sample's picture behind each; the decoded one first, without an operation. Channels are last.
    fn stages<'py>(
        &self,
        py: Python<'py>,
        sample: Vec<u8>,
        shape: Option<Vec<usize>>,
        seed: u64,
        epoch: u64,
        position: u64,
    ) -> PyResult<Vec<(Option<String>, Numbers<'py>)>> {
        let transform = self.transform(shape.as_deref())?;
        let place = Place { seed, epoch, position };
        let stages = py.detach(|| transform.stages(&sample, place)).map_err(refused)?;
        let picture = |value: Value| match value {
            Value::Bytes(image) => (Dtype::Uint8, image.shape(), image.into_pixels()),
            Value::Floats(image) => (Dtype::Float32, image.shape(), bytes(&image)),
        };
        let stages = stages.into_iter().map(|stage| {
            let (dtype, shape, bytes) = picture(stage.value);
            (stage.op, (dtype.to_string(), shape, PyByteArray::new(py, &bytes)))
        });
        Ok(stages.collect())
    }
}

impl Chain {
    fn transform(&self, shape: Option<&[usize]>) -> PyResult<Transform> {
        let input = shape.map_or(Ok(Input::Encoded), Input::of_shape).map_err(refused)?;
        Transform::new(self.inner.clone(), input).map_err(refused)
    }
}

fn bytes(image: &Image<f32>) -> Vec<u8> {
    image.pixels().iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
