//! PNG, WebP, GIF (its first frame), TIFF and BMP, through crate `image`.

use std::io::Cursor;

use ::image::{ColorType, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use super::{ColorMode, DecodeError, DecodeOptions, Format, Header, Region, Scratch, colour, exif};
use crate::image::Image;

/// Bytes that a decoder may take for each pixel: 4 channels of 16 bits, three times over.
const BYTES_PER_PIXEL: u64 = 24;
/// Bytes that a decoder may take besides.
const SPARE_BYTES: u64 = 64 << 20;

fn reader(bytes: &[u8], format: Format, limits: Limits) -> Result<impl ImageDecoder, DecodeError> {
    let kind = match format {
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Png => ImageFormat::Png,
        Format::WebP => ImageFormat::WebP,
        Format::Gif => ImageFormat::Gif,
        Format::Tiff => ImageFormat::Tiff,
        Format::Bmp => ImageFormat::Bmp,
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), kind);
    reader.limits(limits);
    reader.into_decoder().map_err(|error| named(format, error))
}

/// What the file says before its pixels.
pub(super) fn header(bytes: &[u8], format: Format) -> Result<Header, DecodeError> {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(SPARE_BYTES);
    let mut decoder = reader(bytes, format, limits)?;
    let (width, height) = decoder.dimensions();
    let stored = decoder.original_color_type();
    let channels = usize::from(stored.channel_count());
    let orientation = match format {
        Format::Tiff => decoder.orientation().map_or(1, |orientation| orientation.to_exif()),
        _ => decoder.exif_metadata().ok().flatten().map_or(1, |block| exif::orientation(&block)),
    };
    let bits = usize::from(stored.bits_per_pixel()) / channels.max(1);
    Ok(Header { format, height: height as usize, width: width as usize, channels, bits, orientation })
}

/// The pixels of `region`, or of all, as stored.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    region: Option<Region>,
    scratch: &mut Scratch,
) -> Result<Image<u8>, DecodeError> {
    let &Header { format, height, width, .. } = header;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some((height as u64 * width as u64).saturating_mul(BYTES_PER_PIXEL) + SPARE_BYTES);
    let decoder = reader(bytes, format, limits)?;
    let colour = decoder.color_type();
    let pixels = &mut scratch.pixels;
    pixels.clear();
    pixels.resize(height * width * usize::from(colour.bytes_per_pixel()), 0);
    decoder.read_image(pixels).map_err(|error| named(format, error))?;
    let pixels = in_mode(pixels, colour, format, options.mode)?;
    Ok(match region {
        None => Image::new([height, width, options.mode.channels()], pixels),
        Some(region) => Image::cut_out_of(&pixels, [height, width, options.mode.channels()], region),
    })
}

/// The pixels in `mode`: alpha dropped, and of 16 bits the upper 8 kept, as torchvision's `to_dtype` does.
fn in_mode(
    pixels: &[u8],
    colour: ColorType,
    format: Format,
    mode: ColorMode,
) -> Result<Vec<u8>, DecodeError> {
    let luma = if format == Format::Png { colour::libpng_luma } else { colour::pillow_luma };
    Ok(match colour {
        ColorType::L8 => of_grey(pixels.iter().copied(), mode),
        ColorType::La8 => of_grey(pixels.as_chunks::<2>().0.iter().map(|&[grey, _]| grey), mode),
        ColorType::Rgb8 => of_rgb(pixels.as_chunks().0.iter().copied(), mode, luma),
        ColorType::Rgba8 => of_rgb(pixels.as_chunks().0.iter().map(|&[r, g, b, _]| [r, g, b]), mode, luma),
        ColorType::L16 => of_grey(wide::<1>(pixels).map(|[grey]| upper(grey)), mode),
        ColorType::La16 => of_grey(wide::<2>(pixels).map(|[grey, _]| upper(grey)), mode),
        ColorType::Rgb16 => of_wide_rgb(wide::<3>(pixels), format, mode),
        ColorType::Rgba16 => of_wide_rgb(wide::<4>(pixels).map(|[r, g, b, _]| [r, g, b]), format, mode),
        other => return Err(DecodeError::unsupported(format, format!("its pixels are {other:?}"))),
    })
}

fn of_grey(grey: impl Iterator<Item = u8>, mode: ColorMode) -> Vec<u8> {
    match mode {
        ColorMode::Gray => grey.collect(),
        ColorMode::Rgb => grey.flat_map(|value| [value; 3]).collect(),
    }
}

fn of_rgb(rgb: impl Iterator<Item = [u8; 3]>, mode: ColorMode, luma: fn([u8; 3]) -> u8) -> Vec<u8> {
    match mode {
        ColorMode::Gray => rgb.map(luma).collect(),
        ColorMode::Rgb => rgb.flatten().collect(),
    }
}

fn of_wide_rgb(rgb: impl Iterator<Item = [u16; 3]>, format: Format, mode: ColorMode) -> Vec<u8> {
    match (format, mode) {
        (Format::Png, ColorMode::Gray) => rgb.map(|rgb| upper(colour::libpng_luma_16(rgb))).collect(),
        _ => of_rgb(rgb.map(|rgb| rgb.map(upper)), mode, colour::pillow_luma),
    }
}

/// Pixels of `C` numbers of 16 bits in this machine's byte order.
fn wide<const C: usize>(pixels: &[u8]) -> impl Iterator<Item = [u16; C]> {
    pixels.as_chunks::<2>().0.as_chunks::<C>().0.iter().map(|pixel| pixel.map(u16::from_ne_bytes))
}

fn upper(value: u16) -> u8 {
    (value >> 8) as u8
}

fn named(format: Format, error: ImageError) -> DecodeError {
    match error {
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            DecodeError::truncated(format, "its data stop before the last pixel")
        }
        ImageError::Unsupported(error) => DecodeError::unsupported(format, error.to_string()),
        ImageError::Limits(error) => DecodeError::unsupported(format, error.to_string()),
        other => DecodeError::broken(format, other.to_string()),
    }
}
