use super::*;

/// `torch.tensor([i * i * 7 % 256 for i in range(len)], dtype=torch.uint8)`, in this shape.
fn squares(shape: [usize; 3]) -> Image {
    Image::new(shape, (0..shape.iter().product()).map(|i: usize| (i * i * 7 % 256) as u8).collect())
}

fn sharpened(mut image: Image, factor: f64) -> Vec<u8> {
    adjust_sharpness(&mut image, factor);
    image.into_pixels()
}

fn blurred(mut image: Image, kernel_size: [usize; 2], sigma: [f64; 2]) -> Image {
    gaussian_blur(&mut image, kernel_size, sigma);
    image
}

/// The blur by its definition: a sum over both dimensions.
fn slow_blur(image: &Image, [across, down]: [usize; 2], [sigma_x, sigma_y]: [f64; 2]) -> Vec<f64> {
    let weight = |distance: isize, sigma: f64| (-0.5 * (distance as f64 / sigma).powi(2)).exp();
    let [height, width, channels] = image.shape();
    let (rx, ry) = ((across / 2) as isize, (down / 2) as isize);
    let mean = |i: usize| {
        let (y, x, channel) = (i / channels / width, i / channels % width, i % channels);
        let (mut sum, mut weights) = (0.0, 0.0);
        for dy in -ry..=ry {
            for dx in -rx..=rx {
                let pixel = image.pixel(reflect(y as isize + dy, height), reflect(x as isize + dx, width));
                let weight = weight(dx, sigma_x) * weight(dy, sigma_y);
                sum += weight * f64::from(pixel[channel]);
                weights += weight;
            }
        }
        sum / weights
    };
    (0..image.pixels().len()).map(mean).collect()
}

#[test]
fn sharpness_is_that_of_torchvision() {
    // F.adjust_sharpness(v, 0.0) and (v, 1.7), where v has the numbers of [4, 5, 1] above in shape (1, 4, 5)
    let expected = [0, 7, 28, 63, 112, 175, 159, 112, 138, 55, 188, 124, 186, 164, 92, 39, 0, 231, 220, 223];
    assert_eq!(sharpened(squares([4, 5, 1]), 0.0), expected);
    let expected = [0, 7, 28, 63, 112, 175, 255, 69, 229, 55, 188, 47, 255, 155, 92, 39, 0, 231, 220, 223];
    assert_eq!(sharpened(squares([4, 5, 1]), 1.7), expected);
    // F.adjust_sharpness(v, 2.5), where v has the numbers of [4, 3, 3] above, permuted to (3, 4, 3)
    let expected = [
        0, 7, 28, 63, 112, 175, 252, 87, 192, 55, 188, 79, 255, 225, 39, 39, 0, 231, 220, 223, 240, 0, 7, 96,
        192, 23, 124, 239, 112, 255, 156, 71, 0, 199, 156, 127,
    ];
    assert_eq!(sharpened(squares([4, 3, 3]), 2.5), expected);
}

#[test]
fn sharpness_keeps_small_pictures_and_evenness() {
    for shape in [[1, 1, 3], [1, 9, 1], [9, 1, 3], [2, 3, 3], [3, 2, 1]] {
        assert_eq!(sharpened(squares(shape), 0.0), squares(shape).pixels());
    }
    assert_eq!(sharpened(squares([9, 8, 3]), 1.0), squares([9, 8, 3]).pixels());
    assert_eq!(sharpened(Image::filled(5, 6, &[1, 2, 255]), 0.3), Image::filled(5, 6, &[1, 2, 255]).pixels());
}

#[test]
fn blurs_are_those_of_torchvision() {
    // F.gaussian_blur(v, [3, 5], [0.8, 1.2]), where v has the numbers of [4, 5, 1] above in shape (1, 4, 5)
    let expected =
        [127, 122, 116, 116, 110, 126, 126, 132, 132, 122, 115, 125, 160, 162, 144, 109, 125, 174, 178, 157];
    assert_eq!(blurred(squares([4, 5, 1]), [3, 5], [0.8, 1.2]).pixels(), expected);
    // F.gaussian_blur(v, [5, 3], [1.5, 0.6]), where v has the numbers of [4, 3, 3] above, permuted to (3, 4,
    // 3)
    let expected = [
        106, 93, 131, 112, 97, 137, 114, 93, 140, 126, 115, 130, 133, 114, 130, 128, 108, 135, 133, 105, 141,
        125, 98, 134, 131, 96, 138, 166, 102, 122, 158, 97, 109, 164, 100, 115,
    ];
    assert_eq!(blurred(squares([4, 3, 3]), [5, 3], [1.5, 0.6]).pixels(), expected);
}

#[test]
fn blurs_follow_the_definition() {
    let shapes = [[1, 1, 3], [1, 5, 1], [6, 1, 3], [2, 3, 3], [17, 23, 1], [13, 40, 3]];
    let kernels = [([1, 7], [1.0, 1.3]), ([9, 1], [2.0, 1.0]), ([5, 5], [0.4, 3.0]), ([23, 31], [2.5, 1.5])];
    for shape in shapes {
        for (size, sigma) in kernels {
            let means = slow_blur(&squares(shape), size, sigma);
            for (&value, mean) in blurred(squares(shape), size, sigma).pixels().iter().zip(means) {
                assert!((f64::from(value) - mean).abs() < 0.5001, "{shape:?} {size:?}: {value} for {mean}");
            }
        }
    }
}

#[test]
fn blurs_keep_even_pictures() {
    for pixel in [[0, 128, 255], [255, 255, 255]] {
        for (size, sigma) in [([3, 3], [1.0, 1.0]), ([301, 501], [1e9, f64::INFINITY]), ([41, 1], [5.0, 1.0])]
        {
            let image = Image::filled(4, 37, &pixel);
            assert_eq!(blurred(image.clone(), size, sigma), image);
        }
    }
}

#[test]
fn no_width_keeps_the_picture() {
    let image = squares([6, 7, 3]);
    assert_eq!(blurred(image.clone(), [1, 1], [2.0, 2.0]), image);
    assert_eq!(blurred(image.clone(), [0, 1], [2.0, 2.0]), image);
    for sigma in [0.0, -0.0, -1.0, 5e-324, f64::NAN, f64::NEG_INFINITY] {
        assert_eq!(blurred(image.clone(), [5, 7], [sigma; 2]), image, "{sigma}");
    }
}

#[test]
fn even_sizes_count_as_the_next_larger() {
    let image = squares([6, 7, 1]);
    assert_eq!(blurred(image.clone(), [4, 2], [1.0, 1.0]), blurred(image, [5, 3], [1.0, 1.0]));
}

#[test]
fn far_weights_cost_nothing() {
    assert_eq!(half_kernel(usize::MAX, 1.0).len(), 7);
    let image = squares([6, 7, 1]);
    assert_eq!(blurred(image.clone(), [usize::MAX; 2], [1.0, 1.0]), blurred(image, [15, 15], [1.0, 1.0]));
}

#[test]
fn reflections_repeat() {
    let places: Vec<usize> = (-7..8).map(|place| reflect(place, 4)).collect();
    assert_eq!(places, [1, 0, 1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
    assert!((-5..5).all(|place| reflect(place, 1) == 0));
}

#[test]
fn no_factor_is_refused() {
    for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, 5e-324] {
        assert_eq!(sharpened(squares([3, 4, 3]), factor).len(), 36);
    }
}
