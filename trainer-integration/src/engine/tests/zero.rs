//! The stages of ZeRO: the same weights, of which each rank keeps less, for the bytes that the paper says.

use super::*;
use crate::collective::counted::Counted;
use crate::models::{GptSize, gpt};
use crate::nn::BatchNorm;

/// An engine that keeps what `zero` says of a model with these first weights.
fn sliced(
    model: Model,
    weights: &[Vec<f32>],
    zero: impl Into<Slicing>,
    ranks: VirtualRanks,
    rule: impl Into<Rule>,
    comm: &Arc<Comm>,
) -> Engine {
    let engine = Engine::blank(model, zero, Device::flex(), ranks, rule, Key::new(0), Arc::clone(comm));
    with_weights(engine, weights)
}

pub(super) fn with_weights(mut engine: Engine, weights: &[Vec<f32>]) -> Engine {
    weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
    engine
}

/// How a step's samples come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Micro {
    /// In one micro-batch of each virtual rank.
    One,
    /// In several of each, some of fewer.
    Several,
    /// Several times several, before the step.
    Accumulated,
}

const WAYS: [Micro; 3] = [Micro::One, Micro::Several, Micro::Accumulated];

/// A model, always with the same first weights, and samples for it.
struct Case<M, S> {
    model: M,
    weights: Vec<Vec<f32>>,
    share: S,
    optimizer: Optimizer,
}

fn case<M: Fn() -> Model + Sync, S: Fn(usize, u64) -> Share<'static> + Sync>(
    model: M,
    share: S,
) -> Case<M, S> {
    Case { weights: model().initial(5), model, share, optimizer: Optimizer::adamw(0.1) }
}

/// Four steps over four virtual ranks, the second of them refused, the last short: a virtual rank with one row, one with none, whose rank computes
/// nothing while the weights of the third step are on their way.
fn trained<M: Fn() -> Model + Sync, S: Fn(usize, u64) -> Share<'static> + Sync>(
    case: &Case<M, S>,
    world: u32,
    zero: impl Into<Slicing> + Copy + Sync,
    reduction: Reduction,
    micro: Micro,
) -> Vec<(StepLoss, Weights)> {
    trained_in(ReduceDtype::F32, case, world, zero, reduction, micro)
}

/// The same, with gradients that are added up in these numbers.
fn trained_in<M: Fn() -> Model + Sync, S: Fn(usize, u64) -> Share<'static> + Sync>(
    dtype: ReduceDtype,
    case: &Case<M, S>,
    world: u32,
    zero: impl Into<Slicing> + Copy + Sync,
    reduction: Reduction,
    micro: Micro,
) -> Vec<(StepLoss, Weights)> {
    let ranks = VirtualRanks { count: 4, world };
    let rule = Rule { optimizer: case.optimizer, clip: Some(0.5) };
    spawn(world, |collective| {
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let mut engine = sliced((case.model)(), &case.weights, zero, ranks, rule, &comm)
            .with_buckets(BucketSizes { first: 1 << 10, others: 1 << 14 })
            .with_reduction(reduction)
            .with_reduce_dtype(dtype);
        let mut last = None;
        for (step, rows) in [[8; 4], [8; 4], [8; 4], [8, 3, 1, 0]].iter().enumerate() {
            let step = step as u64;
            let shares = |call: u64| -> Vec<Share<'static>> {
                let of = |it: u32| {
                    let count = if micro == Micro::One { 1 } else { 1 + u64::from(it) % 3 };
                    let seed = |at: u64| step << 24 | call << 16 | at << 8 | u64::from(it);
                    // A single row is normalised by running numbers, which those after it move.
                    let rows = |at: u64| {
                        if at == 0 && count > 1 { rows[it as usize].min(1) } else { rows[it as usize] }
                    };
                    (0..count).flat_map(|at| (case.share)(rows(at), seed(at))).collect()
                };
                ranks.of(comm.rank()).map(of).collect()
            };
            if micro == Micro::Accumulated {
                engine.accumulate(shares(1), plan(step)).unwrap();
                engine.accumulate(shares(2), plan(step)).unwrap();
            }
            let rate = StepPlan { rate: 0.01, ..plan(step) };
            last = Some(engine.step(shares(0), rate, |_| step != 1).unwrap());
        }
        (last.unwrap(), engine.weights().unwrap())
    })
}

fn assert_same_bits<M: Fn() -> Model + Sync, S: Fn(usize, u64) -> Share<'static> + Sync>(
    case: &Case<M, S>,
    named: &str,
) {
    for micro in WAYS {
        let alone = trained(case, 1, Zero::Nothing, Reduction::Exact, micro).remove(0);
        for zero in Zero::ALL {
            for world in 1..=4 {
                for (loss, weights) in trained(case, world, zero, Reduction::Exact, micro) {
                    assert_eq!(loss, alone.0, "{named}, {micro:?}, {zero:?}, W={world}");
                    assert!(weights == alone.1, "{named}, {micro:?}, {zero:?}, W={world}: weights differ");
                }
            }
        }
        println!("{named}, {micro:?}: {}", alone.1.digest().short());
    }
}

#[test]
fn every_stage_on_any_world_trains_the_same_weights() {
    for norm in [Norm::Batch, Norm::Sync, Norm::Group] {
        assert_same_bits(&case(|| super::model(norm), share), &norm.to_string());
    }
}

/// Both optimizers that compare the lengths of parameters and steps, with steps that are long enough to be seen.
fn with_trust_ratios() -> [Optimizer; 2] {
    [Optimizer::lamb(0.1), Optimizer::Lars { momentum: 0.9, trust_coefficient: 1.0, weight_decay: 0.1 }]
}

#[test]
fn so_do_optimizers_that_compare_the_lengths_of_parameters_that_lie_in_slices() {
    for optimizer in with_trust_ratios() {
        let conv = Case { optimizer, ..case(|| super::model(Norm::Batch), share) };
        assert_same_bits(&conv, &format!("{optimizer:?}"));
        let half = || {
            let frozen = Dense { linear: linear(64, 64) }.no_grad();
            Chain::start(frozen)
                .then(Dense { linear: linear(64, 96) })
                .then(Logits { linear: linear(96, 10) })
        };
        let half = Case { optimizer, ..case(|| half().into_model(), columns) };
        assert_same_bits(&half, &format!("{optimizer:?}, frozen"));
    }
}

#[test]
fn a_ratio_is_that_of_the_whole_parameter_and_of_weights_alone() {
    let moved = |optimizer| {
        let mut engine =
            engine(super::model(Norm::Group), VirtualRanks { count: 2, world: 1 }, optimizer, &alone());
        let before = engine.weights().unwrap();
        let shares = (0..2).map(|it| share(8, it)).collect();
        engine.step(shares, StepPlan { rate: 0.25, ..plan(0) }, |_| true).unwrap();
        (before, engine.weights().unwrap())
    };
    // The velocity is the rate times the trust coefficient times the length of the weights, whatever the length of the
    // gradient.
    let lars = Optimizer::Lars { momentum: 0.9, trust_coefficient: 0.5, weight_decay: 0.0 };
    for (optimizer, share) in [(Optimizer::lamb(0.0), 0.25), (lars, 0.125)] {
        let (before, after) = moved(optimizer);
        let length = |numbers: &mut dyn Iterator<Item = f32>| {
            numbers.map(|it| f64::from(it).powi(2)).sum::<f64>().sqrt()
        };
        let mut adapted = 0;
        for (before, after) in before.0.iter().zip(&after.0) {
            let of_move =
                length(&mut before.values.iter().zip(&after.values).map(|(one, other)| one - other));
            let ratio = of_move / length(&mut before.values.iter().copied());
            if before.shape.len() > 1 {
                assert!((ratio - share).abs() < 1e-4, "{optimizer:?} {}: {ratio}", before.name);
                adapted += 1;
            } else {
                assert!(
                    (ratio - share).abs() > 1e-3 || ratio.is_nan(),
                    "{optimizer:?} {} is excluded: {ratio}",
                    before.name
                );
            }
        }
        assert!(adapted > 2);
    }
}

/// A layer whose rows are normalised as such: a micro-batch of one row has a single value of each channel.
#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
}

impl Normed {
    fn of(inputs: usize, outputs: usize) -> Normed {
        Normed { linear: linear(inputs, outputs), norm: BatchNorm::new(outputs, &Device::flex()) }
    }
}

crate::block!(Normed, |self, input: Tensor<2>, pass| -> Tensor<2> {
    relu(self.norm.forward(self.linear.forward(input), pass))
});

#[test]
fn so_it_does_with_running_numbers_that_move_before_a_block_is_computed_again() {
    let model = || {
        let head = Logits { linear: linear(32, 10) };
        Chain::start(Normed::of(64, 32)).then(Normed::of(32, 32)).then(head).into_model()
    };
    assert_same_bits(&case(model, columns), "normalised rows");
}

#[test]
fn so_it_does_with_tied_skipped_frozen_and_unused_parameters() {
    let tied = || {
        let Joined { fork, middle, join } = joined();
        let frozen = Dense { linear: linear(64, 64) }.no_grad();
        Chain::start(frozen).then(fork).then(middle).then(join).into_model()
    };
    let half = || {
        let dense = Dense { linear: linear(32, 32) };
        let linear_of = dense.linear.bias.map(|bias| bias.set_require_grad(false));
        let half = Dense { linear: Linear { bias: linear_of, ..dense.linear } };
        let first = Dense { linear: linear(64, 32) };
        Chain::start(first).then(half).then(Logits { linear: linear(32, 10) }).into_model()
    };
    assert_same_bits(&case(tied, columns), "tied");
    assert_same_bits(&case(half, columns), "half frozen");
}

#[test]
fn so_does_a_transformer_whose_head_is_its_embedding() {
    let size = GptSize { layers: 2, heads: 2, width: 32 };
    let model = || gpt(17, 8, size, 0.1, &Device::flex()).into_model();
    assert_same_bits(&case(model, tokens), "gpt");
}

/// Rows of eight tokens of seventeen, and those that follow them.
fn tokens(count: usize, seed: u64) -> Share<'static> {
    let token = |at: usize| ((at as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9) >> 7) % 17;
    let features = (0..count * 8).map(|at| token(at) as f32).collect();
    let labels = (0..count * 8).map(|at| token(at + 1) as u32).collect();
    share_of(Samples { features, labels }, InputShape::Tokens(8), &Device::flex())
}

#[test]
fn groups_that_each_have_everything_train_the_same_weights() {
    for norm in [Norm::Batch, Norm::Sync] {
        let case = case(|| super::model(norm), share);
        for micro in WAYS {
            let alone = trained(&case, 1, Zero::Nothing, Reduction::Exact, micro).remove(0);
            for zero in Zero::ALL {
                for (world, group) in [(2, 1), (4, 1), (4, 2), (3, 3)] {
                    let slicing = Slicing { zero, group: NonZeroU32::new(group) };
                    for (loss, weights) in trained(&case, world, slicing, Reduction::Exact, micro) {
                        assert_eq!(
                            loss, alone.0,
                            "{norm}, {micro:?}, {zero:?}, W={world}, groups of {group}"
                        );
                        assert!(
                            weights == alone.1,
                            "{norm}, {micro:?}, {zero:?}, W={world}, groups of {group}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn added_up_in_sixteen_bits_every_stage_on_any_world_trains_the_same_weights() {
    for norm in [Norm::Batch, Norm::Sync] {
        let case = case(|| super::model(norm), share);
        let flat =
            |weights: &Weights| weights.0.iter().flat_map(|it| it.values.clone()).collect::<Vec<f32>>();
        for micro in WAYS {
            let full = trained(&case, 1, Zero::Nothing, Reduction::Exact, micro).remove(0).1;
            let of = |world, slicing: Slicing, reduction| {
                trained_in(ReduceDtype::Bf16, &case, world, slicing, reduction, micro)
            };
            let alone = of(1, Zero::Nothing.into(), Reduction::Exact).remove(0);
            assert!(alone.1 != full, "it is not the same as in 32 bits");
            assert_close(&flat(&alone.1), &flat(&full), 0.05);
            for zero in Zero::ALL {
                for (world, group) in [
                    (1, None),
                    (2, None),
                    (3, None),
                    (4, None),
                    (4, NonZeroU32::new(2)),
                    (4, NonZeroU32::new(1)),
                ] {
                    let slicing = Slicing { zero, group };
                    for (loss, weights) in of(world, slicing, Reduction::Exact) {
                        assert_eq!(loss, alone.0, "{norm}, {micro:?}, W={world}, {slicing:?}");
                        assert!(weights == alone.1, "{norm}, {micro:?}, W={world}, {slicing:?}");
                    }
                    let ranks = of(world, slicing, Reduction::Fast(Compression::None));
                    assert!(ranks.iter().all(|rank| rank.1 == ranks[0].1), "W={world}, {slicing:?}");
                    assert_close(&flat(&ranks[0].1), &flat(&full), 0.05);
                }
            }
        }
    }
}

#[test]
fn added_up_in_any_order_all_ranks_agree_and_differ_by_rounding() {
    let case = case(|| super::model(Norm::Group), share);
    for micro in WAYS {
        let exact = trained(&case, 1, Zero::Nothing, Reduction::Exact, micro).remove(0).1;
        let flat =
            |weights: &Weights| weights.0.iter().flat_map(|it| it.values.clone()).collect::<Vec<f32>>();
        for zero in Zero::ALL {
            for world in 1..=4 {
                let fast = Reduction::Fast(Compression::None);
                let ranks = trained(&case, world, zero, fast, micro);
                assert!(ranks.iter().all(|rank| rank.1 == ranks[0].1), "{zero:?}, W={world}");
                assert_close(&flat(&ranks[0].1), &flat(&exact), 1e-3);
            }
        }
    }
}

/// Blocks of `columns` columns each.
fn wide(columns: usize, blocks: usize) -> Model {
    let dense = || Dense { linear: linear(columns, columns) };
    let chain =
        (1..blocks).fold(Chain::start(Dense { linear: linear(64, columns) }), |chain, _| chain.then(dense()));
    chain.then(Logits { linear: linear(columns, 10) }).into_model()
}

/// The outcome of a number of steps of a number of calls each: the most bytes that a rank held in the last
/// one, and the bytes it sent in it.
fn cost(
    model: impl Fn() -> Model + Sync,
    world: u32,
    zero: Zero,
    (reduction, precision): (Reduction, Precision),
    calls: u64,
) -> Vec<(Usage, u64)> {
    cost_in(ReduceDtype::F32, model, world, zero, (reduction, precision), calls)
}

/// The same, with gradients that are added up in these numbers.
fn cost_in(
    dtype: ReduceDtype,
    model: impl Fn() -> Model + Sync,
    world: u32,
    zero: Zero,
    (reduction, precision): (Reduction, Precision),
    calls: u64,
) -> Vec<(Usage, u64)> {
    let ranks = VirtualRanks { count: world, world };
    spawn(world, |collective| {
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let (adam, key) = (Optimizer::adam(0.0), Key::new(0));
        let engine = Engine::blank(model(), zero, Device::flex(), ranks, adam, key, Arc::clone(&comm))
            .with_precision(precision)
            .with_buckets(BucketSizes { first: 1 << 16, others: 1 << 18 })
            .with_reduction(reduction)
            .with_reduce_dtype(dtype);
        let mut engine = with_weights(engine, &model().initial(5));
        let sent = || comm.run(|collective| Ok(collective.bytes_sent())).unwrap();
        let mut before = 0;
        for step in 0..3 {
            (_, before) = (engine.most_memory(), sent());
            for call in 1..calls {
                engine.accumulate(vec![columns(4, call << 8 | u64::from(comm.rank()))], plan(step)).unwrap();
            }
            engine.step(vec![columns(4, u64::from(comm.rank()))], plan(step), |_| true).unwrap();
        }
        let sent = sent() - before;
        if precision == Precision::F32 {
            // To compare them takes no more than a step.
            engine.digests().unwrap();
        }
        (engine.most_memory(), sent)
    })
}

#[test]
fn a_rank_holds_what_the_stage_says() {
    let model = || wide(256, 8);
    let parameters = model().parameter_count() as f64;
    let block = 256.0 * 256.0 + 256.0;
    for (world, precision) in [
        (1, Precision::F32),
        (2, Precision::F32),
        (4, Precision::F32),
        (2, Precision::Bf16),
        (4, Precision::Bf16),
        (3, Precision::F16),
    ] {
        for zero in Zero::ALL {
            let share = |from: Zero| if zero >= from { 1.0 / f64::from(world) } else { 1.0 };
            // Two buckets of gradients are there at once where they do not stay; here each is a block.
            let buckets = if zero >= Zero::Gradients { 2.0 * 4.0 * block } else { 0.0 };
            // In sixteen bits there are parameters to compute with besides the weights, of which only slices are needed then.
            let (weights, gathered) = match (precision, zero) {
                (Precision::F32, Zero::Parameters) => (4.0 * share(zero), 2.0 * 4.0 * block),
                (Precision::F32, _) => (4.0, 0.0),
                (Precision::Bf16 | Precision::F16, Zero::Nothing) => (4.0, 2.0 * parameters),
                (Precision::Bf16 | Precision::F16, Zero::Parameters) => {
                    (4.0 * share(zero), 2.0 * 2.0 * block)
                }
                (Precision::Bf16 | Precision::F16, _) => (2.0 + 4.0 * share(zero), 0.0),
            };
            let expected = [
                weights * parameters,
                4.0 * parameters * share(Zero::Gradients) + buckets,
                8.0 * parameters * share(Zero::Moments),
                gathered,
            ];
            let ranks = cost(model, world, zero, (Reduction::Exact, precision), 1);
            for (rank, (usage, _)) in ranks.into_iter().enumerate() {
                println!("W={world}, {precision}, {zero:?}, rank {rank}: {usage:?}");
                let found = usage.by_kind().map(|(_, bytes)| bytes as f64);
                for (found, expected) in found.into_iter().zip(expected) {
                    // A chunk more of every block, where slices are not all the same.
                    let padding = 8.0 * 4.0 * 1024.0 * 2.0;
                    let is_as_expected =
                        found <= expected * 1.02 + padding && found >= expected * 0.98 - padding;
                    assert!(is_as_expected, "{found} of {expected}: {zero:?}, W={world}, {usage:?}");
                }
            }
        }
    }
}

#[test]
fn parameters_that_later_blocks_need_again_are_counted_as_long() {
    let tied = || {
        let Joined { fork, middle, join } = joined();
        Chain::start(fork).then(middle).then(join).into_model()
    };
    let two_blocks = 2 * 4 * (64 * 16 + 16);
    for (usage, _) in cost(tied, 2, Zero::Parameters, (Reduction::Exact, Precision::F32), 1) {
        let with_tied = two_blocks + 4 * 64 * 16;
        assert!((two_blocks + 1..=with_tied).contains(&usage.gathered), "{usage:?}");
    }
}

#[test]
fn a_rank_sends_what_the_stage_says() {
    let model = || wide(256, 8);
    let bytes = 4.0 * model().parameter_count() as f64;
    for world in [2u32, 4] {
        let share = f64::from(world - 1) / f64::from(world) * bytes;
        for calls in [1, 3] {
            for (zero, reduction, shares) in [
                (Zero::Nothing, Reduction::Exact, 2),
                (Zero::Moments, Reduction::Exact, 2),
                (Zero::Moments, Reduction::Fast(Compression::None), 2),
                // Nothing is sent before it is complete: that would take other sums.
                (Zero::Gradients, Reduction::Exact, 2),
                (Zero::Gradients, Reduction::Fast(Compression::None), calls + 1),
                (Zero::Parameters, Reduction::Exact, 2 * calls + 1),
                (Zero::Parameters, Reduction::Fast(Compression::None), 3 * calls),
            ] {
                // Of the last block, which goes forward and back at once, one gathering less.
                let spared = if zero == Zero::Parameters { calls as f64 * 4.0 * 2_570.0 } else { 0.0 };
                let expected = share * shares as f64 - spared * f64::from(world - 1) / f64::from(world);
                let ranks = cost(model, world, zero, (reduction, Precision::F32), calls);
                let all: u64 = ranks.iter().map(|(_, sent)| sent).sum();
                let found = all as f64 / f64::from(world);
                println!("W={world}, {zero:?}, {reduction:?}, {calls} calls: {:.4}", found / expected);
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{found} of {expected}: {zero:?}, {reduction:?}, {calls}"
                );
            }
        }
    }
}

#[test]
fn in_sixteen_bits_a_rank_sends_half_as_much_of_gradients_and_all_of_weights() {
    let model = || wide(256, 8);
    let bytes = 4.0 * model().parameter_count() as f64;
    for world in [2u32, 4] {
        let share = f64::from(world - 1) / f64::from(world) * bytes;
        for calls in [1, 3] {
            for (zero, reduction, of_gradients, of_weights) in [
                (Zero::Nothing, Reduction::Exact, 2, 0),
                (Zero::Nothing, Reduction::Fast(Compression::None), 2, 0),
                (Zero::Moments, Reduction::Exact, 1, 1),
                (Zero::Moments, Reduction::Fast(Compression::None), 1, 1),
                (Zero::Gradients, Reduction::Exact, 1, 1),
                (Zero::Gradients, Reduction::Fast(Compression::None), calls, 1),
                (Zero::Parameters, Reduction::Exact, 1, 2 * calls),
                (Zero::Parameters, Reduction::Fast(Compression::None), calls, 2 * calls),
            ] {
                let spared = if zero == Zero::Parameters { calls as f64 * 4.0 * 2_570.0 } else { 0.0 };
                let expected = share * (of_gradients as f64 / 2.0 + of_weights as f64)
                    - spared * f64::from(world - 1) / f64::from(world);
                let ranks =
                    cost_in(ReduceDtype::Bf16, model, world, zero, (reduction, Precision::F32), calls);
                let all: u64 = ranks.iter().map(|(_, sent)| sent).sum();
                let found = all as f64 / f64::from(world);
                println!("W={world}, {zero:?}, {reduction:?}, {calls} calls: {:.4}", found / expected);
                assert!(
                    (found / expected - 1.0).abs() < 0.02,
                    "{found} of {expected}: {zero:?}, {reduction:?}, {calls}"
                );
            }
        }
    }
}

#[test]
fn what_leaves_a_group_are_sums_of_the_group() {
    let model = || wide(256, 8);
    let bytes = 4.0 * model().parameter_count() as f64;
    for (groups, size) in [(2u32, 2u32), (2, 4), (4, 2)] {
        for (zero, dtype) in [
            (Zero::Moments, ReduceDtype::F32),
            (Zero::Gradients, ReduceDtype::F32),
            (Zero::Parameters, ReduceDtype::F32),
            (Zero::Parameters, ReduceDtype::Bf16),
        ] {
            let world = groups * size;
            let ranks = VirtualRanks { count: world, world };
            let of_ranks = spawn(world, |inner| {
                let (counted, sent) = Counted::new(inner, &vec![0; world as usize]);
                let comm = Arc::new(Comm::new(Box::new(counted)));
                let slicing = Slicing { zero, group: NonZeroU32::new(size) };
                let (adam, key) = (Optimizer::adam(0.0), Key::new(0));
                let engine =
                    Engine::blank(model(), slicing, Device::flex(), ranks, adam, key, Arc::clone(&comm))
                        .with_reduce_dtype(dtype);
                let mut engine = with_weights(engine, &model().initial(5));
                engine.step(vec![columns(4, comm.rank().into())], plan(0), |_| true).unwrap();
                engine.settle().unwrap();
                let other = |rank: usize| rank as u32 / size != comm.rank() / size;
                let sent = sent.lock().unwrap().clone();
                let leave = sent.into_iter().enumerate().filter(|(to, _)| other(*to)).map(|(_, bytes)| bytes);
                leave.sum::<u64>()
            });
            let found = of_ranks.into_iter().sum::<u64>() as f64 / f64::from(world);
            // A slice's sums to those who keep the same, of which each adds up a part; and the sums of this part. The first are
            // whole numbers of 64 bits, unless gradients have 16.
            let per_number = if dtype == ReduceDtype::Bf16 { 2.0 * 0.5 } else { 2.0 + 1.0 };
            let share = f64::from(groups - 1) / f64::from(groups) / f64::from(size);
            let expected = share * bytes * per_number;
            println!("{groups} groups of {size}, {zero:?}, {dtype}: {:.4}", found / expected);
            assert!((found / expected - 1.0).abs() < 0.03, "{found} of {expected}: {zero:?}, {dtype}");
        }
    }
}

#[test]
fn groups_of_ranks_that_do_not_follow_each_other_train_the_same_weights() {
    let weights = super::model(Norm::Batch).initial(5);
    let trained = |hosts: &[u32], slicing: Slicing, dtype| {
        let world = hosts.len() as u32;
        let ranks = VirtualRanks { count: 6, world };
        spawn(world, |inner| {
            let comm = Arc::new(Comm::new(Box::new(Counted::new(inner, hosts).0)));
            let mut engine =
                sliced(super::model(Norm::Batch), &weights, slicing, ranks, Optimizer::adamw(0.1), &comm)
                    .with_reduce_dtype(dtype);
            for step in 0..3 {
                let share = |it: u32| share(8, step << 8 | u64::from(it));
                engine.step(ranks.of(comm.rank()).map(share).collect(), plan(step), |_| true).unwrap();
            }
            engine.weights().unwrap()
        })
    };
    for dtype in [ReduceDtype::F32, ReduceDtype::Bf16] {
        let alone = trained(&[0], Zero::Nothing.into(), dtype).remove(0);
        for zero in Zero::ALL {
            for (hosts, size) in
                [(&[0, 1, 0, 1][..], 2), (&[1, 0, 0, 1], 2), (&[0, 1, 0, 1, 0, 1], 3), (&[0; 6], 3)]
            {
                let slicing = Slicing { zero, group: NonZeroU32::new(size) };
                let ranks = trained(hosts, slicing, dtype);
                assert!(ranks.iter().all(|rank| *rank == alone), "{zero:?}, {hosts:?}, {dtype}");
            }
        }
    }
}
