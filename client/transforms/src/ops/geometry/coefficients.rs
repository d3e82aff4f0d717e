//! The numbers that define a map from the pixels of the result to those of the source.

/// An affine map `[a, b, c, d, e, f]`: from `(x, y)` to `(a x + b y + c, d x + e y + f)`.
pub(super) type Matrix = [f64; 6];

/// The map from a pixel of the result to its source, both in pixels from the middle: torchvision's
/// `_get_inverse_affine_matrix`.
pub(super) fn inverse_affine(
    center: [f64; 2],
    angle: f64,
    translate: [f64; 2],
    scale: f64,
    shear: [f64; 2],
) -> Matrix {
    let [a, b, c, d] = turned_and_sheared(angle, shear);
    let [x, y] = center;
    let [to_x, to_y] = [x + translate[0], y + translate[1]];
    let [m0, m1, m3, m4] = [d / scale, -b / scale, -c / scale, a / scale];
    [m0, m1, x - m0 * to_x - m1 * to_y, m3, m4, y - m3 * to_x - m4 * to_y]
}

/// The map from a point of the source to its place in the result, both in pixels from the top left corner, as `center` is.
pub(super) fn forward_affine(
    center: [f64; 2],
    angle: f64,
    translate: [f64; 2],
    scale: f64,
    shear: [f64; 2],
) -> Matrix {
    let [a, b, c, d] = turned_and_sheared(angle, shear).map(|value| value * scale);
    let [x, y] = center;
    [a, b, x + translate[0] - a * x - b * y, c, d, y + translate[1] - c * x - d * y]
}

/// Of a rotation and shears in degrees; the determinant is 1.
fn turned_and_sheared(angle: f64, shear: [f64; 2]) -> [f64; 4] {
    let turn = angle.to_radians();
    let [shear_x, shear_y] = shear.map(f64::to_radians);
    let a = libm::cos(turn - shear_y) / libm::cos(shear_y);
    let b = -(a * libm::tan(shear_x) + libm::sin(turn));
    let c = libm::sin(turn - shear_y) / libm::cos(shear_y);
    let d = libm::cos(turn) - c * libm::tan(shear_x);
    [a, b, c, d]
}

/// `[height, width]` of the picture that holds a whole rotated picture: torchvision's
/// `_compute_affine_output_size`, in `f32`.
pub(super) fn rotated_size(matrix: Matrix, [height, width]: [usize; 2]) -> [usize; 2] {
    let [half_width, half_height] = [0.5 * width as f32, 0.5 * height as f32];
    let corners = [-half_width, half_width].map(|x| [-half_height, half_height].map(|y| [x, y]));
    let span = |[a, b, c]: [f64; 3], half: f32| {
        let at = |[x, y]: [f32; 2]| x * a as f32 + y * b as f32 + c as f32;
        let along = corners.as_flattened().iter().map(|&corner| at(corner));
        let low = along.clone().fold(f32::INFINITY, f32::min) + half;
        let high = along.fold(f32::NEG_INFINITY, f32::max) + half;
        // Only the first four decimals count.
        let cut = |value: f32| (value * 10_000.0).trunc() * 1e-4;
        (cut(high).ceil() - cut(low).floor()) as usize
    };
    let [a, b, c, d, e, f] = matrix;
    // More than that is possible only where the centre is so far away that `f32` is too coarse.
    let most = height + width + 2;
    [span([d, e, f], half_height).clamp(1, most), span([a, b, c], half_width).clamp(1, most)]
}

/// The map from `endpoints` to `startpoints`: `[a, b, c, d, e, f, g, h]`, where `(x, y)` goes to
/// `((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1))`.
///
/// `None` if there is none, or none with finite numbers.
pub(super) fn perspective_coefficients(
    startpoints: [[f64; 2]; 4],
    endpoints: [[f64; 2]; 4],
) -> Option<[f64; 8]> {
    let mut system = [[0.0; 9]; 8];
    for (rows, (end, start)) in
        system.as_chunks_mut::<2>().0.iter_mut().zip(endpoints.iter().zip(startpoints))
    {
        for (axis, row) in rows.iter_mut().enumerate() {
            row[3 * axis..][..3].copy_from_slice(&[end[0], end[1], 1.0]);
            row[6] = -start[axis] * end[0];
            row[7] = -start[axis] * end[1];
            // As torchvision, which has whole numbers as such and others in `f32`.
            if row.iter().any(|value| value.fract() != 0.0) {
                row.iter_mut().for_each(|value| *value = f64::from(*value as f32));
            }
            row[8] = start[axis];
        }
    }
    solve(system)
}

/// The map back, `[a, b, c, d, e, f, g, h, i]` with the denominator `g x + h y + i`: torchvision's
/// `_compute_perspective_thetas`. `i` is 1, or 0 where that would divide by 0.
pub(super) fn inverse_perspective([a, b, c, d, e, f, g, h]: [f64; 8]) -> [f64; 9] {
    let corner = a * e - b * d;
    let divisor = if corner == 0.0 { 1.0 } else { corner };
    let rows = [e - f * h, -b + c * h, b * f - c * e, -d + f * g, a - c * g, -a * f + c * d];
    let below = [-e * g + d * h, -a * h + b * g, corner];
    let mut inverse = [0.0; 9];
    inverse.iter_mut().zip(rows.into_iter().chain(below)).for_each(|(to, from)| *to = from / divisor);
    inverse
}

/// The solution of eight equations, by Gaussian elimination with the largest pivot of each column.
fn solve(mut rows: [[f64; 9]; 8]) -> Option<[f64; 8]> {
    let scale = rows.as_flattened().iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    for column in 0..8 {
        let size = |row: &usize| rows[*row][column].abs();
        let pivot = (column..8).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        rows.swap(column, pivot);
        let (above, below) = rows.split_at_mut(column + 1);
        let pivot = above[column];
        if pivot[column].is_nan() || pivot[column].abs() <= scale * 1e-13 {
            return None;
        }
        for row in below {
            let factor = row[column] / pivot[column];
            row.iter_mut().zip(pivot).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut solution = [0.0; 8];
    for row in (0..8).rev() {
        let known: f64 = (row + 1..8).map(|column| rows[row][column] * solution[column]).sum();
        solution[row] = (rows[row][8] - known) / rows[row][row];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}
