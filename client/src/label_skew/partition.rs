//! How often each kind of sample is in one partition of a plan, in any epoch: from the manifest's counts, and the shards that the
//! grains of the partition lie in.

use std::collections::BTreeMap;

use shardd_plan::{Epoch, Partition, Plan, Selection};

use super::Origins;

/// The kinds of the samples of a partition.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// use shardd_client::Plan;
/// use shardd_client::label_skew::Origins;
/// use shardd_plan::{Epoch, Partition};
///
/// let plan = Plan::new(plan, &[300])?;
/// let kinds = Origins::shards(vec![300]).in_partition(&plan, Epoch(2), Partition(0), u64::MAX);
/// assert!(kinds.is_exact, "all samples are of the one kind");
/// assert_eq!((kinds.counts[0] as u64, kinds.distance), (kinds.samples, 0.0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionKinds {
    /// All samples of the partition, those without a label included.
    pub samples: u64,
    /// How many samples there are of each kind, in the order of [`Origins::names`].
    pub counts: Vec<f64>,
    /// Whether these are counts: every shard that the partition has samples of lies in it whole, or has samples of one kind only.
    /// Else they are estimates, which take the samples of a grain to be mixed as those of its shard.
    pub is_exact: bool,
    /// Half the sum of the differences between what part of the partition's samples each kind is, and of all samples: 0 if it has the
    /// shares of all samples, nearly 1 if it has a kind of its own.
    pub distance: f64,
}

impl Origins {
    /// The kinds of the samples of a partition in an epoch. At most `looks` of its grains are looked at, evenly over its slots. `plan` is one of the
    /// version whose shards these are.
    pub fn in_partition(
        &self,
        plan: &Plan,
        epoch: Epoch,
        partition: Partition,
        looks: u64,
    ) -> PartitionKinds {
        let (slots, grain_rows) = (plan.slot_count(partition), f64::from(plan.document().grain_rows));
        let stride = slots.div_ceil(looks.max(1)).max(1);
        let each = grain_rows * slots as f64 / slots.div_ceil(stride).max(1) as f64;
        let mut rows = BTreeMap::<u32, f64>::new();
        for slot in (0..slots).step_by(usize::try_from(stride).unwrap_or(usize::MAX)) {
            let grain = plan.locate_grain(plan.grain_in_slot(epoch, partition, slot));
            *rows.entry(grain.shard).or_default() += each;
        }
        for grain in plan.short_grains(partition) {
            let grain = plan.locate_grain(*grain);
            *rows.entry(grain.shard).or_default() += f64::from(grain.rows);
        }
        let mut counts = vec![0.0; self.of_all.len()];
        let mut is_exact = stride == 1;
        for (shard, rows) in rows {
            let (kinds, all) = (&self.of_shard[shard as usize], f64::from(self.shard_rows[shard as usize]));
            let labelled = self.labelled[shard as usize];
            is_exact &= rows == all || kinds.len() <= 1 && (labelled == 0.0 || labelled == all);
            for (kind, share) in kinds {
                counts[*kind as usize] += rows * share * labelled / all;
            }
        }
        if is_exact {
            counts.iter_mut().for_each(|count| *count = count.round());
        }
        let distance = self.distance(&counts);
        PartitionKinds { samples: plan.partition_samples(partition), counts, is_exact, distance }
    }

    /// How far the samples of a partition would be from all, in the mean, had they been drawn at random.
    pub fn distance_of_drawn(&self, plan: &Plan) -> f64 {
        self.floor(plan, plan.document().partitions)
    }

    fn distance(&self, counts: &[f64]) -> f64 {
        let all: f64 = counts.iter().sum();
        if all <= 0.0 {
            return 0.0;
        }
        let apart = |(count, of_all): (&f64, &f64)| (count / all - of_all).abs();
        0.5 * counts.iter().zip(&self.of_all).map(apart).sum::<f64>()
    }
}

/// How many times [`Origins::in_partition`] follows a grain back, for each grain that it looks at.
pub fn hops(plan: &Plan, epoch: Epoch) -> u64 {
    let epochs = u64::from(epoch.0);
    let document = plan.document();
    match document.selection {
        Selection::Cyclic => 1 + ((epochs * document.schedule.largest().units()) >> 32),
        Selection::Independent => 1 + epochs,
    }
}

#[cfg(test)]
mod tests {
    use shardd_plan::{PlanDocument, PlanOptions, Shape, SlotTable};
    use shardfmt::VersionId;
    use shardfmt::manifest::Labels;

    use super::*;

    fn plan(shard_rows: &[u32], partitions: u32) -> Plan {
        let shape = Shape { shard_rows: shard_rows.to_vec(), row_bytes: 8_000_000 };
        let options =
            PlanOptions { partitions: Some(partitions), grain_rows: Some(8), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId::of(b"labels"), &shape, options).expect("fits");
        Plan::new(document, shard_rows).expect("fits")
    }

    fn of(labels: &[(u32, &[(&str, u64)])]) -> Origins {
        let labels: Vec<(u32, Labels)> = labels
            .iter()
            .map(|(rows, labels)| {
                (*rows, labels.iter().map(|(label, count)| ((*label).into(), *count)).collect())
            })
            .collect();
        Origins::labels(labels.iter().map(|(rows, labels)| (*rows, Some(labels)))).expect("labels")
    }

    #[test]
    fn shards_of_one_label_are_counted_exactly_after_any_exchange() {
        // 403 rows: the last grain of a shard is short.
        let rows = [403; 10];
        let names: Vec<String> = (0..5).map(|label| label.to_string()).collect();
        let labels: Vec<(u32, Vec<(&str, u64)>)> =
            (0..10).map(|shard| (403, vec![(names[shard / 2].as_str(), 403)])).collect();
        let labels: Vec<(u32, &[(&str, u64)])> =
            labels.iter().map(|(rows, labels)| (*rows, labels.as_slice())).collect();
        let (plan, origins) = (plan(&rows, 4), of(&labels));
        for epoch in [0, 1, 7] {
            let table = SlotTable::at(&plan, Epoch(epoch));
            for partition in plan.partitions() {
                let mut counted = vec![0.0; 5];
                for grain in table.grains_of(&plan, partition) {
                    let place = plan.locate_grain(grain);
                    counted[place.shard as usize / 2] += f64::from(place.rows);
                }
                let found = origins.in_partition(&plan, Epoch(epoch), partition, u64::MAX);
                assert_eq!((found.counts, found.is_exact), (counted, true), "epoch {epoch}, {partition}");
            }
        }
        let distance = |epoch| {
            let of = |partition| origins.in_partition(&plan, Epoch(epoch), partition, u64::MAX).distance;
            plan.partitions().map(of).sum::<f64>() / 4.0
        };
        assert!(distance(0) > 0.55 && distance(20) < 0.3, "{} {}", distance(0), distance(20));
        assert!(origins.distance_of_drawn(&plan) < 0.1);
    }

    #[test]
    fn counts_are_exact_where_shards_are_whole_and_estimates_elsewhere() {
        // Of the third shard ten rows have no label.
        let shard = |a: u64, b: u64| vec![("a", a), ("b", b)];
        let (even, odd) = (shard(300, 100), shard(90, 300));
        let labels: Vec<(u32, &[(&str, u64)])> = vec![(400, &even), (400, &even), (400, &odd), (400, &odd)];
        let (plan, origins) = (plan(&[400; 4], 2), of(&labels));
        assert_eq!(origins.names().iter().map(AsRef::as_ref).collect::<Vec<_>>(), ["a", "b"]);
        let first = origins.in_partition(&plan, Epoch(0), Partition(0), u64::MAX);
        assert_eq!(
            (first.counts.as_slice(), first.is_exact, first.samples),
            (&[600.0, 200.0][..], true, 800)
        );
        let second = origins.in_partition(&plan, Epoch(0), Partition(1), u64::MAX);
        assert_eq!((second.counts.as_slice(), second.is_exact), (&[180.0, 600.0][..], true));
        let later = origins.in_partition(&plan, Epoch(3), Partition(0), u64::MAX);
        assert!(!later.is_exact && later.distance < first.distance, "{later:?}");
        assert!(later.counts.iter().sum::<f64>() < 800.0, "ten rows of some shards have no label: {later:?}");
        // Some of its grains stand for all.
        let looked = origins.in_partition(&plan, Epoch(0), Partition(0), 10);
        assert_eq!((looked.counts.iter().sum::<f64>().round(), looked.is_exact), (800.0, false));
    }
}
