//! Products of matrices.

use rayon::prelude::*;

use crate::level::Level;
use crate::operand::{Packed, Strided};
use crate::product::{Tile, add_chunk};

/// Numbers of a product below which one thread computes it alone.
const FEW: usize = 1 << 16;

/// A view of numbers as a matrix.
///
/// ```
/// use shardd_kernels::Matrix;
///
/// let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let matrix = Matrix::new(&numbers, 2, 3);
/// assert_eq!((matrix.rows(), matrix.columns()), (2, 3));
/// assert_eq!((matrix.transposed().rows(), matrix.transposed().columns()), (3, 2));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    numbers: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Of `rows * columns` numbers, row by row.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn new(numbers: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        assert_eq!(numbers.len(), rows * columns, "numbers of a matrix of {rows} x {columns}");
        Matrix { numbers, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Of numbers with these distances from row to row and from column to column. A distance of 0 repeats a row or a column.
    ///
    /// # Panics
    /// If there are too few.
    pub fn strided(numbers: &'a [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Matrix<'a> {
        let last = rows.saturating_sub(1) * strides[0] + columns.saturating_sub(1) * strides[1];
        assert!(rows * columns == 0 || last < numbers.len(), "numbers of a matrix of {rows} x {columns}");
        Matrix { numbers, rows, columns, row_stride: strides[0], column_stride: strides[1] }
    }

    /// The same numbers with rows and columns exchanged.
    #[must_use]
    pub fn transposed(self) -> Matrix<'a> {
        let Matrix { numbers, rows, columns, row_stride, column_stride } = self;
        Matrix { numbers, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// How many.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Some rows as the left side of a product.
    fn left(&self, first: usize, rows: usize) -> Strided<'a> {
        Strided {
            numbers: &self.numbers[first * self.row_stride..],
            lanes: rows,
            depth: self.columns,
            lane_stride: self.row_stride,
            step_stride: self.column_stride,
        }
    }

    fn right(&self) -> Strided<'a> {
        Strided {
            numbers: self.numbers,
            lanes: self.columns,
            depth: self.rows,
            lane_stride: self.column_stride,
            step_stride: self.row_stride,
        }
    }
}

/// Writes the product of two matrices, row by row, as [defined](crate#definition).
///
/// ```
/// use shardd_kernels::{Level, Matrix, multiply};
///
/// let (row, column) = ([1.0, 2.0], [3.0, 4.0]);
/// let mut product = [0.0];
/// multiply(Level::best(), Matrix::new(&row, 1, 2), Matrix::new(&column, 2, 1), &mut product);
/// assert_eq!(product, [11.0]);
/// ```
///
/// # Panics
/// If the sizes do not fit.
pub fn multiply(level: Level, left: Matrix<'_>, right: Matrix<'_>, product: &mut [f32]) {
    assert_eq!(left.columns, right.rows, "columns of the left matrix and rows of the right one");
    assert_eq!(product.len(), left.rows * right.columns, "numbers of the product");
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    if product.is_empty() || depth == 0 {
        product.fill(0.0);
        return;
    }
    let tile = Tile::of(level);
    let right = Packed::new(&right.right(), tile.columns);
    let threads = if rows * columns * depth < FEW { 1 } else { rayon::current_num_threads() };
    let block = rows.div_ceil(threads).next_multiple_of(tile.rows);
    product.par_chunks_mut(block * columns).enumerate().for_each(|(index, product)| {
        let left = Packed::new(&left.left(index * block, product.len() / columns), tile.rows);
        let mut sums = vec![0.0; left.panels() * tile.rows * tile.columns];
        for panel in 0..right.panels() {
            for chunk in 0..right.chunks() {
                add_chunk(level, &left, chunk, right.panel(chunk, panel), &mut sums);
            }
            let first = panel * tile.columns;
            let count = tile.columns.min(columns - first);
            for (row, sums) in product.chunks_exact_mut(columns).zip(sums.chunks_exact(tile.columns)) {
                row[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
    });
}

#[cfg(test)]
mod tests;
