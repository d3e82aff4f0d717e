//! Encoded sounds, one target for each format, and chains of operations on sounds. Checksums are set right first: a fuzzer
//! would not guess them.

use shardd_audio::decode::{Format, Truncated};
use shardd_audio::ops::{
    AmplitudeToDB, Fade, MelSpectrogram, MuLawEncoding, RandomTimeCrop, Resample, SpecAugment, Vol,
};
use shardd_audio::{Chain, DecodeOptions, Input, Number, Span, Transform, Waveform, decode, info};
use shardd_transforms::{Dtype, Place};

/// Numbers of the largest waveform that is decoded here.
const MOST_SAMPLES: u64 = 1 << 20;

/// Samples of a channel that operations get.
const MOST_OPERATED: u64 = 1 << 12;

/// The highest rate that is resampled: kernels of a higher one take long.
const MOST_RATE: u32 = 1 << 18;

pub(crate) fn wav(bytes: &[u8]) -> bool {
    sound(bytes, Format::Wav)
}

pub(crate) fn flac(bytes: &[u8]) -> bool {
    let mended = flac_mended(bytes);
    let _ = decode(bytes, &options(None, Truncated::Keep));
    sound(&mended, Format::Flac)
}

pub(crate) fn mp3(bytes: &[u8]) -> bool {
    sound(bytes, Format::Mp3)
}

pub(crate) fn ogg(bytes: &[u8]) -> bool {
    let mended = ogg_mended(bytes);
    let _ = decode(bytes, &options(None, Truncated::Keep));
    sound(&mended, Format::OggVorbis)
}

fn options(part: Option<(u64, u64)>, truncated: Truncated) -> DecodeOptions {
    let (start, length) = part.map_or((0, None), |(start, length)| (start, Some(Span::Samples(length))));
    DecodeOptions {
        start: Span::Samples(start),
        length,
        truncated,
        max_samples: MOST_SAMPLES,
        ..DecodeOptions::default()
    }
}

/// A sound without damage is the same whether or not damage is let in. It agrees with what the file says of it,
/// and a part of it is that part of the whole.
fn sound(bytes: &[u8], format: Format) -> bool {
    if Format::of(bytes) != Ok(format) {
        return false;
    }
    let header = info(bytes);
    let kept = decode(bytes, &options(None, Truncated::Keep));
    if let Ok(kept) = &kept {
        assert!((kept.samples() * kept.channels().len()) as u64 <= MOST_SAMPLES);
    }
    let Ok(whole) = decode(bytes, &options(None, Truncated::Raise)) else { return false };
    let samples = whole.samples() as u64;
    assert_eq!(bits(&kept.expect("there is no damage")), bits(&whole));

    let header = header.expect("it was decoded");
    assert_eq!((header.format, header.channels), (format, whole.channels().len()));
    assert_eq!(header.rate, whole.rate());
    // The last page of Ogg may promise any end.
    if let Some(promised) = header.samples.filter(|_| format != Format::OggVorbis) {
        assert_eq!(promised, samples);
    }

    part(bytes, &whole, 0, samples / 2);
    if format != Format::OggVorbis || has_true_places(bytes) {
        part(bytes, &whole, samples / 3, samples.div_ceil(2));
        part(bytes, &whole, samples - samples / 5, samples);
    }
    operate(
        decode(bytes, &options(Some((0, MOST_OPERATED)), Truncated::Raise)).expect("a part of the whole"),
    );
    true
}

/// A part, of which the end may lie behind that of the whole, is that part of the whole.
fn part(bytes: &[u8], whole: &Waveform, start: u64, length: u64) {
    let part = decode(bytes, &options(Some((start, length)), Truncated::Raise)).expect("a part of the whole");
    let samples = whole.samples();
    let range = start as usize..samples.min((start + length) as usize);
    let expected = whole.channels().iter().map(|channel| channel[range.clone()].to_vec()).collect();
    let expected = Waveform::new(expected, whole.rate()).expect("channels of one length");
    assert_eq!(bits(&part), bits(&expected), "{range:?} of {samples}");
}

/// The bits of all samples: NaN equals itself.
fn bits(waveform: &Waveform) -> Vec<Vec<u32>> {
    waveform
        .channels()
        .iter()
        .map(|channel| channel.iter().map(|sample| sample.to_bits()).collect())
        .collect()
}

/// Operations give results of the documented size, and finite ones for samples that are no noise of bits.
fn operate(whole: Waveform) {
    let [channels, samples] = [whole.channels().len(), whole.samples()];
    let rate = whole.rate();
    let is_plain = whole.channels().iter().flatten().all(|sample| sample.abs() <= 1.0);
    let check = |numbers: &[f32]| assert!(!is_plain || numbers.iter().all(|number| number.is_finite()));
    let check_all = |waveform: &Waveform| waveform.channels().iter().for_each(|channel| check(channel));

    let levels = MuLawEncoding::default().apply(&whole).expect("the default fits");
    assert!(!is_plain || levels.iter().flatten().all(|level| (0..256).contains(level)));
    let new_freq = (rate / 2).max(1);
    if rate <= MOST_RATE
        && let Ok(resampled) = (Resample { new_freq, ..Resample::default() }).apply(&whole)
    {
        assert_eq!(resampled.samples() as u64, (samples as u64 * u64::from(new_freq)).div_ceil(rate.into()));
        check_all(&resampled);
    }
    let mel = MelSpectrogram {
        sample_rate: rate,
        n_fft: 64,
        hop_length: Some(32),
        n_mels: 8,
        ..MelSpectrogram::default()
    };
    if let Ok(spectrum) = mel.apply(&whole) {
        assert_eq!(spectrum.shape(), [channels, 8, 1 + samples / 32]);
        let decibels = AmplitudeToDB { top_db: Some(80.0), ..AmplitudeToDB::default() };
        let augment = SpecAugment {
            n_time_masks: 2,
            time_mask_param: 9,
            n_freq_masks: 1,
            freq_mask_param: 4,
            iid_masks: true,
            p: 0.5,
            zero_masking: false,
        };
        let spectrum = decibels.apply(spectrum).expect("the arguments fit");
        check(augment.apply(spectrum, &mut Steps(0)).expect("the arguments fit").data());
    }
    let crop = RandomTimeCrop { length: Span::Samples(100), pad: true, pad_mode: Default::default() };
    let cropped = crop.apply(whole, &mut Steps(7)).expect("a short one is padded");
    assert_eq!(cropped.samples(), 100);
    let faded = Fade { fade_in_len: 10, fade_out_len: 90, ..Fade::default() }.apply(cropped);
    let louder = Vol { gain: 3.0, gain_type: Default::default() }.apply(faded.expect("it is long enough"));
    check_all(&louder.expect("the arguments fit"));
}

/// A chain as JSON, for a short sound. It is one document, and its result is that of its last stage, whatever part of the sound
/// it takes.
pub(crate) fn sound_chain(bytes: &[u8]) -> bool {
    const SHAPE: [usize; 2] = [2, 150];
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(chain) = text.parse::<Chain>() else { return false };
    let again: Chain = chain.to_json().parse().expect("the JSON of a chain");
    assert_eq!(again.digest(), chain.digest());
    // Long sounds and large tables are no mistake, and take long.
    if super::transforms::has_number_over(4, text) {
        return false;
    }
    let input = Input::of_shape(&SHAPE, Number::Float32).expect("a sound");
    let Ok(transform) = Transform::new(chain, input) else { return false };
    if transform.largest() > 1 << 22 {
        return false;
    }
    let sample: Vec<u8> =
        (0..300u16).flat_map(|at| (f32::from(at * 13 % 101) / 101.0 - 0.5).to_le_bytes()).collect();
    let place = Place { seed: 1, epoch: 2, position: 3 };
    let mut out = vec![0; transform.bytes()];
    let applied = transform.apply(&sample, place, &mut out);
    let stages = transform.stages(&sample, place);
    assert_eq!(applied.is_ok(), stages.is_ok(), "{applied:?}");
    let Ok(stages) = stages else { return false };
    let last = stages.last().expect("there is the sound itself");
    assert_eq!(last.value.shape(), transform.shape());
    if transform.dtype() == Dtype::Float32 {
        let numbers: Vec<u8> =
            last.value.pieces().flatten().flat_map(|number| number.to_le_bytes()).collect();
        assert!(out == numbers, "a part is changed in another way than the whole");
    }
    true
}

/// Numbers from 0 to 1, in steps of the golden ratio.
struct Steps(u32);

impl shardd_audio::Draw for Steps {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9);
        f64::from(self.0) / (f64::from(u32::MAX) + 1.0)
    }
}

/// The pages of an Ogg file, from the first to the first that is not complete.
fn ogg_pages(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut pages = Vec::new();
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + 27).filter(|header| header.starts_with(b"OggS")) {
        let segments = usize::from(header[26]);
        let Some(lengths) = bytes.get(at + 27..at + 27 + segments) else { break };
        let end = at + 27 + segments + lengths.iter().map(|&length| usize::from(length)).sum::<usize>();
        if end > bytes.len() {
            break;
        }
        pages.push(at..end);
        at = end;
    }
    pages
}

/// With the checksums of pages set right.
fn ogg_mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = bytes.to_vec();
    for page in ogg_pages(bytes) {
        let page = &mut mended[page];
        page[22..26].fill(0);
        let checksum = crc(page, 32, 0x04c1_1db7);
        page[22..26].copy_from_slice(&checksum.to_le_bytes());
    }
    mended
}

/// Whether each page but the last has the place of its end right: as many samples come before.
fn has_true_places(bytes: &[u8]) -> bool {
    let pages = ogg_pages(bytes);
    pages.iter().rev().skip(1).all(|page| {
        let place = &bytes[page.start + 6..page.start + 14];
        let place = i64::from_le_bytes(place.try_into().expect("eight bytes"));
        let before = decode(&bytes[..page.end], &options(None, Truncated::Keep));
        place < 0 || before.map_or(0, |before| before.samples()) as i64 == place
    })
}

/// With the checksums of frames and of their headers set right.
fn flac_mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = bytes.to_vec();
    let mut at = 4;
    while let Some(&[kind, a, b, c]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        at += 4 + u32::from_be_bytes([0, a, b, c]) as usize;
        if kind >= 0x80 {
            break;
        }
    }
    while let Some(header) = bytes.get(at..).and_then(flac_header) {
        let next = (at + header..bytes.len()).find(|&next| flac_header(&bytes[next..]).is_some());
        let end = next.unwrap_or(bytes.len());
        let frame = &mut mended[at..end];
        frame[header - 1] = crc(&frame[..header - 1], 8, 0x07) as u8;
        if let Some((frame, checksum)) =
            frame[header..].len().checked_sub(2).map(|_| frame.split_at_mut(end - at - 2))
        {
            checksum.copy_from_slice(&(crc(frame, 16, 0x8005) as u16).to_be_bytes());
        }
        at = end;
    }
    mended
}

/// The length of a frame's header, if one begins here.
fn flac_header(bytes: &[u8]) -> Option<usize> {
    let &[0xff, 0xf8..=0xfb, sizes, channels, number, ..] = bytes else { return None };
    let (block, rate) = (sizes >> 4, sizes & 15);
    if block == 0 || rate == 15 || channels >> 4 > 10 || channels & 14 == 6 || channels & 1 == 1 {
        return None;
    }
    let number = match number.leading_ones() as usize {
        0 => 1,
        length @ 2..=7 => length,
        _ => return None,
    };
    let block = usize::from(block == 6) + 2 * usize::from(block == 7);
    let rate = usize::from(rate == 12) + 2 * usize::from(rate == 13 || rate == 14);
    let length = 4 + number + block + rate + 1;
    (length <= bytes.len()).then_some(length)
}

/// The checksum of this many bits, highest bit first.
fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let polynomial = polynomial << (32 - width);
    let crc = bytes.iter().fold(0u32, |crc, &byte| {
        let carry = |crc: u32| crc << 1 ^ if crc >> 31 == 1 { polynomial } else { 0 };
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| carry(crc))
    });
    crc >> (32 - width)
}
