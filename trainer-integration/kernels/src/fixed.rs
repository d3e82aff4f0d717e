//! Sums in whole multiples of a power of two, which do not depend on the order of additions.

use pulp::{Simd, WithSimd};

use crate::level::Level;

/// Numbers per task of a thread.
const TASK: usize = 1 << 16;

/// The exponent field of a number: 0 of zeros and subnormal numbers, 255 of infinities and NaN. A finite number with field
/// `e` is smaller than 2^(e - 126).
fn field(number: f32) -> u32 {
    number.to_bits() >> 23 & 0xff
}

/// `number * scale` of a power of two, rounded to a whole number: to the nearest, and of two equally near to the even one. Arbitrary
/// where that has more than 63 bits.
///
/// A double holds the product exactly, and so it does its parts below and above 2^32. The constant that is added to each part
/// moves a double's last place to the units, so that the mantissa is the whole number.
#[inline(always)]
fn whole(number: f32, scale: f64) -> i64 {
    const UNITS: f64 = (1_u64 << 52) as f64 * 1.5;
    const UPPER: f64 = (1_u64 << 32) as f64;
    let scaled = f64::from(number) * scale;
    let high = scaled * (1.0 / UPPER) + UNITS;
    let low = (scaled - (high - UNITS) * UPPER) + UNITS;
    let of = |units: f64| (units.to_bits() as i64).wrapping_sub(UNITS.to_bits() as i64);
    (of(high) << 32).wrapping_add(of(low))
}

/// The largest exponent field of these numbers, 0 without any. It is 255 if one of them is infinite or NaN; all of them
/// are smaller than 2^(field - 126) otherwise.
///
/// ```
/// use shardd_kernels::{Level, largest_exponent};
///
/// assert_eq!(largest_exponent(Level::best(), &[0.25, -1.5]), 127);
/// assert_eq!(largest_exponent(Level::best(), &[0.25, f32::NAN]), 255);
/// ```
pub fn largest_exponent(level: Level, numbers: &[f32]) -> u8 {
    struct Largest<'a>(&'a [f32]);
    impl WithSimd for Largest<'_> {
        type Output = u32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> u32 {
            self.0.iter().fold(0, |largest, number| largest.max(number.to_bits() & 0x7fff_ffff))
        }
    }
    field(f32::from_bits(level.narrow().run(Largest(numbers)))) as u8
}

/// Adds each number to the sum at its place: as a whole number of steps of 2^-`places`, the nearest, and of two equally near the
/// even one. Sums of whole numbers are exact, so they do not depend on the order of additions.
///
/// A sum is right as long as it, and each number, is smaller than 2^(63 - `places`); beyond that it wraps around.
///
/// ```
/// use shardd_kernels::{Level, add_whole, from_whole};
///
/// let mut sums = [0; 2];
/// add_whole(Level::best(), &mut sums, &[0.5, 1.0], 40);
/// add_whole(Level::best(), &mut sums, &[0.25, -1.0], 40);
/// let mut numbers = [0.0; 2];
/// from_whole(Level::best(), &sums, &mut numbers, 40);
/// assert_eq!(numbers, [0.75, 0.0]);
/// ```
///
/// # Panics
/// If there are not as many sums as numbers, or `places` is outside of -126 to 126.
pub fn add_whole(level: Level, sums: &mut [i64], numbers: &[f32], places: i32) {
    struct Add<'a>(&'a mut [i64], &'a [f32], f64);
    impl WithSimd for Add<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Add(sums, numbers, scale) = self;
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum = sum.wrapping_add(whole(*number, scale));
            }
        }
    }
    let (level, scale) = (level.narrow(), f64::from(power_of_two(places)));
    split(sums, numbers, &|sums, numbers| level.run(Add(sums, numbers, scale)));
}

/// The numbers nearest to sums that [`add_whole`] has made, of two equally near the even one. `places` is at most 126, so
/// that only subnormal numbers are rounded twice.
///
/// # Panics
/// If there are not as many sums as numbers, or `places` is outside of -126 to 126.
pub fn from_whole(level: Level, sums: &[i64], numbers: &mut [f32], places: i32) {
    struct Convert<'a>(&'a [i64], &'a mut [f32], f32);
    impl WithSimd for Convert<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) {
            let Convert(sums, numbers, step) = self;
            for (number, sum) in numbers.iter_mut().zip(sums) {
                *number = *sum as f32 * step;
            }
        }
    }
    let step = power_of_two(-places);
    split(numbers, sums, &|numbers, sums| level.run(Convert(sums, numbers, step)));
}

fn power_of_two(exponent: i32) -> f32 {
    assert!((-126..=126).contains(&exponent), "2^{exponent} and its inverse are normal numbers");
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Numbers from numbers, one each, on all threads where that is worth it.
fn split<T: Send, U: Sync>(into: &mut [T], from: &[U], one: &(dyn Fn(&mut [T], &[U]) + Sync)) {
    assert_eq!(into.len(), from.len(), "a sum for each number");
    if into.len() <= TASK {
        return one(into, from);
    }
    let middle = into.len() / 2;
    let ((left, right), (first, second)) = (into.split_at_mut(middle), from.split_at(middle));
    rayon::join(|| split(left, first, one), || split(right, second, one));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testkit::bits;

    /// By the definition, in numbers of 128 bits.
    fn defined(number: f32, places: i32) -> i128 {
        // Doubles hold a mantissa of 24 bits at any exponent of a float.
        (f64::from(number) * f64::from(places).exp2()).round_ties_even() as i128
    }

    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![
            (any::<u32>(), 60u32..150)
                .prop_map(|(bits, exponent)| { f32::from_bits(bits & 0x807f_ffff | exponent << 23) }),
            Just(0.0f32),
            Just(-0.0),
            Just(f32::MIN_POSITIVE / 2.0),
            (-40i32..40, -3i32..4).prop_map(|(steps, places)| steps as f32 * 0.5 * 2f32.powi(places)),
        ]
    }

    proptest! {
        #[test]
        fn every_level_rounds_as_defined_and_adds_in_any_order(
            rows in prop::collection::vec(prop::collection::vec(number(), 37), 1..6), places in -20i32..38
        ) {
            let expected: Vec<i128> =
                (0..37).map(|at| rows.iter().map(|row| defined(row[at], places)).sum()).collect();
            for level in Level::available() {
                let (mut forward, mut back) = (vec![0; 37], vec![0; 37]);
                rows.iter().for_each(|row| add_whole(level, &mut forward, row, places));
                rows.iter().rev().for_each(|row| add_whole(level, &mut back, row, places));
                prop_assert_eq!(&forward, &back);
                let wide: Vec<i128> = forward.iter().map(|sum| i128::from(*sum)).collect();
                prop_assert_eq!(&wide, &expected, "{}", level);
            }
        }

        #[test]
        fn a_number_with_enough_places_comes_back_itself(row in prop::collection::vec(number(), 1..80)) {
            // The smallest mantissa bit of the smallest normal number above has 60 - 150 = -90; the largest is below 2^24.
            let row: Vec<f32> = row.into_iter().map(|number| if number.abs() < 2f32.powi(-14) { 0.0 } else { number }).collect();
            for level in Level::available() {
                let (mut sums, mut again) = (vec![0; row.len()], vec![0.0; row.len()]);
                add_whole(level, &mut sums, &row, 38);
                from_whole(level, &sums, &mut again, 38);
                let plain: Vec<f32> = row.iter().map(|number| number + 0.0).collect();
                prop_assert_eq!(bits(&again), bits(&plain), "{}", level);
            }
        }

        #[test]
        fn sums_are_rounded_once(sums in prop::collection::vec(any::<i64>(), 1..40), places in -60i32..=126) {
            for level in Level::available() {
                let mut numbers = vec![0.0; sums.len()];
                from_whole(level, &sums, &mut numbers, places);
                for (number, sum) in numbers.iter().zip(&sums) {
                    prop_assert_eq!(number.to_bits(), ((*sum as f32) * (-places as f32).exp2()).to_bits());
                }
            }
        }

        #[test]
        fn the_largest_exponent_bounds_all(row in prop::collection::vec(number(), 0..80)) {
            for level in Level::available() {
                let largest = largest_exponent(level, &row);
                let bound = (f64::from(largest) - 126.0).exp2();
                prop_assert!(row.iter().all(|number| f64::from(number.abs()) < bound));
                let is_tight = row.iter().any(|number| field(*number) == u32::from(largest));
                prop_assert!(is_tight || row.is_empty() && largest == 0);
            }
        }
    }

    #[test]
    fn many_numbers_are_added_by_several_threads_alike() {
        let row: Vec<f32> = (0..3 * TASK + 5).map(|at| at as f32 - 7.0).collect();
        let mut sums = vec![1 << 20; row.len()];
        add_whole(Level::best(), &mut sums, &row, 20);
        let mut numbers = vec![0.0; row.len()];
        from_whole(Level::best(), &sums, &mut numbers, 20);
        assert!(numbers.iter().zip(&row).all(|(sum, number)| *sum == number + 1.0));
    }

    #[test]
    fn infinities_and_nan_are_seen() {
        for level in Level::available() {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
                let mut row = vec![1.0; 50];
                row[33] = bad;
                assert_eq!(largest_exponent(level, &row), 255);
            }
            assert_eq!(largest_exponent(level, &[f32::MAX; 40]), 254);
        }
    }
}
