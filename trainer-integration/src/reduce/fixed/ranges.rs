//! How large the gradients of a parameter may be, so that their sum in whole numbers is exact. Pure.

use serde::{Deserialize, Serialize};

/// The range of the gradients of a virtual rank, by trained parameter: of a parameter with limit `l`, each number is smaller than
/// 2^`l`.
///
/// A sum over V virtual ranks has 62 bits, and the smallest of them stands for 2^(`l` - 62) V, V rounded up to a power of two. The limits
/// of a step follow from the step before alone: that of a parameter is 2^12 times above the largest number that any virtual rank
/// had in it, and not below the largest that any had in the model; it falls by 2^16 in a step at most. So limits depend neither on the
/// number of ranks nor on buckets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GradientRanges(Vec<i16>);

/// What became of the ranges in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// All sums are right.
    Fits,
    /// A gradient was larger than its limit: the sums are wrong, and the next limits are higher.
    TooLarge,
    /// A gradient was infinite or NaN.
    NotFinite,
}

/// By how many binary orders of magnitude a gradient may grow from one step to the next.
const HEADROOM: i16 = 12;
/// By how many a limit falls at most, from one step to the next.
const FALL: i16 = 16;
/// The limit of the first step, of which nothing is known.
const FIRST: i16 = 24;
/// The lowest limit: with it, the smallest step of a sum is still a normal number of 32 bits.
const LOWEST: i16 = -64;
/// Every finite number is below it.
const HIGHEST: i16 = 128;
/// The exponent field of infinities and NaN.
const NOT_FINITE: u8 = 255;

impl GradientRanges {
    /// Of the first step, for a number of parameters.
    pub fn new(parameters: usize) -> GradientRanges {
        GradientRanges(vec![FIRST; parameters])
    }

    /// How many parameters there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Binary places after the point that sums of a parameter over `virtual_ranks` have.
    pub fn places(&self, parameter: usize, virtual_ranks: u32) -> i32 {
        let bits = virtual_ranks.next_power_of_two().ilog2();
        62 - bits as i32 - i32::from(self.0[parameter])
    }

    /// Whether these are the largest exponent fields, by parameter, that sums are right for.
    ///
    /// # Panics
    /// If there are not as many as parameters.
    pub fn fit(&self, largest: &[u8]) -> Fit {
        assert_eq!(largest.len(), self.0.len(), "an exponent for each parameter");
        if largest.contains(&NOT_FINITE) {
            return Fit::NotFinite;
        }
        let fits = largest.iter().zip(&self.0).all(|(&field, &limit)| bound(field) <= limit);
        if fits { Fit::Fits } else { Fit::TooLarge }
    }

    /// Those of the next step, after one with these largest exponent fields. They stay if there was no gradient, or one that was not finite.
    #[must_use]
    pub fn next(&self, largest: &[u8]) -> GradientRanges {
        let bound = |&field: &u8| (field != 0).then(|| bound(field));
        let of_model = largest.iter().filter_map(bound).max();
        let Some(of_model) = of_model.filter(|_| self.fit(largest) != Fit::NotFinite) else {
            return self.clone();
        };
        let next = |(field, &limit): (&u8, &i16)| {
            let wanted = bound(field).map_or(of_model, |bound| of_model.max(bound + HEADROOM));
            wanted.max(limit - FALL).clamp(LOWEST, HIGHEST)
        };
        GradientRanges(largest.iter().zip(&self.0).map(next).collect())
    }
}

/// Finite numbers of an exponent field are smaller than 2 to the power of this.
fn bound(field: u8) -> i16 {
    i16::from(field) - 126
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_follow_the_gradients_at_a_distance() {
        // 1.5 is below 2^1, and the limit falls from 2^24 to 2^13; that of a parameter without a gradient, to 2^1.
        let mut ranges = GradientRanges::new(2);
        assert_eq!(ranges.fit(&[127, 0]), Fit::Fits);
        for expected in [[13, 8], [13, 1], [13, 1]] {
            ranges = ranges.next(&[127, 0]);
            assert_eq!(ranges, GradientRanges(expected.to_vec()));
        }
        assert_eq!(ranges.fit(&[126 + 13, 127]), Fit::Fits, "as large as any was");
        assert_eq!(ranges.fit(&[126 + 14, 0]), Fit::TooLarge);
        assert_eq!(
            ranges.next(&[126 + 14, 0]).fit(&[126 + 14 + 12, 126 + 14]),
            Fit::Fits,
            "the next are higher"
        );
        assert_eq!(ranges.fit(&[255, 200]), Fit::NotFinite);
        for nothing in [[255, 0], [127, 255], [0, 0]] {
            assert_eq!(ranges.next(&nothing), ranges, "nothing is learned from no number");
        }
    }

    proptest! {
        #[test]
        fn sums_of_what_fits_have_sixty_two_bits_and_convert(
            fields in prop::collection::vec(0u8..=255, 1..40), field in 0u8..255, virtual_ranks in 1u32..=1 << 20
        ) {
            let ranges = fields.iter().fold(GradientRanges::new(1), |ranges, &field| ranges.next(&[field]));
            let places = ranges.places(0, virtual_ranks);
            prop_assert!((-126..=126).contains(&places));
            if ranges.fit(&[field]) == Fit::Fits {
                let largest = f64::from(virtual_ranks) * f64::from(bound(field) as i32 + places).exp2();
                prop_assert!(largest <= 2f64.powi(62));
            }
            prop_assert_eq!(ranges.next(&[254]).fit(&[254]), Fit::Fits);
        }
    }
}
