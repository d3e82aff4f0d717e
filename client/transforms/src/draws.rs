//! Random numbers of a transform: a pure function of the seed, the epoch, the position in its order and the operation.

/// Multipliers and key increments of Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4).
const MULTIPLIERS: [u64; 2] = [0xD2E7_470E_E14C_6C93, 0xCA5A_8263_9512_1157];
const KEY_STEPS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xBB67_AE85_84CA_A73B];
const ROUNDS: usize = 10;

/// Four numbers of 64 bits for a counter and a key: Philox 4x64-10.
pub(crate) fn philox(mut counter: [u64; 4], mut key: [u64; 2]) -> [u64; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let [low, high] = [(MULTIPLIERS[0], counter[0]), (MULTIPLIERS[1], counter[2])]
            .map(|(multiplier, word)| u128::from(multiplier) * u128::from(word));
        counter = [
            (high >> 64) as u64 ^ counter[1] ^ key[0],
            high as u64,
            (low >> 64) as u64 ^ counter[3] ^ key[1],
            low as u64,
        ];
    }
    counter
}

/// Where a sample is met: the random numbers of each operation follow from it, and from nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The seed of the transforms.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// The position in the epoch's order, which counts the samples of all ranks.
    pub position: u64,
}

/// The random numbers of one operation at one [`Place`], one after the other.
///
/// They are those of NumPy: `np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, op, position,
/// epoch])).random()`, where `op` is the operation's number in its chain.
///
/// ```
/// use shardd_transforms::{Draws, Place};
///
/// let place = Place { seed: 7, epoch: 2, position: 41 };
/// let mut draws = Draws::new(place, 3);
/// // np.random.Generator(np.random.Philox(key=[7, 0], counter=[0, 3, 41, 2])).random(2)
/// assert_eq!([draws.uniform(), draws.uniform()], [0.017898544173086672, 0.37592930098013866]);
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u64; 2],
    /// That of the last block.
    counter: [u64; 4],
    block: [u64; 4],
    /// Numbers of the block that were taken.
    taken: usize,
}

impl Draws {
    /// Those of the operation with this number in its chain.
    pub fn new(place: Place, op: u64) -> Self {
        let counter = [0, op, place.position, place.epoch];
        Self { key: [place.seed, 0], counter, block: [0; 4], taken: 4 }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        if self.taken == 4 {
            // As NumPy, which counts before it computes.
            self.counter[0] += 1;
            self.block = philox(self.counter, self.key);
            self.taken = 0;
        }
        self.taken += 1;
        self.block[self.taken - 1]
    }

    /// A number in `0.0..1.0`, a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// `low + (high - low) * uniform()`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// A whole number in `0..count`: `floor(uniform() * count)`.
    ///
    /// # Panics
    /// If `count` is 0 or more than 2^32.
    pub fn below(&mut self, count: usize) -> usize {
        assert!(count > 0 && count <= 1 << 32, "a number below {count}");
        (self.uniform() * count as f64) as usize
    }

    /// The numbers in `0..count` in random order: for each place from the last to the second, `below(place + 1)` is the place with
    /// which it swaps (Fisher and Yates).
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for place in (1..count).rev() {
            order.swap(place, self.below(place + 1));
        }
        order
    }

    /// Whether `uniform() < probability`.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }
}

#[cfg(test)]
mod tests;
