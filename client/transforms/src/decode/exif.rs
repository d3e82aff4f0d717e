//! The EXIF orientation: how to find it, and how to turn a picture by it.

use super::Region;
use crate::image::Image;

/// Tag of the orientation in a TIFF directory.
const ORIENTATION: u16 = 0x0112;
/// Type of a 16-bit number in a TIFF directory.
const SHORT: u16 = 3;

/// Orientation in an EXIF block (a TIFF file, perhaps after `Exif\0\0`); 1 if there is none or a wrong one.
pub(super) fn orientation(exif: &[u8]) -> u8 {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    find_orientation(tiff).filter(|value| (1..=8).contains(value)).map_or(1, |value| value as u8)
}

fn find_orientation(tiff: &[u8]) -> Option<u16> {
    let big = match tiff.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let pair = tiff.get(at..)?.first_chunk().copied()?;
        Some(if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    };
    let offset = tiff.get(4..)?.first_chunk().copied()?;
    let directory = if big { u32::from_be_bytes(offset) } else { u32::from_le_bytes(offset) } as usize;
    let entries = directory.checked_add(2)?;
    let tags = usize::from(short(directory)?);
    let entry =
        (0..tags).filter_map(|i| entries.checked_add(i * 12)).find(|&at| short(at) == Some(ORIENTATION))?;
    if short(entry.checked_add(2)?)? == SHORT { short(entry.checked_add(8)?) } else { None }
}

/// Whether rows become columns, rows are counted from the bottom, and columns from the right.
fn steps(orientation: u8) -> (bool, bool, bool) {
    (orientation >= 5, matches!(orientation, 3 | 4 | 6 | 7), matches!(orientation, 2 | 3 | 7 | 8))
}

/// `[height, width]` after turning.
pub(super) fn turned_size([height, width]: [usize; 2], orientation: u8) -> [usize; 2] {
    if steps(orientation).0 { [width, height] } else { [height, width] }
}

/// The region of a stored picture of `[height, width]` that becomes `region` when turned.
pub(super) fn stored_region(region: Region, [height, width]: [usize; 2], orientation: u8) -> Region {
    let (swap, from_bottom, from_right) = steps(orientation);
    let mut stored = region;
    if swap {
        stored = Region { top: region.left, left: region.top, height: region.width, width: region.height };
    }
    if from_bottom {
        stored.top = height - stored.top - stored.height;
    }
    if from_right {
        stored.left = width - stored.left - stored.width;
    }
    stored
}

/// The picture as its orientation asks it to be seen.
pub(super) fn turn(image: Image<u8>, orientation: u8) -> Image<u8> {
    if orientation == 1 {
        return image;
    }
    match image.channels() {
        1 => turn_pixels::<1>(&image, orientation),
        _ => turn_pixels::<3>(&image, orientation),
    }
}

fn turn_pixels<const C: usize>(image: &Image<u8>, orientation: u8) -> Image<u8> {
    let (height, width) = (image.height(), image.width());
    let (swap, from_bottom, from_right) = steps(orientation);
    let (source, _) = image.pixels().as_chunks::<C>();
    let mut turned = Vec::with_capacity(source.len());
    let stored_y = |y: usize| if from_bottom { height - 1 - y } else { y };
    let stored_x = |x: usize| if from_right { width - 1 - x } else { x };
    if swap {
        for y in 0..width {
            let column = stored_x(y);
            turned.extend((0..height).map(|x| source[stored_y(x) * width + column]));
        }
    } else {
        for y in 0..height {
            let row = &source[stored_y(y) * width..][..width];
            if from_right {
                turned.extend(row.iter().rev());
            } else {
                turned.extend_from_slice(row);
            }
        }
    }
    let [height, width] = turned_size([height, width], orientation);
    Image::new([height, width, C], turned.into_flattened())
}
