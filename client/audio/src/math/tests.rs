//! Plain arithmetic beside `libm`.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn logarithms_are_right_to_the_last_bits(x in 1e-37f32..1e38) {
        let exact = libm::log(f64::from(x));
        prop_assert!((f64::from(ln(x)) - exact).abs() <= 2.5e-7 * (1.0 + exact.abs()) * 0.6);
        let exact = libm::log10(f64::from(x));
        prop_assert!((f64::from(log10(x)) - exact).abs() <= 2.5e-7 * (1.0 + exact.abs()) * 0.6);
    }
}

#[test]
fn logarithms_keep_infinity_and_nan() {
    assert_eq!(log10(f32::INFINITY), f32::INFINITY);
    assert!(log10(f32::NAN).is_nan() && ln(f32::NAN).is_nan());
    assert_eq!([log10(1.0), ln(1.0)], [0.0, 0.0]);
}

#[test]
fn linspace_ends_at_both_ends() {
    assert_eq!(linspace(0.0, 1.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(linspace(3.0, 8.0, 1), [3.0]);
    assert!(linspace(3.0, 8.0, 0).is_empty());
}

#[test]
fn bessel_matches_tables() {
    // Abramowitz and Stegun, table 9.8.
    assert!((bessel_i0(1.0) - 1.266_065_877_752_008_4).abs() < 1e-14);
    assert!((bessel_i0(10.0) / 2_815.716_628_466_254 - 1.0).abs() < 1e-14);
    assert!(bessel_i0(500.0).is_finite());
}
