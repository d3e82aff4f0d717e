use proptest::prelude::*;

use crate::{Chain, Draws, Input, Layout, Place, Transform};

const SHAPE: [usize; 3] = [6, 8, 3];

fn transform(layout: Layout, ops: &str, mixes: &str) -> Transform {
    let chain: Chain =
        format!(r#"{{"transforms": {ops}, "batch": {{"transforms": {mixes}}}}}"#).parse().expect("a chain");
    let input = Input::Pixels { shape: SHAPE, layout: Layout::ChannelsLast };
    Transform::new(Chain { layout, ..chain }, input).expect("a chain for these pictures")
}

fn refused(ops: &str, mixes: &str) -> String {
    let chain: Result<Chain, _> =
        format!(r#"{{"transforms": {ops}, "batch": {{"transforms": {mixes}}}}}"#).parse();
    let input = Input::Pixels { shape: SHAPE, layout: Layout::ChannelsLast };
    chain.and_then(|chain| Transform::new(chain, input)).expect_err("a refusal").to_string()
}

const FLOATS: &str = r#"[{"type": "ToDtype", "dtype": "float32", "scale": true}]"#;

/// The pictures of samples whose numbers are all that of the sample, and one label of each.
fn batch(transform: &Transform, count: usize) -> (Vec<u8>, Vec<f32>) {
    let size = transform.bytes();
    let mut pictures = vec![0; count * size];
    for (sample, picture) in pictures.chunks_exact_mut(size).enumerate() {
        let place = Place { seed: 1, epoch: 0, position: sample as u64 };
        transform.apply(&[sample as u8; 144], place, picture).expect("a picture");
    }
    let labels = (0..count * count).map(|at| f32::from(u8::from(at % (count + 1) == 0))).collect();
    (pictures, labels)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

proptest! {
    #[test]
    fn mixup_makes_pictures_and_labels_of_two_samples_with_one_share(
        seed: u64, position in 0u64..1000, count in 2usize..6, alpha in 0.1f64..4.0,
    ) {
        let transform = transform(Layout::ChannelsFirst, FLOATS, &format!(r#"[{{"type": "MixUp", "alpha": {alpha}}}]"#));
        let place = Place { seed, epoch: 3, position };
        // The number of the only operation before it is 0.
        let share = crate::ops::distributions::beta(&mut Draws::new(place, 1), alpha, alpha) as f32;
        let (mut pictures, mut labels) = batch(&transform, count);
        let before = floats(&pictures);
        transform.mix(place, &mut pictures, &mut labels);
        for (sample, (picture, labels)) in floats(&pictures).chunks(144).zip(labels.chunks(count)).enumerate() {
            let previous = (sample + count - 1) % count;
            for number in picture {
                prop_assert!((number - (share * before[sample * 144] + (1.0 - share) * before[previous * 144])).abs() < 1e-6);
            }
            for (class, label) in labels.iter().enumerate() {
                let expected = if class == sample { share } else if class == previous { 1.0 - share } else { 0.0 };
                prop_assert!((label - expected).abs() < 1e-6, "{} of class {} in sample {}", label, class, sample);
            }
        }
    }

    #[test]
    fn cutmix_pastes_the_same_rectangle_in_both_layouts_and_labels_have_its_area(
        seed: u64, position in 0u64..1000, count in 2usize..6,
    ) {
        let mixes = r#"[{"type": "CutMix"}]"#;
        let place = Place { seed, epoch: 0, position };
        let first = transform(Layout::ChannelsFirst, "[]", mixes);
        let last = transform(Layout::ChannelsLast, "[]", mixes);
        let (mut planes, mut labels) = batch(&first, count);
        first.mix(place, &mut planes, &mut labels);
        let (mut pixels, mut same) = batch(&last, count);
        last.mix(place, &mut pixels, &mut same);
        prop_assert_eq!(&labels, &same);
        for (sample, (plane, pixel)) in planes.chunks(144).zip(pixels.chunks(144)).enumerate() {
            let again: Vec<u8> = (0..144).map(|at| pixel[at % 48 * 3 + at / 48]).collect();
            prop_assert_eq!(plane, again.as_slice());
            let previous = (sample + count - 1) % count;
            let pasted = plane.iter().filter(|number| usize::from(**number) == previous).count();
            let own = plane.iter().filter(|number| usize::from(**number) == sample).count();
            prop_assert_eq!(pasted + own, 144);
            prop_assert!((labels[sample * count + sample] - own as f32 / 144.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_choice_and_a_chance_leave_the_sum_of_labels(seed: u64, count in 1usize..6) {
        let mixes = r#"[
            {"type": "RandomChoice", "transforms": [{"type": "MixUp", "alpha": 0.2}, {"type": "CutMix"}], "p": [1, 3]},
            {"type": "RandomApply", "transforms": [{"type": "CutMix"}], "p": 0.3}
        ]"#;
        let transform = transform(Layout::ChannelsFirst, FLOATS, mixes);
        let (mut pictures, mut labels) = batch(&transform, count);
        let before = pictures.clone();
        let place = Place { seed, epoch: 0, position: 4 };
        transform.mix(place, &mut pictures, &mut labels);
        for labels in labels.chunks(count) {
            prop_assert!((labels.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        prop_assert!(count > 1 || before == pictures, "one sample stays as it is");
    }
}

#[test]
fn another_seed_mixes_otherwise_and_a_seed_of_the_chain_decides() {
    let mixes = r#"[{"type": "MixUp"}]"#;
    let mixed = |chain_seed: Option<u64>, seed| {
        let mut transform = transform(Layout::ChannelsFirst, FLOATS, mixes);
        let chain = Chain { seed: chain_seed, ..transform.chain().clone() };
        transform = Transform::new(chain, Input::Pixels { shape: SHAPE, layout: Layout::ChannelsLast })
            .expect("fits");
        let (mut pictures, mut labels) = batch(&transform, 3);
        transform.mix(Place { seed, epoch: 0, position: 0 }, &mut pictures, &mut labels);
        pictures
    };
    assert_ne!(mixed(None, 1), mixed(None, 2));
    assert_eq!(mixed(Some(5), 1), mixed(Some(5), 2));
}

#[test]
fn mixings_without_a_meaning_are_refused() {
    let refusal = refused("[]", r#"[{"type": "MixUp"}]"#);
    assert!(refusal.contains("MixUp, takes float pictures, and gets uint8: put ToDtype"), "{refusal}");
    let refusal = refused("[]", r#"[{"type": "CutMix", "alpha": 0}]"#);
    assert!(refusal.contains("has alpha = 0"), "{refusal}");
    let refusal = refused("[]", r#"[{"type": "RandomChoice", "transforms": []}]"#);
    assert!(refusal.contains("has 0 operations"), "{refusal}");
    let refusal =
        refused("[]", r#"[{"type": "RandomApply", "transforms": [{"type": "CutMix", "alpha": -1}]}]"#);
    assert!(refusal.contains("RandomApply, has CutMix, which has alpha = -1"), "{refusal}");
    let refusal = refused(r#"[{"type": "CutMix"}]"#, "[]");
    assert!(refusal.contains("CutMix mixes finished batches"), "{refusal}");
}

#[test]
fn a_chain_without_a_mixing_keeps_its_digest() {
    let chain: Chain = r#"{"transforms": [{"type": "RandomHorizontalFlip"}]}"#.parse().expect("a chain");
    assert!(!chain.to_json().contains("batch"));
}
