//! What each virtual rank of a rank reads of the order that is followed, step by step.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use shardd_plan::{Epoch, Plan, Read, SampleNo, SourceNo, deal};

use super::order::{Order, SourceRead, Turn};
use super::source::Reads;
use super::span::Part;
use super::tables::Tables;

/// The reads of the virtual ranks of one rank.
pub(crate) struct Shares {
    order: Order,
    virtual_ranks: u32,
    own: Range<u32>,
    /// Of each source.
    tables: Vec<Tables>,
}

impl Shares {
    /// Those of `rank`. Slot tables are kept in `cache_dir`, if there is one.
    pub(crate) fn new(
        order: Order,
        rank: u32,
        world: u32,
        virtual_ranks: u32,
        cache_dir: Option<PathBuf>,
    ) -> Self {
        let own = Plan::virtual_ranks_of(rank, world, virtual_ranks);
        let tables =
            order.plans.iter().map(|plan| Tables::new(Arc::clone(plan), cache_dir.clone())).collect();
        Self { order, virtual_ranks, own, tables }
    }

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    pub(crate) fn own(&self) -> Range<u32> {
        self.own.clone()
    }

    /// The reads of each of them in each part of a step, by position. Steps are asked for from first to last.
    pub(crate) fn of_step(&mut self, parts: &[Part]) -> Vec<Reads> {
        match parts {
            [part] if self.order.mixture.is_none() && self.order.shuffle => vec![self.planned(part)],
            parts => self.dealt(parts),
        }
    }

    /// How many of a step's reads are of partitions that other ranks own: what equal shares cost in locality.
    pub(crate) fn surplus(&self, parts: &[Reads]) -> u64 {
        if !self.order.shuffle {
            return 0;
        }
        let is_of_others = |of: &&SourceRead| {
            let owner = self.order.plan(of.source).virtual_rank_of(of.read.partition, self.virtual_ranks);
            !self.own.contains(&owner.0)
        };
        parts.iter().flatten().flatten().filter(is_of_others).count() as u64
    }

    /// Their shares of one stretch of a plan's order.
    fn planned(&mut self, part: &Part) -> Reads {
        let plan = &self.order.plans[0];
        let table = self.tables[0].of(Epoch(part.epoch));
        let shares = plan.step_shares(table, part.positions.clone(), self.virtual_ranks, self.own.clone());
        let of = |reads: Vec<Read>| reads.into_iter().map(|read| SourceRead { source: SourceNo(0), read });
        shares.into_iter().map(|reads| of(reads).collect()).collect()
    }

    /// Their shares of several stretches, wherever these meet, dealt as one step.
    fn dealt(&mut self, parts: &[Part]) -> Vec<Reads> {
        let turns: Vec<Vec<Turn>> = parts.iter().map(|part| self.order.turns(part)).collect();
        let owners: Vec<u32> =
            turns.iter().flatten().map(|turn| self.order.owner(turn, self.virtual_ranks)).collect();
        let mut readers = deal(&owners, self.virtual_ranks).into_iter();
        let mut of = |(turns, part): (Vec<Turn>, &Part)| {
            let mut reads: Reads = vec![Vec::new(); self.own.len()];
            for ((turn, position), reader) in turns.iter().zip(part.positions.clone()).zip(&mut readers) {
                if self.own.contains(&reader) {
                    let read = Read { position, ..self.read(turn) };
                    reads[(reader - self.own.start) as usize].push(SourceRead { source: turn.source, read });
                }
            }
            reads
        };
        turns.into_iter().zip(parts).map(&mut of).collect()
    }

    fn read(&mut self, turn: &Turn) -> Read {
        let plan = self.order.plan(turn.source);
        let tables = &mut self.tables[turn.source.0 as usize];
        let number = match tables.epoch() {
            _ if !self.order.shuffle => SampleNo(turn.position),
            // A step that is filled up reads once more what its epoch began with, few samples of a source's earlier epoch.
            Some(epoch) if epoch > turn.epoch => plan.sample_at(turn.epoch, turn.position),
            _ => return plan.read(tables.of(turn.epoch), turn.position),
        };
        let (grain, row) = plan.grain_of(number);
        Read { position: turn.position, partition: plan.at_position(turn.position).0, grain, row }
    }
}

/// How many samples of a step of one stretch each of `virtual_ranks` reads.
pub(crate) fn share_sizes(order: &Order, part: &Part, virtual_ranks: u32) -> Vec<u64> {
    let owners: Vec<u32> = order.turns(part).iter().map(|turn| order.owner(turn, virtual_ranks)).collect();
    let mut sizes = vec![0; virtual_ranks as usize];
    for reader in deal(&owners, virtual_ranks) {
        sizes[reader as usize] += 1;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_plan::{
        Mixture, MixtureDocument, MixturePhase, MixtureSource, PlanDocument, PlanOptions, Shape, Take,
    };
    use shardfmt::VersionId;

    use super::super::{BatchSize, LastBatch, Spans, Steps};
    use super::*;

    fn plan(seed: u64, samples: u32, partitions: u32) -> Arc<Plan> {
        let shape = Shape { shard_rows: vec![samples.div_ceil(2), samples / 2], row_bytes: 1 << 30 };
        let partitions = Some(partitions.min(samples));
        let q = "0.7".parse().expect("a share");
        let options = PlanOptions { q, seed, partitions, grain_rows: Some(1), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(VersionId::of(b"order laws"), &shape, options);
        let document = document.expect("the strategy makes fitting plans");
        Arc::new(Plan::new(document, &shape.shard_rows).expect("the strategy makes fitting plans"))
    }

    /// Of relative sources, those that are chosen are left out from a position on, all but the first.
    fn mixture(
        sources: Vec<(u32, u32, u64, bool)>,
        relative: bool,
        shuffle: bool,
        change: Option<u64>,
    ) -> Order {
        let (mut plans, mut described, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, (samples, partitions, amount, chosen)) in (0..).zip(sources) {
            let plan = plan(seed, samples, partitions);
            let times = |amount: u64| u32::try_from(amount).expect("small").into();
            let take = match (relative, chosen) {
                (true, _) => Take::Proportion(times(amount)),
                (false, true) => Take::Choose(amount),
                (false, false) => Take::Repeat(times(1 + amount % 3)),
            };
            described.push(MixtureSource { plan: plan.id(), samples: samples.into(), take });
            if relative {
                later.push(times(if chosen && seed > 0 { 0 } else { amount }));
            }
            plans.push(plan);
        }
        let phase = |from| MixturePhase { from, proportions: later };
        let phases = change.filter(|_| relative).map(phase).into_iter().collect();
        let document = MixtureDocument::with_phases(described, None, phases);
        let document = document.expect("the strategy makes mixtures");
        let mixture = Mixture::new(document).expect("it was checked");
        Order::of_mixture(mixture, plans, shuffle).expect("these are its plans")
    }

    fn orders() -> impl Strategy<Value = Order> {
        let source = (1..60_u32, 1..9_u32, 1..100_u64, any::<bool>());
        let sources = prop::collection::vec(source, 1..6);
        prop_oneof![
            3 => (sources, any::<bool>(), any::<bool>(), prop::option::of(1..200_u64))
                .prop_map(|(sources, relative, shuffle, change)| mixture(sources, relative, shuffle, change)),
            1 => (1..60_u32, 1..9_u32, any::<bool>()).prop_map(|(samples, partitions, shuffle)| {
                Order::of_plan(plan(9, samples, partitions), shuffle)
            }),
        ]
    }

    /// The sample read at a position, from the documents alone.
    fn told(order: &Order, epoch: u32, position: u64) -> (SourceNo, u64, u32) {
        let (source, epoch, at) = match &order.mixture {
            None => (SourceNo(0), Epoch(epoch), position),
            Some(mixture) => {
                let epoch = if order.shuffle { u64::from(epoch) } else { 0 };
                let read = mixture.at(epoch * mixture.epoch_size() + position);
                let (epoch, at) = mixture.in_plan(read.source, read.nth);
                (read.source, epoch, at)
            }
        };
        let plan = order.plan(source);
        let sample = if order.shuffle { plan.sample_at(epoch, at) } else { SampleNo(at) };
        let (grain, row) = plan.grain_of(sample);
        (source, grain.0, row)
    }

    const POLICIES: [LastBatch; 4] = [LastBatch::Short, LastBatch::Drop, LastBatch::Wrap, LastBatch::Carry];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

        #[test]
        fn every_step_is_read_once_by_all_ranks_together_whoever_they_are(
            order in orders(), v in 1..9_u32, world in any::<u32>(), global_batch in 1..150_u64,
            policy in 0..4_usize, start in any::<prop::sample::Index>(),
        ) {
            let virtual_ranks = order.default_virtual_ranks(BatchSize::MicroBatch(1), v);
            let world = 1 + world % virtual_ranks;
            prop_assert!(order.check_ranks(world, virtual_ranks).is_ok());
            let steps = Steps { sample_count: order.sample_count(), global_batch, last_batch: POLICIES[policy] };
            let spans = Spans { steps, end_epoch: 3 };
            let mut ranks: Vec<Shares> =
                (0..world).map(|rank| Shares::new(order.clone(), rank, world, virtual_ranks, None)).collect();
            let start = start.index(order.sample_count() as usize) as u64;
            for span in spans.from(1, start).take(40) {
                let read: Vec<Vec<Reads>> = ranks.iter_mut().map(|rank| rank.of_step(&span.parts)).collect();
                for (number, part) in span.parts.iter().enumerate() {
                    let mut all: Vec<&SourceRead> = read.iter().flat_map(|reads| reads[number].iter().flatten()).collect();
                    for reads in read.iter().flat_map(|reads| &reads[number]) {
                        prop_assert!(reads.is_sorted_by_key(|read| read.read.position));
                    }
                    all.sort_by_key(|read| read.read.position);
                    prop_assert_eq!(all.len() as u64, part.samples());
                    for (position, read) in part.positions.clone().zip(all) {
                        let found = (read.source, read.read.grain.0, read.read.row);
                        prop_assert_eq!((read.read.position, found), (position, told(&order, part.epoch, position)));
                    }
                }
                // Shares are equal up to one.
                let shares = read.iter().flat_map(|parts| {
                    (0..parts[0].len()).map(|at| parts.iter().map(|reads| reads[at].len() as u64).sum::<u64>())
                });
                let (n, of) = (span.samples(), u64::from(virtual_ranks));
                let shares: Vec<u64> = shares.collect();
                if let [part] = &span.parts[..] {
                    prop_assert_eq!(&shares, &share_sizes(&order, part, virtual_ranks));
                }
                prop_assert_eq!((shares.len() as u64, shares.iter().sum::<u64>()), (of, n));
                prop_assert!(shares.iter().all(|share| (n / of..=n.div_ceil(of)).contains(share)), "{:?}", shares);
                // One rank owns all, and none owns unshuffled samples.
                if world == 1 || !order.shuffle {
                    prop_assert!(ranks.iter().zip(&read).all(|(rank, parts)| rank.surplus(parts) == 0));
                }
                // Each reads of one stretch the samples that the mixture deals.
                if let (Some(mixture), true, [part]) = (&order.mixture, order.shuffle, &span.parts[..]) {
                    let plans: Vec<&Plan> = order.plans.iter().map(Arc::as_ref).collect();
                    let first = u64::from(part.epoch) * mixture.epoch_size();
                    let global = first + part.positions.start..first + part.positions.end;
                    let mut dealt = vec![Vec::new(); virtual_ranks as usize];
                    for (v, read) in mixture.step(&plans, global, virtual_ranks) {
                        dealt[v.0 as usize].push(read.position - first);
                    }
                    let own = read.iter().flat_map(|parts| &parts[0]);
                    let positions = own.map(|reads| reads.iter().map(|read| read.read.position).collect::<Vec<_>>());
                    prop_assert_eq!(positions.collect::<Vec<_>>(), dealt);
                }
            }
        }
    }

    #[test]
    fn a_mixture_is_read_as_long_as_its_positions_can_be_counted() {
        let order = mixture(vec![(50, 4, 1 << 31, true)], false, true, None);
        assert_eq!(order.epochs(), u32::MAX);
        let longest = order.mixture().expect("one").epoch_size();
        assert_eq!(longest, 1 << 31);
        let long = mixture(vec![(50, 4, 1 << 39, true)], false, true, None);
        assert_eq!(u64::from(long.epochs()), u64::MAX >> 39);
    }
}
