//! FLAC and MP3, by symphonia.

use std::collections::VecDeque;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSourceStream, ReadOnlySource};
use symphonia::core::packet::Packet;
use symphonia::default::formats::{FlacReader, MpaReader};

use super::format::after_id3;
use super::sink::{Flow, Sink};
use super::{DecodeError, Format, Info};

/// A frame of layer III takes up to 511 bytes from the frames before it.
const MP3_RESERVOIR_BYTES: usize = 511;

/// A frame of layer III overlaps with the frame before it, and its filters with one more: these two have to be decoded
/// as in the whole file, with all bytes that they take from frames before them.
const MP3_OVERLAPPING_PACKETS: usize = 2;

/// The bytes of a frame of layer III that are no sound.
const MP3_HEADER_BYTES: usize = 38;

/// The error of a decoder, as one of this crate.
pub(super) fn failed(format: Format, error: &Error) -> DecodeError {
    match error {
        Error::IoError(_) => DecodeError::truncated(format, "a part of it is missing"),
        Error::Unsupported(detail) => DecodeError::unsupported(format, *detail),
        Error::ResetRequired => DecodeError::unsupported(format, "its properties change on the way"),
        other => DecodeError::broken(format, other.to_string()),
    }
}

/// A file whose headers were read.
struct File<'a> {
    format: Format,
    reader: Box<dyn FormatReader + 'a>,
    parameters: AudioCodecParameters,
    info: Info,
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8], format: Format) -> Result<Self, DecodeError> {
        let failed = |error: Error| failed(format, &error);
        // Of a source in which it can seek, the reader of MP3 guesses the length, and cuts the sound off there.
        let source = Box::new(ReadOnlySource::new(after_id3(bytes)));
        let source = MediaSourceStream::new(source, Default::default());
        let options = FormatOptions::default();
        let reader: Box<dyn FormatReader + 'a> = match format {
            Format::Flac => Box::new(FlacReader::try_new(source, options).map_err(failed)?),
            _ => Box::new(MpaReader::try_new(source, options).map_err(failed)?),
        };
        let missing = || DecodeError::broken(format, "it does not name its channels and rate");
        let track = reader.tracks().first().ok_or_else(missing)?;
        let Some(CodecParameters::Audio(parameters)) = track.codec_params.clone() else {
            return Err(missing());
        };
        let channels = parameters.channels.as_ref().ok_or_else(missing)?.count();
        let rate = parameters.sample_rate.ok_or_else(missing)?;
        let samples = track.num_frames;
        Ok(Self { format, reader, parameters, info: Info { format, channels, rate, samples } })
    }

    fn next_packet(&mut self) -> Result<Option<Packet>, DecodeError> {
        match self.reader.next_packet() {
            // Both formats end where no frame follows.
            Err(Error::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(failed(self.format, &error)),
            Ok(packet) => Ok(packet),
        }
    }
}

pub(super) fn info(bytes: &[u8], format: Format) -> Result<Info, DecodeError> {
    File::open(bytes, format).map(|file| file.info)
}

pub(super) fn read(bytes: &[u8], format: Format, sink: &mut Sink<'_>) -> Result<(), DecodeError> {
    let mut file = File::open(bytes, format)?;
    let Info { channels, rate, samples, .. } = file.info;
    sink.open(channels, rate, samples)?;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(&file.parameters, &AudioDecoderOptions::default().gapless(true))
        .map_err(|error| failed(format, &error))?;
    let mut planes = Vec::new();
    let mut history = History::default();
    while sink.flow() == Flow::More {
        let Some(packet) = file.next_packet()? else { break };
        if format == Format::Flac && packet.pts.get() != sink.position() as i64 {
            let detail = format!("frames are missing after sample {}", sink.position());
            return Err(DecodeError::broken(format, detail));
        }
        let after = end_of(&packet, format);
        if after <= sink.start() {
            sink.skip_to(after);
            history.push(packet, format);
            continue;
        }
        history.replay(decoder.as_mut());
        let decoded = decoder.decode(&packet).map_err(|error| failed(format, &error))?;
        if decoded.spec().rate() != rate {
            let detail = format!("it changes from {rate} to {} Hz", decoded.spec().rate());
            return Err(DecodeError::broken(format, detail));
        }
        decoded.copy_to_vecs_planar::<f32>(&mut planes);
        let count = planes.first().map_or(0, Vec::len);
        sink.push(&planes, count)?;
    }
    if samples.is_some_and(|samples| sink.flow() == Flow::More && sink.position() < samples) {
        let detail = format!("{} of {} samples are there", sink.position(), samples.unwrap_or(0));
        return Err(DecodeError::truncated(format, detail));
    }
    Ok(())
}

/// The sample after the last of a packet.
///
/// The durations of MP3 packets count samples that are cut off (symphonia 0.6.1), and are not used.
fn end_of(packet: &Packet, format: Format) -> u64 {
    let samples = match (format, packet.data.get(1)) {
        (Format::Mp3, Some(version)) if version >> 3 & 3 == 3 => 1152,
        (Format::Mp3, _) => 576,
        _ => packet.dur.get(),
    };
    packet.pts.get().saturating_add_unsigned(samples).max(0) as u64
}

/// The last packets before the first that is kept, with all that it needs of them.
#[derive(Default)]
struct History {
    packets: VecDeque<Packet>,
    /// Bytes of sound in the packets, but for the last that overlap with the next one.
    bytes: usize,
}

impl History {
    fn push(&mut self, packet: Packet, format: Format) {
        if format == Format::Flac {
            return; // Frames of FLAC depend on none before.
        }
        let sound = |packet: &Packet| packet.data.len().saturating_sub(MP3_HEADER_BYTES);
        self.packets.push_back(packet);
        if let Some(before) = self.packets.iter().rev().nth(MP3_OVERLAPPING_PACKETS) {
            self.bytes += sound(before);
        }
        while let Some(first) = self.packets.front()
            && self.packets.len() > MP3_OVERLAPPING_PACKETS
            && self.bytes - sound(first) >= MP3_RESERVOIR_BYTES
        {
            self.bytes -= sound(first);
            self.packets.pop_front();
        }
    }

    /// Brings a decoder to where it is after these packets. Errors do not count: the packets before are missing.
    fn replay(&mut self, decoder: &mut dyn AudioDecoder) {
        for packet in std::mem::take(&mut self.packets) {
            let _ = decoder.decode(&packet);
        }
    }
}
