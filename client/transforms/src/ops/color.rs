//! Colours: each operation changes every pixel by itself, or by sums over the whole picture.
//!
//! The functions have the names, arguments and pixels of `torchvision.transforms.v2.functional` for tensors
//! of `uint8`. Where torch's vector code rounds a product and a sum together (a fused multiply-add), they
//! round so too, with plain arithmetic: the pixels are the same on every processor. Factors outside of the
//! ranges that torchvision accepts follow the same formulas; numbers beyond 0 and 255 become 0 and 255, and
//! NaN becomes 0.
//!
//! # Panics
//! All functions panic if the channels of the picture are neither 1 (grey) nor 3 (red, green and blue).

use crate::image::Image;

/// A new value for each value of 8 bits.
type Table = [u8; 256];

/// Makes the picture grey: `0.2989 red + 0.587 green + 0.114 blue`, rounded down.
///
/// `channels` is 1, or 3 for the same number in each. A grey picture keeps its numbers.
///
/// # Panics
/// If `channels` is neither 1 nor 3.
pub fn grayscale(image: Image, channels: usize) -> Image {
    let [height, width, _] = image.shape();
    match (is_rgb(&image), channels) {
        (false, 1) => image,
        (false, 3) => {
            let pixels = image.pixels().iter().flat_map(|&grey| [grey; 3]).collect();
            Image::new([height, width, 3], pixels)
        }
        (true, 1) => Image::new([height, width, 1], to_greys(image.into_pixels())),
        (true, 3) => {
            let mut image = image;
            for pixel in image.pixels_mut().as_chunks_mut().0 {
                *pixel = [grey(*pixel); 3];
            }
            image
        }
        (_, other) => panic!("a grey picture has 1 or 3 channels, not {other}"),
    }
}

/// Multiplies all numbers by a factor of 0 or more, and rounds down: 0 makes the picture black, 1 keeps it.
pub fn adjust_brightness(image: &mut Image, factor: f64) {
    is_rgb(image);
    let factor = factor as f32;
    map(image.pixels_mut(), &table(|value| (value * factor) as u8));
}

/// Moves all numbers away from the mean grey of the picture, by a factor of 0 or more.
///
/// 0 makes the picture evenly grey, 1 keeps it.
pub fn adjust_contrast(image: &mut Image, factor: f64) {
    let mean = mean_grey(image);
    let (own, other) = (factor as f32, (1.0 - factor) as f32);
    map(image.pixels_mut(), &table(|value| libm::fmaf(other, mean, value * own) as u8));
}

/// Moves the numbers of each pixel away from its grey, by a factor of 0 or more.
///
/// 0 makes the picture grey, 1 keeps it. Grey pictures stay as they are.
pub fn adjust_saturation(image: &mut Image, factor: f64) {
    if !is_rgb(image) {
        return;
    }
    let (own, other) = (factor as f32, f64::from((1.0 - factor) as f32));
    let own = std::array::from_fn::<_, 256, _>(|value| f64::from(value as f32 * own));
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        let grey = f64::from(grey(*pixel)) * other;
        *pixel = pixel.map(|value| (own[usize::from(value)] + grey) as f32 as u8);
    }
}

/// Turns the hue of each pixel by a part of the colour circle, from -0.5 to 0.5; 0 keeps the hue.
///
/// Grey pictures stay as they are. Outside of the range, whole turns do not count, and a factor that is not
/// finite changes nothing. The conversions to HSV and back are those of torchvision, after Pillow's
/// `Convert.c`.
pub fn adjust_hue(image: &mut Image, factor: f64) {
    if !is_rgb(image) || !factor.is_finite() {
        return;
    }
    let turn = if factor.abs() <= 0.5 { factor } else { factor - libm::floor(factor) };
    for_blocks(image.pixels_mut(), |rgb| turn_hues(rgb, turn as f32));
}

/// Raises all numbers, as parts of 255, to the power `gamma` of 0 or more, and multiplies them by `gain`.
///
/// Torch computes powers in 32 bits. These have 64 bits and are then rounded, so they are as near or nearer.
pub fn adjust_gamma(image: &mut Image, gamma: f64, gain: f64) {
    is_rgb(image);
    let (gamma, gain) = (gamma as f32, gain as f32);
    let adjust = |value: f32| {
        let power = power(value * (1.0 / 255.0), gamma);
        if gain == 1.0 { power } else { (power * gain).clamp(0.0, 1.0) }
    };
    map(image.pixels_mut(), &table(|value| unit_to_u8(adjust(value))));
}

/// Keeps the highest `bits` of each number and clears the others; 8 or more keep the picture.
pub fn posterize(image: &mut Image, bits: u32) {
    is_rgb(image);
    let mask = !(u8::MAX.checked_shr(bits).unwrap_or(0));
    image.pixels_mut().iter_mut().for_each(|value| *value &= mask);
}

/// Inverts the numbers that are as large as the threshold, or larger.
pub fn solarize(image: &mut Image, threshold: f64) {
    is_rgb(image);
    let threshold = threshold as f32;
    let Some(least) = (0..=u8::MAX).find(|&value| f32::from(value) >= threshold) else { return };
    for value in image.pixels_mut() {
        *value = if *value >= least { !*value } else { *value };
    }
}

/// Takes all numbers from 255.
pub fn invert(image: &mut Image) {
    is_rgb(image);
    image.pixels_mut().iter_mut().for_each(|value| *value = !*value);
}

/// Spreads the numbers of each channel so that all values are about as frequent.
///
/// The formula is that of Pillow's `ImageOps.equalize`. A channel stays as it is if fewer than 255 of its
/// numbers are below its largest.
pub fn equalize(image: &mut Image) {
    if is_rgb(image) {
        let tables = histograms::<3>(image.pixels()).map(|counts| equalizing(&counts));
        map_rgb(image.pixels_mut(), &tables);
    } else {
        // Four histograms, so that equal neighbours do not wait for each other.
        let [counts, rest @ ..] = histograms::<4>(image.pixels());
        let counts =
            std::array::from_fn(|value| rest.iter().fold(counts[value], |sum, more| sum + more[value]));
        map(image.pixels_mut(), &equalizing(&counts));
    }
}

/// Stretches each channel so that its smallest number becomes 0 and its largest 255.
///
/// A channel with one value stays as it is.
pub fn autocontrast(image: &mut Image) {
    if is_rgb(image) {
        let tables = ranges::<3>(image.pixels()).map(stretching);
        map_rgb(image.pixels_mut(), &tables);
    } else {
        let [range] = ranges::<1>(image.pixels());
        map(image.pixels_mut(), &stretching(range));
    }
}

/// Gives each channel the numbers of another: new channel `c` is old channel `order[c]`.
///
/// torchvision does this too, though its documentation describes the inverse. A channel can occur more than
/// once.
///
/// # Panics
/// If `order` does not have one number for each channel, or one of them is no channel.
pub fn permute_channels(image: &mut Image, order: &[usize]) {
    let channels = image.channels();
    assert_eq!(order.len(), channels, "the order has one number for each channel");
    assert!(order.iter().all(|&channel| channel < channels), "a channel of {order:?} is outside");
    if is_rgb(image) {
        let [red, green, blue] = [order[0], order[1], order[2]];
        for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
            *pixel = [pixel[red], pixel[green], pixel[blue]];
        }
    }
}

/// Whether the picture has three channels; else it is grey.
fn is_rgb(image: &Image) -> bool {
    match image.channels() {
        1 => false,
        3 => true,
        other => panic!("a picture is grey or RGB, and does not have {other} channels"),
    }
}

/// A number of 8 bits for a part of 1, as `to_dtype(scale=True)` does.
fn unit_to_u8(value: f32) -> u8 {
    (value * (255.0 + 1.0 - 1e-3)) as u8
}

/// The table of a function of the values 0 to 255.
fn table(change: impl Fn(f32) -> u8) -> Table {
    std::array::from_fn(|value| change(value as f32))
}

/// Changes all numbers by a table.
fn map(pixels: &mut [u8], table: &Table) {
    pixels.iter_mut().for_each(|value| *value = table[usize::from(*value)]);
}

/// Changes the numbers of each channel by its table.
fn map_rgb(pixels: &mut [u8], tables: &[Table; 3]) {
    for pixel in pixels.as_chunks_mut::<3>().0 {
        for (value, table) in pixel.iter_mut().zip(tables) {
            *value = table[usize::from(*value)];
        }
    }
}

/// `0.2989 red + 0.587 green + 0.114 blue`, rounded down; see [`luma_tables`].
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let [reds, greens, blues] = &LUMA;
    ((reds[usize::from(red)] + greens[usize::from(green)] + blues[usize::from(blue)]) >> LUMA_BITS) as u8
}

/// The bits after the point of the numbers in [`LUMA`].
const LUMA_BITS: u32 = 24;

/// The parts of a grey that come from red, green and blue.
static LUMA: [[u32; 256]; 3] = luma_tables();

/// The tables whose sums, rounded down, are torch's greys for all colours.
///
/// Torch sums floats and rounds three times. The result, rounded down, is that of exact sums but for three
/// colours with whole sums, which become darker by one: (250, 9, 228), (250, 13, 146) and (250, 47, 199). No
/// other colour with a whole sum has the red and the green of one of these.
const fn luma_tables() -> [[u32; 256]; 3] {
    /// The weights; sums of whole numbers are apart by `2^24 / 10_000` or more.
    const TEN_THOUSANDTHS: [u64; 3] = [2989, 5870, 1140];
    /// Added to each part: 12 to a sum, of which the roundings have taken less than 3.
    const SLACK: u32 = 4;
    /// Taken from parts of the three colours: once leaves a sum whole, twice does not.
    const CORRECTION: u32 = 8;
    let mut tables = [[0; 256]; 3];
    let mut channel = 0;
    while channel < 3 {
        let mut value = 0;
        while value < 256 {
            let part = ((TEN_THOUSANDTHS[channel] * value as u64) << LUMA_BITS) / 10_000;
            tables[channel][value] = part as u32 + SLACK;
            value += 1;
        }
        channel += 1;
    }
    tables[0][250] -= CORRECTION;
    tables[1][9] -= CORRECTION;
    tables[1][13] -= CORRECTION;
    tables[1][47] -= CORRECTION;
    tables
}

/// The greys of RGB pixels, in the front of the same memory.
fn to_greys(mut pixels: Vec<u8>) -> Vec<u8> {
    let len = pixels.len() / 3;
    for i in 0..len {
        pixels[i] = grey([pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]]);
    }
    pixels.truncate(len);
    pixels.shrink_to_fit();
    pixels
}

/// The mean grey of a picture: the exact sum, divided in 32 bits.
fn mean_grey(image: &Image) -> f32 {
    let count = image.height() * image.width();
    let sum: u64 = if is_rgb(image) {
        image.pixels().as_chunks().0.iter().map(|&pixel| u64::from(grey(pixel))).sum()
    } else {
        image.pixels().iter().map(|&grey| u64::from(grey)).sum()
    };
    sum as f32 / count as f32
}

/// Raises a part of 1 to a power.
fn power(value: f32, exponent: f32) -> f32 {
    if exponent == 2.0 {
        value * value
    } else if exponent == 3.0 {
        value * value * value
    } else if exponent == 0.5 {
        value.sqrt()
    } else {
        libm::pow(value.into(), exponent.into()) as f32
    }
}

/// How often each value occurs, for each of `N` channels.
fn histograms<const N: usize>(pixels: &[u8]) -> [[u64; 256]; N] {
    let mut histograms = [[0; 256]; N];
    let (pixels, rest) = pixels.as_chunks::<N>();
    for pixel in pixels {
        for (counts, &value) in histograms.iter_mut().zip(pixel) {
            counts[usize::from(value)] += 1;
        }
    }
    for (counts, &value) in histograms.iter_mut().zip(rest) {
        counts[usize::from(value)] += 1;
    }
    histograms
}

/// The table that spreads a channel of these counts.
fn equalizing(counts: &[u64; 256]) -> Table {
    let largest = counts.iter().rfind(|&&count| count > 0).copied().unwrap_or(0);
    let step = (counts.iter().sum::<u64>() - largest) / 255;
    if step == 0 {
        return table(|value| value as u8);
    }
    let mut below = 0;
    counts.map(|count| {
        let value = ((below + step / 2) / step).min(255) as u8;
        below += count;
        value
    })
}

/// The smallest and the largest number of each of `N` channels.
fn ranges<const N: usize>(pixels: &[u8]) -> [[u8; 2]; N] {
    /// A multiple of the channels, and of the lanes of a processor.
    const LANES: usize = 48;
    let (mut least, mut most) = ([u8::MAX; LANES], [u8::MIN; LANES]);
    let (chunks, rest) = pixels.as_chunks::<LANES>();
    for chunk in chunks.iter().map(|chunk| &chunk[..]).chain([rest]) {
        for ((least, most), &value) in least.iter_mut().zip(&mut most).zip(chunk) {
            (*least, *most) = (value.min(*least), value.max(*most));
        }
    }
    let mut ranges = [[u8::MAX, u8::MIN]; N];
    for lane in 0..LANES {
        let [low, high] = &mut ranges[lane % N];
        (*low, *high) = (least[lane].min(*low), most[lane].max(*high));
    }
    ranges
}

/// The table that stretches a channel from its smallest to its largest number.
fn stretching([least, most]: [u8; 2]) -> Table {
    if least == most {
        return table(|value| value as u8);
    }
    let (least, most) = (f32::from(least), f32::from(most));
    let scale = (most - least) * (1.0 / 255.0);
    table(|value| ((value - least) / scale) as u8)
}

/// Pixels whose hues turn at a time, in vectors, and the numbers of such a block.
const BLOCK: usize = 64;
const BLOCK_LEN: usize = 3 * BLOCK;

/// Calls a function with all pixels, a block at a time; the last block is filled up with black.
fn for_blocks(pixels: &mut [u8], mut change: impl FnMut(&mut [u8; BLOCK_LEN])) {
    let (blocks, rest) = pixels.as_chunks_mut();
    blocks.iter_mut().for_each(&mut change);
    if !rest.is_empty() {
        let mut block = [0; BLOCK_LEN];
        block[..rest.len()].copy_from_slice(rest);
        change(&mut block);
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

/// Turns the hues of a block by a part of the circle, from -0.5 to 1.
fn turn_hues(rgb: &mut [u8; BLOCK_LEN], turn: f32) {
    let mut planes = [[0.0; BLOCK]; 3];
    for (i, pixel) in rgb.as_chunks::<3>().0.iter().enumerate() {
        for (plane, &value) in planes.iter_mut().zip(pixel) {
            plane[i] = f32::from(value) * (1.0 / 255.0);
        }
    }
    let [reds, greens, blues] = &mut planes;
    for ((red, green), blue) in reds.iter_mut().zip(greens).zip(blues) {
        let [hue, saturation, value] = to_hsv([*red, *green, *blue]);
        let hue = hue + turn;
        let hue = if hue < 0.0 { hue + 1.0 } else { hue };
        let hue = if hue >= 1.0 { hue - 1.0 } else { hue };
        [*red, *green, *blue] = to_rgb([hue, saturation, value]);
    }
    for (i, pixel) in rgb.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        *pixel = [0, 1, 2].map(|channel| unit_to_u8(planes[channel][i]));
    }
}

/// Hue, saturation and value, all parts of 1, of a colour whose channels are parts of 1.
fn to_hsv([red, green, blue]: [f32; 3]) -> [f32; 3] {
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    let range = most - least;
    let (range_or_1, most_or_1) = if range == 0.0 { (1.0, 1.0) } else { (range, most) };
    let [from_red, from_green, from_blue] = [red, green, blue].map(|value| (most - value) / range_or_1);
    let sixths = if red == most {
        from_blue - from_green
    } else if green == most {
        from_red + 2.0 - from_blue
    } else {
        from_green + 4.0 - from_red
    };
    let hue = sixths * (1.0 / 6.0) + 1.0;
    [if hue >= 1.0 { hue - 1.0 } else { hue }, range / most_or_1, most]
}

/// The inverse of [`to_hsv`], for hues from 0 to below 1.
fn to_rgb([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let sixths = hue * 6.0;
    let sector = sixths as i32;
    let part = sixths - sector as f32;
    let (change, rest) = (saturation * part, 1.0 - saturation);
    let [falling, rising, low] =
        [1.0 - change, change + rest, rest].map(|part| (part * value).clamp(0.0, 1.0));
    match sector {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

#[cfg(test)]
mod tests;
