//! Which algorithm adds up how many bytes, from measurements of a group of ranks. Pure: times in, a table out. The measuring is
//! in `tune.rs`.

use std::fmt;

use serde::{Deserialize, Serialize};
use shardfmt::ByteSize;

use super::Algorithm;

/// The time of an all-reduce by an algorithm, as the slowest rank saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// How the numbers travelled.
    pub algorithm: Algorithm,
    /// The bytes of each rank's numbers.
    pub bytes: u64,
    /// The median time in nanoseconds.
    pub nanos: u64,
}

/// The algorithm for every number of bytes. Ranks that have the same table use the same algorithm for the same numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningTable {
    /// The algorithm for few bytes.
    first: Algorithm,
    /// From this number of bytes on another one, up to the next line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    then: Vec<(u64, Algorithm)>,
}

impl From<Algorithm> for TuningTable {
    fn from(algorithm: Algorithm) -> TuningTable {
        TuningTable { first: algorithm, then: Vec::new() }
    }
}

impl TuningTable {
    /// Another algorithm takes over only where it needs at most this part of the time of the one before it: less than the noise
    /// of a short measurement decides nothing.
    const WORTH_IT: f64 = 0.95;

    /// The table of the fastest algorithms. Between two measured sizes, the place of a switch is that at which the two times
    /// would be equal, if the logarithm of their ratio fell evenly with that of the size. Without measurements, direct.
    pub fn of_measurements(measurements: &[Measurement]) -> TuningTable {
        let mut sizes: Vec<u64> = measurements.iter().map(|it| it.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let time = |algorithm: Algorithm, bytes: u64| {
            let found = measurements.iter().find(|it| (it.algorithm, it.bytes) == (algorithm, bytes));
            found.map_or(f64::INFINITY, |it| it.nanos.max(1) as f64)
        };
        let fastest = |bytes: u64| {
            let of_size = measurements.iter().filter(|it| it.bytes == bytes);
            of_size.min_by_key(|it| it.nanos).map_or(Algorithm::Direct, |it| it.algorithm)
        };
        let mut table = TuningTable::from(sizes.first().map_or(Algorithm::Direct, |&bytes| fastest(bytes)));
        let mut now = table.first;
        for pair in sizes.windows(2) {
            let (before, here) = (pair[0], pair[1]);
            let next = fastest(here);
            if time(next, here) > TuningTable::WORTH_IT * time(now, here) {
                continue;
            }
            // How much longer the next one took there, and here.
            let (there, here_ratio) = (
                (time(next, before) / time(now, before)).ln().max(0.0),
                (time(next, here) / time(now, here)).ln(),
            );
            let part =
                if here_ratio.is_finite() && there.is_finite() { there / (there - here_ratio) } else { 0.5 };
            let switch = before.max(1) as f64 * (here as f64 / before.max(1) as f64).powf(part);
            table.then.push(((switch.ceil() as u64).min(here), next));
            now = next;
        }
        table
    }

    /// The algorithm for each rank's numbers of this many bytes.
    pub fn algorithm(&self, bytes: usize) -> Algorithm {
        let reached = self.then.iter().filter(|(from, _)| *from <= bytes as u64);
        reached.max_by_key(|(from, _)| *from).map_or(self.first, |(_, algorithm)| *algorithm)
    }
}

impl fmt::Display for TuningTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.then.iter().try_for_each(|(from, algorithm)| write!(f, ", {algorithm} from {}", ByteSize(*from)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(rows: &[(Algorithm, u64, u64)]) -> Vec<Measurement> {
        rows.iter().map(|&(algorithm, bytes, nanos)| Measurement { algorithm, bytes, nanos }).collect()
    }

    #[test]
    fn the_fastest_of_each_size_is_taken_and_the_switch_lies_where_times_would_be_equal() {
        use Algorithm::{Direct, Doubling, Ring};
        let rows = measured(&[
            (Direct, 1 << 10, 400),
            (Doubling, 1 << 10, 100),
            (Ring, 1 << 10, 800),
            (Direct, 1 << 20, 10_000),
            (Doubling, 1 << 20, 40_000),
            (Ring, 1 << 20, 9_900),
        ]);
        let table = TuningTable::of_measurements(&rows);
        // Eight times slower at 1 KiB, and four times faster at 1 MiB: ring at three fifths of the ten doublings.
        assert_eq!(table.algorithm(1 << 10), Doubling);
        assert_eq!(table.algorithm(1 << 20), Ring);
        let (from, _) = table.then[0];
        assert!((1 << 15..1 << 17).contains(&from), "{from}");
        assert_eq!((table.algorithm(from as usize - 1), table.algorithm(from as usize)), (Doubling, Ring));
        assert_eq!(table.to_string(), format!("doubling, ring from {}", ByteSize(from)));
    }

    #[test]
    fn a_little_faster_is_noise() {
        use Algorithm::{Direct, TwoTree};
        let rows =
            [(Direct, 1 << 10, 100), (TwoTree, 1 << 10, 200), (Direct, 1 << 20, 100), (TwoTree, 1 << 20, 97)];
        assert_eq!(TuningTable::of_measurements(&measured(&rows)), TuningTable::from(Direct));
        assert_eq!(TuningTable::of_measurements(&[]), TuningTable::from(Direct));
    }

    fn any_measurements() -> impl Strategy<Value = Vec<Measurement>> {
        let row = (prop::sample::select(&Algorithm::ALL[..]), 0..8u32, any::<u64>());
        let of = |(algorithm, power, nanos)| Measurement { algorithm, bytes: 1u64 << (3 * power), nanos };
        prop::collection::vec(row.prop_map(of), 0..40)
    }

    proptest! {
        #[test]
        fn no_measured_size_has_an_algorithm_that_was_much_slower_than_another(rows in any_measurements()) {
            let mut rows = rows;
            rows.sort_by_key(|it| (it.bytes, it.algorithm.name()));
            rows.dedup_by_key(|it| (it.bytes, it.algorithm));
            let table = TuningTable::of_measurements(&rows);
            prop_assert!(table.then.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            for bytes in rows.iter().map(|it| it.bytes) {
                let of_size: Vec<_> = rows.iter().filter(|it| it.bytes == bytes).collect();
                let fastest = of_size.iter().map(|it| it.nanos).min().unwrap_or(0);
                let taken = of_size.iter().find(|it| it.algorithm == table.algorithm(bytes as usize));
                let nanos = taken.expect("an algorithm that was measured").nanos;
                prop_assert!(nanos as f64 * 0.949 <= fastest.max(1) as f64, "{table} at {bytes}");
            }
            let text = serde_json::to_string(&table).unwrap();
            prop_assert_eq!(serde_json::from_str::<TuningTable>(&text).unwrap(), table);
        }
    }
}
