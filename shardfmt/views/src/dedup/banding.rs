//! How signatures are cut into bands, so that similar rows meet and others seldom do.

use crate::decimal::Decimal;

/// Steps of the integrals below.
const STEPS: u32 = 256;

/// Weight of missed pairs against needless comparisons. A needless comparison costs time only, since
/// candidates are verified.
const MISSES: f64 = 0.9;

/// A signature's bands. Two rows are candidates if all values of one band are equal.
///
/// The chance of that is 1 - (1 - s^rows)^bands for rows of similarity s: Leskovec, Rajaraman and Ullman,
/// "Mining of Massive Datasets", section 3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Banding {
    /// Number of bands.
    pub bands: usize,
    /// Values of each band.
    pub rows: usize,
}

impl Banding {
    /// The bands of at most `num_perm` values that suit a threshold best.
    ///
    /// As in datasketch, the best bands have the least weighted sum of two areas: that of pairs below the
    /// threshold that become candidates (weight 0.1), and that of pairs above it that do not (weight 0.9).
    pub fn for_threshold(threshold: Decimal, num_perm: u16) -> Self {
        let threshold = threshold.to_f64();
        let num_perm = u32::from(num_perm).max(1);
        let mut best = (f64::INFINITY, Self { bands: 1, rows: 1 });
        for rows in 1..=num_perm {
            let powers: Vec<f64> = (0..STEPS).map(|step| power(similarity(step), rows)).collect();
            for bands in 1..=num_perm / rows {
                let cost = cost(&powers, bands, threshold);
                if cost < best.0 {
                    best = (cost, Self { bands: bands as usize, rows: rows as usize });
                }
            }
        }
        best.1
    }

    /// The chance that two rows of similarity `similarity` become candidates.
    pub fn chance(self, similarity: f64) -> f64 {
        let exponent = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        1.0 - power(1.0 - power(similarity, exponent(self.rows)), exponent(self.bands))
    }
}

/// The middle of a step.
fn similarity(step: u32) -> f64 {
    (f64::from(step) + 0.5) / f64::from(STEPS)
}

fn cost(powers: &[f64], bands: u32, threshold: f64) -> f64 {
    let mut cost = 0.0;
    for (step, power_of_rows) in (0..).zip(powers) {
        let missed = power(1.0 - power_of_rows, bands);
        cost += if similarity(step) < threshold { (1.0 - MISSES) * (1.0 - missed) } else { MISSES * missed };
    }
    cost
}

/// `base^exponent` by multiplications alone, which all processors do alike.
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}
