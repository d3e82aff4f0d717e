//! Keyed permutations of `0..n`, forwards and backwards, without holding `n` of anything. Knows only a key and a size.
//!
//! Up to 256 elements a table is shuffled (Fisher-Yates). Above, a Feistel network over a rectangle just
//! large enough computes one image in some tens of nanoseconds, and walks on while the image falls outside
//! `0..n` (Black and Rogaway, 2002). Both draw on BLAKE3, which the format needs anyway: a stream cipher for
//! the shuffle would be one more primitive to pin, for nothing. The code is our own because library shuffles
//! change between releases, and these bits must never change; `docs/PLAN.md` writes them out.

use super::key::{self, Key};

/// Largest size that is a table.
const TABLE: u64 = 256;
/// Pairs of rounds of the Feistel network. Fewer are visibly biased on small domains.
const PAIRS: usize = 6;

/// A permutation of `0..len`, chosen by a key.
///
/// ```
/// use shardd_plan::Permutation;
///
/// let permutation = Permutation::new(&[7; 32], 1_000);
/// let mut images: Vec<u64> = (0..1_000).map(|x| permutation.apply(x)).collect();
/// assert_eq!(permutation.invert(images[42]), 42);
/// images.sort_unstable();
/// assert!(images.into_iter().eq(0..1_000));
/// ```
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Table(Table),
    Feistel(Feistel<PAIRS>),
}

impl Permutation {
    /// The permutation of `0..len` that `key` chooses.
    pub fn new(key: &[u8; 32], len: u64) -> Self {
        let kind = if len <= TABLE {
            Kind::Table(Table::shuffled(key, len as usize))
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
        self.check(x);
        match &self.kind {
            Kind::Table(table) => u64::from(table.forward()[x as usize]),
            Kind::Feistel(network) => walk(network, self.len, network.forward(x), Feistel::forward),
        }
    }

    /// The number that goes to `y`.
    ///
    /// # Panics
    /// If `y` is not below [`len`](Self::len).
    #[inline]
    pub fn invert(&self, y: u64) -> u64 {
        self.check(y);
        match &self.kind {
            Kind::Table(table) => u64::from(table.inverse()[y as usize]),
            Kind::Feistel(network) => walk(network, self.len, network.backward(y), Feistel::backward),
        }
    }

    /// As [`apply`](Self::apply) of each permutation to its number. A processor works on several side by side, so this
    /// takes a fraction of the time of asking one after the other.
    pub(crate) fn apply_each<const N: usize>(asked: [(&Permutation, u64); N]) -> [u64; N] {
        let Some(networks) = networks(&asked) else { return asked.map(|(of, x)| of.apply(x)) };
        let mut images = forward(networks, asked.map(|(_, x)| x));
        for ((of, _), (network, image)) in asked.iter().zip(networks.iter().zip(&mut images)) {
            *image = walk(network, of.len, *image, Feistel::forward);
        }
        images
    }

    /// As [`invert`](Self::invert), as [`apply_each`](Self::apply_each).
    pub(crate) fn invert_each<const N: usize>(asked: [(&Permutation, u64); N]) -> [u64; N] {
        let Some(networks) = networks(&asked) else { return asked.map(|(of, y)| of.invert(y)) };
        let mut origins = backward(networks, asked.map(|(_, y)| y));
        for ((of, _), (network, origin)) in asked.iter().zip(networks.iter().zip(&mut origins)) {
            *origin = walk(network, of.len, *origin, Feistel::backward);
        }
        origins
    }

    #[inline]
    fn check(&self, x: u64) {
        assert!(x < self.len, "{x} outside a permutation of {}", self.len);
    }
}

/// The networks, if all permutations have one.
#[inline]
fn networks<'a, const N: usize>(asked: &[(&'a Permutation, u64); N]) -> Option<[&'a Feistel<PAIRS>; N]> {
    let Kind::Feistel(first) = &asked.first()?.0.kind else { return None };
    let mut networks = [first; N];
    for ((of, x), network) in asked.iter().zip(&mut networks) {
        of.check(*x);
        let Kind::Feistel(own) = &of.kind else { return None };
        *network = own;
    }
    Some(networks)
}

/// From `x`, which a network has given, on through it until it is below `len`.
#[inline]
fn walk<const PAIRS: usize>(
    network: &Feistel<PAIRS>,
    len: u64,
    mut x: u64,
    step: impl Fn(&Feistel<PAIRS>, u64) -> u64,
) -> u64 {
    while x >= len {
        x = step(network, x);
    }
    x
}

/// Images, then origins.
#[derive(Clone, Debug)]
struct Table(Box<[u8]>);

impl Table {
    fn shuffled(key: &Key, len: usize) -> Self {
        let mut table = vec![0; 2 * len].into_boxed_slice();
        let (forward, inverse) = table.split_at_mut(len);
        let mut draws = [0; TABLE as usize - 1];
        let draws = &mut draws[..len.saturating_sub(1)];
        if !draws.is_empty() {
            key::stream(key, draws);
        }
        for (x, image) in forward.iter_mut().enumerate() {
            *image = x as u8;
        }
        for (last, draw) in (1..len).rev().zip(draws.iter()) {
            forward.swap(last, reduce(*draw, last as u64 + 1) as usize);
        }
        for (x, image) in forward.iter().enumerate() {
            inverse[usize::from(*image)] = x as u8;
        }
        Table(table)
    }

    #[inline]
    fn forward(&self) -> &[u8] {
        &self.0[..self.0.len() / 2]
    }

    #[inline]
    fn inverse(&self) -> &[u8] {
        &self.0[self.0.len() / 2..]
    }
}

/// A bijection of `0..rows * columns`, seen as a rectangle: each round shifts one coordinate by a keyed function of the
/// other, so it is undone by shifting back.
#[derive(Clone, Debug)]
struct Feistel<const PAIRS: usize> {
    rows: u64,
    columns: u64,
    keys: [[u64; 2]; PAIRS],
}

impl<const PAIRS: usize> Feistel<PAIRS> {
    fn new(key: &Key, len: u64) -> Self {
        let floor = len.isqrt();
        let rows = if floor * floor == len { floor } else { floor + 1 };
        let mut keys = [[0; 2]; PAIRS];
        key::stream(key, keys.as_flattened_mut());
        Feistel { rows, columns: len.div_ceil(rows), keys }
    }

    #[inline]
    fn forward(&self, x: u64) -> u64 {
        let [image] = forward([self], [x]);
        image
    }

    #[inline]
    fn backward(&self, y: u64) -> u64 {
        let [origin] = backward([self], [y]);
        origin
    }

    #[inline]
    fn split(&self, x: u64) -> (u64, u64) {
        let row = x / self.columns;
        (row, x - row * self.columns)
    }
}

/// The image of each number under its network.
#[inline]
fn forward<const N: usize, const PAIRS: usize>(
    networks: [&Feistel<PAIRS>; N],
    numbers: [u64; N],
) -> [u64; N] {
    let mut places = std::array::from_fn::<_, N, _>(|n| networks[n].split(numbers[n]));
    for pair in 0..PAIRS {
        for (network, (row, column)) in networks.iter().zip(&mut places) {
            *row = add(*row, reduce(mix(*column, network.keys[pair][0]), network.rows), network.rows);
        }
        for (network, (row, column)) in networks.iter().zip(&mut places) {
            *column =
                add(*column, reduce(mix(*row, network.keys[pair][1]), network.columns), network.columns);
        }
    }
    std::array::from_fn(|n| places[n].0 * networks[n].columns + places[n].1)
}

/// The input of each network for its number.
#[inline]
fn backward<const N: usize, const PAIRS: usize>(
    networks: [&Feistel<PAIRS>; N],
    numbers: [u64; N],
) -> [u64; N] {
    let mut places = std::array::from_fn::<_, N, _>(|n| networks[n].split(numbers[n]));
    for pair in (0..PAIRS).rev() {
        for (network, (row, column)) in networks.iter().zip(&mut places) {
            let shift = reduce(mix(*row, network.keys[pair][1]), network.columns);
            *column = subtract(*column, shift, network.columns);
        }
        for (network, (row, column)) in networks.iter().zip(&mut places) {
            *row = subtract(*row, reduce(mix(*column, network.keys[pair][0]), network.rows), network.rows);
        }
    }
    std::array::from_fn(|n| places[n].0 * networks[n].columns + places[n].1)
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

    fn network<const PAIRS: usize>(number: u64, len: u64) -> Feistel<PAIRS> {
        Feistel::new(&key::key(number, key::Tag::Exchange, 0, 0), len)
    }

    /// The network itself, on a domain far smaller than it is used for, where bias would show most: with 12 rounds of
    /// perfectly random functions it would be within 0.04 % of uniform there.
    #[test]
    fn the_network_is_uniform_over_all_orders_of_four() {
        uniform(240_000, 24, |n| (0..4).map(|x| network::<PAIRS>(n, 4).forward(x)).collect());
    }

    /// On a rectangle of 3 by 2, twelve rounds of perfectly random functions are off by a chi-square of 0.0073242 per
    /// trial (computed exactly over all 720 orders). Ours must be off by that and no more: the round function is as
    /// good as a random one. Ten rounds are further off, and fourteen less.
    #[test]
    fn the_network_is_as_good_as_one_of_twelve_random_functions() {
        let trials = 360_000;
        let excess = 0.007_324_24 * trials as f64;
        let deviation = (2.0 * 719.0 + 4.0 * excess).sqrt();
        let off_by = |chi: f64| {
            println!("orders of six, {trials} keys: chi-square {chi:.0}, expected {:.0}", 719.0 + excess);
            (chi - 719.0 - excess) / deviation
        };
        assert!(off_by(chi_square_of_six::<PAIRS>(trials)).abs() < 5.0);
        assert!(off_by(chi_square_of_six::<5>(trials)) > 20.0);
        assert!(off_by(chi_square_of_six::<7>(trials)) < -10.0);
    }

    fn chi_square_of_six<const PAIRS: usize>(trials: u64) -> f64 {
        chi_square(trials, 720, |n| {
            let network = network::<PAIRS>(n, 6);
            (0..6).map(|x| network.forward(x)).collect()
        })
    }

    /// How far some numbers below `size`, one of each key, are from as many of each: deviations of chi-square from its mean,
    /// in at most 257 bins.
    fn unevenness(what: &str, keys: u64, size: u64, number: impl Fn(u64) -> u64) -> f64 {
        let bins = size.min(257);
        let mut counts = vec![0_u64; bins as usize];
        (0..keys).for_each(|key| counts[(number(key) * bins / size) as usize] += 1);
        let chi: f64 = (0..bins)
            .map(|bin| {
                let width = ((bin + 1) * size).div_ceil(bins) - (bin * size).div_ceil(bins);
                let expected = keys as f64 * width as f64 / size as f64;
                (counts[bin as usize] as f64 - expected).powi(2) / expected
            })
            .sum();
        let degrees = (bins - 1) as f64;
        println!("{what}: chi-square {chi:.1} with {degrees} degrees of freedom");
        (chi - degrees) / (2.0 * degrees).sqrt()
    }

    /// Over the keys, a point goes everywhere equally often, and of two points in a row, or in a column, of the network's
    /// rectangle one goes everywhere as seen from the other. With 4 rounds, neighbours too often stay together.
    #[test]
    fn points_and_pairs_go_everywhere_equally_often() {
        fn unevennesses<const PAIRS: usize>(len: u64) -> [f64; 3] {
            let (keys, columns) = (400_000, network::<PAIRS>(0, len).columns);
            let image = |key, x| {
                let network = network::<PAIRS>(key, len);
                walk(&network, len, network.forward(x), Feistel::forward)
            };
            let pair = |key, other| (image(key, other) + len - image(key, 0)) % len - 1;
            let what = |of: &str| format!("n = {len}, {} rounds, {of} over {keys} keys", 2 * PAIRS);
            [
                unevenness(&what("a point"), keys, len, |key| image(key, len / 3)),
                unevenness(&what("two of a row"), keys, len - 1, |key| pair(key, 1)),
                unevenness(&what("two of a column"), keys, len - 1, |key| pair(key, columns)),
            ]
        }
        for len in [257, 1000, 65_537] {
            assert!(unevennesses::<PAIRS>(len).iter().all(|deviations| deviations.abs() < 5.0));
            assert!(unevennesses::<2>(len).iter().any(|deviations| *deviations > 15.0));
        }
    }

    proptest! {
        /// Asked side by side or one by one, tables and networks in any company.
        #[test]
        fn several_are_asked_as_each_by_itself(lens in prop::array::uniform4(1..100_000_u64), small in 0..5_usize, at: u64) {
            let lens = [0, 1, 2, 3].map(|n| if n < small { lens[n] % 300 + 1 } else { lens[n] });
            let permutations = lens.map(|len| keyed(len, len));
            let asked = [0, 1, 2, 3].map(|n: usize| (&permutations[n], at % lens[n]));
            prop_assert_eq!(Permutation::apply_each(asked), asked.map(|(of, x)| of.apply(x)));
            prop_assert_eq!(Permutation::invert_each(asked), asked.map(|(of, y)| of.invert(y)));
        }
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
