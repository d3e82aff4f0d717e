//! The inner loops of a product.

use pulp::{Simd, WithSimd};

use crate::level::Level;
use crate::operand::Packed;

/// Vectors in a row of a tile: as many as keep enough sums in registers that no multiply-add waits for the one before.
const VECTORS: usize = 2;

/// The sizes of the tile whose sums are kept in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Lanes of the left side.
    pub(crate) rows: usize,
    /// Lanes of the right side.
    pub(crate) columns: usize,
}

impl Tile {
    pub(crate) fn of(level: Level) -> Tile {
        let lanes = level.lanes();
        Tile { rows: rows(lanes), columns: VECTORS * lanes }
    }
}

/// 16 of 32 registers with AVX-512, 12 of 16 with AVX2.
const fn rows(lanes: usize) -> usize {
    if lanes == 16 { 8 } else { 6 }
}

/// Adds the sums of one chunk to the columns of one panel, `[left.panels() * rows, columns]`; writes them if it is the first chunk.
pub(crate) fn add_chunk(level: Level, left: &Packed, chunk: usize, right: &[f32], sums: &mut [f32]) {
    level.run(AddChunk { left, chunk, right, sums });
}

struct AddChunk<'a> {
    left: &'a Packed,
    chunk: usize,
    right: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for AddChunk<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if const { rows(S::F32_LANES) == 8 } {
            self.by_rows::<S, 8>(simd)
        } else {
            self.by_rows::<S, 6>(simd)
        }
    }
}

impl AddChunk<'_> {
    #[inline(always)]
    fn by_rows<S: Simd, const ROWS: usize>(self, simd: S) {
        assert_eq!(self.left.width(), ROWS, "packed for these instructions");
        let right = S::as_simd_f32s(self.right).0.as_chunks::<VECTORS>().0;
        let (sums, rest) = S::as_mut_simd_f32s(self.sums);
        assert!(rest.is_empty(), "whole vectors");
        let (sums, _) = sums.as_chunks_mut::<VECTORS>();
        let (sums, rest) = sums.as_chunks_mut::<ROWS>();
        assert!(rest.is_empty(), "whole tiles");
        for (panel, sums) in sums.iter_mut().enumerate() {
            let left = self.left.panel(self.chunk, panel).as_chunks::<ROWS>().0;
            let of_chunk = tile::<S, ROWS>(simd, left, right);
            for (sums, of_chunk) in sums.iter_mut().zip(of_chunk) {
                for (sum, of_chunk) in sums.iter_mut().zip(of_chunk) {
                    *sum = if self.chunk == 0 { of_chunk } else { simd.add_f32s(*sum, of_chunk) };
                }
            }
        }
    }
}

/// The sums of a chunk, each step one fused multiply-add.
#[inline(always)]
fn tile<S: Simd, const ROWS: usize>(
    simd: S,
    left: &[[f32; ROWS]],
    right: &[[S::f32s; VECTORS]],
) -> [[S::f32s; VECTORS]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
    for (left, right) in left.iter().zip(right) {
        for row in 0..ROWS {
            let factor = simd.splat_f32s(left[row]);
            for vector in 0..VECTORS {
                sums[row][vector] = simd.mul_add_f32s(factor, right[vector], sums[row][vector]);
            }
        }
    }
    sums
}
