//! Blurring and sharpening: each number becomes a mean of its neighbours, or moves away from it.
//!
//! The functions have the names, arguments and pixels of `torchvision.transforms.v2.functional` for tensors
//! of `uint8`.

use crate::image::Image;

/// Moves each number away from the mean of its 3x3 neighbours, by a factor of 0 or more.
///
/// In the mean, the number itself counts five times. 0 blurs the picture, 1 keeps it, 2 sharpens it. The
/// pixels of the border stay as they are, and so do pictures with fewer than three rows or columns.
pub fn adjust_sharpness(image: &mut Image, factor: f64) {
    let [height, width, channels] = image.shape();
    if height < 3 || width < 3 {
        return;
    }
    let ratio = (1.0 - factor) as f32;
    let len = width * channels;
    let inner = channels..len - channels;
    let mut above = image.row(0).to_vec();
    let mut here = above.clone();
    let mut sums = vec![0; len];
    for rows in 0..height - 2 {
        let [row, below] = two_rows(&mut image.pixels_mut()[(rows + 1) * len..], len);
        here.copy_from_slice(row);
        for (((sum, &above), &here), &below) in sums.iter_mut().zip(&above).zip(&here).zip(&*below) {
            *sum = u16::from(above) + u16::from(here) + u16::from(below);
        }
        sharpen(&mut row[inner.clone()], &sums, channels, ratio);
        std::mem::swap(&mut above, &mut here);
    }
}

/// The first two rows.
fn two_rows(pixels: &mut [u8], len: usize) -> [&mut [u8]; 2] {
    let (first, rest) = pixels.split_at_mut(len);
    [first, &mut rest[..len]]
}

/// Moves the inner numbers of a row towards their means, or away. `sums` has the sums of three rows.
fn sharpen(row: &mut [u8], sums: &[u16], channels: usize, ratio: f32) {
    let [left, middle, right] = [0, 1, 2].map(|pixels| &sums[pixels * channels..][..row.len()]);
    let ratio = f64::from(ratio);
    for (((value, &left), &middle), &right) in row.iter_mut().zip(left).zip(middle).zip(right) {
        let own = u16::from(*value);
        // The weights are 1, and 5 in the middle; 13 in sum. Thirteenths never lie halfway between two
        // numbers.
        let mean = (left + middle + right + 4 * own + 6) / 13;
        let change = f64::from(i32::from(mean) - i32::from(own)) * ratio;
        *value = (f64::from(own) + change) as f32 as u8;
    }
}

/// Numbers of a row that the sums of a blur take at a time.
const LANES: usize = 32;

/// Weights below this part of the largest are left out: their sum does not reach the last bit of a result.
const LEAST_WEIGHT: f64 = 1.0 / (1_u64 << 32) as f64;

/// Replaces each number by the mean of its neighbours, with the weights of a normal distribution.
///
/// `kernel_size` are the pixels of the mean, `[across, down]`. They are odd; an even size counts as the next
/// larger one. `sigma` are the standard deviations in pixels, `[across, down]`, larger than 0; else the
/// picture is not blurred in that direction. Beyond the border, the picture is reflected without repeating
/// the border, as often as the kernel needs it; torchvision refuses kernels that need it more than once.
///
/// Weights that cannot change a sum are left out, so the time grows with the smaller of `kernel_size` and
/// about 13 `sigma`.
///
/// The means across are floats, then come the means down, and the result is rounded to the nearest number, to
/// the even one of two. torchvision sums in two dimensions at once, in the order of its library. So results
/// that are within about 1e-5 of a half can round to the other side.
pub fn gaussian_blur(image: &mut Image, kernel_size: [usize; 2], sigma: [f64; 2]) {
    let [height, width, channels] = image.shape();
    let [across, down] = [0, 1].map(|axis| half_kernel(kernel_size[axis], sigma[axis]));
    if across.len() == 1 && down.len() == 1 {
        return;
    }
    let len = width * channels;
    let stride = len.next_multiple_of(LANES);
    let mut padded = vec![0.0; stride + 2 * (across.len() - 1) * channels];
    // The last rows after the blur across. The oldest gives way to the next.
    let kept = height.min(2 * down.len() - 1);
    let mut blurred = vec![0.0; kept * stride];
    let mut neighbours = Vec::with_capacity(down.len());
    let mut next = 0;
    for y in 0..height {
        while next < height && next < y + down.len() {
            pad_row(image.row(next), channels, across.len() - 1, &mut padded);
            blur_row(&padded, channels, &across, &mut blurred[next % kept * stride..][..stride]);
            next += 1;
        }
        neighbours.clear();
        neighbours.extend(down.iter().enumerate().map(|(distance, &weight)| {
            let (y, distance) = (y as isize, distance as isize);
            (weight, [y - distance, y + distance].map(|y| reflect(y, height) % kept * stride))
        }));
        mean_of_rows(&blurred, &neighbours, &mut image.pixels_mut()[y * len..][..len]);
    }
}

/// The weights of the pairs at the distances 0, 1, ... from the middle of a kernel, whose weights sum to 1.
///
/// The middle is a pair with itself, so its weight is halved.
fn half_kernel(size: usize, sigma: f64) -> Vec<f32> {
    let mut weights = vec![0.5];
    if sigma > 0.0 {
        let weight = |distance: usize| {
            let deviations = distance as f64 / sigma;
            libm::exp(-0.5 * deviations * deviations)
        };
        weights.extend((1..=size / 2).map(weight).take_while(|&weight| weight >= LEAST_WEIGHT));
    }
    let sum = 2.0 * weights.iter().rev().sum::<f64>();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

/// The place in `0..len` of a place in the reflected picture.
fn reflect(place: isize, len: usize) -> usize {
    let last = len - 1;
    if last == 0 {
        return 0;
    }
    let place = place.rem_euclid(2 * last as isize) as usize;
    if place > last { 2 * last - place } else { place }
}

/// Writes the numbers of a row as floats, with `padding` reflected pixels on both sides.
fn pad_row(row: &[u8], channels: usize, padding: usize, padded: &mut [f32]) {
    let width = row.len() / channels;
    for (float, &value) in padded[padding * channels..].iter_mut().zip(row) {
        *float = f32::from(value);
    }
    for x in (0..padding).chain(padding + width..2 * padding + width) {
        let from = reflect(x as isize - padding as isize, width);
        for channel in 0..channels {
            padded[x * channels + channel] = f32::from(row[from * channels + channel]);
        }
    }
}

/// The means of a padded row, for a multiple of [`LANES`] numbers.
fn blur_row(padded: &[f32], channels: usize, weights: &[f32], blurred: &mut [f32]) {
    let padding = (weights.len() - 1) * channels;
    for (chunk, means) in blurred.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let start = padding + chunk * LANES;
        *means = [0.0; LANES];
        for (distance, &weight) in weights.iter().enumerate() {
            let offset = distance * channels;
            add_pair(means, weight, lanes(padded, start - offset), lanes(padded, start + offset));
        }
    }
}

/// The means of the rows at these starts, rounded to the nearest number, to the even one of two.
fn mean_of_rows(rows: &[f32], neighbours: &[(f32, [usize; 2])], row: &mut [u8]) {
    /// The float whose last bit counts 1.
    const UNITS: f32 = (1 << 23) as f32;
    for (chunk, values) in row.chunks_mut(LANES).enumerate() {
        let mut means = [0.0; LANES];
        for &(weight, starts) in neighbours {
            let [above, below] = starts.map(|start| lanes(rows, start + chunk * LANES));
            add_pair(&mut means, weight, above, below);
        }
        // Roundings can carry the mean of a very wide kernel beyond 255.
        let means = means.map(|mean| (mean.min(255.0) + UNITS).to_bits() as u8);
        values.copy_from_slice(&means[..values.len()]);
    }
}

/// Adds the weighted sum of two numbers to each of the means.
fn add_pair(means: &mut [f32; LANES], weight: f32, first: &[f32], second: &[f32]) {
    for ((mean, first), second) in means.iter_mut().zip(first).zip(second) {
        *mean += weight * (first + second);
    }
}

/// Some numbers of a row.
fn lanes(numbers: &[f32], start: usize) -> &[f32] {
    &numbers[start..][..LANES]
}

#[cfg(test)]
mod tests;
