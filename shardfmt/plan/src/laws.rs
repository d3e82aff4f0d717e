//! The laws a plan keeps, each tried on thousands of small random versions and documents, a third of them stratified.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::digest::{Digest, VersionId};

/// Random configurations per law: over the twelve that are tried so, 120,000. `SHARDD_PLAN_CASES` asks for more.
const CASES: u32 = 10_000;

fn cases() -> u32 {
    std::env::var("SHARDD_PLAN_CASES")
        .map_or(CASES, |cases| cases.parse().expect("SHARDD_PLAN_CASES is a number"))
}

/// A random version and document that fit each other.
#[derive(Clone, Debug)]
pub(super) struct Config {
    document: PlanDocument,
    shard_rows: Vec<u32>,
}

impl Config {
    pub(super) fn plan(&self) -> Plan {
        Plan::new(self.document.clone(), &self.shard_rows).expect("the strategy makes fitting plans")
    }

    /// The strata of the document; all samples in one, if it has none.
    fn strata(&self) -> Arc<Strata> {
        let loaded =
            self.document.strata.as_ref().map(|strata| strata.get().expect("the strategy keeps them"));
        loaded.cloned().unwrap_or_else(|| {
            let samples: u32 = self.shard_rows.iter().sum();
            strata(1, samples, |_| 0)
        })
    }
}

fn strata(count: u16, samples: u32, of_sample: impl Fn(u32) -> u16) -> Arc<Strata> {
    let names = (0..count).map(|stratum| format!("stratum {stratum}")).collect();
    let of_sample: Vec<u16> = (0..samples).map(of_sample).collect();
    Arc::new(Strata::new("law", names, &of_sample).expect("every sample is in one"))
}

fn document(seed: u64) -> PlanDocument {
    PlanDocument {
        format: FORMAT,
        version: VersionId(Digest::of(b"laws")),
        seed,
        schedule: Schedule::default(),
        partitions: 1,
        grain_rows: 1,
        chunks: 1,
        selection: Selection::Cyclic,
        placement: InitialPlacement::Shards,
        order: Order::Samples,
        strata: None,
    }
}

fn shares() -> impl Strategy<Value = Schedule> {
    let share = prop_oneof![
        2 => Just(Share::NONE),
        2 => Just(Share::ALL),
        1 => Just("0.01".parse().unwrap()),
        2 => Just("0.1".parse().unwrap()),
        4 => (0..=1_u64 << 32).prop_map(|units| Share::from_units(units).unwrap()),
    ];
    prop::collection::vec(share, 1..4).prop_map(|shares| shares.try_into().unwrap())
}

pub(super) fn configs() -> impl Strategy<Value = Config> {
    let shape = (0..4_u32, prop::collection::vec(0..40_u32, 1..10), prop_oneof![2 => Just(0), 1 => 1..7_u16]);
    let choices = (any::<bool>(), any::<bool>(), prop_oneof![Just(0), 1..6_u32]);
    (any::<u64>(), shape, shares(), 1..20_u32, 1..6_u32, choices).prop_map(
        |(seed, (log_rows, mut shard_rows, count), schedule, partitions, chunks, (cyclic, shards, block))| {
            let grain_rows = if count == 0 { 1 << log_rows } else { 1 };
            shard_rows[0] += grain_rows;
            let grains: u32 = shard_rows.iter().map(|rows| rows / grain_rows).sum();
            // Strata of all sizes, some of them empty: each is as likely as those after it together.
            let draw = |sample| key::key(seed, key::Tag::Units, 0, sample)[0].leading_ones() as u16 % count;
            let document = PlanDocument {
                schedule,
                partitions: partitions.min(grains),
                grain_rows,
                chunks,
                selection: if cyclic { Selection::Cyclic } else { Selection::Independent },
                placement: if shards { InitialPlacement::Shards } else { InitialPlacement::Random },
                order: if block == 0 { Order::Samples } else { Order::Blocked { slots: block } },
                strata: (count > 0).then(|| strata(count, grains, draw).into()),
                ..document(seed)
            };
            Config { document, shard_rows }
        },
    )
}

fn samples_in_order(plan: &Plan, table: &SlotTable) -> Vec<u64> {
    let read = |position| {
        let read = plan.read(table, position);
        plan.sample(read.grain, read.row).0
    };
    (0..plan.sample_count()).map(read).collect()
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}

fn all_moves(plan: &Plan, epoch: Epoch) -> Vec<Vec<Move>> {
    (0..plan.document().chunks).map(|chunk| plan.moves(epoch, chunk).collect()).collect()
}

/// Of each partition, how many grains it holds of each stratum: of which a grain is by its first sample.
fn held_by_stratum(plan: &Plan, table: &SlotTable, strata: &Strata) -> Vec<Vec<u64>> {
    let of = |m| {
        let mut held = vec![0; strata.names().len()];
        for slot in 0..plan.slot_count(m) {
            held[usize::from(strata.of(plan.sample(table.grain(plan, m, slot), 0)))] += 1;
        }
        held
    };
    plan.partitions().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    /// Law 1.
    #[test]
    fn every_grain_is_in_one_place_and_every_sample_is_read_once(config in configs(), epochs in 0..5_u32) {
        let plan = config.plan();
        let table = SlotTable::at(&plan, Epoch(epochs));
        let held = sorted(plan.partitions().flat_map(|m| table.grains_of(&plan, m).collect::<Vec<_>>()));
        prop_assert_eq!(held, (0..plan.grain_count()).map(GrainNo).collect::<Vec<_>>());
        prop_assert_eq!(sorted(samples_in_order(&plan, &table)), (0..plan.sample_count()).collect::<Vec<_>>());
    }

    /// Law 2.
    #[test]
    fn every_partition_sends_as_many_as_it_receives(config in configs(), epoch in 0..40_u32) {
        let (plan, epoch, strata) = (config.plan(), Epoch(epoch), config.strata());
        let held = held_by_stratum(&plan, &SlotTable::initial(&plan), &strata);
        let mut exchanged: BTreeMap<Partition, u64> = BTreeMap::new();
        let mut left = Vec::new();
        for (chunk, moves) in (0..).zip(all_moves(&plan, epoch)) {
            prop_assert_eq!(moves.len() as u64, plan.exchange(epoch).grain_count(chunk));
            prop_assert_eq!(sorted(moves.iter().map(|m| m.from)), sorted(moves.iter().map(|m| m.to)));
            for m in moves {
                *exchanged.entry(m.from.0).or_default() += 1;
                left.push(m.from);
            }
        }
        for m in plan.partitions() {
            let count = exchanged.get(&m).copied().unwrap_or(0);
            prop_assert_eq!(count, plan.exchange_count(epoch, m));
            // As many as the schedule says by then, to the grain: the running total never drifts.
            let total: u128 = (0..=epoch.0).map(|e| u128::from(plan.exchange_count(Epoch(e), m))).sum();
            let shares: u128 = (0..=epoch.0).map(|e| u128::from(config.document.schedule.after(Epoch(e)).units())).sum();
            let expected = |(stratum, held): (u64, &u64)| {
                (u128::from(*held) * shares + u128::from(stratum * 0x9E37_79B9 % (1 << 32))) >> 32
            };
            prop_assert_eq!(total, (0..).zip(&held[m.0 as usize]).map(expected).sum::<u128>());
        }
        let slots = left.len();
        left.sort();
        left.dedup();
        prop_assert_eq!(left.len(), slots, "a slot moved twice in an epoch");
        prop_assert_eq!(plan.exchange(epoch).is_empty(), slots == 0);
        prop_assert_eq!(plan.moves(epoch, config.document.chunks).count(), 0);
    }

    /// Law 3.
    #[test]
    fn the_parts_of_the_partitions_make_the_whole(config in configs(), epoch in 0..40_u32) {
        let (plan, epoch) = (config.plan(), Epoch(epoch));
        for (chunk, moves) in (0..).zip(all_moves(&plan, epoch)) {
            let mut sends = vec![];
            for m in plan.partitions() {
                let own: Vec<Move> = plan.sends(epoch, chunk, m).collect();
                prop_assert!(own.iter().all(|sent| sent.from.0 == m));
                prop_assert!(own.is_sorted_by_key(|sent| sent.entry));
                sends.extend(own);
            }
            sends.sort_by_key(|m| m.entry);
            prop_assert_eq!(&sends, &moves);
            let mut receives = vec![];
            for m in plan.partitions() {
                for received in plan.receives(epoch, chunk, m) {
                    prop_assert_eq!(received.to.0, m);
                    receives.push(received);
                }
            }
            receives.sort_by_key(|m| m.entry);
            prop_assert_eq!(&receives, &moves);
        }
        let due: Vec<u64> = (0..=config.document.chunks).map(|chunk| plan.chunk_due(chunk)).collect();
        prop_assert!(due[0] == 0 && due.is_sorted() && due[due.len() - 1] * 10 <= plan.sample_count() * 9);
    }

    /// Law 4.
    #[test]
    fn lookups_agree_with_the_materialised_state(config in configs(), epoch in 0..8_u32, from in 0..5_usize) {
        let (plan, epoch) = (config.plan(), Epoch(epoch));
        let table = SlotTable::at(&plan, epoch);
        for m in plan.partitions() {
            for slot in 0..plan.slot_count(m) {
                let grain = table.grain(&plan, m, slot);
                prop_assert_eq!(plan.grain_in_slot(epoch, m, slot), grain);
                prop_assert_eq!(plan.partition_of_grain_at(epoch, grain), GrainHome::Slot(m, slot));
            }
            for grain in plan.short_grains(m) {
                prop_assert_eq!(plan.partition_of_grain_at(epoch, *grain), GrainHome::Short(m));
            }
        }
        for (position, sample) in (0..).zip(samples_in_order(&plan, &table)).skip(from).step_by(5) {
            prop_assert_eq!(plan.sample_at(epoch, position), SampleNo(sample));
            prop_assert_eq!(plan.position_of_sample(epoch, SampleNo(sample)), position);
            let (m, j) = plan.at_position(position);
            prop_assert_eq!(plan.position_of(m, j), position);
        }
    }

    /// Law 5, first half.
    #[test]
    fn without_exchange_no_grain_ever_moves(config in configs(), epoch in 0..1000_u32) {
        let document = PlanDocument { schedule: Schedule::constant(Share::NONE), ..config.document };
        let plan = Plan::new(document, &config.shard_rows).unwrap();
        prop_assert!(plan.exchange(Epoch(epoch)).is_empty());
        prop_assert!(all_moves(&plan, Epoch(epoch)).iter().all(Vec::is_empty));
        let grain = plan.grain_in_slot(Epoch(epoch), Partition(0), 0);
        prop_assert_eq!(grain, SlotTable::initial(&plan).grain(&plan, Partition(0), 0));
        prop_assert_eq!(plan.departure(Partition(0), 0, Epoch(0)), None);
    }

    /// Law 7, within one build; `golden` has the rest.
    #[test]
    fn a_document_read_back_gives_the_same_plan(config in configs(), epoch in 0..4_u32) {
        let plan = config.plan();
        let mut again = PlanDocument::from_bytes(&config.document.to_bytes()).unwrap();
        prop_assert_eq!(again.id(), plan.id());
        if again.strata.is_some() {
            let missing = Plan::new(again.clone(), &config.shard_rows).unwrap_err();
            prop_assert!(missing.to_string().contains("not read with it"));
            again.supply_strata(&config.strata().encode()).unwrap();
        }
        let again = Plan::new(again, &config.shard_rows).unwrap();
        let orders = [&plan, &again].map(|plan| samples_in_order(plan, &SlotTable::at(plan, Epoch(epoch))));
        prop_assert_eq!(&orders[0], &orders[1]);
    }

    /// Law 8.
    #[test]
    fn a_step_reads_the_same_set_for_any_ranks(
        config in configs(), epoch in 0..4_u32, start in 0..400_u64, len in 0..200_u64, v: u32, w: u32,
    ) {
        let plan = config.plan();
        let table = SlotTable::at(&plan, Epoch(epoch));
        let partitions = config.document.partitions;
        let alone = plan.step_reads(&table, start..start + len, 0..partitions);
        let end = plan.sample_count();
        let expected: Vec<Read> = (start.min(end)..(start + len).min(end)).map(|at| plan.read(&table, at)).collect();
        prop_assert_eq!(&alone, &expected);

        let fitting: Vec<u32> = (1..=partitions).filter(|v| partitions % v == 0).collect();
        let virtual_ranks = fitting[v as usize % fitting.len()];
        let world = 1 + w % virtual_ranks;
        prop_assert_eq!(plan.check_ranks(world, virtual_ranks), Ok(()));
        let mut shared = vec![];
        for v in (0..world).flat_map(|rank| Plan::virtual_ranks_of(rank, world, virtual_ranks)) {
            let owned = plan.partitions_of(VirtualRank(v), virtual_ranks);
            prop_assert_eq!(owned.len() as u32, partitions / virtual_ranks);
            for m in owned.clone() {
                prop_assert_eq!(plan.virtual_rank_of(Partition(m), virtual_ranks), VirtualRank(v));
            }
            shared.extend(plan.step_reads(&table, start..start + len, owned));
        }
        shared.sort_by_key(|read| read.position);
        prop_assert_eq!(&shared, &expected);
    }

    /// Law 8.
    #[test]
    fn virtual_ranks_share_every_step_equally(
        config in configs(), epoch in 0..3_u32, start in 0..400_u64, len in 0..200_u64, v in 1..24_u32, w: u32,
    ) {
        let plan = config.plan();
        let (table, step) = (SlotTable::at(&plan, Epoch(epoch)), start..start + len);
        let n = plan.sample_count().min(step.end).saturating_sub(start);
        let (virtual_ranks, world) = (v, 1 + w % v);
        let readers = plan.step_readers(step.clone(), virtual_ranks);
        prop_assert_eq!(readers.len() as u64, n);
        for rank in 0..world {
            let own = Plan::virtual_ranks_of(rank, world, virtual_ranks);
            let shares = plan.step_shares(&table, step.clone(), virtual_ranks, own.clone());
            prop_assert_eq!(shares.len(), own.len());
            for (v, share) in own.zip(shares) {
                let size = share.len() as u64;
                prop_assert!((n / u64::from(virtual_ranks)..=n.div_ceil(virtual_ranks.into())).contains(&size));
                let dealt = (start..).zip(&readers).filter(|(_, reader)| reader.0 == v);
                let dealt: Vec<Read> = dealt.map(|(position, _)| plan.read(&table, position)).collect();
                prop_assert_eq!(share, dealt);
            }
        }
        for (position, reader) in (start..).zip(&readers) {
            prop_assert_eq!(plan.step_reader(step.clone(), position, virtual_ranks), *reader);
        }
    }

    /// Law 9.
    #[test]
    fn every_partition_always_holds_as_many_of_a_stratum(config in configs(), epochs in 0..8_u32) {
        let (plan, strata) = (config.plan(), config.strata());
        let initial = held_by_stratum(&plan, &SlotTable::initial(&plan), &strata);
        let partitions = u64::from(config.document.partitions);
        for (stratum, size) in strata.sizes().into_iter().enumerate() {
            let even = size / partitions..=size.div_ceil(partitions);
            if config.document.grain_rows == 1 {
                prop_assert!(initial.iter().all(|held| even.contains(&held[stratum])));
            }
        }
        let totals = || plan.partitions().map(|m| plan.slot_count(m));
        prop_assert!(totals().max().unwrap() - totals().min().unwrap() <= 1);
        if config.document.strata.is_some() {
            let later = held_by_stratum(&plan, &SlotTable::at(&plan, Epoch(epochs)), &strata);
            prop_assert_eq!(later, initial);
        }
    }

    /// A plan without strata is that of one stratum.
    #[test]
    fn one_stratum_is_as_good_as_none(config in configs(), epoch in 0..6_u32) {
        let samples: u32 = config.shard_rows.iter().sum();
        let plain = PlanDocument { strata: None, grain_rows: 1, ..config.document };
        let one = PlanDocument { strata: Some(strata(1, samples, |_| 0).into()), ..plain.clone() };
        let [plain, one] = [plain, one].map(|document| Plan::new(document, &config.shard_rows).unwrap());
        prop_assert_ne!(plain.id(), one.id());
        prop_assert_eq!(all_moves(&plain, Epoch(epoch)), all_moves(&one, Epoch(epoch)));
        let orders = [&plain, &one].map(|plan| samples_in_order(plan, &SlotTable::at(plan, Epoch(epoch))));
        prop_assert_eq!(&orders[0], &orders[1]);
    }

    /// A departure says exactly when the grain in a slot is exchanged next, and the next move how.
    #[test]
    fn departures_are_the_next_exchange_of_the_slot(config in configs(), from in 0..8_u32) {
        let plan = config.plan();
        let horizon = from + 6;
        let mut next: BTreeMap<(Partition, u64), NextMove> = BTreeMap::new();
        for epoch in (from..horizon).rev().map(Epoch) {
            for (chunk, moves) in (0..).zip(all_moves(&plan, epoch)) {
                next.extend(moves.into_iter().map(|m| (m.from, NextMove { epoch, chunk, to: m.to })));
            }
        }
        for m in plan.partitions() {
            for slot in 0..plan.slot_count(m) {
                let departure = plan.departure(m, slot, Epoch(from));
                match config.document.selection {
                    Selection::Independent => prop_assert_eq!((departure, plan.next_move(m, slot, Epoch(from))), (None, None)),
                    Selection::Cyclic => {
                        let moves = plan.next_move(m, slot, Epoch(from)).filter(|moves| moves.epoch.0 < horizon);
                        prop_assert_eq!(moves, next.get(&(m, slot)).copied());
                        prop_assert_eq!(departure.filter(|at| at.0 < horizon), moves.map(|moves| moves.epoch));
                    }
                }
            }
        }
    }

    /// Short grains belong, in every epoch, to the partition where the last full grain before them began.
    #[test]
    fn short_grains_stay_with_the_full_grain_before_them(config in configs()) {
        let plan = config.plan();
        let table = SlotTable::initial(&plan);
        let mut home = BTreeMap::new();
        for m in plan.partitions() {
            home.extend((0..plan.slot_count(m)).map(|slot| (table.grain(&plan, m, slot), m)));
        }
        let first = *home.values().next().expect("a plan has full grains");
        let mut shorts = 0;
        for m in plan.partitions() {
            prop_assert!(plan.short_grains(m).is_sorted());
            for grain in plan.short_grains(m) {
                let before = home.range(..grain).next_back().map_or(first, |(_, m)| *m);
                prop_assert_eq!(before, m);
                prop_assert!(plan.locate_grain(*grain).rows < config.document.grain_rows);
                shorts += 1;
            }
            let samples: u64 = table.grains_of(&plan, m).map(|grain| u64::from(plan.locate_grain(grain).rows)).sum();
            prop_assert_eq!(samples, plan.partition_samples(m));
        }
        prop_assert_eq!(plan.full_grain_count() + shorts, plan.grain_count());
    }

    /// Grains and samples are numbered shard by shard.
    #[test]
    fn numbers_and_places_agree(config in configs()) {
        let plan = config.plan();
        let (mut sample, mut grain) = (0, 0);
        for (shard, rows) in (0..).zip(&config.shard_rows) {
            for row in 0..*rows {
                prop_assert_eq!(plan.locate_sample(SampleNo(sample)), (shard, row));
                let (number, row_in_grain) = plan.grain_of(SampleNo(sample));
                let place = plan.locate_grain(number);
                prop_assert_eq!(number, plan.grain_no(place.shard, place.index));
                prop_assert_eq!((place.shard, place.index * config.document.grain_rows + row_in_grain), (shard, row));
                prop_assert_eq!(plan.sample(number, row_in_grain), SampleNo(sample));
                grain = number.0 + 1;
                sample += 1;
            }
        }
        prop_assert_eq!((plan.sample_count(), plan.grain_count()), (sample, grain));
    }
}

/// Strata of a few grains per partition do not all wait for the same epoch, nor for the same chunk.
#[test]
fn many_small_strata_are_exchanged_evenly() {
    let (samples, partitions) = (4800_u32, 8);
    let document = PlanDocument {
        partitions,
        chunks: 8,
        strata: Some(strata(200, samples, |sample| (sample % 200) as u16).into()),
        ..document(3)
    };
    let plan = Plan::new(document, &[samples]).unwrap();
    for epoch in (0..20).map(Epoch) {
        let moved: Vec<u64> = (0..8).map(|chunk| plan.exchange(epoch).grain_count(chunk)).collect();
        assert!((450..=510).contains(&moved.iter().sum::<u64>()), "after epoch {epoch}: {moved:?}");
        assert!(moved.iter().all(|moved| (24..=96).contains(moved)), "after epoch {epoch}: {moved:?}");
    }
}

/// Law 4 where chunks are worked out side by side.
#[test]
fn lookups_agree_with_a_table_of_a_million_grains() {
    let document = PlanDocument { partitions: 7, chunks: 5, ..document(11) };
    let plan = Plan::new(document, &[600_000, 500_000]).unwrap();
    let table = SlotTable::at(&plan, Epoch(3));
    for (m, slot) in
        plan.partitions().flat_map(|m| (0..plan.slot_count(m)).step_by(997).map(move |slot| (m, slot)))
    {
        assert_eq!(plan.grain_in_slot(Epoch(3), m, slot), table.grain(&plan, m, slot));
    }
    let mut held: Vec<GrainNo> =
        plan.partitions().flat_map(|m| table.grains_of(&plan, m).collect::<Vec<_>>()).collect();
    held.sort_unstable();
    assert!(held.into_iter().eq((0..plan.grain_count()).map(GrainNo)));
}

/// Law 5, second half: some grains stay by chance, one in P.
#[test]
fn the_share_that_moves_is_q_less_those_that_stay_by_chance() {
    for (q, selection) in
        [("0.1", Selection::Cyclic), ("0.1", Selection::Independent), ("1", Selection::Cyclic)]
    {
        let document =
            PlanDocument { schedule: q.parse().unwrap(), partitions: 8, chunks: 4, selection, ..document(5) };
        let plan = Plan::new(document, &[8 * 130 + 3]).unwrap();
        let moved = |e| all_moves(&plan, Epoch(e)).concat().iter().filter(|m| m.from.0 != m.to.0).count();
        let epochs = 400;
        let share =
            (0..epochs).map(moved).sum::<usize>() as f64 / f64::from(epochs) / plan.full_grain_count() as f64;
        let expected = q.parse::<f64>().unwrap() * (1.0 - 1.0 / 8.0);
        assert!((share / expected - 1.0).abs() < 0.01, "moved {share:.4}, expected {expected:.4}");
    }
}

/// Law 6: the six grains of three partitions are in each of the 90 balanced placements equally often.
#[test]
fn a_full_exchange_reaches_every_balanced_placement_equally_often() {
    let trials = 90_000_u32;
    let mut counts: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    for seed in 0..trials {
        let document =
            PlanDocument { schedule: Schedule::constant(Share::ALL), partitions: 3, ..document(seed.into()) };
        let plan = Plan::new(document, &[4, 2]).unwrap();
        let table = SlotTable::at(&plan, Epoch(1));
        let mut placement = vec![0; 6];
        for m in plan.partitions() {
            table.grains_of(&plan, m).for_each(|grain| placement[grain.0 as usize] = m.0);
        }
        *counts.entry(placement).or_default() += 1.0;
    }
    assert_eq!(counts.len(), 90);
    let expected = f64::from(trials) / 90.0;
    let chi: f64 = counts.values().map(|count| (count - expected).powi(2) / expected).sum();
    assert!(chi < 89.0 + 5.0 * (2.0 * 89.0_f64).sqrt(), "chi-square {chi:.1} for 89 degrees of freedom");
}

/// With cyclic selection every grain has been exchanged once after 1/Q epochs.
#[test]
fn everything_has_moved_once_after_one_over_q_epochs() {
    let document = PlanDocument { partitions: 6, grain_rows: 4, chunks: 3, ..document(9) };
    let plan = Plan::new(document, &[500, 300, 41]).unwrap();
    for m in plan.partitions() {
        for slot in 0..plan.slot_count(m) {
            assert!(plan.departure(m, slot, Epoch(0)).unwrap() < Epoch(10));
        }
    }
}

/// Any V b consecutive positions (before the last rounds) give each virtual rank b of them, or nearly.
#[test]
fn virtual_ranks_share_every_stretch_of_positions_evenly() {
    let skew = |partitions: u32, virtual_ranks: u32| {
        let rounds = Rounds::new(&vec![2; partitions as usize]);
        let (p, v) = (u64::from(partitions), u64::from(virtual_ranks));
        let rank_at = |i| u64::from(rounds.at(i % p).0.0) * v / p;
        let mut worst = 0;
        for start in 0..p {
            let mut counts = vec![0_i64; virtual_ranks as usize];
            for taken in 1..=p {
                counts[rank_at(start + taken - 1) as usize] += 1;
                if taken % v == 0 {
                    let b = (taken / v) as i64;
                    worst = worst.max(counts.iter().map(|count| (count - b).abs()).max().unwrap());
                }
            }
        }
        worst
    };
    // Up to 2 apart for the usual numbers of partitions; more only with large or many odd factors.
    for (partitions, bound) in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96, 36, 60, 192]
        .map(|p| (p, 2))
        .into_iter()
        .chain([(100, 3), (210, 3)])
    {
        for virtual_ranks in (1..=partitions).filter(|v| partitions % v == 0) {
            let worst = skew(partitions, virtual_ranks);
            if virtual_ranks.is_power_of_two() {
                assert_eq!(worst, 0, "P={partitions} V={virtual_ranks}");
            } else {
                assert!(worst <= bound, "P={partitions} V={virtual_ranks}: {worst} apart");
            }
        }
    }
}

/// Unequal partitions: the closed form against rounds walked one by one.
#[test]
fn positions_of_unequal_partitions_follow_the_rounds() {
    for (case, partitions) in (0..300_u64).flat_map(|case| [(case, 1 + case % 40), (case, 96)]) {
        let draw = |m: u64| key::key(case, key::Tag::Samples, 0, m as u32)[0];
        let sizes: Vec<u64> = (0..partitions).map(|m| 1 + u64::from(draw(m) % 9) * (case % 3)).collect();
        let rounds = Rounds::new(&sizes);
        let mut position = 0;
        for j in 0..*sizes.iter().max().unwrap() {
            for place in 0..partitions {
                let m = Rounds::new(&vec![1; partitions as usize]).at(place).0;
                assert_eq!(rounds.visits_before(m, position), j.min(rounds.size(m)));
                if rounds.size(m) > j {
                    assert_eq!(rounds.at(position), (m, j));
                    assert_eq!(rounds.position(m, j), position);
                    position += 1;
                }
            }
        }
        assert_eq!(position, sizes.iter().sum::<u64>());
        assert!(
            (0..partitions as u32).all(|m| rounds.visits_before(Partition(m), position) == sizes[m as usize])
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_with_what_would() {
    let version = VersionId(Digest::of(b"laws"));
    let shape = |rows: &[u32]| Shape { shard_rows: rows.to_vec(), row_bytes: 100 };
    let options = |partitions, grain_rows| PlanOptions { partitions, grain_rows, ..PlanOptions::default() };
    let message = |rows: &[u32], options| {
        PlanDocument::with_defaults(version, &shape(rows), options).unwrap_err().to_string()
    };
    assert_eq!(
        message(&[40], options(Some(8), Some(8))),
        "8 partitions but only 5 grains: use --partitions 4 or a smaller --grain-rows"
    );
    assert_eq!(message(&[5], options(Some(8), None)), "8 partitions but only 5 grains: use --partitions 4");
    assert_eq!(
        message(&[40], options(None, Some(12))),
        "a grain of 12 rows is not a power of two up to 2^30: use --grain-rows 8"
    );
    assert_eq!(
        message(&[5, 7], options(None, Some(8))),
        "no shard has a full grain of 8 rows (the largest has 7): use --grain-rows 4"
    );
    assert_eq!(
        message(&[40], options(Some(0), None)),
        "a plan needs at least 1 partition: use --partitions 96"
    );
    assert_eq!(message(&[40], options(None, Some(0))).split(':').next_back(), Some(" use --grain-rows 1"));
    assert_eq!(message(&[], options(None, None)), "the version has no samples: ingest some before planning");
    assert_eq!(message(&[0], options(None, None)), "the version has no samples: ingest some before planning");
    let chunks = PlanOptions { chunks: Some(0), ..PlanOptions::default() };
    assert_eq!(message(&[40], chunks), "0 chunks are outside 1 to 65536: use --chunks 16");
    let block = PlanOptions { order: Order::Blocked { slots: 0 }, ..PlanOptions::default() };
    assert!(message(&[40], block).contains("at least 1 slot"));
    let stratified = |count, samples| PlanOptions {
        strata: Some(strata(count, samples, |sample| sample as u16 % count)),
        ..PlanOptions::default()
    };
    assert_eq!(
        message(&[40], PlanOptions { grain_rows: Some(2), ..stratified(2, 40) }),
        "a grain of 2 rows may be of several strata: use --grain-rows 1, or leave --stratify out"
    );
    assert_eq!(
        message(&[40], stratified(2, 41)),
        "strata of 41 samples are not those of a version of 40: make them from this version"
    );
    assert_eq!(
        message(&[40_000], PlanOptions { partitions: Some(8000), ..stratified(4000, 40_000) }),
        "4000 strata in 8000 partitions are more than 2^24 together: use --partitions 4194"
    );
}

/// As many samples as ImageNet has, in shards that end in short grains, by 8 ranks of 64: some partitions have a hundred samples
/// more than others, and the last rounds are theirs.
#[test]
fn no_share_of_a_step_outgrows_the_batch_at_the_end_of_an_epoch() {
    let mut shard_rows = vec![1251; 1024];
    shard_rows.push(143);
    let plan =
        Plan::new(PlanDocument { partitions: 96, grain_rows: 64, ..document(1) }, &shard_rows).unwrap();
    assert_eq!(plan.sample_count(), 1_281_167);
    let (batch, virtual_ranks) = (8 * 64, 8);
    let largest = |share_of: &dyn Fn(std::ops::Range<u64>) -> Vec<VirtualRank>| {
        let count = |start| {
            let readers = share_of(start..start + batch);
            let counts = (0..virtual_ranks).map(|v| readers.iter().filter(|reader| reader.0 == v).count());
            counts.max().expect("there are virtual ranks")
        };
        (0..plan.sample_count()).step_by(batch as usize).map(count).max().expect("there are steps")
    };
    assert_eq!(largest(&|step| plan.step_readers(step, virtual_ranks)), 64);
    let owner = |position| plan.virtual_rank_of(plan.at_position(position).0, virtual_ranks);
    let owners =
        |step: std::ops::Range<u64>| step.filter(|at| *at < plan.sample_count()).map(owner).collect();
    assert!(largest(&owners) > 96, "{} of them are owned by one", largest(&owners));
}

#[test]
fn ranks_that_do_not_fit_are_refused_with_those_that_would() {
    let plan = Plan::new(PlanDocument { partitions: 12, ..document(1) }, &[100]).unwrap();
    let message = |world, virtual_ranks| plan.check_ranks(world, virtual_ranks).unwrap_err().to_string();
    assert_eq!(message(1, 5), "5 virtual ranks cannot share 12 partitions equally: use 4 or 6");
    assert_eq!(message(1, 13), "13 virtual ranks cannot share 12 partitions equally: use 12");
    assert_eq!(message(1, 0), "0 virtual ranks cannot share 12 partitions equally: use 1");
    assert_eq!(
        message(5, 4),
        "5 ranks cannot share 4 virtual ranks: start 1 to 4 ranks (1, 2 or 4 for equal shares), or a new run with 6 virtual ranks"
    );
    assert_eq!(
        message(13, 12),
        "13 ranks cannot share 12 virtual ranks: start 1 to 12 ranks (1, 2, 3, 4, 6 or 12 for equal shares)"
    );
    assert_eq!(
        message(0, 1),
        "0 ranks cannot share 1 virtual ranks: start 1 to 1 ranks (1 for equal shares)"
    );
    assert_eq!([0, 1, 4, 5, 7, 13].map(|world| plan.fewest_virtual_ranks(world)), [1, 1, 4, 6, 12, 12]);
    assert_eq!(plan.partitions_of(VirtualRank(7), 4), 12..12);
    assert_eq!(plan.partitions_of(VirtualRank(0), 0), 0..12);
}

#[test]
fn default_virtual_ranks_follow_partitions_and_batch_and_leave_enough_samples_to_each() {
    let batches = [0, 1, 8, 16, 32, 64, 128, 192, 256, 384, 4096, u64::MAX];
    let of = |partitions| batches.map(|batch| default_virtual_ranks(partitions, batch));
    assert_eq!(of(96), [1, 1, 1, 2, 4, 8, 8, 12, 16, 24, 24, 24]);
    assert_eq!(of(12), [1, 1, 1, 2, 4, 6, 6, 12, 12, 12, 12, 12]);
    assert_eq!(of(1), [1; 12]);
    let plan = Plan::new(PlanDocument { partitions: 96, ..document(1) }, &[960]).unwrap();
    let least = [1, 2, 3, 4, 6, 8, 12, 16, 24].map(|world| plan.least_global_batch(world));
    assert_eq!(least, [1, 16, 24, 32, 48, 64, 192, 256, 384].map(Some));
    assert_eq!(plan.least_global_batch(25), None);
    let cut = [1, 2, 3, 10, 64, 65].map(|micro_batch| plan.virtual_ranks_of_at_most(micro_batch, 64));
    assert_eq!(cut, [96, 32, 24, 8, 1, 1].map(Some));
    assert_eq!(plan.virtual_ranks_of_at_most(1, 97), None);
}

#[test]
fn defaults_follow_the_data() {
    let version = VersionId(Digest::of(b"laws"));
    let defaults = |rows: &[u32], row_bytes: u64, q: &str| {
        let samples: u64 = rows.iter().map(|rows| u64::from(*rows)).sum();
        let shape = Shape { shard_rows: rows.to_vec(), row_bytes: samples * row_bytes };
        let options = PlanOptions { q: q.parse().unwrap(), ..PlanOptions::default() };
        let document = PlanDocument::with_defaults(version, &shape, options).unwrap();
        (document.partitions, document.grain_rows, document.chunks)
    };
    assert_eq!(defaults(&[1300; 47], 790, "0.1"), (96, 8, 7));
    assert_eq!(defaults(&[20_000; 64], 110_000, "0.1"), (96, 1, 16));
    assert_eq!(defaults(&[1000], 10, "0"), (8, 1, 1));
    assert_eq!(defaults(&[100_000; 10], 10, "1,0.01"), (96, 128, 16));
    assert_eq!(defaults(&[7; 1000], 10, "0.1"), (48, 2, 7));
    assert_eq!(defaults(&[3], 10, "1"), (1, 1, 3));
}

#[test]
fn a_document_is_canonical_json_and_strangers_are_refused() {
    let document = PlanDocument { order: Order::Blocked { slots: 8 }, ..document(u64::MAX) };
    let text = String::from_utf8(document.to_bytes()).unwrap();
    let version = document.version;
    assert_eq!(
        text,
        format!(
            r#"{{"format":1,"version":"{version}","seed":18446744073709551615,"schedule":[429496730],"partitions":1,"grain_rows":1,"chunks":1,"selection":"cyclic","placement":"shards","order":{{"blocked":{{"slots":8}}}}}}"#
        )
    );
    let read = |from: &str, to: &str| {
        assert!(text.contains(from));
        PlanDocument::from_bytes(text.replace(from, to).as_bytes()).map_err(|error| error.to_string())
    };
    assert_eq!(read(",", ", \n "), Ok(document));
    assert!(read(r#""format":1"#, r#""format":2"#).unwrap_err().contains("upgrade shardd"));
    assert!(read(r#""format":1"#, r#""format":0"#).is_err());
    assert!(
        read(r#""chunks":1"#, r#""chunks":1,"weights":[]"#).unwrap_err().contains("unknown field `weights`")
    );
    assert!(read("429496730", "4294967297").unwrap_err().contains("outside 0 to 1"));
    assert!(read("[429496730]", "[]").unwrap_err().contains("empty"));
    assert!(read(r#""grain_rows":1"#, r#""grain_rows":3"#).unwrap_err().contains("--grain-rows 2"));
    assert!(read(r#""partitions":1"#, r#""partitions":0"#).is_err());
    assert!(read(r#""partitions":1"#, r#""partitions":-1"#).is_err());
    assert!(read("cyclic", "sometimes").unwrap_err().contains("not a plan document"));
    assert!(read("}", "").is_err());
    let strata = strata(3, 5, |sample| sample as u16 % 3);
    let id = crate::digest::StrataId::of(&strata.encode());
    let stratified = PlanDocument { strata: Some(strata.into()), ..read(",", ", ").unwrap() };
    let text = String::from_utf8(stratified.to_bytes()).unwrap();
    assert!(text.ends_with(&format!(r#","strata":"{id}"}}"#)), "{text}");
    assert_eq!(PlanDocument::from_bytes(text.as_bytes()), Ok(stratified));
}

#[test]
fn strata_are_read_as_they_were_written_and_nothing_else_is() {
    for count in [1_u16, 3, 256, 257, 1000] {
        let strata = strata(count, 3000, |sample| (sample * 7 % u32::from(count)) as u16);
        let bytes = strata.encode();
        assert_eq!(Strata::decode(&bytes), Ok((*strata).clone()));
        for cut in 0..bytes.len() {
            assert!(Strata::decode(&bytes[..cut]).is_err());
        }
        assert!(Strata::decode(&[&bytes[..], &[0]].concat()).is_err());
        let reason = |at: usize, byte| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Strata::decode(&bytes).map_err(|error| error.to_string())
        };
        assert!(reason(0, b'?').unwrap_err().contains("not their encoding"));
        assert!(reason(8, 2).unwrap_err().contains("upgrade shardd"));
        if count != 256 {
            assert!(reason(bytes.len() - 1, 255).unwrap_err().contains("sample 2999 is in stratum"));
        }
        let mut document = PlanDocument { strata: Some(strata.into()), ..document(1) };
        assert!(document.supply_strata(&bytes[1..]).unwrap_err().to_string().contains("these are not"));
    }
    assert!(Strata::new("law", vec![], &[]).is_err());
}
