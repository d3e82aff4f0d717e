//! Vorbis in Ogg, by symphonia's decoder.

use std::borrow::Cow;

use symphonia::core::codecs::audio::well_known::CODEC_ID_VORBIS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder};
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use super::coded::failed;
use super::ogg::{Pages, Stream};
use super::sink::{Flow, Sink};
use super::{DecodeError, Format, Info};

/// The most numbers in all codebooks together. Those of libvorbis have under 80,000; a header of few bytes can ask for
/// gigabytes.
pub(super) const MOST_CODEBOOK_NUMBERS: u64 = 1 << 21;

/// The numbers of the identification header (Vorbis I specification, 4.2.2).
#[derive(Clone, Copy, Debug)]
struct Identification {
    channels: usize,
    rate: u32,
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, DecodeError> {
    let mut pages = Pages::new(bytes);
    let mut stream = Stream::default();
    let mut found = None;
    let mut samples = None;
    while let Some(page) = pages.next()? {
        let Some(packets) = stream.packets(&page)? else { continue };
        if let Some(packet) = packets.first().filter(|_| found.is_none()) {
            found = Some(identification(packet)?);
        }
        samples = page.end.or(samples);
        if page.last {
            break;
        }
    }
    let Identification { channels, rate } = found.ok_or_else(no_header)?;
    Ok(Info { format: Format::OggVorbis, channels, rate, samples })
}

pub(super) fn rate(bytes: &[u8]) -> Result<u32, DecodeError> {
    let mut pages = Pages::new(bytes);
    let mut stream = Stream::default();
    while let Some(page) = pages.next()? {
        if let Some(packet) = stream.packets(&page)?.and_then(|packets| packets.into_iter().next()) {
            return identification(&packet).map(|identification| identification.rate);
        }
    }
    Err(no_header())
}

pub(super) fn read(bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), DecodeError> {
    let mut pages = Pages::new(bytes);
    let mut stream = Stream::default();
    let mut headers: Vec<Vec<u8>> = Vec::new();
    let mut decoder: Option<Decoder> = None;
    while let Some(page) = pages.next()? {
        let Some(packets) = stream.packets(&page)? else { continue };
        if page.first && !headers.is_empty() {
            return Err(DecodeError::unsupported(Format::OggVorbis, "streams follow one another in it"));
        }
        let mut packets = packets.into_iter();
        while headers.len() < 3
            && let Some(packet) = packets.next()
        {
            if headers.is_empty() {
                let Identification { channels, rate } = identification(&packet)?;
                sink.open(channels, rate, None)?;
            }
            headers.push(packet.into_owned());
        }
        if headers.len() < 3 {
            continue;
        }
        let decoder = match &mut decoder {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new(&headers)?),
        };
        if let Some(end) = page.end.filter(|_| page.last) {
            sink.end_at(end);
        }
        match page.end.filter(|&end| end <= sink.start() && !page.last) {
            Some(end) => decoder.pass(packets.last(), end, sink),
            None => {
                for packet in packets {
                    decoder.decode(&packet, sink)?;
                }
            }
        }
        if page.last || sink.flow() == Flow::Done {
            return Ok(());
        }
    }
    if headers.len() < 3 {
        return Err(no_header());
    }
    Err(DecodeError::truncated(Format::OggVorbis, "its last page is missing"))
}

fn no_header() -> DecodeError {
    DecodeError::truncated(Format::OggVorbis, "its headers are not complete")
}

/// A decoder, and the packet before the next, of which the next needs the second half.
struct Decoder {
    inner: Box<dyn AudioDecoder>,
    before: Option<Vec<u8>>,
    planes: Vec<Vec<f32>>,
}

impl Decoder {
    fn new(headers: &[Vec<u8>]) -> Result<Self, DecodeError> {
        let [identification, _, setup] = headers else { return Err(no_header()) };
        check_setup(setup)?;
        let mut parameters = AudioCodecParameters::new();
        parameters.for_codec(CODEC_ID_VORBIS).with_extra_data([&identification[..], setup].concat().into());
        let inner = symphonia::default::get_codecs()
            .make_audio_decoder(&parameters, &Default::default())
            .map_err(|error| failed(Format::OggVorbis, &error))?;
        Ok(Self { inner, before: None, planes: Vec::new() })
    }

    /// Passes a page whose samples are not kept.
    fn pass(&mut self, last: Option<Cow<'_, [u8]>>, end: u64, sink: &mut Sink<'_>) {
        if let Some(last) = last {
            self.before = Some(last.into_owned());
            sink.skip_to(end);
        }
    }

    fn decode(&mut self, packet: &[u8], sink: &mut Sink<'_>) -> Result<(), DecodeError> {
        if let Some(before) = self.before.take() {
            self.run(&before)?;
        }
        self.run(packet)?;
        let count = self.planes.first().map_or(0, Vec::len);
        if count > 0 {
            sink.push(&self.planes, count)?;
        }
        Ok(())
    }

    fn run(&mut self, packet: &[u8]) -> Result<(), DecodeError> {
        let packet = PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, packet);
        let decoded = self.inner.decode_ref(&packet).map_err(|error| failed(Format::OggVorbis, &error))?;
        decoded.copy_to_vecs_planar::<f32>(&mut self.planes);
        Ok(())
    }
}

fn identification(packet: &[u8]) -> Result<Identification, DecodeError> {
    if packet.starts_with(b"OpusHead") {
        return Err(DecodeError::unsupported(Format::OggVorbis, "it holds Opus"));
    }
    match *packet {
        [1, b'v', b'o', b'r', b'b', b'i', b's', _, _, _, _, channels, a, b, c, d, ..] => {
            Ok(Identification { channels: usize::from(channels), rate: u32::from_le_bytes([a, b, c, d]) })
        }
        _ => Err(DecodeError::unsupported(Format::OggVorbis, "its first stream is not Vorbis")),
    }
}

/// The numbers in all codebooks. Refuses a setup header whose codebooks would take more memory than sounds need (Vorbis I specification, 3.2.1).
pub(super) fn check_setup(setup: &[u8]) -> Result<u64, DecodeError> {
    let broken = || DecodeError::broken(Format::OggVorbis, "its codebooks are not valid");
    let mut bits = Bits { bytes: setup.strip_prefix(b"\x05vorbis").ok_or_else(broken)?, at: 0 };
    let mut numbers = 0;
    let count = bits.take(8).ok_or_else(broken)? + 1;
    for _ in 0..count {
        numbers += codebook_numbers(&mut bits).ok_or_else(broken)?;
        if numbers > MOST_CODEBOOK_NUMBERS {
            let detail = format!("its codebooks have over {MOST_CODEBOOK_NUMBERS} numbers");
            return Err(DecodeError::unsupported(Format::OggVorbis, detail));
        }
    }
    Ok(numbers)
}

/// The numbers that a codebook unfolds to; none if the header ends within it.
fn codebook_numbers(bits: &mut Bits<'_>) -> Option<u64> {
    bits.take(24)?;
    let [dimensions, entries] = [bits.take(16)?, bits.take(24)?];
    if bits.take(1)? == 1 {
        skip_ordered_lengths(bits, entries)?;
    } else {
        let sparse = bits.take(1)? == 1;
        for _ in 0..entries {
            if !sparse || bits.take(1)? == 1 {
                bits.take(5)?;
            }
        }
    }
    let values = match bits.take(4)? {
        0 => return Some(entries),
        1 => lookup_values(entries, dimensions),
        _ => entries * dimensions,
    };
    bits.take(64)?;
    let width = bits.take(4)? + 1;
    bits.take(1)?;
    bits.skip(values * width)?;
    Some(entries + entries * dimensions)
}

fn skip_ordered_lengths(bits: &mut Bits<'_>, entries: u64) -> Option<()> {
    bits.take(5)?;
    let mut entry = 0;
    while entry < entries {
        entry += bits.take(u64::BITS - (entries - entry).leading_zeros())?;
    }
    Some(())
}

/// The greatest number whose power of `dimensions` is at most `entries`.
fn lookup_values(entries: u64, dimensions: u64) -> u64 {
    let fits = |value: u64| {
        let power = u32::try_from(dimensions).ok().and_then(|exponent| value.checked_pow(exponent));
        power.is_some_and(|power| power <= entries)
    };
    if dimensions == 0 {
        return 0;
    }
    let [mut low, mut high] = [0, entries + 1];
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// Bits of a header, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl Bits<'_> {
    fn take(&mut self, count: u32) -> Option<u64> {
        let mut value = 0;
        for bit in 0..count {
            let byte = *self.bytes.get((self.at / 8) as usize)?;
            value |= u64::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(value)
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.at = self.at.checked_add(count)?;
        (self.at <= self.bytes.len() as u64 * 8).then_some(())
    }
}
