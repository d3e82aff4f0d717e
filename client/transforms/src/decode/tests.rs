//! What each JPEG decoder put into [`super::jpeg`] has to keep, and the laws of the other parts.
//!
//! The fixtures are made with Pillow and libjpeg's `cjpeg`; their pixels, in `fixtures/expected.txt`, are those of
//! torchvision and Pillow. So these tests pass only with libjpeg-turbo's pixels, bit for bit.

use std::{fs, path::PathBuf};

use super::*;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/decode/tests/fixtures"))
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

/// Name and columns of `expected.txt`.
fn expected() -> Vec<(String, Vec<String>)> {
    let table = fs::read_to_string(folder().join("expected.txt")).unwrap();
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let mut words = row.split(' ').map(String::from);
        (words.next().unwrap(), words.collect())
    })
    .collect()
}

fn digest(image: &Image<u8>) -> String {
    blake3::hash(image.pixels()).to_hex()[..32].to_string()
}

fn in_mode(mode: ColorMode) -> DecodeOptions {
    DecodeOptions { mode, ..Default::default() }
}

fn rgb(bytes: &[u8]) -> Result<Image<u8>, DecodeError> {
    decode(bytes, &DecodeOptions::default())
}

/// Numbers below `end`, the same in each run.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |end| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % end
    }
}

#[test]
fn fixtures_decode_to_the_pixels_of_torchvision_and_pillow() {
    let mut decoder = Decoder::new();
    for (name, columns) in expected() {
        let bytes = fixture(&name);
        let header = header(&bytes).unwrap();
        assert_eq!([header.height.to_string(), header.width.to_string()], columns[..2], "{name}");
        let options = [
            in_mode(ColorMode::Rgb),
            in_mode(ColorMode::Gray),
            DecodeOptions { apply_exif_orientation: true, ..Default::default() },
        ];
        for (options, expected) in options.iter().zip(&columns[2..]) {
            let image = decoder.decode(&bytes, options).unwrap();
            assert_eq!(image.shape()[..2], header.decoded_size(options), "{name}");
            assert_eq!(image.channels(), options.mode.channels(), "{name}");
            assert_eq!(digest(&image), *expected, "{name} with {options:?}");
        }
    }
}

#[test]
fn each_fixture_has_expected_pixels() {
    assert_eq!(fs::read_dir(folder()).unwrap().count(), expected().len() + 1);
}

#[test]
fn a_region_is_the_whole_cut() {
    let mut decoder = Decoder::new();
    let mut below = numbers(7);
    for (name, _) in expected() {
        let bytes = fixture(&name);
        for (mode, apply_exif_orientation) in
            [(ColorMode::Rgb, false), (ColorMode::Gray, false), (ColorMode::Rgb, true)]
        {
            let options = DecodeOptions { mode, apply_exif_orientation, ..Default::default() };
            let whole = decode(&bytes, &options).unwrap();
            for _ in 0..200 {
                let (top, left) = (below(whole.height()), below(whole.width()));
                let (height, width) = (1 + below(whole.height() - top), 1 + below(whole.width() - left));
                let region = Region { top, left, height, width };
                let part = decoder.decode_region(&bytes, &options, region).unwrap();
                assert_eq!(part, whole.cut(region), "{name} {region:?}");
            }
        }
    }
}

#[test]
fn a_region_outside_is_refused() {
    let bytes = fixture("rgb.png");
    let options = DecodeOptions::default();
    for [top, left, height, width] in
        [[0, 0, 10, 1], [0, 13, 1, 1], [9, 0, 1, 1], [0, 0, 0, 1], [1, 1, 2, usize::MAX]]
    {
        let region = Region { top, left, height, width };
        let error = decode_region(&bytes, &options, region).unwrap_err();
        assert_eq!(error, DecodeError::OutsideRegion { region, height: 9, width: 13 });
    }
}

#[test]
fn each_orientation_turns_as_exif_says() {
    let original = fixture("exif-6.jpg");
    let at = original.windows(4).position(|tag| tag == [0x01, 0x12, 0, 3]).unwrap() + 9;
    let stored = rgb(&original).unwrap();
    let (h, w) = (stored.height(), stored.width());
    for orientation in 0..=9 {
        let mut bytes = original.clone();
        bytes[at] = orientation;
        let options = DecodeOptions { apply_exif_orientation: true, ..Default::default() };
        let turned = decode(&bytes, &options).unwrap();
        for (y, x) in (0..turned.height()).flat_map(|y| (0..turned.width()).map(move |x| (y, x))) {
            let [sy, sx] = match orientation {
                2 => [y, w - 1 - x],
                3 => [h - 1 - y, w - 1 - x],
                4 => [h - 1 - y, x],
                5 => [x, y],
                6 => [h - 1 - x, y],
                7 => [h - 1 - x, w - 1 - y],
                8 => [x, w - 1 - y],
                _ => [y, x],
            };
            assert_eq!(turned.pixel(y, x), stored.pixel(sy, sx), "orientation {orientation}");
        }
        let known = if (1..=8).contains(&orientation) { orientation } else { 1 };
        assert_eq!(header(&bytes).unwrap().orientation, known);
    }
}

#[test]
fn broken_exif_blocks_mean_upright() {
    let block = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
    assert_eq!(exif::orientation(block), 6);
    for end in 0..block.len() - 2 {
        assert_eq!(exif::orientation(&block[..end]), 1, "cut at {end}");
    }
    assert_eq!(exif::orientation(b"MM\0*\xFF\xFF\xFF\xFF\0\x01"), 1);
}

#[test]
fn a_cut_jpeg_is_refused_or_filled() {
    let fill = DecodeOptions { truncated: Truncated::Fill, ..Default::default() };
    for (name, _) in expected().into_iter().filter(|(name, _)| name.ends_with(".jpg")) {
        let bytes = fixture(&name);
        for end in 3..bytes.len() - 40 {
            let error = rgb(&bytes[..end]).map(|_| format!("{name} cut at {end}")).unwrap_err();
            // Cut between two restart intervals, it lacks a marker.
            let is_named =
                matches!(error, DecodeError::Truncated { .. }) || error.to_string().contains("RST");
            assert!(is_named, "{name} cut at {end}: {error}");
            match decode(&bytes[..end], &fill) {
                Ok(image) => assert_eq!(image.shape(), rgb(&bytes).unwrap().shape()),
                Err(error) => {
                    assert!(matches!(error, DecodeError::Truncated { .. }), "{name} cut at {end}: {error}")
                }
            }
        }
    }
}

#[test]
fn a_cut_jpeg_is_filled_as_libjpeg_fills_it() {
    // torchvision 0.29.2, of the file with an end marker in place of its last 100 bytes.
    let fill = DecodeOptions { truncated: Truncated::Fill, ..Default::default() };
    for (name, filled) in [
        ("large-420.jpg", "c638c9d7d597f38ec8314defca73c240"),
        ("restart.jpg", "5a7ddeaa23bcb16105c2ed137903ea5c"),
        ("progressive-420.jpg", "be71561b204653814e5305d8c8c89258"),
    ] {
        let bytes = fixture(name);
        let cut = &bytes[..bytes.len() - 100];
        let whole = decode(cut, &fill).unwrap();
        assert_eq!(digest(&whole), filled, "{name}");
        let region = Region { top: whole.height() - 9, left: 3, height: 9, width: 20 };
        let part = decode_region(cut, &fill, region).unwrap();
        assert_eq!(part, whole.cut(region), "{name}");
    }
}

#[test]
fn segments_that_decide_no_pixel_do_not_matter() {
    for (name, columns) in expected().into_iter().filter(|(name, _)| name.ends_with(".jpg")) {
        let bytes = fixture(&name);
        // A comment of 64 KiB also takes the path of large files, which keep their Huffman tables.
        for extra in
            [&[0xFF, 0xFE, 0xFF, 0xFF][..], &[0xFF, 0xFF, 0xFF, 0xFE, 0, 9], &[0, 0, 7, 0xFF, 0xED, 0, 2]]
        {
            let mut longer = bytes[..2].to_vec();
            longer.extend_from_slice(extra);
            let body = usize::from(u16::from_be_bytes(*extra.last_chunk().unwrap())) - 2;
            longer.resize(longer.len() + body, b'x');
            longer.extend_from_slice(&bytes[2..]);
            let image = if extra[0] == 0 { rgb_of_jpeg(&longer) } else { rgb(&longer) };
            assert_eq!(digest(&image.unwrap()), columns[2], "{name}");
        }
    }
}

/// With a byte in front that is no marker, the file does not start as a JPEG; so this puts a marker before it.
fn rgb_of_jpeg(bytes: &[u8]) -> Result<Image<u8>, DecodeError> {
    let mut bytes = bytes.to_vec();
    bytes.splice(2..2, [0xFF, 0xFE, 0, 2]);
    rgb(&bytes)
}

#[test]
fn damage_gives_an_error_or_pixels_but_no_panic() {
    let names: Vec<_> = expected().into_iter().map(|(name, _)| name).collect();
    let mut decoder = Decoder::new();
    let mut below = numbers(3);
    for round in 0..6000 {
        let mut bytes = fixture(&names[round % names.len()]);
        for _ in 0..1 + below(4) {
            let at = below(bytes.len());
            bytes[at] = below(256) as u8;
        }
        if below(4) == 0 {
            bytes.truncate(below(bytes.len()));
        }
        let truncated = if round % 2 == 0 { Truncated::Fill } else { Truncated::Refuse };
        let options = DecodeOptions { truncated, max_pixels: 1 << 20, ..Default::default() };
        for outcome in [
            decoder.decode(&bytes, &options),
            decoder.decode_region(&bytes, &options, Region { top: 4, left: 2, height: 3, width: 1 }),
        ] {
            if let Err(error) = outcome {
                assert!(!error.to_string().contains("panicked"), "round {round}: {error}");
            }
        }
    }
}

#[test]
fn huge_pictures_are_refused_before_memory_is_taken() {
    let mut jpeg = fixture("420.jpg");
    let frame = jpeg.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xFF, 0xDC, 0xFF, 0xDC]);
    let expected = "JPEG of 65500x65500 pixels is over the limit of 178956970; \
                    raise `max_pixels` if you trust its source, else leave it out";
    assert_eq!(rgb(&jpeg).unwrap_err().to_string(), expected);
    for name in ["420.jpg", "rgb.png", "lossy.webp", "palette.gif", "rgb.tif", "rgb.bmp"] {
        let options = DecodeOptions { max_pixels: 99, ..Default::default() };
        assert!(matches!(decode(&fixture(name), &options), Err(DecodeError::TooLarge { .. })), "{name}");
    }
}

#[test]
fn rare_jpegs_are_refused_by_name() {
    for (at, value, expected) in
        [(4, 12, "12 bits"), (1, 0xC3, "lossless"), (1, 0xC5, "hierarchical"), (6, 0, "height")]
    {
        let mut bytes = fixture("420.jpg");
        let frame = bytes.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
        bytes[frame + at] = value;
        let error = rgb(&bytes).unwrap_err();
        assert!(
            matches!(&error, DecodeError::Unsupported { detail, .. } if detail.contains(expected)),
            "{error}"
        );
    }
}

#[test]
fn a_lost_restart_interval_is_refused_or_filled() {
    let bytes = fixture("restart.jpg");
    let restarts: Vec<_> =
        (0..bytes.len() - 1).filter(|&i| bytes[i] == 0xFF && bytes[i + 1] & 0xF8 == 0xD0).collect();
    let lost = [&bytes[..restarts[0]], &bytes[restarts[1]..]].concat();
    let error = rgb(&lost).map(|_| "decoded").unwrap_err();
    assert!(matches!(&error, DecodeError::Broken { detail, .. } if detail.contains("RST")), "{error}");
    let fill = DecodeOptions { truncated: Truncated::Fill, ..Default::default() };
    assert_eq!(decode(&lost, &fill).unwrap().shape(), [29, 37, 3]);
}

#[test]
fn four_components_in_strange_sizes_are_refused() {
    let mut bytes = fixture("cmyk.jpg");
    let frame = bytes.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
    bytes[frame + 20] = 0x13;
    assert!(matches!(rgb(&bytes), Err(DecodeError::Unsupported { .. })));
}

#[test]
fn unknown_bytes_are_named() {
    let message = rgb(b"hello").unwrap_err().to_string();
    assert!(
        message.starts_with("unknown image format: the bytes start with 68 65 6C 6C 6F; known are JPEG"),
        "{message}"
    );
    assert!(rgb(b"").unwrap_err().to_string().contains("nothing (0 bytes)"));
    assert!(header(b"\xFF\xD8").is_err());
}

#[test]
fn options_read_as_they_are_written() {
    let options: DecodeOptions = serde_json::from_str(r#"{"mode": "GRAY", "truncated": "fill"}"#).unwrap();
    assert_eq!((options.mode, options.truncated), (ColorMode::Gray, Truncated::Fill));
    assert_eq!((options.max_pixels, options.apply_exif_orientation), (178_956_970, false));
    let written = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<DecodeOptions>(&written).unwrap(), options);
    assert!(serde_json::from_str::<DecodeOptions>(r#"{"colour": "RGB"}"#).is_err());
}
