//! Functions of single numbers, from additions, multiplications and fused multiply-adds alone: no library of the system has a part in their bits.

/// e to the power of `x`, off by at most one unit in the last place of a normal result (the polynomial of Cephes' `expf`, Moshier, 1989).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Added to a small number, it moves the units to the last place.
    const UNITS: f32 = (1_u32 << 23) as f32 * 1.5;
    const LN_2_UPPER: f32 = 0.693_359_4;
    const LN_2_LOWER: f32 = -2.121_944_4e-4;
    // Beyond these the result is 0 or infinite.
    let x = within(x, 104.0, 89.0);
    let whole = x.mul_add(std::f32::consts::LOG2_E, UNITS) - UNITS;
    let rest = whole.mul_add(-LN_2_LOWER, whole.mul_add(-LN_2_UPPER, x));
    let sum = 1.987_569_1e-4_f32;
    let sum = sum.mul_add(rest, 1.398_199_9e-3);
    let sum = sum.mul_add(rest, 8.333_452e-3);
    let sum = sum.mul_add(rest, 4.166_579_6e-2);
    let sum = sum.mul_add(rest, 1.666_666_5e-1);
    let sum = sum.mul_add(rest, 0.5);
    let value = (sum * rest).mul_add(rest, rest) + 1.0;
    // In two steps, of which each is a normal number: the lowest bits of these are the powers.
    let half = whole.mul_add(0.5, UNITS);
    let other = (whole - (half - UNITS)) + UNITS;
    value * power_of_two(half) * power_of_two(other)
}

/// Between `-below` and `above`; NaN stays.
#[inline(always)]
fn within(x: f32, below: f32, above: f32) -> f32 {
    let x = if x < -below { -below } else { x };
    if x > above { above } else { x }
}

/// 2 to the power of the lowest bits of a number, of which those above are even.
#[inline(always)]
fn power_of_two(units: f32) -> f32 {
    f32::from_bits((units.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

/// The error function, off by at most 2^-21 (the rational function of Eigen's `erf`).
#[inline(always)]
pub(crate) fn erf(of: f32) -> f32 {
    let x = within(of, 4.0, 4.0);
    let square = x * x;
    let above = -2.726_142_3e-10_f32;
    let above = above.mul_add(square, 2.770_681_5e-8);
    let above = above.mul_add(square, -2.101_024e-6);
    let above = above.mul_add(square, -5.692_506_3e-5);
    let above = above.mul_add(square, -7.349_906_5e-4);
    let above = above.mul_add(square, -2.954_6e-3);
    let above = above.mul_add(square, -1.609_603_3e-2);
    let below = -1.456_607_2e-5_f32;
    let below = below.mul_add(square, -2.133_740_5e-4);
    let below = below.mul_add(square, -1.682_827e-3);
    let below = below.mul_add(square, -7.373_329e-3);
    let below = below.mul_add(square, -1.426_473_9e-2);
    let value = x * above / below;
    // From there on 1 is the nearest number.
    if of.abs() >= 4.0 { 1.0_f32.copysign(of) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps between numbers of 32 bits.
    fn apart(one: f32, other: f32) -> u32 {
        let ordered =
            |number: f32| (number.to_bits() as i32) ^ ((number.to_bits() as i32 >> 31) & 0x7fff_ffff);
        ordered(one).abs_diff(ordered(other))
    }

    #[test]
    fn the_exponential_is_that_of_doubles_rounded_up_to_one_place() {
        let mut most = 0;
        for step in -1_740_000..=1_774_000 {
            let x = step as f32 * 5e-5;
            most = most.max(apart(exp(x), f64::from(x).exp() as f32));
        }
        assert!(most <= 1, "{most} places");
        let exact = [(0.0, 1.0), (f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY), (-1e30, 0.0)];
        assert!(exact.into_iter().all(|(x, value)| exp(x) == value));
        assert!(exp(f32::NAN).is_nan() && exp(89.0).is_infinite() && exp(-100.0) > 0.0);
    }

    #[test]
    fn the_error_function_is_that_of_a_series() {
        // Abramowitz and Stegun, 7.1.5.
        let series = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * std::f64::consts::FRAC_2_SQRT_PI
        };
        for step in -4_000..=4_000 {
            let x = step as f32 * 1e-3;
            let error = (f64::from(erf(x)) - series(f64::from(x))).abs();
            assert!(error < 2f64.powi(-21), "{error} at {x}");
        }
        assert!(erf(0.0) == 0.0 && erf(f32::NAN).is_nan());
        assert!(erf(f32::INFINITY) == 1.0 && erf(-50.0) == -1.0);
    }
}
