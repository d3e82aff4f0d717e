//! Batch normalisation of `[rows, channels, ..]`: a cube has a stretch of a channel's numbers, and what cubes find of a channel is put together
//! in their order.

use burn::backend::TensorMetadata;
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{DType, Shape};

use super::{contiguous, empty, like};
use crate::cube::{CUBES, DeviceTensor, UNITS, cubes, sum_of_units};

/// How many numbers of a channel a cube has, at least, if there are as many.
const STRETCH: usize = 1 << 13;

/// The sizes of a tensor, and the rows of which a cube has a channel's numbers.
#[derive(Clone, Copy, Debug)]
struct Layout<Number = usize> {
    rows: Number,
    channels: Number,
    pixels: Number,
    rows_each: Number,
}

impl Layout {
    fn of(tensor: &DeviceTensor) -> Layout {
        let shape = tensor.shape();
        let (rows, channels) = (shape[0], shape[1]);
        let pixels = shape.num_elements() / (rows * channels).max(1);
        Layout { rows, channels, pixels, rows_each: STRETCH.div_ceil(pixels.max(1)).min(rows) }
    }

    fn as_u32(&self) -> Layout<u32> {
        let Layout { rows, channels, pixels, rows_each } = *self;
        let [rows, channels, pixels, rows_each] = [rows, channels, pixels, rows_each].map(|it| it as u32);
        Layout { rows, channels, pixels, rows_each }
    }

    fn stretches(&self) -> usize {
        self.rows.div_ceil(self.rows_each)
    }

    /// A cube for each stretch of each channel, or for each of several rounds.
    fn cubes(&self) -> CubeCount {
        CubeCount::new_1d((self.channels * self.stretches()).clamp(1, 64 * CUBES - 1) as u32)
    }

    /// A unit for each channel, or for each of several rounds.
    fn units(&self) -> CubeCount {
        cubes(self.channels, 1)
    }

    /// Two numbers of each stretch of each channel.
    fn found(&self, like: &DeviceTensor) -> DeviceTensor {
        let shape = Shape::new([self.channels, self.stretches(), 2]);
        empty(like, shape, DType::F32)
    }

    /// A number of each channel.
    fn of_channels(&self, like: &DeviceTensor) -> DeviceTensor {
        empty(like, Shape::new([self.channels]), DType::F32)
    }
}

/// Output, mean and biased variance.
pub(super) fn forward(
    input: DeviceTensor,
    scale: DeviceTensor,
    shift: DeviceTensor,
    epsilon: f64,
) -> (DeviceTensor, DeviceTensor, DeviceTensor) {
    let layout = Layout::of(&input);
    let [input, scale, shift] = [input, scale, shift].map(contiguous);
    let (client, dim) = (input.client.clone(), CubeDim::new_1d(UNITS));
    let Layout { rows, channels, pixels, rows_each } = layout.as_u32();
    let (found, output) = (layout.found(&input), like(&input));
    let (mean, variance) = (layout.of_channels(&input), layout.of_channels(&input));
    let buffer = |tensor: &DeviceTensor| tensor.clone().into_buffer_arg();
    let (from, to) = (buffer(&input), buffer(&found));
    spread::launch(&client, layout.cubes(), dim, from, to, channels, pixels, rows_each, rows, UNITS);
    let (count, from) = (layout.units(), buffer(&found));
    let (to, also) = (buffer(&mean), buffer(&variance));
    whole_spread::launch(&client, count, dim, from, to, also, pixels, rows_each, rows);
    let count = cubes(input.shape().num_elements(), 1);
    let [input, of_mean, of_variance, scale, shift, to] =
        [&input, &mean, &variance, &scale, &shift, &output].map(buffer);
    let epsilon = epsilon as f32;
    normalise::launch(&client, count, dim, input, of_mean, of_variance, scale, shift, to, pixels, epsilon);
    (output, mean, variance)
}

/// The gradients of input, scale and shift.
pub(super) fn backward(
    input: DeviceTensor,
    scale: DeviceTensor,
    [mean, variance]: [DeviceTensor; 2],
    epsilon: f64,
    gradient: DeviceTensor,
) -> [DeviceTensor; 3] {
    let layout = Layout::of(&input);
    let [input, scale, gradient, mean, variance] = [input, scale, gradient, mean, variance].map(contiguous);
    let (client, dim, epsilon) = (input.client.clone(), CubeDim::new_1d(UNITS), epsilon as f32);
    let Layout { rows, pixels, rows_each, .. } = layout.as_u32();
    let (found, of_input) = (layout.found(&input), like(&input));
    let (of_scale, of_shift) = (layout.of_channels(&input), layout.of_channels(&input));
    let buffer = |tensor: &DeviceTensor| tensor.clone().into_buffer_arg();
    let [x, g, m, v, to] = [&input, &gradient, &mean, &variance, &found].map(buffer);
    let count = layout.cubes();
    projections::launch(&client, count, dim, x, g, m, v, to, pixels, rows_each, rows, epsilon, UNITS);
    let [from, to, also] = [&found, &of_shift, &of_scale].map(buffer);
    whole_sums::launch(&client, layout.units(), dim, from, to, also);
    let count = cubes(input.shape().num_elements(), 1);
    let [x, g, m, v, plain, projected, scale, to] =
        [&input, &gradient, &mean, &variance, &of_shift, &of_scale, &scale, &of_input].map(buffer);
    normalise_back::launch(
        &client, count, dim, x, g, m, v, plain, projected, scale, to, pixels, rows, epsilon,
    );
    [of_input, of_scale, of_shift]
}

/// Where a number of a channel's stretch is. All stretches have `rows` rows, but for the last.
#[cube]
fn place_of(at: u32, channel: u32, stretch: u32, channels: u32, pixels: u32, rows: u32) -> usize {
    let row = stretch * rows + at / pixels;
    ((row * channels + channel) * pixels + at % pixels) as usize
}

/// How many numbers a stretch has of a channel, which has `all` rows.
#[cube]
fn length_of(stretch: u32, pixels: u32, rows: u32, all: u32) -> u32 {
    let mut end = (stretch + 1u32) * rows;
    if end > all {
        end = all;
    }
    (end - stretch * rows) * pixels
}

/// Of each stretch of each channel: the mean, and the sum of the squares of the distances from it.
#[cube(launch)]
fn spread(
    input: &[f32],
    found: &mut [f32],
    channels: u32,
    pixels: u32,
    rows: u32,
    all: u32,
    #[comptime] units: u32,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let stretches = found.len() as u32 / (2u32 * channels);
    let mut cube = CUBE_POS;
    while 2 * cube < found.len() {
        let (channel, stretch) = (cube as u32 / stretches, cube as u32 % stretches);
        let count = length_of(stretch, pixels, rows, all);
        let mut sum = 0.0f32;
        let mut at = UNIT_POS;
        while at < count {
            sum += input[place_of(at, channel, stretch, channels, pixels, rows)];
            at += comptime![units];
        }
        let mean = sum_of_units(&mut room, sum) / f32::cast_from(count);
        let mut squares = 0.0f32;
        let mut at = UNIT_POS;
        while at < count {
            let centred = input[place_of(at, channel, stretch, channels, pixels, rows)] - mean;
            squares += centred * centred;
            at += comptime![units];
        }
        let squares = sum_of_units(&mut room, squares);
        if UNIT_POS == 0 {
            found[2 * cube] = mean;
            found[2 * cube + 1] = squares;
        }
        cube += CUBE_COUNT;
    }
}

/// The means and biased variances of all channels, from those of stretches (Chan, Golub and `LeVeque`, 1979).
#[cube(launch)]
fn whole_spread(found: &[f32], means: &mut [f32], variances: &mut [f32], pixels: u32, rows: u32, all: u32) {
    let stretches = found.len() / (2 * means.len());
    let mut channel = ABSOLUTE_POS;
    while channel < means.len() {
        let mut count = 0.0f32;
        let mut mean = 0.0f32;
        let mut squares = 0.0f32;
        let mut stretch = 0;
        while stretch < stretches {
            let own = f32::cast_from(length_of(stretch as u32, pixels, rows, all));
            let start = 2 * (channel * stretches + stretch);
            let apart = found[start] - mean;
            let together = count + own;
            squares += found[start + 1] + apart * apart * (count * own / together);
            mean += apart * (own / together);
            count = together;
            stretch += 1;
        }
        means[channel] = mean;
        variances[channel] = squares / count;
        channel += CUBE_COUNT * CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn normalise(
    input: &[f32],
    mean: &[f32],
    variance: &[f32],
    scale: &[f32],
    shift: &[f32],
    output: &mut [f32],
    pixels: u32,
    epsilon: f32,
) {
    let mut place = ABSOLUTE_POS;
    while place < output.len() {
        let channel = (place / pixels as usize) % mean.len();
        let centred = input[place] - mean[channel];
        let of_channel = centred / (variance[channel] + epsilon).sqrt() * scale[channel];
        output[place] = of_channel + shift[channel];
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Of each stretch of each channel: the sum of the gradient, and of its products with the normalised input.
#[cube(launch)]
fn projections(
    input: &[f32],
    gradient: &[f32],
    mean: &[f32],
    variance: &[f32],
    found: &mut [f32],
    pixels: u32,
    rows: u32,
    all: u32,
    epsilon: f32,
    #[comptime] units: u32,
) {
    let mut room = Shared::<[f32]>::new_slice(comptime![units as usize]);
    let channels = mean.len() as u32;
    let stretches = found.len() as u32 / (2u32 * channels);
    let mut cube = CUBE_POS;
    while 2 * cube < found.len() {
        let (channel, stretch) = (cube as u32 / stretches, cube as u32 % stretches);
        let count = length_of(stretch, pixels, rows, all);
        let mean = mean[channel as usize];
        let inverse = 1.0f32 / (variance[channel as usize] + epsilon).sqrt();
        let mut sum = 0.0f32;
        let mut projected = 0.0f32;
        let mut at = UNIT_POS;
        while at < count {
            let place = place_of(at, channel, stretch, channels, pixels, rows);
            let own = gradient[place];
            sum += own;
            projected += own * ((input[place] - mean) * inverse);
            at += comptime![units];
        }
        let sum = sum_of_units(&mut room, sum);
        let projected = sum_of_units(&mut room, projected);
        if UNIT_POS == 0 {
            found[2 * cube] = sum;
            found[2 * cube + 1] = projected;
        }
        cube += CUBE_COUNT;
    }
}

/// Both sums of all channels.
#[cube(launch)]
fn whole_sums(found: &[f32], sums: &mut [f32], projections: &mut [f32]) {
    let stretches = found.len() / (2 * sums.len());
    let mut channel = ABSOLUTE_POS;
    while channel < sums.len() {
        let mut sum = 0.0f32;
        let mut projected = 0.0f32;
        let mut stretch = 0;
        while stretch < stretches {
            let start = 2 * (channel * stretches + stretch);
            sum += found[start];
            projected += found[start + 1];
            stretch += 1;
        }
        sums[channel] = sum;
        projections[channel] = projected;
        channel += CUBE_COUNT * CUBE_DIM as usize;
    }
}

#[cube(launch)]
fn normalise_back(
    input: &[f32],
    gradient: &[f32],
    mean: &[f32],
    variance: &[f32],
    sums: &[f32],
    projections: &[f32],
    scale: &[f32],
    of_input: &mut [f32],
    pixels: u32,
    all: u32,
    epsilon: f32,
) {
    let count = f32::cast_from(all * pixels);
    let mut place = ABSOLUTE_POS;
    while place < of_input.len() {
        let channel = (place / pixels as usize) % mean.len();
        let inverse = 1.0f32 / (variance[channel] + epsilon).sqrt();
        let normalised = (input[place] - mean[channel]) * inverse;
        let own = gradient[place] - sums[channel] / count - normalised * (projections[channel] / count);
        of_input[place] = own * inverse * scale[channel];
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}
