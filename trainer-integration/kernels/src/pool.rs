//! The largest number of each window of an image, and its gradient.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::level::Level;

/// The largest number of each window: of images of `height` rows and `width` columns, one after the other.
///
/// Taps of a window outside of the image do not count. Of equal numbers the first has the gradient, row by row; of NaN, the last. A window
/// without a tap inside has minus infinity.
///
/// ```
/// use shardd_kernels::{Level, MaxPool};
///
/// let pool = MaxPool { height: 2, width: 4, window: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
/// let image = [1.0, 2.0, 7.0, 0.0, 3.0, 0.0, 0.0, 7.0];
/// assert_eq!(pool.forward(Level::best(), &image), [3.0, 7.0]);
/// let gradient = pool.backward(Level::best(), &image, &[1.0, 2.0]);
/// assert_eq!(gradient, [0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
    /// Taps of a window, of rows and of columns.
    pub window: [usize; 2],
    /// From a window to the next.
    pub stride: [usize; 2],
    /// Rows and columns before and after the image, none of which counts.
    pub padding: [usize; 2],
    /// From a tap to the next.
    pub dilation: [usize; 2],
}

impl MaxPool {
    /// Rows and columns of windows; none if a window is larger than the image with its padding, or a size is 0.
    pub fn output(&self) -> Option<[usize; 2]> {
        let of = |size: usize, axis: usize| {
            let covered = self.dilation[axis] * self.window[axis].checked_sub(1)? + 1;
            let room = (size + 2 * self.padding[axis]).checked_sub(covered)?;
            Some(room.checked_div(self.stride[axis])? + 1)
        };
        Some([of(self.height, 0)?, of(self.width, 1)?])
    }

    /// The largest numbers, image by image.
    ///
    /// # Panics
    /// If the numbers are no whole images, or there are no windows.
    pub fn forward(&self, level: Level, images: &[f32]) -> Vec<f32> {
        let (image, windows) = self.sizes(images);
        let mut output = vec![f32::NEG_INFINITY; images.len() / image * windows];
        let (level, taps) = (level.narrow(), &self.taps()[..]);
        let images =
            output.par_chunks_mut(windows).zip(images.par_chunks(image)).with_min_len(self.images_at_once());
        images.for_each(|(output, image)| level.run(Forward { pool: *self, taps, image, output }));
        output
    }

    /// The gradient of the images from that of the output: the sum of those of the windows that a number is the largest of, by rows of windows,
    /// and in these by taps.
    ///
    /// # Panics
    /// As [`MaxPool::forward`], or if there are not as many gradients as windows.
    pub fn backward(&self, level: Level, images: &[f32], gradient: &[f32]) -> Vec<f32> {
        let (image, windows) = self.sizes(images);
        assert_eq!(gradient.len(), images.len() / image * windows, "a gradient for each window");
        let (mut found, level, taps) = (vec![0.0; images.len()], level.narrow(), &self.taps()[..]);
        let of_images =
            found.par_chunks_mut(image).zip(images.par_chunks(image)).zip(gradient.par_chunks(windows));
        of_images.with_min_len(self.images_at_once()).for_each_init(
            Room::default,
            |room, ((found, image), gradient)| {
                level.run(Backward { pool: *self, taps, image, gradient, found, room });
            },
        );
        found
    }

    fn sizes(&self, images: &[f32]) -> (usize, usize) {
        let [rows, columns] = self.output().expect("windows that fit the images");
        let image = self.height * self.width;
        assert!(image > 0 && images.len().is_multiple_of(image), "whole images");
        (image, rows * columns)
    }

    /// Images that are worth a task of a thread.
    fn images_at_once(&self) -> usize {
        const NUMBERS: usize = 1 << 13;
        (NUMBERS / (self.height * self.width)).max(1)
    }

    /// Whether windows are of 2 x 2 numbers, and each number is in one of them at most.
    fn is_quarters(&self) -> bool {
        [self.window, self.stride] == [[2, 2]; 2] && self.padding == [0, 0] && self.dilation == [1, 1]
    }

    /// The taps that lie inside of images for some windows, row by row.
    fn taps(&self) -> Vec<Tap> {
        let [_, columns] = self.output().expect("windows that fit the images");
        let tap = |number: usize| {
            let (down, right) = (number / self.window[1], number % self.window[1]);
            let (offset, stride, padding) = (right * self.dilation[1], self.stride[1], self.padding[1]);
            let first = padding.saturating_sub(offset).div_ceil(stride);
            let end = (self.width + padding).saturating_sub(offset).div_ceil(stride).min(columns);
            (first < end).then(|| Tap {
                number: number as u32,
                row: down * self.dilation[0],
                columns: first..end,
                column: first * stride + offset - padding,
            })
        };
        (0..self.window[0] * self.window[1]).filter_map(tap).collect()
    }

    /// The place in the image of a tap of a row of windows, in the first of its columns.
    #[inline(always)]
    fn start(&self, row: usize, tap: &Tap) -> Option<usize> {
        let row = (row * self.stride[0] + tap.row).checked_sub(self.padding[0])?;
        (row < self.height).then_some(row * self.width + tap.column)
    }
}

/// The largest of the numbers of a window of 2 x 2, and its tap.
#[inline(always)]
fn largest_of_four(upper: [f32; 2], lower: [f32; 2]) -> (f32, u32) {
    let of_two = |[left, right]: [f32; 2], tap: u32| {
        let is_larger = is_larger(right, left);
        (if is_larger { right } else { left }, tap + u32::from(is_larger))
    };
    let (above, below) = (of_two(upper, 0), of_two(lower, 2));
    let is_larger = is_larger(below.0, above.0);
    (if is_larger { below.0 } else { above.0 }, if is_larger { below.1 } else { above.1 })
}

/// A tap of the windows of a row.
struct Tap {
    number: u32,
    /// From the first row of a window.
    row: usize,
    /// The columns of windows for which it lies inside the image.
    columns: Range<usize>,
    /// The column of the image of the first of these.
    column: usize,
}

/// Whether a number takes the place of the largest so far.
#[inline(always)]
fn is_larger(number: f32, largest: f32) -> bool {
    // Without a branch, so that it is done to many at once.
    (number > largest) | number.is_nan()
}

/// A loop over places and every `stride`-th number, as long as there are places. The stride is a constant of each loop, and pairs are
/// loaded at once; the last number may have no other.
macro_rules! strided {
    ($places:expr, $numbers:expr, $chunks:ident, $iter:ident, $stride:expr, |$place:pat_param, $number:pat_param| $body:block) => {
        match $stride {
            1 => {
                for ($place, $number) in $places.zip($numbers.$iter()) $body
            }
            2 => {
                let paired = $numbers.len() / 2;
                for ($place, [$number, _]) in $places.zip($numbers.$chunks::<2>().0) $body
                // Skipping walks past all pairs: only where a place is left.
                if $places.len() > paired {
                    for ($place, $number) in $places.zip($numbers.$iter().step_by(2)).skip(paired) $body
                }
            }
            stride => {
                for ($place, $number) in $places.zip($numbers.$iter().step_by(stride)) $body
            }
        }
    };
}

/// Of one image.
struct Forward<'a> {
    pool: MaxPool,
    taps: &'a [Tap],
    image: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Forward { pool, taps, image, output } = self;
        let columns = pool.output().expect("asked before")[1];
        if pool.is_quarters() {
            for (rows, output) in image.chunks_exact(2 * pool.width).zip(output.chunks_exact_mut(columns)) {
                let (upper, lower) = rows.split_at(pool.width);
                let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
                for ((upper, lower), output) in pairs.zip(output) {
                    *output = largest_of_four(*upper, *lower).0;
                }
            }
            return;
        }
        for (row, output) in output.chunks_exact_mut(columns).enumerate() {
            for tap in taps {
                let Some(start) = pool.start(row, tap) else { continue };
                let (output, numbers) = (&mut output[tap.columns.clone()], &image[start..]);
                strided!(output.iter_mut(), numbers, as_chunks, iter, pool.stride[1], |largest, number| {
                    *largest = if is_larger(*number, *largest) { *number } else { *largest };
                });
            }
        }
    }
}

/// Of one image.
struct Backward<'a> {
    pool: MaxPool,
    taps: &'a [Tap],
    image: &'a [f32],
    gradient: &'a [f32],
    found: &'a mut [f32],
    room: &'a mut Room,
}

/// Of a row of windows.
#[derive(Default)]
struct Room {
    /// The numbers so far.
    largest: Vec<f32>,
    /// Their taps, and a number that no tap has.
    which: Vec<u32>,
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        const NONE: u32 = u32::MAX;
        let Backward { pool, taps, image, gradient, found, room: Room { largest, which } } = self;
        let (columns, stride) = (pool.output().expect("asked before")[1], pool.stride[1]);
        if pool.is_quarters() {
            let images = image.chunks_exact(2 * pool.width).zip(found.chunks_exact_mut(2 * pool.width));
            for ((rows, found), gradient) in images.zip(gradient.chunks_exact(columns)) {
                let ((upper, lower), (found_above, found_below)) =
                    (rows.split_at(pool.width), found.split_at_mut(pool.width));
                let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
                let places =
                    found_above.as_chunks_mut::<2>().0.iter_mut().zip(found_below.as_chunks_mut::<2>().0);
                for (((upper, lower), (above, below)), gradient) in pairs.zip(places).zip(gradient) {
                    let which = largest_of_four(*upper, *lower).1;
                    let share = |tap: u32| if which == tap { *gradient } else { 0.0 };
                    (*above, *below) = ([share(0), share(1)], [share(2), share(3)]);
                }
            }
            return;
        }
        for (row, gradient) in gradient.chunks_exact(columns).enumerate() {
            largest.clear();
            largest.resize(columns, f32::NEG_INFINITY);
            which.clear();
            which.resize(columns, NONE);
            for tap in taps {
                let Some(start) = pool.start(row, tap) else { continue };
                let (numbers, inside, tap) = (&image[start..], tap.columns.clone(), tap.number);
                let (largest, which) = (&mut largest[inside.clone()], &mut which[inside]);
                strided!(
                    largest.iter_mut().zip(which.iter_mut()),
                    numbers,
                    as_chunks,
                    iter,
                    stride,
                    |(largest, which), number| {
                        let is_larger = is_larger(*number, *largest) | (*which == NONE);
                        *largest = if is_larger { *number } else { *largest };
                        *which = if is_larger { tap } else { *which };
                    }
                );
            }
            for tap in taps {
                let Some(start) = pool.start(row, tap) else { continue };
                let (found, inside, tap) = (&mut found[start..], tap.columns.clone(), tap.number);
                let (which, gradient) = (&which[inside.clone()], &gradient[inside]);
                strided!(
                    which.iter().zip(gradient),
                    found,
                    as_chunks_mut,
                    iter_mut,
                    stride,
                    |(which, gradient), found| {
                        *found += if *which == tap { *gradient } else { 0.0 };
                    }
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::bits;

    fn pools() -> impl Strategy<Value = MaxPool> {
        let axis = || (1usize..20, 1usize..4, 1usize..4, 0usize..3, 1usize..3);
        let quarters = (1usize..20, 1usize..20).prop_map(|(height, width)| {
            let [two, one] = [[2, 2], [1, 1]];
            MaxPool { height, width, window: two, stride: two, padding: [0, 0], dilation: one }
        });
        let any = (axis(), axis()).prop_map(|(rows, columns)| MaxPool {
            height: rows.0,
            width: columns.0,
            window: [rows.1, columns.1],
            stride: [rows.2, columns.2],
            padding: [rows.3, columns.3],
            dilation: [rows.4, columns.4],
        });
        prop_oneof![2 => any, 1 => quarters]
    }

    proptest! {
        #[test]
        fn every_level_computes_the_definition(
            pool in pools().prop_filter("windows that fit", |pool| pool.output().is_some()),
            images in 1usize..3,
            seed in any::<u64>(),
        ) {
            let [rows, columns] = pool.output().unwrap();
            let image = pool.height * pool.width;
            // Few different numbers, so that many are equal, and some that are none.
            let draw = |at: usize| (seed >> (at % 59)) % 7;
            let number = |at: usize| if draw(at) == 6 { f32::NAN } else { draw(at) as f32 - 3.0 };
            let numbers: Vec<f32> = (0..images * image).map(number).collect();
            let gradient: Vec<f32> = (0..images * rows * columns).map(|at| at as f32 + 0.5).collect();
            let mut output = Vec::new();
            // By image and row of windows, then by tap: the place and the gradient.
            let mut shares: Vec<((usize, usize), usize, f32)> = Vec::new();
            for (window, gradient) in gradient.iter().enumerate() {
                let (of, row, column) = (window / (rows * columns), window / columns % rows, window % columns);
                let mut largest: Option<(usize, usize)> = None;
                for down in 0..pool.window[0] {
                    for right in 0..pool.window[1] {
                        let tap = down * pool.window[1] + right;
                        let place = |at: usize, tap: usize, axis: usize, size: usize| {
                            let at = (at * pool.stride[axis] + tap * pool.dilation[axis]).checked_sub(pool.padding[axis])?;
                            (at < size).then_some(at)
                        };
                        let place = place(row, down, 0, pool.height).zip(place(column, right, 1, pool.width));
                        let Some((down, right)) = place else { continue };
                        let at = of * image + down * pool.width + right;
                        if largest.is_none_or(|(largest, _)| numbers[at] > numbers[largest] || numbers[at].is_nan()) {
                            largest = Some((at, tap));
                        }
                    }
                }
                output.push(largest.map_or(f32::NEG_INFINITY, |(at, _)| numbers[at]));
                shares.extend(largest.map(|(at, tap)| ((window / columns, tap), at, *gradient)));
            }
            shares.sort_by_key(|(order, ..)| *order);
            let mut found = vec![0.0_f32; numbers.len()];
            shares.iter().for_each(|(_, at, gradient)| found[*at] += gradient);
            for level in Level::available() {
                prop_assert_eq!(bits(&pool.forward(level, &numbers)), bits(&output), "{} {:?}", level, pool);
                prop_assert_eq!(bits(&pool.backward(level, &numbers, &gradient)), bits(&found), "{} {:?}", level, pool);
            }
        }
    }

    #[test]
    fn there_are_no_windows_larger_than_the_image() {
        let pool = MaxPool {
            height: 2,
            width: 2,
            window: [3, 1],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
        };
        assert_eq!(pool.output(), None);
        assert_eq!(MaxPool { padding: [1, 0], ..pool }.output(), Some([2, 2]));
        assert_eq!(MaxPool { window: [0, 1], ..pool }.output(), None);
        assert_eq!(MaxPool { window: [1, 1], stride: [0, 1], ..pool }.output(), None);
    }
}
