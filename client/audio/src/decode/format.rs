//! File formats, by their first bytes.

use std::fmt;

use super::DecodeError;

/// A file format of sounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the formats'")]
pub enum Format {
    Wav,
    Flac,
    Mp3,
    OggVorbis,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wav => "WAV",
            Self::Flac => "FLAC",
            Self::Mp3 => "MP3",
            Self::OggVorbis => "Ogg Vorbis",
        })
    }
}

impl Format {
    /// The format that the first bytes announce.
    ///
    /// # Errors
    /// [`DecodeError::UnknownFormat`].
    pub fn of(bytes: &[u8]) -> Result<Self, DecodeError> {
        match after_id3(bytes) {
            [b'R', b'I' | b'F', b'F' | b'6', b'F' | b'4', _, _, _, _, b'W', b'A', b'V', b'E', ..] => {
                Ok(Self::Wav)
            }
            [b'f', b'L', b'a', b'C', ..] => Ok(Self::Flac),
            [b'O', b'g', b'g', b'S', ..] => Ok(Self::OggVorbis),
            [first, second, third, ..] if is_mp3_frame([*first, *second, *third]) => Ok(Self::Mp3),
            _ if bytes.starts_with(b"ID3") => Ok(Self::Mp3),
            _ => Err(unknown(bytes)),
        }
    }
}

/// The bytes after ID3v2 tags: four bytes of seven bits have the length of one.
pub(super) fn after_id3(mut bytes: &[u8]) -> &[u8] {
    while let [b'I', b'D', b'3', _, _, flags, a, b, c, d, ..] = *bytes {
        let len = [a, b, c, d].iter().fold(0, |len, &byte| len << 7 | usize::from(byte & 0x7F));
        let footer = if flags & 0x10 != 0 { 10 } else { 0 };
        bytes = bytes.get(10 + len + footer..).unwrap_or_default();
    }
    bytes
}

/// Whether a frame of layer III may begin so: sync word, version, layer, bitrate and sample rate.
fn is_mp3_frame([first, second, third]: [u8; 3]) -> bool {
    let [version, layer] = [second >> 3 & 3, second >> 1 & 3];
    let [bitrate, rate] = [third >> 4, third >> 2 & 3];
    first == 0xFF && second >> 5 == 7 && version != 1 && layer == 1 && bitrate != 15 && rate != 3
}

fn unknown(bytes: &[u8]) -> DecodeError {
    let hex: Vec<_> = bytes.iter().take(12).map(|byte| format!("{byte:02X}")).collect();
    DecodeError::UnknownFormat {
        first: if hex.is_empty() { "nothing (0 bytes)".into() } else { hex.join(" ") },
    }
}
