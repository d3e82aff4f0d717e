//! Encoded images and chains of transforms from outside.

use shardd_transforms::decode::{DecodeOptions, decode, decode_region, header};
use shardd_transforms::{Chain, Input, Place, Region, Transform};

use super::Draw;

/// Pixels of the largest picture that is decoded here.
const MOST_PIXELS: u64 = 1 << 20;

/// An encoded image. A part of it is that part of the whole.
pub(crate) fn decoded(bytes: &[u8]) -> bool {
    let options = DecodeOptions { max_pixels: MOST_PIXELS, ..DecodeOptions::default() };
    let Ok(picture) = decode(bytes, &options) else { return false };
    let header = header(bytes).expect("it was decoded");
    assert_eq!(header.decoded_size(&options), [picture.height(), picture.width()]);
    let [height, width, _] = picture.shape();
    let region =
        Region { top: height / 3, left: width / 3, height: height.div_ceil(2), width: width.div_ceil(2) };
    let part = decode_region(bytes, &options, region).expect("a part of what was decoded");
    for y in 0..region.height {
        let row = &picture.row(region.top + y)[region.left * 3..];
        assert_eq!(part.row(y), &row[..region.width * 3], "row {y} of {region:?}");
    }
    true
}

/// A chain as JSON, for a small picture.
pub(crate) fn chain(bytes: &[u8]) -> bool {
    const SHAPE: [usize; 3] = [9, 7, 3];
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(chain) = text.parse::<Chain>() else { return false };
    let again: Chain = chain.to_json().parse().expect("the JSON of a chain");
    assert_eq!(again.digest(), chain.digest());
    let input = Input::of_shape(&SHAPE).expect("a picture");
    let Ok(transform) = Transform::new(chain, input) else { return false };
    // Large pictures are no mistake, and take long.
    if transform.bytes() > 1 << 16 || has_number_over(2, text) {
        return false;
    }
    let mut draw = Draw::new(bytes);
    let sample: Vec<u8> = (0..189).map(|_| draw.u8()).collect();
    let mut out = vec![0; transform.bytes()];
    transform.apply(&sample, Place { seed: 1, epoch: 2, position: 3 }, &mut out).is_ok()
}

/// Whether a number in the text has more than `most` digits before its point.
pub(super) fn has_number_over(most: usize, text: &str) -> bool {
    text.split(|character: char| !character.is_ascii_digit()).any(|digits| digits.len() > most)
}
