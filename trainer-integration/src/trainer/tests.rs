use burn::module::{Module, Param};
use burn::nn::{DropoutConfig, Linear, LinearConfig};
use burn::tensor::module::embedding;
use burn::tensor::{Int, Tensor, TensorData};
use shardd_store::catalog::StorePlace;

use super::*;
use crate::block::{Block, Pass};
use crate::checkpoint::CheckpointStore;
use crate::collective::{ThreadCollective, spawn};
use crate::loss::{CrossEntropy, SampleLosses};
use crate::models::{Norm, conv_net, perceptron};
use crate::testkit::digits_like;
use crate::weights::Init;
use crate::zero::Zero;

type Digits = Trainer<Tensor<4>, Tensor<2>, CrossEntropy>;

fn digits(count: usize, seed: u64) -> (Tensor<4>, Vec<u32>) {
    let (features, labels) = digits_like(count, seed);
    (Tensor::from_data(TensorData::new(features, [count, 1, 8, 8]), &Device::flex()), labels)
}

fn trainer(collective: ThreadCollective) -> Digits {
    let model = conv_net([1, 8, 8], 10, Norm::Group, 0.0, &Device::flex());
    Trainer::new(model, CrossEntropy, Box::new(collective))
        .virtual_ranks(4)
        .optimizer(Optimizer::adamw(0.01))
        .clip(1.0)
        .seed(3)
        .build()
        .unwrap()
}

#[test]
fn accumulated_and_whole_steps_are_the_same_and_any_world_agrees() {
    let train = |world: u32, in_turn: bool| {
        let trained = spawn(world, |collective| {
            let mut trainer = trainer(collective);
            for step in 0..5u64 {
                let halves = |half: u64| {
                    move |virtual_rank: u32| [digits(8, step << 8 | half << 4 | u64::from(virtual_rank))]
                };
                if in_turn {
                    trainer.no_sync(halves(0)).unwrap();
                    trainer.no_sync(halves(1)).unwrap();
                    trainer.sync_now(0.01).unwrap();
                } else {
                    trainer.step(0.01, |it| [halves(0)(it), halves(1)(it)].map(|[half]| half)).unwrap();
                }
            }
            trainer.barrier().unwrap();
            let output = trainer.output(digits(3, 99).0).unwrap();
            (trainer.weights().unwrap().digest(), output.into_data().try_into_vec::<f32>().unwrap())
        });
        assert!(trained.iter().all(|rank| *rank == trained[0]));
        trained[0].clone()
    };
    let expected = train(1, false);
    assert_eq!(expected.1.len(), 30);
    for world in 1..=4 {
        assert!(train(world, true) == expected, "W={world}");
        assert!(train(world, false) == expected, "W={world}");
    }
}

#[test]
fn a_model_of_ones_own_learns() {
    let losses = spawn(2, |collective| {
        let mut trainer = trainer(collective);
        let loss = |step: u64, trainer: &mut Digits| {
            trainer
                .step(0.01, |virtual_rank| [digits(16, step << 8 | u64::from(virtual_rank))])
                .unwrap()
                .mean()
        };
        let first = loss(0, &mut trainer);
        let last = (1..40).map(|step| loss(step, &mut trainer)).last();
        (first, last.unwrap())
    });
    assert_eq!(losses[0], losses[1]);
    assert!(losses[0].1 < losses[0].0 / 10.0, "{losses:?}");
}

#[test]
fn inputs_without_rows_change_nothing() {
    let train = |with_empty: bool| {
        let trained = spawn(2, |collective| {
            let mut trainer = trainer(collective);
            let rows = |virtual_rank: u32| {
                let empty = with_empty && virtual_rank > 1;
                let rows = [digits(8, virtual_rank.into())];
                rows.into_iter().chain(empty.then(|| digits(0, 1)))
            };
            let loss = trainer.step(0.01, rows).unwrap();
            (loss.samples, trainer.weights().unwrap().digest())
        });
        assert_eq!(trained[0], trained[1]);
        trained[0]
    };
    assert_eq!(train(true), train(false));
}

#[test]
fn weight_decay_goes_by_what_is_said_of_a_name() {
    let after = |decay: f32, share: fn(&str, &[usize]) -> f32| {
        let weights = spawn(2, |collective| {
            let model = perceptron(3, 2, 0.0, &Device::flex()).decay(share);
            let mut trainer = Trainer::new(model, CrossEntropy, Box::new(collective))
                .optimizer(Optimizer::adamw(decay))
                .build()
                .unwrap();
            let rows = Tensor::from_floats([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]], &Device::flex());
            trainer.step(0.1, |_| [(rows.clone(), vec![0, 1])]).unwrap();
            trainer.weights().unwrap()
        });
        weights.into_iter().next().unwrap()
    };
    let plain = after(0.0, |_, _| 1.0);
    assert_eq!(after(0.5, |_, _| 0.0).digest(), plain.digest());
    let decayed = after(0.5, |name, _| if name == "head.linear.weight" { 0.5 } else { 0.0 });
    assert!(plain.0.iter().any(|named| named.name == "head.linear.weight"));
    for (decayed, plain) in decayed.0.iter().zip(&plain.0) {
        assert_eq!(decayed == plain, plain.name != "head.linear.weight", "{}", plain.name);
    }
    let refused = spawn(1, |collective| {
        let model = perceptron(3, 2, 0.0, &Device::flex()).decay(|_, _| -1.0);
        Trainer::new(model, CrossEntropy, Box::new(collective)).build().unwrap_err().to_string()
    });
    assert!(refused[0].contains("-1 of the weight decay applies to"), "{refused:?}");
}

#[test]
fn a_checkpoint_is_refused_where_only_the_frozen_parameters_differ() {
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    let shelf = CheckpointStore::open(&place, &"any".parse().unwrap()).unwrap();
    let run = |frozen: &'static str| {
        let trained = spawn(1, |collective| {
            let plain = |from, to| Plain { linear: LinearConfig::new(from, to).init(&Device::flex()) };
            // Without decay, which frozen parameters never have.
            let chain = Chain::start(plain(3, 3)).then(plain(3, 2)).decay(|_, _| 0.0);
            let chain = chain.freeze(|name| !frozen.is_empty() && name.starts_with(frozen));
            let checkpoints =
                Checkpoints { shelf: shelf.clone(), every_steps: Some(1), every: None, keep: 2 };
            let mut trainer = Trainer::new(chain, CrossEntropy, Box::new(collective))
                .checkpoints(checkpoints, Resume::Auto)
                .build()?;
            let rows = Tensor::from_floats([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]], &Device::flex());
            trainer.step(0.1, |_| [(rows.clone(), vec![0, 1])])?;
            trainer.finish()?;
            Ok::<_, TrainError>(trainer.steps())
        });
        trained.into_iter().next().unwrap()
    };
    assert_eq!(run("0.").unwrap(), 1);
    let error = run("").unwrap_err().to_string();
    assert!(error.contains("0 trained numbers in block 0, and not 12"), "{error}");
    assert_eq!(run("0.").unwrap(), 2);
}

/// A table of vectors, one for each token; their mean over a row.
#[derive(Module, Debug)]
struct Table {
    rows: Param<Tensor<2>>,
}

impl Block for Table {
    type Input = Tensor<2, Int>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2, Int>, _pass: &mut Pass) -> Tensor<2> {
        embedding(self.rows.val(), input).mean_dim(1).squeeze_dim::<2>(1)
    }

    fn init(&self, _: &str, _: &[usize]) -> Option<Init> {
        Some(Init::Uniform { bound: 0.1 })
    }
}

/// Its figures are in the documentation (docs/TRAINER.md, "Checkpoints").
#[test]
fn of_a_large_vocabulary_a_checkpoint_writes_the_pieces_of_the_tokens_in_use() {
    // Four objects of 2^20 numbers, each of 16,384 tokens; and as many of the optimizer.
    const VOCABULARY: usize = 1 << 16;
    const WIDTH: usize = 64;
    let run = |world: u32, zero: Zero, optimizer: Optimizer| {
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        let shelf = CheckpointStore::open(&place, &"words".parse().unwrap()).unwrap();
        let written = spawn(world, |collective| {
            let device = Device::flex();
            let table = Table { rows: Param::from_tensor(Tensor::zeros([VOCABULARY, WIDTH], &device)) };
            let head = Plain { linear: LinearConfig::new(WIDTH, 4).init(&device) };
            let checkpoints =
                Checkpoints { shelf: shelf.clone(), every_steps: Some(1), every: None, keep: 2 };
            let mut trainer = Trainer::new(
                Chain::start(table).named("table").then(head).named("head"),
                CrossEntropy,
                Box::new(collective),
            )
            .virtual_ranks(2)
            .optimizer(optimizer)
            .zero(zero)
            .checkpoints(checkpoints, Resume::Auto)
            .build()
            .unwrap();
            for step in 1..=3u64 {
                // Tokens of the first and of the third object.
                let rows = |virtual_rank: u32| {
                    let token = |at: u64| (step * 31 + u64::from(virtual_rank) * 7 + at * 13) % 500;
                    let tokens: Vec<i64> =
                        (0..24).map(|at| (token(at) + 2 * 16_384 * (at % 2)) as i64).collect();
                    let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [24]), &Device::flex());
                    [(tokens.reshape([4, 6]), vec![0, 1, 2, 3])]
                };
                trainer.step(0.5, rows).unwrap();
                let _ = trainer.keep(Place { epoch: 0, position: 8 * step }).unwrap();
            }
            trainer.finish().unwrap();
            trainer.checkpoint_bytes().to_vec()
        });
        written.into_iter().next().unwrap()
    };
    let plain = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 };
    let (object, small) = (4 << 20, 8_000);
    for (world, zero) in [(1, Zero::Nothing), (2, Zero::Nothing), (2, Zero::Moments), (2, Zero::Parameters)] {
        let [first, second, third] = run(world, zero, plain)[..] else { panic!("three checkpoints") };
        println!("{zero:?}, W={world}: {first:?}, then {second:?}, {third:?}");
        assert!((8 * object..8 * object + small).contains(&first.written_bytes), "{first:?}");
        for later in [second, third] {
            assert!((4 * object..4 * object + small).contains(&later.written_bytes), "{later:?}");
            assert!((4 * object..4 * object + small).contains(&later.present_bytes), "{later:?}");
        }
    }
    // Weight decay moves every row in every step.
    let [_, second, _] = run(1, Zero::Nothing, Optimizer::Sgd { momentum: 0.0, weight_decay: 0.1 })[..]
    else {
        panic!("three checkpoints")
    };
    assert!(second.present_bytes < object, "{second:?}");
}

#[derive(Module, Debug)]
struct Noisy {
    linear: Linear,
    dropout: burn::nn::Dropout,
}
crate::block!(Noisy, |self, input: Tensor<2>| -> Tensor<2> {
    self.dropout.forward(self.linear.forward(input))
});

#[test]
fn what_cannot_be_trained_is_refused_with_the_way_out() {
    let refused = spawn(1, |collective| {
        let noisy = Noisy {
            linear: LinearConfig::new(2, 2).init(&Device::flex()),
            dropout: DropoutConfig::new(0.5).init(),
        };
        let model = Chain::start(noisy);
        Trainer::new(model, CrossEntropy, Box::new(collective)).build().unwrap_err().to_string()
    });
    assert!(refused[0].contains("use shardd_trainer::nn::Dropout"), "{refused:?}");
    let refused = spawn(3, |collective| {
        let model = perceptron(3, 2, 0.0, &Device::flex());
        let builder = Trainer::new(model, CrossEntropy, Box::new(collective)).virtual_ranks(2);
        builder.build().unwrap_err().to_string()
    });
    assert!(refused[1].contains("3 ranks cannot share 2 virtual ranks"), "{refused:?}");
    let refused = spawn(2, |collective| {
        let model = perceptron(3, 2, 0.0, &Device::flex());
        let rank = crate::collective::Collective::rank(&collective);
        let builder = Trainer::new(model, CrossEntropy, Box::new(collective)).seed(rank.into());
        builder.build().unwrap_err().to_string()
    });
    assert!(refused[0].contains("rank 1 differs from rank 0 in seed (1 against 0)"), "{refused:?}");
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    let shelf = CheckpointStore::open(&place, &"any".parse().unwrap()).unwrap();
    let refused = spawn(2, |collective| {
        let model = perceptron(3, 2, 0.0, &Device::flex());
        let rank = crate::collective::Collective::rank(&collective);
        let builder = Trainer::new(model, CrossEntropy, Box::new(collective)).zero(Zero::ALL[rank as usize]);
        let checkpoints = Checkpoints { shelf: shelf.clone(), every_steps: Some(1), every: None, keep: 1 };
        let builder = if rank == 0 { builder.checkpoints(checkpoints, Resume::Auto) } else { builder };
        builder.build().unwrap_err().to_string()
    });
    assert!(refused[0].contains("rank 1 differs from rank 0 in checkpoints ("), "{refused:?}");
    let refused = spawn(1, |collective| {
        let linear = || LinearConfig::new(2, 2).init(&Device::flex());
        let twice =
            Chain::start(Plain { linear: linear() }).named("a").then(Plain { linear: linear() }).named("a");
        Trainer::new(twice, CrossEntropy, Box::new(collective)).build().unwrap_err().to_string()
    });
    assert!(refused[0].contains("two tensors are called a.linear.weight"), "{refused:?}");
}

#[derive(Module, Debug)]
struct Plain {
    linear: Linear,
}
crate::block!(Plain, |self, input: Tensor<2>| -> Tensor<2> { self.linear.forward(input) });

#[test]
fn a_gradient_that_no_scale_brings_into_sixteen_bits_ends_it_with_the_weights_before() {
    let results = spawn(2, |collective: ThreadCollective| {
        let steep = |logits: Tensor<2>, _: &Vec<u32>| logits.sum_dim(1).squeeze_dim::<1>(1) * 1e20;
        let model = conv_net([1, 8, 8], 10, Norm::Group, 0.0, &Device::flex());
        let mut trainer = Trainer::new(model, SampleLosses::new(steep), Box::new(collective))
            .precision(Precision::F16)
            .loss_scale(LossScale::of_exponent(LossScale::LOWEST + 1))
            .build()
            .unwrap();
        let before = trainer.weights().unwrap();
        let batch = |virtual_rank: u32| [digits(8, virtual_rank.into())];
        assert!(trainer.step(0.1, batch).unwrap().is_overflow, "the scale could be lower");
        let error = trainer.step(0.1, batch).unwrap_err().to_string();
        (error, trainer.weights().unwrap() == before)
    });
    for (error, is_as_before) in results {
        assert!(error.starts_with("epoch 0, step 1:") && error.contains("as little as it may be"), "{error}");
        assert!(is_as_before);
    }
}
