//! Random numbers that are a function of their purpose, and of no earlier draw: so a virtual rank draws the
//! same ones on any process and in any repetition. Pure.
//!
//! A [`Key`] names a use; the numbers of a key are those of a counter, mixed with it (Salmon et al., "Parallel random numbers: as easy
//! as 1, 2, 3", SC'11, with the mixing of Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014).

/// The use of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(u64);

/// The odd number nearest to 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Key {
    /// That of a training.
    pub fn new(seed: u64) -> Key {
        Key::derived("shardd trainer 2026 random numbers", seed)
    }

    /// That of the augmentation of the images of a training, which comes before its steps.
    pub fn for_augmentation(seed: u64) -> Key {
        Key::derived("shardd trainer 2026 augmentation", seed)
    }

    fn derived(context: &str, seed: u64) -> Key {
        let digest = blake3::derive_key(context, &seed.to_le_bytes());
        let (first, _) = digest.split_first_chunk().expect("32 bytes");
        Key(u64::from_le_bytes(*first))
    }

    /// That of a part of it: of a step, then of a virtual rank, then of a block.
    #[must_use]
    pub fn of(self, part: u64) -> Key {
        Key(mix(self.0 ^ mix(part.wrapping_add(1).wrapping_mul(GOLDEN))))
    }

    /// The number at a place of its stream, all 64 bits of it random.
    #[inline]
    pub fn at(self, place: u64) -> u64 {
        mix(self.0.wrapping_add(place.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// What the numbers of its stream are mixed with.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The number at a place of its stream, from 0 and below 1.
    #[inline]
    pub fn uniform(self, place: u64) -> f32 {
        (self.at(place) >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[inline]
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_key_has_the_same_numbers_for_ever() {
        let key = Key::new(7).of(3).of(1);
        assert_eq!([key.at(0), key.at(1), key.at(1 << 40)], GOLDEN_NUMBERS);
    }

    const GOLDEN_NUMBERS: [u64; 3] =
        [16_679_288_091_662_495_427, 11_446_786_920_966_482_984, 7_486_953_072_090_068_434];

    #[test]
    fn other_uses_have_other_numbers() {
        let mut seen = BTreeSet::new();
        for seed in 0..4 {
            for step in 0..10 {
                for virtual_rank in 0..10 {
                    for block in 0..10 {
                        assert!(seen.insert(Key::new(seed).of(step).of(virtual_rank).of(block).at(0)));
                    }
                }
            }
        }
        assert_ne!(Key::new(0).of(1).of(2), Key::new(0).of(2).of(1), "the order of parts counts");
    }

    #[test]
    fn uniform_numbers_fill_their_range_evenly() {
        // Chi-square over 64 classes of 2^16 numbers: 63 degrees of freedom, beyond 120 once in 20,000 keys; and neighbours in time, in
        // virtual ranks and in blocks are unrelated.
        for part in 0..8 {
            let (one, other) = (Key::new(1).of(part), Key::new(1).of(part + 1));
            let (mut counts, mut product) = ([0u32; 64], 0.0f64);
            for place in 0..1 << 16 {
                let number = one.uniform(place);
                assert!((0.0..1.0).contains(&number));
                counts[(number * 64.0) as usize] += 1;
                product += f64::from(number - 0.5) * f64::from(other.uniform(place) - 0.5);
            }
            let expected = f64::from(1u32 << 16) / 64.0;
            let square: f64 =
                counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
            assert!(square < 120.0, "{square}");
            assert!((product / f64::from(1u32 << 16) * 12.0).abs() < 0.02, "correlation");
        }
    }
}
