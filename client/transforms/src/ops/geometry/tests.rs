use super::*;
use crate::draws::{Draws, Place};
use proptest::prelude::*;

use Interpolation::{Bilinear, Nearest};

/// `torch.from_numpy(((31*y + 17*x + 53*c + 7*x*y) % 256).astype(np.uint8))` as `[c, y, x]`: `p(h, w, c)`
/// below.
fn picture(height: usize, width: usize, channels: usize) -> Image<u8> {
    let row =
        |y| (0..width).flat_map(move |x| (0..channels).map(move |c| 31 * y + 17 * x + 53 * c + 7 * x * y));
    Image::new([height, width, channels], (0..height).flat_map(row).map(|value| value as u8).collect())
}

/// `(v * np.arange(1, len(v) + 1)).sum()` of all numbers `v` in the order `[y, x, c]`.
fn checksum(image: &Image<u8>) -> u64 {
    image.pixels().iter().zip(1..).map(|(&value, at)| u64::from(value) * at).sum()
}

#[test]
fn affine_is_as_in_torchvision() {
    // F.affine(p(3, 4, 1), 30, [1, 0], 1.2, [10., 5.], interpolation, fill)
    let affine = |interpolation, fill: &[f32]| {
        affine(&picture(3, 4, 1), 30.0, [1.0, 0.0], 1.2, [10.0, 5.0], interpolation, fill, None).into_pixels()
    };
    assert_eq!(affine(Nearest, &[9.0]), [9, 31, 17, 17, 62, 93, 55, 79, 9, 93, 124, 124]);
    assert_eq!(affine(Bilinear, &[100.0]), [73, 26, 25, 24, 57, 62, 66, 67, 74, 77, 113, 116]);
    assert_eq!(affine(Bilinear, &[]), [11, 23, 25, 24, 50, 62, 66, 67, 27, 68, 113, 116]);
    assert_eq!(affine(Bilinear, &[0.0]), [3, 22, 25, 24, 42, 62, 66, 67, 10, 48, 113, 116]);
}

#[test]
fn larger_pictures_are_as_in_torchvision() {
    // Larger ones meet torch's other matrix product. With p = p(37, 53, 3):
    // F.affine(p, -17.5, [3.25, -4], 0.9, [12., -7.], interpolation, fill, [20., 11.5])
    // F.rotate(p, 33., interpolation, True, None, fill)
    // F.perspective(p, [[0, 0], [52, 0], [52, 36], [0, 36]], [[3, 4], [50, 2], [47, 33], [5, 30]], ...)
    let checksums = |interpolation, fill: &[f32]| {
        let image = picture(37, 53, 3);
        let center = Some([20.0, 11.5]);
        let starts = [[0.0, 0.0], [52.0, 0.0], [52.0, 36.0], [0.0, 36.0]];
        let ends = [[3.0, 4.0], [50.0, 2.0], [47.0, 33.0], [5.0, 30.0]];
        [
            affine(&image, -17.5, [3.25, -4.0], 0.9, [12.0, -7.0], interpolation, fill, center),
            rotate(&image, 33.0, interpolation, true, None, fill),
            perspective(&image, starts, ends, interpolation, fill),
        ]
        .map(|image| checksum(&image))
    };
    let colour = [10.5, 200.0, 77.0];
    assert_eq!(checksums(Nearest, &[]), [1227102076, 4421159221, 1393976984]);
    assert_eq!(checksums(Nearest, &[0.0]), [1227102076, 4421159221, 1393976984]);
    assert_eq!(checksums(Nearest, &colour), [1950732616, 7840765541, 1992941786]);
    assert_eq!(checksums(Bilinear, &[]), [1223093362, 4412608042, 1389528164]);
    assert_eq!(checksums(Bilinear, &[0.0]), [1204951709, 4344761168, 1370715666]);
    assert_eq!(checksums(Bilinear, &colour), [1930320775, 7766053780, 1972336291]);
}

#[test]
fn rotate_is_as_in_torchvision() {
    // F.rotate(p(3, 4, 1), angle, NEAREST, expand)
    let rotate = |angle, expand| rotate(&picture(3, 4, 1), angle, Nearest, expand, None, &[]);
    let turned = [
        0, 0, 0, 51, 0, 0, 0, 0, 34, 103, 103, 0, 0, 0, 55, 79, 155, 0, 0, 31, 31, 93, 0, 0, 0, 0, 62, 0, 0,
        0,
    ];
    assert_eq!(rotate(45.0, true), Image::new([5, 6, 1], turned.to_vec()));
    assert_eq!(rotate(90.0, true).into_pixels(), [51, 103, 155, 34, 79, 124, 17, 55, 93, 0, 31, 62]);
    assert_eq!(rotate(-90.0, true).into_pixels(), [62, 31, 0, 93, 55, 17, 124, 79, 34, 155, 103, 51]);
    assert_eq!(rotate(180.0, false).into_pixels(), [155, 124, 93, 62, 103, 79, 55, 31, 51, 34, 17, 0]);
    assert_eq!(rotate(90.0, false).into_pixels(), [34, 34, 124, 124, 34, 34, 124, 124, 0, 0, 62, 62]);
}

#[test]
fn tiny_cosines_decide_ties() {
    // F.rotate(p(375, 500, 1), angle, NEAREST): the cosine of 90 degrees is not quite 0.
    for (angle, expected) in [(90.0, 1683182343586), (-90.0, 1683562362290)] {
        assert_eq!(checksum(&rotate(&picture(375, 500, 1), angle, Nearest, false, None, &[])), expected);
    }
}

#[test]
fn rotated_sizes_are_those_of_torchvision() {
    // F.rotate(p(h, w, 1), angle, expand=True).shape[1:]; the last once failed with fused multiply-add.
    let cases = [
        ([37, 53], 33.0, [61, 65]),
        ([1, 1], 45.0, [3, 3]),
        ([224, 224], 1.0, [228, 228]),
        ([10, 400], -80.0, [396, 80]),
        ([375, 500], 89.999, [501, 376]),
        ([421, 171], -349.5702595910768, [446, 245]),
    ];
    for ([height, width], angle, [new_height, new_width]) in cases {
        let rotated = rotate(&picture(height, width, 1), angle, Nearest, true, None, &[]);
        assert_eq!(
            [rotated.height(), rotated.width()],
            [new_height, new_width],
            "{height}x{width} by {angle}"
        );
    }
}

#[test]
fn perspective_is_as_in_torchvision() {
    // F.perspective(p(3, 4, 1), [[0, 0], [3, 0], [3, 2], [0, 2]], [[1, 0], [3, 1], [2, 2], [0, 1]], BILINEAR,
    // 5)
    let starts = [[0.0, 0.0], [3.0, 0.0], [3.0, 2.0], [0.0, 2.0]];
    let ends = [[1.0, 0.0], [3.0, 1.0], [2.0, 2.0], [0.0, 1.0]];
    let moved = perspective(&picture(3, 4, 1), starts, ends, Bilinear, &[5.0]);
    assert_eq!(moved.into_pixels(), [6, 7, 5, 5, 72, 74, 67, 12, 5, 37, 39, 5]);
}

#[test]
fn perspective_coefficients_are_those_of_torchvision() {
    // _get_perspective_coeffs([[0, 0], [52, 0], [52, 36], [0, 36]], [[3, 4], [50, 2], [47, 33], [5, 30]])
    let starts = [[0.0, 0.0], [52.0, 0.0], [52.0, 36.0], [0.0, 36.0]];
    let ends = [[3.0, 4.0], [50.0, 2.0], [47.0, 33.0], [5.0, 30.0]];
    let expected = [
        1.3266868591308594,
        -0.10205283015966415,
        -3.5718491077423096,
        0.05287941172719002,
        1.242666244506836,
        -5.129302978515625,
        0.004221837967634201,
        -0.004023009445518255,
    ];
    assert_eq!(
        perspective_coefficients(starts, ends).unwrap().map(|value| value as f32),
        expected.map(|v| v as f32)
    );
}

#[test]
fn points_in_a_perspective_are_where_torchvision_has_them() {
    // F.perspective(KeyPoints([[0, 0], [29, 19], [12.25, 7.5]], canvas_size=(20, 30)), starts, ends)
    let starts = [[0.0, 0.0], [29.0, 0.0], [29.0, 19.0], [0.0, 19.0]];
    let ends = [[3.0, 1.0], [27.0, 2.0], [28.0, 17.0], [1.0, 18.0]];
    let place = perspective_points(starts, ends);
    for (point, [x, y]) in
        [([0.0, 0.0], [3.0, 1.0]), ([29.0, 19.0], [28.0, 17.0]), ([12.25, 7.5], [13.634999, 7.362304])]
    {
        let [own_x, own_y] = place(point);
        assert!((own_x - x).abs() < 4e-6 && (own_y - y).abs() < 4e-6, "{point:?}: {own_x}, {own_y}");
    }
    // (x, y) goes to (x / (y + 1), 1 / (y + 1)): back, the denominator has no constant.
    let inverse = coefficients::inverse_perspective([1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    assert_eq!(inverse, [-1.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0, -1.0, 0.0]);
}

#[test]
fn corners_on_a_line_leave_the_picture() {
    let image = picture(5, 7, 3);
    let line = [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]];
    let square = [[0.0, 0.0], [6.0, 0.0], [6.0, 4.0], [0.0, 4.0]];
    for ends in [line, [[0.0; 2]; 4], [[f64::NAN; 2]; 4], [[f64::MAX; 2]; 4]] {
        assert_eq!(perspective(&image, square, ends, Bilinear, &[9.0]), image);
    }
}

#[test]
fn elastic_is_as_in_torchvision() {
    // F.elastic(p(3, 4, 1), torch.tensor(moves).reshape(1, 3, 4, 2), BILINEAR, 0)
    let moves = [
        [[0.5, 0.0], [-0.5, 0.1], [0.0, 0.0], [0.2, -0.3]],
        [[0.0, 1.0], [0.3, 0.3], [-0.3, -0.3], [0.0, 0.0]],
        [[0.0, -0.5], [2.0, 0.0], [0.0, -0.2], [0.1, 0.1]],
    ];
    let field = Field::new([3, 4], moves.concat());
    let warped = elastic(&picture(3, 4, 1), &field, Bilinear, &[0.0]);
    assert_eq!(warped.into_pixels(), [17, 5, 34, 6, 16, 88, 46, 103, 39, 0, 110, 72]);
}

#[test]
fn fields_are_blurred_noise() {
    let draws = || Draws::new(Place { seed: 5, epoch: 0, position: 1 }, 2);
    let noise = Field::random([20, 30], [30.0, 20.0], [0.0, -1.0], &mut draws());
    let mut uniforms = draws();
    let first = uniforms.uniform() as f32 * 2.0 - 1.0;
    (1..600).for_each(|_| _ = uniforms.uniform());
    assert_eq!(noise.row(0)[0], [first, uniforms.uniform() as f32 * 2.0 - 1.0]);

    let smooth = Field::random([20, 30], [30.0, 20.0], [3.0, 3.0], &mut draws());
    let step =
        |field: &Field| -> f32 { field.row(9).windows(2).map(|pair| (pair[1][0] - pair[0][0]).abs()).sum() };
    assert!(step(&smooth) * 10.0 < step(&noise));

    // No field is too small, and no Gaussian too wide.
    for size in [[1, 1], [1, 9], [2, 3]] {
        for sigma in [[1e-9; 2], [5.0, 0.0], [1e300; 2], [f64::NAN; 2], [f64::INFINITY; 2]] {
            let field = Field::random(size, [50.0; 2], sigma, &mut draws());
            let mut moves = (0..size[0]).flat_map(|y| field.row(y)).flatten();
            assert!(moves.all(|way| way.is_finite()), "{size:?} {sigma:?}");
        }
    }
}

#[test]
fn blur_is_that_of_torchvision() {
    // n = p(9, 14, 1).float() / 256 * 2 - 1; F.gaussian_blur(n[None], [17, 17], [2.0, 1.0])[0, 0]
    let noise: Vec<f32> =
        picture(9, 14, 1).pixels().iter().map(|&value| f32::from(value) / 256.0 * 2.0 - 1.0).collect();
    let blurred = field::blurred(&noise, [9, 14], [2.0, 1.0], 8);
    for (y, x, expected) in [(0, 0, -0.554928), (4, 7, -0.043935), (8, 13, 0.054965), (2, 11, 0.025334)] {
        assert!((blurred[y * 14 + x] - expected).abs() < 2e-6, "{y} {x}");
    }
}

#[test]
fn fills_read_as_null_number_or_list() {
    let read = |json: &str| serde_json::from_str::<Fill>(json).unwrap();
    assert_eq!(read("null"), Fill::None);
    assert_eq!(read("7"), Fill::Number(7.0));
    assert_eq!(read("[1, 2.5, 3]"), Fill::Channels(vec![1.0, 2.5, 3.0]));
    for fill in [Fill::None, Fill::Number(3.5), Fill::Channels(vec![1.0, 2.0])] {
        assert_eq!(read(&serde_json::to_string(&fill).unwrap()), fill);
    }
    assert!(serde_json::from_str::<Fill>("\"red\"").is_err());
    assert_eq!(serde_json::to_string(&Bilinear).unwrap(), "\"bilinear\"");
}

#[test]
fn fractions_of_fills_round_half_to_even() {
    // F.affine(p(2, 2, 3), 0, [9, 0], 1, [0., 0.], NEAREST, [10.5, 11.5, 3.7])
    let outside =
        |fill: &[f32]| affine(&picture(2, 2, 3), 0.0, [9.0, 0.0], 1.0, [0.0; 2], Nearest, fill, None);
    assert_eq!(outside(&[10.5, 11.5, 3.7]).pixel(0, 0), [10, 12, 4]);
    assert_eq!(outside(&[-3.0, 300.0]).pixel(0, 0), [0, 255, 255]);
    assert_eq!(outside(&[]).pixel(0, 0), [0, 0, 0]);
}

#[test]
fn channels_are_sampled_alike() {
    let image = picture(31, 23, 5);
    let moved = |image: &Image<u8>| affine(image, 20.0, [1.0, 2.0], 1.1, [3.0, 4.0], Bilinear, &[50.0], None);
    let all = moved(&image);
    for channel in 0..5 {
        let one =
            |image: &Image<u8>| image.pixels().iter().skip(channel).step_by(5).copied().collect::<Vec<_>>();
        assert_eq!(one(&all), moved(&Image::new([31, 23, 1], one(&image))).into_pixels());
    }
    assert_eq!(rotate(&image, 90.0, Nearest, true, None, &[]).pixel(0, 3), image.pixel(3, 22));
    assert_eq!(rotate(&image, 270.0, Nearest, true, None, &[]).pixel(0, 3), image.pixel(27, 0));
    assert_eq!(rotate(&image, 180.0, Nearest, true, None, &[]).pixel(0, 3), image.pixel(30, 19));
}

#[test]
fn endless_numbers_are_outside() {
    let image = picture(9, 8, 3);
    for strange in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
        for interpolation in [Nearest, Bilinear] {
            let away = affine(&image, 0.0, [strange, 0.0], 1.0, [0.0; 2], interpolation, &[7.0], None);
            assert_eq!(away, Image::filled(9, 8, &[7; 3]));
            affine(
                &image,
                strange,
                [0.0; 2],
                strange,
                [strange; 2],
                interpolation,
                &[7.0],
                Some([strange; 2]),
            );
            rotate(&image, strange, interpolation, true, None, &[strange as f32]);
            rotate(&image, 30.0, interpolation, true, Some([strange; 2]), &[]);
        }
    }
    assert_eq!(affine(&image, 0.0, [0.0; 2], 0.0, [0.0; 2], Nearest, &[7.0], None).shape(), image.shape());
}

proptest! {
    #[test]
    fn quarter_turns_add_up(height in 1usize..20, width in 1usize..20, grey: bool) {
        let image = picture(height, width, if grey { 1 } else { 3 });
        let turn = |image: &Image<u8>, angle| rotate(image, angle, Nearest, true, None, &[]);
        let half = turn(&turn(&image, 90.0), 90.0);
        prop_assert_eq!(&half, &turn(&image, 180.0));
        prop_assert_eq!(turn(&turn(&half, 450.0), -270.0), image.clone());
        prop_assert_eq!(turn(&turn(&image, 90.0), 270.0), image);
    }

    #[test]
    fn whole_translations_copy(size in (1usize..40, 1usize..40), right in -9i32..9, down in -9i32..9) {
        let (height, width) = size;
        let image = picture(height, width, 3);
        let by = [f64::from(right), f64::from(down)];
        for interpolation in [Nearest, Bilinear] {
            let moved = affine(&image, 0.0, by, 1.0, [0.0; 2], interpolation, &[9.0], None);
            for y in 0..height {
                for x in 0..width {
                    let from = (y as i32 - down, x as i32 - right);
                    let inside = (0..height as i32).contains(&from.0) && (0..width as i32).contains(&from.1);
                    let pixel = || image.pixel(from.0 as usize, from.1 as usize);
                    prop_assert_eq!(moved.pixel(y, x), if inside { pixel() } else { &[9; 3] });
                }
            }
        }
    }

    /// The quick mean is that with torch's roundings.
    #[test]
    fn means_are_exact(values: [[u8; 3]; 4], west in 0f32..1.0, north in 0f32..1.0, fill in 0f32..255.0) {
        prop_assert!(sample::means_agree(values, [west, north], fill));
        for [west, north] in [[0.5, north], [west, 0.25], [0.5, 0.5], [0.0, north]] {
            prop_assert!(sample::means_agree(values, [west, north], fill));
        }
    }

    #[test]
    fn sizes_stay(height in 1usize..30, width in 1usize..30, angle in -400f64..400.0, scale in 0.1f64..3.0) {
        let image = picture(height, width, 1);
        let moved = affine(&image, angle, [1.0, 2.0], scale, [angle / 9.0, 3.0], Bilinear, &[1.0], None);
        prop_assert_eq!(moved.shape(), image.shape());
        let turned = rotate(&image, angle, Bilinear, true, None, &[]);
        prop_assert!(turned.height() * turned.width() >= height * width);
    }
}
