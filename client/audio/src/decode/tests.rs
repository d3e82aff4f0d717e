//! Laws and stories of decoding.

use proptest::prelude::*;

use super::*;
use crate::fixtures::FILES;

fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|(known, _)| *known == name).unwrap().1
}

fn whole(bytes: &[u8]) -> Waveform {
    decode(bytes, &DecodeOptions::default()).unwrap()
}

fn keep() -> DecodeOptions {
    DecodeOptions { truncated: Truncated::Keep, ..DecodeOptions::default() }
}

#[test]
fn options_have_defaults_and_refuse_unknown_names() {
    let options: DecodeOptions =
        serde_json::from_str(r#"{"start": {"seconds": 0.5}, "truncated": "keep"}"#).unwrap();
    assert_eq!(options, DecodeOptions { start: Span::Seconds(0.5), ..keep() });
    assert!(serde_json::from_str::<DecodeOptions>(r#"{"offset": 3}"#).is_err());
    let wrong = DecodeOptions { start: Span::Seconds(f64::NAN), ..keep() };
    assert!(matches!(decode(file("u8.wav"), &wrong), Err(DecodeError::Option { .. })));
}

#[test]
fn mono_is_the_mean_of_the_channels() {
    for name in ["s16.wav", "s16.flac", "stereo.mp3", "stereo.ogg"] {
        let both = whole(file(name));
        let mono = decode(file(name), &DecodeOptions { mono: true, ..DecodeOptions::default() }).unwrap();
        let [left, right] = both.channels() else { panic!("{name} is stereo") };
        let means: Vec<f32> = left.iter().zip(right).map(|(a, b)| (a + b) / 2.0).collect();
        assert_eq!(mono.channels(), [means], "{name}");
    }
}

#[test]
fn files_over_the_limit_are_refused() {
    for (name, bytes) in FILES {
        let all = whole(bytes);
        let max_samples = (all.samples() * all.channels().len()) as u64;
        decode(bytes, &DecodeOptions { max_samples, ..DecodeOptions::default() }).unwrap();
        let less = DecodeOptions { max_samples: max_samples - 1, ..DecodeOptions::default() };
        assert!(matches!(decode(bytes, &less), Err(DecodeError::TooLong { .. })), "{name}");
        let part = DecodeOptions { length: Some(Span::Samples(100)), ..less };
        assert_eq!(decode(bytes, &part).unwrap().samples(), 100, "{name}");
    }
}

#[test]
fn a_header_that_promises_much_takes_no_memory() {
    let mut flac = file("s24.flac").to_vec();
    // The last 36 bits of bytes 18 to 25 are the number of samples.
    flac[21] |= 0x0F;
    flac[22..26].fill(0xFF);
    assert!(matches!(decode(&flac, &DecodeOptions::default()), Err(DecodeError::TooLong { .. })));
    let mut wav = file("s16.wav").to_vec();
    wav[40..44].copy_from_slice(&0xFFFF_FF00_u32.to_le_bytes());
    assert!(matches!(decode(&wav, &DecodeOptions::default()), Err(DecodeError::Truncated { .. })));
    assert_eq!(decode(&wav, &keep()).unwrap(), whole(file("s16.wav")));
    let part = DecodeOptions { length: Some(Span::Samples(300)), ..DecodeOptions::default() };
    assert_eq!(decode(&wav, &part).unwrap(), whole(file("s16.wav")));
}

#[test]
fn a_start_behind_the_end_is_an_error() {
    for (name, bytes) in FILES {
        let samples = whole(bytes).samples() as u64;
        let late = DecodeOptions { start: Span::Samples(samples + 1), ..DecodeOptions::default() };
        assert!(matches!(decode(bytes, &late), Err(DecodeError::OutsideStart { .. })), "{name}");
        let end = DecodeOptions { start: Span::Samples(samples), ..DecodeOptions::default() };
        assert_eq!(decode(bytes, &end).unwrap().samples(), 0, "{name}");
    }
}

#[test]
fn other_formats_are_named() {
    let error = |bytes: &[u8]| decode(bytes, &DecodeOptions::default()).unwrap_err().to_string();
    assert!(error(b"").contains("nothing (0 bytes)"));
    assert!(error(b"FORM....AIFF").contains("46 4F 52 4D"));
    let mut mu_law = file("u8.wav").to_vec();
    mu_law[20] = 7;
    assert!(error(&mu_law).contains("0x0007"), "{}", error(&mu_law));
}

#[test]
fn tags_before_the_sound_are_passed() {
    let mut tagged = b"ID3\x04\0\0\0\0\x01\x02".to_vec();
    tagged.extend([0xFF; 130]);
    tagged.extend_from_slice(file("mono.mp3"));
    assert_eq!(whole(&tagged), whole(file("mono.mp3")));
}

/// Bits, the lowest of each byte first.
#[derive(Default)]
struct Writer(Vec<u8>, usize);

impl Writer {
    fn put(&mut self, value: u64, count: usize) {
        for bit in 0..count {
            if self.1.is_multiple_of(8) {
                self.0.push(0);
            }
            *self.0.last_mut().unwrap() |= ((value >> bit & 1) as u8) << (self.1 % 8);
            self.1 += 1;
        }
    }
}

#[test]
fn few_bytes_of_codebooks_do_not_become_gigabytes() {
    let mut bits = Writer::default();
    bits.put(255, 8);
    for _ in 0..256 {
        // 131,072 entries of 32 dimensions, all of length 17, and one value: 16 MiB each.
        for (value, count) in [(0x56_4342, 24), (32, 16), (131_072, 24), (1, 1), (16, 5), (131_072, 18)] {
            bits.put(value, count);
        }
        for (value, count) in [(1, 4), (0, 64), (0, 4), (0, 1), (0, 1)] {
            bits.put(value, count);
        }
    }
    let setup = [b"\x05vorbis", &bits.0[..]].concat();
    assert!(setup.len() < 6000);
    let error = vorbis::check_setup(&setup).unwrap_err();
    assert!(matches!(error, DecodeError::Unsupported { .. }), "{error}");
}

#[test]
fn codebooks_of_libvorbis_are_far_under_the_limit() {
    let mut pages = ogg::Pages::new(file("stereo.ogg"));
    let mut stream = ogg::Stream::default();
    let mut packets = Vec::new();
    while let Some(page) = pages.next().unwrap() {
        packets.extend(stream.packets(&page).unwrap().unwrap());
    }
    let numbers = vorbis::check_setup(&packets[2]).unwrap();
    assert!((1000..vorbis::MOST_CODEBOOK_NUMBERS / 16).contains(&numbers), "{numbers}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_part_is_bit_for_bit_that_part_of_the_whole(index in 0..FILES.len(), start in 0.0f64..1.0, length in 0.0f64..1.2) {
        let (name, bytes) = FILES[index];
        let all = whole(bytes);
        let [start, length] = [start, length].map(|part| (part * all.samples() as f64) as usize);
        let options = DecodeOptions {
            start: Span::Samples(start as u64),
            length: Some(Span::Samples(length as u64)),
            ..DecodeOptions::default()
        };
        let part = decode(bytes, &options).unwrap();
        for (part, all) in part.channels().iter().zip(all.channels()) {
            prop_assert_eq!(&part[..], &all[start..all.len().min(start + length)], "{} from {}", name, start);
        }
    }

    #[test]
    fn a_cut_file_is_refused_or_keeps_a_prefix(index in 0..FILES.len(), cut in 0.0f64..1.0) {
        let (name, bytes) = FILES[index];
        let all = whole(bytes);
        let cut = &bytes[..(cut * bytes.len() as f64) as usize];
        prop_assert!(decode(cut, &DecodeOptions::default()).is_err(), "{} cut to {}", name, cut.len());
        if let Ok(kept) = decode(cut, &keep()) {
            for (kept, all) in kept.channels().iter().zip(all.channels()) {
                prop_assert!(all.starts_with(kept), "{} cut to {}", name, cut.len());
            }
        }
    }
}
