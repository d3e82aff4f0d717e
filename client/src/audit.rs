//! Whether ranks read what their plan says: the counts and digest sums that they reported, against the manifest.
//!
//! A report is a count and a sum, so it does not say which samples it is of; but only few sets of them make sense, and
//! of those it is found out. Pure but for [`row_digests`], which reads sidecars.

use std::collections::BTreeMap;

use serde::Serialize;
use shardd_api::protocol::AuditReport;
use shardd_plan::{Epoch, Plan, SampleNo, SlotTable, VirtualRank};
use shardd_store::catalog::{Catalog, CatalogError};
use shardfmt::{DigestSum, ManifestError, ManifestFile, RowDigest};

/// How many shards of a manifest are looked at together.
const SHARDS: u64 = 1024;

/// Why the digests of a version cannot be had.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[expect(missing_docs, reason = "each has its kind")]
pub enum DigestsError {
    Manifest(#[from] ManifestError),
    Catalog(#[from] CatalogError),
}

/// The digests of all rows of a version by the numbers of its samples, from the sidecars of its shards and verified against the
/// manifest. Takes 16 bytes for each.
///
/// # Errors
/// A sidecar that is gone or damaged, a store that cannot be asked.
pub fn row_digests(catalog: &dyn Catalog, manifest: &ManifestFile) -> Result<Vec<RowDigest>, DigestsError> {
    let shards = manifest.totals().shards;
    let mut digests = Vec::new();
    for start in (0..shards).step_by(SHARDS as usize) {
        for entry in manifest.entries(start..shards.min(start + SHARDS))? {
            digests.extend(catalog.sidecar(&entry)?.rows);
        }
    }
    Ok(digests)
}

/// The result of the check of one rank's report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankFinding {
    /// The rank.
    pub rank: u32,
    /// Of how many.
    pub world: u32,
    /// How many samples it reported; `None` without a report.
    pub samples: Option<u64>,
    /// How many are its share.
    pub share: u64,
    /// The verdict.
    #[serde(flatten)]
    pub finding: Finding,
}

/// The verdict on a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    /// Its share of the epoch, each sample once.
    Exact,
    /// Its share of the positions from one on and before another, each sample once: it began or stopped within the epoch.
    Part {
        /// The position of the first.
        from: u64,
        /// The position after the last.
        to: u64,
    },
    /// There is no report.
    Silent,
    /// Its share, and a sample more.
    OneMore {
        /// The sample that came again, or was another's.
        sample: u64,
    },
    /// All of its share but a sample.
    OneLess {
        /// The sample that was left out.
        sample: u64,
    },
    /// Other samples than its share, but with what the other ranks read each sample once: steps were of several sizes, or began
    /// elsewhere than the epoch.
    Together,
    /// Something else: samples were left out, came again, or had other bytes.
    Other,
}

/// The result of the check of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EpochFinding {
    /// The epoch.
    pub epoch: u32,
    /// Whether the ranks of one world together read each sample exactly once, and nothing speaks against it.
    pub exactly_once: bool,
    /// All ranks of every world of which one reported, by world and rank.
    pub ranks: Vec<RankFinding>,
}

/// Compares the reports of ranks on the epoch of `table` with their expected reads. `rows` are the digests of
/// all samples by their numbers; reports of other epochs are passed over.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_api::protocol::AuditReport;
/// use shardd_client::audit::{Finding, compare};
/// use shardd_client::{Catalog, LocalCatalog, Plan};
/// use shardd_plan::{Epoch, SlotTable};
///
/// let catalog = LocalCatalog::open(store.path())?;
/// let rows = shardd_client::audit::row_digests(&catalog, &catalog.open_manifest(plan.version)?)?;
/// let plan = Plan::new(plan, &[300])?;
/// let table = SlotTable::at(&plan, Epoch(1));
///
/// // The only rank reports all samples but one.
/// let digest_sum = rows[1..].iter().copied().sum();
/// let (rank, world, epoch, samples) = (0, 1, 1, 299);
/// let report = AuditReport { rank, world, epoch, samples, digest_sum, global_batch_size: Some(32) };
/// let found = compare(&plan, &table, &rows, 3, &[report]);
/// assert!(!found.exactly_once);
/// assert_eq!(found.ranks[0].finding, Finding::OneLess { sample: 0 });
/// # Ok(())
/// # }
/// ```
pub fn compare(
    plan: &Plan,
    table: &SlotTable,
    rows: &[RowDigest],
    virtual_ranks: u32,
    reports: &[AuditReport],
) -> EpochFinding {
    let Epoch(epoch) = table.epoch();
    let mut worlds: BTreeMap<u32, BTreeMap<u32, &AuditReport>> = BTreeMap::new();
    for report in reports.iter().filter(|report| report.epoch == epoch) {
        worlds.entry(report.world).or_default().insert(report.rank, report);
    }
    let mut shares = Shares::new(plan, table, virtual_ranks);
    let mut ranks = Vec::new();
    let (mut complete, mut wrong) = (false, false);
    for (world, reports) in worlds {
        let last = reports.last_key_value().map_or(0, |(rank, _)| rank.saturating_add(1));
        let fits = (1..=virtual_ranks).contains(&world) && last <= world;
        let is_whole = fits && reports.len() == world as usize && is_each_sample_once(&reports, rows);
        let step_of_others = reports.values().find_map(|report| report.global_batch_size);
        // Reports come from outside: there are no more of them than virtual ranks.
        let audits = (0..world.max(last).min(virtual_ranks)).map(|rank| {
            let report = reports.get(&rank).copied();
            let share =
                shares.of(rank, world, report.map_or(step_of_others, |report| report.global_batch_size));
            let finding = report.map_or(Finding::Silent, |report| judge(plan, rows, &share, report));
            let finding = if is_whole && finding != Finding::Exact { Finding::Together } else { finding };
            let samples = report.map(|report| report.samples);
            RankFinding { rank, world, samples, share: share.len() as u64, finding }
        });
        let first = ranks.len();
        ranks.extend(audits);
        complete |= is_whole;
        wrong |= ranks[first..].iter().any(|audit: &RankFinding| {
            matches!(audit.finding, Finding::OneMore { .. } | Finding::OneLess { .. } | Finding::Other)
        });
    }
    EpochFinding { epoch, exactly_once: complete && !wrong, ranks }
}

/// Whether all that was reported is what there is.
fn is_each_sample_once(reports: &BTreeMap<u32, &AuditReport>, rows: &[RowDigest]) -> bool {
    let samples = reports.values().try_fold(0_u64, |sum, report| sum.checked_add(report.samples));
    let sum: DigestSum = reports.values().map(|report| report.digest_sum).sum();
    samples == Some(rows.len() as u64) && sum == rows.iter().copied().sum()
}

/// Who reads what of an epoch.
struct Shares<'a> {
    plan: &'a Plan,
    virtual_ranks: u32,
    /// The samples of the epoch, by position.
    samples: Vec<SampleNo>,
    /// The virtual rank that reads each of them, by the size of a step.
    readers: BTreeMap<Option<u64>, Vec<VirtualRank>>,
}

impl<'a> Shares<'a> {
    fn new(plan: &'a Plan, table: &SlotTable, virtual_ranks: u32) -> Self {
        let reads = plan.step_reads(table, 0..plan.sample_count(), 0..plan.document().partitions);
        let samples = reads.iter().map(|read| plan.sample(read.grain, read.row)).collect();
        Shares { plan, virtual_ranks, samples, readers: BTreeMap::new() }
    }

    /// The reads of a rank in steps of this size, as positions and samples, by position; as its partitions
    /// have it, if no size is known, as ranks of earlier releases read.
    fn of(&mut self, rank: u32, world: u32, step: Option<u64>) -> Vec<(u64, SampleNo)> {
        let (plan, virtual_ranks) = (self.plan, self.virtual_ranks);
        let own = Plan::virtual_ranks_of(rank, world, virtual_ranks);
        let readers = self.readers.entry(step).or_insert_with(|| {
            let positions = 0..plan.sample_count();
            let Some(step) = step else {
                let owner = |position| plan.virtual_rank_of(plan.at_position(position).0, virtual_ranks);
                return positions.map(owner).collect();
            };
            let starts = positions.step_by(usize::try_from(step.max(1)).unwrap_or(usize::MAX));
            starts
                .flat_map(|start| plan.step_readers(start..start.saturating_add(step.max(1)), virtual_ranks))
                .collect()
        });
        let all = (0..).zip(&self.samples).zip(readers);
        all.filter(|(_, reader)| own.contains(&reader.0)).map(|((at, sample), _)| (at, *sample)).collect()
    }
}

fn judge(plan: &Plan, rows: &[RowDigest], share: &[(u64, SampleNo)], report: &AuditReport) -> Finding {
    let digest = |at: usize| DigestSum::from(rows[share[at].1.0 as usize]);
    let all: DigestSum = (0..share.len()).map(digest).sum();
    let length = share.len() as u64;
    if report.samples == length && report.digest_sum == all {
        return Finding::Exact;
    }
    if report.samples < length {
        let taken = report.samples as usize;
        let mut sum: DigestSum = (0..taken).map(digest).sum();
        for first in 0..=share.len() - taken {
            if sum == report.digest_sum {
                let position =
                    |at: usize| share.get(at).map_or(plan.sample_count(), |(position, _)| *position);
                return Finding::Part { from: position(first), to: position(first + taken) };
            }
            if first + taken < share.len() {
                sum = difference(sum + digest(first + taken), digest(first));
            }
        }
    }
    let of_sum = |sum: DigestSum| rows.iter().position(|row| DigestSum::from(*row) == sum);
    if Some(report.samples) == length.checked_add(1)
        && let Some(sample) = of_sum(difference(report.digest_sum, all))
    {
        return Finding::OneMore { sample: sample as u64 };
    }
    if report.samples.checked_add(1) == Some(length)
        && let Some(sample) = of_sum(difference(all, report.digest_sum))
    {
        return Finding::OneLess { sample: sample as u64 };
    }
    Finding::Other
}

fn difference(whole: DigestSum, part: DigestSum) -> DigestSum {
    DigestSum(whole.0.wrapping_sub(part.0))
}

#[cfg(test)]
mod tests {
    use shardd_plan::{PlanDocument, PlanOptions, Shape};
    use shardfmt::VersionId;

    use super::*;

    const V: u32 = 4;
    const STEP: u64 = 22;

    fn planned() -> (Plan, Vec<RowDigest>) {
        let shape = Shape { shard_rows: vec![90, 91], row_bytes: 8 };
        let options = PlanOptions { partitions: Some(8), grain_rows: Some(2), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId::of(b"v"), &shape, options).unwrap();
        let rows = (0..181u64).map(|sample| RowDigest::of(&sample.to_le_bytes())).collect();
        (Plan::new(document, &shape.shard_rows).unwrap(), rows)
    }

    fn reported(table: &SlotTable, rank: u32, world: u32, samples: &[SampleNo]) -> AuditReport {
        let rows = planned().1;
        let digest_sum = samples.iter().map(|sample| rows[sample.0 as usize]).sum();
        let (epoch, samples) = (table.epoch().0, samples.len() as u64);
        AuditReport { rank, world, epoch, samples, digest_sum, global_batch_size: Some(STEP) }
    }

    #[test]
    fn what_each_rank_reported_is_told_for_what_it_is() {
        let (plan, rows) = planned();
        let table = SlotTable::at(&plan, Epoch(2));
        let share = |rank| Shares::new(&plan, &table, V).of(rank, 3, Some(STEP));
        let of_rank = |rank| -> Vec<SampleNo> { share(rank).iter().map(|(_, sample)| *sample).collect() };
        let right: Vec<AuditReport> = (0..3).map(|rank| reported(&table, rank, 3, &of_rank(rank))).collect();
        let audit = compare(&plan, &table, &rows, V, &right);
        assert!(audit.exactly_once && audit.ranks.len() == 3, "{audit:?}");
        let others = right.iter().map(|report| AuditReport { epoch: 1, ..*report });
        assert_eq!(compare(&plan, &table, &rows, V, &others.collect::<Vec<_>>()).ranks, []);

        let own = of_rank(1);
        let foreign = of_rank(0)[5];
        let more = [&own[..], &[foreign]].concat();
        let altered = AuditReport { digest_sum: DigestSum(7), ..right[1] };
        let stories: [(Option<AuditReport>, Finding); 7] = [
            (None, Finding::Silent),
            (Some(reported(&table, 1, 3, &more)), Finding::OneMore { sample: foreign.0 }),
            (
                Some(reported(&table, 1, 3, &[&own[..7], &own[8..]].concat())),
                Finding::OneLess { sample: own[7].0 },
            ),
            (Some(altered), Finding::Other),
            (Some(reported(&table, 1, 3, &own[10..])), Finding::Part { from: share(1)[10].0, to: 181 }),
            (
                Some(reported(&table, 1, 3, &own[..20])),
                Finding::Part { from: share(1)[0].0, to: share(1)[20].0 },
            ),
            (Some(AuditReport { samples: u64::MAX, ..altered }), Finding::Other),
        ];
        for (report, finding) in stories {
            let reports: Vec<AuditReport> = [right[0], right[2]].into_iter().chain(report).collect();
            let audit = compare(&plan, &table, &rows, V, &reports);
            assert_eq!(audit.ranks[1].finding, finding);
            assert!(!audit.exactly_once, "{finding:?}");
        }
    }

    #[test]
    fn shares_follow_the_steps_and_ranks_of_earlier_releases_their_partitions() {
        let (plan, rows) = planned();
        let table = SlotTable::at(&plan, Epoch(3));
        let read = |step| {
            let mut shares = Shares::new(&plan, &table, V);
            let of_rank =
                |rank| shares.of(rank, 2, step).iter().map(|(_, sample)| *sample).collect::<Vec<_>>();
            [0, 1].map(of_rank)
        };
        assert_ne!(read(None), read(Some(STEP)), "the last rounds are of partitions of one rank");
        let report = |step: Option<u64>, said: Option<u64>| {
            let all = read(step);
            let rank = |rank: usize| reported(&table, rank as u32, 2, &all[rank]);
            [0, 1].map(|number| AuditReport { global_batch_size: said, ..rank(number) })
        };
        let findings = |reports: &[AuditReport]| {
            let audit = compare(&plan, &table, &rows, V, reports);
            assert!(audit.exactly_once, "{audit:?}");
            audit.ranks.iter().map(|rank| rank.finding).collect::<Vec<_>>()
        };
        for step in [None, Some(STEP), Some(64), Some(u64::MAX)] {
            assert_eq!(findings(&report(step, step)), [Finding::Exact; 2]);
        }
        assert_eq!(findings(&report(None, Some(STEP))), [Finding::Together; 2]);
    }

    #[test]
    fn ranks_that_cannot_be_are_no_proof_of_anything_and_cost_nothing() {
        let (plan, rows) = planned();
        let table = SlotTable::initial(&plan);
        for (rank, world) in [(0, 0), (0, u32::MAX), (u32::MAX, 1), (4, 2), (7, 9)] {
            let everything: Vec<SampleNo> = (0..181).map(SampleNo).collect();
            let audit = compare(&plan, &table, &rows, V, &[reported(&table, rank, world, &everything)]);
            assert!(!audit.exactly_once && audit.ranks.len() <= V as usize, "{audit:?}");
        }
        let alone: Vec<SampleNo> = (0..181).map(SampleNo).collect();
        assert!(compare(&plan, &table, &rows, V, &[reported(&table, 0, 1, &alone)]).exactly_once);
    }
}
