//! Bytes as numbers, numbers added to numbers, and the slice of them that is one rank's.

use std::borrow::Cow;
use std::ops::{Add, Range};

use bytemuck::Pod;

/// A number that ranks can sum.
pub trait Number: Pod + Send + Sync {
    /// `self + other`; of whole numbers the sum wraps around.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

macro_rules! numbers {
    ($($float:ty),*; $($integer:ty),*) => {
        $(impl Number for $float {
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }
        })*
        $(impl Number for $integer {
            #[inline]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        })*
    };
}
// Sums of 16 bits are made in 32 and rounded.
numbers!(f32, f64, half::bf16; i32, i64, u32, u64);

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
