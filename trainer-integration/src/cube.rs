//! What kernels in burn's kernel language share, and how they are launched on burn's tensors.

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::cubecl;
use burn::cubecl::ir::{ElemType, FloatKind};
use burn::cubecl::prelude::*;
use burn::tensor::DType;

/// A tensor of numbers on a device.
pub(crate) type DeviceTensor = FloatTensor<Cube>;

/// Units of a cube that adds something up.
pub(crate) const UNITS: u32 = 256;

/// Cubes that a device is kept busy with, at most; each does several rounds of longer tensors.
pub(crate) const CUBES: usize = 1 << 10;

/// As many cubes as numbers need, of which a unit takes `each` or more.
pub(crate) fn cubes(numbers: usize, each: usize) -> CubeCount {
    CubeCount::new_1d(numbers.div_ceil(UNITS as usize * each).clamp(1, CUBES) as u32)
}

/// The type of the numbers in kernels.
pub(crate) fn element(dtype: DType) -> ElemType {
    ElemType::Float(match dtype {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        other => unreachable!("no kernel of ours is asked for {other:?}"),
    })
}

/// The sum of the numbers of all units of a cube, in a fixed order; all units have it. `room` is as long as there are units, a power of two.
#[cube]
pub(crate) fn sum_of_units(room: &mut Shared<[f32]>, mine: f32) -> f32 {
    room[UNIT_POS as usize] = mine;
    sync_cube();
    let mut half = CUBE_DIM / 2u32;
    while half > 0u32 {
        if UNIT_POS < half {
            let more = room[(UNIT_POS + half) as usize];
            room[UNIT_POS as usize] += more;
        }
        sync_cube();
        half /= 2u32;
    }
    let sum = room[0];
    // Before the room is used again.
    sync_cube();
    sum
}

/// The largest, likewise.
#[cube]
pub(crate) fn largest_of_units(room: &mut Shared<[f32]>, mine: f32) -> f32 {
    room[UNIT_POS as usize] = mine;
    sync_cube();
    let mut half = CUBE_DIM / 2u32;
    while half > 0u32 {
        if UNIT_POS < half {
            let other = room[(UNIT_POS + half) as usize];
            if other > room[UNIT_POS as usize] {
                room[UNIT_POS as usize] = other;
            }
        }
        sync_cube();
        half /= 2u32;
    }
    let largest = room[0];
    sync_cube();
    largest
}
