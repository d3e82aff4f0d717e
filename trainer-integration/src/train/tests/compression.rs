//! Sums of gradients that give up the fixed tree: by other algorithms, or in fewer bits.

use super::*;
use crate::collective::sums::Algorithm;
use crate::compress::Compression;

const COMPRESSIONS: [Compression; 5] = [
    Compression::TopK(0.01),
    Compression::Dgc(0.01),
    Compression::OneBit,
    Compression::Int8,
    Compression::Bf16,
];

/// A training in 33 steps with compressed gradients.
fn compressed(compression: Compression) -> TrainConfig {
    TrainConfig { reduction: Reduction::Fast(compression), ..config() }
}

#[test]
fn the_all_reduce_algorithm_decides_the_last_bits_alone_and_is_reported() {
    let of = |all_reduce| {
        let reduction = Reduction::Fast(Compression::None);
        let ranks = on_threads(4, &TrainConfig { reduction, all_reduce, epochs: 1, ..config() });
        assert!(ranks.iter().all(|rank| rank.digest == ranks[0].digest));
        ranks.into_iter().next().unwrap()
    };
    let direct = of(AllReduce::Only(Algorithm::Direct));
    let mut digests = BTreeSet::from([direct.digest]);
    for algorithm in Algorithm::ALL {
        let other = of(AllReduce::Only(algorithm));
        assert_eq!(other.all_reduce.map(|tuned| tuned.to_string()), Some(algorithm.to_string()));
        let (ours, theirs) = (other.loss_per_epoch[0], direct.loss_per_epoch[0]);
        assert!((ours - theirs).abs() < 0.01 * theirs, "{algorithm}: {ours} and {theirs}");
        digests.insert(other.digest);
    }
    // On one host, hierarchical is direct.
    assert!(digests.len() >= 4, "the algorithm that is asked for is used: {digests:?}");
    assert_eq!(of(AllReduce::BuiltIn).all_reduce, None);
    let exact = on_threads(2, &TrainConfig { all_reduce: AllReduce::Only(Algorithm::Ring), ..config() });
    assert_eq!(exact[0].all_reduce, None, "the tree has no choice");
}

#[test]
fn a_second_start_repeats_the_bits_by_the_cached_measurements() {
    let directory = tempfile::tempdir().unwrap();
    let all_reduce = AllReduce::Auto { cache: Some(directory.path().to_owned()) };
    let reduction = Reduction::Fast(Compression::None);
    let config = TrainConfig { reduction, all_reduce, epochs: 1, ..config() };
    let [first, second] = [(), ()].map(|()| on_threads(3, &config));
    assert!(first.iter().chain(&second).all(|rank| rank.digest == first[0].digest));
    let by = |ranks: &[Trained]| ranks[1].all_reduce.as_ref().map(ToString::to_string).unwrap();
    assert!(by(&first).contains("measured in"), "{}", by(&first));
    assert!(by(&second).contains("earlier start"), "{}", by(&second));
}

#[test]
fn a_resumed_training_adds_up_by_the_algorithms_of_its_checkpoint() {
    let reduction = Reduction::Fast(Compression::None);
    let only = AllReduce::Only(Algorithm::TwoTree);
    let config = TrainConfig { reduction, all_reduce: only, ..config() };
    let directory = tempfile::tempdir().unwrap();
    let place = StorePlace::Directory(directory.path().to_owned());
    in_parts(3, &config, &place, Some(6));
    // A start from the seed would measure.
    let measures = TrainConfig { all_reduce: AllReduce::Auto { cache: None }, ..config };
    for outcome in in_parts(3, &measures, &place, None) {
        let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
        let by = trained.all_reduce.expect("it sums by an algorithm").to_string();
        assert_eq!(by, "two-tree (as before the checkpoint)");
    }
}

#[test]
fn unsent_gradients_are_in_the_checkpoint_and_a_resumed_training_gives_the_same() {
    for compression in COMPRESSIONS {
        let config = compressed(compression);
        let whole = on_threads(3, &config).remove(0);
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        for stop_after in [6, 14] {
            in_parts(3, &config, &place, Some(stop_after));
        }
        for outcome in in_parts(3, &config, &place, None) {
            let Outcome::Trained(trained) = outcome else { panic!("it got no stop signal") };
            assert_eq!(trained.digest, whole.digest, "{compression}");
            assert!(trained.samples_here < whole.samples / 2, "it did not begin again");
        }
    }
}

#[test]
fn other_ranks_continue_with_all_that_was_not_sent() {
    for compression in COMPRESSIONS {
        let config = compressed(compression);
        let directory = tempfile::tempdir().unwrap();
        let place = StorePlace::Directory(directory.path().to_owned());
        in_parts(4, &config, &place, Some(6));
        let unsent = |world: u32| {
            let all = spawn(world, |mut collective: ThreadCollective| {
                let shelf = CheckpointStore::open(&place, &"parts".parse().unwrap()).unwrap();
                let checkpoint = load(&mut collective, &shelf, &Resume::Auto, config.slicing).unwrap();
                checkpoint.unwrap().state.residuals
            });
            let all: Vec<_> = all.into_iter().flatten().collect();
            assert!(all.iter().map(|it| it.rank).eq(0..4), "each rank's residual has one heir");
            let numbers = all.iter().flat_map(|it| it.residual.gradients.iter().chain(&it.residual.sums));
            numbers.map(|number| f64::from(number.abs())).sum::<f64>()
        };
        let (two, four) = (unsent(2), unsent(4));
        assert!(two > 0.0 && two == four, "{compression}: {two} and {four}");
        for world in [2, 3] {
            let stop_after = (world == 2).then_some(6);
            let outcomes = in_parts(world, &config, &place, stop_after);
            let digest = |outcome: &Outcome| match outcome {
                Outcome::Trained(trained) => Some(trained.digest),
                Outcome::Stopped(_) | Outcome::Paused(_) => None,
            };
            let digests: BTreeSet<_> = outcomes.iter().filter_map(digest).collect();
            assert!(digests.len() == usize::from(stop_after.is_none()), "all ranks agree: {digests:?}");
        }
    }
}
