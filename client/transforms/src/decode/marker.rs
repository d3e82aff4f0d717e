//! The segments of a JPEG file before its first pixel (ITU-T T.81, annex B), and how to shorten them.

use super::{DecodeError, Format, Header, Region, exif};

/// How a frame's coefficients are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    /// One pass over the picture, Huffman codes.
    Sequential,
    /// Several passes, or arithmetic codes: decoded as a whole.
    Other,
    /// Differences of neighbours instead of a DCT.
    Lossless,
}

/// What the segments before the pixels say.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub height: usize,
    pub width: usize,
    pub bits: usize,
    pub process: Process,
    /// Horizontal and vertical sampling factor of each component.
    pub sampling: Vec<[usize; 2]>,
    orientation: u8,
    /// Where the frame segment stores the height.
    height_at: usize,
    /// Whether the first scan holds all components.
    is_interleaved: bool,
    /// Whether each Huffman table is the one that a decoder takes if a file has none.
    has_standard_codes: bool,
    /// Start and end of the segments that decide no pixel.
    idle: Vec<[usize; 2]>,
    /// Where the first scan starts.
    scan_at: usize,
}

/// The rows and columns that a decoder has to make to get a region right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub rows: usize,
    pub left: usize,
    pub right: usize,
}

/// The marker that ends a file.
const END: u8 = 0xD9;

/// A segment: its marker, where its marker starts, and its parameters.
struct Segment<'a> {
    marker: u8,
    at: usize,
    body: &'a [u8],
}

fn ends(detail: &str) -> DecodeError {
    DecodeError::truncated(Format::Jpeg, detail)
}

fn broken(detail: impl Into<String>) -> DecodeError {
    DecodeError::broken(Format::Jpeg, detail)
}

impl Segment<'_> {
    fn end(&self) -> usize {
        self.at + 4 + self.body.len()
    }
}

/// Where the next marker is, and its number, but not those without parameters. Like libjpeg, skips bytes that are
/// no marker; so it also skips the compressed pixels of a scan.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(usize, u8)> {
    loop {
        at += bytes.get(at..)?.iter().position(|&byte| byte == 0xFF)?;
        match *bytes.get(at + 1)? {
            0xFF => at += 1,
            0x00 | 0x01 | 0xD0..=0xD7 => at += 2,
            marker => return Some((at, marker)),
        }
    }
}

/// The next segment at or after `at`.
fn next_segment(bytes: &[u8], at: usize) -> Result<Segment<'_>, DecodeError> {
    let end = || ends("there are no pixels after the header");
    let (at, marker) = next_marker(bytes, at).ok_or_else(end)?;
    if marker == END {
        return Err(ends("it has no pixels"));
    }
    let length = bytes.get(at + 2..).and_then(<[u8]>::first_chunk).ok_or_else(end)?;
    let length = usize::from(u16::from_be_bytes(*length));
    if length < 2 {
        return Err(broken(format!("segment FF{marker:02X} has length {length}")));
    }
    let body = bytes.get(at + 4..at + 2 + length).ok_or_else(end)?;
    Ok(Segment { marker, at, body })
}

impl Frame {
    /// Reads all segments up to the first scan.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut frame: Option<Self> = None;
        let (mut orientation, mut has_standard_codes, mut idle) = (1, true, Vec::new());
        let mut at = 2;
        loop {
            let segment = next_segment(bytes, at)?;
            at = segment.end();
            match segment.marker {
                0xC4 => has_standard_codes &= is_standard_codes(segment.body),
                0xC8 | 0xCC => {}
                0xC0..=0xCF if frame.is_some() => return Err(broken("it has two frame headers")),
                0xC0..=0xCF => frame = Some(Self::of_segment(&segment)?),
                0xDA => {
                    let frame = frame.ok_or_else(|| broken("its pixels come before its frame header"))?;
                    let is_interleaved =
                        segment.body.first().is_some_and(|&n| usize::from(n) == frame.sampling.len());
                    let scan_at = segment.at;
                    return Ok(Self {
                        orientation,
                        is_interleaved,
                        has_standard_codes,
                        idle,
                        scan_at,
                        ..frame
                    });
                }
                // JFIF and Adobe segments decide the colour space; others of their kind are comments.
                0xE0 | 0xEE => {}
                0xE1..=0xEF | 0xFE => {
                    if segment.marker == 0xE1 && segment.body.starts_with(b"Exif\0\0") && orientation == 1 {
                        orientation = exif::orientation(segment.body);
                    }
                    idle.push([segment.at, at]);
                }
                _ => {}
            }
        }
    }

    fn of_segment(segment: &Segment<'_>) -> Result<Self, DecodeError> {
        let process = match segment.marker {
            0xC0 | 0xC1 => Process::Sequential,
            0xC2 | 0xC9 | 0xCA => Process::Other,
            0xC3 | 0xCB => Process::Lossless,
            _ => return Err(DecodeError::unsupported(Format::Jpeg, "its frame is hierarchical")),
        };
        let &[bits, h1, h0, w1, w0, components, ref factors @ ..] = segment.body else {
            return Err(broken("its frame header is too short"));
        };
        if factors.len() != 3 * usize::from(components) {
            return Err(broken(format!("its frame header has no room for {components} components")));
        }
        let height = usize::from(u16::from_be_bytes([h1, h0]));
        if height == 0 {
            return Err(DecodeError::unsupported(Format::Jpeg, "its height is stored after its pixels"));
        }
        let sampling: Vec<_> =
            factors.chunks_exact(3).map(|c| [usize::from(c[1] >> 4), usize::from(c[1] & 15)]).collect();
        if sampling.iter().flatten().any(|factor| !(1..=4).contains(factor)) {
            return Err(broken("a sampling factor is not 1 to 4"));
        }
        Ok(Self {
            height,
            width: usize::from(u16::from_be_bytes([w1, w0])),
            bits: usize::from(bits),
            process,
            sampling,
            orientation: 1,
            height_at: segment.at + 5,
            is_interleaved: false,
            has_standard_codes: false,
            idle: Vec::new(),
            scan_at: 0,
        })
    }

    pub(super) fn header(&self) -> Header {
        let &Self { height, width, bits, orientation, .. } = self;
        Header { format: Format::Jpeg, height, width, channels: self.sampling.len(), bits, orientation }
    }

    /// What to decode for `region`; all, unless the frame is of the common kind: one sequential scan whose first
    /// component is the finest.
    ///
    /// The window reaches at least one whole MCU beyond the region on each side that is not the picture's. So the
    /// smooth upsampling of the colours, which looks one sample aside, sees there what it sees in the whole picture.
    pub(super) fn window(&self, region: Option<Region>) -> Window {
        let whole = Window { rows: self.height, left: 0, right: self.width };
        let (Some(region), Some(&[across, down])) = (region, self.sampling.first()) else { return whole };
        let is_common = matches!(self.sampling[1..], [] | [[1, 1], [1, 1]]);
        if self.process != Process::Sequential || !self.is_interleaved || !is_common {
            return whole;
        }
        let (mcu_width, mcu_height) = (8 * across, 8 * down);
        let bottom = (region.top + region.height).next_multiple_of(mcu_height) + mcu_height;
        Window {
            rows: bottom.min(self.height),
            left: (region.left / mcu_width * mcu_width).saturating_sub(mcu_width),
            right: (region.left + region.width + mcu_width).min(self.width),
        }
    }

    /// Where the data stop of a file that should go on: one of several scans, or of arithmetic codes, without an
    /// end. Of others, the missing pixels tell.
    pub(super) fn cut_at(&self, bytes: &[u8]) -> Option<usize> {
        let is_one_scan = self.process == Process::Sequential && self.is_interleaved;
        if is_one_scan || bytes.ends_with(&[0xFF, END]) {
            return None;
        }
        let mut at = self.scan_at;
        while let Some((start, marker)) = next_marker(bytes, at) {
            if marker == END {
                return None;
            }
            match next_segment(bytes, start) {
                Ok(segment) => at = segment.end(),
                Err(_) => return Some(start),
            }
        }
        Some(bytes.len())
    }

    /// Writes to `stream` the file up to `cut_at`, and an end.
    pub(super) fn close(bytes: &[u8], cut_at: usize, stream: &mut Vec<u8>) {
        stream.clear();
        stream.extend_from_slice(&bytes[..cut_at]);
        stream.extend_from_slice(&[0xFF, END]);
    }

    /// Whether [`Self::shorten`] would leave out Huffman tables, which a decoder else builds for each file.
    pub(super) fn has_needless_codes(&self) -> bool {
        self.process == Process::Sequential && self.has_standard_codes
    }

    /// Writes to `stream` a file with the same pixels in its first `rows`, and no others. Leaves out the segments
    /// that decide no pixel, and the Huffman tables if they are needless.
    pub(super) fn shorten(&self, bytes: &[u8], rows: usize, stream: &mut Vec<u8>) {
        stream.clear();
        stream.extend_from_slice(&bytes[..2]);
        let mut at = 2;
        while let Ok(segment) = next_segment(bytes, at)
            && segment.at < self.scan_at
        {
            // A decoder may find a use for bytes between segments, so they stay.
            stream.extend_from_slice(&bytes[at..segment.at]);
            at = segment.end();
            let is_needless = segment.marker == 0xC4 && self.has_needless_codes();
            if !is_needless && !self.idle.contains(&[segment.at, at]) {
                stream.extend_from_slice(&bytes[segment.at..at]);
            }
            if (segment.at..at).contains(&self.height_at) {
                let height_at = stream.len() - (at - self.height_at);
                stream[height_at..height_at + 2].copy_from_slice(&(rows as u16).to_be_bytes());
            }
        }
        stream.extend_from_slice(&bytes[at..]);
    }
}

/// Whether a DHT segment defines nothing but tables of annex K.3 under their usual numbers.
fn is_standard_codes(mut body: &[u8]) -> bool {
    while !body.is_empty() {
        match STANDARD_CODES.iter().find_map(|table| body.strip_prefix(*table)) {
            Some(rest) => body = rest,
            None => return false,
        }
    }
    true
}

/// The tables of annex K.3 as a DHT segment stores them: class and number, count of codes of each length, values.
#[rustfmt::skip]
const STANDARD_CODES: [&[u8]; 4] = [
    &[0x00, 0x00, 0x01, 0x05, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B],
    &[0x10, 0x00, 0x02, 0x01, 0x03, 0x03, 0x02, 0x04, 0x03, 0x05, 0x05, 0x04, 0x04, 0x00, 0x00, 0x01, 0x7D,
      0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71,
      0x14, 0x32, 0x81, 0x91, 0xA1, 0x08, 0x23, 0x42, 0xB1, 0xC1, 0x15, 0x52, 0xD1, 0xF0, 0x24, 0x33, 0x62, 0x72,
      0x82, 0x09, 0x0A, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x34, 0x35, 0x36, 0x37,
      0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59,
      0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A, 0x83,
      0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0xA2, 0xA3,
      0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA, 0xC2, 0xC3,
      0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA, 0xE1, 0xE2,
      0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF1, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA],
    &[0x01, 0x00, 0x03, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B],
    &[0x11, 0x00, 0x02, 0x01, 0x02, 0x04, 0x04, 0x03, 0x04, 0x07, 0x05, 0x04, 0x04, 0x00, 0x01, 0x02, 0x77,
      0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22,
      0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xA1, 0xB1, 0xC1, 0x09, 0x23, 0x33, 0x52, 0xF0, 0x15, 0x62, 0x72, 0xD1,
      0x0A, 0x16, 0x24, 0x34, 0xE1, 0x25, 0xF1, 0x17, 0x18, 0x19, 0x1A, 0x26, 0x27, 0x28, 0x29, 0x2A, 0x35, 0x36,
      0x37, 0x38, 0x39, 0x3A, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4A, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
      0x59, 0x5A, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6A, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7A,
      0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A,
      0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8, 0xA9, 0xAA, 0xB2, 0xB3, 0xB4, 0xB5, 0xB6, 0xB7, 0xB8, 0xB9, 0xBA,
      0xC2, 0xC3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xD2, 0xD3, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xD9, 0xDA,
      0xE2, 0xE3, 0xE4, 0xE5, 0xE6, 0xE7, 0xE8, 0xE9, 0xEA, 0xF2, 0xF3, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9, 0xFA],
];
