//! Bytes as numbers, numbers added to numbers, and the slice of them that is one rank's.

use std::borrow::Cow;
use std::ops::{Add, Range};

use bytemuck::Pod;
use half::bf16;

/// A number that ranks can sum.
pub trait Number: Pod + Send + Sync {
    /// `self + other`; of whole numbers the sum wraps around.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// The sum as [`Number::plus`] rounds it, and its rounding error (Dekker, 1971). The error of a whole number is 0, and so
    /// is that of a sum that is not finite.
    #[must_use]
    fn two_sum(self, other: Self) -> (Self, Self);
}

macro_rules! numbers {
    ($($float:ty),*; $($integer:ty),*) => {
        $(impl Number for $float {
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }

            #[inline]
            fn two_sum(self, other: Self) -> (Self, Self) {
                let sum = self + other;
                let error = if self.abs() >= other.abs() { (self - sum) + other } else { (other - sum) + self };
                (sum, if sum.is_finite() { error } else { 0.0 })
            }
        })*
        $(impl Number for $integer {
            #[inline]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }

            #[inline]
            fn two_sum(self, other: Self) -> (Self, Self) { (self.wrapping_add(other), 0) }
        })*
    };
}
numbers!(f32, f64; i32, i64, u32, u64);

/// Sums of 16 bits are made in 32 and rounded.
impl Number for bf16 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self + other
    }

    #[inline]
    fn two_sum(self, other: Self) -> (Self, Self) {
        let sum = self + other;
        let (left, right) = (self.to_f32(), other.to_f32());
        let (large, small) = if left.abs() >= right.abs() { (left, right) } else { (right, left) };
        // Both differences are numbers of 16 bits.
        let error = bf16::from_f32((large - sum.to_f32()) + small);
        (sum, if sum.is_finite() { error } else { bf16::ZERO })
    }
}

/// The part of `length` numbers that `rank` of `world` owns.
///
/// # Panics
/// If `rank` is outside the world.
pub fn slice_of(length: usize, rank: u32, world: u32) -> Range<usize> {
    assert!(rank < world, "rank {rank} outside world of {world}");
    let bound = |rank: u32| (length as u128 * u128::from(rank) / u128::from(world)) as usize;
    bound(rank)..bound(rank + 1)
}

/// The bytes of whole numbers, which are copied only where they are not aligned.
pub(crate) fn numbers<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

/// `left[i] + right[i]`, in place of `left[i]`.
pub(crate) fn add_right<T: Copy + Add<Output = T>>(left: &mut [T], right: &[T]) {
    for (left, &right) in left.iter_mut().zip(right) {
        *left = *left + right;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sum_and_its_rounding_error_are_the_whole_sum(left in -1e6f32..1e6, right in -1e6f32..1e6, exponent in -20i32..20) {
            let right = right * (exponent as f32).exp2();
            let (sum, error) = left.two_sum(right);
            prop_assert_eq!(sum, left + right);
            prop_assert_eq!(f64::from(sum) + f64::from(error), f64::from(left) + f64::from(right));
            let (left, right) = (bf16::from_f32(left), bf16::from_f32(right));
            let (sum, error) = left.two_sum(right);
            prop_assert_eq!(sum, left + right);
            prop_assert_eq!(sum.to_f64() + error.to_f64(), left.to_f64() + right.to_f64());
        }

        #[test]
        fn slices_cover_every_number_once(length in 0..10_000usize, world in 1..64u32) {
            let mut next = 0;
            for rank in 0..world {
                let slice = slice_of(length, rank, world);
                prop_assert_eq!(slice.start, next);
                next = slice.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
