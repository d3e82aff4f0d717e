//! The difference of two versions, by content: shards by their names, samples by the digests of their rows.
//!
//! Samples are compared only where shards differ, and only their digests are read. Digests are counted in a table; when
//! there are more than memory should hold, they are first dealt to temporary files by their first bits, and counted file
//! by file: 10^8 samples a side take about 3.5 GB of disk, and a quarter of a gigabyte of memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::ops::AddAssign;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use serde::Serialize;

use super::schema::{SchemaChange, are_comparable, changes};
use crate::digest::ShardId;
use crate::manifest::{Manifest, ShardEntry};
use crate::provenance::Provenance;
use crate::row::RowDigest;
use crate::shard::Sidecar;

/// Digests that are counted in one table: with it about 256 MiB.
const COUNTED_AT_ONCE: u64 = 4 << 20;

/// The most temporary files; beyond 10^9 samples that differ, tables grow.
const MOST_BUCKETS: u64 = 256;

/// How much of something two versions share, and what only the one or the other has. Equal things are counted as often
/// as they occur.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// In both.
    pub kept: u64,
    /// In the second only.
    pub added: u64,
    /// In the first only.
    pub removed: u64,
}

impl Change {
    /// Whether there is the same on both sides.
    pub fn is_none(&self) -> bool {
        self.added == 0 && self.removed == 0
    }
}

impl AddAssign for Change {
    fn add_assign(&mut self, other: Self) {
        self.kept += other.kept;
        self.added += other.added;
        self.removed += other.removed;
    }
}

/// The changes from one version to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Columns. Where a name, a type or their order changed, no sample is the same.
    pub schema: Vec<SchemaChange>,
    /// Shards, by their names.
    pub shards: Change,
    /// Samples, by the digests of their rows.
    pub samples: Change,
    /// The inputs, by digest, where the provenance of both is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Change>,
    /// Whether the same samples have the same numbers; false where there are others.
    pub same_order: bool,
}

impl Diff {
    /// Whether both hold the same samples under the same numbers and columns, however they are cut into shards.
    pub fn is_same_content(&self) -> bool {
        self.schema.is_empty() && self.samples.is_none() && self.same_order
    }
}

/// The same, of which some may have been too much to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BoundedDiff {
    /// Columns. Where a name, a type or their order changed, no sample is the same.
    pub schema: Vec<SchemaChange>,
    /// Shards, by their names.
    pub shards: Change,
    /// Samples, by the digests of their rows; none where the shards that differ were too much to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub samples: Option<Change>,
    /// The inputs, by digest, where the provenance of both is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub inputs: Option<Change>,
    /// Whether the same samples have the same numbers; false where there are others, none where that was too much to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub same_order: Option<bool>,
    /// Why samples or their order were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub left_out: Option<LeftOut>,
}

/// Why samples were not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// The shards have too many rows.
    Rows,
    /// There are too many shards.
    Shards,
    /// Their sidecars took too long.
    Time,
}

/// What may be read to compare samples, and once more to compare their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Rows of the shards that differ.
    pub rows: u64,
    /// These shards.
    pub shards: u64,
}

impl Bounds {
    /// Everything.
    pub const NONE: Bounds = Bounds { rows: u64::MAX, shards: u64::MAX };

    /// Why samples of these shards are not compared, if they are not.
    fn exceeded_by(self, shards: u64, rows: u64) -> Option<LeftOut> {
        match (rows > self.rows, shards > self.shards) {
            (true, _) => Some(LeftOut::Rows),
            (false, true) => Some(LeftOut::Shards),
            (false, false) => None,
        }
    }
}

impl BoundedDiff {
    /// Whether both hold the same samples under the same numbers and columns, where that is known.
    pub fn is_same_content(&self) -> Option<bool> {
        match (&self.samples, self.same_order) {
            _ if !self.schema.is_empty() => Some(false),
            (Some(samples), _) if !samples.is_none() => Some(false),
            (Some(_), same_order) => same_order,
            (None, _) => None,
        }
    }
}

/// Why two versions were not compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError<E> {
    /// The sidecar of a shard could not be had.
    #[error("the sidecar of a shard cannot be read")]
    Sidecar(E),
    /// The temporary files for digests failed.
    #[error("temporary files cannot hold the digests of the rows")]
    Spill(#[source] io::Error),
}

impl<E> From<io::Error> for DiffError<E> {
    fn from(error: io::Error) -> Self {
        Self::Spill(error)
    }
}

/// Which inputs two versions were made of; `None` unless both are known.
pub fn inputs(old: Option<&Provenance>, new: Option<&Provenance>) -> Option<Change> {
    let (old, new) = old.zip(new)?;
    Some(multiset(&old.inputs, &new.inputs, |input| input.digest))
}

/// Compares two versions, and leaves out their inputs. `sidecar` reads the verified sidecar of a shard, and `counted` hears of each shard whose rows were counted.
///
/// # Errors
///
/// When the sidecar of a shard that only one of them has cannot be had, or temporary files cannot be written.
pub fn diff<E: Send>(
    old: &Manifest,
    new: &Manifest,
    sidecar: &(impl Fn(&ShardEntry) -> Result<Sidecar, E> + Sync),
    counted: &(impl Fn(&ShardEntry) + Sync),
) -> Result<Diff, DiffError<E>> {
    let sidecar = |entry: &ShardEntry| sidecar(entry).map(Some);
    let found = diff_within(Bounds::NONE, old, new, &sidecar, counted)?;
    let BoundedDiff { schema, shards, samples, inputs, same_order, left_out: _ } = found;
    const UNBOUNDED: &str = "everything is compared without a bound";
    let (samples, same_order) = (samples.expect(UNBOUNDED), same_order.expect(UNBOUNDED));
    Ok(Diff { schema, shards, samples, inputs, same_order })
}

/// Compares two versions but for their inputs, and samples only where that is within the bounds. `sidecar` has none once there is no more time: then samples
/// are left out, too.
///
/// # Errors
///
/// As [`diff`].
pub fn diff_within<E: Send>(
    bounds: Bounds,
    old: &Manifest,
    new: &Manifest,
    sidecar: &(impl Fn(&ShardEntry) -> Result<Option<Sidecar>, E> + Sync),
    counted: &(impl Fn(&ShardEntry) + Sync),
) -> Result<BoundedDiff, DiffError<E>> {
    let schema = changes(&old.schema, &new.schema);
    let (shards, removed, added) = shards_changed(&old.shards, &new.shards);
    let total = |shards: &[&ShardEntry]| shards.iter().map(|shard| u64::from(shard.rows)).sum::<u64>();
    let (total_removed, total_added) = (total(&removed), total(&added));
    let samples = if !are_comparable(&old.schema, &new.schema) {
        Ok(Change { kept: 0, added: new.sample_count(), removed: old.sample_count() })
    } else if let Some(why) =
        bounds.exceeded_by((removed.len() + added.len()) as u64, total_removed + total_added)
    {
        Err(why)
    } else {
        let mut tally = Tally::new(total_removed + total_added)?;
        let all = count(&mut tally, &removed, Side::Old, sidecar, counted)?
            && count(&mut tally, &added, Side::New, sidecar, counted)?;
        if all {
            let mut change = tally.finish()?;
            change.kept += old.sample_count() - total_removed;
            Ok(change)
        } else {
            Err(LeftOut::Time)
        }
    };
    let same_order = match samples {
        Ok(samples) if !samples.is_none() => Ok(false),
        Ok(_) => {
            let (elsewhere, rows) = elsewhere(old, new);
            match bounds.exceeded_by(elsewhere, rows) {
                Some(why) => Err(why),
                None => has_same_order(old, new, sidecar)?.ok_or(LeftOut::Time),
            }
        }
        Err(why) => Err(why),
    };
    let left_out = same_order.err();
    let same_order = same_order.ok();
    Ok(BoundedDiff { schema, shards, samples: samples.ok(), inputs: None, same_order, left_out })
}

/// The shards that do not begin at the same sample of the other version, and their rows: whether two versions have the same order takes
/// the digests of no others.
fn elsewhere(old: &Manifest, new: &Manifest) -> (u64, u64) {
    let (olds, news) = (placed(old), placed(new));
    let apart = olds.symmetric_difference(&news);
    apart.fold((0, 0), |(shards, sum), (_, _, rows)| (shards + 1, sum + u64::from(*rows)))
}

/// The shards of a version, each with its first sample and its rows.
fn placed(manifest: &Manifest) -> BTreeSet<(u64, ShardId, u32)> {
    let shards = manifest.shards.iter().scan(0u64, |next, shard| {
        let first = *next;
        *next += u64::from(shard.rows);
        Some((first, shard.id, shard.rows))
    });
    shards.collect()
}

/// How many shards are in both, and those that are not.
fn shards_changed<'a>(
    old: &'a [ShardEntry],
    new: &'a [ShardEntry],
) -> (Change, Vec<&'a ShardEntry>, Vec<&'a ShardEntry>) {
    let removed = without(old, new, |shard| shard.id);
    let added = without(new, old, |shard| shard.id);
    let kept = (old.len() - removed.len()) as u64;
    (Change { kept, added: added.len() as u64, removed: removed.len() as u64 }, removed, added)
}

fn multiset<T, K: Ord>(old: &[T], new: &[T], key: impl Fn(&T) -> K) -> Change {
    let (removed, added) = (without(old, new, &key).len() as u64, without(new, old, &key).len() as u64);
    Change { kept: old.len() as u64 - removed, added, removed }
}

/// The items in `all` and not, or less often, in `other`.
fn without<'a, T, K: Ord>(all: &'a [T], other: &[T], key: impl Fn(&T) -> K) -> Vec<&'a T> {
    let mut there: BTreeMap<K, usize> = BTreeMap::new();
    for item in other {
        *there.entry(key(item)).or_default() += 1;
    }
    let is_gone = |item: &&T| match there.get_mut(&key(item)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    all.iter().filter(is_gone).collect()
}

/// Counts the digests of shards. False if there is no time for all.
fn count<E: Send>(
    tally: &mut Tally,
    shards: &[&ShardEntry],
    side: Side,
    sidecar: &(impl Fn(&ShardEntry) -> Result<Option<Sidecar>, E> + Sync),
    counted: &(impl Fn(&ShardEntry) + Sync),
) -> Result<bool, DiffError<E>> {
    let (tally, is_late) = (Mutex::new(tally), AtomicBool::new(false));
    shards.par_iter().try_for_each(|entry| {
        if is_late.load(Relaxed) {
            return Ok(());
        }
        let Some(sidecar) = sidecar(entry).map_err(DiffError::Sidecar)? else {
            is_late.store(true, Relaxed);
            return Ok(());
        };
        tally.lock().unwrap_or_else(PoisonError::into_inner).add(&sidecar.rows, side)?;
        counted(entry);
        Ok::<_, DiffError<E>>(())
    })?;
    Ok(!is_late.into_inner())
}

#[derive(Clone, Copy)]
enum Side {
    Old,
    New,
}

/// How much more often each digest occurs on one side than on the other.
enum Tally {
    Table(Table),
    Dealt(Vec<BufWriter<File>>),
}

impl Tally {
    /// For `digests` digests in all.
    fn new(digests: u64) -> io::Result<Self> {
        let buckets = digests.div_ceil(COUNTED_AT_ONCE).min(MOST_BUCKETS);
        if buckets <= 1 {
            return Ok(Self::Table(Table::default()));
        }
        let files = (0..buckets).map(|_| tempfile::tempfile().map(BufWriter::new));
        Ok(Self::Dealt(files.collect::<Result<_, _>>()?))
    }

    fn add(&mut self, digests: &[RowDigest], side: Side) -> io::Result<()> {
        match self {
            Self::Table(table) => digests.iter().for_each(|digest| table.add(*digest, side)),
            Self::Dealt(files) => {
                let count = files.len() as u128;
                for digest in digests {
                    let first = u64::from_be_bytes(digest.0[..8].try_into().expect("8 of 16 bytes"));
                    // Below the number of files, as the first factor is below 2^64.
                    let bucket = ((u128::from(first) * count) >> 64) as usize;
                    let mut record = [side as u8; 17];
                    record[..16].copy_from_slice(&digest.0);
                    files[bucket].write_all(&record)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> io::Result<Change> {
        let files = match self {
            Self::Table(table) => return Ok(table.finish()),
            Self::Dealt(files) => files,
        };
        let mut change = Change::default();
        for file in files {
            let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            let records = file.stream_position().and(file.metadata())?.len() / 17;
            let (mut file, mut table, mut record) = (BufReader::new(file), Table::default(), [0; 17]);
            for _ in 0..records {
                file.read_exact(&mut record)?;
                let digest = RowDigest(record[..16].try_into().expect("16 of 17 bytes"));
                table.add(digest, if record[16] == Side::Old as u8 { Side::Old } else { Side::New });
            }
            change += table.finish();
        }
        Ok(change)
    }
}

/// A digest takes one place however often it occurs.
#[derive(Default)]
struct Table {
    /// By how much the old side is ahead.
    ahead: HashMap<RowDigest, i64>,
    old: u64,
}

impl Table {
    fn add(&mut self, digest: RowDigest, side: Side) {
        let ahead = self.ahead.entry(digest).or_default();
        match side {
            Side::Old => {
                *ahead += 1;
                self.old += 1;
            }
            Side::New => *ahead -= 1,
        }
    }

    fn finish(self) -> Change {
        let sum = |sign: i64| -> u64 {
            self.ahead.values().filter(|ahead| ahead.signum() == sign).map(|ahead| ahead.unsigned_abs()).sum()
        };
        let (removed, added) = (sum(1), sum(-1));
        Change { kept: self.old - removed, added, removed }
    }
}

/// Whether two versions of the same samples have them in the same order, if there is time for that. Shards that lie in the same place
/// are not read.
fn has_same_order<E>(
    old: &Manifest,
    new: &Manifest,
    sidecar: &impl Fn(&ShardEntry) -> Result<Option<Sidecar>, E>,
) -> Result<Option<bool>, DiffError<E>> {
    let (mut olds, mut news) = (Digests::of(&old.shards, sidecar), Digests::of(&new.shards, sidecar));
    // Shard and row on either side.
    let (mut here, mut there) = ((0, 0), (0, 0));
    while here.0 < old.shards.len() && there.0 < new.shards.len() {
        let (a, b) = (&old.shards[here.0], &new.shards[there.0]);
        if a.id == b.id && here.1 == there.1 {
            (here, there) = ((here.0 + 1, 0), (there.0 + 1, 0));
            continue;
        }
        let (Some(a), Some(b)) = (olds.at(here.0)?, news.at(there.0)?) else { return Ok(None) };
        let (a, b) = (&a[here.1..], &b[there.1..]);
        let both = a.len().min(b.len());
        if a[..both] != b[..both] {
            return Ok(Some(false));
        }
        let onward =
            |at: (usize, usize), left: usize| if left == both { (at.0 + 1, 0) } else { (at.0, at.1 + both) };
        (here, there) = (onward(here, a.len()), onward(there, b.len()));
    }
    Ok(Some(here.0 == old.shards.len() && there.0 == new.shards.len()))
}

/// The digests of shards, one shard after the other.
struct Digests<'a, F> {
    shards: &'a [ShardEntry],
    sidecar: &'a F,
    last: Option<(usize, Sidecar)>,
}

impl<'a, E, F: Fn(&ShardEntry) -> Result<Option<Sidecar>, E>> Digests<'a, F> {
    fn of(shards: &'a [ShardEntry], sidecar: &'a F) -> Self {
        Self { shards, sidecar, last: None }
    }

    /// The digests of the rows of the shard at `index`, if there is time for that.
    fn at(&mut self, index: usize) -> Result<Option<&[RowDigest]>, DiffError<E>> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != index) {
            let read = (self.sidecar)(&self.shards[index]).map_err(DiffError::Sidecar)?;
            self.last = read.map(|sidecar| (index, sidecar));
        }
        Ok(self.last.as_ref().map(|(_, sidecar)| sidecar.rows.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digest(number: u16) -> RowDigest {
        RowDigest::of(&number.to_le_bytes())
    }

    proptest! {
        #[test]
        fn dealing_to_files_counts_as_one_table_does(
            old in prop::collection::vec(0..40u16, 0..300),
            new in prop::collection::vec(0..40u16, 0..300),
        ) {
            let of = |numbers: &[u16]| numbers.iter().map(|number| digest(*number)).collect::<Vec<_>>();
            let counted = |mut tally: Tally| {
                tally.add(&of(&old), Side::Old).expect("room");
                tally.add(&of(&new), Side::New).expect("room");
                tally.finish().expect("room")
            };
            let dealt = Tally::new(3 * COUNTED_AT_ONCE).expect("room");
            prop_assert!(matches!(&dealt, Tally::Dealt(files) if files.len() == 3));
            let change = counted(dealt);
            prop_assert_eq!(change, counted(Tally::new(1).expect("room")));
            prop_assert_eq!(change, multiset(&old, &new, |number| *number));
            prop_assert_eq!(change.kept + change.removed, old.len() as u64);
            prop_assert_eq!(change.kept + change.added, new.len() as u64);
        }
    }
}
