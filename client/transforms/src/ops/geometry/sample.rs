//! Pictures at given coordinates: torch's `grid_sample` with zeros outside, and torchvision's fill.

use super::{Interpolation, fill::fill_of, grid::Grid, grid::fused};
use crate::image::Image;

/// Added to an `f32` of less than 2^22, it leaves the nearest whole number, half to even, in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// The most pixels of a side between which coordinates distinguish. `f32` has no room for more.
const SIDE: f32 = 4_194_303.0;

/// How near `n + 0.5` a mean in plain `f32` may come before its rounding needs exact arithmetic.
///
/// A sum of four products below 256, and the way through a fill and back, err by less than 2^-11 together.
const TIE: f32 = 1.0 / 2048.0;

/// The picture at the coordinates of a grid, rounded half to even.
pub(super) fn sample(
    image: &Image<u8>,
    grid: &impl Grid,
    interpolation: Interpolation,
    fill: &[f32],
) -> Image<u8> {
    match image.channels() {
        3 => sample_channels::<3, 4>(image, grid, interpolation, fill),
        _ => sample_channels::<1, 1>(image, grid, interpolation, fill),
    }
}

/// That of `C` channels at a time, of which there must be a multiple, in lanes of `L` numbers.
fn sample_channels<const C: usize, const L: usize>(
    image: &Image<u8>,
    grid: &impl Grid,
    interpolation: Interpolation,
    fill: &[f32],
) -> Image<u8> {
    let [height, width] = grid.size();
    let channels = image.channels();
    let sources: Vec<Source<C, L>> =
        (0..channels).step_by(C).map(|first| Source::new(image, first, fill)).collect();
    let axes = [Axis::new(image.width()), Axis::new(image.height())];
    let mut pixels = vec![0; height * width * channels];
    let [mut along_x, mut along_y] = [vec![0.0; width], vec![0.0; width]];
    let [mut xs, mut ys] = [vec![0; width], vec![0; width]];
    for (y, row) in pixels.chunks_exact_mut(width * channels).enumerate() {
        grid.row(y, &mut along_x, &mut along_y);
        match interpolation {
            Interpolation::Nearest => {
                axes[0].nearest(&along_x, &mut xs);
                axes[1].nearest(&along_y, &mut ys);
                sources.iter().for_each(|source| source.nearest([&xs, &ys], row));
            }
            Interpolation::Bilinear => {
                axes[0].split(&mut along_x, &mut xs);
                axes[1].split(&mut along_y, &mut ys);
                sources.iter().for_each(|source| source.bilinear([&xs, &ys], [&along_x, &along_y], row));
            }
        }
    }
    Image::new([height, width, channels], pixels)
}

/// The scale of the coordinates along x or y.
#[derive(Clone, Copy)]
struct Axis {
    half: f64,
    limit: f32,
}

impl Axis {
    fn new(size: usize) -> Self {
        Self { half: f64::from(size as f32 / 2.0), limit: (size as f32 + 1.0).min(SIDE) }
    }

    /// In pixels: 0 at the middle of the first. Coordinates far outside, and those that are not numbers,
    /// become some that are just outside.
    fn pixels(self, coordinate: f32) -> f32 {
        let pixels = (f64::from(coordinate + 1.0) * self.half - 0.5) as f32;
        let pixels = if pixels > -2.0 { pixels } else { -2.0 };
        if pixels < self.limit { pixels } else { self.limit }
    }

    /// The nearest pixels to coordinates.
    fn nearest(self, coordinates: &[f32], places: &mut [i32]) {
        for (place, &coordinate) in places.iter_mut().zip(coordinates) {
            *place = round(self.pixels(coordinate)).0;
        }
    }

    /// The last pixels whose middles are not beyond the coordinates, which become the distances from these
    /// middles.
    fn split(self, coordinates: &mut [f32], places: &mut [i32]) {
        for (place, coordinate) in places.iter_mut().zip(coordinates) {
            let pixels = self.pixels(*coordinate);
            let (nearest, rounded) = round(pixels);
            let beyond = rounded > pixels;
            *place = nearest.wrapping_sub(i32::from(beyond));
            *coordinate = pixels - if beyond { rounded - 1.0 } else { rounded };
        }
    }
}

/// `C` channels of a picture, and the colour around it.
///
/// Means are computed in `L` lanes at a time: four are quicker than three.
struct Source<'a, const C: usize, const L: usize> {
    image: &'a Image<u8>,
    first: usize,
    fill: Option<[f32; L]>,
    outside: [u8; C],
}

impl<'a, const C: usize, const L: usize> Source<'a, C, L> {
    fn new(image: &'a Image<u8>, first: usize, fill: &[f32]) -> Self {
        let value = |channel| fill_of(fill, first + channel).unwrap_or(0.0);
        Self {
            image,
            first,
            fill: (!fill.is_empty()).then(|| std::array::from_fn(value)),
            outside: std::array::from_fn(|channel| value(channel).round_ties_even() as u8),
        }
    }

    /// The channels of a pixel, `None` if it is outside.
    #[inline]
    fn pixel(&self, [x, y]: [i32; 2]) -> Option<[u8; C]> {
        let ([x, y], channels) = ([x as u32 as usize, y as u32 as usize], self.image.channels());
        if x >= self.image.width() || y >= self.image.height() {
            return None;
        }
        let at = (y * self.image.width() + x) * channels + self.first;
        self.image.pixels()[at..].first_chunk().copied()
    }

    fn nearest(&self, [xs, ys]: [&[i32]; 2], row: &mut [u8]) {
        for ((pixel, &x), &y) in row.chunks_exact_mut(self.image.channels()).zip(xs).zip(ys) {
            pixel[self.first..][..C].copy_from_slice(&self.pixel([x, y]).unwrap_or(self.outside));
        }
    }

    /// The means of the pixels from `xs` and `ys` on, with these shares of those after them.
    fn bilinear(&self, [xs, ys]: [&[i32]; 2], [x_shares, y_shares]: [&[f32]; 2], row: &mut [u8]) {
        let places = xs.iter().zip(ys).zip(x_shares.iter().zip(y_shares));
        for (pixel, ((&x, &y), (&west, &north))) in row.chunks_exact_mut(self.image.channels()).zip(places) {
            let weights = weights([west, north]);
            let mean = match self.inside([x, y]) {
                Some(corners) => {
                    quick_mean(corners, weights).unwrap_or_else(|| self.mean(corners, [1.0; 4], weights))
                }
                None => self.edge_mean([x, y], weights),
            };
            pixel[self.first..][..C].copy_from_slice(&mean);
        }
    }

    /// The lanes of the four pixels from one on, if none of them is outside.
    #[inline]
    fn inside(&self, at: [i32; 2]) -> Option<[[f32; L]; 4]> {
        let ([x, y], channels) = (at.map(|at| at as u32 as usize), self.image.channels());
        if x + 1 >= self.image.width() || y + 1 >= self.image.height() {
            return None;
        }
        let at = (y * self.image.width() + x) * channels + self.first;
        let north = &self.image.pixels()[at..];
        let south = &north[self.image.width() * channels..];
        Some([lanes(north)?, lanes(&north[channels..])?, lanes(south)?, lanes(&south[channels..])?])
    }

    /// The mean of four pixels of which some may be outside.
    #[inline(never)]
    fn edge_mean(&self, [x, y]: [i32; 2], weights: [f32; 4]) -> [u8; C] {
        let corners = [[x, y], [x + 1, y], [x, y + 1], [x + 1, y + 1]].map(|at| self.pixel(at));
        if corners == [None; 4] {
            return self.outside;
        }
        let lanes = corners.map(|corner| {
            let corner = corner.unwrap_or([0; C]);
            std::array::from_fn(|lane| f32::from(corner[lane.min(C - 1)]))
        });
        self.mean(lanes, corners.map(|corner| f32::from(u8::from(corner.is_some()))), weights)
    }

    /// The mean of four pixels, with torch's roundings. `inside` is 1 for those inside, else 0.
    #[inline]
    fn mean(&self, corners: [[f32; L]; 4], inside: [f32; 4], weights: [f32; 4]) -> [u8; C] {
        let mut mean = weighted(corners, weights);
        if let Some(fill) = &self.fill {
            let [inside] = weighted(inside.map(|inside| [inside]), weights);
            mean.iter_mut().zip(fill).for_each(|(value, fill)| *value = (*value - fill) * inside + fill);
        }
        std::array::from_fn(|channel| round(mean[channel]).0 as u8)
    }
}

/// The mean of four pixels inside, unless its rounding is in doubt.
#[inline]
fn quick_mean<const C: usize, const L: usize>(corners: [[f32; L]; 4], weights: [f32; 4]) -> Option<[u8; C]> {
    let ([a, b, c, d], [nw, ne, sw, se]) = (corners, weights);
    let mean: [f32; L] = std::array::from_fn(|at| a[at] * nw + b[at] * ne + c[at] * sw + d[at] * se);
    let errors = mean.map(|value| (value - round(value).1).abs());
    let sure = errors.iter().fold(true, |sure, &error| sure & (error < 0.5 - TIE));
    sure.then(|| std::array::from_fn(|channel| round(mean[channel]).0 as u8))
}

/// The nearest whole number, half to even, as such and in `f32`, for numbers of less than 2^22.
#[inline]
fn round(value: f32) -> (i32, f32) {
    let rounded = value + ROUNDER;
    (rounded.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32, rounded - ROUNDER)
}

/// The first numbers.
#[inline]
fn lanes<const L: usize>(numbers: &[u8]) -> Option<[f32; L]> {
    numbers.first_chunk().map(|numbers: &[u8; L]| numbers.map(f32::from))
}

/// Those of the pixels at the north west, north east, south west and south east.
fn weights([west, north]: [f32; 2]) -> [f32; 4] {
    let [east, south] = [1.0 - west, 1.0 - north];
    [south * east, south * west, north * east, north * west]
}

/// The sums of products, as torch fuses them.
#[inline]
fn weighted<const L: usize>([nw, ne, sw, se]: [[f32; L]; 4], weights: [f32; 4]) -> [f32; L] {
    let add = |sums: [f32; L], values: [f32; L], weight| {
        std::array::from_fn(|lane| fused(values[lane], weight, sums[lane]))
    };
    let sums = add(nw.map(|value| value * weights[0]), ne, weights[1]);
    add(add(sums, sw, weights[2]), se, weights[3])
}

/// Whether the quick mean, if there is one, is that with torch's roundings and with a fill.
#[cfg(test)]
pub(super) fn means_agree(values: [[u8; 3]; 4], shares: [f32; 2], fill: f32) -> bool {
    let image = Image::filled(1, 1, &[0; 3]);
    let corners = values.map(|[red, green, blue]| [red, green, blue, 0].map(f32::from));
    let source = Source::<3, 4>::new(&image, 0, &[fill]);
    let exact = source.mean(corners, [1.0; 4], weights(shares));
    quick_mean(corners, weights(shares)).is_none_or(|quick: [u8; 3]| quick == exact)
}
