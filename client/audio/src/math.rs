//! Functions that the loops need as plain arithmetic, so that they vectorise and have the same bits everywhere.

use std::f64::consts::PI;

/// `log10` for all of a slice. The error is below 2 units in the last place of the result or of `log10(2)`.
///
/// Range reduction and polynomial are those of FreeBSD's `e_logf.c`: x = 2^k * m with m in sqrt(1/2)..sqrt(2), and
/// log(m) by the series of the inverse hyperbolic tangent.
#[inline(always)]
pub(crate) fn log10(x: f32) -> f32 {
    const INVERSE_LN_10: f32 = std::f32::consts::LOG10_E;
    // The sum of the two is log10(2); the first has few enough bits that its product with an exponent is exact.
    const LOG10_2_HIGH: f32 = 0.301_029_2;
    const LOG10_2_LOW: f32 = 7.903_415e-7;
    let (exponent, ln) = ln_parts(x);
    let y = exponent * LOG10_2_HIGH + (ln * INVERSE_LN_10 + exponent * LOG10_2_LOW);
    if x < f32::INFINITY { y } else { x }
}

/// `ln`, in the same way.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_138_1;
    const LN_2_LOW: f32 = 9.058_001e-6;
    let (exponent, ln) = ln_parts(x);
    let y = exponent * LN_2_HIGH + (ln + exponent * LN_2_LOW);
    if x < f32::INFINITY { y } else { x }
}

/// The exponent k, and the logarithm of the mantissa, of a positive normal number.
#[inline(always)]
fn ln_parts(x: f32) -> (f32, f32) {
    const SQRT_HALF: u32 = 0x3F35_04F3;
    let bits = x.to_bits();
    let exponent = (bits.wrapping_sub(SQRT_HALF) as i32) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub((exponent as u32) << 23));
    let f = mantissa - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * (0.666_666_6 + z * (0.400_009_72 + z * (0.284_987_87 + z * 0.242_790_79)));
    let half_square = 0.5 * f * f;
    (exponent as f32, f - (half_square - s * (half_square + r)))
}

/// `count` numbers from `start` to `end`, rounded as `torch.linspace` rounds them.
pub(crate) fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    if count < 2 {
        return vec![start; count];
    }
    let step = (end - start) / (count - 1) as f32;
    let from = |index: usize| {
        if index < count / 2 { start + step * index as f32 } else { end - step * (count - 1 - index) as f32 }
    };
    (0..count).map(from).collect()
}

/// The modified Bessel function of the first kind and order 0, by its power series.
pub(crate) fn bessel_i0(x: f64) -> f64 {
    let quarter_square = x * x / 4.0;
    let [mut sum, mut term, mut k] = [1.0, 1.0, 1.0];
    // The terms shrink by more than half each as soon as k > x, and x is at most 500 here.
    while term > sum * 1e-17 && k < 2000.0 {
        term *= quarter_square / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// Cosine and sine of a part of a turn, `numerator / denominator`, with the angle reduced before it is rounded.
pub(crate) fn turn(numerator: u64, denominator: u64) -> [f64; 2] {
    let angle = 2.0 * PI * (numerator % denominator) as f64 / denominator as f64;
    [libm::cos(angle), libm::sin(angle)]
}

#[cfg(test)]
mod tests;
