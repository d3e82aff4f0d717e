//! Law 10: what a mixture promises, tried on random mixtures of small random plans; and the golden file of the Python
//! reference (`tests/reference/plan.py mixtures`), byte for byte.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::*;
use super::*;
use crate::digest::{Digest, VersionId};

const CASES: u32 = 10_000;
const GOLDEN: &str = include_str!("../../../testdata/mixture-golden.json");

fn cases() -> u32 {
    std::env::var("SHARDD_PLAN_CASES")
        .map_or(CASES, |cases| cases.parse().expect("SHARDD_PLAN_CASES is a number"))
}

fn plan(seed: u64, samples: u32, partitions: u32) -> Plan {
    let version = VersionId(Digest::of(b"mixture laws"));
    let shape = Shape { shard_rows: vec![samples.div_ceil(2), samples / 2], row_bytes: 1 << 30 };
    let partitions = Some(partitions.min(samples));
    let options = PlanOptions { seed, partitions, grain_rows: Some(1), ..PlanOptions::default() };
    let document =
        PlanDocument::with_defaults(version, &shape, options).expect("the strategy makes fitting plans");
    Plan::new(document, &shape.shard_rows).expect("the strategy makes fitting plans")
}

#[derive(Debug)]
struct Config {
    plans: Vec<Plan>,
    mixture: Mixture,
}

impl Config {
    fn plans(&self) -> Vec<&Plan> {
        self.plans.iter().collect()
    }
}

/// Changes of proportions, in tenths: how far from the change before, and how much of each source. A first source is never without
/// any.
fn changes() -> impl Strategy<Value = Vec<(u64, [u64; 6])>> {
    let amount = prop_oneof![Just(0), 1..200_u64];
    let amounts = (1..200_u64, [amount.clone(), amount.clone(), amount.clone(), amount.clone(), amount]);
    let change = (1..300_u64, amounts.prop_map(|(first, [b, c, d, e, f])| [first, b, c, d, e, f]));
    prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec(change, 1..6)]
}

fn tenths(amount: u64) -> Decimal {
    format!("{}.{}", amount / 10, amount % 10).parse().expect("a decimal")
}

/// Mixtures of one to six plans, of proportions or of absolute amounts. Proportions may change.
fn configs() -> impl Strategy<Value = Config> {
    let source = (1..60_u32, 1..9_u32, 1..200_u64, any::<bool>());
    let sources = prop::collection::vec(source, 1..7);
    let epoch_size = prop_oneof![Just(None), (1..500_u64).prop_map(Some)];
    (sources, any::<bool>(), epoch_size, changes()).prop_map(|(sources, relative, epoch_size, changes)| {
        let mut plans = Vec::new();
        let mut described = Vec::new();
        for (seed, (samples, partitions, amount, chosen)) in (0..).zip(sources) {
            let plan = plan(seed, samples, partitions);
            let take = match (relative, chosen) {
                (true, _) => Take::Proportion(tenths(amount)),
                (false, true) => Take::Choose(amount),
                (false, false) => Take::Repeat(tenths(10 + amount % 30)),
            };
            described.push(MixtureSource { plan: plan.id(), samples: samples.into(), take });
            plans.push(plan);
        }
        let phase = |from: &mut u64, (after, amounts): (u64, [u64; 6])| {
            *from += after;
            let proportions = amounts[..plans.len()].iter().copied().map(tenths).collect();
            Some(MixturePhase { from: *from, proportions })
        };
        let phases = changes.into_iter().scan(0, phase).filter(|_| relative).collect();
        let document = MixtureDocument::with_phases(described, epoch_size.filter(|_| relative), phases);
        let mixture = Mixture::new(document.expect("the strategy makes mixtures")).expect("it was checked");
        Config { plans, mixture }
    })
}

/// The share of a source in a stretch of positions, and how many sets of proportions hold there.
fn exact_share(document: &MixtureDocument, source: usize, positions: std::ops::Range<u64>) -> (f64, usize) {
    let mut weights = vec![(0, document.weights().unwrap())];
    weights.extend(document.phases.iter().map(|phase| (phase.from, phase.weights().unwrap())));
    let ends = weights.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
    let (mut share, mut phases) = (0.0, 0);
    for ((from, weights), end) in weights.iter().zip(ends) {
        let (start, end) = (positions.start.max(*from), positions.end.min(end));
        if start < end {
            share += (end - start) as f64 * weights[source] as f64 / weights.iter().sum::<u64>() as f64;
            phases += 1;
        }
    }
    (share, phases)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn every_source_is_read_in_its_order_and_epochs_have_what_was_asked_for(config in configs(), epoch in 0..50_u32) {
        let mixture = &config.mixture;
        let bounds = [Epoch(epoch), Epoch(epoch + 1)].map(|epoch| mixture.position(epoch, 0).unwrap());
        let stretches = mixture.stretches(&(bounds[0]..bounds[1]));
        let mut next: Vec<u64> = stretches.iter().map(|stretch| stretch.start).collect();
        for (position, read) in (bounds[0]..bounds[1]).zip(mixture.walk(bounds[0])) {
            prop_assert_eq!(read, mixture.at(position));
            prop_assert_eq!(read.position, position);
            prop_assert_eq!(read.nth, next[read.source.0 as usize]);
            prop_assert_eq!(mixture.position_of(read.source, read.nth), Some(position));
            next[read.source.0 as usize] += 1;
        }
        for (source, (stretch, next)) in mixture.document().sources.iter().zip(stretches.iter().zip(next)) {
            prop_assert_eq!(stretch.end, next);
            let read = stretch.end - stretch.start;
            match source.take {
                Take::Choose(count) => prop_assert_eq!(read, count),
                Take::Repeat(times) => prop_assert_eq!(read, (times.to_string().parse::<f64>().unwrap() * source.samples as f64 + 1e-6) as u64),
                Take::Proportion(_) => {
                    let at = mixture.document().sources.iter().position(|other| other == source).unwrap();
                    let (exact, phases) = exact_share(mixture.document(), at, bounds[0]..bounds[1]);
                    prop_assert!((read as f64 - exact).abs() < 2.0 * 1.69 * phases as f64, "{} of {}", read, exact);
                }
            }
        }
    }

    #[test]
    fn a_step_is_the_same_set_for_any_ranks_in_equal_shares(
        config in configs(), epoch in 0..4_u32, start in 0..400_u64, len in 0..100_u64, v in prop::array::uniform2(1..9_u32), w: u32,
    ) {
        let (mixture, plans) = (&config.mixture, config.plans());
        prop_assert_eq!(mixture.check_plans(&plans), Ok(()));
        let start = mixture.position(Epoch(epoch), start % mixture.epoch_size()).unwrap();
        let step = |virtual_ranks| mixture.step(&plans, start..start + len, virtual_ranks);
        let [step, other] = v.map(step);
        let reads = |step: &[(VirtualRank, MixtureRead)]| step.iter().map(|(_, read)| *read).collect::<Vec<_>>();
        prop_assert_eq!(reads(&step), reads(&other));
        prop_assert_eq!(reads(&step), mixture.walk(start).take(len as usize).collect::<Vec<_>>());
        let [virtual_ranks, _] = v;
        let world = 1 + w % virtual_ranks;
        let mut shared = Vec::new();
        for rank in 0..world {
            for v in Plan::virtual_ranks_of(rank, world, virtual_ranks) {
                let own = step.iter().filter(|(reader, _)| reader.0 == v).map(|(_, read)| *read);
                let before = shared.len();
                shared.extend(own);
                let share = (shared.len() - before) as u64;
                prop_assert!((len / u64::from(virtual_ranks)..=len.div_ceil(virtual_ranks.into())).contains(&share));
            }
        }
        shared.sort();
        prop_assert_eq!(shared, reads(&step));
    }

    #[test]
    fn each_epoch_of_a_source_has_each_of_its_samples_once(config in configs(), source: prop::sample::Index, epoch in 0..4_u32) {
        let source = source.index(config.plans.len());
        let (mixture, plan) = (&config.mixture, &config.plans[source]);
        let (source, samples) = (SourceNo(source as u32), plan.sample_count());
        let mut read = BTreeSet::new();
        let mut last = None;
        let of_last_phase = mixture.document().phases.last().map(|phase| &phase.proportions);
        let stops = of_last_phase.is_some_and(|proportions| proportions[source.0 as usize] == tenths(0));
        for nth in u64::from(epoch) * samples..u64::from(epoch + 1) * samples {
            let position = mixture.position_of(source, nth);
            if position.is_none() {
                // The last phase reads no more of it.
                let last_phase = mixture.document().phases.last().map_or(0, |phase| phase.from);
                prop_assert!(stops && mixture.before(last_phase)[source.0 as usize] <= nth);
                return Ok(());
            }
            prop_assert!(position > last || last.is_none());
            last = position;
            let (in_epoch, place) = mixture.in_plan(source, mixture.at(position.unwrap()).nth);
            prop_assert_eq!(in_epoch, Epoch(epoch));
            read.insert(plan.sample_at(in_epoch, place));
        }
        prop_assert_eq!(read.len() as u64, samples);
    }

    #[test]
    fn what_is_resumed_is_what_would_have_come(config in configs(), from in 0..700_usize) {
        let mixture = &config.mixture;
        let again = Mixture::new(MixtureDocument::from_bytes(&mixture.document().to_bytes()).unwrap()).unwrap();
        prop_assert_eq!(again.id(), mixture.id());
        let resumed: Vec<MixtureRead> = again.walk(from as u64).take(50).collect();
        prop_assert_eq!(resumed, mixture.walk(0).skip(from).take(50).collect::<Vec<_>>());
    }
}

#[test]
fn other_plans_than_the_sources_are_refused_by_name() {
    let plans = [plan(1, 50, 2), plan(2, 60, 3)];
    let sources = plans.iter().map(|plan| MixtureSource {
        plan: plan.id(),
        samples: plan.sample_count(),
        take: Take::Repeat(1.into()),
    });
    let mixture = Mixture::new(MixtureDocument::new(sources.collect(), None).unwrap()).unwrap();
    assert_eq!(mixture.check_plans(&[&plans[0], &plans[1]]), Ok(()));
    let swapped = mixture.check_plans(&[&plans[1], &plans[0]]).unwrap_err().to_string();
    assert!(
        swapped.contains(&format!("source 0 is plan {} of 50 samples", plans[0].id().short())),
        "{swapped}"
    );
    let fewer = mixture.check_plans(&[&plans[0]]).unwrap_err().to_string();
    assert_eq!(fewer, "the mixture has 2 sources, but 1 plans were given");
}

#[test]
fn phases_that_do_not_fit_are_refused_with_the_way_out() {
    let plan = plan(1, 50, 2);
    let source = |take| MixtureSource { plan: plan.id(), samples: 50, take };
    let of = |takes: [Take; 2], phases: Vec<(u64, Vec<u64>)>| {
        let phase = |(from, tenths_of): (u64, Vec<u64>)| MixturePhase {
            from,
            proportions: tenths_of.into_iter().map(tenths).collect(),
        };
        let phases = phases.into_iter().map(phase).collect();
        let document = MixtureDocument::with_phases(takes.map(source).to_vec(), None, phases);
        document.map(|document| document.format).map_err(|error| error.to_string())
    };
    let halves = [Take::Proportion(1.into()); 2];
    assert_eq!(of(halves, vec![]), Ok(1));
    assert_eq!(of(halves, vec![(1, vec![0, 5]), (2, vec![5, 0])]), Ok(2));
    let refused = |takes, phases, expected: &str| {
        let error = of(takes, phases).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    };
    refused(
        [Take::Repeat(1.into()); 2],
        vec![(9, vec![1, 1])],
        "source 0 has repeat 1: give all sources a proportion",
    );
    refused(
        halves,
        vec![(0, vec![1, 1])],
        "begins at position 0, and the one before it at 0: positions of phases ascend from 1",
    );
    refused(
        halves,
        vec![(7, vec![1, 1]), (7, vec![1, 2])],
        "begins at position 7, and the one before it at 7",
    );
    refused(halves, vec![(7, vec![1])], "from position 7 on has 1 proportions for 2 sources");
    refused(halves, vec![(7, vec![0, 0])], "from position 7 on are all 0");
    refused(halves, vec![(1, vec![1, 1]); 1 << 22], "use fewer phases");
    // A source may wait for a phase that is still to be set, but not without any.
    let [one, none] = [Take::Proportion(1.into()), Take::Proportion(0.into())];
    assert_eq!(of([one, none], vec![(7, vec![1, 0])]), Ok(2));
    refused([one, none], vec![], "source 1 ");
    // A document of this release that an older one would misread says so, and one without phases is as before.
    let document = MixtureDocument::new(halves.map(source).to_vec(), None).expect("a mixture");
    assert!(!String::from_utf8(document.to_bytes()).expect("JSON").contains("phases"));
    let forged = MixtureDocument { format: 2, ..document };
    assert!(matches!(MixtureDocument::from_bytes(&forged.to_bytes()), Err(MixtureError::Malformed { .. })));
}

#[test]
fn positions_out_of_range_are_refused_not_wrapped() {
    let source = MixtureSource { plan: plan(1, 50, 2).id(), samples: 50, take: Take::Choose(1 << 40) };
    let mixture = Mixture::new(MixtureDocument::new(vec![source], None).unwrap()).unwrap();
    assert_eq!(mixture.position(Epoch(3), 1 << 40), mixture.position(Epoch(4), 0));
    for (epoch, position) in [(0, (1 << 40) + 1), (1 << 24, 0), (u32::MAX, 0), ((1 << 24) - 1, 1 << 40)] {
        let error = mixture.position(Epoch(epoch), position).unwrap_err().to_string();
        assert!(error.ends_with("out of range"), "{error}");
    }
    assert_eq!(mixture.position_of(SourceNo(0), u64::MAX), Some(u64::MAX));
    assert_eq!(mixture.walk(u64::MAX).next(), None);
}

#[derive(Serialize, Deserialize)]
struct GoldenMixture {
    name: String,
    document: MixtureDocument,
    id: MixtureId,
    weights: Vec<u64>,
    /// Of the first positions, and of some further on: whose each is, and which of its samples.
    first: Vec<[u64; 2]>,
    far: Vec<[u64; 3]>,
    /// The samples read of each source before epochs 1, 2 and 7.
    before: Vec<Vec<u64>>,
    digest: String,
}

#[test]
fn mixtures_are_byte_for_byte_those_of_the_reference() {
    let golden: Vec<GoldenMixture> = serde_json::from_str(GOLDEN).expect("the golden file is JSON");
    let count = golden.len();
    let mut lines = GOLDEN.lines();
    assert_eq!(lines.next(), Some("["));
    for (at, golden) in golden.into_iter().enumerate() {
        let mixture = Mixture::new(golden.document).expect("golden mixtures are mixtures");
        let numbers = |read: MixtureRead| [u64::from(read.source.0), read.nth];
        let far = golden.far.iter().map(|[position, ..]| mixture.at(*position)).map(|read| {
            assert_eq!(mixture.position_of(read.source, read.nth), Some(read.position));
            [read.position, read.source.0.into(), read.nth]
        });
        let sources = mixture.walk(0).take(1000).flat_map(|read| u64::from(read.source.0).to_le_bytes());
        let before =
            [1, 2, 7].map(|epoch| mixture.before(mixture.position(Epoch(epoch), 0).expect("in range")));
        let again = GoldenMixture {
            name: golden.name,
            id: mixture.id(),
            weights: mixture.document().weights().expect("they were checked"),
            first: mixture.walk(0).take(20).map(numbers).collect(),
            far: far.collect(),
            before: before.to_vec(),
            digest: Digest::of(&sources.collect::<Vec<u8>>()).to_string(),
            document: mixture.document,
        };
        let comma = if at + 1 < count { "," } else { "" };
        assert_eq!(lines.next(), Some(&*(serde_json::to_string(&again).expect("plain data") + comma)));
    }
    assert_eq!((lines.next(), lines.next()), (Some("]"), None));
}
