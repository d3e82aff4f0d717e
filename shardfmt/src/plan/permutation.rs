//! Keyed permutations of `0..n`, forwards and backwards, without holding `n` of anything. Knows only a key and a size.
//!
//! Up to 256 elements a table is shuffled (Fisher-Yates). Above, a Feistel network over a rectangle just large enough
//! computes one image in some tens of nanoseconds, and walks on while the image falls outside `0..n` (Black and
//! Rogaway, 2002). Both draw on BLAKE3, which the format needs anyway: a stream cipher for the shuffle would be one
//! more primitive to pin, for nothing. The code is our own because library shuffles change between releases, and
//! these bits are promised for ever; `docs/PLAN.md` writes them out.

use super::key::{self, Key};

/// Largest size that is a table.
const TABLE: u64 = 256;
/// Rounds of the Feistel network. Fewer are visibly biased on small domains.
const ROUNDS: usize = 12;

/// A permutation of `0..len`, chosen by a key.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Table(Box<Table>),
    Feistel(Feistel),
}

impl Permutation {
    /// The permutation of `0..len` that `key` chooses.
    pub fn new(key: &[u8; 32], len: u64) -> Self {
        let kind = if len <= TABLE {
            Kind::Table(Box::new(Table::shuffled(key, len as usize)))
        } else {
            Kind::Feistel(Feistel::new(key, len))
        };
        Permutation { len, kind }
    }

    /// How many elements are permuted.
    #[expect(clippy::len_without_is_empty, reason = "a permutation is not a collection")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where `x` goes.
    ///
    /// # Panics
    /// If `x` is not below [`len`](Self::len).
    #[inline]
    pub fn apply(&self, x: u64) -> u64 {
        assert!(x < self.len, "{x} outside a permutation of {}", self.len);
        match &self.kind {
            Kind::Table(table) => u64::from(table.forward[x as usize]),
            Kind::Feistel(feistel) => {
                let mut image = feistel.forward(x);
                while image >= self.len {
                    image = feistel.forward(image);
                }
                image
            }
        }
    }

    /// What goes to `y`.
    ///
    /// # Panics
    /// If `y` is not below [`len`](Self::len).
    #[inline]
    pub fn invert(&self, y: u64) -> u64 {
        assert!(y < self.len, "{y} outside a permutation of {}", self.len);
        match &self.kind {
            Kind::Table(table) => u64::from(table.inverse[y as usize]),
            Kind::Feistel(feistel) => {
                let mut origin = feistel.backward(y);
                while origin >= self.len {
                    origin = feistel.backward(origin);
                }
                origin
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Table {
    forward: [u8; TABLE as usize],
    inverse: [u8; TABLE as usize],
}

impl Table {
    fn shuffled(key: &Key, len: usize) -> Self {
        let mut table = Table { forward: [0; TABLE as usize], inverse: [0; TABLE as usize] };
        let mut draws = [0; TABLE as usize - 1];
        let draws = &mut draws[..len.saturating_sub(1)];
        key::stream(key, draws);
        for (x, image) in table.forward[..len].iter_mut().enumerate() {
            *image = x as u8;
        }
        for (last, draw) in (1..len).rev().zip(draws.iter()) {
            table.forward.swap(last, reduce(*draw, last as u64 + 1) as usize);
        }
        for (x, image) in table.forward[..len].iter().enumerate() {
            table.inverse[usize::from(*image)] = x as u8;
        }
        table
    }
}

/// A bijection of `0..rows * columns`, seen as a rectangle: each round shifts one coordinate by a keyed function of the
/// other, so it is undone by shifting back.
#[derive(Clone, Debug)]
struct Feistel {
    rows: u64,
    columns: u64,
    keys: [u64; ROUNDS],
}

impl Feistel {
    fn new(key: &Key, len: u64) -> Self {
        let floor = len.isqrt();
        let rows = if floor * floor == len { floor } else { floor + 1 };
        let mut keys = [0; ROUNDS];
        key::stream(key, &mut keys);
        Feistel { rows, columns: len.div_ceil(rows), keys }
    }

    #[inline]
    fn forward(&self, x: u64) -> u64 {
        let (mut row, mut column) = (x / self.columns, x % self.columns);
        for pair in self.keys.as_chunks::<2>().0 {
            row = add(row, reduce(mix(column, pair[0]), self.rows), self.rows);
            column = add(column, reduce(mix(row, pair[1]), self.columns), self.columns);
        }
        row * self.columns + column
    }

    #[inline]
    fn backward(&self, y: u64) -> u64 {
        let (mut row, mut column) = (y / self.columns, y % self.columns);
        for pair in self.keys.as_chunks::<2>().0.iter().rev() {
            column = subtract(column, reduce(mix(row, pair[1]), self.columns), self.columns);
            row = subtract(row, reduce(mix(column, pair[0]), self.rows), self.rows);
        }
        row * self.columns + column
    }
}

/// The round function: 64 well-mixed bits of `value` and a round key; the high bits, which [`reduce`] uses, are best.
#[inline]
fn mix(value: u64, key: u64) -> u64 {
    let mut z = (value ^ key).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 32;
    z.wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// Maps a uniform `word` to `0..size` by its high bits: floor(word * size / 2^64).
#[inline]
fn reduce(word: u64, size: u64) -> u64 {
    ((u128::from(word) * u128::from(size)) >> 64) as u64
}

#[inline]
fn add(a: u64, b: u64, modulus: u64) -> u64 {
    let sum = a + b;
    if sum >= modulus { sum - modulus } else { sum }
}

#[inline]
fn subtract(a: u64, b: u64, modulus: u64) -> u64 {
    if a >= b { a - b } else { a + modulus - b }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn keyed(number: u64, len: u64) -> Permutation {
        Permutation::new(&key::key(number, key::Tag::Exchange, 0, 0), len)
    }

    #[test]
    fn every_size_up_to_1200_is_a_bijection_with_its_inverse() {
        for len in 0..1200 {
            let permutation = keyed(len, len);
            let mut seen = vec![false; len as usize];
            for x in 0..len {
                let y = permutation.apply(x);
                assert!(!std::mem::replace(&mut seen[y as usize], true), "{y} twice of {len}");
                assert_eq!(permutation.invert(y), x);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn the_inverse_undoes_any_size(seed: u64, len in 1..1_u64 << 62, at: u64) {
            let (permutation, x) = (keyed(seed, len), at % len);
            let y = permutation.apply(x);
            prop_assert!(y < len);
            prop_assert_eq!(permutation.invert(y), x);
        }
    }

    /// Chi-square over all orders of a few elements; `degrees` + 5 standard deviations is a 1-in-a-million bound.
    fn uniform(trials: u64, orders: u64, order_of: impl Fn(u64) -> Vec<u64>) {
        let chi = chi_square(trials, orders, order_of);
        let degrees = (orders - 1) as f64;
        let bound = degrees + 5.0 * (2.0 * degrees).sqrt();
        assert!(chi < bound, "chi-square {chi:.1} above {bound:.1} for {orders} orders");
    }

    fn chi_square(trials: u64, orders: u64, order_of: impl Fn(u64) -> Vec<u64>) -> f64 {
        let mut counts = BTreeMap::new();
        for trial in 0..trials {
            *counts.entry(order_of(trial)).or_insert(0_u64) += 1;
        }
        let expected = trials as f64 / orders as f64;
        let missing = orders - counts.len() as u64;
        let seen: f64 = counts.values().map(|n| (*n as f64 - expected).powi(2) / expected).sum();
        seen + missing as f64 * expected
    }

    #[test]
    fn tables_are_uniform_over_all_orders_of_five() {
        uniform(120_000, 120, |n| (0..5).map(|x| keyed(n, 5).apply(x)).collect());
    }

    /// The network itself, on a domain far smaller than it is used for, where bias would show most: with 12 rounds of
    /// perfectly random functions it would be within 0.04 % of uniform there.
    #[test]
    fn the_network_is_uniform_over_all_orders_of_four() {
        uniform(240_000, 24, |n| {
            let network = Feistel::new(&key::key(n, key::Tag::Exchange, 0, 0), 4);
            (0..4).map(|x| network.forward(x)).collect()
        });
    }

    /// On a rectangle of 3 by 2, twelve rounds of perfectly random functions are off by a chi-square of 0.0073242 per
    /// trial (computed exactly over all 720 orders). Ours must be off by that and no more: the round function is as
    /// good as a random one.
    #[test]
    fn the_network_is_as_good_as_one_of_random_functions() {
        let trials = 360_000;
        let excess = 0.007_324_24 * trials as f64;
        let chi = chi_square(trials, 720, |n| {
            let network = Feistel::new(&key::key(n, key::Tag::Exchange, 0, 0), 6);
            (0..6).map(|x| network.forward(x)).collect()
        });
        let deviation = (2.0 * 719.0 + 4.0 * excess).sqrt();
        assert!(
            (chi - 719.0 - excess).abs() < 5.0 * deviation,
            "chi-square {chi:.0}, expected {:.0}",
            719.0 + excess
        );
    }

    #[test]
    fn neighbours_in_a_large_permutation_come_in_any_order() {
        for (len, picks) in [(289, [0, 1, 17, 18]), (257, [0, 1, 2, 3]), (1_000_000, [0, 1000, 2000, 1001])] {
            uniform(120_000, 24, |n| {
                let permutation = keyed(n, len);
                let mut order = vec![0, 1, 2, 3];
                order.sort_by_key(|pick| permutation.apply(picks[*pick as usize]));
                order
            });
        }
    }
}
