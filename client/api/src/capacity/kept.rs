//! Which of the grains that a node hosts its cache keeps, where it has no room for all of them. Pure.
//!
//! In every epoch each row is read once, in an order that has nothing to do with the order of the epoch
//! before. So a cache saves the store at most the bytes that it holds at the beginning of an epoch, under any
//! eviction: of `n` bytes in a cache of `c`, `n - c` are read from the store, at best. A fixed set of grains
//! reaches exactly that, without a write. Grains outside of the set are read past the cache, row by row, each
//! row once in an epoch.
//!
//! All nodes go by the same order of grains, so that a grain which moves from one node to another is kept there, too.

use std::cmp::Ordering;

use shardd_plan::{GrainNo, Plan};

/// Of this number of grains of a shard that follow each other, the first are kept: together they are a range
/// worth a request, and so are those that are not. Small beside a partition, so that all partitions have
/// about as many firsts.
const STRIPE: u32 = 16;

/// Which grains are kept by the nodes that host them, and whether one of these nodes keeps all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Of the node that asks: there is no room for some of its partitions.
    is_short: bool,
    /// The rest of its cache, for grains on their way, in bytes.
    pub spare_bytes: u64,
    /// `None`: all are.
    grains: Option<Grains>,
}

/// A set of grains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Grains(Vec<u64>);

/// The border up to which a node keeps its hosted grains.
struct Border {
    /// The first place in a stripe of which it does not keep all grains...
    in_stripe: usize,
    /// ...and the bytes that it has for some of them.
    left: u64,
    there: Vec<(u64, GrainNo)>,
}

impl Kept {
    /// Of the grains that each host hosts, those that its room is for, `None` being room for all: by the bytes that each grain
    /// rests in. `own` is the host that asks.
    #[must_use]
    pub fn of(
        plan: &Plan,
        host: impl Fn(GrainNo) -> usize,
        rooms: &[Option<u64>],
        resting: impl Fn(GrainNo) -> u64,
        own: Option<usize>,
    ) -> Self {
        if rooms.iter().all(Option::is_none) {
            return Self::default();
        }
        let all = || (0..plan.grain_count()).map(GrainNo);
        let mut bytes = vec![[0_u64; STRIPE as usize]; rooms.len()];
        for grain in all() {
            bytes[host(grain)][Turn::of(plan, grain).in_stripe] += resting(grain);
        }
        let mut borders: Vec<Border> =
            rooms.iter().zip(&bytes).map(|(room, bytes)| Border::of(*room, bytes)).collect();
        let mut grains = Grains::default();
        for grain in all() {
            let (border, turn) = (&mut borders[host(grain)], Turn::of(plan, grain));
            match turn.in_stripe.cmp(&border.in_stripe) {
                Ordering::Less => grains.insert(grain),
                Ordering::Equal => border.there.push((turn.lot, grain)),
                Ordering::Greater => {}
            }
        }
        for Border { mut left, mut there, .. } in borders {
            there.sort_unstable();
            for (_, grain) in there {
                let Some(rest) = left.checked_sub(resting(grain)) else { break };
                left = rest;
                grains.insert(grain);
            }
        }
        let is_short = own.and_then(|own| rooms[own]).is_some();
        Self { is_short, spare_bytes: 0, grains: Some(grains) }
    }

    /// The same, of a node whose cache has a number of bytes beside its kept grains.
    #[must_use]
    pub fn with_spare(self, spare_bytes: u64) -> Self {
        Self { spare_bytes, ..self }
    }

    /// Whether a grain is kept by its host.
    #[must_use]
    pub fn has(&self, grain: GrainNo) -> bool {
        self.grains.as_ref().is_none_or(|grains| grains.has(grain))
    }

    /// Whether the node that asks has no room for some of its partitions.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }
}

impl Border {
    /// With a number of bytes at each place in a stripe.
    fn of(room: Option<u64>, bytes: &[u64]) -> Self {
        let mut left = room.unwrap_or(u64::MAX);
        for (in_stripe, bytes) in bytes.iter().enumerate() {
            match left.checked_sub(*bytes) {
                Some(rest) => left = rest,
                None => return Self { in_stripe, left, there: Vec::new() },
            }
        }
        Self { in_stripe: bytes.len(), left, there: Vec::new() }
    }
}

impl Grains {
    fn insert(&mut self, grain: GrainNo) {
        let (word, bit) = place(grain);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn has(&self, grain: GrainNo) -> bool {
        let (word, bit) = place(grain);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

fn place(grain: GrainNo) -> (usize, u64) {
    let word = usize::try_from(grain.0 / 64).expect("grain numbers fit in memory");
    (word, 1 << (grain.0 % 64))
}

/// When a grain is taken: first the first of every stripe, then the second, and of those one before the other by lot, so that it
/// matters little what of a shard a node hosts.
struct Turn {
    in_stripe: usize,
    lot: u64,
}

impl Turn {
    fn of(plan: &Plan, grain: GrainNo) -> Self {
        let place = plan.locate_grain(grain);
        let stripe = u64::from(place.shard) << 32 | u64::from(place.index / STRIPE);
        Self { in_stripe: (place.index % STRIPE) as usize, lot: lot(stripe) }
    }
}

/// A number that is as good as drawn (the last steps of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014). Nothing that is read depends on it.
fn lot(stripe: u64) -> u64 {
    let mixed = stripe.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use shardd_plan::{Epoch, PlanDocument, PlanOptions, Shape, SlotTable};
    use shardfmt::VersionId;

    use super::*;

    /// A plan of as many shards as it takes, each of other many rows.
    fn plan(shards: u32, rows: u32, grain_rows: u32, q: &str) -> Plan {
        let shard_rows: Vec<u32> = (0..shards).map(|shard| rows + shard).collect();
        let shape = Shape { shard_rows, row_bytes: 1000 };
        let options = PlanOptions {
            q: q.parse().expect("a share"),
            partitions: Some(12),
            grain_rows: Some(grain_rows),
            ..PlanOptions::default()
        };
        let document = PlanDocument::with_defaults(VersionId::of(b"some"), &shape, options).expect("a plan");
        Plan::new(document, &shape.shard_rows).expect("a plan")
    }

    /// The grains that each of `nodes` keeps in an epoch, which host as many partitions each, in caches for a
    /// number of rows.
    fn kept(plan: &Plan, epoch: u32, nodes: u32, rows: u64) -> Vec<BTreeSet<GrainNo>> {
        let table = SlotTable::at(plan, Epoch(epoch));
        let mut hosts = vec![0; plan.grain_count() as usize];
        for partition in plan.partitions() {
            for grain in table.grains_of(plan, partition) {
                hosts[grain.0 as usize] = (partition.0 % nodes) as usize;
            }
        }
        let host = |grain: GrainNo| hosts[grain.0 as usize];
        let resting = |grain| u64::from(plan.locate_grain(grain).rows);
        let kept = Kept::of(plan, host, &vec![Some(rows); nodes as usize], resting, Some(0));
        assert!(kept.is_short());
        let of_node = |node| {
            (0..plan.grain_count())
                .map(GrainNo)
                .filter(|grain| host(*grain) == node && kept.has(*grain))
                .collect()
        };
        (0..nodes as usize).map(of_node).collect()
    }

    fn rows_of(plan: &Plan, grains: &BTreeSet<GrainNo>) -> u64 {
        grains.iter().map(|grain| u64::from(plan.locate_grain(*grain).rows)).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

        #[test]
        fn a_cache_is_filled_to_a_grain_and_never_more(
            shards in 2..8u32, rows in 100..600u32, log_rows in 0..4u32, nodes in prop_oneof![Just(1u32), Just(3)], part in 0..100u64,
        ) {
            let plan = plan(shards, rows, 1 << log_rows, "0.1");
            let room = plan.sample_count() * part / 100 / u64::from(nodes);
            for kept in kept(&plan, 2, nodes, room) {
                let rows = rows_of(&plan, &kept);
                let most = plan.sample_count() / u64::from(nodes);
                prop_assert!(rows <= room && rows + (1 << log_rows) > room.min(most - most / 20), "{} of {}", rows, room);
            }
        }

        /// Of what one epoch leaves in the caches, the next one reads; whatever else there is, it reads from the store.
        #[test]
        fn no_epoch_reads_more_than_all_and_hardly_more_than_the_caches_cannot_hold(
            q in prop_oneof![Just("0.1"), Just("0.3"), Just("1")], nodes in prop_oneof![Just(1u32), Just(3)],
            part in prop_oneof![Just(30u64), Just(40), Just(60), Just(80)], epoch in 0..5u32,
        ) {
            let plan = plan(12, 1000, 4, q);
            let room = plan.sample_count() * part / 100 / u64::from(nodes);
            let (before, now) = (kept(&plan, epoch, nodes, room), kept(&plan, epoch + 1, nodes, room));
            let before: BTreeSet<GrainNo> = before.into_iter().flatten().collect();
            let now: BTreeSet<GrainNo> = now.into_iter().flatten().collect();
            // Rows still kept, on any node, are not read from the store.
            let spared = rows_of(&plan, &before.intersection(&now).copied().collect());
            let read = plan.sample_count() - spared;
            let at_best = plan.sample_count() - room * u64::from(nodes);
            prop_assert!(read <= plan.sample_count());
            prop_assert!(read as f64 <= 1.1 * at_best as f64, "{} of {} at best", read, at_best);
        }
    }
}
