//! Class numbers of a PNG: grey as it is, and indices without the colours of their palette.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};

use super::{DecodeError, Format, guarded};
use crate::image::Image;

/// Bytes that the decoder may take beside the pixels.
const SPARE_BYTES: usize = 1 << 20;

/// The class numbers of a mask of `[height, width]`: the indices of a PNG with a palette, or the numbers of a grey one of up to
/// 8 bits.
///
/// Grey of fewer than 8 bits is stretched to 0..=255, as the format defines it; indices are not.
///
/// # Errors
/// [`DecodeError::NoIndices`] if it is no such PNG or of another size, and others if it is broken. No input makes it panic.
pub fn decode_indices(bytes: &[u8], size: [usize; 2]) -> Result<Image<u8>, DecodeError> {
    match Format::of(bytes) {
        None => Err(DecodeError::unknown(bytes)),
        Some(Format::Png) => guarded(Format::Png, || decode(bytes, size)),
        Some(format) => Err(DecodeError::NoIndices { format, detail: "only PNG keeps class numbers".into() }),
    }
}

fn decode(bytes: &[u8], [height, width]: [usize; 2]) -> Result<Image<u8>, DecodeError> {
    let no_indices = |detail| Err(DecodeError::NoIndices { format: Format::Png, detail });
    let limits = Limits { bytes: (height * width).saturating_mul(4).saturating_add(SPARE_BYTES) };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(named)?;
    let (own_width, own_height) = reader.info().size();
    if [own_height as usize, own_width as usize] != [height, width] {
        return no_indices(format!(
            "it has {own_height}x{own_width} pixels, and its picture has {height}x{width}"
        ));
    }
    let stretched = match reader.output_color_type() {
        (_, BitDepth::Sixteen) => return no_indices("its numbers have 16 bits".into()),
        (ColorType::Grayscale, _) => true,
        (ColorType::Indexed, _) => false,
        (color, _) => return no_indices(format!("its pixels are {color:?}")),
    };
    let bits = reader.output_color_type().1 as usize;
    let line = (width * bits).div_ceil(8);
    let mut packed = vec![0; line * height];
    reader.next_frame(&mut packed).map_err(named)?;
    let most = u8::MAX >> (8 - bits);
    let factor = if stretched { u8::MAX / most } else { 1 };
    let number = |row: &[u8], x: usize| ((row[x * bits / 8] >> (8 - bits - x * bits % 8)) & most) * factor;
    let pixels = packed.chunks_exact(line).flat_map(|row| (0..width).map(move |x| number(row, x)));
    Ok(Image::new([height, width, 1], pixels.collect()))
}

fn named(error: DecodingError) -> DecodeError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            DecodeError::truncated(Format::Png, "its data stop before the last pixel")
        }
        other => DecodeError::broken(Format::Png, other.to_string()),
    }
}
