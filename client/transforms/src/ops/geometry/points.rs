//! Where points of a picture are in the result: maps in the other direction than those of grids, as torchvision has them for
//! boxes and key points.
//!
//! The products of torch's matrices have fused multiply-add: see `grid`. Those of fewer than 16 points do not, and differ in the
//! last bit; here the place of a point does not depend on how many others there are.

use super::coefficients::{forward_affine, inverse_perspective, perspective_coefficients};
use super::field::Field;
use super::grid::{fused, middles};

/// `a x + b y + c`.
fn sum([a, b, c]: [f32; 3], [x, y]: [f32; 2]) -> f32 {
    fused(y, b, x * a) + c
}

fn mapped([a, b, c, d, e, f]: [f32; 6], point: [f32; 2]) -> [f32; 2] {
    [sum([a, b, c], point), sum([d, e, f], point)]
}

/// The place of each point `[x, y]` that [`affine`](super::affine) with these arguments makes of a picture of this height and
/// width.
pub(crate) fn affine_points(
    size: [usize; 2],
    angle: f64,
    translate: [f64; 2],
    scale: f64,
    shear: [f64; 2],
    center: Option<[f64; 2]>,
) -> impl Fn([f32; 2]) -> [f32; 2] {
    let matrix = forward_affine(in_pixels(center, size), angle, translate, scale, shear);
    let matrix = matrix.map(|value| value as f32);
    move |point| mapped(matrix, point)
}

/// That of [`rotate`](super::rotate). With `expand`, the leftmost and the topmost corner are at 0.
pub(crate) fn rotated_points(
    size @ [height, width]: [usize; 2],
    angle: f64,
    expand: bool,
    center: Option<[f64; 2]>,
) -> impl Fn([f32; 2]) -> [f32; 2] {
    let matrix = forward_affine(in_pixels(center, size), -angle, [0.0; 2], 1.0, [0.0; 2]);
    let matrix @ [a, b, c, d, e, f] = matrix.map(|value| value as f32);
    let corners = [0.0, width as f32].map(|x| {
        // The order of torch for a few points.
        [0.0, height as f32].map(|y| [x * a + c + y * b, x * d + f + y * e])
    });
    let first = |axis: usize| corners.as_flattened().iter().map(|at| at[axis]).fold(f32::INFINITY, f32::min);
    let [left, top] = if expand { [first(0), first(1)] } else { [0.0; 2] };
    move |point| {
        let [x, y] = mapped(matrix, point);
        [x - left, y - top]
    }
}

/// The fixed point in pixels from the top left corner: the middle if none is given.
fn in_pixels(center: Option<[f64; 2]>, [height, width]: [usize; 2]) -> [f64; 2] {
    center.unwrap_or([width as f64 * 0.5, height as f64 * 0.5])
}

/// That of [`perspective`](super::perspective). Points stay where that leaves the picture as it is.
pub(crate) fn perspective_points(
    startpoints: [[f64; 2]; 4],
    endpoints: [[f64; 2]; 4],
) -> impl Fn([f32; 2]) -> [f32; 2] {
    // Of numbers in 32 bits, as torchvision has them.
    let coefficients =
        perspective_coefficients(startpoints, endpoints).map(|all| all.map(|value| value as f32));
    let inverse = coefficients.map(|all| inverse_perspective(all.map(f64::from)).map(|value| value as f32));
    move |point| {
        let Some([a, b, c, d, e, f, below @ ..]) = inverse else { return point };
        let below = sum(below, point);
        mapped([a, b, c, d, e, f], point).map(|value| value / below)
    }
}

/// About that of [`elastic`](super::elastic), for points of whole numbers: the displacement of the pixel there is subtracted.
/// Those outside take that of the nearest pixel, and its place.
pub(crate) fn elastic_points(field: &Field) -> impl Fn([f32; 2]) -> [f32; 2] {
    let size @ [height, width] = field.size();
    let [columns, rows] = [middles(width), middles(height)];
    move |[x, y]| {
        // A number outside of `usize` becomes its nearest.
        let [x, y] = [(x as usize).min(width - 1), (y as usize).min(height - 1)];
        let [right, down] = field.row(y)[x];
        let pixels = |at: f32, side: usize| (at + 1.0) * (0.5 * side as f32) - 0.5;
        [pixels(columns[x] - right, size[1]), pixels(rows[y] - down, size[0])]
    }
}
