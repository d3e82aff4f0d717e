//! Gradients outside of the range of exact sums.

use super::*;

/// A share whose gradients are multiplied by a factor.
fn enlarged(count: usize, seed: u64, factor: f32) -> Share<'static> {
    let of = |MicroBatch { input, measure, .. }| MicroBatch {
        input,
        measure: Box::new(move |output, rows, of| {
            let mut measured: Measured = measure(output, rows, of);
            measured.gradient.iter_mut().flatten().for_each(|gradient| *gradient = gradient.clone() * factor);
            measured
        }),
        is_divisible: false,
    };
    share(count, seed).into_iter().map(of).collect()
}

/// The outcomes of steps with these factors of gradients, the parameters in the end, and the weights before each step and in the end: of four
/// virtual ranks, on each rank.
fn trained(world: u32, factors: &[f32]) -> Vec<(Vec<StepLoss>, Vec<f32>, Vec<Weights>)> {
    let ranks = VirtualRanks { count: 4, world };
    spawn(world, |collective| {
        let comm = Arc::new(Comm::new(Box::new(collective)));
        let mut engine = engine(model(Norm::Batch), ranks, Optimizer::adam(0.0), &comm);
        let (mut losses, mut weights) = (Vec::new(), vec![engine.weights().unwrap()]);
        for (number, factor) in factors.iter().enumerate() {
            // One virtual rank has the large gradient.
            let of = |rank: u32| {
                enlarged(8, number as u64 * 8 + u64::from(rank), if rank == 2 { *factor } else { 1.0 })
            };
            let shares = ranks.of(comm.rank()).map(of).collect();
            losses.push(engine.step(shares, plan(number as u64), |_| true).unwrap());
            weights.push(engine.weights().unwrap());
        }
        (losses, engine.parameters().unwrap().concat(), weights)
    })
}

#[test]
fn a_gradient_beyond_the_range_leaves_no_trace_but_a_wider_range() {
    let factors = [1.0, 1.0, 1.0, 1.0, 1e9, 1e9, 1.0, 1.0];
    let alone = trained(1, &factors).remove(0);
    let (losses, _, weights) = &alone;
    let overflows: Vec<bool> = losses.iter().map(|loss| loss.is_overflow).collect();
    assert_eq!(overflows, [false, false, false, false, true, false, false, false]);
    assert!(losses[4].gradient_norm == f64::INFINITY && losses[5].gradient_norm > 1e6, "{losses:?}");
    assert!(weights[5] == weights[4], "neither weights nor running numbers");
    assert!(weights[6] != weights[5]);
    for world in [2, 3, 4] {
        assert!(trained(world, &factors).into_iter().all(|other| other == alone), "W={world}");
    }
}

#[test]
fn a_gradient_that_is_no_number_shows_and_is_no_matter_of_the_range() {
    for world in [1, 2, 4] {
        for (losses, parameters, _) in trained(world, &[1.0, f32::NAN]) {
            assert!(!losses[1].is_overflow && losses[1].gradient_norm.is_nan(), "{losses:?}");
            // It was taken, as it was asked to be: nothing is made of it that looks like a number.
            assert!(parameters.iter().all(|value| value.is_nan()));
        }
    }
}
