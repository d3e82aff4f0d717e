//! The hybrid of run lengths and packed bits, in which Parquet stores levels and indices of dictionaries
//! (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>, "RLE"). Pure: bytes in, runs out.

use std::ops::Range;

/// Some values one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// One value, this number of times.
    Same { value: u32, count: usize },
    /// Values of as many bits as all have, at this place among the bytes.
    Packed { place: Range<usize>, count: usize },
}

/// The run that begins at `at`, and moves `at` to its end; `None` at the end of the bytes.
///
/// # Errors
/// The fault, in words, when the bytes end within the run.
pub(super) fn next_run(bytes: &[u8], at: &mut usize, width: u32) -> Result<Option<Run>, String> {
    if *at >= bytes.len() {
        return Ok(None);
    }
    let header = header(bytes, at)?;
    let count = (header >> 1) as usize;
    if header & 1 == 0 {
        let length = width.div_ceil(8) as usize;
        let value = bytes.get(*at..*at + length).ok_or_else(cut_off)?;
        *at += length;
        let value = value.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        return Ok(Some(Run::Same { value, count }));
    }
    let (start, wanted) = (*at, count.saturating_mul(width as usize));
    // Some writers leave the unused end of the last group out.
    let end = bytes.len().min(start.saturating_add(wanted));
    *at = end;
    let count = match width {
        0 => count.saturating_mul(8),
        _ => (end - start) * 8 / width as usize,
    };
    Ok(Some(Run::Packed { place: start..end, count }))
}

/// A number of seven bits to the byte, the lowest first.
fn header(bytes: &[u8], at: &mut usize) -> Result<u32, String> {
    let mut header = 0;
    for shift in (0..35).step_by(7) {
        let byte = *bytes.get(*at).ok_or_else(cut_off)?;
        *at += 1;
        header |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(header).map_err(|_| "a run is too long".to_owned());
        }
    }
    Err("a run is too long".to_owned())
}

/// The packed value number `index`.
///
/// # Panics
/// If it lies outside of the bytes.
#[inline]
pub(super) fn unpacked(packed: &[u8], index: usize, width: u32) -> u32 {
    if width == 0 {
        return 0;
    }
    let bit = index * width as usize;
    let (first, last) = (bit / 8, (bit + width as usize - 1) / 8);
    let there = &packed[first..=last];
    let mut word = [0; 8];
    word[..there.len()].copy_from_slice(there);
    let mask = (1u64 << width) - 1;
    (u64::from_le_bytes(word) >> (bit % 8) & mask) as u32
}

fn cut_off() -> String {
    "a page ends within a run".to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All values of some bytes.
    fn values(bytes: &[u8], width: u32) -> Vec<u32> {
        let (mut at, mut values) = (0, Vec::new());
        while let Some(run) = next_run(bytes, &mut at, width).unwrap() {
            match run {
                Run::Same { value, count } => values.extend(std::iter::repeat_n(value, count)),
                Run::Packed { place, count } => {
                    values.extend((0..count).map(|index| unpacked(&bytes[place.clone()], index, width)));
                }
            }
        }
        values
    }

    #[test]
    fn the_example_of_the_specification_is_read() {
        // Section "RLE": 0 to 7 in three bits each.
        assert_eq!(values(&[0b11, 0b1000_1000, 0b1100_0110, 0b1111_1010], 3), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(values(&[10, 4, 2, 1], 1), [4, 4, 4, 4, 4, 1]);
    }

    proptest! {
        #[test]
        fn packed_values_come_back(width in 1..33u32, values in prop::collection::vec(any::<u32>(), 1..40)) {
            let values: Vec<u32> = values.iter().map(|value| (u64::from(*value) & ((1u64 << width) - 1)) as u32).collect();
            let mut packed = vec![0u8; (values.len() * width as usize).div_ceil(8)];
            for (bit, set) in values.iter().flat_map(|value| (0..width).map(move |bit| value >> bit & 1)).enumerate() {
                packed[bit / 8] |= (set as u8) << (bit % 8);
            }
            for (index, value) in values.iter().enumerate() {
                prop_assert_eq!(unpacked(&packed, index, width), *value);
            }
        }

        #[test]
        fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..40), width in 0..33u32) {
            let mut at = 0;
            while let Ok(Some(Run::Packed { place, count })) = next_run(&bytes, &mut at, width) {
                prop_assert!(place.end <= bytes.len());
                let last = count.saturating_sub(1).min(1000);
                if count > 0 {
                    unpacked(&bytes[place], last, width);
                }
            }
        }
    }
}
