//! The global norm of the gradient of a step, and clipping it to a maximum (Pascanu et al., "On the
//! difficulty of training recurrent neural networks", ICML 2013).
//!
//! Squares are added in stretches of a fixed length, the stretches of a block in order, and the blocks in order, so the bits depend neither on
//! threads nor on who adds which stretch.

use rayon::prelude::*;

use crate::optim::CHUNK;

/// Numbers of a stretch: those that always have the same owner.
const STRETCH: usize = CHUNK;

/// Stretches that a thread adds up side by side: an addition waits for the one before it, but not for those of other stretches.
const ABREAST: usize = 4;

/// Adds up the squares of a gradient, block by block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Norm {
    squares: f64,
}

impl Norm {
    /// Adds a block's gradient. Blocks come in the same order on every rank.
    pub fn add(&mut self, gradient: &[f32]) {
        self.add_squares(&squares_of(gradient));
    }

    /// The same by the sums of its stretches.
    pub fn add_squares(&mut self, squares: &[f64]) {
        self.squares += squares.iter().sum::<f64>();
    }

    /// That of the gradient multiplied by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Norm {
        Norm { squares: self.squares * factor * factor }
    }

    /// The length.
    pub fn value(self) -> f64 {
        self.squares.sqrt()
    }

    /// The factor of every number that makes the length at most `limit`: 1 if it is. Of a length that
    /// is infinite or NaN, 1 too: nothing would make a gradient of that.
    pub fn factor(self, limit: f32) -> f32 {
        let (length, limit) = (self.value(), f64::from(limit));
        if length.is_finite() && length > limit { (limit / length) as f32 } else { 1.0 }
    }
}

/// The sum of squares of each stretch of a block's gradient, or of a part of it that begins with a stretch.
pub fn squares_of(gradient: &[f32]) -> Vec<f64> {
    /// Stretches that a thread takes at a time, so that there is more to them than to handing them out.
    const AT_A_TIME: usize = 16;
    let groups = gradient.par_chunks(AT_A_TIME * STRETCH).flat_map_iter(|groups| {
        let in_groups = groups.chunks(ABREAST * STRETCH);
        in_groups.flat_map(|group| squares_of_group(group).into_iter().take(group.len().div_ceil(STRETCH)))
    });
    groups.collect()
}

fn square(number: f32) -> f64 {
    f64::from(number) * f64::from(number)
}

/// The sum of squares of each stretch of a group.
fn squares_of_group(group: &[f32]) -> [f64; ABREAST] {
    let mut sums = [0.0; ABREAST];
    if group.len() == ABREAST * STRETCH {
        return squares_abreast(group);
    }
    let pairs = group.chunks(2 * STRETCH).zip(sums.chunks_mut(2));
    for (pair, sums) in pairs {
        if pair.len() == 2 * STRETCH {
            sums.copy_from_slice(&squares_abreast::<2>(pair));
        } else {
            pair.chunks(STRETCH).zip(sums).for_each(|(stretch, sum)| *sum = squares(stretch));
        }
    }
    sums
}

/// The sums of squares of stretches of full length, each in order.
fn squares_abreast<const N: usize>(group: &[f32]) -> [f64; N] {
    let stretches: [&[f32]; N] = std::array::from_fn(|at| &group[at * STRETCH..(at + 1) * STRETCH]);
    let mut sums = [0.0; N];
    for at in 0..STRETCH {
        for (sum, stretch) in sums.iter_mut().zip(stretches) {
            *sum += square(stretch[at]);
        }
    }
    sums
}

fn squares(stretch: &[f32]) -> f64 {
    stretch.iter().map(|&number| square(number)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn norm(blocks: &[Vec<f32>]) -> Norm {
        let mut norm = Norm::default();
        blocks.iter().for_each(|block| norm.add(block));
        norm
    }

    #[test]
    fn the_length_is_that_of_all_blocks() {
        let norm = norm(&[vec![3.0], vec![], vec![0.0, -4.0]]);
        assert_eq!(norm.value(), 5.0);
        assert_eq!((norm.factor(10.0), norm.factor(5.0), norm.factor(2.5)), (1.0, 1.0, 0.5));
    }

    #[test]
    fn a_length_that_is_none_is_left_for_others_to_see() {
        for broken in [f32::NAN, f32::INFINITY] {
            assert_eq!(norm(&[vec![1.0, broken]]).factor(1.0), 1.0);
        }
    }

    proptest! {
        #[test]
        fn stretches_side_by_side_have_the_bits_of_one_after_the_other(length in 0..10 * STRETCH, seed in any::<u32>()) {
            let number = |index: usize| ((index as u32).wrapping_mul(seed | 1) as f32 / 1e6).sin() * 1e3;
            let gradient: Vec<f32> = (0..length).map(number).collect();
            let expected: f64 = gradient.chunks(STRETCH).map(squares).sum();
            prop_assert_eq!(norm(&[gradient]).squares, expected);
        }

        #[test]
        fn any_number_of_threads_gives_the_same_bits(length in 0..5 * STRETCH, seed in any::<u32>()) {
            let number = |index: usize| ((index as u32).wrapping_mul(seed | 1) as f32 / 1e6).sin() * 1e3;
            let gradient: Vec<f32> = (0..length).map(number).collect();
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                pool.install(|| norm(std::slice::from_ref(&gradient)).value().to_bits())
            };
            prop_assert_eq!(on(1), on(3));
        }

        #[test]
        fn what_is_clipped_has_the_length_that_was_asked_for(numbers in prop::collection::vec(-1e3f32..1e3, 1..500), limit in 0.01f32..1e3) {
            let before = norm(std::slice::from_ref(&numbers));
            let factor = before.factor(limit);
            let after: Vec<f32> = numbers.iter().map(|number| number * factor).collect();
            let length = norm(&[after]).value();
            prop_assert!(length <= f64::from(limit) * (1.0 + 1e-5));
            prop_assert!(factor == 1.0 || length >= f64::from(limit) * (1.0 - 1e-5));
        }
    }
}
