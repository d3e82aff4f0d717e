//! The largest numbers of a bucket, each with its place: eight bytes. Pure.

use bytemuck::{Pod, Zeroable};

/// A number at a place.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) place: u32,
    pub(super) number: f32,
}

/// How many of `count` numbers a share of them is: at least one, if there are any.
pub(super) fn count_of(share: f32, count: usize) -> usize {
    ((f64::from(share) * count as f64).ceil() as usize).clamp(count.min(1), count)
}

/// The `keep` largest numbers by magnitude, in the order of their places; of equals the first. NaN is larger
/// than any.
pub(super) fn largest(numbers: &[f32], keep: usize) -> Vec<Entry> {
    if keep == 0 {
        return Vec::new();
    }
    // The bits of magnitudes are in the order of the magnitudes, and NaN comes last.
    let magnitude = |number: f32| number.to_bits() & 0x7fff_ffff;
    let mut magnitudes: Vec<u32> = numbers.iter().copied().map(magnitude).collect();
    let at = magnitudes.len() - keep;
    let (_, &mut threshold, above) = magnitudes.select_nth_unstable(at);
    let mut equals = keep - above.iter().filter(|other| **other > threshold).count();
    let mut entries = Vec::with_capacity(keep);
    for (place, &number) in numbers.iter().enumerate() {
        let magnitude = magnitude(number);
        let is_equal = magnitude == threshold && equals > 0;
        if is_equal {
            equals -= 1;
        }
        if is_equal || magnitude > threshold {
            entries.push(Entry { place: place as u32, number });
        }
    }
    entries
}

/// Adds the sent entries; `None` if the bytes are not entries of this many numbers.
pub(super) fn add(bytes: &[u8], to: &mut [f32]) -> Option<()> {
    if !bytes.len().is_multiple_of(size_of::<Entry>()) {
        return None;
    }
    for chunk in bytes.chunks_exact(size_of::<Entry>()) {
        let Entry { place, number } = bytemuck::pod_read_unaligned(chunk);
        *to.get_mut(place as usize)? += number;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_equals_the_first_are_taken_and_what_is_no_number_first_of_all() {
        let numbers = [1.0, -3.0, 3.0, 3.0, f32::NAN, 0.0];
        let places = |keep| largest(&numbers, keep).iter().map(|entry| entry.place).collect::<Vec<_>>();
        assert_eq!(places(1), [4]);
        assert_eq!(places(3), [1, 2, 4]);
        assert_eq!(places(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(count_of(0.001, 1500), 2);
        assert_eq!((count_of(0.001, 3), count_of(0.5, 0), count_of(1.0, 7)), (1, 0, 7));
    }

    proptest! {
        #[test]
        fn none_that_stays_is_larger_than_one_that_goes(numbers in prop::collection::vec(-10i32..10, 1..200), share in 0.0f32..1.0) {
            let numbers: Vec<f32> = numbers.into_iter().map(|number| number as f32).collect();
            let keep = count_of(share, numbers.len());
            let entries = largest(&numbers, keep);
            prop_assert_eq!(entries.len(), keep);
            let mut left = numbers.clone();
            for entry in &entries {
                prop_assert_eq!(left[entry.place as usize], entry.number);
                left[entry.place as usize] = 0.0;
            }
            let smallest = entries.iter().map(|entry| entry.number.abs()).fold(f32::INFINITY, f32::min);
            prop_assert!(left.iter().all(|number| number.abs() <= smallest));
            let mut sum = left;
            add(bytemuck::cast_slice(&entries), &mut sum).unwrap();
            prop_assert_eq!(sum, numbers, "what goes and what stays is all");
        }

        #[test]
        fn other_bytes_are_refused_or_added(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = add(&bytes, &mut [0.0; 10]);
        }
    }
}
