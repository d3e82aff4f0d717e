//! Sums of rows.

use pulp::{Simd, WithSimd};

use crate::level::Level;

/// Sums that are added side by side. A row's numbers are dealt to them in turn.
pub const CHAINS: usize = 32;

/// The sum of a function's values over the numbers of a row, as [defined](crate#sums), and of as many functions at a time as share its
/// work.
#[inline(always)]
pub(crate) fn sums<const N: usize>(count: usize, value: impl Fn(usize) -> [f32; N]) -> [f32; N] {
    let mut chains = [[0.0_f32; CHAINS]; N];
    let whole = count / CHAINS * CHAINS;
    for first in (0..whole).step_by(CHAINS) {
        for chain in 0..CHAINS {
            let values = value(first + chain);
            for (chains, value) in chains.iter_mut().zip(values) {
                chains[chain] += value;
            }
        }
    }
    for (chain, at) in (whole..count).enumerate() {
        for (chains, value) in chains.iter_mut().zip(value(at)) {
            chains[chain] += value;
        }
    }
    chains.map(|mut chains| {
        let mut half = CHAINS / 2;
        while half > 0 {
            let (low, high) = chains.split_at_mut(half);
            low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
            half /= 2;
        }
        chains[0]
    })
}

/// The sum of a row, as [defined](crate#sums).
///
/// ```
/// use shardd_kernels::{Level, sum};
///
/// assert_eq!(sum(Level::best(), &[1.0, 2.0, 3.5]), 6.5);
/// ```
pub fn sum(level: Level, row: &[f32]) -> f32 {
    struct Sum<'a>(&'a [f32]);
    impl WithSimd for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> f32 {
            let row = self.0;
            let [sum] = sums(row.len(), |at| [row[at]]);
            sum
        }
    }
    level.narrow().run(Sum(row))
}
