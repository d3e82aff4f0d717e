//! Affine maps, rotations, perspective and elastic warps of pictures, with the pixels of torchvision.
//!
//! All of them make a grid of source coordinates and sample the picture there, as torchvision's
//! `_apply_grid_transform` does. The arithmetic is that of torch on CPUs with fused multiply-add.

mod coefficients;
mod field;
mod fill;
mod grid;
mod points;
mod sample;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::image::Image;
use coefficients::{inverse_affine, perspective_coefficients, rotated_size};
use grid::{AffineGrid, FieldGrid, PerspectiveGrid};
use sample::sample;

pub use field::Field;
pub use fill::Fill;
pub(crate) use grid::linspace_at;
pub(crate) use points::{affine_points, elastic_points, perspective_points, rotated_points};

/// How a pixel follows from those around its source coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel; of two that are equally near, the one with the even coordinate.
    Nearest,
    /// The mean of the four nearest pixels, weighted by their distances along each axis.
    Bilinear,
}

/// Rotates, scales, shears and moves a picture, as torchvision's `affine`. The size stays.
///
/// `angle` and `shear` are degrees (clockwise, along x and y), `translate` is pixels (right, down), `scale`
/// is a factor above 0. `center` is the fixed point `[x, y]` in pixels from the top left corner, the middle
/// if `None`. `fill` is as [`Fill::values`] gives it.
///
/// Coordinates that are not finite count as outside.
#[expect(clippy::too_many_arguments, reason = "the arguments of torchvision")]
pub fn affine(
    image: &Image<u8>,
    angle: f64,
    translate: [f64; 2],
    scale: f64,
    shear: [f64; 2],
    interpolation: Interpolation,
    fill: &[f32],
    center: Option<[f64; 2]>,
) -> Image<u8> {
    let size = [image.height(), image.width()];
    let matrix = inverse_affine(from_middle(center, size), angle, translate, scale, shear);
    sample(image, &AffineGrid::new(matrix, size, size), interpolation, fill)
}

/// Rotates a picture by `angle` degrees counter-clockwise, as torchvision's `rotate`.
///
/// With `expand` the result is as large as the whole rotated picture needs; else the size stays. `center` is
/// the fixed point `[x, y]` in pixels from the top left corner, the middle if `None`. `fill` is as
/// [`Fill::values`] gives it.
pub fn rotate(
    image: &Image<u8>,
    angle: f64,
    interpolation: Interpolation,
    expand: bool,
    center: Option<[f64; 2]>,
    fill: &[f32],
) -> Image<u8> {
    let angle = angle.rem_euclid(360.0);
    if center.is_none()
        && let Some(turned) = quarter_turns(image, angle, expand)
    {
        return turned;
    }
    let size = [image.height(), image.width()];
    let matrix = inverse_affine(from_middle(center, size), -angle, [0.0; 2], 1.0, [0.0; 2]);
    let output = if expand { rotated_size(matrix, size) } else { size };
    sample(image, &AffineGrid::new(matrix, size, output), interpolation, fill)
}

/// `[height, width]` of a picture of this size that [`rotate`] makes with `expand`.
pub fn expanded_size(size: [usize; 2], angle: f64, center: Option<[f64; 2]>) -> [usize; 2] {
    let matrix = inverse_affine(from_middle(center, size), -angle.rem_euclid(360.0), [0.0; 2], 1.0, [0.0; 2]);
    rotated_size(matrix, size)
}

/// Moves four corners and all between them, as torchvision's `perspective`. The size stays.
///
/// Maps `startpoints` to `endpoints`: four points `[x, y]` each, in pixels. Usual are the corners at the top
/// left, top right, bottom right and bottom left. `fill` is as [`Fill::values`] gives it.
///
/// If three of the `endpoints` are on one line, there is no such map, and the picture stays as it is;
/// torchvision raises an error.
pub fn perspective(
    image: &Image<u8>,
    startpoints: [[f64; 2]; 4],
    endpoints: [[f64; 2]; 4],
    interpolation: Interpolation,
    fill: &[f32],
) -> Image<u8> {
    let Some(coefficients) = perspective_coefficients(startpoints, endpoints) else {
        return image.clone();
    };
    let size = [image.height(), image.width()];
    sample(image, &PerspectiveGrid::new(coefficients.map(|value| value as f32), size), interpolation, fill)
}

/// Takes each pixel from where a field of displacements points, as torchvision's `elastic`. The size stays.
///
/// `fill` is as [`Fill::values`] gives it.
///
/// # Panics
/// If the field is not as large as the picture.
pub fn elastic(image: &Image<u8>, field: &Field, interpolation: Interpolation, fill: &[f32]) -> Image<u8> {
    assert_eq!(field.size(), [image.height(), image.width()], "the sizes of the field and of the picture");
    sample(image, &FieldGrid::new(field), interpolation, fill)
}

/// The fixed point, in pixels from the middle.
fn from_middle(center: Option<[f64; 2]>, [height, width]: [usize; 2]) -> [f64; 2] {
    center.map_or([0.0; 2], |[x, y]| [x - width as f64 * 0.5, y - height as f64 * 0.5])
}

/// The rotation by a multiple of 90 degrees, if this is one and the size allows it.
fn quarter_turns(image: &Image<u8>, angle: f64, expand: bool) -> Option<Image<u8>> {
    let square = expand || image.height() == image.width();
    match angle {
        0.0 => Some(image.clone()),
        180.0 => Some(half_turn(image)),
        90.0 if square => Some(quarter_turn(image, false)),
        270.0 if square => Some(quarter_turn(image, true)),
        _ => None,
    }
}

fn half_turn(image: &Image<u8>) -> Image<u8> {
    let pixels = match image.channels() {
        1 => image.pixels().iter().rev().copied().collect(),
        3 => image.pixels().as_chunks::<3>().0.iter().rev().copied().flatten().collect(),
        channels => image.pixels().chunks_exact(channels).rev().flatten().copied().collect(),
    };
    Image::new(image.shape(), pixels)
}

/// A rotation by 90 degrees.
fn quarter_turn(image: &Image<u8>, clockwise: bool) -> Image<u8> {
    match image.channels() {
        1 => quarter_turn_of::<1>(image, clockwise),
        3 => quarter_turn_of::<3>(image, clockwise),
        channels => {
            let at = |y, x| if clockwise { (image.height() - 1 - x, y) } else { (x, image.width() - 1 - y) };
            let pixel = |y| (0..image.height()).flat_map(move |x| image.pixel(at(y, x).0, at(y, x).1));
            let pixels = (0..image.width()).flat_map(pixel).copied().collect();
            Image::new([image.width(), image.height(), channels], pixels)
        }
    }
}

fn quarter_turn_of<const C: usize>(image: &Image<u8>, clockwise: bool) -> Image<u8> {
    let [height, width, _] = image.shape();
    let source = image.pixels().as_chunks::<C>().0;
    let mut turned = vec![[0; C]; source.len()];
    for (y, row) in turned.chunks_exact_mut(height).enumerate() {
        let column = if clockwise { y } else { width - 1 - y };
        let pixels = source[column..].iter().step_by(width);
        if clockwise {
            row.iter_mut().rev().zip(pixels).for_each(|(to, from)| *to = *from);
        } else {
            row.iter_mut().zip(pixels).for_each(|(to, from)| *to = *from);
        }
    }
    Image::new([width, height, C], turned.into_flattened())
}
