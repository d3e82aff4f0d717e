//! Colour conversions that the decoders leave to us, with the integers of Pillow and libpng.

/// Grey as Pillow's `convert("L")`: ITU-R 601-2 luma, rounded.
pub(super) fn pillow_luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// Weights of libpng's `png_set_rgb_to_gray` as torchvision calls it (0.2989 and 0.587), in 1/32768.
const LIBPNG: [u32; 3] = [9794, 19234, 3740];

/// Grey as torchvision reads a PNG of 8 bits: libpng's sum, cut off.
pub(super) fn libpng_luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * LIBPNG[0] + u32::from(g) * LIBPNG[1] + u32::from(b) * LIBPNG[2]) >> 15) as u8
}

/// Grey as torchvision reads a PNG of 16 bits: libpng's sum, rounded.
pub(super) fn libpng_luma_16([r, g, b]: [u16; 3]) -> u16 {
    ((u32::from(r) * LIBPNG[0] + u32::from(g) * LIBPNG[1] + u32::from(b) * LIBPNG[2] + 0x4000) >> 15) as u16
}

/// RGB of the inverted CMYK that JPEG files hold (Adobe's convention), as Pillow's `convert("RGB")`.
pub(super) fn rgb_of_inverted_cmyk([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| k - product(255 - ink, k))
}

/// `a * b / 255`, rounded; not over either.
fn product(a: u8, b: u8) -> u8 {
    let scaled = u32::from(a) * u32::from(b) + 128;
    (((scaled >> 8) + scaled) >> 8) as u8
}
