//! The kinds of files that people look at and listen to, by their first bytes.
//!
//! The marks are those of the formats' specifications; browsers look for the same ones (WHATWG, MIME Sniffing).

/// A kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    /// Its name for people.
    pub name: &'static str,
    /// Its media type. None is a document with scripts.
    pub media_type: &'static str,
}

const fn media(name: &'static str, media_type: &'static str) -> Media {
    Media { name, media_type }
}

/// Kinds with a mark at their beginning.
const MARKS: [(&[u8], Media); 12] = [
    (b"\xff\xd8\xff", media("JPEG", "image/jpeg")),
    (b"\x89PNG\r\n\x1a\n", media("PNG", "image/png")),
    (b"GIF87a", media("GIF", "image/gif")),
    (b"GIF89a", media("GIF", "image/gif")),
    (b"II*\0", media("TIFF", "image/tiff")),
    (b"MM\0*", media("TIFF", "image/tiff")),
    (b"fLaC", media("FLAC", "audio/flac")),
    (b"OggS", media("Ogg", "audio/ogg")),
    (b"ID3", media("MP3", "audio/mpeg")),
    (b"\xff\xfb", media("MP3", "audio/mpeg")),
    (b"\xff\xf3", media("MP3", "audio/mpeg")),
    (b"\x1aE\xdf\xa3", media("WebM", "video/webm")),
];

impl Media {
    /// The kind of a file; none if the bytes begin as no known kind does.
    ///
    /// ```
    /// use shardd_api::media::Media;
    ///
    /// assert_eq!(Media::of(b"RIFF\x10\0\0\0WAVEfmt ").map(|found| found.media_type), Some("audio/wav"));
    /// assert_eq!(Media::of(b"<svg onload=alert(1)>"), None);
    /// ```
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Media> {
        match bytes {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                Some(media("WebP", "image/webp"))
            }
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => {
                Some(media("WAV", "audio/wav"))
            }
            [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f', ..] => {
                Some(media("AVIF", "image/avif"))
            }
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some(media("MP4", "video/mp4")),
            // Two letters are a weak mark: four reserved bytes of a bitmap's head are zero.
            [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some(media("BMP", "image/bmp")),
            _ => MARKS.iter().find(|(mark, _)| bytes.starts_with(mark)).map(|(_, kind)| *kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_mark_and_no_document_is_one() {
        let name = |bytes: &[u8]| Media::of(bytes).map(|found| found.name);
        for (mark, kind) in MARKS {
            assert_eq!(name(&[mark, b"rest"].concat()), Some(kind.name));
            assert_eq!(name(&mark[..mark.len() - 1]), None);
        }
        assert_eq!(name(b"RIFF\0\0\0\0WEBPVP8 "), Some("WebP"));
        assert_eq!(name(b"\0\0\0\x18ftypavif"), Some("AVIF"));
        assert_eq!(name(b"\0\0\0\x18ftypisom"), Some("MP4"));
        assert_eq!(name(b"BM\x36\x10\0\0\0\0\0\0\x36"), Some("BMP"));
        assert_eq!(name(b"BM, a word with a full stop"), None);
        for document in [&b"<html>"[..], b"<?xml", b"%PDF-1.7", b"", b"MZ"] {
            assert_eq!(name(document), None);
        }
        assert!(MARKS.iter().all(|(_, kind)| !kind.media_type.contains("svg")));
    }
}
