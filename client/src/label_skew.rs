//! How evenly labels, or the shards that samples come from, are spread over the parts of a plan before the first exchange:
//! computed from the manifest's counts, without reading a sample. Within a shard labels are taken to be mixed, unless the rows
//! of the dataset are in the order of the input: then they are taken to be sorted.

mod partition;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use shardd_plan::{Epoch, InitialPlacement, Partition, Plan, Schedule, VirtualRank};
use shardfmt::Manifest;
use shardfmt::manifest::Labels;

pub use partition::{PartitionKinds, hops};

/// Slots of a stratified plan that are counted; of more, one in every few.
const MOST_LOOKED_AT: u64 = 1 << 22;
/// Counts of labels that all shards together may have where no setting asks for the count: 30 ms.
const MOST_COUNTS: usize = 1 << 18;
/// Where a virtual rank's micro-batches have less than this part of the classes that they would have of all samples, batch
/// normalisation is at risk.
const FEW: f64 = 0.67;

/// The groups of samples, and how often each shard has them.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::Plan;
/// use shardd_client::label_skew::Origins;
///
/// let plan = Plan::new(plan, &[300])?;
/// let spread = Origins::shards(vec![300]).spread(&plan, 3, 16);
/// assert_eq!((spread.kinds, spread.virtual_ranks), (1, 3));
/// assert_eq!(spread.begins_with, 1.0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Origins {
    by: OriginsBy,
    shard_rows: Vec<u32>,
    /// Of each shard, which kinds of samples it has, and what part of its samples each is.
    of_shard: Vec<Vec<(u32, f64)>>,
    /// How many samples of each shard have a label.
    labelled: Vec<f64>,
    /// The labels, by the numbers of their kinds.
    names: Vec<Arc<str>>,
    /// The part of each kind in all samples.
    of_all: Vec<f64>,
    /// Whether the kinds of a shard lie one after the other.
    sorted: bool,
}

/// Grains of a shard in a partition.
struct Part {
    shard: u32,
    grains: u64,
    /// Where in the shard they begin and end, from 0 to 1, if they lie side by side.
    stretch: Option<[f64; 2]>,
}

/// The kind of group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OriginsBy {
    /// The labels of a classification.
    Label,
    /// The shards that samples lie in: where labels are not known.
    Shard,
}

/// How a plan begins, in the mean over virtual ranks.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_client::label_skew::Origins;
/// use shardd_client::{Plan, PlanDocument, PlanOptions, Shape, VersionId};
///
/// // Of ten shards, a virtual rank begins with few.
/// let shape = Shape { shard_rows: vec![100; 10], row_bytes: 1_000 * 784 };
/// let options = PlanOptions { partitions: Some(8), ..PlanOptions::default() };
/// let document = PlanDocument::with_defaults(VersionId::of(b"a manifest"), &shape, options)?;
/// let plan = Plan::new(document, &shape.shard_rows)?;
/// let spread = Origins::shards(shape.shard_rows).spread(&plan, 8, 32);
/// assert!(spread.begins_with < 4.0);
/// assert!(spread.in_micro_batch < spread.in_micro_batch_of_all);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The kind of group.
    pub by: OriginsBy,
    /// How many kinds there are.
    pub kinds: usize,
    /// Half the sum of the differences between what part of a virtual rank's samples each kind is, and of all samples: 0 if
    /// all virtual ranks begin alike, nearly 1 if each has a kind of its own.
    pub distance: f64,
    /// The same for samples that were drawn at random.
    pub floor: f64,
    /// How many kinds a virtual rank begins with.
    pub begins_with: f64,
    /// How many kinds are to be expected in its first micro-batches...
    pub in_micro_batch: f64,
    /// ...and in as many of all samples.
    pub in_micro_batch_of_all: f64,
    /// Samples in a micro-batch.
    pub micro_batch: u32,
    /// How many virtual ranks there are.
    pub virtual_ranks: u32,
}

impl Origins {
    /// The labels of shards, given their rows and what the manifest says of their labels; `None` where it does not.
    pub fn labels<'l>(shards: impl IntoIterator<Item = (u32, Option<&'l Labels>)>) -> Option<Self> {
        let mut numbers = BTreeMap::<Arc<str>, u32>::new();
        let (mut shard_rows, mut of_shard, mut labelled) = (vec![], vec![], vec![]);
        let (mut counts, mut names) = (vec![], vec![]);
        for (rows, labels) in shards {
            let labels = labels?;
            let all: u64 = labels.values().sum();
            let share = |(label, count): (&Arc<str>, &u64)| {
                let next = numbers.len() as u32;
                let number = *numbers.entry(Arc::clone(label)).or_insert(next);
                if number == next {
                    counts.push(0.0);
                    names.push(Arc::clone(label));
                }
                counts[number as usize] += *count as f64;
                (number, *count as f64 / all as f64)
            };
            of_shard.push(labels.iter().filter(|(_, count)| **count > 0).map(share).collect());
            shard_rows.push(rows);
            labelled.push(all as f64);
        }
        let all: f64 = counts.iter().sum();
        let of_all = counts.into_iter().map(|count: f64| count / all).collect();
        let by = OriginsBy::Label;
        (all > 0.0).then_some(Origins { by, shard_rows, of_shard, labelled, names, of_all, sorted: false })
    }

    /// The labels, in the order in which they are counted; none where shards stand for labels.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The part of each label in all samples that have one, in that order.
    pub fn shares_of_all(&self) -> &[f64] {
        &self.of_all
    }

    /// The same for rows in the order of the input, by the configuration of the ingest: the labels of a shard are then taken to be
    /// sorted, the worst that its counts allow.
    #[must_use]
    pub fn ordered_by(self, config: &serde_json::Value) -> Self {
        Origins { sorted: config["mix"] == "sequential", ..self }
    }

    /// Whether the labels of a shard are taken to be sorted, not mixed.
    pub fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// The labels of a version, if the manifest knows them and looking at them takes no time that anyone would notice.
    pub fn at_once(manifest: &Manifest) -> Option<Self> {
        let shards = &manifest.shards;
        let counts: usize = shards.iter().map(|shard| shard.labels.as_ref().map_or(0, BTreeMap::len)).sum();
        if shards.len() > MOST_COUNTS || counts > MOST_COUNTS {
            return None;
        }
        let labels = Origins::labels(shards.iter().map(|shard| (shard.rows, shard.labels.as_ref())))?;
        Some(labels.ordered_by(&manifest.config))
    }

    /// The shards themselves.
    pub fn shards(shard_rows: Vec<u32>) -> Self {
        let all: u64 = shard_rows.iter().map(|rows| u64::from(*rows)).sum();
        let of_all = shard_rows.iter().map(|rows| f64::from(*rows) / all.max(1) as f64).collect();
        let of_shard = (0..shard_rows.len() as u32).map(|shard| vec![(shard, 1.0)]).collect();
        let labelled = shard_rows.iter().map(|rows| f64::from(*rows)).collect();
        Origins { by: OriginsBy::Shard, shard_rows, of_shard, labelled, names: vec![], of_all, sorted: false }
    }

    /// How `virtual_ranks` virtual ranks begin that take `micro_batch` samples at a time: with as many as there are
    /// partitions, the worst case. `plan` is one of the version whose shards these are.
    pub fn spread(&self, plan: &Plan, virtual_ranks: u32, micro_batch: u32) -> Spread {
        let document = plan.document();
        let virtual_ranks = virtual_ranks.clamp(1, document.partitions);
        let expected = |share: f64| 1.0 - (1.0 - share).powf(f64::from(micro_batch));
        let kinds = self.of_all.len();
        let in_micro_batch_of_all = self.of_all.iter().map(|share| expected(*share)).sum();
        let drawn = Spread {
            by: self.by,
            kinds,
            distance: 0.0,
            floor: self.floor(plan, virtual_ranks),
            begins_with: kinds as f64,
            in_micro_batch: in_micro_batch_of_all,
            in_micro_batch_of_all,
            micro_batch,
            virtual_ranks,
        };
        if document.placement == InitialPlacement::Random && document.strata.is_none() {
            return drawn;
        }
        let (mut distance, mut begins_with, mut in_micro_batch) = (0.0, 0.0, 0.0);
        for v in (0..virtual_ranks).map(VirtualRank) {
            let parts = plan.partitions_of(v, virtual_ranks).map(Partition);
            let shares = self.shares(parts.map(|partition| self.begins_with(plan, partition)));
            let nearer = |(kind, share): (&u32, &f64)| {
                let of_all = self.of_all[*kind as usize];
                (share - of_all).abs() - of_all
            };
            distance += 0.5 * (1.0 + shares.iter().map(nearer).sum::<f64>()).max(0.0);
            begins_with += shares.len() as f64;
            in_micro_batch += shares.values().map(|share| expected(*share)).sum::<f64>();
        }
        let parts = f64::from(virtual_ranks);
        Spread {
            distance: distance / parts,
            begins_with: begins_with / parts,
            in_micro_batch: in_micro_batch / parts,
            ..drawn
        }
    }

    /// The distance of this number of samples drawn at random, grain by grain, from all.
    fn floor(&self, plan: &Plan, virtual_ranks: u32) -> f64 {
        let all = plan.full_grain_count() as f64;
        let some = all / f64::from(virtual_ranks);
        let drawn = ((all - some) / (all - 1.0).max(1.0)).sqrt();
        let deviation = |share: &f64| (2.0 * share * (1.0 - share) / (std::f64::consts::PI * some)).sqrt();
        0.5 * drawn * self.of_all.iter().map(deviation).sum::<f64>()
    }

    /// Which shards the grains of a partition lie in, and how many in each.
    fn begins_with(&self, plan: &Plan, partition: Partition) -> Vec<Part> {
        let (document, slots) = (plan.document(), plan.slot_count(partition));
        let grain = |slot| plan.locate_grain(plan.grain_in_slot(Epoch(0), partition, slot));
        match (document.placement, &document.strata) {
            (InitialPlacement::Shards, None) => {
                let (first, last) = (grain(0), grain(slots - 1));
                let of_shard = |shard| {
                    let from = if shard == first.shard { first.index } else { 0 };
                    let full = self.shard_rows[shard as usize] / document.grain_rows;
                    let until = if shard == last.shard { last.index + 1 } else { full };
                    let place = |grain: u32| f64::from(grain) / f64::from(full.max(1));
                    let stretch = Some([place(from), place(until)]);
                    (from < until).then(|| Part { shard, grains: u64::from(until - from), stretch })
                };
                (first.shard..=last.shard).filter_map(of_shard).collect()
            }
            _ => {
                let stride = plan.full_grain_count().div_ceil(MOST_LOOKED_AT) as usize;
                let mut found = BTreeMap::<u32, u64>::new();
                for slot in (0..slots).step_by(stride) {
                    *found.entry(grain(slot).shard).or_default() += 1;
                }
                let part = |(shard, grains)| Part { shard, grains, stretch: None };
                found.into_iter().map(part).collect()
            }
        }
    }

    /// The part of each kind in some partitions' samples.
    fn shares(&self, parts: impl Iterator<Item = Vec<Part>>) -> BTreeMap<u32, f64> {
        let (mut shares, mut all) = (BTreeMap::<u32, f64>::new(), 0.0);
        for Part { shard, grains, stretch } in parts.flatten() {
            let kinds = &self.of_shard[shard as usize];
            all += if kinds.is_empty() { 0.0 } else { grains as f64 };
            let mut end = 0.0;
            for (kind, share) in kinds {
                let begin = end;
                end += share;
                let count = match stretch.filter(|_| self.sorted) {
                    Some([from, until]) => (until.min(end) - from.max(begin)).max(0.0) / (until - from),
                    None => *share,
                };
                if count > 0.0 {
                    *shares.entry(*kind).or_default() += count * grains as f64;
                }
            }
        }
        shares.values_mut().for_each(|share| *share /= all);
        shares
    }
}

impl Spread {
    /// Whether batch normalisation in each virtual rank by itself will see far fewer classes at a time than there are.
    pub fn risks_batch_norm(&self) -> bool {
        self.by == OriginsBy::Label && self.in_micro_batch < FEW * self.in_micro_batch_of_all
    }

    /// The same in one line, with the ways out, for a plan with this schedule.
    pub fn batch_norm_risk(&self, schedule: &Schedule) -> Option<String> {
        let tenth = "0.1".parse().expect("a share");
        let more = if schedule.largest() < tenth { "a plan with --q 0.1 or more, " } else { "" };
        self.risks_batch_norm().then(|| {
            format!(
                "a micro-batch of {} samples begins with {:.1} of {} classes instead of {:.1}: with batch normalisation in each \
                 of {} virtual ranks by itself, take {more}fewer virtual ranks, synchronised statistics, or a plan made with \
                 --stratify label or --placement random (`shardctl plan advise` gives the price of each)",
                self.micro_batch, self.in_micro_batch, self.kinds, self.in_micro_batch_of_all, self.virtual_ranks
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use shardd_plan::{PlanDocument, PlanOptions, SampleNo, Shape, SlotTable, Strata};
    use shardfmt::VersionId;

    use super::*;

    /// Ten classes of 800 samples one after the other, in 20 shards.
    fn sorted() -> (Vec<u32>, Origins) {
        let labels: Vec<Labels> =
            (0..20_u64).map(|shard| [(format!("{}", shard / 2).into(), 400)].into_iter().collect()).collect();
        let origins = Origins::labels(labels.iter().map(|labels| (400, Some(labels)))).expect("labels");
        (vec![400; 20], origins)
    }

    fn plan(shard_rows: &[u32], options: PlanOptions) -> Plan {
        let shape = Shape { shard_rows: shard_rows.to_vec(), row_bytes: 8_000_000 };
        let document = PlanDocument::with_defaults(VersionId::of(b"sorted"), &shape, options).expect("fits");
        Plan::new(document, shard_rows).expect("fits")
    }

    fn counted(plan: &Plan, virtual_ranks: u32) -> f64 {
        let table = SlotTable::initial(plan);
        let distances = (0..virtual_ranks).map(|v| {
            let mut counts = [0.0; 10];
            for partition in plan.partitions_of(VirtualRank(v), virtual_ranks).map(Partition) {
                for grain in table.grains_of(plan, partition) {
                    counts[(plan.sample(grain, 0).0 / 800) as usize] += 1.0;
                }
            }
            let all: f64 = counts.iter().sum();
            0.5 * counts.iter().map(|count| (count / all - 0.1).abs()).sum::<f64>()
        });
        distances.sum::<f64>() / f64::from(virtual_ranks)
    }

    #[test]
    fn the_spread_of_sorted_labels_is_that_which_the_slots_have() {
        let (rows, origins) = sorted();
        for (partitions, virtual_ranks) in [(16, 16), (16, 4), (16, 1), (3, 3), (7, 7), (48, 12)] {
            let plan = plan(&rows, PlanOptions { partitions: Some(partitions), ..PlanOptions::default() });
            let spread = origins.spread(&plan, virtual_ranks, 32);
            let counted = counted(&plan, virtual_ranks);
            assert!((spread.distance - counted).abs() < 0.01, "{partitions}: {spread:?}, counted {counted}");
        }
    }

    /// Ten classes of 800 samples one after the other, in 5 shards of 1,600.
    #[test]
    fn the_spread_of_labels_that_are_sorted_within_shards_is_that_which_the_slots_have() {
        let of_two = |shard: u64| [2 * shard, 2 * shard + 1].map(|class| (class.to_string().into(), 800));
        let labels: Vec<Labels> = (0..5).map(|shard| of_two(shard).into_iter().collect()).collect();
        let labels = || Origins::labels(labels.iter().map(|labels| (1600, Some(labels)))).expect("labels");
        let (rows, mixed) = (vec![1600; 5], labels());
        let sorted = labels().ordered_by(&serde_json::json!({ "mix": "sequential" }));
        assert!(
            sorted.is_sorted() && !mixed.ordered_by(&serde_json::json!({ "mix": "shuffled" })).is_sorted()
        );
        for (partitions, virtual_ranks) in [(16, 16), (16, 4), (7, 7), (48, 12)] {
            let plan = plan(&rows, PlanOptions { partitions: Some(partitions), ..PlanOptions::default() });
            let (spread, counted) = (sorted.spread(&plan, virtual_ranks, 32), counted(&plan, virtual_ranks));
            assert!((spread.distance - counted).abs() < 0.01, "{partitions}: {spread:?}, counted {counted}");
        }
        let plan = plan(&rows, PlanOptions { partitions: Some(16), ..PlanOptions::default() });
        assert!(
            labels().spread(&plan, 16, 32).distance < counted(&plan, 16) - 0.05,
            "mixed labels are more even"
        );
    }

    #[test]
    fn few_classes_in_a_virtual_rank_are_a_risk_and_many_are_none() {
        let (rows, origins) = sorted();
        let options = |partitions| PlanOptions { partitions: Some(partitions), ..PlanOptions::default() };
        let worst = origins.spread(&plan(&rows, options(16)), 16, 32);
        assert!(worst.risks_batch_norm() && worst.begins_with < 2.1 && worst.distance > 0.8, "{worst:?}");
        assert!(worst.in_micro_batch_of_all > 9.5);
        let said = |q: &str| worst.batch_norm_risk(&q.parse().expect("a schedule")).expect("it is a risk");
        assert!(
            said("0.01").contains("16 virtual ranks by itself, take a plan with --q 0.1"),
            "{}",
            said("0.01")
        );
        assert!(!said("0.1").contains("--q"), "{}", said("0.1"));
        assert!(!origins.spread(&plan(&rows, options(16)), 1, 32).risks_batch_norm());
        let random = PlanOptions { placement: InitialPlacement::Random, ..options(16) };
        assert!(!origins.spread(&plan(&rows, random), 16, 32).risks_batch_norm());
        let names = (0..10).map(|class| class.to_string()).collect();
        let of_sample: Vec<u16> = (0..8000).map(|sample| sample / 800).collect();
        let strata = Arc::new(Strata::new("label", names, &of_sample).expect("labels are strata"));
        assert_eq!(strata.of(SampleNo(801)), 1);
        let stratified = PlanOptions { strata: Some(strata), ..options(16) };
        let even = origins.spread(&plan(&rows, stratified), 16, 32);
        assert!(!even.risks_batch_norm() && even.distance < 0.01, "{even:?}");
        let shards = Origins::shards(rows.clone()).spread(&plan(&rows, options(16)), 16, 32);
        assert!(!shards.risks_batch_norm() && shards.distance > 0.9, "{shards:?}");
        assert!(Origins::labels([(5, None)]).is_none());
    }
}
