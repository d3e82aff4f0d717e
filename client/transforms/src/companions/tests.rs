use proptest::prelude::*;

use super::*;
use crate::{Chain, Draws, Input, Layout, Place, SampleError, Stage, Transform, Value};

const SIZE: [usize; 2] = [20, 30];
/// Inside, partly outside, and all of a picture of 20x30.
const BOXES: [[f32; 4]; 3] = [[2.0, 3.0, 10.0, 12.0], [5.5, -1.0, 33.0, 19.25], [0.0, 0.0, 30.0, 20.0]];
const POINTS: [[f32; 2]; 3] = [[0.0, 0.0], [29.0, 19.0], [12.25, 7.5]];
const FORMATS: [BoxFormat; 3] = [BoxFormat::Xyxy, BoxFormat::Xywh, BoxFormat::Cxcywh];

fn transform(ops: &str, companions: &str, [height, width]: [usize; 2]) -> Transform {
    let json = format!(r#"{{"companions": {{{companions}}}, "transforms": [{ops}]}}"#);
    let chain: Chain = json.parse().expect("a chain");
    let input = Input::Pixels { shape: [height, width, 1], layout: Layout::ChannelsLast };
    Transform::new(chain, input).expect("a chain for these pictures")
}

/// The picture and its companions behind an operation, for a picture with boxes, key points and a mask.
fn stage(op: &str, size: [usize; 2], format: BoxFormat, given: &[Given<'_>], position: u64) -> Stage {
    let companions = format!(
        r#""a": {{"type": "boxes", "format": "{format}"}}, "b": {{"type": "keypoints"}}, "c": {{"type": "mask"}}"#
    );
    let chain = format!(r#"{op}, {{"type": "CenterCrop", "size": 1}}"#);
    let pixels: Vec<u8> = (0..size[0] * size[1]).map(|number| (number % 251) as u8).collect();
    let place = Place { seed: 5, epoch: 1, position };
    let stages = transform(&chain, &companions, size).stages_with(&pixels, given, place).expect("stages");
    stages[1].clone()
}

fn moved(op: &str, format: BoxFormat) -> (Vec<[f32; 4]>, Vec<[f32; 2]>) {
    let mut boxes = Boxes { format: BoxFormat::Xyxy, boxes: BOXES.to_vec() };
    boxes.convert(format);
    let mask = vec![0; SIZE[0] * SIZE[1]];
    let given = [
        Given::Boxes(boxes.boxes.as_flattened()),
        Given::KeyPoints(POINTS.as_flattened()),
        Given::Pixels { shape: &SIZE, bytes: &mask },
    ];
    match stage(op, SIZE, format, &given, 0).companions.all.as_slice() {
        [Companion::Boxes(boxes), Companion::KeyPoints(points), _] => {
            (boxes.boxes.clone(), points.points.clone())
        }
        other => panic!("boxes and key points: {other:?}"),
    }
}

fn near<const N: usize>(ours: &[[f32; N]], theirs: &[[f32; N]], of: &str) {
    assert_eq!(ours.len(), theirs.len(), "{of}");
    let far = ours.as_flattened().iter().zip(theirs.as_flattened()).find(|(a, b)| (*a - *b).abs() > 4e-6);
    assert_eq!(far, None, "{of}: {ours:?}, not {theirs:?}");
}

/// `v2.RandomHorizontalFlip(1)(BoundingBoxes(BOXES, format="XYXY", canvas_size=(20, 30)))` and so on.
#[test]
fn boxes_and_key_points_are_where_torchvision_has_them() {
    let cases = [
        (
            r#"{"type": "RandomHorizontalFlip", "p": 1}"#,
            [[20.0, 3.0, 28.0, 12.0], [-3.0, -1.0, 24.5, 19.25], [0.0, 0.0, 30.0, 20.0]],
            [[29.0, 0.0], [0.0, 19.0], [16.75, 7.5]],
        ),
        (
            r#"{"type": "RandomVerticalFlip", "p": 1}"#,
            [[2.0, 8.0, 10.0, 17.0], [5.5, 0.75, 33.0, 21.0], [0.0, 0.0, 30.0, 20.0]],
            [[0.0, 19.0], [29.0, 0.0], [12.25, 11.5]],
        ),
        (
            r#"{"type": "Resize", "size": [40, 45]}"#,
            [[3.0, 6.0, 15.0, 24.0], [8.25, -2.0, 49.5, 38.5], [0.0, 0.0, 45.0, 40.0]],
            [[0.0, 0.0], [43.5, 38.0], [18.375, 15.0]],
        ),
        (
            r#"{"type": "CenterCrop", "size": [10, 35]}"#,
            [[4.0, 0.0, 12.0, 7.0], [7.5, 0.0, 35.0, 10.0], [2.0, 0.0, 32.0, 10.0]],
            [[2.0, -5.0], [31.0, 14.0], [14.25, 2.5]],
        ),
        (
            r#"{"type": "Pad", "padding": [1, 2, 3, 4]}"#,
            [[3.0, 5.0, 11.0, 14.0], [6.5, 1.0, 34.0, 21.25], [1.0, 2.0, 31.0, 22.0]],
            [[1.0, 2.0], [30.0, 21.0], [13.25, 9.5]],
        ),
        (
            r#"{"type": "RandomAffine", "degrees": [20, 20], "scale": [0.9, 0.9], "shear": [10, 10, -5, -5]}"#,
            [[3.451308, 0.0, 14.07139, 9.647755], [3.03868, 0.0, 30.0, 20.0], [0.0, 0.0, 30.0, 20.0]],
            [[7.240043, -3.51114], [22.393356, 22.350931], [13.878803, 7.004024]],
        ),
        (
            r#"{"type": "ElasticTransform", "alpha": 0}"#,
            [[2.0, 3.0, 10.0, 12.0], [6.0, 0.0, 29.0, 19.0], [0.0, 0.0, 29.0, 19.0]],
            [[0.0, 0.0], [29.0, 19.0], [12.0, 7.0]],
        ),
    ];
    for (op, boxes, points) in cases {
        for format in FORMATS {
            let (ours, our_points) = moved(op, format);
            let ours = Boxes { format, boxes: ours };
            near(&ours.sides().collect::<Vec<_>>(), &boxes, op);
            near(&our_points, &points, op);
        }
    }
}

#[test]
fn boxes_of_an_expanded_rotation_are_where_torchvision_has_them() {
    // v2.RandomRotation([33, 33], expand=True); the second box is cut off one pixel later, where the picture ends.
    let (boxes, points) =
        moved(r#"{"type": "RandomRotation", "degrees": [33, 33], "expand": true}"#, BoxFormat::Xyxy);
    let expected = [[3.311258, 13.408793, 14.922374, 25.313942], [0.0, 0.0, 36.052895, 33.112583]];
    near(&[boxes[0], boxes[2]], &expected, "boxes");
    near(&points, &[[0.0, 16.339172], [34.669586, 16.47938], [14.358507, 15.957374]], "key points");
}

#[test]
fn formats_are_those_of_torchvision() {
    let mut boxes = Boxes { format: BoxFormat::Xyxy, boxes: vec![[2.0, 3.0, 10.0, 12.0]] };
    for (format, numbers) in [
        (BoxFormat::Cxcywh, [6.0, 7.5, 8.0, 9.0]),
        (BoxFormat::Xywh, [2.0, 3.0, 8.0, 9.0]),
        (BoxFormat::Cxcywh, [6.0, 7.5, 8.0, 9.0]),
        (BoxFormat::Xyxy, [2.0, 3.0, 10.0, 12.0]),
    ] {
        boxes.convert(format);
        assert_eq!(boxes, Boxes { format, boxes: vec![numbers] });
    }
}

/// `v2.SanitizeBoundingBoxes(2, 6)` of boxes in a picture of 20x30.
#[test]
fn small_and_outer_boxes_go_with_their_planes_and_their_labels() {
    let boxes: [[f32; 4]; 6] = [
        [0.0, 0.0, 2.0, 3.0],
        [0.0, 0.0, 1.99, 9.0],
        [1.0, 1.0, 3.2, 3.2],
        [-0.01, 0.0, 9.0, 9.0],
        [20.0, 10.0, 30.0, 20.0],
        [20.0, 10.0, 30.01, 20.0],
    ];
    let planes: Vec<u8> = (0..6).flat_map(|plane| [plane; 600]).collect();
    let two_planes = &planes[..1200];
    let companions = r#""boxes": {"type": "boxes", "format": "XYXY"}, "instances": {"type": "mask"},
        "labels": {"type": "labels"}, "semantic": {"type": "mask"}"#;
    let op = r#"{"type": "ToDtype", "dtype": "float32"}, {"type": "SanitizeBoundingBoxes", "min_size": 2, "min_area": 6}"#;
    let transform = transform(op, companions, SIZE);
    let given = [
        Given::Boxes(boxes.as_flattened()),
        Given::Pixels { shape: &[6, 20, 30], bytes: &planes },
        Given::Labels(6),
        Given::Pixels { shape: &[2, 20, 30], bytes: two_planes },
    ];
    let (place, mut out) = (Place { seed: 0, epoch: 0, position: 0 }, vec![0; transform.bytes()]);
    let left = transform.apply_with(&[7; 600], &given, place, &mut out).expect("a picture");
    assert_eq!(left.kept, [0, 4]);
    assert_eq!(left.boxes().map(|boxes| boxes.boxes.clone()), Some(vec![boxes[0], boxes[4]]));
    let [_, Companion::Mask(instances), Companion::Labels, Companion::Mask(semantic)] = left.all.as_slice()
    else {
        panic!("four companions");
    };
    assert_eq!(instances.clone().into_pixels(), [[0; 600], [4; 600]].concat());
    assert_eq!(semantic.clone().into_pixels(), two_planes);
}

/// `F.resize(Mask(torch.arange(20).reshape(4, 5)), [3, 7], interpolation)` and so on.
#[test]
fn masks_are_those_of_torchvision() {
    let mask: Vec<u8> = (0..20).collect();
    let of = |op: &str| {
        let given =
            [Given::Boxes(&[]), Given::KeyPoints(&[]), Given::Pixels { shape: &[4, 5], bytes: &mask }];
        let companions = stage(op, [4, 5], BoxFormat::Xyxy, &given, 0).companions;
        let Some(Companion::Mask(mask)) = companions.all.last() else { panic!("a mask") };
        mask.clone().into_pixels()
    };
    let nearest = [0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 7, 8, 9, 10, 10, 11, 12, 12, 13, 14];
    assert_eq!(of(r#"{"type": "Resize", "size": [3, 7], "interpolation": "bicubic"}"#), nearest);
    let exact = [0, 1, 1, 2, 3, 3, 4, 10, 11, 11, 12, 13, 13, 14, 15, 16, 16, 17, 18, 18, 19];
    assert_eq!(of(r#"{"type": "Resize", "size": [3, 7], "interpolation": "nearest-exact"}"#), exact);
    let turned = [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 0, 0, 0, 0, 2, 3, 9, 14, 0, 0, 1, 2, 7, 13, 19, 19, 0, 0, 6, 12,
        17, 18, 0, 0, 5, 10, 16, 17, 0, 0, 0, 0, 15, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let op = r#"{"type": "RandomRotation", "degrees": [45, 45], "expand": true, "interpolation": "bilinear", "fill": 99}"#;
    assert_eq!(of(op), turned);
}

/// Operations that move pixels.
const MOVES: [&str; 11] = [
    r#"{"type": "Resize", "size": [31, 17]}"#,
    r#"{"type": "CenterCrop", "size": [22, 26]}"#,
    r#"{"type": "RandomCrop", "size": 24, "padding": 3, "pad_if_needed": true}"#,
    r#"{"type": "RandomResizedCrop", "size": [28, 36]}"#,
    r#"{"type": "RandomHorizontalFlip"}"#,
    r#"{"type": "RandomRotation", "degrees": 180}"#,
    r#"{"type": "RandomRotation", "degrees": 180, "expand": true}"#,
    r#"{"type": "RandomAffine", "degrees": 15, "translate": [0.2, 0.2], "scale": [0.8, 1.3], "shear": [-9, 9, -9, 9]}"#,
    r#"{"type": "RandomPerspective", "p": 1, "distortion_scale": 0.3}"#,
    r#"{"type": "RandomApply", "transforms": [{"type": "RandomVerticalFlip"}, {"type": "RandomZoomOut", "p": 1, "side_range": [1, 2]}]}"#,
    r#"{"type": "RandomChoice", "transforms": [{"type": "ScaleJitter", "target_size": [40, 40], "scale_range": [0.5, 1.5]}, {"type": "RandomVerticalFlip"}]}"#,
];

/// The marked pixels' sides, from the first pixel to behind the last.
fn sides_of(mask: &Mask) -> Option<[f32; 4]> {
    let plane = &mask.planes()[0];
    let marked = |(at, pixel): (usize, &u8)| (*pixel > 0).then(|| [at % plane.width(), at / plane.width()]);
    let mut pixels = plane.pixels().iter().enumerate().filter_map(marked);
    let [x, y] = pixels.next()?;
    let grown = pixels.fold([x, y, x, y], |[left, top, right, bottom], [x, y]| {
        [left.min(x), top.min(y), right.max(x), bottom.max(y)]
    });
    Some([grown[0], grown[1], grown[2] + 1, grown[3] + 1].map(|side| side as f32))
}

proptest! {
    #[test]
    fn a_box_moves_as_the_pixels_of_its_mask_move(
        height in 20usize..60, width in 20usize..60, sides in prop::array::uniform4(0.0..1.0f64), position: u64, which in 0..MOVES.len(),
    ) {
        let at = |part: f64, first: usize, last: usize| first + (part * (last - first) as f64) as usize;
        let (left, top) = (at(sides[0], 0, width - 8), at(sides[1], 0, height - 8));
        let (right, bottom) = (at(sides[2], left + 6, width), at(sides[3], top + 6, height));
        let mut mask = vec![0; height * width];
        for y in top..bottom {
            mask[y * width + left..y * width + right].fill(1);
        }
        let sides = [left, top, right, bottom].map(|side| side as f32);
        let given = [Given::Boxes(&sides), Given::KeyPoints(&[]), Given::Pixels { shape: &[height, width], bytes: &mask }];
        let companions = stage(MOVES[which], [height, width], BoxFormat::Xyxy, &given, position).companions;
        let (Some(boxes), Some(Companion::Mask(mask))) = (companions.boxes(), companions.all.last()) else { panic!("both") };
        if let Some(marked) = sides_of(mask) {
            let own = boxes.boxes[0];
            let most = [companions.size[1], companions.size[0]].map(|side| side as f32);
            // A corner outside leaves a larger box, and a sharp one ends with a pixel some way before its tip.
            let is_whole = (0..2).all(|axis| own[axis] > 0.0 && own[axis + 2] < most[axis]);
            let is_turned = MOVES[which].contains("degrees");
            let slack = if is_turned && !is_whole { f32::INFINITY } else { 3.0 };
            let beyond = [marked[0] - own[0], marked[1] - own[1], own[2] - marked[2], own[3] - marked[3]];
            // torchvision puts boxes at the corner of an expanded picture, and pixels into its middle.
            let least = if MOVES[which].contains("expand") { -2.01 } else { -1.01 };
            let fits = beyond.iter().all(|beyond| (least..=slack).contains(beyond));
            prop_assert!(fits, "{}: {own:?}, and pixels {marked:?}", MOVES[which]);
        }
    }

    #[test]
    fn two_flips_are_none(numbers in prop::collection::vec(-200i16..200, 0..40), format in 0usize..3, across: bool) {
        let numbers: Vec<f32> = numbers.into_iter().map(|number| f32::from(number) / 4.0).collect();
        let mut boxes = Boxes { format: FORMATS[format], boxes: numbers.as_chunks().0.to_vec() };
        let mut points = KeyPoints { points: numbers.as_chunks().0.to_vec() };
        let before = (boxes.clone(), points.clone());
        let axis = usize::from(across);
        boxes.mirror(axis, 37);
        points.mirror(axis, 37);
        boxes.mirror(axis, 37);
        points.mirror(axis, 37);
        prop_assert_eq!((boxes, points), before);
    }

    #[test]
    fn a_picture_is_the_same_with_and_without_companions(position: u64, which in 0..MOVES.len()) {
        let ops = format!(
            r#"{}, {{"type": "Resize", "size": [9, 8]}}, {{"type": "ToDtype", "dtype": "float32"}}, {{"type": "ClampBoundingBoxes"}}"#,
            MOVES[which],
        );
        let pixels: Vec<u8> = {
            let mut draws = Draws::new(Place { seed: 1, epoch: 0, position }, 0);
            (0..600).map(|_| draws.bits() as u8).collect()
        };
        let alone = transform(&ops, "", SIZE);
        let with = transform(&ops, r#""a": {"type": "boxes", "format": "XYWH"}, "b": {"type": "mask"}"#, SIZE);
        let place = Place { seed: 2, epoch: 0, position };
        let [mut one, mut other] = [vec![0; alone.bytes()], vec![0; with.bytes()]];
        alone.apply(&pixels, place, &mut one).expect("a picture");
        let given = [Given::Boxes(&[3.0, 4.0, 5.0, 6.0]), Given::Pixels { shape: &SIZE, bytes: &pixels }];
        let companions = with.apply_with(&pixels, &given, place, &mut other).expect("a picture");
        prop_assert_eq!(one, other);
        let stages = with.stages_with(&pixels, &given, place).expect("stages");
        prop_assert_eq!(stages.last().map(|stage| &stage.companions), Some(&companions));
        prop_assert_eq!(companions.size, [9, 8]);
    }

    #[test]
    fn a_crop_has_the_middle_of_a_box_that_overlaps_it(position: u64, least in 0.0..0.6f64, numbers in prop::collection::vec(0.0..60.0f32, 4..40)) {
        let boxes: Vec<[f32; 4]> = numbers.as_chunks().0.iter().map(|[a, b, c, d]: &[f32; 4]| [a.min(*c), b.min(*d), a.max(*c), b.max(*d)]).collect();
        let op = format!(r#"{{"type": "RandomIoUCrop", "sampler_options": [{least}]}}"#);
        let given = [Given::Boxes(boxes.as_flattened()), Given::KeyPoints(&[]), Given::Pixels { shape: &[60, 60], bytes: &[0; 3600] }];
        let Stage { value, companions, .. } = stage(&op, [60, 60], BoxFormat::Xyxy, &given, position);
        prop_assert_eq!(value.size(), companions.size);
        let area = |sides: &[f32; 4]| (sides[2] - sides[0]) * (sides[3] - sides[1]);
        let left = &companions.boxes().expect("boxes").boxes;
        prop_assert_eq!(left.len(), boxes.len());
        let overlap = |own: &[f32; 4], before: &[f32; 4]| area(own) / (area(before) + (value.size()[0] * value.size()[1]) as f32 - area(own));
        let most = left.iter().zip(&boxes).map(|(own, before)| overlap(own, before)).fold(0.0, f32::max);
        prop_assert!(value.size() == [60, 60] || most >= least as f32 - 1e-3, "{most} of {least}");
    }

    #[test]
    fn no_numbers_are_too_strange(numbers in prop::collection::vec(prop::num::f32::ANY, 0..16), position: u64, which in 0..MOVES.len(), format in 0usize..3) {
        let numbers = &numbers[..numbers.len() / 4 * 4];
        let given = [Given::Boxes(numbers), Given::KeyPoints(numbers), Given::Pixels { shape: &SIZE, bytes: &[1; 600] }];
        stage(MOVES[which], SIZE, FORMATS[format], &given, position);
        for op in [r#"{"type": "ElasticTransform"}"#, r#"{"type": "RandomIoUCrop"}"#, r#"{"type": "SanitizeBoundingBoxes"}"#] {
            stage(op, SIZE, FORMATS[format], &given, position);
        }
    }
}

#[test]
fn an_encoded_picture_moves_as_its_pixels_do() {
    // The first operation decodes only its part.
    let file: &[u8] = include_bytes!("../decode/tests/fixtures/rgb.png");
    let pixels = crate::decode::decode(file, &Default::default()).expect("a picture");
    let [height, width, _] = pixels.shape();
    let ops = r#"{"type": "RandomResizedCrop", "size": [12, 9]}"#;
    let companions = r#""a": {"type": "boxes", "format": "CXCYWH"}, "b": {"type": "mask"}"#;
    let json = format!(r#"{{"companions": {{{companions}}}, "transforms": [{ops}]}}"#);
    let of = |input| Transform::new(json.parse().expect("a chain"), input).expect("a transform");
    let encoded = of(Input::Encoded);
    let decoded = of(Input::Pixels { shape: pixels.shape(), layout: Layout::ChannelsLast });
    let mask: Vec<u8> = (0..height * width).map(|number| number as u8).collect();
    let given =
        [Given::Boxes(&[8.0, 7.0, 6.0, 5.0]), Given::Pixels { shape: &[height, width], bytes: &mask }];
    for position in 0..20 {
        let place = Place { seed: 4, epoch: 0, position };
        let [mut one, mut other] = [vec![0; encoded.bytes()], vec![0; decoded.bytes()]];
        let from_file = encoded.apply_with(file, &given, place, &mut one).expect("a picture");
        let from_pixels = decoded.apply_with(pixels.pixels(), &given, place, &mut other).expect("a picture");
        assert_eq!((one, from_file), (other, from_pixels));
    }
}

fn png(color: png::ColorType, depth: png::BitDepth, [height, width]: [u32; 2], rows: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    encoder.set_palette((0..48).collect::<Vec<u8>>());
    encoder.write_header().expect("a header").write_image_data(rows).expect("pixels");
    file
}

#[test]
fn masks_keep_the_indices_of_a_palette_and_the_numbers_of_grey() {
    use png::{BitDepth, ColorType};
    let decoded = |file: &[u8], size| Mask::decode(file, size).map(Mask::into_pixels);
    let rows = [0x1F, 0x20, 0xA3, 0x40];
    let nibbles = vec![1, 15, 2, 10, 3, 4];
    let file = png(ColorType::Indexed, BitDepth::Four, [2, 3], &rows);
    assert_eq!(decoded(&file, [2, 3]), Ok(nibbles.clone()));
    let file = png(ColorType::Grayscale, BitDepth::Four, [2, 3], &rows);
    assert_eq!(decoded(&file, [2, 3]), Ok(nibbles.iter().map(|number| number * 17).collect()));
    let file = png(ColorType::Grayscale, BitDepth::Eight, [2, 2], &rows);
    assert_eq!(decoded(&file, [2, 2]), Ok(rows.to_vec()));
    let bits = png(ColorType::Grayscale, BitDepth::One, [1, 10], &[0b1010_0000, 0b0100_0000]);
    assert_eq!(decoded(&bits, [1, 10]), Ok(vec![255, 0, 255, 0, 0, 0, 0, 0, 0, 255]));

    let refused = |file: &[u8], size| Mask::decode(file, size).expect_err("a refusal");
    assert!(refused(&file, [2, 3]).contains("it has 2x2 pixels, and its picture has 2x3"));
    let colours = png(ColorType::Rgb, BitDepth::Eight, [1, 1], &[1, 2, 3]);
    assert!(refused(&colours, [1, 1]).contains("its pixels are Rgb"));
    let wide = png(ColorType::Grayscale, BitDepth::Sixteen, [1, 1], &[1, 2]);
    assert!(refused(&wide, [1, 1]).contains("its numbers have 16 bits"));
    assert!(refused(include_bytes!("../decode/tests/fixtures/rgb.jpg"), [1, 1]).contains("only PNG keeps"));
    assert!(refused(&[], [1, 1]).contains("unknown image format"));
    for end in 0..file.len() - 12 {
        refused(&file[..end], [2, 2]);
    }
}

fn chain_error(companions: &str, ops: &str) -> String {
    let json = format!(r#"{{"column": "image", "companions": {{{companions}}}, "transforms": [{ops}]}}"#);
    let made = json.parse::<Chain>().and_then(|chain| {
        Transform::new(chain, Input::Pixels { shape: [20, 30, 1], layout: Layout::ChannelsLast })
    });
    made.expect_err("a refusal").to_string()
}

#[test]
fn a_chain_that_cannot_move_its_companions_is_refused_with_the_way_out() {
    let boxes = r#""boxes": {"type": "boxes", "format": "XYXY"}"#;
    let cases = [
        (
            boxes,
            r#"{"type": "RandAugment"}"#,
            "operation 0 of the transforms, RandAugment, changes pictures alone, and gets boxes",
        ),
        (
            r#""b": {"type": "boxes", "format": "XYXY"}, "m": {"type": "mask"}"#,
            r#"{"type": "RandomApply", "transforms": [{"type": "AugMix"}]}"#,
            "has AugMix, which changes pictures alone, and gets boxes and masks beside them: take RandomAffine",
        ),
        (r#""k": {"type": "keypoints"}"#, r#"{"type": "AutoAugment"}"#, "gets key points beside them"),
        (r#""m": {"type": "mask"}"#, r#"{"type": "TrivialAugmentWide"}"#, "gets masks beside them"),
        (
            boxes,
            r#"{"type": "Pad", "padding": 1, "padding_mode": "edge"}"#,
            "gets boxes: give padding_mode constant",
        ),
        (
            r#""k": {"type": "keypoints"}"#,
            r#"{"type": "RandomCrop", "size": 9, "padding": 1, "padding_mode": "reflect"}"#,
            "gets key points: give padding_mode constant",
        ),
        (
            "",
            r#"{"type": "SanitizeBoundingBoxes"}"#,
            "SanitizeBoundingBoxes, needs boxes: declare their column",
        ),
        (r#""m": {"type": "mask"}"#, r#"{"type": "RandomIoUCrop"}"#, "RandomIoUCrop, needs boxes"),
        (boxes, r#"{"type": "RandomIoUCrop"}"#, "the transforms make pictures of various sizes"),
        (
            boxes,
            r#"{"type": "SanitizeBoundingBoxes", "min_size": 0}"#,
            "has min_size = 0: give a number from 1",
        ),
        (boxes, r#"{"type": "RandomIoUCrop", "sampler_options": []}"#, "has no sampler_options"),
        (boxes, r#"{"type": "RandomIoUCrop", "trials": 100000}"#, "has 100000 trials: give 1 to 1000"),
        (
            boxes,
            r#"{"type": "RandomApply", "transforms": [{"type": "ConvertBoundingBoxFormat", "format": "XYWH"}]}"#,
            "makes either uint8 [1, 20, 30] with boxes as XYXY or uint8 [1, 20, 30] with boxes as XYWH",
        ),
        (boxes, r#"{"type": "ConvertBoundingBoxFormat", "format": "XYWHR"}"#, "unknown variant `XYWHR`"),
        (
            r#""b": {"type": "boxes", "format": "XYXY"}, "c": {"type": "boxes", "format": "XYXY"}"#,
            "",
            r#"of the companions of the transforms, column "c" is the second one of boxes"#,
        ),
        (r#""l": {"type": "labels"}"#, "", r#"column "l" has the labels of boxes, and no column has boxes"#),
        (r#""image": {"type": "mask"}"#, "", r#"column "image" has the pictures: leave it out"#),
        (r#""b": {"type": "boxes"}"#, "", "missing field `format`"),
        (r#""m": {"type": "mask", "fill": 3}"#, "", "unknown field `fill`"),
    ];
    for (companions, ops, reason) in cases {
        let refused = chain_error(companions, ops);
        assert!(refused.contains(reason), "{companions} {ops}: {refused}");
    }
}

#[test]
fn companions_that_do_not_fit_their_picture_are_errors() {
    let declared =
        r#""b": {"type": "boxes", "format": "XYXY"}, "l": {"type": "labels"}, "m": {"type": "mask"}"#;
    let transform = transform("", declared, SIZE);
    let place = Place { seed: 0, epoch: 0, position: 0 };
    let error = |given: &[Given<'_>]| {
        let mut out = vec![0; transform.bytes()];
        transform.apply_with(&[0; 600], given, place, &mut out).expect_err("an error")
    };
    let mask = Given::Pixels { shape: &SIZE, bytes: &[0; 600] };
    let one = Given::Boxes(&[0.0; 4]);
    assert!(matches!(error(&[one]), SampleError::Companions { given: 1, declared: 3 }));
    let cases = [
        (
            [Given::Boxes(&[0.0; 6]), Given::Labels(1), mask],
            r#"companion "b" of the picture has 6 numbers, and a box has four"#,
        ),
        ([one, Given::Labels(2), mask], r#"companion "l" of the picture has 2 labels for 1 boxes"#),
        (
            [one, mask, mask],
            r#"companion "l" of the picture is declared as labels, and its sample has a mask"#,
        ),
        (
            [one, Given::Labels(1), Given::Pixels { shape: &[30, 20], bytes: &[0; 600] }],
            r#"companion "m" of the picture has 30x20 pixels, and its picture has 20x30"#,
        ),
        (
            [one, Given::Labels(1), Given::Pixels { shape: &[usize::MAX, 20, 30], bytes: &[0; 600] }],
            "has 600 bytes for the shape",
        ),
        (
            [one, Given::Labels(1), Given::Encoded(b"GIF89a")],
            "cannot be decoded: GIF is no mask of this picture",
        ),
    ];
    for (given, reason) in cases {
        let error = error(&given).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_chain_without_companions_keeps_its_json() {
    let of = |json: &str| json.parse::<Chain>().expect("a chain");
    let without = of(r#"[{"type": "RandomHorizontalFlip"}]"#);
    assert!(!without.to_json().contains("companions"));
    let with = of(
        r#"{"companions": {"b": {"type": "labels"}, "a": {"format": "XYWH", "type": "boxes"}}, "transforms": [{"type": "RandomHorizontalFlip"}]}"#,
    );
    assert_ne!(with.digest(), without.digest());
    let again = of(&with.to_json());
    assert_eq!((&again, again.digest()), (&with, with.digest()));
    let other = of(
        r#"{"companions": {"a": {"type": "boxes", "format": "XYWH"}, "b": {"type": "labels"}}, "transforms": [{"type": "RandomHorizontalFlip"}]}"#,
    );
    assert_eq!(other.digest(), with.digest());
}

#[test]
fn the_format_of_boxes_is_that_behind_the_operations() {
    let declared = r#""b": {"type": "boxes", "format": "XYXY"}, "l": {"type": "labels"}"#;
    let transform = transform(r#"{"type": "ConvertBoundingBoxFormat", "format": "CXCYWH"}"#, declared, SIZE);
    assert_eq!(transform.box_format(), Some(BoxFormat::Cxcywh));
    let kinds: Vec<_> = transform.companions().collect();
    let expected =
        [("b", CompanionKind::Boxes { format: BoxFormat::Cxcywh }), ("l", CompanionKind::Labels {})];
    assert_eq!(kinds, expected);
}

#[test]
fn a_value_has_the_size_of_its_companions() {
    for (which, op) in MOVES.iter().enumerate() {
        let given =
            [Given::Boxes(&[]), Given::KeyPoints(&[]), Given::Pixels { shape: &SIZE, bytes: &[1; 600] }];
        let Stage { value, companions, .. } = stage(op, SIZE, BoxFormat::Xyxy, &given, which as u64);
        assert_eq!(value.size(), companions.size, "{op}");
        let Some(Companion::Mask(mask)) = companions.all.last() else { panic!("a mask") };
        assert_eq!(Value::Bytes(mask.planes()[0].clone()).size(), companions.size, "{op}");
    }
}
