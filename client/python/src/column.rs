//! A column of a batch, for NumPy, PyTorch, JAX and Arrow to look at where it lies.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int64Array, UInt8Array, make_array, new_empty_array,
};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, UInt32Type};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};

use crate::dlpack;
use crate::memory::TorchMemory;
use crate::tensor::{BFLOAT, Number, Tensor};

/// The note of a column of sparse rows with the number of its features.
pub(crate) const FEATURES: &str = "shardd.features";

/// A column of a batch. Its memory goes back to the loader with the last array or tensor that was made of it.
#[pyclass(frozen, module = "shardd._native")]
pub(crate) struct Column {
    field: FieldRef,
    array: ArrayRef,
    /// How its values lie, if they are numbers of one shape and none is null.
    tensor: Option<Tensor>,
    /// The tensor of PyTorch's in whose memory the values lie, from its first byte on.
    block: Option<Py<PyAny>>,
}

/// The kind of a column's values.
pub(crate) struct Values {
    /// The type of their numbers, if they are numbers of one shape.
    pub(crate) number: Option<String>,
    /// The shape of each value, if they are.
    pub(crate) shape: Option<Vec<usize>>,
    /// The type of their items, if they are lists of numbers that differ in length.
    pub(crate) items: Option<String>,
}

impl Values {
    pub(crate) fn of(field: &FieldRef) -> Self {
        let tensor = Tensor::of(field, &new_empty_array(field.data_type()));
        let items = match field.data_type() {
            DataType::List(items) | DataType::LargeList(items) => Number::of(items.data_type()),
            _ => None,
        };
        Self {
            number: tensor.as_ref().map(|tensor| tensor.number.name()),
            shape: tensor.map(|tensor| tensor.shape[1..].to_vec()),
            items: items.map(Number::name),
        }
    }
}

impl Column {
    pub(crate) fn new(field: &FieldRef, array: &ArrayRef) -> Self {
        let tensor = Tensor::of(field, array);
        Self { field: Arc::clone(field), array: Arc::clone(array), tensor, block: None }
    }

    /// The same, which knows where it lies.
    pub(crate) fn lies_in(self, py: Python<'_>, memory: Option<&TorchMemory>) -> Self {
        let address = match self.array.data_type() {
            DataType::Binary => Some(self.array.as_binary::<i32>().values().as_ptr().addr()),
            DataType::LargeBinary => Some(self.array.as_binary::<i64>().values().as_ptr().addr()),
            _ => self.tensor.as_ref().map(|tensor| tensor.values.as_ptr().addr()),
        };
        let block = memory.zip(address).and_then(|(memory, address)| memory.tensor(py, address));
        Self { block, ..self }
    }

    fn tensor(&self) -> PyResult<&Tensor> {
        self.tensor.as_ref().ok_or_else(|| {
            let (name, data_type) = (self.field.name(), self.field.data_type());
            match self.array.null_count() {
                0 => PyTypeError::new_err(format!(
                    "column {name:?} ({data_type}) is no tensor: its values differ in length; use ragged(), to_list() or Arrow"
                )),
                nulls => PyValueError::new_err(format!(
                    "column {name:?} has {nulls} nulls in this batch, which tensors cannot say; fill or drop such rows at \
                     ingest, or use to_list() or Arrow"
                )),
            }
        })
    }
}

#[pymethods]
impl Column {
    /// The column's name.
    #[getter]
    fn name(&self) -> &str {
        self.field.name()
    }

    /// The number of features of sparse rows, if the dataset has it.
    #[getter]
    fn features(&self) -> Option<usize> {
        self.field.metadata().get(FEATURES)?.parse().ok()
    }

    /// How many rows it has.
    fn __len__(&self) -> usize {
        self.array.len()
    }

    /// Whether its values are numbers of one shape, none of them null.
    #[getter]
    fn is_tensor(&self) -> bool {
        self.tensor.is_some()
    }

    /// Rows, and the shape of each.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tensor()?.shape)
    }

    /// The type of its numbers, as PyTorch and NumPy name it.
    #[getter]
    fn dtype(&self) -> PyResult<String> {
        Ok(self.tensor()?.number.name())
    }

    /// The tensor of PyTorch's in whose memory the values lie, from its first byte on, if PyTorch has allocated it.
    #[getter]
    fn block(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.block.as_ref().map(|block| block.clone_ref(py))
    }

    /// As NumPy takes it, without a copy.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensor = self.tensor()?;
        if tensor.number.kind == BFLOAT {
            return Err(PyTypeError::new_err(format!(
                "column {:?} is of bfloat16, a type that NumPy lacks: end the transforms with ToDtype(\"float32\"), or use \
                 format=\"torch\" or \"jax\"",
                self.field.name()
            )));
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", tensor.number.text())?;
        interface.set_item("shape", PyTuple::new(py, &tensor.shape)?)?;
        interface.set_item("data", (tensor.values.as_ptr().addr(), false))?;
        Ok(interface)
    }

    /// As PyTorch and JAX take it, without a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = (stream, max_version); // memory of the processor has no streams; every consumer reads the first version
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err(
                "the column lies in the processor's memory; move it afterwards",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("the column is given without a copy; copy it afterwards"));
        }
        dlpack::capsule(py, self.tensor()?)
    }

    /// The processor's memory.
    #[staticmethod]
    fn __dlpack_device__() -> (i32, i32) {
        dlpack::CPU
    }

    /// As Arrow takes it, without a copy.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema; // a wish only, by the protocol
        let (array, _) =
            to_ffi(&self.array.to_data()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let schema = FFI_ArrowSchema::try_from(&*self.field)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let schema = PyCapsule::new_with_value(py, schema, c"arrow_schema")?;
        Ok((schema, PyCapsule::new_with_value::<FFI_ArrowArray>(py, array, c"arrow_array")?))
    }

    /// The values as Python objects, `None` for a null: `bytes`, `str`, numbers, and lists of them.
    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list(py, &self.array)
    }

    /// Of binaries, or lists of numbers, that differ in length: all of them one after the other, where each begins and the last
    /// one ends, which rows are null, and whether they are binaries. Without a copy, if offsets have 64 bits and begin with 0.
    fn ragged(&self, py: Python<'_>) -> Option<(Self, Self, Vec<usize>, bool)> {
        let (values, offsets, is_bytes) = match self.array.data_type() {
            DataType::Binary => {
                let binaries = self.array.as_binary::<i32>();
                (bytes(binaries.values()), wide(binaries.offsets()), true)
            }
            DataType::LargeBinary => {
                let binaries = self.array.as_binary::<i64>();
                (bytes(binaries.values()), binaries.offsets().clone(), true)
            }
            DataType::List(_) => {
                let lists = self.array.as_list::<i32>();
                (Arc::clone(lists.values()), wide(lists.offsets()), false)
            }
            DataType::LargeList(_) => {
                let lists = self.array.as_list::<i64>();
                (Arc::clone(lists.values()), lists.offsets().clone(), false)
            }
            _ => return None,
        };
        let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
        let values = values.slice(usize::try_from(start).ok()?, usize::try_from(end - start).ok()?);
        let offsets = match start {
            0 => offsets.into_inner(),
            _ => offsets.iter().map(|offset| offset - start).collect(),
        };
        let column = |values: ArrayRef| {
            let field = Field::new(self.field.name(), values.data_type().clone(), true);
            Self::new(&Arc::new(field), &values)
        };
        let values = column(values);
        values.tensor.as_ref()?;
        // Only what begins where PyTorch's tensor does is a part of it by its length alone.
        let block = self.block.as_ref().filter(|_| start == 0).map(|block| block.clone_ref(py));
        let nulls = (0..self.array.len()).filter(|row| self.array.is_null(*row)).collect();
        Some((Self { block, ..values }, column(Arc::new(Int64Array::new(offsets, None))), nulls, is_bytes))
    }

    /// Of lists of pairs `index` and `value`, such as the features of libsvm, the parts of a matrix in CSR: where each
    /// row begins and the last one ends, the indices, the values, and which rows are null. The first two have one
    /// type, `int32` wherever that holds them. Values are not copied, nor are indices of 32 bits.
    fn csr(&self) -> Option<(Self, Self, Self, Vec<usize>)> {
        let (pairs, offsets) = match self.array.data_type() {
            DataType::List(_) => {
                let lists = self.array.as_list::<i32>();
                (lists.values(), wide(lists.offsets()))
            }
            DataType::LargeList(_) => {
                let lists = self.array.as_list::<i64>();
                (lists.values(), lists.offsets().clone())
            }
            _ => return None,
        };
        let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
        let pairs =
            pairs.as_struct_opt()?.slice(usize::try_from(start).ok()?, usize::try_from(end - start).ok()?);
        if pairs.column_names() != ["index", "value"] || pairs.null_count() > 0 {
            return None;
        }
        let (indices, values) = (small_indices(pairs.column(0))?, Arc::clone(pairs.column(1)));
        let narrow = *indices.data_type() == DataType::Int32 && i32::try_from(end - start).is_ok();
        let starts = offsets.iter().map(|offset| offset - start);
        let (starts, indices): (ArrayRef, ArrayRef) = if narrow {
            (Arc::new(starts.map(|start| start as i32).collect::<Int32Array>()), indices)
        } else {
            (Arc::new(starts.collect::<Int64Array>()), cast(&indices, &DataType::Int64).ok()?)
        };
        let column = |name: &str, values: ArrayRef| {
            Self::new(&Arc::new(Field::new(name, values.data_type().clone(), true)), &values)
        };
        let (starts, indices, values) =
            (column("indptr", starts), column("indices", indices), column("data", values));
        if indices.tensor.is_none() || values.tensor.as_ref()?.shape.len() > 1 {
            return None;
        }
        let nulls = (0..self.array.len()).filter(|row| self.array.is_null(*row)).collect();
        Some((starts, indices, values, nulls))
    }
}

/// Indices as `int32`, or as `int64` if that cannot hold them; `None` if they are no integers.
fn small_indices(indices: &ArrayRef) -> Option<ArrayRef> {
    Some(match indices.data_type() {
        DataType::Int32 | DataType::Int64 => Arc::clone(indices),
        DataType::UInt32 => {
            let values = indices.as_primitive::<UInt32Type>().values();
            if values.iter().fold(0, |most, index| most | index) > i32::MAX as u32 {
                return cast(indices, &DataType::Int64).ok();
            }
            // The bits are the same.
            let nulls = indices.nulls().cloned();
            Arc::new(Int32Array::new(values.inner().clone().into(), nulls))
        }
        DataType::Int8 | DataType::Int16 | DataType::UInt8 | DataType::UInt16 => {
            cast(indices, &DataType::Int32).ok()?
        }
        // One that is too large becomes null, and nulls are no tensor.
        DataType::UInt64 => cast(indices, &DataType::Int64).ok()?,
        _ => return None,
    })
}

fn bytes(values: &Buffer) -> ArrayRef {
    Arc::new(UInt8Array::new(values.clone().into(), None))
}

fn wide(offsets: &OffsetBuffer<i32>) -> OffsetBuffer<i64> {
    OffsetBuffer::new(offsets.iter().map(|offset| i64::from(*offset)).collect())
}

fn list<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>> {
    let values = PyList::empty(py);
    for row in 0..array.len() {
        values.append(value(py, array, row)?)?;
    }
    Ok(values)
}

fn value<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    use arrow::datatypes as types;
    if array.is_null(row) || *array.data_type() == DataType::Null {
        return Ok(py.None().into_bound(py));
    }
    macro_rules! number {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row).into_pyobject(py)?.into_any()
        };
    }
    Ok(match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into_pyobject(py)?.to_owned().into_any(),
        DataType::Int8 => number!(types::Int8Type),
        DataType::Int16 => number!(types::Int16Type),
        DataType::Int32 => number!(types::Int32Type),
        DataType::Int64 => number!(types::Int64Type),
        DataType::UInt8 => number!(types::UInt8Type),
        DataType::UInt16 => number!(types::UInt16Type),
        DataType::UInt32 => number!(types::UInt32Type),
        DataType::UInt64 => number!(types::UInt64Type),
        DataType::Float16 => {
            array.as_primitive::<types::Float16Type>().value(row).to_f32().into_pyobject(py)?.into_any()
        }
        DataType::Float32 => number!(types::Float32Type),
        DataType::Float64 => number!(types::Float64Type),
        DataType::Utf8 => PyString::new(py, array.as_string::<i32>().value(row)).into_any(),
        DataType::LargeUtf8 => PyString::new(py, array.as_string::<i64>().value(row)).into_any(),
        DataType::Binary => PyBytes::new(py, array.as_binary::<i32>().value(row)).into_any(),
        DataType::LargeBinary => PyBytes::new(py, array.as_binary::<i64>().value(row)).into_any(),
        DataType::FixedSizeBinary(_) => PyBytes::new(py, array.as_fixed_size_binary().value(row)).into_any(),
        DataType::List(_) => list(py, &array.as_list::<i32>().value(row))?.into_any(),
        DataType::LargeList(_) => list(py, &array.as_list::<i64>().value(row))?.into_any(),
        DataType::FixedSizeList(..) => list(py, &array.as_fixed_size_list().value(row))?.into_any(),
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            let map = PyDict::new(py);
            for entry in 0..keys.len() {
                map.set_item(value(py, keys, entry)?, value(py, values, entry)?)?;
            }
            map.into_any()
        }
        DataType::Struct(fields) => {
            let parts = PyDict::new(py);
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                parts.set_item(field.name(), value(py, column, row)?)?;
            }
            parts.into_any()
        }
        // Times, dates and decimals: what Arrow writes of them.
        _ => {
            let one = make_array(array.to_data().slice(row, 1));
            let options = arrow::util::display::FormatOptions::default();
            let shown = arrow::util::display::ArrayFormatter::try_new(&one, &options)
                .map_err(|error| PyTypeError::new_err(error.to_string()))?;
            PyString::new(py, &shown.value(0).to_string()).into_any()
        }
    })
}
