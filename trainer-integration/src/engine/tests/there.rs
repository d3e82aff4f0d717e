//! Sums of gradients that stay on a device, a device in software: for any transport, and at every stage of ZeRO.

use super::zero::with_weights;
use super::*;
use crate::device::{Adapter, DeviceName};
use crate::models::perceptron;

/// Which sums over all ranks are made where the gradients are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sums {
    OfHost,
    OfDevice,
}

/// Weights after three steps of several micro-batches, the second without samples for one of the virtual ranks.
fn trained(device: &Device, ranks: VirtualRanks, zero: Zero, reduction: Reduction, sums: Sums) -> Vec<f32> {
    let world = ranks.world;
    let weights = perceptron(64, 10, 0.0, &Device::flex()).into_model().initial(5);
    let mut all = spawn(world, |collective| {
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let model = perceptron(64, 10, 0.0, device).into_model();
        let (rule, key) = (Optimizer::adamw(0.1), Key::new(0));
        let engine = Engine::blank(model, zero, device.clone(), ranks, rule, key, Arc::clone(&comm))
            .with_buckets(BucketSizes { first: 1, others: 1 << 12 })
            .with_reduction(reduction);
        let mut engine = with_weights(engine, &weights);
        if sums == Sums::OfDevice {
            engine = engine.with_device_sums(Box::new(Staged::default()));
        }
        let mut most = Vec::new();
        for step in 0..3 {
            let of = |round: u64| -> Vec<Share<'static>> {
                let rows = |rank: u32| if step == 1 && rank == 2 { 0 } else { 4 + rank as usize };
                let seed = |rank: u32| step << 8 | round << 4 | u64::from(rank);
                let share =
                    |rank| share_of(samples(rows(rank), seed(rank)), InputShape::Features(64), device);
                ranks.of(comm.rank()).map(share).collect()
            };
            engine.accumulate(of(0), plan(step)).unwrap();
            engine.step(of(1), StepPlan { rate: 0.01, ..plan(step) }, |_| true).unwrap();
            most.push(engine.most_memory().gradients);
        }
        assert!(most.iter().all(|bytes| *bytes == most[0]), "{zero:?}, W={world}, {sums:?}: {most:?}");
        engine.parameters().unwrap().concat()
    });
    let first = all.remove(0);
    assert!(all.iter().all(|rank| *rank == first), "W={world}, {zero:?}: ranks differ");
    first
}

#[test]
fn every_stage_and_way_of_summing_trains_the_same_weights() {
    let device = match DeviceName::Wgpu(Adapter::Software).open() {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    for (count, worlds) in [(1, &[1][..]), (4, &[2, 4])] {
        let of = |world| VirtualRanks { count, world };
        let alone = trained(&device, of(1), Zero::Nothing, Reduction::Exact, Sums::OfHost);
        for (zero, &world) in
            Zero::ALL.into_iter().flat_map(|zero| worlds.iter().map(move |world| (zero, world)))
        {
            for sums in [Sums::OfHost, Sums::OfDevice] {
                let named = format!("{zero:?}, V={count}, W={world}, {sums:?}");
                let exact = trained(&device, of(world), zero, Reduction::Exact, sums);
                assert!(exact == alone, "{named}: weights differ");
                let fast = trained(&device, of(world), zero, Reduction::Fast(Compression::None), sums);
                assert_close(&fast, &alone, 1e-3);
            }
        }
    }
}

/// A device in software binds buffers of 2^27 bytes at most.
#[test]
fn rows_for_which_a_device_has_no_memory_are_cut_or_named() {
    let device = match DeviceName::Wgpu(Adapter::Software).open() {
        Ok(device) => device,
        Err(error) => return println!("skipped: {error}"),
    };
    let (rows, side) = (24, 512);
    let input = InputShape::Image([1, side, side]);
    let one = || {
        let key = Key::new(9);
        let numbers = 0..(rows * side * side) as u64;
        Samples { features: numbers.map(|place| key.uniform(place)).collect(), labels: vec![1; rows] }
    };
    let step = |reduction| {
        let model = conv_net([1, side, side], 2, Norm::Group, 0.0, &device).into_model();
        let (weights, ranks) = (model.initial(5), VirtualRanks { count: 1, world: 1 });
        let mut engine =
            Engine::new(model, weights, device.clone(), ranks, Optimizer::sgd(0.0), Key::new(0), alone())
                .with_reduction(reduction);
        let loss = engine.step(vec![share_of(one(), input, &device)], plan(0), |_| true)?;
        Ok::<_, EngineError>((loss, engine.most_rows()))
    };
    let (loss, most) = step(Reduction::Fast(Compression::None)).unwrap();
    assert!(most.is_some_and(|most| most < rows), "{most:?}");
    assert!(loss.sum.is_finite() && loss.gradient_norm.is_finite() && loss.samples == rows as u64);
    let error = step(Reduction::Exact).unwrap_err().to_string();
    assert!(error.contains("--micro-batch-size") && error.contains("--reduce fast"), "{error}");
}
