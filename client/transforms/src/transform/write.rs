//! The last pass: from a picture to its numbers in a batch, in their order and type. It mirrors and cuts on the way.

use half::{bf16, f16};

use crate::image::Image;
use crate::placed::Placed;
use crate::value::{Dtype, Layout};

/// Writes bytes.
pub(super) fn bytes(placed: &Placed<'_>, layout: Layout, out: &mut [u8]) {
    let channels = placed.channels();
    let [height, width] = placed.size();
    match (layout, channels) {
        (Layout::ChannelsFirst, 3) => planes(placed, out),
        (Layout::ChannelsFirst, 2..) => numbers(placed, layout, out, |_, byte| [byte]),
        _ => {
            for (to, row) in out.chunks_exact_mut(width * channels).zip(placed.rows()) {
                to.copy_from_slice(row);
                match (placed.is_mirrored(), channels) {
                    (false, _) => {}
                    (true, 3) => to.as_chunks_mut::<3>().0.reverse(),
                    (true, _) => to.reverse(),
                }
            }
            debug_assert_eq!(out.len(), height * width * channels);
        }
    }
}

/// Writes the float of each byte of each channel.
pub(super) fn by_table(
    placed: &Placed<'_>,
    floats: &[[f32; 256]],
    layout: Layout,
    dtype: Dtype,
    out: &mut [u8],
) {
    match dtype {
        Dtype::Float32 => by_bytes(placed, floats, layout, out, f32::to_le_bytes),
        Dtype::Float16 => by_bytes(placed, floats, layout, out, |float| f16::from_f32(float).to_le_bytes()),
        Dtype::Bfloat16 => by_bytes(placed, floats, layout, out, |float| bf16::from_f32(float).to_le_bytes()),
        Dtype::Uint8 => unreachable!("the last operations make floats"),
    }
}

fn by_bytes<const N: usize>(
    placed: &Placed<'_>,
    floats: &[[f32; 256]],
    layout: Layout,
    out: &mut [u8],
    bytes: fn(f32) -> [u8; N],
) {
    let tables: Vec<[[u8; N]; 256]> = floats.iter().map(|floats| floats.map(bytes)).collect();
    match (layout, tables.as_slice()) {
        (Layout::ChannelsFirst, [red, green, blue]) => planes_by_table(placed, [red, green, blue], out),
        (_, tables) => numbers(placed, layout, out, |channel, byte| tables[channel][usize::from(byte)]),
    }
}

/// Writes what three tables have for the bytes of three channels, as planes. One pass over the pixels: each is in the nearest cache
/// once, and the tables' places are known to the inner loop.
fn planes_by_table<const N: usize>(placed: &Placed<'_>, tables: [&[[u8; N]; 256]; 3], out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<N>();
    for (pixels, [red, green, blue]) in rows(placed, out) {
        match placed.is_mirrored() {
            false => deal(pixels.iter(), tables, red, green, blue),
            true => deal(pixels.iter().rev(), tables, red, green, blue),
        }
    }
}

/// The pixels of each row, and its part of each of three planes.
#[inline(always)]
fn rows<'p, 'o, T>(
    placed: &Placed<'p>,
    out: &'o mut [T],
) -> impl Iterator<Item = (&'p [[u8; 3]], [&'o mut [T]; 3])> {
    let [height, width] = placed.size();
    let (red, rest) = out.split_at_mut(height * width);
    let (green, blue) = rest.split_at_mut(height * width);
    let [red, green, blue] = [red, green, blue].map(|plane| plane.chunks_exact_mut(width));
    let planes = red.zip(green).zip(blue).map(|((red, green), blue)| [red, green, blue]);
    placed.rows().map(|row| row.as_chunks::<3>().0).zip(planes)
}

#[inline(always)]
fn deal<'p, const N: usize>(
    pixels: impl Iterator<Item = &'p [u8; 3]>,
    [reds, greens, blues]: [&[[u8; N]; 256]; 3],
    red: &mut [[u8; N]],
    green: &mut [[u8; N]],
    blue: &mut [[u8; N]],
) {
    for (((pixel, red), green), blue) in pixels.zip(red).zip(green).zip(blue) {
        *red = reds[usize::from(pixel[0])];
        *green = greens[usize::from(pixel[1])];
        *blue = blues[usize::from(pixel[2])];
    }
}

/// Writes floats.
pub(super) fn floats(image: &Image<f32>, layout: Layout, dtype: Dtype, out: &mut [u8]) {
    match dtype {
        Dtype::Float16 => each(image, layout, out, |float| f16::from_f32(float).to_le_bytes()),
        Dtype::Bfloat16 => each(image, layout, out, |float| bf16::from_f32(float).to_le_bytes()),
        Dtype::Float32 | Dtype::Uint8 => each(image, layout, out, f32::to_le_bytes),
    }
}

fn each<const N: usize>(image: &Image<f32>, layout: Layout, out: &mut [u8], bytes: fn(f32) -> [u8; N]) {
    let (out, _) = out.as_chunks_mut::<N>();
    let channels = image.channels();
    match (layout, channels) {
        (Layout::ChannelsLast, _) => {
            out.iter_mut().zip(image.pixels()).for_each(|(to, from)| *to = bytes(*from))
        }
        (Layout::ChannelsFirst, 3) => {
            let (pixels, _) = image.pixels().as_chunks::<3>();
            let (red, rest) = out.split_at_mut(pixels.len());
            let (green, blue) = rest.split_at_mut(pixels.len());
            for (((pixel, red), green), blue) in pixels.iter().zip(red).zip(green).zip(blue) {
                [*red, *green, *blue] = pixel.map(bytes);
            }
        }
        (Layout::ChannelsFirst, _) => {
            for (channel, plane) in out.chunks_exact_mut(image.height() * image.width()).enumerate() {
                let from = image.pixels()[channel..].iter().step_by(channels);
                plane.iter_mut().zip(from).for_each(|(to, from)| *to = bytes(*from));
            }
        }
    }
}

/// Writes the bytes of each number, made of its channel and its byte.
fn numbers<const N: usize>(
    placed: &Placed<'_>,
    layout: Layout,
    out: &mut [u8],
    bytes: impl Fn(usize, u8) -> [u8; N],
) {
    let (out, _) = out.as_chunks_mut::<N>();
    let channels = placed.channels();
    let [height, width] = placed.size();
    let seen = |row: &[u8], at: usize| if placed.is_mirrored() { row.len() / channels - 1 - at } else { at };
    match layout {
        Layout::ChannelsFirst => {
            for (channel, plane) in out.chunks_exact_mut(height * width).enumerate() {
                for (to, row) in plane.chunks_exact_mut(width).zip(placed.rows()) {
                    let number = |at| bytes(channel, row[seen(row, at) * channels + channel]);
                    to.iter_mut().enumerate().for_each(|(at, to)| *to = number(at));
                }
            }
        }
        Layout::ChannelsLast => {
            for (to, row) in out.chunks_exact_mut(width * channels).zip(placed.rows()) {
                for (at, pixel) in to.chunks_exact_mut(channels).enumerate() {
                    let from = &row[seen(row, at) * channels..][..channels];
                    let number =
                        |(channel, (to, from)): (usize, (&mut [u8; N], &u8))| *to = bytes(channel, *from);
                    pixel.iter_mut().zip(from).enumerate().for_each(number);
                }
            }
        }
    }
}

/// Writes the bytes of three channels as planes.
fn planes(placed: &Placed<'_>, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { planes_avx2(placed, out) };
    }
    planes_of(placed, out);
}

/// The same, compiled for a processor that deals the bytes of 32 pixels at once.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn planes_avx2(placed: &Placed<'_>, out: &mut [u8]) {
    planes_of(placed, out);
}

#[inline(always)]
fn planes_of(placed: &Placed<'_>, out: &mut [u8]) {
    for (pixels, [red, green, blue]) in rows(placed, out) {
        for (((pixel, red), green), blue) in pixels.iter().zip(&mut *red).zip(&mut *green).zip(&mut *blue) {
            [*red, *green, *blue] = *pixel;
        }
        if placed.is_mirrored() {
            [red, green, blue].into_iter().for_each(<[u8]>::reverse);
        }
    }
}
