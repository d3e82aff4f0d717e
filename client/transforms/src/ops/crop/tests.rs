use proptest::prelude::*;

use super::*;
use crate::draws::Place;
use crate::operation::Operation;

/// A grey picture whose numbers count.
fn counting(height: usize, width: usize) -> Image<u8> {
    Image::new([height, width, 1], (0..height * width).map(|number| number as u8).collect())
}

fn place(position: u64) -> Place {
    Place { seed: 1, epoch: 0, position }
}

/// `F.pad(torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3), [2, 1, 2, 1], padding_mode=mode)`.
#[test]
fn margins_are_those_of_torchvision() {
    let padded = |mode| pad(&counting(2, 3), [2, 1, 2, 1], &[9], mode).into_pixels();
    let edge = [[0, 0, 0, 1, 2, 2, 2], [0, 0, 0, 1, 2, 2, 2], [3, 3, 3, 4, 5, 5, 5], [3, 3, 3, 4, 5, 5, 5]];
    assert_eq!(padded(PaddingMode::Edge), edge.concat());
    let reflect =
        [[5, 4, 3, 4, 5, 4, 3], [2, 1, 0, 1, 2, 1, 0], [5, 4, 3, 4, 5, 4, 3], [2, 1, 0, 1, 2, 1, 0]];
    assert_eq!(padded(PaddingMode::Reflect), reflect.concat());
    let symmetric =
        [[1, 0, 0, 1, 2, 2, 1], [1, 0, 0, 1, 2, 2, 1], [4, 3, 3, 4, 5, 5, 4], [4, 3, 3, 4, 5, 5, 4]];
    assert_eq!(padded(PaddingMode::Symmetric), symmetric.concat());
    let constant =
        [[9, 9, 9, 9, 9, 9, 9], [9, 9, 0, 1, 2, 9, 9], [9, 9, 3, 4, 5, 9, 9], [9, 9, 9, 9, 9, 9, 9]];
    assert_eq!(padded(PaddingMode::Constant), constant.concat());
}

/// `F.center_crop(torch.arange(20, dtype=torch.uint8).reshape(1, 4, 5), size)`.
#[test]
fn the_middle_is_that_of_torchvision() {
    let cut = |size| center_crop(counting(4, 5), size).into_pixels();
    assert_eq!(cut([1, 2]), [12, 13]);
    assert_eq!(cut([3, 3]), [1, 2, 3, 6, 7, 8, 11, 12, 13]);
    assert_eq!(cut([5, 2]), [2, 3, 7, 8, 12, 13, 17, 18, 0, 0]);
}

proptest! {
    #[test]
    fn a_mirrored_margin_is_as_far_behind_the_edge_as_its_pixel_is_before_it(
        side in 1usize..9, at in -40isize..40,
    ) {
        for (mode, period) in [(PaddingMode::Reflect, (2 * side).saturating_sub(2).max(1)), (PaddingMode::Symmetric, 2 * side)] {
            let source = mode.source(at, side).expect("a pixel");
            prop_assert!(source < side);
            prop_assert_eq!(mode.source(at + period as isize, side), Some(source));
        }
        prop_assert_eq!(PaddingMode::Constant.source(at, side).is_some(), (0..side as isize).contains(&at));
    }

    #[test]
    fn a_random_rectangle_is_inside_any_picture(
        height in 1usize..400, width in 1usize..400, position: u64, scale in 0.0..1.5f64, ratio in 0.05..1.0f64,
    ) {
        let crop = RandomResizedCrop {
            size: OneOrMany::One(8),
            scale: [scale / 2.0, scale],
            ratio: [ratio, 1.0 / ratio],
            interpolation: Interpolation::Bilinear,
        };
        let region = crop.region([height, width], &mut Draws::new(place(position), 0));
        prop_assert!(region.height >= 1 && region.top + region.height <= height, "{region:?}");
        prop_assert!(region.width >= 1 && region.left + region.width <= width, "{region:?}");
    }

    #[test]
    fn what_is_decoded_in_part_is_what_is_cut_out_of_the_whole(
        height in 1usize..60, width in 1usize..60, side in 1usize..40, position: u64, pad_if_needed: bool,
    ) {
        let image = counting(height, width);
        let at = At { place: place(position), op: 3 };
        let size = OneOrMany::One(side);
        let random = RandomCrop {
            size: size.clone(), padding: None, pad_if_needed, fill: black(), padding_mode: PaddingMode::Edge,
        };
        let resized = RandomResizedCrop {
            size: size.clone(), scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0], interpolation: Interpolation::Bilinear,
        };
        let ops: [&dyn Operation; 3] = [&CenterCrop { size }, &random, &resized];
        for op in ops {
            if let Some(region) = op.region([height, width], at) {
                let part = op.apply_to_region(Value::Bytes(image.cut(region)));
                prop_assert_eq!(part, op.apply(Value::Bytes(image.clone()), at));
            }
        }
    }
}
