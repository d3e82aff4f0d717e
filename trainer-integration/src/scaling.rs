//! Dynamic loss scaling (Micikevicius et al., "Mixed precision training", ICLR 2018): the gradient of the
//! loss is multiplied by a power of two on its way into the model, so that small values do not vanish in the
//! few exponents of 16 bits, and divided by it afterwards. The power is halved when a gradient was too large,
//! and doubled after a while of none. Pure.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// By how much the gradient of the loss is multiplied: a power of two, with which multiplying and dividing are exact.
///
/// The constants are those of PyTorch's `GradScaler`, but for the bounds, which it does not have. Gradients here are those of *sums* over the samples of a
/// micro-batch: a value of 1 for a mean is 2⁻¹⁶ for a sum over 65,536 samples.
///
/// ```
/// use shardd_trainer::scaling::LossScale;
///
/// let scale = LossScale::of_exponent(10);
/// assert_eq!(scale.factor(), 1024.0);
/// assert_eq!(scale.fallen().factor(), 512.0);
/// assert_eq!("1024".parse(), Ok(scale));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// Of two.
    exponent: i32,
    /// Steps without an overflow since it last changed.
    good: u32,
}

impl LossScale {
    /// The exponent that it begins with: 65,536.
    pub const FIRST: i32 = 16;
    /// It is never lower: gradients that are too large even then are no matter of the scale.
    pub const LOWEST: i32 = -16;
    /// It is never higher: in 32 bits nothing that 16 bits hold is rounded by being divided by it.
    pub const HIGHEST: i32 = 64;
    /// After this number of steps in a row without an overflow it is doubled.
    pub const GROWS_AFTER: u32 = 2_000;

    /// One that begins with this power of two, within the bounds.
    pub fn of_exponent(exponent: i32) -> LossScale {
        LossScale { exponent: exponent.clamp(LossScale::LOWEST, LossScale::HIGHEST), good: 0 }
    }

    /// The factor of the gradient of the loss.
    pub fn factor(self) -> f32 {
        power_of_two(self.exponent)
    }

    /// The last factor of gradients.
    pub fn inverse(self) -> f32 {
        power_of_two(-self.exponent)
    }

    /// Whether an overflow may be over with a lower one.
    pub fn can_fall(self) -> bool {
        self.exponent > LossScale::LOWEST
    }

    /// After an overflow.
    #[must_use]
    pub fn fallen(self) -> LossScale {
        LossScale::of_exponent(self.exponent - 1)
    }

    /// After a step without one.
    #[must_use]
    pub fn held(self) -> LossScale {
        match self.good + 1 {
            LossScale::GROWS_AFTER => LossScale::of_exponent(self.exponent + 1),
            good => LossScale { good, ..self },
        }
    }
}

impl FromStr for LossScale {
    type Err = String;

    fn from_str(text: &str) -> Result<LossScale, String> {
        let mut exponents = LossScale::LOWEST..=LossScale::HIGHEST;
        let factor = text.parse::<f32>().ok();
        let exponent = exponents.find(|&exponent| factor == Some(power_of_two(exponent)));
        exponent.map(LossScale::of_exponent).ok_or_else(|| {
            format!("{text:?} is no power of two from 1/65536 to 2^64; give 65536, or 128 where gradients are larger")
        })
    }
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale::of_exponent(LossScale::FIRST)
    }
}

/// Exactly; of exponents that normal numbers have.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_halved_by_an_overflow_and_doubled_after_two_thousand_steps_without() {
        let first = LossScale::default();
        assert_eq!(first.factor(), 65_536.0);
        let after = |scale: LossScale, steps: u32| (0..steps).fold(scale, |scale, _| scale.held());
        assert_eq!(after(first, 1_999).factor(), 65_536.0);
        assert_eq!(after(first, 2_000), LossScale::of_exponent(17));
        assert_eq!(after(after(first, 1_999).fallen(), 1_999).factor(), 32_768.0, "counting begins again");
        let lowest = (0..100).fold(first, |scale, _| scale.fallen());
        assert!(!lowest.can_fall() && first.can_fall());
        assert_eq!(lowest.factor(), 1.0 / 65_536.0);
        let highest = after(first, 100 * LossScale::GROWS_AFTER);
        assert_eq!(highest, LossScale::of_exponent(LossScale::HIGHEST));
    }

    #[test]
    fn it_is_told_as_a_power_of_two() {
        for exponent in [LossScale::LOWEST, -1, 0, 7, LossScale::FIRST, LossScale::HIGHEST] {
            let scale = LossScale::of_exponent(exponent);
            assert_eq!(scale.factor().to_string().parse(), Ok(scale));
        }
        for other in ["0", "-2", "3", "1e30", "inf", "NaN", "", "many"] {
            let refused = other.parse::<LossScale>().unwrap_err();
            assert!(refused.contains(other) && refused.contains("power of two"), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn what_sixteen_bits_hold_is_divided_without_rounding(bits in any::<u16>(), exponent in LossScale::LOWEST..=LossScale::HIGHEST) {
            let scale = LossScale::of_exponent(exponent);
            let number = f16::from_bits(bits).to_f32();
            let divided = number * scale.inverse();
            if number.is_finite() {
                prop_assert_eq!(f64::from(divided), f64::from(number) / f64::from(scale.factor()));
            } else {
                prop_assert!(!divided.is_finite());
            }
        }
    }
}
