//! Laws of decimals.

use proptest::prelude::*;

use super::*;

#[test]
fn a_decimal_is_its_digits() {
    for (text, shown) in
        [("0.9", "0.9"), ("00.90", "0.9"), ("3", "3"), ("3.0", "3"), ("0", "0"), (" 10 ", "10")]
    {
        assert_eq!(text.parse::<Decimal>().unwrap().to_string(), shown);
    }
    for text in
        ["", ".", ".5", "5.", "-1", "1e3", "0.1.2", "nan", "1234567890123456789", "0.1234567890123456789"]
    {
        assert!(text.parse::<Decimal>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn the_text_gives_the_decimal_back(mantissa in 0u64..10u64.pow(18), scale in 0usize..18) {
        let digits = format!("{mantissa:019}");
        let (whole, fraction) = digits.split_at(19 - scale);
        let decimal: Decimal = format!("{whole}.{fraction}0").parse().unwrap();
        prop_assert_eq!(decimal.to_string().parse::<Decimal>().unwrap(), decimal);
        prop_assert_eq!(u128::from(decimal.ratio().0) * 10u128.pow(scale as u32), u128::from(mantissa) * u128::from(decimal.ratio().1));
    }

    #[test]
    fn a_share_is_rounded_to_the_nearest(mantissa in 0u64..1000, count in 0u64..1_000_000) {
        let decimal: Decimal = format!("0.{mantissa:03}").parse().unwrap();
        let exact = u128::from(mantissa) * u128::from(count);
        prop_assert!((i128::from(decimal.of(count)) * 1000 - exact as i128).abs() <= 500);
        let ceil = decimal.ceil_of(count);
        prop_assert!(u128::from(ceil) * 1000 >= exact && u128::from(ceil) * 1000 < exact + 1000);
    }
}
