//! Convolutions as products of matrices: each window of an image becomes a column, and the weights are the other matrix.
//!
//! Columns are made again for the gradient of the weights, because they have as many numbers as a window for each pixel. One unit writes each
//! number, so the bits are the same in each run.

use std::ops::Range;

use burn::backend::ops::{ConvOptions, FloatTensorOps};
use burn::backend::{Cube, TensorMetadata};
use burn::cubecl;
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::{FloatDType, Shape, Slice};

use super::{contiguous, empty};
use crate::cube::{DeviceTensor, UNITS, cubes, element};

/// How many columns a matrix has at least, if there are as many windows: products of fewer columns do not keep a device busy.
const COLUMNS: usize = 1 << 10;

/// How many numbers columns have at most at a time, where a device takes as many bytes at once.
pub(super) const MOST: usize = 1 << 26;

/// A convolution of images `[batch, channels, height, width]` by weights `[outputs, channels, rows, columns]`.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    batch: usize,
    channels: usize,
    size: [usize; 2],
    outputs: usize,
    window: [usize; 2],
    /// Of the images made.
    made: [usize; 2],
    options: ConvOptions<2>,
    /// The images of which a matrix has the columns, side by side.
    beside: usize,
    /// Numbers of a tensor of columns.
    most: usize,
    dtype: FloatDType,
}

impl Convolution {
    /// None of one that only burn has: in groups, or of images that are too large.
    pub(super) fn new(
        input: &DeviceTensor,
        weight: &DeviceTensor,
        options: &ConvOptions<2>,
    ) -> Option<Convolution> {
        let page = input.client.properties().memory.max_page_size as usize;
        let most = MOST.min(page / input.dtype.size());
        let (dtype, input, weight) = (FloatDType::from(input.dtype), input.shape(), weight.shape());
        let ConvOptions { stride, padding, dilation, groups, .. } = options;
        let (size, window) = ([input[2], input[3]], [weight[2], weight[3]]);
        if *groups != 1 {
            return None;
        }
        let mut made = [0; 2];
        for axis in 0..2 {
            let covered = dilation[axis] * (window[axis] - 1) + 1;
            let (before, behind) = padding[axis];
            made[axis] = (size[axis] + before + behind).checked_sub(covered)? / stride[axis] + 1;
        }
        let (batch, pixels) = (input[0], made[0] * made[1]);
        let of_image = (input[1] * window[0] * window[1]).max(weight[0]) * pixels;
        let fits = |images: usize| images * of_image <= most;
        let divisors = || (1..=batch).filter(|images| batch.is_multiple_of(*images));
        let filling = divisors().find(|images| images * pixels >= COLUMNS && fits(*images));
        let beside = filling.or_else(|| divisors().rfind(|images| fits(*images)))?;
        // Kernels count numbers in 32 bits.
        let all = batch * (input[1] * size[0] * size[1]).max(weight[0] * pixels);
        u32::try_from(all).ok()?;
        let (channels, outputs, options) = (input[1], weight[0], options.clone());
        Some(Convolution { batch, channels, size, outputs, window, made, options, beside, most, dtype })
    }

    pub(super) fn forward(&self, input: DeviceTensor, weight: DeviceTensor) -> DeviceTensor {
        let (input, weight) = (contiguous(input), self.matrix(weight));
        let made = self.pieces().map(|images| {
            let columns = self.columns(&input, images.clone());
            let product = Cube::float_matmul(weight.clone(), columns);
            self.to_images(product, self.outputs, self.made, images.len())
        });
        joined(made.collect())
    }

    pub(super) fn input_gradient(&self, weight: DeviceTensor, gradient: DeviceTensor) -> DeviceTensor {
        let weight = Cube::float_swap_dims(self.matrix(weight), 1, 2);
        let found = self.pieces().map(|images| {
            let gradient = self.of_images(&gradient, images.clone());
            self.fold(Cube::float_matmul(weight.clone(), gradient), images.len())
        });
        joined(found.collect())
    }

    pub(super) fn weight_gradient(&self, input: DeviceTensor, gradient: DeviceTensor) -> DeviceTensor {
        let input = contiguous(input);
        let mut sum: Option<DeviceTensor> = None;
        // Each matrix has its own gradient until all are added up, in 32 bits.
        let of_matrix = self.numbers().max(2 * self.outputs * self.depth());
        for images in self.pieces_of(of_matrix) {
            let columns = Cube::float_swap_dims(self.columns(&input, images.clone()), 1, 2);
            let products = Cube::float_matmul(self.of_images(&gradient, images), columns);
            // In 32 bits, since the sum may have many terms.
            let more = Cube::float_sum_dim(Cube::float_cast(products, FloatDType::F32), 0);
            sum = Some(match sum {
                Some(sum) => Cube::float_add(sum, more),
                None => more,
            });
        }
        let [rows, columns] = self.window;
        let sum = Cube::float_cast(sum.expect("a batch has an image"), self.dtype);
        Cube::float_reshape(sum, Shape::new([self.outputs, self.channels, rows, columns]))
    }

    /// The numbers of a window.
    fn depth(&self) -> usize {
        self.channels * self.window[0] * self.window[1]
    }

    fn pixels(&self) -> usize {
        self.made[0] * self.made[1]
    }

    /// The numbers of a matrix of columns, or of what is made of it.
    fn numbers(&self) -> usize {
        (self.beside * self.depth().max(self.outputs) * self.pixels()).max(1)
    }

    /// The images that are done at a time.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        self.pieces_of(self.numbers())
    }

    /// The same, if there are as many numbers for each matrix.
    fn pieces_of(&self, of_matrix: usize) -> impl Iterator<Item = Range<usize>> {
        let images = (self.most / of_matrix).max(1) * self.beside;
        let batch = self.batch;
        (0..batch).step_by(images).map(move |start| start..(start + images).min(batch))
    }

    fn is_of_pixels(&self) -> bool {
        let ConvOptions { stride, padding, .. } = &self.options;
        self.window == [1, 1] && *stride == [1, 1] && *padding == [(0, 0); 2]
    }

    /// `[1, outputs, depth]`.
    fn matrix(&self, weight: DeviceTensor) -> DeviceTensor {
        Cube::float_reshape(weight, Shape::new([1, self.outputs, self.depth()]))
    }

    /// `[matrices, depth, columns]`.
    fn columns(&self, input: &DeviceTensor, images: Range<usize>) -> DeviceTensor {
        if self.is_of_pixels() {
            return self.of_images(input, images);
        }
        let matrices = images.len() / self.beside;
        let shape = Shape::new([matrices, self.depth(), self.beside * self.pixels()]);
        let columns = empty(input, shape, input.dtype);
        let client = input.client.clone();
        let [window, stride, padding, dilation] = self.of_windows();
        let count = cubes(columns.shape().num_elements(), 4);
        unfold::launch(
            &client,
            count,
            CubeDim::new_1d(UNITS),
            input.clone().into_buffer_arg(),
            columns.clone().into_buffer_arg(),
            self.channels as u32,
            self.size[0] as u32,
            self.size[1] as u32,
            self.made[0] as u32,
            self.made[1] as u32,
            self.beside as u32,
            images.start as u32,
            window,
            stride,
            padding,
            dilation,
            element(input.dtype),
        );
        columns
    }

    /// Adds up what each pixel got in columns.
    fn fold(&self, columns: DeviceTensor, images: usize) -> DeviceTensor {
        if self.is_of_pixels() {
            return self.to_images(columns, self.channels, self.size, images);
        }
        let columns = contiguous(columns);
        let shape = Shape::new([images, self.channels, self.size[0], self.size[1]]);
        let found = empty(&columns, shape, columns.dtype);
        let client = columns.client.clone();
        let [window, stride, padding, dilation] = self.of_windows();
        let (count, dtype) = (cubes(found.shape().num_elements(), 1), element(columns.dtype));
        fold::launch(
            &client,
            count,
            CubeDim::new_1d(UNITS),
            columns.into_buffer_arg(),
            found.clone().into_buffer_arg(),
            self.channels as u32,
            self.size[0] as u32,
            self.size[1] as u32,
            self.made[0] as u32,
            self.made[1] as u32,
            self.beside as u32,
            window,
            stride,
            padding,
            dilation,
            dtype,
        );
        found
    }

    fn of_windows(&self) -> [(u32, u32); 4] {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        // Padding behind the image shows in the size of the output alone.
        [self.window, stride, padding.map(|(before, _)| before), dilation]
            .map(|of| (of[0] as u32, of[1] as u32))
    }

    /// Of some images `[batch, rows, height, width]`: `[matrices, rows, columns]`.
    fn of_images(&self, all: &DeviceTensor, images: Range<usize>) -> DeviceTensor {
        let shape = all.shape();
        let (rows, pixels) = (shape[1], shape[2] * shape[3]);
        let matrices = images.len() / self.beside;
        let some = match images.len() == shape[0] {
            true => all.clone(),
            false => Cube::float_slice(all.clone(), &[Slice::from(images)]),
        };
        if self.beside == 1 {
            return Cube::float_reshape(some, Shape::new([matrices, rows, pixels]));
        }
        let apart = Cube::float_reshape(some, Shape::new([matrices, self.beside, rows, pixels]));
        let beside = Cube::float_swap_dims(apart, 1, 2);
        Cube::float_reshape(beside, Shape::new([matrices, rows, self.beside * pixels]))
    }

    /// Of `[matrices, rows, columns]`: images `[images, rows, height, width]`.
    fn to_images(
        &self,
        matrices: DeviceTensor,
        rows: usize,
        [height, width]: [usize; 2],
        images: usize,
    ) -> DeviceTensor {
        let shape = Shape::new([images, rows, height, width]);
        if self.beside == 1 {
            return Cube::float_reshape(matrices, shape);
        }
        let beside = Shape::new([images / self.beside, rows, self.beside, height * width]);
        let apart = Cube::float_swap_dims(Cube::float_reshape(matrices, beside), 1, 2);
        Cube::float_reshape(apart, shape)
    }
}

fn joined(mut pieces: Vec<DeviceTensor>) -> DeviceTensor {
    match pieces.len() {
        1 => pieces.remove(0),
        _ => Cube::float_cat(pieces, 0),
    }
}

/// Writes the windows of images from `first` on as columns, `beside` images in each matrix; zeros where a window is out of its image.
#[cube(launch)]
fn unfold<E: Float>(
    images: &[E],
    columns: &mut [E],
    channels: u32,
    height: u32,
    width: u32,
    rows: u32,
    across: u32,
    beside: u32,
    first: u32,
    #[comptime] window: (u32, u32),
    #[comptime] stride: (u32, u32),
    #[comptime] padding: (u32, u32),
    #[comptime] dilation: (u32, u32),
    #[define(E)] _dtype: ElemType,
) {
    let mut place = ABSOLUTE_POS;
    while place < columns.len() {
        let (column, rest) = apart(place as u32, across);
        let (row, rest) = apart(rest, rows);
        let (image, rest) = apart(rest, beside);
        let (right, rest) = apart(rest, comptime![window.1]);
        let (down, rest) = apart(rest, comptime![window.0]);
        let (channel, matrix) = apart(rest, channels);
        // In the image with its padding.
        let y = row * comptime![stride.0] + down * comptime![dilation.0];
        let x = column * comptime![stride.1] + right * comptime![dilation.1];
        let mut number = E::from_int(0);
        let is_below = y >= comptime![padding.0] && y < height + comptime![padding.0];
        if is_below && x >= comptime![padding.1] && x < width + comptime![padding.1] {
            let of_image = (first + matrix * beside + image) * channels + channel;
            let at = (of_image * height + y - comptime![padding.0]) * width + x - comptime![padding.1];
            number = images[at as usize];
        }
        columns[place] = number;
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// Adds up, for each pixel, the numbers of it in the columns, in the order of its places in windows.
#[cube(launch)]
fn fold<E: Float>(
    columns: &[E],
    images: &mut [E],
    channels: u32,
    height: u32,
    width: u32,
    rows: u32,
    across: u32,
    beside: u32,
    #[comptime] window: (u32, u32),
    #[comptime] stride: (u32, u32),
    #[comptime] padding: (u32, u32),
    #[comptime] dilation: (u32, u32),
    #[define(E)] _dtype: ElemType,
) {
    let mut place = ABSOLUTE_POS;
    while place < images.len() {
        let (x, rest) = apart(place as u32, width);
        let (y, rest) = apart(rest, height);
        let (channel, image) = apart(rest, channels);
        let (image, matrix) = apart(image, beside);
        let mut sum = 0.0f32;
        let mut down = 0u32;
        while down < comptime![window.0] {
            // How far the window's first row is below that of the padded image.
            let top = y + comptime![padding.0];
            let above = down * comptime![dilation.0];
            let row = (top - above) / comptime![stride.0];
            if top >= above && row * comptime![stride.0] == top - above && row < rows {
                let mut right = 0u32;
                while right < comptime![window.1] {
                    let left = x + comptime![padding.1];
                    let before = right * comptime![dilation.1];
                    let column = (left - before) / comptime![stride.1];
                    if left >= before && column * comptime![stride.1] == left - before && column < across {
                        let depth = (channel * comptime![window.0] + down) * comptime![window.1] + right;
                        let all = channels * comptime![window.0 * window.1];
                        let of_row = ((matrix * all + depth) * beside + image) * rows + row;
                        sum += f32::cast_from(columns[(of_row * across + column) as usize]);
                    }
                    right += 1u32;
                }
            }
            down += 1u32;
        }
        images[place] = E::cast_from(sum);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The place in a row of a length, and the place of the row.
#[cube]
fn apart(place: u32, length: u32) -> (u32, u32) {
    (place % length, place / length)
}
