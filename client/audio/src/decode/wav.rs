//! RIFF WAVE and RF64: uncompressed integers and floats.
//!
//! "Multimedia programming interface and data specifications 1.0" (IBM and Microsoft, 1991), and EBU Tech 3306 for RF64.

use super::sink::{Flow, Sink};
use super::{DecodeError, Format, Info};

/// Samples of a channel that are converted together.
const BLOCK: usize = 4096;

/// A length that was not known when the header was written.
const UNKNOWN: u32 = u32::MAX;

/// The chunks that matter.
#[derive(Debug)]
struct File<'a> {
    encoding: Encoding,
    channels: usize,
    rate: u32,
    /// Bytes of one sample of all channels.
    frame: usize,
    data: &'a [u8],
    /// Bytes that the header promises.
    promised: u64,
}

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Unsigned8,
    Signed16,
    Signed24,
    Signed32,
    Float32,
    Float64,
}

pub(super) fn info(bytes: &[u8]) -> Result<Info, DecodeError> {
    let file = File::parse(bytes)?;
    let samples = Some(file.promised / file.frame as u64);
    Ok(Info { format: Format::Wav, channels: file.channels, rate: file.rate, samples })
}

pub(super) fn read(bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), DecodeError> {
    let file = File::parse(bytes)?;
    let samples = (file.data.len() / file.frame) as u64;
    sink.open(file.channels, file.rate, Some(samples))?;
    sink.reserve();
    let start = sink.start().min(samples);
    sink.skip_to(start);
    let mut planes = vec![Vec::with_capacity(BLOCK); file.channels];
    for block in file.data[start as usize * file.frame..].chunks(BLOCK * file.frame) {
        let count = block.len() / file.frame;
        file.convert(block, &mut planes);
        if sink.flow() == Flow::Done || sink.push(&planes, count)? == Flow::Done {
            break;
        }
    }
    if file.promised > file.data.len() as u64 && sink.asks_beyond(samples) {
        let detail = format!("{} of {} bytes of samples are there", file.data.len(), file.promised);
        return Err(DecodeError::truncated(Format::Wav, detail));
    }
    Ok(())
}

impl<'a> File<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes.get(12..).unwrap_or_default();
        let mut format = None;
        let mut long_data = None;
        while let Some((header, body)) = rest.split_first_chunk::<8>() {
            let [id @ .., a, b, c, d] = *header;
            let len = u32::from_le_bytes([a, b, c, d]);
            let chunk = &body[..body.len().min(len as usize)];
            match &id {
                b"fmt " => format = Some(chunk),
                // Lengths of 64 bits: of the file, and of the samples.
                b"ds64" => long_data = chunk.get(8..16).map(little_endian),
                b"data" => {
                    let Some(format) = format else {
                        return Err(DecodeError::broken(
                            Format::Wav,
                            "there is no fmt chunk before the samples",
                        ));
                    };
                    let promised = match (len, long_data) {
                        (UNKNOWN, Some(promised)) => promised,
                        (UNKNOWN, None) => body.len() as u64,
                        _ => u64::from(len),
                    };
                    let there = usize::try_from(promised).unwrap_or(usize::MAX).min(body.len());
                    return Self::of(format, &body[..there], promised);
                }
                _ => {}
            }
            // Chunks of an odd length are followed by a byte.
            rest = body.get(len as usize + (len as usize & 1)..).unwrap_or_default();
        }
        Err(DecodeError::truncated(Format::Wav, "there is no data chunk"))
    }

    fn of(format: &[u8], data: &'a [u8], promised: u64) -> Result<Self, DecodeError> {
        let Some(&[t0, t1, c0, c1, r0, r1, r2, r3, _, _, _, _, a0, a1, b0, b1]) = format.first_chunk::<16>()
        else {
            return Err(DecodeError::broken(Format::Wav, "its fmt chunk is shorter than 16 bytes"));
        };
        let [mut tag, channels, align, bits] =
            [[t0, t1], [c0, c1], [a0, a1], [b0, b1]].map(u16::from_le_bytes).map(usize::from);
        if tag == 0xFFFE {
            // The tag of an extensible format begins its GUID.
            tag = format.get(24..26).map_or(tag, |guid| little_endian(guid) as usize);
        }
        let width = bits.div_ceil(8);
        let encoding = match (tag, width) {
            (1, 1) => Encoding::Unsigned8,
            (1, 2) => Encoding::Signed16,
            (1, 3) => Encoding::Signed24,
            (1, 4) => Encoding::Signed32,
            (3, 4) => Encoding::Float32,
            (3, 8) => Encoding::Float64,
            _ => {
                let detail = format!("its encoding is {tag:#06x} of {bits} bits, and not PCM or floats");
                return Err(DecodeError::unsupported(Format::Wav, detail));
            }
        };
        let frame = channels * width;
        if frame == 0 || frame != align {
            let detail = format!("{channels} channels of {bits} bits do not take {align} bytes");
            return Err(DecodeError::broken(Format::Wav, detail));
        }
        let rate = u32::from_le_bytes([r0, r1, r2, r3]);
        Ok(Self { encoding, channels, rate, frame, data, promised })
    }

    /// Replaces each plane by the samples of a block.
    fn convert(&self, block: &[u8], planes: &mut [Vec<f32>]) {
        match self.encoding {
            Encoding::Unsigned8 => self.each(block, planes, |[byte]| (f32::from(byte) - 128.0) / 128.0),
            Encoding::Signed16 => {
                self.each(block, planes, |bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0);
            }
            Encoding::Signed24 => self.each(block, planes, |[a, b, c]| {
                (i32::from_le_bytes([0, a, b, c]) >> 8) as f32 / 8_388_608.0
            }),
            Encoding::Signed32 => {
                self.each(block, planes, |bytes| i32::from_le_bytes(bytes) as f32 / 2_147_483_648.0);
            }
            Encoding::Float32 => self.each(block, planes, f32::from_le_bytes),
            Encoding::Float64 => self.each(block, planes, |bytes| f64::from_le_bytes(bytes) as f32),
        }
    }

    #[inline(always)]
    fn each<const WIDTH: usize>(
        &self,
        block: &[u8],
        planes: &mut [Vec<f32>],
        convert: impl Fn([u8; WIDTH]) -> f32,
    ) {
        let numbers = block.as_chunks::<WIDTH>().0;
        let channels = planes.len();
        for (channel, plane) in planes.iter_mut().enumerate() {
            plane.clear();
            match channels {
                1 => plane.extend(numbers.iter().map(|&bytes| convert(bytes))),
                // The most frequent, with a stride that the compiler knows.
                2 => plane.extend(numbers.as_chunks::<2>().0.iter().map(|frame| convert(frame[channel & 1]))),
                _ => plane.extend(numbers.chunks_exact(channels).map(|frame| convert(frame[channel]))),
            }
        }
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
