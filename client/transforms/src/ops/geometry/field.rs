//! Random fields of displacements for elastic warps.

use crate::draws::Draws;

/// How far from each pixel to take its source: `[dx, dy]`, in halves of the width and of the height.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    size: [usize; 2],
    moves: Vec<[f32; 2]>,
}

impl Field {
    /// From the displacements of all pixels of a picture of `[height, width]`, row by row.
    ///
    /// # Panics
    /// If there are more or fewer displacements, or none.
    pub fn new([height, width]: [usize; 2], moves: Vec<[f32; 2]>) -> Self {
        assert!(!moves.is_empty(), "a field has displacements");
        assert_eq!(moves.len(), height * width, "displacements of a field of {height}x{width}");
        Self { size: [height, width], moves }
    }

    /// As torchvision's `ElasticTransform`: noise from -1 to 1, blurred by a Gaussian, times `alpha` pixels.
    ///
    /// `alpha` and `sigma` are for x and y. The Gaussian has a deviation of `sigma[0]` pixels along x and
    /// `sigma[1]` along y. It ends four deviations from its middle (of x for `dx`, of y for `dy`), or where
    /// the mirrored picture ends. Without a positive `sigma[0]`, `dx` stays noise; so does `dy` without
    /// `sigma[1]`.
    ///
    /// Draws, row by row, a `uniform()` for each `dx`, then one for each `dy`.
    ///
    /// # Panics
    /// If the size is 0.
    pub fn random(size: [usize; 2], alpha: [f64; 2], sigma: [f64; 2], draws: &mut Draws) -> Self {
        let [height, width] = size;
        let [dx, dy] = [(0, width), (1, height)].map(|(axis, length)| {
            let mut plane: Vec<f32> =
                (0..height * width).map(|_| draws.uniform() as f32 * 2.0 - 1.0).collect();
            if sigma[axis] > 0.0 {
                plane = blurred(&plane, size, sigma, (8.0 * sigma[axis] + 1.0) as usize / 2);
            }
            let [alpha, length] = [alpha[axis] as f32, length as f32];
            plane.iter_mut().for_each(|value| *value = *value * alpha / length);
            plane
        });
        Self::new(size, dx.into_iter().zip(dy).map(<[f32; 2]>::from).collect())
    }

    /// `[height, width]`.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The displacements of a row.
    ///
    /// # Panics
    /// If the row is outside.
    pub fn row(&self, y: usize) -> &[[f32; 2]] {
        &self.moves[y * self.size[1]..][..self.size[1]]
    }
}

/// A plane after a Gaussian filter along x and then along y, mirrored at its edges.
pub(super) fn blurred(
    plane: &[f32],
    [height, width]: [usize; 2],
    [sigma_x, sigma_y]: [f64; 2],
    radius: usize,
) -> Vec<f32> {
    let along_x = gaussian(sigma_x, radius.min(width - 1));
    let mut padded = vec![0.0; width + along_x.len() - 1];
    let mut rows = vec![0.0; plane.len()];
    for (row, to) in plane.chunks_exact(width).zip(rows.chunks_exact_mut(width)) {
        for (at, value) in padded.iter_mut().enumerate() {
            *value = row[mirrored(at, along_x.len() / 2, width)];
        }
        for (shift, weight) in along_x.iter().enumerate() {
            add(to, &padded[shift..][..width], *weight);
        }
    }
    let along_y = gaussian(sigma_y, radius.min(height - 1));
    let mut blurred = vec![0.0; plane.len()];
    for (y, to) in blurred.chunks_exact_mut(width).enumerate() {
        for (shift, weight) in along_y.iter().enumerate() {
            let from = mirrored(y + shift, along_y.len() / 2, height);
            add(to, &rows[from * width..][..width], *weight);
        }
    }
    blurred
}

fn add(sums: &mut [f32], values: &[f32], weight: f32) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * weight);
}

/// The place within `0..size` of `at - before`, mirrored at 0 and at `size - 1`.
fn mirrored(at: usize, before: usize, size: usize) -> usize {
    let at = at.abs_diff(before);
    if at < size { at } else { 2 * (size - 1) - at }
}

/// The weights of a Gaussian from `-radius` to `radius`, with the sum 1. All is at the middle if `sigma` is
/// not positive.
fn gaussian(sigma: f64, radius: usize) -> Vec<f32> {
    if sigma.is_nan() || sigma <= 0.0 {
        return vec![1.0];
    }
    let weight = |at: usize| {
        let deviations = at.abs_diff(radius) as f64 / sigma;
        libm::exp(-0.5 * deviations * deviations)
    };
    let weights: Vec<f64> = (0..=2 * radius).map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}
