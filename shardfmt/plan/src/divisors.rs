//! Divisors of small numbers, for messages and defaults.

/// The divisors of `n`, ascending: of partitions, the numbers of virtual ranks that fit.
///
/// ```
/// assert_eq!(shardd_plan::divisors(12).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 12]);
/// ```
pub fn divisors(n: u32) -> impl DoubleEndedIterator<Item = u32> {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}

/// The smallest divisor of `n` that is at least `least`.
pub(crate) fn smallest_divisor_from(n: u32, least: u32) -> Option<u32> {
    (least.max(1)..=n).find(|d| n.is_multiple_of(*d))
}
