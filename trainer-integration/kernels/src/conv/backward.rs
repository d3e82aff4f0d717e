//! The weight's gradient: for each number of the weight, a sum over all pixels of the output.

use std::ops::Range;

use rayon::prelude::*;

use super::Conv;
use super::image::Pixels;
use super::window::{Tap, Window};
use crate::level::Level;
use crate::operand::{Operand, Packed, steps};
use crate::product::{Tile, add_chunk};

pub(super) fn weight_gradient(
    conv: &Conv,
    pixels: [usize; 2],
    level: Level,
    input: &[f32],
    output: &[f32],
) -> Vec<f32> {
    let (tile, kernel) = (Tile::of(level), conv.kernel[0] * conv.kernel[1]);
    let mut gradient = vec![0.0; conv.outputs * conv.taps()];
    let window = Window::of(conv, pixels);
    let (image, copy) = (window.image, Pixels::of(&window));
    let mut copies = vec![0.0; conv.batch * copy.image_len()];
    let images = input.par_chunks_exact(image.iter().product());
    images
        .zip(copies.par_chunks_exact_mut(copy.image_len()))
        .for_each(|(from, into)| copy.copy(from, image, into));

    let outputs =
        Outputs { numbers: output, channels: conv.outputs, pixels: pixels[0] * pixels[1], batch: conv.batch };
    let outputs = Packed::new(&outputs, tile.rows);
    let inputs = Inputs { copies: &copies, copy: &copy, window: &window, batch: conv.batch };
    let columns = conv.taps();
    let panels: Vec<Vec<f32>> = (0..columns.div_ceil(tile.columns))
        .into_par_iter()
        .map(|panel| {
            let mut sums = vec![0.0; outputs.panels() * tile.rows * tile.columns];
            let mut right = vec![0.0; inputs.depth().min(crate::CHUNK) * tile.columns];
            let runs = inputs.runs(panel * tile.columns, tile.columns);
            for chunk in 0..outputs.chunks() {
                let steps = steps(chunk, inputs.depth());
                let right = &mut right[..steps.len() * tile.columns];
                inputs.gather(steps, &runs, tile.columns, right);
                add_chunk(level, &outputs, chunk, right, &mut sums);
            }
            sums
        })
        .collect();
    gradient.par_chunks_exact_mut(columns).enumerate().for_each(|(output, gradient)| {
        for (panel, sums) in panels.iter().enumerate() {
            let sums = &sums[output * tile.columns..][..tile.columns];
            for (column, sum) in (panel * tile.columns..columns).zip(sums) {
                let (place, channel) = (column / conv.channels, column % conv.channels);
                gradient[channel * kernel + place] = *sum;
            }
        }
    });
    gradient
}

/// The output's gradient with channels for lanes, and pixels for depth.
struct Outputs<'a> {
    numbers: &'a [f32],
    channels: usize,
    /// Of an image.
    pixels: usize,
    batch: usize,
}

impl Operand for Outputs<'_> {
    fn lanes(&self) -> usize {
        self.channels
    }

    fn depth(&self) -> usize {
        self.batch * self.pixels
    }

    fn pack(&self, steps: Range<usize>, first: usize, width: usize, into: &mut [f32]) {
        let (mut step, mut written) = (steps.start, 0);
        while step < steps.end {
            let (image, pixel) = (step / self.pixels, step % self.pixels);
            let len = (self.pixels - pixel).min(steps.end - step);
            for lane in 0..width.min(self.channels - first) {
                let start = (image * self.channels + first + lane) * self.pixels + pixel;
                let places = into[written * width + lane..].iter_mut().step_by(width);
                places.zip(&self.numbers[start..start + len]).for_each(|(place, number)| *place = *number);
            }
            step += len;
            written += len;
        }
    }
}

/// The input with pixels of the output for depth, and the taps for columns: place by place of the kernel, in each all channels.
struct Inputs<'a> {
    copies: &'a [f32],
    copy: &'a Pixels,
    window: &'a Window,
    batch: usize,
}

/// Channels that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// In the copies of the images, of the first pixel.
    from: usize,
    /// Among the columns of a tile.
    column: usize,
    len: usize,
}

impl Inputs<'_> {
    fn depth(&self) -> usize {
        self.batch * self.window.pixels[0] * self.window.pixels[1]
    }

    fn runs(&self, first: usize, width: usize) -> Vec<Run> {
        let channels = self.window.image[0];
        let end = (first + width).min(self.window.taps.len());
        let (mut runs, mut column) = (Vec::new(), first);
        while column < end {
            let (place, channel) = (column / channels, column % channels);
            let len = (channels - channel).min(end - column);
            // The taps of the first channel are the places of the kernel.
            let from = self.copy.place(Tap { channel, ..self.window.taps[place] });
            runs.push(Run { from, column: column - first, len });
            column += len;
        }
        runs
    }

    fn gather(&self, steps: Range<usize>, runs: &[Run], width: usize, into: &mut [f32]) {
        match runs {
            [run] if run.len == 32 && width == 32 => self.gather_run::<32>(steps, run, into),
            [run] if run.len == 16 && width == 16 => self.gather_run::<16>(steps, run, into),
            _ => {
                for (start, into) in self.starts(steps).zip(into.chunks_exact_mut(width)) {
                    for run in runs {
                        let numbers = &self.copies[start + run.from..][..run.len];
                        into[run.column..][..run.len].copy_from_slice(numbers);
                    }
                }
            }
        }
    }

    fn gather_run<const LEN: usize>(&self, steps: Range<usize>, run: &Run, into: &mut [f32]) {
        for (start, into) in self.starts(steps).zip(into.as_chunks_mut::<LEN>().0) {
            if let Some(numbers) = self.copies[start + run.from..].first_chunk::<LEN>() {
                *into = *numbers;
            }
        }
    }

    /// Where pixels of the output begin, in the copies of the images.
    fn starts(&self, steps: Range<usize>) -> impl Iterator<Item = usize> {
        let [height, width] = self.window.pixels;
        let [down, right] = self.window.step;
        let right = right * self.window.image[0];
        let start =
            move |image: usize, y: usize| image * self.copy.image_len() + y * down * self.copy.row_len();
        let (mut image, mut y, mut x) =
            (steps.start / width / height, steps.start / width % height, steps.start % width);
        let mut row = start(image, y);
        steps.map(move |_| {
            let at = row + x * right;
            x += 1;
            if x == width {
                (x, y) = (0, y + 1);
                if y == height {
                    (y, image) = (0, image + 1);
                }
                row = start(image, y);
            }
            at
        })
    }
}
