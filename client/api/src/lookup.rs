//! Where and when: which samples are read at a position of an epoch, and at which position a sample is. Pure:
//! answers come from a plan and the manifest of its version alone.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardd_plan::{Epoch, GrainHome, Partition, Plan, PlanError, SampleNo};
use shardfmt::{ManifestError, ManifestFile, ShardId};

use crate::problem::Kind;
use crate::protocol::MAX_EPOCH;

/// The most work that a question may be, in grains followed from epoch to epoch: some seconds.
const MOST_WORK: u128 = 200_000_000;

/// One sample in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Found {
    /// The epoch.
    pub epoch: u32,
    /// Its place in the order of the epoch.
    pub position: u64,
    /// The partition that holds it in that epoch.
    pub partition: u32,
    /// The virtual rank that reads it, if it is known how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub virtual_rank: Option<u32>,
    /// Its number in the order of the dataset.
    pub sample: u64,
    /// Its grain.
    pub grain: u64,
    /// Its shard.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::schema::Digest))]
    pub shard: ShardId,
    /// Its row in that shard.
    pub row: u32,
}

/// A sample in one epoch, and where it goes after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Where it is.
    #[serde(flatten)]
    pub found: Found,
    /// `None`: its grain stays in its partition.
    pub leaves: Option<Leave>,
}

/// The readers, where known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readers {
    /// Positions in a step.
    pub global_batch_size: Option<u64>,
    /// How many ranks there are.
    pub world: Option<u32>,
    /// How many virtual ranks there are; `None`: if the world is known, the plan's default for steps of that size, or the fewest
    /// that the world can share.
    pub virtual_ranks: Option<u32>,
}

/// One reading of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// When, and where it is then.
    #[serde(flatten)]
    pub found: Found,
    /// The step of the epoch, from 0, if it is known how long steps are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The rank that reads it, if it is known how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

/// How a grain leaves its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// The partition it is in from the next epoch on.
    pub to: u32,
    /// The chunk of the exchange that it goes with.
    pub chunk: u32,
    /// The position from which on that is sent.
    pub due: u64,
}

/// Some positions of an epoch, and whose share of them is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The epoch.
    pub epoch: u32,
    /// The first position.
    pub position: u64,
    /// How many there are; fewer at the end of an epoch.
    pub global_batch_size: u64,
    /// Only what this rank reads.
    pub rank: Option<u32>,
    /// How many ranks there are.
    pub world: u32,
    /// How many virtual ranks there are; `None`: the plan's default for steps of that size.
    pub virtual_ranks: Option<u32>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum LookupError {
    /// Ranks that do not fit the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The version's list of shards cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Positions end where the epoch does.
    #[error("position {position} is outside the epoch, which has {samples} samples")]
    PositionOutside { position: u64, samples: u64 },
    /// Samples count from 0.
    #[error("there is no sample {sample}: the version has {samples}, from 0")]
    NoSuchSample { sample: u64, samples: u64 },
    /// Ranks count from 0.
    #[error("rank {rank} is not one of {world}: use 0 to {}", world - 1)]
    RankOutside { rank: u32, world: u32 },
    /// Steps have samples.
    #[error("steps of 0 samples read nothing: use a global batch size of at least 1")]
    EmptySteps,
    /// A grain is followed through all epochs before.
    #[error(
        "epoch {epoch} with {positions} positions takes too long to work out: ask for fewer positions, or an earlier epoch"
    )]
    TooFar { epoch: u32, positions: u64 },
}

impl From<&LookupError> for Kind {
    fn from(error: &LookupError) -> Self {
        match error {
            LookupError::Manifest(_) => Self::Corrupt,
            LookupError::Plan(_)
            | LookupError::PositionOutside { .. }
            | LookupError::NoSuchSample { .. }
            | LookupError::RankOutside { .. }
            | LookupError::EmptySteps
            | LookupError::TooFar { .. } => Self::Invalid,
        }
    }
}

/// The samples at the positions of `step`, in their order.
///
/// # Errors
/// [`LookupError`], when the question does not fit the plan or would take too long.
pub fn at(plan: &Plan, manifest: &ManifestFile, step: &Step) -> Result<Vec<Found>, LookupError> {
    let virtual_ranks =
        step.virtual_ranks.unwrap_or_else(|| plan.default_virtual_ranks(step.global_batch_size));
    plan.check_ranks(step.world, virtual_ranks)?;
    let own = own(step, virtual_ranks)?;
    let (epoch, samples) = (Epoch(step.epoch), plan.sample_count());
    let end = step.position.saturating_add(step.global_batch_size).min(samples);
    if step.position >= end {
        return Err(LookupError::PositionOutside { position: step.position, samples });
    }
    check_work(plan, step.epoch, end - step.position)?;
    let mut found = Vec::new();
    let mut shards = BTreeMap::new();
    let readers = plan.step_readers(step.position..end, virtual_ranks);
    for (position, reader) in (step.position..end).zip(readers).filter(|(_, reader)| own.contains(&reader.0))
    {
        let sample = plan.sample_at(epoch, position);
        let virtual_rank = Some(reader.0);
        let (number, _) = plan.locate_sample(sample);
        let shard = match shards.get(&number) {
            Some(shard) => *shard,
            None => *shards.entry(number).or_insert(manifest.entry(number.into())?.id),
        };
        found.push(Found { virtual_rank, ..placed(plan, shard, epoch, position, sample) });
    }
    Ok(found)
}

/// Where and when `sample` is read in `epoch`.
///
/// # Errors
/// [`LookupError::NoSuchSample`], [`LookupError::TooFar`].
pub fn find(plan: &Plan, manifest: &ManifestFile, epoch: u32, sample: u64) -> Result<Found, LookupError> {
    if sample >= plan.sample_count() {
        return Err(LookupError::NoSuchSample { sample, samples: plan.sample_count() });
    }
    check_work(plan, epoch, 1)?;
    let (epoch, sample) = (Epoch(epoch), SampleNo(sample));
    let shard = manifest.entry(plan.locate_sample(sample).0.into())?.id;
    Ok(placed(plan, shard, epoch, plan.position_of_sample(epoch, sample), sample))
}

/// Every reading of `sample` in some epochs: one in each.
///
/// # Errors
/// As [`find`], and readers that do not fit the plan.
pub fn uses(
    plan: &Plan,
    manifest: &ManifestFile,
    epochs: Range<u32>,
    sample: u64,
    readers: &Readers,
) -> Result<Vec<Use>, LookupError> {
    let default = || match (readers.global_batch_size, readers.world) {
        (_, None) => None,
        (Some(size), _) => Some(plan.default_virtual_ranks(size)),
        (None, Some(world)) => Some(plan.fewest_virtual_ranks(world)),
    };
    let virtual_ranks = readers.virtual_ranks.or_else(default);
    if let Some(virtual_ranks) = virtual_ranks {
        plan.check_ranks(readers.world.unwrap_or(1), virtual_ranks)?;
    }
    if readers.global_batch_size == Some(0) {
        return Err(LookupError::EmptySteps);
    }
    check_work(plan, epochs.end.saturating_sub(1), u64::from(epochs.end.saturating_sub(epochs.start)))?;
    let reading = |epoch| {
        let mut found = find(plan, manifest, epoch, sample)?;
        let step = readers.global_batch_size.map(|size| found.position / size);
        let v = virtual_ranks.map(|of| match readers.global_batch_size {
            Some(size) => {
                let start = found.position - found.position % size;
                plan.step_reader(start..start.saturating_add(size), found.position, of).0
            }
            None => plan.virtual_rank_of(Partition(found.partition), of).0,
        });
        found.virtual_rank = v;
        let rank = v.zip(virtual_ranks).zip(readers.world);
        Ok(Use { found, step, rank: rank.map(|((v, of), world)| rank_of(v, world, of)) })
    };
    epochs.map(reading).collect()
}

/// The rank whose share of the virtual ranks has `virtual_rank`: the last that begins no later.
///
/// ```
/// use shardd_api::lookup::rank_of;
///
/// // Three ranks share eight virtual ranks: 0 and 1, 2 to 4, 5 to 7.
/// assert_eq!([0, 1, 2, 4, 5, 7].map(|virtual_rank| rank_of(virtual_rank, 3, 8)), [0, 0, 1, 1, 2, 2]);
/// ```
///
/// # Panics
/// If `virtual_rank` is not below `virtual_ranks`, or there is no rank.
pub fn rank_of(virtual_rank: u32, world: u32, virtual_ranks: u32) -> u32 {
    let before = (u64::from(virtual_rank) + 1) * u64::from(world) - 1;
    u32::try_from(before / u64::from(virtual_ranks)).expect("less than the world")
}

/// Where a sample is in each of some epochs, and its path from there.
///
/// # Errors
/// As [`find`].
pub fn journey(
    plan: &Plan,
    manifest: &ManifestFile,
    epochs: Range<u32>,
    sample: u64,
) -> Result<Vec<Stop>, LookupError> {
    let stop = |epoch: u32| {
        let found = find(plan, manifest, epoch, sample)?;
        let (grain, _) = plan.grain_of(SampleNo(sample));
        let GrainHome::Slot(partition, slot) = plan.partition_of_grain_at(Epoch(epoch), grain) else {
            return Ok(Stop { found, leaves: None });
        };
        let exchange = plan.exchange(Epoch(epoch));
        let leaves = (0..plan.document().chunks).find_map(|chunk| {
            let moved = exchange.sends(chunk, partition).find(|step| step.from.1 == slot)?;
            Some(Leave { to: moved.to.0.0, chunk, due: plan.chunk_due(chunk) })
        });
        Ok(Stop { found, leaves: leaves.filter(|leave| leave.to != partition.0) })
    };
    epochs.map(stop).collect()
}

fn placed(plan: &Plan, shard: ShardId, epoch: Epoch, position: u64, sample: SampleNo) -> Found {
    let (partition, _) = plan.at_position(position);
    let (grain, _) = plan.grain_of(sample);
    let (_, row) = plan.locate_sample(sample);
    Found {
        epoch: epoch.0,
        position,
        partition: partition.0,
        virtual_rank: None,
        sample: sample.0,
        grain: grain.0,
        shard,
        row,
    }
}

/// The virtual ranks whose share is asked for.
fn own(step: &Step, virtual_ranks: u32) -> Result<Range<u32>, LookupError> {
    match step.rank {
        None => Ok(0..virtual_ranks),
        Some(rank) if rank >= step.world => Err(LookupError::RankOutside { rank, world: step.world }),
        Some(rank) => Ok(Plan::virtual_ranks_of(rank, step.world, virtual_ranks)),
    }
}

/// Following a grain to `epoch` takes a step for every time it was moved, at most one an epoch.
fn check_work(plan: &Plan, epoch: u32, positions: u64) -> Result<(), LookupError> {
    let share = u128::from(plan.document().schedule.largest().units());
    let moves = ((u128::from(epoch) * share) >> 32) + 1;
    if epoch > MAX_EPOCH || moves * u128::from(positions) > MOST_WORK / 100 {
        return Err(LookupError::TooFar { epoch, positions });
    }
    Ok(())
}

/// Refuses an epoch whose table of grains would take too long to work out.
///
/// # Errors
/// [`LookupError::TooFar`].
pub fn check_table(plan: &Plan, epoch: u32) -> Result<(), LookupError> {
    let share = u128::from(plan.document().schedule.largest().units());
    let moves = (u128::from(epoch) * share * u128::from(plan.full_grain_count())) >> 32;
    if epoch > MAX_EPOCH || moves > MOST_WORK {
        return Err(LookupError::TooFar { epoch, positions: plan.sample_count() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use shardd_plan::{PlanDocument, PlanOptions, Shape, SlotTable};
    use shardfmt::manifest::ManifestBytes;
    use shardfmt::{Manifest, ShardWriter};

    use super::*;

    /// A manifest in memory.
    struct Whole(Vec<u8>);

    impl ManifestBytes for Whole {
        fn whole(&self) -> std::io::Result<Vec<u8>> {
            Ok(self.0.clone())
        }

        fn part(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
            Ok(self.0[range.start as usize..range.end as usize].to_vec())
        }

        fn tree(&self, _: Range<u64>) -> std::io::Result<Vec<u8>> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }

    /// A version of three shards and a plan over it.
    fn planned() -> (Plan, ManifestFile) {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
        let entries = (0..3i64).map(|number| {
            let column = Int64Array::from_iter_values(number * 100..number * 100 + 90 + number);
            let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(column)]).unwrap();
            let mut writer = ShardWriter::new(schema.clone()).unwrap();
            writer.push(&batch).unwrap();
            writer.finish().unwrap().entry
        });
        let manifest = Manifest::new(schema.clone(), entries.collect(), serde_json::json!({}));
        let bytes = manifest.encode();
        let version = shardfmt::VersionId::of(&bytes);
        let shard_rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
        let shape = Shape { shard_rows: shard_rows.clone(), row_bytes: manifest.row_bytes() };
        let options = PlanOptions { partitions: Some(6), grain_rows: Some(4), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(version, &shape, options).unwrap();
        (Plan::new(document, &shard_rows).unwrap(), ManifestFile::open(version, Whole(bytes)).unwrap())
    }

    fn step(epoch: u32, position: u64, global_batch_size: u64) -> Step {
        Step { epoch, position, global_batch_size, rank: None, world: 2, virtual_ranks: Some(6) }
    }

    #[test]
    fn what_is_found_is_what_ranks_read_and_each_sample_is_found_where_it_is() {
        let (plan, manifest) = planned();
        for epoch in [0, 1, 7] {
            let table = SlotTable::at(&plan, Epoch(epoch));
            let reads = plan.step_reads(&table, 50..90, 0..6);
            let found = at(&plan, &manifest, &step(epoch, 50, 40)).unwrap();
            let read: Vec<_> =
                reads.iter().map(|read| (read.position, read.partition.0, read.grain.0)).collect();
            let told: Vec<_> = found.iter().map(|one| (one.position, one.partition, one.grain)).collect();
            assert_eq!(told, read);
            for one in &found {
                let back = find(&plan, &manifest, epoch, one.sample).unwrap();
                assert_eq!(Found { virtual_rank: one.virtual_rank, ..back }, *one);
            }
            let of_rank =
                |rank| at(&plan, &manifest, &Step { rank: Some(rank), ..step(epoch, 50, 40) }).unwrap();
            let mut both = [of_rank(0), of_rank(1)].concat();
            both.sort_by_key(|one| one.position);
            assert_eq!(both, found);
        }
    }

    #[test]
    fn every_use_names_the_step_and_the_rank_that_reads_it() {
        let (plan, manifest) = planned();
        for (world, virtual_ranks) in [(1, 1), (2, 6), (4, 6), (5, 6), (6, 6), (3, 3), (2, 3)] {
            let readers = Readers {
                global_batch_size: Some(40),
                world: Some(world),
                virtual_ranks: Some(virtual_ranks),
            };
            for sample in (0..plan.sample_count()).step_by(11) {
                let uses = uses(&plan, &manifest, 2..6, sample, &readers).unwrap();
                let epochs: Vec<u32> = uses.iter().map(|one| one.found.epoch).collect();
                assert_eq!(epochs, [2, 3, 4, 5]);
                for one in &uses {
                    let asked = Step {
                        rank: one.rank,
                        world,
                        virtual_ranks: Some(virtual_ranks),
                        ..step(one.found.epoch, one.step.unwrap() * 40, 40)
                    };
                    assert!(at(&plan, &manifest, &asked).unwrap().contains(&one.found), "{one:?}");
                }
            }
        }
        let refused = |readers| uses(&plan, &manifest, 0..1, 0, &readers).unwrap_err().to_string();
        let readers = Readers { world: Some(7), virtual_ranks: Some(6), ..Readers::default() };
        assert!(refused(readers).contains('7'));
        assert!(refused(Readers { global_batch_size: Some(0), ..Readers::default() }).contains("at least 1"));
        let all = uses(&plan, &manifest, 0..u32::MAX, 0, &Readers::default()).unwrap_err().to_string();
        assert!(all.contains("earlier epoch"), "{all}");
        assert_eq!(uses(&plan, &manifest, 3..3, 0, &Readers::default()).unwrap(), []);
    }

    #[test]
    fn a_journey_goes_on_where_it_said_it_would() {
        let (plan, manifest) = planned();
        let mut left = 0;
        for sample in (0..plan.sample_count()).step_by(7) {
            let stops = journey(&plan, &manifest, 0..12, sample).unwrap();
            for pair in stops.windows(2) {
                let next = pair[0].leaves.map_or(pair[0].found.partition, |leave| leave.to);
                assert_eq!(pair[1].found.partition, next, "sample {sample} after {}", pair[0].found.epoch);
                left += usize::from(pair[0].leaves.is_some());
            }
        }
        assert!(left > 0, "none ever left");
        assert!(journey(&plan, &manifest, 0..1, 273).is_err());
    }

    #[test]
    fn questions_that_do_not_fit_or_take_too_long_say_so() {
        let (plan, manifest) = planned();
        let refused = |step: &Step| at(&plan, &manifest, step).unwrap_err().to_string();
        assert!(refused(&step(0, 273, 1)).contains("position 273 is outside"));
        assert!(refused(&Step { rank: Some(2), ..step(0, 0, 1) }).contains("rank 2 is not one of 2"));
        assert!(refused(&Step { virtual_ranks: Some(5), ..step(0, 0, 1) }).contains('5'));
        assert!(refused(&step(u32::MAX, 0, 1)).contains("earlier epoch"));
        assert!(refused(&step(1 << 20, 0, 100)).contains("fewer positions"));
        assert!(find(&plan, &manifest, 0, 273).unwrap_err().to_string().contains("no sample 273"));
        assert!(check_table(&plan, u32::MAX).is_err() && check_table(&plan, 100).is_ok());
    }
}
