//! Verifies the files of a version against its manifest: all of them, or a random sample, with the confidence
//! for the rest.

use rayon::prelude::*;
use serde::Serialize;
use shardd_plan::Permutation;
use shardfmt::digest::ShardId;
use shardfmt::manifest::{Manifest, ShardEntry};
use shardfmt::merkle;
use shardfmt::row::DigestSum;
use shardfmt::store::Store;

use super::damage::{Damage, File};
use super::store::{corrupt, read_shard, read_sidecar};
use super::{VersionError, pool};
use crate::Progress;

/// A file that is not what the manifest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The shard.
    pub shard: ShardId,
    /// Which of its files.
    pub file: File,
    /// Its fault.
    #[serde(flatten)]
    pub damage: Damage,
}

/// Checks the shards at these places of the manifest, row by row, and their sidecars: the faults, in order.
///
/// # Errors
///
/// When no threads can be started.
pub fn verify(
    manifest: &Manifest,
    places: &[usize],
    store: &dyn Store,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Finding>, VersionError> {
    let check_one = |place: &usize| {
        let entry = &manifest.shards[*place];
        let found = check(entry, store);
        progress.advanced(u64::from(entry.rows), entry.row_bytes, "verifying");
        found
    };
    Ok(pool(threads)?.install(|| places.par_iter().flat_map_iter(check_one).collect()))
}

/// The faults of the files of one shard.
pub fn check(entry: &ShardEntry, store: &dyn Store) -> Vec<Finding> {
    let shard = check_shard(entry, store).err().map(|damage| (File::Shard, damage));
    let sidecar = read_sidecar(store, entry).err().map(|damage| (File::Sidecar, damage));
    let finding = |(file, damage)| Finding { shard: entry.id, file, damage };
    [shard, sidecar].into_iter().flatten().map(finding).collect()
}

fn check_shard(entry: &ShardEntry, store: &dyn Store) -> Result<(), Damage> {
    let shard = read_shard(store, entry)?;
    let rows = shard.row_digests().map_err(|error| corrupt(&error))?;
    let sum: DigestSum = rows.iter().copied().sum();
    if sum != entry.digest_sum {
        return Err(Damage::Corrupt(format!("its rows sum to {sum} instead of {}", entry.digest_sum)));
    }
    match merkle::root(&rows) == entry.root {
        true => Ok(()),
        false => Err(Damage::Corrupt("its rows do not lead to the root in the manifest".to_owned())),
    }
}

/// `count` of the places of `shards` shards, in order: a choice that `seed` decides and in which every shard is as likely as
/// another.
pub fn sample(shards: usize, count: usize, seed: u64) -> Vec<usize> {
    let key = blake3::derive_key("shardfmt 2026 verify sample v1", &seed.to_le_bytes());
    let order = Permutation::new(&key, shards as u64);
    let mut chosen: Vec<usize> =
        (0..count.min(shards) as u64).map(|place| order.apply(place) as usize).collect();
    chosen.sort_unstable();
    chosen
}

/// The statement about all shards that follows from a number of intact ones chosen at random.
///
/// ```
/// use shardd_ingest::version::{Confidence, sample};
///
/// // 300 of 1,000 shards, and all of them intact.
/// let places = sample(1_000, 300, 7);
/// let confidence = Confidence::of(places.len(), 1_000);
/// assert!(confidence.chance_missed(10) < 0.03);
/// assert_eq!(Confidence::of(1_000, 1_000).chance_missed(1), 0.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Confidence {
    shards: u64,
    sampled: u64,
}

impl Confidence {
    /// For `sampled` of `shards` shards.
    pub fn of(sampled: usize, shards: usize) -> Self {
        Self { shards: shards as u64, sampled: sampled.min(shards) as u64 }
    }

    /// The chance that none of `damaged` damaged shards was among those that were looked at.
    pub fn chance_missed(&self, damaged: u64) -> f64 {
        if damaged > self.shards - self.sampled {
            return 0.0;
        }
        // The damaged ones are drawn one after the other, each from those that were not looked at.
        let drawn = (0..damaged)
            .map(|drawn| (self.shards - self.sampled - drawn) as f64 / (self.shards - drawn) as f64);
        drawn.product()
    }

    /// The fewest damaged shards of which one would have been found with this chance: fewer may well have been missed.
    pub fn would_have_found(&self, chance: f64) -> u64 {
        let is_enough = |damaged: u64| 1.0 - self.chance_missed(damaged) >= chance;
        let (mut low, mut high) = (0, self.shards - self.sampled + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_enough(middle) { high = middle } else { low = middle + 1 }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_sample_is_so_many_different_places(shards in 1..500usize, count in 0..600usize, seed: u64) {
            let chosen = sample(shards, count, seed);
            prop_assert_eq!(chosen.len(), count.min(shards));
            prop_assert!(chosen.is_sorted_by(|a, b| a < b));
            prop_assert!(chosen.iter().all(|place| *place < shards));
        }

        #[test]
        fn the_more_is_damaged_the_sooner_it_is_found(shards in 1..300usize, sampled in 0..300usize) {
            let confidence = Confidence::of(sampled, shards);
            let sampled = sampled.min(shards) as u64;
            let chances: Vec<f64> = (0..=shards as u64).map(|damaged| confidence.chance_missed(damaged)).collect();
            prop_assert_eq!(chances[0], 1.0);
            prop_assert!(chances.is_sorted_by(|a, b| a >= b));
            prop_assert!((chances[1] - (1.0 - sampled as f64 / shards as f64)).abs() < 1e-12);
            let enough = confidence.would_have_found(0.95);
            prop_assert!(confidence.chance_missed(enough) <= 0.05 + 1e-12);
            prop_assert!(enough == 0 || confidence.chance_missed(enough - 1) > 0.05 - 1e-12);
        }
    }

    #[test]
    fn every_shard_is_as_likely_as_another() {
        let mut times = [0u32; 20];
        for seed in 0..2000 {
            sample(20, 5, seed).into_iter().for_each(|place| times[place] += 1);
        }
        // 500 on average, with a standard deviation of 19.
        assert!(times.iter().all(|times| (400..600).contains(times)), "{times:?}");
    }
}
