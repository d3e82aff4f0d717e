use burn::tensor::activation::log_softmax;

use super::*;
use crate::collective::spawn;
use crate::optim::Optimizer;
use crate::testkit::digits_like;

const RATE: f32 = 0.1;

fn samples(count: usize, seed: u64) -> Samples {
    let model_inputs = 64;
    let (features, labels) = digits_like(count, seed);
    assert_eq!(features.len(), count * model_inputs);
    Samples { features, labels }
}

fn model() -> Model {
    Model::conv_net([1, 8, 8], 10)
}

fn pass_gradients(model: &Model, samples: &Samples, global: u64) -> (Loss, Vec<Vec<f32>>) {
    let device = Device::flex();
    let parameters = tensors_of(model, &device);
    let mut gradients = vec![Vec::new(); model.blocks.len()];
    let mut order = Vec::new();
    let pass = Pass { model, device: &device, parameters: &parameters, key: Key::new(0) };
    let loss = pass.run(samples, global, &mut model.initial_statistics(), &mut |block, gradient| {
        order.push(block);
        gradients[block] = gradient;
    });
    assert!(order.is_sorted_by(|later, earlier| later > earlier), "last block first: {order:?}");
    (loss, gradients)
}

fn tensors_of(model: &Model, device: &Device) -> Vec<Vec<Tensor<1>>> {
    let block = |block: &dyn Block| {
        let tensor = |values: Vec<f32>| {
            let length = values.len();
            Tensor::from_data(TensorData::new(values, [length]), device)
        };
        block.parameters().iter().map(|parameter| tensor(parameter.initial(3))).collect()
    };
    model.blocks.iter().map(|it| block(&**it)).collect()
}

/// Forward through all blocks in one graph; what `root` makes of the logits goes backward.
fn monolithic_gradients(
    model: &Model,
    samples: &Samples,
    root: impl Fn(Tensor<2>) -> Tensor<1>,
) -> Vec<Vec<f32>> {
    let device = Device::flex();
    let leaf = |tensor: Tensor<1>| tensor.autodiff().require_grad();
    let parameters: Vec<Vec<Tensor<1>>> =
        tensors_of(model, &device).into_iter().map(|block| block.into_iter().map(leaf).collect()).collect();
    let mut statistics = model.initial_statistics();
    let mut activation = rows(samples.features.clone(), model.inputs, &device).autodiff();
    for ((block, parameters), statistics) in model.blocks.iter().zip(&parameters).zip(&mut statistics) {
        activation = block.forward(parameters, activation, Mode::Train(statistics, Key::new(0)));
    }
    let mut found = root(activation).backward();
    let flat = |block: &Vec<Tensor<1>>| {
        block.iter().flat_map(|parameter| to_numbers(parameter.grad_remove(&mut found).unwrap())).collect()
    };
    parameters.iter().map(flat).collect()
}

#[test]
fn blocks_with_a_graph_each_give_the_gradients_of_one_graph() {
    for model in [model(), Model::perceptron(64, 10)] {
        let samples = samples(16, 1);
        let (loss, by_block) = pass_gradients(&model, &samples, 40);
        let whole = monolithic_gradients(&model, &samples, |logits| {
            let upstream = rows(loss.gradient.clone(), 10, &Device::flex()).autodiff();
            (logits * upstream).sum()
        });
        assert_eq!(by_block, whole, "to the last bit");
    }
}

#[test]
fn the_gradient_of_the_loss_is_the_one_autodiff_finds() {
    let model = model();
    let samples = samples(16, 2);
    let (_, by_block) = pass_gradients(&model, &samples, 16);
    let whole = monolithic_gradients(&model, &samples, |logits| {
        let mut targets = vec![0.0; 160];
        samples
            .labels
            .iter()
            .enumerate()
            .for_each(|(row, &label)| targets[row * 10 + label as usize] = -1.0 / 16.0);
        let targets = rows(targets, 10, &Device::flex()).autodiff();
        (log_softmax(logits, 1) * targets).sum()
    });
    for (block, whole) in by_block.iter().flatten().zip(whole.iter().flatten()) {
        assert!((block - whole).abs() <= 1e-4 * whole.abs().max(1e-3), "{block} instead of {whole}");
    }
}

/// An engine with the model's first weights.
fn engine(ranks: VirtualRanks, rule: impl Into<Rule>, comm: &Arc<Comm>) -> Engine {
    let model = model();
    let weights = model.initial(5);
    Engine::new(model, weights, Device::flex(), ranks, rule, Key::new(0), Arc::clone(comm))
}

fn plan(number: u64, samples: u64) -> StepPlan {
    StepPlan { number, samples, rate: RATE }
}

/// Some steps over four virtual ranks, the last of them short: a virtual rank with one row, one with none.
fn trained(world: u32) -> Vec<(StepLoss, Weights)> {
    let ranks = VirtualRanks { count: 4, world };
    spawn(world, |collective| {
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let mut engine = engine(ranks, Optimizer::sgd(5e-4), &comm);
        let mut last = None;
        for (step, rows) in [[8; 4], [8; 4], [8; 4], [8, 3, 1, 0]].iter().enumerate() {
            let share = |virtual_rank: u32| {
                samples(rows[virtual_rank as usize], (step as u64) << 8 | u64::from(virtual_rank))
            };
            let shares: Vec<Samples> = ranks.of(comm.rank()).map(share).collect();
            let global = rows.iter().sum::<usize>() as u64;
            let loss = engine.step(&shares, plan(step as u64, global), |_| true).unwrap();
            assert_eq!(loss.samples, global);
            last = Some(loss);
        }
        (last.unwrap(), engine.weights().unwrap())
    })
}

#[test]
fn any_world_trains_the_same_weights() {
    let alone = trained(1).remove(0);
    for world in 2..=4 {
        for (loss, weights) in trained(world) {
            assert_eq!(loss, alone.0, "W={world}");
            assert!(weights == alone.1, "W={world}: weights differ");
            assert_eq!(weights.digest(), alone.1.digest());
        }
    }
}

#[test]
fn shares_weigh_by_their_samples() {
    // A model without batch normalisation would do; with it, give every virtual rank the same rows: then two virtual
    // ranks of eight are one of eight, whatever the weights.
    let step = |count: u32| {
        spawn(1, |collective| {
            let comm = Arc::new(Comm::new(Box::new(collective)));
            let mut engine = engine(VirtualRanks { count, world: 1 }, Optimizer::sgd(0.0), &comm);
            let shares = vec![samples(8, 9); count as usize];
            engine.step(&shares, plan(0, 8 * u64::from(count)), |_| true).unwrap();
            engine.parameters().concat()
        })
        .remove(0)
    };
    for (one, two) in step(1).iter().zip(step(2)) {
        assert!((one - two).abs() <= 1e-6, "{one} and {two}");
    }
}

#[test]
fn a_clipped_step_is_as_long_as_it_may_be_and_goes_the_same_way() {
    let moved = |clip: Option<f32>| {
        spawn(1, |collective| {
            let rule = Rule { optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 }, clip };
            let comm = Arc::new(Comm::new(Box::new(collective)));
            let mut engine = engine(VirtualRanks { count: 2, world: 1 }, rule, &comm);
            let first = engine.parameters().concat();
            let loss = engine
                .step(
                    &[samples(8, 9), samples(8, 10)],
                    StepPlan { number: 0, samples: 16, rate: 1.0 },
                    |_| true,
                )
                .unwrap();
            let moves: Vec<f64> = engine
                .parameters()
                .concat()
                .iter()
                .zip(&first)
                .map(|(after, before)| f64::from(before - after))
                .collect();
            (loss.gradient_norm, moves)
        })
        .remove(0)
    };
    let length = |moves: &[f64]| moves.iter().map(|number| number * number).sum::<f64>().sqrt();
    let (norm, free) = moved(None);
    assert!((length(&free) - norm).abs() < 1e-4 * norm, "{} of {norm}", length(&free));
    let limit = (norm / 4.0) as f32;
    let (same, clipped) = moved(Some(limit));
    assert_eq!(same, norm, "told as it was before");
    assert!((length(&clipped) - norm / 4.0).abs() < 1e-4 * norm);
    for (free, clipped) in free.iter().zip(&clipped) {
        assert!((free / 4.0 - clipped).abs() < 1e-6 * norm.max(1.0));
    }
    assert_eq!(moved(Some(limit * 8.0)).1, free, "a short one is left alone");
}

#[test]
fn a_step_that_is_not_taken_changes_nothing() {
    spawn(2, |collective| {
        let ranks = VirtualRanks { count: 4, world: 2 };
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let mut engine = engine(ranks, Optimizer::sgd(5e-4), &comm);
        let shares = |step: u64| -> Vec<Samples> {
            ranks
                .of(comm.rank())
                .map(|virtual_rank| samples(8, step << 8 | u64::from(virtual_rank)))
                .collect()
        };
        engine.step(&shares(1), plan(1, 32), |_| true).unwrap();
        let before = engine.weights().unwrap();
        let refused = engine.step(&shares(2), plan(2, 32), |_| false).unwrap();
        assert!(engine.weights().unwrap() == before, "neither weights nor statistics");
        let again = engine.step(&shares(2), plan(2, 32), |_| true).unwrap();
        assert_eq!(refused, again);
        assert!(engine.weights().unwrap() != before);
    });
}
