//! The JPEG decoder: crate `libjpeg-turbo-rs`, a port of libjpeg-turbo with its pixels, bit for bit.
//!
//! Nothing else in this crate names it; another decoder has to pass the tests of [`super::tests`].

use libjpeg_turbo_rs::{DecodeLimits, Decoder, JpegError, PixelFormat, RestartResyncStrategy, ResyncAction};

use super::marker::{Frame, Process, Window};
use super::{ColorMode, DecodeError, DecodeOptions, Format, Region, Scratch, Truncated, colour};
use crate::image::Image;

/// Passes over a picture that a progressive file may ask for. Usual are about 10; each costs as much as a picture.
const MAX_SCANS: usize = 500;

/// Files up to this size gain more from a missing Huffman table than their copy costs.
const SMALL_BYTES: usize = 64 << 10;

/// Refuses a file in which a restart marker is not where and what it should be: a lost one shifts pixels unseen.
struct RefuseDesync;

impl RestartResyncStrategy for RefuseDesync {
    fn on_desync(&mut self, _expected: u8, _found: Option<u8>) -> ResyncAction {
        ResyncAction::Abort
    }
}

/// The pixels of `region`, or of all, as stored.
pub(super) fn decode(
    bytes: &[u8],
    frame: &Frame,
    options: &DecodeOptions,
    region: Option<Region>,
    scratch: &mut Scratch,
) -> Result<Image<u8>, DecodeError> {
    let format = format_of(frame, options.mode)?;
    let window = frame.window(region);
    let Scratch { stream, pixels } = scratch;
    let bytes = prepare(bytes, frame, window, options.truncated, stream)?;
    let limits = DecodeLimits { max_pixels: options.max_pixels, max_scans: MAX_SCANS, ..Default::default() };
    let mut decoder = Decoder::new_with_limits(bytes, limits).map_err(named)?;
    decoder.set_output_format(format);
    match options.truncated {
        Truncated::Refuse => decoder.set_resync_strategy(RefuseDesync),
        Truncated::Fill => decoder.set_lenient(true),
    }
    decoder.set_block_smoothing(true); // libjpeg's default; it acts on incomplete progressive files only
    if region.is_none() && format != PixelFormat::Cmyk {
        return decode_whole(&decoder, frame, options.mode);
    }
    let all = Region { top: 0, left: 0, height: frame.height, width: frame.width };
    let region = region.unwrap_or(all);
    let width = decode_window(&mut decoder, frame, window, pixels)?;
    let region = Region { left: region.left - (window.right - width), ..region };
    Ok(match format {
        PixelFormat::Cmyk => {
            without_black(&Image::cut_out_of(pixels, [frame.height, width, 4], region), options.mode)
        }
        _ => Image::cut_out_of(pixels, [frame.height, width, options.mode.channels()], region),
    })
}

/// The file to decode for `window`: `bytes`, or what `stream` gets.
fn prepare<'a>(
    bytes: &'a [u8],
    frame: &Frame,
    window: Window,
    truncated: Truncated,
    stream: &'a mut Vec<u8>,
) -> Result<&'a [u8], DecodeError> {
    let is_shorter = window.rows < frame.height;
    match frame.cut_at(bytes) {
        Some(_) if truncated == Truncated::Refuse => return Err(cut_short()),
        Some(cut_at) => Frame::close(bytes, cut_at, stream),
        None if is_shorter || (frame.has_needless_codes() && bytes.len() <= SMALL_BYTES) => {
            frame.shorten(bytes, window.rows, stream);
        }
        None => return Ok(bytes),
    }
    Ok(stream)
}

fn decode_whole(decoder: &Decoder<'_>, frame: &Frame, mode: ColorMode) -> Result<Image<u8>, DecodeError> {
    let image = decoder.decode_image().map_err(named)?;
    let (found, expected) = ([image.height, image.width], [frame.height, frame.width]);
    if found != expected {
        return Err(wrong_shape(found, expected));
    }
    Ok(Image::new([frame.height, frame.width, mode.channels()], image.data))
}

/// Decodes the window into `pixels`. Returns its width, which may have grown to the left.
fn decode_window(
    decoder: &mut Decoder<'_>,
    frame: &Frame,
    window: Window,
    pixels: &mut Vec<u8>,
) -> Result<usize, DecodeError> {
    if window.left > 0 || window.right < frame.width {
        decoder.set_crop(window.left, window.right - window.left);
    }
    let needed = decoder.output_buffer_size().map_err(named)?;
    if pixels.len() < needed {
        pixels.resize(needed, 0);
    }
    let made = decoder.decode_image_into(&mut pixels[..needed]).map_err(named)?;
    let widths = window.right - window.left..=window.right;
    if made.height != window.rows || !widths.contains(&made.width) {
        return Err(wrong_shape([made.height, made.width], [window.rows, window.right - window.left]));
    }
    Ok(made.width)
}

/// What to ask of the decoder for a frame.
fn format_of(frame: &Frame, mode: ColorMode) -> Result<PixelFormat, DecodeError> {
    let unsupported = |detail: String| Err(DecodeError::unsupported(Format::Jpeg, detail));
    if frame.process == Process::Lossless {
        return unsupported("it is lossless JPEG".into());
    }
    if frame.bits != 8 {
        return unsupported(format!("it has {} bits a sample", frame.bits));
    }
    match (frame.sampling.len(), mode) {
        (1 | 3, ColorMode::Gray) => Ok(PixelFormat::Grayscale),
        (1 | 3, ColorMode::Rgb) => Ok(PixelFormat::Rgb),
        (4, _) if has_common_inks(&frame.sampling) => Ok(PixelFormat::Cmyk),
        (4, _) => unsupported(format!("its four components are sampled by {:?}", frame.sampling)),
        (components, _) => unsupported(format!("it has {components} components")),
    }
}

/// Whether the decoder handles how four components are sampled: the first and the last finest, the others alike.
/// It panics on some other frames, and gets others wrong.
fn has_common_inks(sampling: &[[usize; 2]]) -> bool {
    let &[first, second, third, last] = sampling else { return false };
    let divides = |axis: usize| first[axis].is_multiple_of(second[axis]);
    first == last && second == third && divides(0) && divides(1)
}

fn without_black(cmyk: &Image<u8>, mode: ColorMode) -> Image<u8> {
    let (inks, _) = cmyk.pixels().as_chunks::<4>();
    let rgb = inks.iter().map(|&inks| colour::rgb_of_inverted_cmyk(inks));
    let pixels = match mode {
        ColorMode::Rgb => rgb.flatten().collect(),
        ColorMode::Gray => rgb.map(colour::pillow_luma).collect(),
    };
    Image::new([cmyk.height(), cmyk.width(), mode.channels()], pixels)
}

fn wrong_shape(found: [usize; 2], expected: [usize; 2]) -> DecodeError {
    DecodeError::broken(Format::Jpeg, format!("it decodes to {found:?} pixels instead of {expected:?}"))
}

fn cut_short() -> DecodeError {
    DecodeError::truncated(Format::Jpeg, "its compressed data stop before the last pixel")
}

fn named(error: JpegError) -> DecodeError {
    match error {
        JpegError::UnexpectedEof => cut_short(),
        JpegError::Unsupported(detail) => DecodeError::unsupported(Format::Jpeg, detail),
        other => DecodeError::broken(Format::Jpeg, other.to_string()),
    }
}
