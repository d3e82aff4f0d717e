//! Which shards and grains are read most, lately, in bounded memory.
//!
//! Counts decay: an event counts half after a half-life (forward decay, Cormode et al., ICDE 2009). The busiest keys are kept
//! and the others dropped in bulk, by the rule of Space-Saving (Metwally et al., ICDT 2005): a key that comes back may have
//! been read before, at most as often as the busiest one that was dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// The decayed counts of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Heat {
    /// Reads since the key is followed.
    pub(super) reads: f64,
    /// The most reads before, while it was not followed.
    pub(super) missed: f64,
    /// Reads of it that the cache did not hold.
    pub(super) misses: f64,
    /// Bytes of the reads.
    pub(super) bytes: f64,
    /// Seconds that readers waited.
    pub(super) waited_s: f64,
}

impl Heat {
    /// One read.
    pub(super) fn of_read(bytes: u64, missed_for: Option<Duration>) -> Heat {
        Heat {
            reads: 1.0,
            missed: 0.0,
            misses: f64::from(u8::from(missed_for.is_some())),
            bytes: bytes as f64,
            waited_s: missed_for.unwrap_or_default().as_secs_f64(),
        }
    }

    fn scaled(self, factor: f64) -> Heat {
        Heat {
            reads: self.reads * factor,
            missed: self.missed * factor,
            misses: self.misses * factor,
            bytes: self.bytes * factor,
            waited_s: self.waited_s * factor,
        }
    }

    fn add(&mut self, other: Heat) {
        self.reads += other.reads;
        self.misses += other.misses;
        self.bytes += other.bytes;
        self.waited_s += other.waited_s;
    }

    /// At most this often it was read, lately.
    fn upper(&self) -> f64 {
        self.reads + self.missed
    }
}

/// The most-read keys. Holds at most twice as many as it follows.
#[derive(Debug)]
pub(super) struct Hottest<K> {
    followed: usize,
    half_life: Duration,
    /// The moment whose events count 1 in `heats`; later ones count more.
    landmark: Duration,
    heats: HashMap<K, Heat>,
    /// No key that is absent was read more often.
    floor: f64,
}

/// Weights beyond 2 to this power are brought down by a new landmark.
const MOST_HALVINGS: f64 = 64.0;

impl<K: Hash + Eq + Clone> Hottest<K> {
    /// Follows the `followed` busiest keys, at least one.
    pub(super) fn new(followed: usize, half_life: Duration) -> Hottest<K> {
        let followed = followed.max(1);
        Hottest { followed, half_life, landmark: Duration::ZERO, heats: HashMap::new(), floor: 0.0 }
    }

    /// Counts a read of `key` at a time since the beginning. Times may be a little out of order.
    pub(super) fn note(&mut self, at: Duration, key: &K, read: Heat) {
        let weight = self.weight(at);
        if let Some(heat) = self.heats.get_mut(key) {
            return heat.add(read.scaled(weight));
        }
        let mut heat = Heat { missed: self.floor, ..Heat::default() };
        heat.add(read.scaled(weight));
        self.heats.insert(key.clone(), heat);
        if self.heats.len() >= 2 * self.followed {
            self.drop_coldest();
        }
    }

    /// The keys by a property of theirs, the largest first, with their counts as of `at`.
    pub(super) fn top(&mut self, at: Duration, count: usize, by: impl Fn(&Heat) -> f64) -> Vec<(K, Heat)> {
        let weight = self.weight(at);
        let mut all: Vec<(&K, &Heat)> = self.heats.iter().collect();
        all.sort_by(|(_, one), (_, other)| by(other).total_cmp(&by(one)));
        all.into_iter().take(count).map(|(key, heat)| (key.clone(), heat.scaled(1.0 / weight))).collect()
    }

    /// What an event at `at` counts, in the unit of the landmark.
    fn weight(&mut self, at: Duration) -> f64 {
        let halvings =
            |landmark: Duration| (at.as_secs_f64() - landmark.as_secs_f64()) / self.half_life.as_secs_f64();
        if halvings(self.landmark) > MOST_HALVINGS {
            let factor = (-halvings(self.landmark)).exp2();
            self.heats.values_mut().for_each(|heat| *heat = heat.scaled(factor));
            self.heats.retain(|_, heat| heat.upper() > f64::MIN_POSITIVE);
            self.floor *= factor;
            self.landmark = at;
        }
        halvings(self.landmark).exp2()
    }

    fn drop_coldest(&mut self) {
        let mut uppers: Vec<f64> = self.heats.values().map(Heat::upper).collect();
        let (_, least_kept, _) =
            uppers.select_nth_unstable_by(self.followed - 1, |one, other| other.total_cmp(one));
        let least_kept = *least_kept;
        // Of equals, so many go that the rest has room.
        let above = self.heats.values().filter(|heat| heat.upper() > least_kept).count();
        let mut equals = self.followed - above;
        self.heats.retain(|_, heat| {
            let stays = heat.upper() > least_kept || (heat.upper() == least_kept && equals > 0);
            equals -= usize::from(stays && heat.upper() == least_kept);
            if !stays {
                self.floor = self.floor.max(heat.upper());
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const HALF_LIFE: Duration = Duration::from_secs(60);

    /// Reads of keys, in order, each some milliseconds after the one before.
    fn reads() -> impl Strategy<Value = Vec<(Duration, u8)>> {
        // A few keys are read much more often than others.
        let key = prop_oneof![0..4u8, 0..=255u8];
        prop::collection::vec((0..20_000u64, key), 1..600).prop_map(|steps| {
            let mut at = 0;
            let place = |(after, key)| {
                at += after;
                (Duration::from_millis(at), key)
            };
            steps.into_iter().map(place).collect()
        })
    }

    /// The decayed count of every key, computed from all reads.
    fn exact(reads: &[(Duration, u8)], at: Duration) -> BTreeMap<u8, f64> {
        let mut counts = BTreeMap::new();
        for (read, key) in reads {
            let age = (at - *read).as_secs_f64() / HALF_LIFE.as_secs_f64();
            *counts.entry(*key).or_default() += (-age).exp2();
        }
        counts
    }

    proptest! {
        #[test]
        fn counts_are_never_too_high_nor_lower_than_the_error_says(reads in reads(), followed in 1..40usize) {
            let mut hottest = Hottest::new(followed, HALF_LIFE);
            for (at, key) in &reads {
                hottest.note(*at, key, Heat::of_read(10, None));
                prop_assert!(hottest.heats.len() <= 2 * followed);
            }
            let at = reads.last().expect("not empty").0;
            let exact = exact(&reads, at);
            let near = 1e-6;
            let shown: HashMap<u8, Heat> = hottest.top(at, usize::MAX, |heat| heat.reads).into_iter().collect();
            let floor = hottest.floor / hottest.weight(at);
            for (key, count) in &exact {
                match shown.get(key) {
                    Some(heat) => {
                        prop_assert!(heat.reads <= count + near && *count <= heat.upper() + near);
                        prop_assert!((heat.bytes - 10.0 * heat.reads).abs() < near * (1.0 + heat.bytes));
                    }
                    None => prop_assert!(*count <= floor + near, "{key} was read {count} times, and dropped at {floor}"),
                }
            }
        }

        #[test]
        fn few_keys_are_counted_exactly(reads in reads()) {
            let mut hottest = Hottest::new(256, HALF_LIFE);
            for (at, key) in &reads {
                hottest.note(*at, key, Heat::of_read(1, None));
            }
            let at = reads.last().expect("not empty").0 + HALF_LIFE;
            let exact = exact(&reads, at);
            for (key, heat) in hottest.top(at, usize::MAX, |heat| heat.reads) {
                prop_assert!((heat.reads - exact[&key]).abs() < 1e-9 && heat.missed == 0.0);
            }
        }
    }

    #[test]
    fn days_of_reads_overflow_nothing_and_yesterday_is_forgotten() {
        let mut hottest = Hottest::new(2, Duration::from_secs(1));
        let day = Duration::from_secs(24 * 60 * 60);
        for hour in 0..24 {
            hottest.note(day / 24 * hour, &"old", Heat::of_read(1, None));
        }
        hottest.note(day, &"new", Heat::of_read(1, Some(Duration::from_secs(2))));
        let top = hottest.top(day, 9, |heat| heat.waited_s);
        assert_eq!(top.len(), 1, "{top:?}");
        assert_eq!((top[0].0, top[0].1.reads, top[0].1.misses, top[0].1.waited_s), ("new", 1.0, 1.0, 2.0));
    }
}
