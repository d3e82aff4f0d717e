//! Numbers in fewer bits, all of them. Pure.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Numbers that share a scale.
const STRETCH: usize = 1024;
/// Numbers that share two means in one bit each.
const ONE_BIT_STRETCH: usize = 2048;
/// The bytes of the two means.
const MEANS: usize = 8;
/// To what the largest number of a bucket is brought in 16 bits with 5 of exponent, which hold up to 65,504.
const LARGEST_HALF: f32 = 32_768.0;

/// A format in which each number has a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Bf16,
    Fp16,
    Int8,
    OneBit,
}

impl Codec {
    /// Bytes of `count` numbers.
    pub(super) fn encoded_len(self, count: usize) -> usize {
        match self {
            Codec::Bf16 => 2 * count,
            Codec::Fp16 => 4 + 2 * count,
            Codec::Int8 => count + 4 * count.div_ceil(STRETCH),
            Codec::OneBit => {
                let (whole, rest) = (count / ONE_BIT_STRETCH, count % ONE_BIT_STRETCH);
                let rest = if rest > 0 { MEANS + rest.div_ceil(8) } else { 0 };
                whole * (MEANS + ONE_BIT_STRETCH / 8) + rest
            }
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
            Codec::OneBit => {
                let mut bytes = Vec::with_capacity(self.encoded_len(numbers.len()));
                for stretch in numbers.chunks(ONE_BIT_STRETCH) {
                    means_of(stretch).iter().for_each(|mean| bytes.extend_from_slice(&mean.to_le_bytes()));
                    let byte = |numbers: &[f32]| {
                        let bits = (0..).zip(numbers);
                        bits.fold(0, |byte, (at, number)| byte | u8::from(*number < 0.0) << at)
                    };
                    bytes.extend(stretch.chunks(8).map(byte));
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
            Codec::OneBit => {
                let stretches = bytes.chunks(MEANS + ONE_BIT_STRETCH / 8);
                for (numbers, bytes) in numbers.chunks_mut(ONE_BIT_STRETCH).zip(stretches) {
                    let (first, bytes) = bytes.split_first_chunk()?;
                    let (second, bytes) = bytes.split_first_chunk()?;
                    let means = [*first, *second].map(f32::from_le_bytes);
                    for (numbers, byte) in numbers.chunks_mut(8).zip(bytes) {
                        let bits = (0..).zip(numbers);
                        bits.for_each(|(at, number)| *number = means[usize::from(byte >> at & 1)]);
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

/// The mean of the numbers from 0 on, and that of those below: of all numbers in two values these are the nearest, and their sum
/// is that of the numbers. A number that is not finite is in its mean, and so is not hidden.
fn means_of(stretch: &[f32]) -> [f32; 2] {
    let (mut sums, mut counts) = ([0.0; 2], [0u32; 2]);
    for number in stretch {
        let which = usize::from(*number < 0.0);
        sums[which] += f64::from(*number);
        counts[which] += 1;
    }
    [0, 1].map(|which| if counts[which] == 0 { 0.0 } else { (sums[which] / f64::from(counts[which])) as f32 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Codec; 4] = [Codec::Bf16, Codec::Fp16, Codec::Int8, Codec::OneBit];

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
            for codec in [Codec::Bf16, Codec::Fp16, Codec::Int8] {
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
                            Codec::OneBit => unreachable!("it has a law of its own"),
                        };
                        prop_assert!((number - decoded).abs() <= tolerance, "{:?}: {} became {}", codec, number, decoded);
                    }
                }
            }
        }

        /// A compressor by which training with error feedback converges brings every vector nearer to itself than 0 is, by a
        /// part of its length (Karimireddy et al., 2019): here (sum of magnitudes)² / (count x length²), or more.
        #[test]
        fn one_bit_keeps_sums_and_brings_numbers_nearer(numbers in prop::collection::vec(-1e3f32..1e3, 1..5000)) {
            let bytes = Codec::OneBit.encode(&numbers);
            prop_assert_eq!(bytes.len(), Codec::OneBit.encoded_len(numbers.len()));
            let decoded = Codec::OneBit.decode(&bytes, numbers.len()).unwrap();
            for (numbers, decoded) in numbers.chunks(ONE_BIT_STRETCH).zip(decoded.chunks(ONE_BIT_STRETCH)) {
                let sum = |numbers: &[f32]| numbers.iter().map(|number| f64::from(*number)).sum::<f64>();
                let magnitudes: f64 = numbers.iter().map(|number| f64::from(number.abs())).sum();
                prop_assert!((sum(numbers) - sum(decoded)).abs() <= magnitudes * f64::from(f32::EPSILON));
                let pairs = || numbers.iter().zip(decoded).map(|(number, decoded)| [f64::from(*number), f64::from(*decoded)]);
                prop_assert!(pairs().all(|[number, decoded]| number * decoded >= 0.0), "signs stay");
                let squares: f64 = pairs().map(|[number, _]| number * number).sum();
                let missing: f64 = pairs().map(|[number, decoded]| (number - decoded).powi(2)).sum();
                let gained = magnitudes * magnitudes / numbers.len() as f64;
                prop_assert!(missing <= (squares - gained) + 1e-6 * squares, "{missing} of {squares}, {gained}");
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
