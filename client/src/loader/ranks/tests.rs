use proptest::prelude::*;
use shardd_plan::{PlanDocument, PlanOptions, Shape, VirtualRank, deal};
use shardfmt::VersionId;

use super::*;

fn plan(partitions: u32, samples: u32) -> Plan {
    let shape = Shape { shard_rows: vec![samples], row_bytes: 1 << 30 };
    let options = PlanOptions { partitions: Some(partitions), grain_rows: Some(1), ..PlanOptions::default() };
    let document = PlanDocument::with_defaults(VersionId::of(b"ranks"), &shape, options).expect("it fits");
    Plan::new(document, &shape.shard_rows).expect("it fits")
}

#[test]
fn what_fits_no_run_is_refused_with_what_would() {
    let size = |batch, global| BatchSize::new(batch, global).map_err(|error| error.to_string());
    assert_eq!(size(Some(32), None).map(|batch| batch.global(8)), Ok(Ok(256)));
    assert_eq!(size(None, Some(100)).map(|batch| batch.global(8)), Ok(Ok(100)));
    for (refused, said) in [
        (size(None, None), "give batch_size"),
        (size(Some(1), Some(1)), "are both given"),
        (size(Some(0), None), "batch_size 0"),
        (size(None, Some(0)), "global_batch_size 0"),
    ] {
        let error = refused.expect_err(said);
        assert!(error.contains(said), "{error}");
    }
    let data_rank = |rank, world_size, replication, mesh| {
        let world = WorldRank::new(rank, world_size, None)?;
        DataRank::new(Some(world), Layout::new(replication, mesh)?)
    };
    assert_eq!(data_rank(7, 12, Some(3), None), Ok(DataRank { index: 2, size: 4 }));
    assert_eq!(data_rank(7, 12, None, Some((1, 6))), Ok(DataRank { index: 1, size: 6 }));
    assert_eq!(data_rank(7, 12, None, None), Ok(DataRank { index: 7, size: 12 }));
    assert_eq!(DataRank::new(None, Layout::Replicated(1)), Ok(DataRank { index: 0, size: 1 }));
    assert_eq!(DataRank::new(None, Layout::Mesh { index: 2, size: 3 }), Ok(DataRank { index: 2, size: 3 }));
    let share = |size, virtual_ranks, batch| {
        RankShare::new(&plan(12, 600), DataRank { index: 0, size }, virtual_ranks, batch)
    };
    let batch = BatchSize::MicroBatch;
    for (refused, said) in [
        (
            data_rank(0, 12, Some(5), None).err(),
            "replication 5 does not divide 12 ranks into groups: use 4 or 6",
        ),
        (data_rank(0, 12, Some(0), None).err(), "use 1"),
        (data_rank(0, 12, Some(13), None).err(), "use 12"),
        (data_rank(0, 12, Some(2), Some((0, 6))).err(), "leave replication out"),
        (data_rank(0, 12, None, Some((6, 6))).err(), "index 6 of 6 does not fit a world of 12"),
        (data_rank(0, 12, None, Some((0, 5))).err(), "index 0 of 5 does not fit"),
        (data_rank(0, 12, None, Some((0, 0))).err(), "index 0 of 0 does not fit"),
        (share(1, Some(5), batch(1)).err(), "5 virtual ranks cannot share 12 partitions equally: use 4 or 6"),
        (share(5, Some(4), batch(1)).err(), "5 ranks cannot share 4 virtual ranks"),
        (share(4, None, batch(u64::MAX)).err(), "more than 2^32 samples a step"),
        (share(4, None, BatchSize::Global(u64::MAX)).err(), "more than 2^32 samples a step"),
        (share(4, Some(4), BatchSize::Global(3)).err(), "use 4 or more"),
    ] {
        let error = refused.expect(said).to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn equal_shares_weigh_as_much_as_they_accumulate() {
    let share =
        RankShare::new(&plan(12, 600), DataRank { index: 1, size: 3 }, Some(6), BatchSize::MicroBatch(10))
            .expect("it fits");
    assert_eq!((share.owned.clone(), share.global_batch), (2..4, 60));
    let micro_batches = share.micro_batches(7, 60, &[10, 10], false);
    let place = |virtual_rank, is_last_micro| MicroBatchPlace {
        step: 7,
        virtual_rank,
        accumulation: 2,
        is_last_micro,
        samples: 10,
        weight: 0.5,
    };
    assert_eq!(micro_batches, [place(2, false), place(3, true)]);
}

#[test]
fn a_rank_without_samples_takes_part_with_a_stand_in() {
    let share =
        RankShare::new(&plan(12, 600), DataRank { index: 1, size: 4 }, Some(6), BatchSize::MicroBatch(10))
            .expect("it fits");
    assert_eq!(share.owned, 1..3);
    let told = |samples: &[u64], lockstep| -> Vec<(u32, u64, bool)> {
        let micro_batches = share.micro_batches(0, 10, samples, lockstep);
        assert!(micro_batches.iter().all(|micro| micro.accumulation as usize == micro_batches.len()));
        assert!(micro_batches.iter().all(|micro| (micro.weight == 0.0) == (micro.samples == 0)));
        micro_batches.iter().map(|micro| (micro.virtual_rank, micro.samples, micro.is_last_micro)).collect()
    };
    assert_eq!(told(&[0, 0], false), [(2, 0, true)]);
    assert_eq!(told(&[3, 0], false), [(1, 3, true)]);
    assert_eq!(told(&[3, 0], true), [(1, 3, false), (2, 0, true)]);
    let other =
        RankShare::new(&plan(12, 600), DataRank { index: 0, size: 4 }, Some(6), BatchSize::MicroBatch(10))
            .expect("it fits");
    assert_eq!(other.owned, 0..1);
    assert_eq!(other.micro_batches(0, 10, &[2], true).len(), 2, "as many as those that own two");
}

/// A mean over the data ranks, as DDP takes it, of the weighted means of micro-batches.
fn averaged(shares: &[Vec<(MicroBatchPlace, Vec<f64>)>]) -> f64 {
    let of_rank = |micro_batches: &Vec<(MicroBatchPlace, Vec<f64>)>| -> f64 {
        let mean = |gradients: &Vec<f64>| gradients.iter().sum::<f64>() / gradients.len() as f64;
        micro_batches.iter().map(|(place, gradients)| place.weight * mean(gradients)).sum()
    };
    shares.iter().map(of_rank).sum::<f64>() / shares.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

    /// Real numbers: the gradient in w of (w x - y)^2, for random x and y, in the plan's own shares or in equal ones.
    #[test]
    fn averaging_over_ranks_gives_the_gradient_of_the_mean_over_the_step(
        v in 0..6usize, world in 1..13u32, batch in 1..60u64, start in 0..110u64, even: bool, lockstep: bool,
        w in -2.0..2.0f64, data in prop::collection::vec((-3.0..3.0f64, -3.0..3.0f64), 115),
    ) {
        let plan = plan(12, 115);
        let virtual_ranks = [1, 2, 3, 4, 6, 12][v];
        let size = 1 + (world - 1) % virtual_ranks;
        let positions = start..plan.sample_count().min(start + batch.max(virtual_ranks.into()));
        let gradient = |position: u64| {
            let (x, y) = data[position as usize];
            2.0 * x * (w * x - y)
        };
        let mut readers: Vec<u32> =
            positions.clone().map(|at| plan.virtual_rank_of(plan.at_position(at).0, virtual_ranks).0).collect();
        if even {
            readers = deal(&readers, virtual_ranks);
        }
        let mut shares = Vec::new();
        let mut seen = 0;
        for index in 0..size {
            let batch = BatchSize::Global(batch.max(virtual_ranks.into()));
            let share = RankShare::new(&plan, DataRank { index, size }, Some(virtual_ranks), batch).unwrap();
            let read = |v: u32| -> Vec<f64> {
                let mine = positions.clone().zip(&readers).filter(|(_, reader)| **reader == v);
                mine.map(|(position, _)| gradient(position)).collect()
            };
            let counts: Vec<u64> = share.owned.clone().map(|v| read(v).len() as u64).collect();
            let places = share.micro_batches(3, positions.end - positions.start, &counts, lockstep);
            prop_assert_eq!(places.iter().filter(|place| place.is_last_micro).count(), 1);
            prop_assert!(places.last().unwrap().is_last_micro);
            if lockstep {
                prop_assert_eq!(places.len() as u32, virtual_ranks.div_ceil(size));
            }
            seen += places.iter().map(|place| place.samples).sum::<u64>();
            // A stand-in computes on rows of others.
            let of = |place: MicroBatchPlace| match place.samples {
                0 => (place, vec![gradient(0)]),
                _ => (place, read(place.virtual_rank)),
            };
            shares.push(places.into_iter().map(of).collect::<Vec<_>>());
        }
        prop_assert_eq!(seen, positions.end - positions.start);
        let weights: f64 = shares.iter().flatten().map(|(place, _)| place.weight).sum();
        prop_assert!((weights / f64::from(size) - 1.0).abs() < 1e-12);
        let exact = positions.clone().map(gradient).sum::<f64>() / seen as f64;
        let size_of = positions.clone().map(|at| gradient(at).abs()).sum::<f64>() / seen as f64;
        prop_assert!((averaged(&shares) - exact).abs() <= 1e-12 * size_of);
    }

    #[test]
    fn the_groups_of_a_world_read_all_of_a_step_and_their_members_the_same(
        groups in 1..13u32, replication in 1..9u32, v in 0..6usize,
    ) {
        let plan = plan(12, 115);
        let virtual_ranks = [1, 2, 3, 4, 6, 12][v];
        let groups = 1 + (groups - 1) % virtual_ranks;
        let world_size = groups * replication;
        let mut owned = vec![0; virtual_ranks as usize];
        for rank in 0..world_size {
            let world = WorldRank::new(rank, world_size, None).unwrap();
            let data_rank = DataRank::new(Some(world), Layout::new(Some(replication), None).unwrap()).unwrap();
            let mesh = Layout::new(None, Some((rank / replication, groups))).unwrap();
            prop_assert_eq!(DataRank::new(Some(world), mesh), Ok(data_rank));
            let share = RankShare::new(&plan, data_rank, Some(virtual_ranks), BatchSize::MicroBatch(4)).unwrap();
            prop_assert_eq!(share.global_batch, u64::from(virtual_ranks) * 4);
            share.owned.for_each(|v| owned[v as usize] += 1);
            let by_default = RankShare::new(&plan, data_rank, None, BatchSize::MicroBatch(4)).unwrap();
            prop_assert_eq!(by_default.virtual_ranks, plan.fewest_virtual_ranks(groups));
            let global = RankShare::new(&plan, data_rank, None, BatchSize::Global(1 << 20));
            prop_assert_eq!(global.map(|share| share.virtual_ranks), Ok(12));
        }
        prop_assert!(owned.iter().all(|readers| *readers == replication));
        prop_assert_eq!(plan.partitions_of(VirtualRank(0), virtual_ranks).start, 0);
    }
}
