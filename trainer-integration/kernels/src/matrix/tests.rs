use proptest::prelude::*;

use super::*;
use crate::testkit::{bits, numbers, product};

/// The definition, row by column.
fn plainly(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    let number = |matrix: Matrix<'_>, row: usize, column: usize| {
        matrix.numbers[row * matrix.row_stride + column * matrix.column_stride]
    };
    let sum = |row, column| {
        product((0..left.columns).map(|step| (number(left, row, step), number(right, step, column))))
    };
    (0..left.rows).flat_map(|row| (0..right.columns).map(move |column| sum(row, column))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_level_computes_the_definition(
        rows in 1_usize..40,
        columns in 1_usize..70,
        depth in prop_oneof![0_usize..40, 500_usize..530, 1000_usize..1600],
        (turn_left, turn_right) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let (of_left, of_right) = (numbers(seed, rows * depth), numbers(!seed, depth * columns));
        let side = |turned, numbers, rows, columns| {
            if turned { Matrix::new(numbers, columns, rows).transposed() } else { Matrix::new(numbers, rows, columns) }
        };
        let left = side(turn_left, &of_left, rows, depth);
        let right = side(turn_right, &of_right, depth, columns);
        let expected = bits(&plainly(left, right));
        for level in Level::available() {
            let mut found = vec![f32::NAN; rows * columns];
            multiply(level, left, right, &mut found);
            prop_assert_eq!(&bits(&found), &expected, "{}", level);
        }
    }
}

#[test]
fn a_repeated_row_or_column_is_that_of_a_copy() {
    let row = numbers(9, 600);
    let repeated = Matrix::strided(&row, [3, 600], [0, 1]);
    let copied = row.repeat(3);
    let right = numbers(8, 600 * 5);
    let product = |left: Matrix<'_>, right: Matrix<'_>| {
        let mut product = vec![0.0; left.rows() * right.columns()];
        multiply(Level::best(), left, right, &mut product);
        bits(&product)
    };
    let right = Matrix::new(&right, 600, 5);
    assert_eq!(product(repeated, right), product(Matrix::new(&copied, 3, 600), right));
    let one = [2.5];
    let ones = [2.5; 12];
    let (all, each) = (Matrix::strided(&one, [3, 4], [0, 0]), Matrix::new(&ones, 3, 4));
    assert_eq!(product(all, all.transposed()), product(each, each.transposed()));
}

#[test]
fn threads_change_no_bit() {
    let (rows, columns, depth) = (97, 65, 777);
    let (left, right) = (numbers(1, rows * depth), numbers(2, depth * columns));
    let product = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut product = vec![0.0; rows * columns];
        pool.install(|| {
            let (left, right) = (Matrix::new(&left, rows, depth), Matrix::new(&right, depth, columns));
            multiply(Level::best(), left, right, &mut product);
        });
        bits(&product)
    };
    let alone = product(1);
    assert!([2, 3, 7].into_iter().all(|threads| product(threads) == alone));
}

#[test]
#[should_panic(expected = "columns of the left matrix and rows of the right one")]
fn sizes_that_do_not_fit_are_refused() {
    let numbers = [0.0; 6];
    let matrix = Matrix::new(&numbers, 2, 3);
    multiply(Level::best(), matrix, matrix, &mut [0.0; 6]);
}
