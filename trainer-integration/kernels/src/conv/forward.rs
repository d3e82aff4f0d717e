//! The output, and the input's gradient, which is made the same way: a pixel of it is a sum over taps of an image.

use std::ops::Range;

use rayon::prelude::*;

use super::Conv;
use super::image::Rows;
use super::window::{Tap, Window};
use crate::level::Level;
use crate::operand::{Operand, Packed, Strided, steps};
use crate::product::{Tile, add_chunk};

/// Images of which the pixels are computed together, at most.
const TOGETHER: usize = 8;

pub(super) fn forward(
    conv: &Conv,
    pixels: [usize; 2],
    level: Level,
    input: &[f32],
    weight: &[f32],
) -> Vec<f32> {
    let window = Window::of(conv, pixels);
    let depth = conv.taps();
    let weight = Strided { numbers: weight, lanes: conv.outputs, depth, lane_stride: depth, step_stride: 1 };
    let part =
        Part { weight: Packed::new(&weight, Tile::of(level).rows), window, first: [0, 0], step: [1, 1] };
    images(level, input, conv.outputs, pixels, conv.batch, &[part])
}

/// Of a stride of 2, the even and the odd rows of the input are read by different rows of the kernel. Each of these parts of
/// the input's gradient is a convolution of its own, of stride 1.
pub(super) fn input_gradient(
    conv: &Conv,
    pixels: [usize; 2],
    level: Level,
    output: &[f32],
    weight: &[f32],
) -> Vec<f32> {
    let size = [conv.height, conv.width];
    let mut parts = Vec::new();
    for y in 0..conv.stride[0].min(conv.height) {
        for x in 0..conv.stride[1].min(conv.width) {
            let first = [y, x];
            let [rows, columns] = [0, 1].map(|axis| axis_taps(conv, axis, first[axis]));
            if rows.is_empty() || columns.is_empty() {
                continue;
            }
            let places: Vec<(usize, isize, isize)> = rows
                .iter()
                .flat_map(|(row, y)| {
                    columns.iter().map(move |(column, x)| (row * conv.kernel[1] + column, *y, *x))
                })
                .collect();
            let taps = (0..conv.outputs)
                .flat_map(|channel| places.iter().map(move |&(_, y, x)| Tap { channel, y, x }))
                .collect();
            let weight =
                Backwards { conv, weight, places: places.iter().map(|&(place, ..)| place).collect() };
            let window = Window {
                image: [conv.outputs, pixels[0], pixels[1]],
                pixels: [0, 1].map(|axis| (size[axis] - first[axis]).div_ceil(conv.stride[axis])),
                step: [1, 1],
                taps,
            };
            let weight = Packed::new(&weight, Tile::of(level).rows);
            parts.push(Part { weight, window, first, step: conv.stride });
        }
    }
    images(level, output, conv.channels, size, conv.batch, &parts)
}

/// Which rows (or columns) of the kernel read the rows of the input from this one on, in steps of the stride; and which row of the output
/// they add to, relative to the number of steps.
fn axis_taps(conv: &Conv, axis: usize, first: usize) -> Vec<(usize, isize)> {
    let stride = conv.stride[axis] as isize;
    let place =
        |index: usize| (first + conv.padding[axis].0) as isize - (index * conv.dilation[axis]) as isize;
    (0..conv.kernel[axis])
        .filter(|&index| place(index).rem_euclid(stride) == 0)
        .map(|index| (index, place(index).div_euclid(stride)))
        .collect()
}

/// The weight with input channels for lanes, and for depth the output channels, in each some places of the kernel.
struct Backwards<'a> {
    conv: &'a Conv,
    weight: &'a [f32],
    places: Vec<usize>,
}

impl Operand for Backwards<'_> {
    fn lanes(&self) -> usize {
        self.conv.channels
    }

    fn depth(&self) -> usize {
        self.conv.outputs * self.places.len()
    }

    fn pack(&self, steps: Range<usize>, first: usize, width: usize, into: &mut [f32]) {
        let kernel = self.conv.kernel[0] * self.conv.kernel[1];
        let count = width.min(self.conv.channels - first);
        for (step, into) in steps.zip(into.chunks_exact_mut(width)) {
            let (output, place) = (step / self.places.len(), self.places[step % self.places.len()]);
            let start = output * self.conv.taps() + first * kernel + place;
            let numbers = self.weight[start..].iter().step_by(kernel);
            into[..count].iter_mut().zip(numbers).for_each(|(place, number)| *place = *number);
        }
    }
}

/// Pixels of a result: those from the first on, in steps.
struct Part {
    weight: Packed,
    window: Window,
    first: [usize; 2],
    step: [usize; 2],
}

/// `[batch, channels, height, width]`, of which the parts say the pixels; the others are zero.
fn images(
    level: Level,
    from: &[f32],
    channels: usize,
    size: [usize; 2],
    batch: usize,
    parts: &[Part],
) -> Vec<f32> {
    let image_len = channels * size[0] * size[1];
    let mut result = vec![0.0; batch * image_len];
    if result.is_empty() {
        return result;
    }
    let columns = Tile::of(level).columns;
    let most = batch.div_ceil(rayon::current_num_threads()).min(TOGETHER);
    let together = parts.iter().map(|part| together(part.window.pixels, columns, most)).max().unwrap_or(1);
    result.par_chunks_mut(together * image_len).enumerate().for_each(|(index, result)| {
        for part in parts {
            let from_len = part.window.image.iter().product::<usize>();
            let from = &from[index * together * from_len..][..result.len() / image_len * from_len];
            part.compute(level, from, result, [channels, size[0], size[1]]);
        }
    });
    result
}

/// How many images fill whole tiles, or nearly.
fn together([height, width]: [usize; 2], columns: usize, most: usize) -> usize {
    let waste = |images: &usize| {
        let pixels = images * height * width;
        (pixels.next_multiple_of(columns) - pixels) as f64 / pixels.max(1) as f64
    };
    (1..=most.max(1))
        .find(|images| waste(images) <= 1.0 / 16.0)
        .or_else(|| (1..=most.max(1)).min_by(|one, other| waste(one).total_cmp(&waste(other))))
        .unwrap_or(1)
}

/// Pixels of a row that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// In the copies of the images, of a tap at place 0.
    from: usize,
    /// Among the columns of a tile.
    column: usize,
    len: usize,
    image: usize,
    y: usize,
    x: usize,
}

impl Part {
    /// Of some images, each of these channels, height and width.
    fn compute(&self, level: Level, from: &[f32], result: &mut [f32], [channels, height, width]: [usize; 3]) {
        let tile = Tile::of(level);
        let rows = Rows::of(&self.window);
        let from_len = self.window.image.iter().product::<usize>();
        let count = from.len() / from_len;
        let mut copies = vec![0.0; count * rows.image_len()];
        for (image, copy) in from.chunks_exact(from_len).zip(copies.chunks_exact_mut(rows.image_len())) {
            rows.copy(image, self.window.image, copy);
        }
        let places: Vec<usize> = self.window.taps.iter().map(|tap| rows.place(*tap)).collect();
        let mut right = vec![0.0; places.len().min(crate::CHUNK) * tile.columns];
        let mut sums = vec![0.0; self.weight.panels() * tile.rows * tile.columns];
        let pixels = count * self.window.pixels[0] * self.window.pixels[1];
        for first in (0..pixels).step_by(tile.columns) {
            let runs = self.runs(&rows, first..(first + tile.columns).min(pixels));
            for chunk in 0..self.weight.chunks() {
                let places = &places[steps(chunk, places.len())];
                let right = &mut right[..places.len() * tile.columns];
                gather(&copies, places, &runs, tile.columns, right);
                add_chunk(level, &self.weight, chunk, right, &mut sums);
            }
            for run in &runs {
                let image = run.image * channels * height * width;
                let start = image + (run.y * self.step[0] + self.first[0]) * width;
                for channel in 0..channels {
                    let row = &mut result[start + channel * height * width..][..width];
                    let numbers = &sums[channel * tile.columns + run.column..][..run.len];
                    if self.step[1] == 1 {
                        row[run.x + self.first[1]..][..run.len].copy_from_slice(numbers);
                    } else {
                        let places =
                            row[run.x * self.step[1] + self.first[1]..].iter_mut().step_by(self.step[1]);
                        places.zip(numbers).for_each(|(place, number)| *place = *number);
                    }
                }
            }
        }
    }

    fn runs(&self, rows: &Rows, pixels: Range<usize>) -> Vec<Run> {
        let [height, width] = self.window.pixels;
        let (mut runs, mut at) = (Vec::new(), pixels.start);
        while at < pixels.end {
            let (row, x) = (at / width, at % width);
            let (image, y) = (row / height, row % height);
            let len = (width - x).min(pixels.end - at);
            let from = image * rows.image_len() + y * self.window.step[0] * rows.row_len() + x;
            runs.push(Run { from, column: at - pixels.start, len, image, y, x });
            at += len;
        }
        runs
    }
}

/// The numbers of some taps for the pixels of a tile: tap by tap, in each the `width` columns.
fn gather(copies: &[f32], places: &[usize], runs: &[Run], width: usize, into: &mut [f32]) {
    match runs.iter().map(|run| run.len).reduce(|len, next| if len == next { len } else { 0 }) {
        Some(32) => gather_runs::<32>(copies, places, runs, width, into),
        Some(16) => gather_runs::<16>(copies, places, runs, width, into),
        Some(8) => gather_runs::<8>(copies, places, runs, width, into),
        Some(4) => gather_runs::<4>(copies, places, runs, width, into),
        _ => {
            for (place, into) in places.iter().zip(into.chunks_exact_mut(width)) {
                for run in runs {
                    let numbers = &copies[place + run.from..][..run.len];
                    into[run.column..][..run.len].copy_from_slice(numbers);
                }
            }
        }
    }
}

/// The same where all runs have one length: no call to copy a few numbers.
fn gather_runs<const LEN: usize>(
    copies: &[f32],
    places: &[usize],
    runs: &[Run],
    width: usize,
    into: &mut [f32],
) {
    for (place, into) in places.iter().zip(into.chunks_exact_mut(width)) {
        for (run, into) in runs.iter().zip(into.as_chunks_mut::<LEN>().0) {
            if let Some(numbers) = copies[place + run.from..].first_chunk::<LEN>() {
                *into = *numbers;
            }
        }
    }
}
