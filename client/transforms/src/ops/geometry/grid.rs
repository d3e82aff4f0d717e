//! The source coordinates of each pixel, from -1 (the left or top edge) to 1 (the right or bottom edge).
//!
//! Torch computes them in `f32`, with fused multiply-add where the CPU has it. An `f64` holds the product of
//! two `f32`, so a fused multiply-add is here a sum in `f64` that is rounded to `f32`: the same on all CPUs.

use super::{coefficients::Matrix, field::Field};

/// `a * b + c` with one rounding to `f32` (and one to `f64` before it, which rarely matters).
pub(super) fn fused(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

/// The source coordinates of a picture.
pub(super) trait Grid {
    /// `[height, width]` of the result.
    fn size(&self) -> [usize; 2];

    /// Those of a row of the result: along x and along y, each as long as the row.
    fn row(&self, y: usize, along_x: &mut [f32], along_y: &mut [f32]);
}

/// The sum `a x + b y + c` over a picture: the product of a matrix in torch.
struct Plane {
    /// `a x` for each column.
    columns: Vec<f64>,
    /// `b y` for each row.
    rows: Vec<f64>,
    constant: f32,
    /// Whether some `a x` vanishes beside a `b y` in `f64`, where it can still decide how `f32` rounds.
    uneven: bool,
}

impl Plane {
    /// The pixels have the coordinates `first`, `first + 1.0` and so on, for columns and rows.
    fn new([a, b, constant]: [f32; 3], first: [f32; 2], [height, width]: [usize; 2]) -> Self {
        // Torch has its own loop, without fused multiply-add, for matrices that are smaller than this.
        let fuses = height * width * 6 >= 400;
        let row = |y: f32| if fuses { f64::from(y) * f64::from(b) } else { f64::from(y * b) };
        Self {
            columns: (0..width).map(|x| f64::from((first[0] + x as f32) * a)).collect(),
            rows: (0..height).map(|y| row(first[1] + y as f32)).collect(),
            constant,
            uneven: a != 0.0 && a.abs() < b.abs() * height as f32 * 2.0_f32.powi(-40),
        }
    }

    fn row(&self, y: usize) -> impl Iterator<Item = f32> {
        let Self { uneven, constant, .. } = *self;
        let row = self.rows[y];
        let sum = move |column| if uneven { sum_to_odd(row, column) } else { row + column };
        self.columns.iter().map(move |&column| sum(column) as f32 + constant)
    }
}

/// `a + b`, cut to an `f64` whose last bit is 1 if it is not exact: so it rounds to `f32` as the exact sum does
/// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
/// 2008).
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || !error.is_finite() {
        return sum;
    }
    let beyond = (error > 0.0) != (sum > 0.0);
    f64::from_bits((sum.to_bits() - u64::from(beyond)) | 1)
}

/// Torchvision's `_affine_grid`.
pub(super) struct AffineGrid {
    size: [usize; 2],
    x: Plane,
    y: Plane,
}

impl AffineGrid {
    /// From pixels of the result of size `output` to those of a source of size `input`, both from the middle.
    pub(super) fn new(matrix: Matrix, input: [usize; 2], output: [usize; 2]) -> Self {
        let [height, width] = output;
        let first = [(1.0 - width as f64) * 0.5, (1.0 - height as f64) * 0.5].map(|at| at as f32);
        let [x, y] =
            halves(matrix.map(|value| value as f32), input).map(|row| Plane::new(row, first, output));
        Self { size: output, x, y }
    }
}

impl Grid for AffineGrid {
    fn size(&self) -> [usize; 2] {
        self.size
    }

    fn row(&self, y: usize, along_x: &mut [f32], along_y: &mut [f32]) {
        along_x.iter_mut().zip(self.x.row(y)).for_each(|(to, from)| *to = from);
        along_y.iter_mut().zip(self.y.row(y)).for_each(|(to, from)| *to = from);
    }
}

/// Torchvision's `_perspective_grid`.
pub(super) struct PerspectiveGrid {
    size: [usize; 2],
    x: Plane,
    y: Plane,
    below: Plane,
}

impl PerspectiveGrid {
    pub(super) fn new([a, b, c, d, e, f, g, h]: [f32; 8], size: [usize; 2]) -> Self {
        let plane = |row| Plane::new(row, [0.5; 2], size);
        let [x, y] = halves([a, b, c, d, e, f], size).map(plane);
        Self { size, x, y, below: plane([g, h, 1.0]) }
    }
}

impl Grid for PerspectiveGrid {
    fn size(&self) -> [usize; 2] {
        self.size
    }

    fn row(&self, y: usize, along_x: &mut [f32], along_y: &mut [f32]) {
        let below = self.below.row(y);
        for ((((to_x, to_y), x), y), below) in
            along_x.iter_mut().zip(along_y).zip(self.x.row(y)).zip(self.y.row(y)).zip(below)
        {
            *to_x = x / below - 1.0;
            *to_y = y / below - 1.0;
        }
    }
}

/// The identity with displacements: that of torchvision's `elastic_image`.
pub(super) struct FieldGrid<'a> {
    field: &'a Field,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl<'a> FieldGrid<'a> {
    pub(super) fn new(field: &'a Field) -> Self {
        let [height, width] = field.size();
        Self { field, x: middles(width), y: middles(height) }
    }
}

impl Grid for FieldGrid<'_> {
    fn size(&self) -> [usize; 2] {
        self.field.size()
    }

    fn row(&self, y: usize, along_x: &mut [f32], along_y: &mut [f32]) {
        let moves = self.field.row(y);
        for (((to_x, to_y), x), [dx, dy]) in along_x.iter_mut().zip(along_y).zip(&self.x).zip(moves) {
            *to_x = x + dx;
            *to_y = self.y[y] + dy;
        }
    }
}

/// The rows of an affine map, in halves of the width and of the height.
fn halves([a, b, c, d, e, f]: [f32; 6], [height, width]: [usize; 2]) -> [[f32; 3]; 2] {
    let [half_width, half_height] = [0.5 * width as f64, 0.5 * height as f64].map(|half| half as f32);
    [[a, b, c].map(|value| value / half_width), [d, e, f].map(|value| value / half_height)]
}

/// The middles of that many pixels: from near -1 to near 1.
pub(super) fn middles(count: usize) -> Vec<f32> {
    let end = (count as f64 - 1.0) / count as f64;
    (0..count).map(|index| linspace_at(-end, end, count, index)).collect()
}

/// `torch.linspace(start, end, count)[index]`, which torch computes in `f32`, from the nearer end.
///
/// Is `start` where there are fewer than two numbers.
pub(crate) fn linspace_at(start: f64, end: f64, count: usize, index: usize) -> f32 {
    let [start, end] = [start as f32, end as f32];
    if count < 2 {
        return start;
    }
    let step = (end - start) / (count - 1) as f32;
    if index < count / 2 {
        fused(step, index as f32, start)
    } else {
        fused(-step, (count - 1 - index) as f32, end)
    }
}
