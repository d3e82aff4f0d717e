//! Gradients that 16 bits do not hold.

use super::*;

/// An engine in 16 bits with few exponents whose scale begins so.
fn scaled(exponent: i32, stays: bool) -> Engine {
    let ranks = VirtualRanks { count: 2, world: 1 };
    let weights = model(Norm::Batch).initial(5);
    let mut engine = Engine::blank(
        model(Norm::Batch),
        Zero::Nothing,
        Device::flex(),
        ranks,
        Optimizer::adam(0.0),
        Key::new(0),
        alone(),
    )
    .with_precision(Precision::F16)
    .with_loss_scale(LossScale::of_exponent(exponent));
    if stays {
        engine = engine
            .with_reduction(Reduction::Fast(Compression::None))
            .with_device_sums(Box::new(Staged::default()));
    }
    weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
    engine
}

fn step(engine: &mut Engine, number: u64) -> StepLoss {
    engine.accumulate(vec![share(8, number << 8), share(8, number << 8 | 1)], plan(number)).unwrap();
    engine.step(vec![share(8, number << 8 | 2), share(3, number << 8 | 3)], plan(number), |_| true).unwrap()
}

#[test]
fn an_overflow_leaves_no_trace_but_a_lower_scale() {
    for stays in [false, true] {
        let mut engine = scaled(24, stays);
        let before = engine.weights().unwrap();
        let mut overflows = 0;
        let mut loss = step(&mut engine, 7);
        while loss.is_overflow {
            overflows += 1;
            assert!(engine.weights().unwrap() == before, "neither weights nor running numbers");
            assert!(!loss.gradient_norm.is_finite() && loss.mean().is_finite());
            loss = step(&mut engine, 7);
        }
        println!("{overflows} overflows");
        assert!(overflows >= 3);
        assert_eq!(loss.scale, Some(LossScale::of_exponent(24 - overflows)));
        assert_eq!(engine.loss_scale(), loss.scale.map(LossScale::held));
        let mut fresh = scaled(24 - overflows, stays);
        assert_eq!(step(&mut fresh, 7), loss);
        // Moments as well: or the next step would show it.
        assert_eq!(step(&mut fresh, 8), step(&mut engine, 8));
        assert!(fresh.weights().unwrap() == engine.weights().unwrap() && fresh.weights().unwrap() != before);
    }
}

#[test]
fn the_scale_is_in_no_length_and_clips_nothing() {
    let ranks = VirtualRanks { count: 1, world: 1 };
    let at = |precision, exponent| {
        let rule = Rule { optimizer: PLAIN, clip: Some(0.5) };
        let comm = alone();
        let mut engine = Engine::blank(
            no_dropout(Norm::Group),
            Zero::Nothing,
            Device::flex(),
            ranks,
            rule,
            Key::new(0),
            comm,
        )
        .with_precision(precision)
        .with_loss_scale(LossScale::of_exponent(exponent));
        let weights = no_dropout(Norm::Group).initial(5);
        weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
        let first = engine.parameters().unwrap().concat();
        let loss = engine.step(vec![share(8, 9)], StepPlan { rate: 1.0, ..plan(0) }, |_| true).unwrap();
        let after = engine.parameters().unwrap().concat();
        let moved: Vec<f32> = first.iter().zip(after).map(|(before, after)| before - after).collect();
        (loss.gradient_norm, moved)
    };
    let (full, moves) = at(Precision::F32, 0);
    assert!(full > 0.5, "{full} is to be clipped");
    for exponent in [0, 3, 6] {
        let (norm, moved) = at(Precision::F16, exponent);
        assert!((norm / full - 1.0).abs() < 0.01, "{norm} against {full}, scaled by 2^{exponent}");
        assert_close(&moved, &moves, 0.02);
    }
}
