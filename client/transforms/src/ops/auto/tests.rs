use super::{space::Kind, *};
use crate::draws::Place;
use proptest::prelude::*;

const NONE: [f32; 0] = [];

fn draws(position: u64) -> Draws {
    Draws::new(Place { seed: 3, epoch: 1, position }, 0)
}

/// `p(37, 53, 3)` of the tests of geometry.
fn picture(height: usize, width: usize) -> Image<u8> {
    let row = |y| (0..width).flat_map(move |x| (0..3).map(move |c| 31 * y + 17 * x + 53 * c + 7 * x * y));
    Image::new([height, width, 3], (0..height).flat_map(row).map(|value| value as u8).collect())
}

fn checksum(image: &Image<u8>) -> u64 {
    image.pixels().iter().zip(1..).map(|(&value, at)| u64::from(value) * at).sum()
}

#[test]
fn geometric_operations_are_those_of_torchvision() {
    // RandAugment()._apply_image_or_video_transform(p, name, magnitude, interpolation, {"others": None})
    let cases = [
        (Primitive::ShearX(0.3), [1863562387, 1863851994]),
        (Primitive::ShearY(-0.25), [2093473666, 2095742172]),
        (Primitive::TranslateX(7), [1893281541, 1893281541]),
        (Primitive::TranslateY(-3), [1838227821, 1838227821]),
        (Primitive::Rotate(-30.0), [1797063598, 1794311930]),
    ];
    for (primitive, expected) in cases {
        let apply = |interpolation| checksum(&primitive.apply(picture(37, 53), interpolation, &NONE));
        assert_eq!([Interpolation::Nearest, Interpolation::Bilinear].map(apply), expected, "{primitive:?}");
    }
}

/// All strengths of a kind for a picture of 37 x 53.
fn magnitudes(space: &space::Space, kind: Kind, bins: u32) -> Vec<f64> {
    (0..bins).map(|bin| space.magnitude(kind, [bin, bins], [37, 53])).collect()
}

#[test]
fn strengths_are_those_of_torchvision() {
    // [float(v) for v in Class._AUGMENTATION_SPACE[name][0](bins, 37, 53)], some of them
    let at = |space, kind, bins, bin: usize| magnitudes(space, kind, bins)[bin];
    assert_eq!(at(&space::RAND, Kind::ShearX, 31, 9), 0.09000000357627869);
    assert_eq!(at(&space::RAND, Kind::ShearY, 31, 27), 0.27000001072883606);
    assert_eq!(at(&space::RAND, Kind::TranslateX, 31, 9), 7.205438137054443);
    assert_eq!(at(&space::RAND, Kind::TranslateY, 31, 30), 16.767372131347656);
    assert_eq!(at(&space::RAND, Kind::Color, 31, 20), 0.5999999642372131);
    assert_eq!(at(&space::RAND, Kind::Solarize, 31, 18), 0.40000003576278687);
    // One below 16: cut, 15 pixels.
    assert_eq!(at(&space::WIDE, Kind::TranslateX, 31, 15), 15.999999046325684);
    assert_eq!(at(&space::WIDE, Kind::Rotate, 31, 29), 130.5);
    assert_eq!(at(&space::WIDE, Kind::Contrast, 31, 25), 0.824999988079071);
    assert_eq!(at(&space::MIX, Kind::TranslateX, 10, 9), 17.66666603088379);
    assert_eq!(at(&space::MIX, Kind::TranslateY, 10, 7), 9.592592239379883);
    assert_eq!(at(&space::MIX, Kind::Sharpness, 10, 8), 0.7999999523162842);
    let bits = [8, 8, 8, 8, 7, 7, 7, 7, 7, 7, 7, 7, 6, 6, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4];
    assert_eq!(magnitudes(&space::RAND, Kind::Posterize, 31), bits.map(f64::from));
    let bits = [8, 8, 8, 7, 7, 7, 7, 7, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2];
    assert_eq!(magnitudes(&space::WIDE, Kind::Posterize, 31), bits.map(f64::from));
    assert_eq!(
        magnitudes(&space::MIX, Kind::Posterize, 10),
        [4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]
    );
    assert_eq!(magnitudes(&space::RAND, Kind::Posterize, 1), [8.0]);
}

#[test]
fn draws_come_in_the_documented_order() {
    for position in 0..200 {
        let mut expected = draws(position);
        let op = expected.below(14);
        let signed = (1..10).contains(&op);
        let bin = if signed || op == 10 || op == 11 { expected.below(31) as u32 } else { 0 };
        let negative = signed && expected.chance(0.5);
        let primitive = TrivialAugmentWide::default().primitive([37, 53], &mut draws(position));
        let magnitude =
            |kind| space::WIDE.magnitude(kind, [bin, 31], [37, 53]) * if negative { -1.0 } else { 1.0 };
        let made = match op {
            0 => Primitive::Identity,
            1 => Primitive::ShearX(magnitude(Kind::ShearX)),
            2 => Primitive::ShearY(magnitude(Kind::ShearY)),
            3 => Primitive::TranslateX(magnitude(Kind::TranslateX) as i64),
            4 => Primitive::TranslateY(magnitude(Kind::TranslateY) as i64),
            5 => Primitive::Rotate(magnitude(Kind::Rotate)),
            6 => Primitive::Brightness(magnitude(Kind::Brightness)),
            7 => Primitive::Color(magnitude(Kind::Color)),
            8 => Primitive::Contrast(magnitude(Kind::Contrast)),
            9 => Primitive::Sharpness(magnitude(Kind::Sharpness)),
            10 => Primitive::Posterize(magnitude(Kind::Posterize) as u32),
            11 => Primitive::Solarize(magnitude(Kind::Solarize)),
            12 => Primitive::AutoContrast,
            _ => Primitive::Equalize,
        };
        assert_eq!(primitive, made);
    }
}

#[test]
fn policies_are_followed() {
    for (policy, pairs) in [
        (Policy::Imagenet, &policies::IMAGENET),
        (Policy::Cifar10, &policies::CIFAR10),
        (Policy::Svhn, &policies::SVHN),
    ] {
        let auto = AutoAugment { policy, ..Default::default() };
        for position in 0..300 {
            let mut expected = draws(position);
            let pair = pairs[expected.below(25)];
            let chosen = auto.primitives([37, 53], &mut draws(position));
            let applied = pair.iter().filter(|(kind, probability, _)| {
                let applies = expected.chance(*probability);
                if applies && kind.is_signed() {
                    expected.chance(0.5);
                }
                applies
            });
            assert_eq!(chosen.len(), applied.count());
        }
    }
}

#[test]
fn all_operations_occur_alike() {
    let counts = (0..7000).fold([0; 14], |mut counts, position| {
        counts[draws(position).below(14)] += 1;
        counts
    });
    assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
    let rand = RandAugment { num_ops: 5, ..Default::default() };
    assert_eq!(rand.primitives([5, 5], &mut draws(0)).len(), 5);
    assert_eq!(RandAugment { num_ops: 0, ..rand }.apply(picture(4, 5), &mut draws(0)), picture(4, 5));
}

#[test]
fn mixtures_are_those_of_torchvision() {
    // With t(...) the transform above: mix = torch.tensor(.3) * p; mix.add_(torch.tensor(.45) * t(p,
    // "ShearX", .3)); mix.add_(torch.tensor(.25) * t(t(p, "TranslateX", 7.9), "Rotate", -30.));
    // mix.to(torch.uint8)
    let chains = vec![
        Chain { weight: 0.45, primitives: vec![Primitive::ShearX(0.3)] },
        Chain { weight: 0.25, primitives: vec![Primitive::TranslateX(7), Primitive::Rotate(-30.0)] },
    ];
    let mixture = Mixture { original: 0.3, chains };
    assert_eq!(checksum(&mixture.apply(&picture(37, 53), Interpolation::Bilinear, &NONE)), 1913194568);
}

#[test]
fn mixtures_have_weights_and_depths() {
    let mix = AugMix { mixture_width: 4, ..Default::default() };
    let mut depths = [0; 3];
    for position in 0..300 {
        let mixture = mix.mixture([37, 53], &mut draws(position));
        let sum: f32 = mixture.original + mixture.chains.iter().map(|chain| chain.weight).sum::<f32>();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(mixture.chains.len(), 4);
        mixture.chains.iter().for_each(|chain| depths[chain.primitives.len() - 1] += 1);
    }
    assert!(depths.iter().all(|depth| (320..480).contains(depth)), "{depths:?}");
    let deep = AugMix { chain_depth: 7, ..mix };
    assert!(deep.mixture([9, 9], &mut draws(1)).chains.iter().all(|chain| chain.primitives.len() == 7));
}

#[test]
fn partial_mixtures_leave_colours() {
    let mix = AugMix { all_ops: false, ..Default::default() };
    for position in 0..100 {
        for primitive in
            mix.mixture([9, 9], &mut draws(position)).chains.into_iter().flat_map(|c| c.primitives)
        {
            use Primitive::{Brightness, Color, Contrast, Sharpness};
            assert!(!matches!(primitive, Brightness(_) | Color(_) | Contrast(_) | Sharpness(_)));
        }
    }
}

#[test]
fn arguments_are_those_of_torchvision() {
    let rand: RandAugment = serde_json::from_str(r#"{"num_ops": 3, "interpolation": "bilinear"}"#).unwrap();
    assert_eq!(
        rand,
        RandAugment { num_ops: 3, interpolation: Interpolation::Bilinear, ..Default::default() }
    );
    let auto: AutoAugment = serde_json::from_str(r#"{"policy": "cifar10", "fill": [1, 2, 3]}"#).unwrap();
    assert_eq!((auto.policy, auto.fill.values()), (Policy::Cifar10, &[1.0, 2.0, 3.0][..]));
    assert_eq!(serde_json::from_str::<TrivialAugmentWide>("{}").unwrap(), TrivialAugmentWide::default());
    assert_eq!(serde_json::from_str::<AugMix>("{}").unwrap(), AugMix::default());
    assert!(serde_json::from_str::<AugMix>(r#"{"width": 3}"#).is_err());
    let text = serde_json::to_string(&AugMix::default()).unwrap();
    assert_eq!(serde_json::from_str::<AugMix>(&text).unwrap(), AugMix::default());
}

#[test]
fn wrong_arguments_are_found() {
    assert_eq!(RandAugment::default().check(), Ok(()));
    assert_eq!(TrivialAugmentWide::default().check(), Ok(()));
    assert_eq!(AugMix::default().check(), Ok(()));
    let message = RandAugment { magnitude: 31, ..Default::default() }.check().unwrap_err();
    assert_eq!(message, "magnitude 31 is not below num_magnitude_bins 31");
    assert!(TrivialAugmentWide { num_magnitude_bins: 0, ..Default::default() }.check().is_err());
    for severity in [0, 11] {
        assert!(AugMix { severity, ..Default::default() }.check().is_err());
    }
    assert!(AugMix { alpha: f64::NAN, ..Default::default() }.check().is_err());
}

proptest! {
    /// Even arguments that `check` refuses leave a picture of the same size.
    #[test]
    fn all_arguments_work(
        size in (1usize..12, 1usize..12),
        [bins, magnitude, severity, width] in [0u32..40, 0u32..40, 0u32..20, 0u32..4],
        alpha in prop_oneof![Just(f64::NAN), Just(0.0), Just(-1.0), 1e-9f64..1e9],
        position: u64,
    ) {
        let image = picture(size.0, size.1);
        let rand = RandAugment { num_ops: 2, magnitude, num_magnitude_bins: bins, ..Default::default() };
        let wide = TrivialAugmentWide { num_magnitude_bins: bins, ..Default::default() };
        let mix = AugMix { severity, mixture_width: width, alpha, ..Default::default() };
        let draws = || draws(position);
        prop_assert_eq!(rand.apply(image.clone(), &mut draws()).shape(), image.shape());
        prop_assert_eq!(wide.apply(image.clone(), &mut draws()).shape(), image.shape());
        prop_assert_eq!(mix.apply(image.clone(), &mut draws()).shape(), image.shape());
        prop_assert_eq!(AutoAugment::default().apply(image.clone(), &mut draws()).shape(), image.shape());
    }
}
