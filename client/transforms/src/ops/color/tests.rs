use super::*;

/// The picture of most fixtures: `x = torch.from_numpy(this).permute(2, 0, 1)`.
const COLOURS: [u8; 27] = [
    200, 30, 60, 10, 220, 90, 5, 50, 250, 255, 255, 255, 0, 0, 0, 250, 9, 228, 128, 127, 126, 77, 77, 77, 1,
    254, 128,
];
const GREYS: [u8; 8] = [0, 1, 10, 60, 128, 200, 254, 255];

type Change = fn(&mut Image);

fn rgb() -> Image {
    Image::new([3, 3, 3], COLOURS.to_vec())
}

fn grey_picture() -> Image {
    Image::new([2, 4, 1], GREYS.to_vec())
}

fn after(mut image: Image, change: impl FnOnce(&mut Image)) -> Vec<u8> {
    change(&mut image);
    image.into_pixels()
}

/// `arange(900).mul(7).remainder(97)` in 30 rows and 10 columns of RGB.
fn many() -> Image {
    Image::new([30, 10, 3], (0..900).map(|i| (i * 7 % 97) as u8).collect())
}

#[test]
fn greys_are_those_of_torch_for_all_colours() {
    // l = r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114), where each add_ rounds once. The products
    // and sums are exact in 64 bits.
    let rounded =
        |grey: f32, value: u8, weight: f32| (f64::from(grey) + f64::from(value) * f64::from(weight)) as f32;
    for red in 0..=255 {
        for green in 0..=255 {
            let most = rounded(f32::from(red) * 0.2989, green, 0.587);
            for blue in 0..=255 {
                let expected = rounded(most, blue, 0.114) as u8;
                assert_eq!(grey([red, green, blue]), expected, "{red} {green} {blue}");
            }
        }
    }
}

#[test]
fn grayscale_keeps_or_makes_channels() {
    // F.rgb_to_grayscale(x)
    let expected = [84, 142, 59, 254, 0, 105, 127, 76, 163];
    assert_eq!(grayscale(rgb(), 1), Image::new([3, 3, 1], expected.to_vec()));
    let thrice = expected.iter().flat_map(|&grey| [grey; 3]).collect();
    assert_eq!(grayscale(rgb(), 3), Image::new([3, 3, 3], thrice));
    assert_eq!(grayscale(grey_picture(), 1), grey_picture());
    assert_eq!(grayscale(Image::filled(1, 2, &[9]), 3), Image::filled(1, 2, &[9, 9, 9]));
    assert_eq!(grayscale(Image::filled(20, 31, &[10, 220, 90]), 1), Image::filled(20, 31, &[142]));
}

#[test]
fn factors_are_those_of_torchvision() {
    // F.adjust_brightness(x, 1.3), F.adjust_contrast(x, 0.6), F.adjust_saturation(x, 1.7)
    let expected = [
        255, 39, 78, 13, 255, 116, 6, 65, 255, 255, 255, 255, 0, 0, 0, 255, 11, 255, 166, 165, 163, 100, 100,
        100, 1, 255, 166,
    ];
    assert_eq!(after(rgb(), |image| adjust_brightness(image, 1.3)), expected);
    let expected = [
        164, 62, 80, 50, 176, 98, 47, 74, 194, 197, 197, 197, 44, 44, 44, 194, 50, 181, 121, 121, 120, 91,
        91, 91, 45, 197, 121,
    ];
    assert_eq!(after(rgb(), |image| adjust_contrast(image, 0.6)), expected);
    let expected = [
        255, 0, 43, 0, 255, 53, 0, 43, 255, 255, 255, 255, 0, 0, 0, 255, 0, 255, 128, 127, 125, 77, 77, 77,
        0, 255, 103,
    ];
    assert_eq!(after(rgb(), |image| adjust_saturation(image, 1.7)), expected);
    // F.adjust_contrast(torch.tensor(GREYS, dtype=torch.uint8).reshape(1, 2, 4), 0.6)
    let expected = [45, 46, 51, 81, 122, 165, 197, 198];
    assert_eq!(after(grey_picture(), |image| adjust_contrast(image, 0.6)), expected);
}

#[test]
fn a_factor_of_one_keeps_the_picture() {
    for change in [adjust_brightness, adjust_contrast, adjust_saturation] {
        assert_eq!(after(rgb(), |image| change(image, 1.0)), COLOURS);
        assert_eq!(after(grey_picture(), |image| change(image, 1.0)), GREYS);
    }
}

#[test]
fn a_factor_of_zero_leaves_the_other_picture() {
    assert_eq!(after(rgb(), |image| adjust_brightness(image, 0.0)), [0; 27]);
    let grey = grayscale(rgb(), 3).into_pixels();
    assert_eq!(after(rgb(), |image| adjust_saturation(image, 0.0)), grey);
    let mean = grey.iter().map(|&value| usize::from(value)).sum::<usize>() / grey.len();
    assert_eq!(after(rgb(), |image| adjust_contrast(image, 0.0)), [mean as u8; 27]);
}

#[test]
fn hues_are_those_of_torchvision() {
    // F.adjust_hue(x, 0.1), F.adjust_hue(x, -0.4)
    let forwards = [
        200, 102, 30, 10, 220, 216, 107, 5, 250, 255, 255, 255, 0, 0, 0, 250, 9, 83, 128, 128, 126, 77, 77,
        77, 1, 229, 254,
    ];
    assert_eq!(after(rgb(), |image| adjust_hue(image, 0.1)), forwards);
    let backwards = [
        30, 128, 200, 220, 10, 14, 148, 250, 5, 255, 255, 255, 0, 0, 0, 9, 250, 176, 126, 126, 128, 77, 77,
        77, 254, 26, 1,
    ];
    assert_eq!(after(rgb(), |image| adjust_hue(image, -0.4)), backwards);
    assert_eq!(after(grey_picture(), |image| adjust_hue(image, 0.3)), GREYS);
}

#[test]
fn a_hue_does_not_depend_on_the_other_pixels() {
    let pixels: Vec<u8> = (0..3 * (2 * BLOCK + 5)).map(|i| (i * i * 7 % 251) as u8).collect();
    let image = Image::new([1, 2 * BLOCK + 5, 3], pixels.clone());
    let alone = pixels
        .as_chunks::<3>()
        .0
        .iter()
        .flat_map(|pixel| after(Image::filled(1, 1, pixel), |image| adjust_hue(image, -0.23)));
    assert_eq!(after(image, |image| adjust_hue(image, -0.23)), alone.collect::<Vec<_>>());
}

#[test]
fn whole_turns_of_the_hue_do_not_count() {
    for turns in [-7.0, -1.0, 1.0, 12.0] {
        let turned = after(rgb(), |image| adjust_hue(image, 0.25 + turns));
        assert_eq!(turned, after(rgb(), |image| adjust_hue(image, 0.25)));
    }
}

#[test]
fn gammas_are_those_of_torchvision() {
    // F.adjust_gamma(torch.tensor(GREYS, dtype=torch.uint8).reshape(1, 2, 4), gamma, gain)
    for (gamma, gain, expected) in [
        (0.7, 1.2, [0, 6, 31, 111, 189, 255, 255, 255]),
        (2.0, 1.0, [0, 0, 0, 14, 64, 157, 253, 255]),
        (3.0, 1.0, [0, 0, 0, 3, 32, 123, 252, 255]),
        (0.5, 0.8, [0, 12, 40, 99, 145, 181, 204, 204]),
        (0.0, 1.0, [255; 8]),
        (1.0, 1.0, GREYS),
    ] {
        assert_eq!(
            after(grey_picture(), |image| adjust_gamma(image, gamma, gain)),
            expected,
            "{gamma} {gain}"
        );
    }
}

#[test]
fn posterize_clears_low_bits() {
    // F.posterize(x, 3)
    let expected = COLOURS.map(|value| value & 0b1110_0000);
    assert_eq!(after(rgb(), |image| posterize(image, 3)), expected);
    assert_eq!(after(rgb(), |image| posterize(image, 0)), [0; 27]);
    for bits in [8, 9, 32, u32::MAX] {
        assert_eq!(after(rgb(), |image| posterize(image, bits)), COLOURS);
    }
}

#[test]
fn solarize_inverts_from_the_threshold() {
    // F.solarize(x, 127.5)
    let expected = COLOURS.map(|value| if value >= 128 { !value } else { value });
    assert_eq!(after(rgb(), |image| solarize(image, 127.5)), expected);
    assert_eq!(after(rgb(), |image| solarize(image, 128.0)), expected);
    let inverted = after(rgb(), invert);
    assert_eq!(after(rgb(), |image| solarize(image, -1.0)), inverted);
    assert_eq!(after(rgb(), |image| solarize(image, 0.0)), inverted);
    for threshold in [255.5, f64::INFINITY, f64::NAN] {
        assert_eq!(after(rgb(), |image| solarize(image, threshold)), COLOURS);
    }
}

#[test]
fn invert_is_its_own_inverse() {
    assert_eq!(after(rgb(), invert), COLOURS.map(|value| 255 - value));
    assert_eq!(after(grey_picture(), |image| (0..2).for_each(|_| invert(image))), GREYS);
}

#[test]
fn equalized_values_are_those_of_torchvision() {
    // n = torch.arange(900).mul(7).remainder(97).reshape(30, 10, 3).permute(2, 0, 1).to(torch.uint8)
    // e = F.equalize(n); [[e[c][n[c] == v][0] for v in (0, 1, 50, 95, 96)] for c in range(3)]
    let expected = [[0, 4, 155, 255, 255], [0, 3, 155, 255, 255], [0, 3, 155, 255, 255]];
    let (before, equal) = (many(), after(many(), equalize));
    for (channel, expected) in expected.iter().enumerate() {
        for (value, &expected) in [0, 1, 50, 95, 96].into_iter().zip(expected) {
            let found = (channel..900).step_by(3).find(|&i| before.pixels()[i] == value);
            assert_eq!(found.map(|i| equal[i]), Some(expected), "{channel} {value}");
        }
    }
}

#[test]
fn grey_pictures_equalize_as_channels_do() {
    let channel: Vec<u8> = many().pixels().iter().copied().skip(1).step_by(3).collect();
    let expected: Vec<u8> = after(many(), equalize).into_iter().skip(1).step_by(3).collect();
    assert_eq!(after(Image::new([30, 10, 1], channel), equalize), expected);
}

#[test]
fn pictures_with_few_pixels_do_not_equalize() {
    assert_eq!(after(rgb(), equalize), COLOURS);
    assert_eq!(after(Image::filled(40, 40, &[7]), equalize), [7; 1600]);
}

#[test]
fn autocontrast_stretches_each_channel() {
    // F.autocontrast(torch.tensor([[10, 20, 30], [50, 20, 40], [14, 20, 33]], dtype=torch.uint8).T.reshape(3,
    // 1, 3))
    let image = Image::new([1, 3, 3], vec![10, 20, 30, 50, 20, 40, 14, 20, 33]);
    assert_eq!(after(image, autocontrast), [0, 20, 0, 254, 20, 254, 25, 20, 76]);
    // F.autocontrast(torch.tensor([100, 120, 90, 30, 60, 50], dtype=torch.uint8).reshape(1, 2, 3))
    let image = Image::new([2, 3, 1], vec![100, 120, 90, 30, 60, 50]);
    assert_eq!(after(image, autocontrast), [198, 255, 170, 0, 85, 56]);
}

#[test]
fn ranges_count_all_pixels() {
    for place in [0, 46, 47, 48, 95, 96, 149] {
        let mut pixels = vec![100; 150];
        pixels[place] = 0;
        let mut expected = [[100, 100]; 3];
        expected[place % 3] = [0, 100];
        assert_eq!(ranges::<3>(&pixels), expected, "{place}");
    }
}

#[test]
fn channels_change_places() {
    // F.permute_channels(x, [2, 0, 1])
    let permuted = after(rgb(), |image| permute_channels(image, &[2, 0, 1]));
    assert_eq!(permuted[..9], [60, 200, 30, 90, 10, 220, 250, 5, 50]);
    let image = Image::new([3, 3, 3], permuted);
    assert_eq!(after(image, |image| permute_channels(image, &[1, 2, 0])), COLOURS);
    assert_eq!(after(grey_picture(), |image| permute_channels(image, &[0])), GREYS);
}

#[test]
#[should_panic(expected = "is outside")]
fn a_channel_outside_panics() {
    permute_channels(&mut rgb(), &[0, 1, 3]);
}

#[test]
fn no_number_is_refused() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0, 1e300, 5e-324, f64::MAX];
    let changes = [adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue, solarize];
    for image in [Image::filled(1, 1, &[0, 7, 255]), Image::filled(1, 1, &[3]), rgb(), grey_picture()] {
        for number in odd {
            for change in changes {
                assert_eq!(after(image.clone(), |image| change(image, number)).len(), image.pixels().len());
            }
            for other in odd {
                assert_eq!(
                    after(image.clone(), |image| adjust_gamma(image, number, other)).len(),
                    image.pixels().len()
                );
            }
        }
        for change in [invert as Change, equalize, autocontrast] {
            assert_eq!(after(image.clone(), change).len(), image.pixels().len());
        }
    }
}
