//! Numbers in fewer bits, all of them. Pure.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Numbers that share a scale.
const STRETCH: usize = 1024;
/// To what the largest number of a bucket is brought in 16 bits with 5 of exponent, which hold up to 65,504.
const LARGEST_HALF: f32 = 32_768.0;

/// A format in which each number has a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Bf16,
    Fp16,
    Int8,
}

impl Codec {
    /// Bytes of `count` numbers.
    pub(super) fn encoded_len(self, count: usize) -> usize {
        match self {
            Codec::Bf16 => 2 * count,
            Codec::Fp16 => 4 + 2 * count,
            Codec::Int8 => count + 4 * count.div_ceil(STRETCH),
        }
    }

    pub(super) fn encode(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            Codec::Bf16 => {
                let mut halves = vec![bf16::ZERO; numbers.len()];
                halves.convert_from_f32_slice(numbers);
                bytemuck::cast_slice(halves.reinterpret_cast()).to_vec()
            }
            Codec::Fp16 => {
                let scale = half_scale(numbers);
                let scaled: Vec<f32> = numbers.iter().map(|number| number * scale).collect();
                let mut halves = vec![f16::ZERO; numbers.len()];
                halves.convert_from_f32_slice(&scaled);
                let mut bytes = scale.to_le_bytes().to_vec();
                bytes.extend_from_slice(bytemuck::cast_slice(halves.reinterpret_cast()));
                bytes
            }
            Codec::Int8 => {
                let mut bytes = Vec::with_capacity(self.encoded_len(numbers.len()));
                for stretch in numbers.chunks(STRETCH) {
                    let unit = unit_of(stretch);
                    bytes.extend_from_slice(&unit.to_le_bytes());
                    let small = |number: &f32| if unit == 0.0 { 0 } else { (number / unit).round() as i8 };
                    bytes.extend(stretch.iter().map(|number| small(number) as u8));
                }
                bytes
            }
        }
    }

    /// The encoded numbers, to the precision of the bits; `None` if the bytes are not those of this many
    /// numbers.
    pub(super) fn decode(self, bytes: &[u8], count: usize) -> Option<Vec<f32>> {
        if bytes.len() != self.encoded_len(count) {
            return None;
        }
        let mut numbers = vec![0.0; count];
        match self {
            Codec::Bf16 => {
                let bits: Vec<u16> = bytemuck::pod_collect_to_vec(bytes);
                let halves: Vec<bf16> = bits.into_iter().map(bf16::from_bits).collect();
                halves.convert_to_f32_slice(&mut numbers);
            }
            Codec::Fp16 => {
                let (scale, bytes) = bytes.split_first_chunk()?;
                let bits: Vec<u16> = bytemuck::pod_collect_to_vec(bytes);
                let halves: Vec<f16> = bits.into_iter().map(f16::from_bits).collect();
                halves.convert_to_f32_slice(&mut numbers);
                let factor = f32::from_le_bytes(*scale).recip();
                numbers.iter_mut().for_each(|number| *number *= factor);
            }
            Codec::Int8 => {
                for (numbers, bytes) in numbers.chunks_mut(STRETCH).zip(bytes.chunks(STRETCH + 4)) {
                    let (unit, bytes) = bytes.split_first_chunk()?;
                    let unit = f32::from_le_bytes(*unit);
                    for (number, byte) in numbers.iter_mut().zip(bytes) {
                        *number = f32::from(*byte as i8) * unit;
                    }
                }
            }
        }
        Some(numbers)
    }
}

/// The power of two that brings the largest number near the end of the range; 1 where nothing can be brought anywhere.
fn half_scale(numbers: &[f32]) -> f32 {
    let largest = numbers.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return 1.0;
    }
    // Within what a scale and its inverse can be.
    (LARGEST_HALF / largest).log2().floor().clamp(-120.0, 120.0).exp2()
}

/// The 127th part of the largest number, or NaN if there is one: it must not be hidden.
fn unit_of(stretch: &[f32]) -> f32 {
    let largest = |largest: f32, number: &f32| {
        if number.is_finite() { largest.max(number.abs()) } else { f32::NAN }
    };
    let largest = stretch.iter().try_fold(0.0f32, |so_far, number| {
        let now = largest(so_far, number);
        if now.is_nan() { Err(now) } else { Ok(now) }
    });
    largest.map_or(f32::NAN, |largest| largest / 127.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Codec; 3] = [Codec::Bf16, Codec::Fp16, Codec::Int8];

    #[test]
    fn what_is_no_number_is_not_hidden() {
        for codec in ALL {
            for bad in [f32::NAN, f32::INFINITY] {
                let bytes = codec.encode(&[1.0, bad, 2.0]);
                let decoded = codec.decode(&bytes, 3).unwrap();
                assert!(decoded.iter().any(|number| !number.is_finite()), "{codec:?} of {bad}: {decoded:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back_about_as_they_were(numbers in prop::collection::vec(-1e3f32..1e3, 0..3000), exponent in -30i32..20) {
            let factor = (exponent as f32).exp2();
            let numbers: Vec<f32> = numbers.into_iter().map(|number| number * factor).collect();
            for codec in ALL {
                let bytes = codec.encode(&numbers);
                prop_assert_eq!(bytes.len(), codec.encoded_len(numbers.len()));
                let decoded = codec.decode(&bytes, numbers.len()).unwrap();
                for (stretch, decoded) in numbers.chunks(STRETCH).zip(decoded.chunks(STRETCH)) {
                    let largest = stretch.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
                    for (number, decoded) in stretch.iter().zip(decoded) {
                        let tolerance = match codec {
                            Codec::Bf16 => number.abs() / 256.0,
                            Codec::Fp16 => number.abs() / 2048.0 + largest * 1e-6,
                            Codec::Int8 => largest / 253.0,
                        };
                        prop_assert!((number - decoded).abs() <= tolerance, "{:?}: {} became {}", codec, number, decoded);
                    }
                }
            }
        }

        #[test]
        fn other_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..100), count in 0usize..100) {
            for codec in ALL {
                if let Some(numbers) = codec.decode(&bytes, count) {
                    prop_assert_eq!(numbers.len(), count);
                }
            }
        }
    }
}
