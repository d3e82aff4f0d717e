//! A side of a product, and its copy in the order in which it is read.

use std::ops::Range;

use rayon::prelude::*;

use crate::CHUNK;

/// One side of a product: a number for each *lane* (a row of the left side, a column of the right side) and each step of the depth.
pub(crate) trait Operand: Sync {
    fn lanes(&self) -> usize;

    fn depth(&self) -> usize;

    /// Writes the numbers of lane `first + i` in step `steps.start + j` to `into[j * width + i]`, for all `i < width`.
    /// Lanes past the last are left as they are.
    fn pack(&self, steps: Range<usize>, first: usize, width: usize, into: &mut [f32]);
}

/// The steps of a chunk.
pub(crate) fn steps(chunk: usize, depth: usize) -> Range<usize> {
    chunk * CHUNK..((chunk + 1) * CHUNK).min(depth)
}

/// All of an operand: chunk by chunk, in each panel by panel of `width` lanes, in each step by step. Lanes past the last are zero.
#[derive(Debug)]
pub(crate) struct Packed {
    numbers: Vec<f32>,
    width: usize,
    panels: usize,
    depth: usize,
}

impl Packed {
    pub(crate) fn new(operand: &impl Operand, width: usize) -> Packed {
        let (depth, panels) = (operand.depth(), operand.lanes().div_ceil(width));
        let mut numbers = vec![0.0; panels * width * depth];
        let chunks = numbers.chunks_mut((CHUNK * width * panels).max(1)).enumerate();
        let pieces: Vec<(usize, usize, &mut [f32])> = chunks
            .flat_map(|(chunk, numbers)| {
                let panels = numbers.chunks_mut(steps(chunk, depth).len() * width).enumerate();
                panels.map(move |(panel, numbers)| (chunk, panel, numbers))
            })
            .collect();
        pieces.into_par_iter().with_min_len(8).for_each(|(chunk, panel, numbers)| {
            operand.pack(steps(chunk, depth), panel * width, width, numbers);
        });
        Packed { numbers, width, panels, depth }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn panels(&self) -> usize {
        self.panels
    }

    pub(crate) fn chunks(&self) -> usize {
        self.depth.div_ceil(CHUNK)
    }

    /// The steps of a chunk, each of `width` lanes.
    pub(crate) fn panel(&self, chunk: usize, panel: usize) -> &[f32] {
        let len = steps(chunk, self.depth).len() * self.width;
        let start = chunk * CHUNK * self.width * self.panels + panel * len;
        &self.numbers[start..start + len]
    }
}

/// Numbers at regular distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a> {
    pub(crate) numbers: &'a [f32],
    pub(crate) lanes: usize,
    pub(crate) depth: usize,
    pub(crate) lane_stride: usize,
    pub(crate) step_stride: usize,
}

impl Operand for Strided<'_> {
    fn lanes(&self) -> usize {
        self.lanes
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn pack(&self, steps: Range<usize>, first: usize, width: usize, into: &mut [f32]) {
        let count = width.min(self.lanes - first);
        if self.lane_stride == 1 {
            for (step, into) in steps.zip(into.chunks_exact_mut(width)) {
                let start = step * self.step_stride + first;
                into[..count].copy_from_slice(&self.numbers[start..start + count]);
            }
            return;
        }
        for lane in 0..count {
            let start = (first + lane) * self.lane_stride + steps.start * self.step_stride;
            let numbers = (0..steps.len()).map(|step| self.numbers[start + step * self.step_stride]);
            let places = into[lane..].iter_mut().step_by(width);
            places.zip(numbers).for_each(|(place, number)| *place = number);
        }
    }
}
