use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

/// A chain of every kind of operation that keeps the size, on pictures of 8 x 6.
const ALL: &str = r#"[
    {"type": "RandomCrop", "size": [8, 6], "padding": 2, "padding_mode": "reflect"},
    {"type": "RandomHorizontalFlip"},
    {"type": "RandomVerticalFlip"},
    {"type": "RandomApply", "transforms": [
        {"type": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"type": "GaussianBlur", "kernel_size": 3}
    ]},
    {"type": "RandomChoice", "transforms": [{"type": "RandAugment"}, {"type": "TrivialAugmentWide"}, {"type": "AutoAugment"}]},
    {"type": "RandomOrder", "transforms": [{"type": "RandomInvert"}, {"type": "RandomSolarize", "threshold": 128}]},
    {"type": "RandomResizedCrop", "size": [8, 6]},
    {"type": "ToDtype", "dtype": "float32", "scale": true},
    {"type": "Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    {"type": "RandomErasing", "value": "random"}
]"#;

const SHAPE: [usize; 3] = [8, 6, 3];

fn transform(chain: &str, shape: [usize; 3]) -> Transform {
    let chain: Chain = chain.parse().expect("a chain");
    Transform::new(chain, Input::Pixels { shape, layout: Layout::ChannelsLast })
        .expect("a chain for these pictures")
}

fn refused(chain: &str, shape: [usize; 3]) -> String {
    let read = chain.parse::<Chain>();
    let made =
        read.and_then(|chain| Transform::new(chain, Input::Pixels { shape, layout: Layout::ChannelsLast }));
    made.expect_err("a refusal").to_string()
}

fn made(transform: &Transform, sample: &[u8], place: Place) -> Vec<u8> {
    let mut out = vec![0xAA; transform.bytes()];
    transform.apply(sample, place, &mut out).expect("a picture");
    out
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut draws = crate::Draws::new(Place { seed, epoch: 0, position: 0 }, 0);
    (0..len).map(|_| draws.bits() as u8).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

proptest! {
    #[test]
    fn a_picture_follows_from_its_sample_and_its_place_alone(seed: u64, epoch in 0u64..9, position in 0u64..1_000_000) {
        let transform = transform(ALL, SHAPE);
        let place = Place { seed, epoch, position };
        let sample = noise(144, position);
        let picture = made(&transform, &sample, place);
        // Others beforehand make no difference.
        made(&transform, &noise(144, 1), Place { position: position + 1, ..place });
        prop_assert_eq!(&made(&transform.clone(), &sample, place), &picture);
        let transform = self::transform(r#"[{"type": "ToDtype", "dtype": "float32"}, {"type": "RandomErasing", "p": 1, "value": "random"}]"#, SHAPE);
        let picture = made(&transform, &sample, place);
        for other in [
            Place { seed: seed ^ 1, ..place }, Place { epoch: epoch + 1, ..place }, Place { position: position + 1, ..place },
        ] {
            prop_assert_ne!(&made(&transform, &sample, other), &picture);
        }
    }

    #[test]
    fn the_last_stage_is_what_is_in_the_batch(position: u64) {
        let place = Place { seed: 3, epoch: 1, position };
        let sample = noise(144, position);
        const CUT: &str = r#"[{"type": "RandomCrop", "size": 4}, {"type": "RandomHorizontalFlip"}, {"type": "ToDtype", "dtype": "float32"}]"#;
        for chain in [ALL, CUT, r#"[{"type": "ToDtype", "dtype": "float32"}, {"type": "Normalize", "mean": 3, "std": 2.5}]"#] {
            let chain = Chain { layout: Layout::ChannelsLast, ..chain.parse().expect("a chain") };
            let own = Transform::new(chain, Input::of_shape(&SHAPE).expect("a picture")).expect("a chain");
            let stages = own.stages(&sample, place).expect("stages");
            let Some(Stage { value: Value::Floats(last), .. }) = stages.last() else { panic!("floats") };
            prop_assert_eq!(last.pixels(), floats(&made(&own, &sample, place)));
        }
    }

    #[test]
    fn channels_may_come_and_go_first_or_last(seed: u64) {
        let pixels = noise(144, seed);
        let place = Place { seed, epoch: 0, position: 0 };
        let planes: Vec<u8> = (0..3).flat_map(|channel| pixels[channel..].iter().step_by(3).copied()).collect();
        let last = transform("[]", SHAPE);
        prop_assert_eq!(last.shape(), [3, 8, 6]);
        prop_assert_eq!(&made(&last, &pixels, place), &planes);
        let first = Transform::new(
            Chain { layout: Layout::ChannelsLast, ..Chain::new(vec![]) }, Input::of_shape(&[3, 8, 6]).expect("a picture"),
        ).expect("a chain");
        prop_assert_eq!(&made(&first, &planes, place), &pixels);
    }
}

/// The numbers of a picture in this order and type, one by one.
fn written(value: &Value, layout: Layout, dtype: Dtype) -> Vec<u8> {
    let [height, width, channels] = value.shape();
    let number = |y: usize, x: usize, channel: usize| match value {
        Value::Bytes(image) => vec![image.pixel(y, x)[channel]],
        Value::Floats(image) => {
            let float = image.pixel(y, x)[channel];
            match dtype {
                Dtype::Float16 => f16::from_f32(float).to_le_bytes().to_vec(),
                Dtype::Bfloat16 => bf16::from_f32(float).to_le_bytes().to_vec(),
                _ => float.to_le_bytes().to_vec(),
            }
        }
    };
    let all = |a: usize, b: usize, c: usize| {
        (0..a).flat_map(move |a0| (0..b).flat_map(move |b0| (0..c).map(move |c0| (a0, b0, c0))))
    };
    match layout {
        Layout::ChannelsLast => all(height, width, channels).flat_map(|(y, x, c)| number(y, x, c)).collect(),
        Layout::ChannelsFirst => all(channels, height, width).flat_map(|(c, y, x)| number(y, x, c)).collect(),
    }
}

/// Operations that cut and flip, and others between them, for pictures of 44 x 41 pixels and more.
fn cutting() -> impl Strategy<Value = Vec<String>> {
    let op = prop_oneof![
        4 => Just(r#"{"type": "RandomHorizontalFlip"}"#.to_owned()),
        3 => Just(r#"{"type": "RandomVerticalFlip"}"#.to_owned()),
        2 => (40..44_u32, 37..41_u32).prop_map(|(h, w)| format!(r#"{{"type": "RandomCrop", "size": [{h}, {w}], "pad_if_needed": true}}"#)),
        2 => (40..47_u32, 37..44_u32).prop_map(|(h, w)| format!(r#"{{"type": "CenterCrop", "size": [{h}, {w}]}}"#)),
        1 => Just(r#"{"type": "RandomResizedCrop", "size": [44, 41]}"#.to_owned()),
        1 => Just(r#"{"type": "RandomInvert"}"#.to_owned()),
        1 => Just(r#"{"type": "ToImage"}"#.to_owned()),
        1 => Just(r#"{"type": "Pad", "padding": 2}"#.to_owned()),
    ];
    prop::collection::vec(op, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn cuts_and_flips_that_touch_no_pixel_make_the_picture_of_each_stage(
        ops in cutting(),
        (seed, position) in (any::<u64>(), 0..999_u64),
        channels in prop_oneof![Just(1_usize), Just(3)],
        given_first: bool,
        layout in prop_oneof![Just(Layout::ChannelsFirst), Just(Layout::ChannelsLast)],
        dtype in prop_oneof![Just(Dtype::Uint8), Just(Dtype::Float16), Just(Dtype::Bfloat16), Just(Dtype::Float32)],
        normal: bool,
    ) {
        let mut ops = ops;
        if dtype != Dtype::Uint8 {
            ops.push(format!(r#"{{"type": "ToDtype", "dtype": "{dtype}", "scale": true}}"#));
            if normal {
                ops.push(r#"{"type": "Normalize", "mean": [0.4], "std": [0.3]}"#.to_owned());
            }
        }
        let order = if layout == Layout::ChannelsFirst { "CHW" } else { "HWC" };
        let chain: Chain = format!(r#"{{"transforms": [{}], "layout": "{order}"}}"#, ops.join(", ")).parse().expect("a chain");
        let given = if given_first { Layout::ChannelsFirst } else { Layout::ChannelsLast };
        let input = Input::Pixels { shape: [45, 71, channels], layout: given };
        let transform = Transform::of_one(chain, input).expect("a chain for these pictures");
        let (sample, place) = (noise(45 * 71 * channels, seed), Place { seed, epoch: 1, position });
        let stages = transform.stages(&sample, place).expect("a picture");
        let last = &stages.last().expect("the decoded one").value;
        let transform = transform.sized(last.size());
        prop_assert_eq!(made(&transform, &sample, place), written(last, layout, dtype));
    }
}

#[test]
fn floats_of_16_bits_are_rounded_once() {
    let sample: Vec<u8> = (0..=255).collect();
    let place = Place { seed: 0, epoch: 0, position: 0 };
    let of = |dtype: &str| {
        let chain = format!(
            r#"[{{"type": "ToDtype", "dtype": "{dtype}", "scale": true}}, {{"type": "Normalize", "mean": 0.45, "std": 0.225}}]"#
        );
        made(&transform(&chain, [16, 16, 1]), &sample, place)
    };
    let exact = floats(&of("float32"));
    let halves: Vec<f16> =
        of("float16").as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
    assert_eq!(halves, exact.iter().map(|float| f16::from_f32(*float)).collect::<Vec<_>>());
    let brains: Vec<bf16> =
        of("bfloat16").as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes)).collect();
    assert_eq!(brains, exact.iter().map(|float| bf16::from_f32(*float)).collect::<Vec<_>>());
    // torch: v2.functional.normalize(torch.tensor([[[255]]], dtype=torch.uint8) * (1 / 255), [0.45], [0.225])
    assert_eq!(exact[255], (1.0 - 0.45) / 0.225);
}

#[test]
fn a_number_of_an_operation_does_not_depend_on_the_random_choices_before_it() {
    let place = |position| Place { seed: 5, epoch: 0, position };
    let chain = |inner: &str| {
        format!(
            r#"[{{"type": "RandomApply", "p": 1, "transforms": [{inner}]}}, {{"type": "RandomHorizontalFlip"}}]"#
        )
    };
    let [one, two] = [r#"{"type": "Identity"}"#, r#"{"type": "RandomInvert", "p": 0}"#]
        .map(|inner| transform(&chain(inner), SHAPE));
    let sample = noise(144, 9);
    for position in 0..64 {
        assert_eq!(made(&one, &sample, place(position)), made(&two, &sample, place(position)));
    }
}

#[test]
fn an_impossible_chain_is_refused_with_the_operation_its_input_and_the_way_out() {
    let refusals = [
        (
            r#"[{"type": "Normalize", "mean": 0, "std": 1}]"#,
            "operation 0 of the transforms, Normalize, takes floats, and gets uint8: put ToDtype",
        ),
        (
            r#"[{"type": "ToDtype", "dtype": "float32"}, {"type": "ColorJitter"}]"#,
            "operation 1 of the transforms, ColorJitter, takes uint8 pictures, and gets float32: move it before ToDtype",
        ),
        (
            r#"[{"type": "RandomCrop", "size": 9}]"#,
            "RandomCrop, cuts 9x9 out of pictures of 8x6: set pad_if_needed, or Resize first",
        ),
        (r#"[{"type": "RandomRotation", "degrees": 5, "expand": true}]"#, "pictures of various sizes"),
        (
            r#"[{"type": "RandomApply", "transforms": [{"type": "Grayscale"}]}]"#,
            "makes either uint8 [3, 8, 6] or uint8 [1, 8, 6]",
        ),
        (
            r#"[{"type": "Normalise", "mean": 0, "std": 1}]"#,
            "there is no operation Normalise; the nearest is Normalize",
        ),
        (r#"[{"type": "Resize", "sizes": 3}]"#, "unknown field `sizes`"),
        (r#"[{"type": "GaussianBlur", "kernel_size": 4}]"#, "has a kernel of 4x4: give odd numbers"),
        (r#"[{"type": "RandomHorizontalFlip", "p": 1.5}]"#, "has p = 1.5: give a probability from 0 to 1"),
        (r#"{"version": 2, "transforms": []}"#, "have version 2, and this program reads version 1"),
        (r#"[{"p": 1}]"#, "an operation has no \"type\""),
        (r#"[{"type": "ColorJitter", "hue": 0.7}]"#, "has hue from -0.5 to 0.7"),
        (r#"[{"type": "RandomChoice", "transforms": []}]"#, "has 0 operations"),
        (r#"{"version": 2, "transforms": [{"type": "OfVersion2"}]}"#, "have version 2"),
        (
            r#"[{"type": "RandomRotation", "degrees": 5, "fill": 300}]"#,
            "has a fill that is not from 0 to 255",
        ),
        (r#"[{"type": "Pad", "padding": 1, "fill": -3}]"#, "has a fill of [-3.0, -3.0, -3.0] for uint8"),
        (
            r#"[{"type": "ToDtype", "dtype": "float32"}, {"type": "Normalize", "mean": 0, "std": 1e-50}]"#,
            "has a mean or std that is not finite in 32 bits, or a std of 0",
        ),
        (r#"[{"type": "RandAugment", "num_ops": 65}]"#, "num_ops is 65: give 64 or less"),
        (r#"[{"type": "Resize", "size": "8"}]"#, "Resize: give a number or a list of numbers"),
    ];
    for (chain, reason) in refusals {
        let refused = refused(chain, SHAPE);
        assert!(refused.contains(reason), "{chain}: {refused}");
    }
}

#[test]
fn a_chain_survives_its_json_and_equal_chains_have_equal_digests() {
    let chain: Chain = ALL.parse().expect("a chain");
    let again: Chain = chain.to_json().parse().expect("the same chain");
    assert_eq!((&again, again.digest()), (&chain, chain.digest()));
    let spelled: Chain =
        r#"{"transforms": [{"type": "RandomHorizontalFlip", "p": 0.5}]}"#.parse().expect("a chain");
    let short: Chain = r#"[{"type":"RandomHorizontalFlip"}]"#.parse().expect("a chain");
    assert_eq!(spelled.digest(), short.digest());
    assert_ne!(short.digest(), chain.digest());
}

#[test]
fn pictures_that_would_take_too_much_memory_are_errors() {
    let of = |chain: &str, shape| {
        let transform = transform(chain, shape);
        let sample = vec![0; shape.iter().product()];
        let mut out = vec![0; transform.bytes()];
        transform
            .apply(&sample, Place { seed: 0, epoch: 0, position: 0 }, &mut out)
            .expect_err("an error")
            .to_string()
    };
    let told = of(r#"[{"type": "Resize", "size": [8, 200]}]"#, [1 << 20, 1, 1]);
    assert!(told.contains("makes 1048576 rows of 200 pixels before it makes them fewer"), "{told}");
    let long = r#"[{"type": "RandomRotation", "degrees": [45, 45], "expand": true}, {"type": "CenterCrop", "size": 8}]"#;
    let told = of(long, [1, 1 << 20, 1]);
    assert!(told.contains("RandomRotation, makes pictures of 741"), "{told}");
}

#[test]
fn pictures_without_pixels_are_refused() {
    for shape in [&[0, 4, 3][..], &[3, 0, 4], &[4, 0]] {
        assert!(matches!(Input::of_shape(shape), Err(ChainError::Input(_))), "{shape:?}");
    }
}

#[test]
fn a_sample_of_another_size_is_an_error_and_no_panic() {
    let transform = transform("[]", SHAPE);
    let done = transform.apply(&[0; 143], Place { seed: 0, epoch: 0, position: 0 }, &mut [0; 144]);
    assert!(matches!(done, Err(SampleError::Bytes(143, 144))));
}
