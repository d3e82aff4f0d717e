//! DLPack, the form in which array libraries hand memory to each other: <https://dmlc.github.io/dlpack/latest/c_api.html>.
//! The unversioned form, which all of them read.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use arrow::buffer::Buffer;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::tensor::{BFLOAT, Tensor};

/// `kDLCPU`, and the number of the device.
pub(crate) const CPU: (i32, i32) = (1, 0);

const NAME: &std::ffi::CStr = c"dltensor";

#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    data_type: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// The tensor as it is handed over, and what must live as long: in one box, which the deleter takes.
struct Handed {
    managed: DlManagedTensor,
    shape: Box<[i64]>,
    _values: Buffer,
}

pub(crate) fn capsule<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyCapsule>> {
    let code = match tensor.number.kind {
        b'i' => 0,
        b'u' => 1,
        b'f' => 2,
        BFLOAT => 4,
        _ => 6, // a boolean
    };
    let shape: Box<[i64]> = tensor.shape.iter().map(|size| *size as i64).collect();
    let mut handed = Box::new(Handed {
        managed: DlManagedTensor {
            tensor: DlTensor {
                data: tensor.values.as_ptr().cast_mut().cast(),
                device: DlDevice { kind: CPU.0, id: CPU.1 },
                dimensions: shape.len() as i32,
                data_type: DlDataType { code, bits: 8 * tensor.number.bytes as u8, lanes: 1 },
                shape: ptr::null_mut(),
                strides: ptr::null_mut(), // row by row
                byte_offset: 0,
            },
            context: ptr::null_mut(),
            deleter: Some(delete),
        },
        shape,
        _values: tensor.values.clone(),
    });
    handed.managed.tensor.shape = handed.shape.as_mut_ptr();
    let handed = Box::into_raw(handed);
    // SAFETY: `handed` was just made.
    let managed = unsafe { &raw mut (*handed).managed };
    // SAFETY: as above.
    unsafe { (*managed).context = handed.cast() };
    let pointer = NonNull::new(managed).expect("part of a box").cast();
    // SAFETY: the pointer is valid until the deleter is called: by the consumer, who takes the tensor and
    // renames the capsule, or by the capsule's destructor.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, NAME, Some(destroy)) }
}

/// Called by the consumer of the tensor, on any thread.
unsafe extern "C" fn delete(managed: *mut DlManagedTensor) {
    // SAFETY: the context is the box that the tensor is part of, and this is called once.
    let handed = unsafe { (*managed).context.cast::<Handed>() };
    // SAFETY: as above.
    drop(unsafe { Box::from_raw(handed) });
}

/// Called when the capsule goes; one that was renamed has been taken.
unsafe extern "C" fn destroy(capsule: *mut PyObject) {
    // SAFETY: called by the interpreter with a capsule.
    if unsafe { PyCapsule_IsValid(capsule, NAME.as_ptr()) } == 1 {
        // SAFETY: it is of that name, and so has a tensor that no consumer took.
        let managed = unsafe { PyCapsule_GetPointer(capsule, NAME.as_ptr()) };
        // SAFETY: as above.
        unsafe { delete(managed.cast()) };
    }
}
