//! Reads a JPEG through to its end without computing a pixel: every code of its data is looked up and passed
//! over. Costs far less than decoding, and says of most images that they are whole and sound. Of others it
//! gives no verdict: the caller has to decode them.
//!
//! Knows baseline JPEG of grey or three components in one scan, which is what nearly every encoder writes.

/// The most bytes of decoded pixels that the decoder would make.
const MOST_DECODED: u64 = 512 << 20;
/// Codes up to this length are looked up at once; longer ones are rare.
const LOOKUP: u32 = 9;

/// Whether the image is certainly one that can be decoded, with nothing missing. `false` means that it may be or not.
pub(super) fn is_sound(bytes: &[u8]) -> bool {
    Headers::default().read(bytes).is_some()
}

/// Whether a JPEG of any kind reaches its end mark. Decoders fill missing parts with grey and report nothing,
/// so a download that broke off would go unnoticed.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    const END: u8 = 0xd9;
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        // Of the bytes after 0xff, these belong to the compressed data, are padding, or begin nothing.
        let begins = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 1 | 0xd0..=0xd8 | 0xff);
        let Some(marker) = rest.windows(2).position(begins) else { return false };
        if rest[marker + 1] == END {
            return true;
        }
        let Some(&[high, low]) = rest.get(marker + 2..marker + 4) else { return false };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some(next) = rest.get(marker + 2 + length..) else { return false };
        rest = next;
    }
}

/// The facts of an image before its data.
#[derive(Default)]
struct Headers {
    quantization: [bool; 4],
    dc: [Option<Codes>; 4],
    ac: [Option<Codes>; 4],
    frame: Option<Frame>,
    /// Units between restart marks, 0 for none.
    restart: u32,
}

struct Frame {
    /// How many units of data make the image: blocks, or groups of blocks of all components.
    units: u32,
    components: Vec<Component>,
}

struct Component {
    id: u8,
    quantization: usize,
    /// Blocks per unit.
    blocks: u32,
}

/// The codes of a table: symbols by their bits.
struct Codes {
    /// By the next [`LOOKUP`] bits: length of the code and its symbol; a length of 0 where the code is longer.
    short: [(u8, u8); 1 << LOOKUP],
    /// For each length: one more than the last code of it, as the leading bits of 16; and what to add to a code to get
    /// the index of its symbol.
    longer: [(u32, i32); 17],
    symbols: Vec<u8>,
}

impl Headers {
    /// Goes through all segments; `None` at anything that is not as it should be.
    fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes.strip_prefix(&[0xff, 0xd8])?;
        loop {
            rest = rest.strip_prefix(&[0xff])?;
            let (&marker, after) = rest.split_first()?;
            if marker == 0xff {
                continue;
            }
            let (&length, _) = after.split_first_chunk()?;
            let (segment, next) = after.split_at_checked(usize::from(u16::from_be_bytes(length)))?;
            let segment = segment.get(2..)?;
            match marker {
                0xe0 | 0xfe => {}
                0xe1 if segment.starts_with(b"Exif\0\0") => {}
                0xe1 if segment.starts_with(b"http://ns.adobe.com/xap/1.0/\0") => {}
                0xe2 if segment.starts_with(b"ICC_PROFILE\0") && segment.len() >= 14 => {}
                // Written by Adobe: luma and colour, as always.
                0xee if segment.starts_with(b"Adobe") && segment.len() == 12 && segment[11] == 1 => {}
                0xdb => self.quantization(segment)?,
                0xc4 => self.codes(segment)?,
                0xc0 if self.frame.is_none() => self.frame = Some(frame(segment)?),
                0xdd => self.restart = u32::from(u16::from_be_bytes(segment.try_into().ok()?)),
                0xda => return self.scan(segment, next),
                _ => return None,
            }
            rest = next;
        }
    }

    fn quantization(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&table, values)) = segment.split_first() {
            // The high bits say how wide the values are: 0 for a byte.
            *self.quantization.get_mut(usize::from(table))? = true;
            segment = values.get(64..)?;
        }
        Some(())
    }

    fn codes(&mut self, mut segment: &[u8]) -> Option<()> {
        while let Some((&table, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let count = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(count)?;
            let tables = match table >> 4 {
                0 if symbols.iter().all(|&bits| bits <= 11) => &mut self.dc,
                1 => &mut self.ac,
                _ => return None,
            };
            *tables.get_mut(usize::from(table & 15))? = Some(Codes::new(counts, symbols)?);
            segment = rest;
        }
        Some(())
    }

    /// The data itself, up to the end of the image.
    fn scan(&self, header: &[u8], data: &[u8]) -> Option<()> {
        let frame = self.frame.as_ref()?;
        let (&count, rest) = header.split_first()?;
        let (components, rest) = rest.split_at_checked(2 * usize::from(count))?;
        if usize::from(count) != frame.components.len() || rest != [0, 63, 0] {
            return None;
        }
        let mut tables = Vec::with_capacity(4);
        for (component, said) in frame.components.iter().zip(components.chunks_exact(2)) {
            let is_known = said[0] == component.id && self.quantization[component.quantization];
            let dc = self.dc.get(usize::from(said[1] >> 4))?.as_ref()?;
            let ac = self.ac.get(usize::from(said[1] & 15))?.as_ref()?;
            tables.push(is_known.then_some((component.blocks, dc, ac))?);
        }
        let mut bits = Bits { data, bits: 0, count: 0 };
        for unit in 0..frame.units {
            if self.restart > 0 && unit > 0 && unit % self.restart == 0 {
                let number = (unit / self.restart - 1) % 8;
                bits.mark(0xd0 + u8::try_from(number).expect("below 8"))?;
            }
            for &(blocks, dc, ac) in &tables {
                (0..blocks).try_for_each(|_| bits.block(dc, ac))?;
            }
        }
        bits.mark(0xd9)
    }
}

fn frame(segment: &[u8]) -> Option<Frame> {
    let (&[8, high, low, wide, narrow, count], components) = segment.split_first_chunk()? else {
        return None;
    };
    let (height, width) = (u16::from_be_bytes([high, low]), u16::from_be_bytes([wide, narrow]));
    let (height, width) = (u32::from(height), u32::from(width));
    let is_possible = height > 0 && width > 0 && u64::from(height) * u64::from(width) * 3 <= MOST_DECODED;
    if !is_possible || components.len() != 3 * usize::from(count) {
        return None;
    }
    let components: Vec<Component> = components
        .chunks_exact(3)
        .map(|said| {
            let blocks = match said[1] {
                0x11 => 1,
                0x21 | 0x12 => 2,
                0x22 => 4,
                _ => return None,
            };
            let quantization = usize::from(said[2]);
            (quantization < 4).then_some(Component { id: said[0], quantization, blocks })
        })
        .collect::<Option<_>>()?;
    let (across, down) = match components.as_slice() {
        [grey] if grey.blocks == 1 => (8, 8),
        [_, blue, red] if blue.blocks == 1 && red.blocks == 1 => {
            let sampling = u32::from(segment[7]);
            (8 * (sampling >> 4), 8 * (sampling & 15))
        }
        _ => return None,
    };
    Some(Frame { units: width.div_ceil(across) * height.div_ceil(down), components })
}

impl Codes {
    /// Codes are given by how many there are of each length, in order.
    fn new(counts: &[u8; 16], symbols: &[u8]) -> Option<Codes> {
        let mut short = [(0, 0); 1 << LOOKUP];
        let mut longer = [(0, 0); 17];
        let (mut code, mut index) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            longer[length as usize].1 = index as i32 - code as i32;
            for _ in 0..count {
                if length <= LOOKUP {
                    let from = (code << (LOOKUP - length)) as usize;
                    let codes = short.get_mut(from..from + (1 << (LOOKUP - length)))?;
                    codes.fill((length as u8, symbols[index]));
                }
                (code, index) = (code + 1, index + 1);
            }
            // A code of nothing but ones is not allowed, so there is always a next one.
            if code >= 1 << length {
                return None;
            }
            longer[length as usize].0 = code << (16 - length);
            code <<= 1;
        }
        Some(Codes { short, longer, symbols: symbols.to_vec() })
    }

    /// Length and symbol of the code that these 16 bits begin with.
    fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let (length, symbol) = self.short[(bits >> (16 - LOOKUP)) as usize];
        if length > 0 {
            return Some((u32::from(length), symbol));
        }
        let length = (LOOKUP + 1..=16).find(|&length| bits < self.longer[length as usize].0)?;
        let index = (bits >> (16 - length)) as i32 + self.longer[length as usize].1;
        Some((length, *self.symbols.get(usize::try_from(index).ok()?)?))
    }
}

/// The data of an image, bit by bit.
struct Bits<'d> {
    data: &'d [u8],
    /// The next bits, from the highest on.
    bits: u64,
    count: u32,
}

impl Bits<'_> {
    /// Passes over one block: 64 coefficients.
    fn block(&mut self, dc: &Codes, ac: &Codes) -> Option<()> {
        let bits = self.symbol(dc)?;
        self.skip(u32::from(bits))?;
        let mut coefficient = 1;
        while coefficient < 64 {
            let symbol = self.symbol(ac)?;
            let (zeros, bits) = (symbol >> 4, symbol & 15);
            match (zeros, bits) {
                (0, 0) => return Some(()),
                (15, 0) => coefficient += 16,
                (_, 0) | (_, 11..) => return None,
                _ => {
                    coefficient += usize::from(zeros) + 1;
                    self.skip(u32::from(bits))?;
                }
            }
        }
        (coefficient == 64).then_some(())
    }

    fn symbol(&mut self, codes: &Codes) -> Option<u8> {
        // The longest code and the bits that follow it; near the end there may be fewer.
        if self.count < 32 {
            self.fill();
        }
        let (length, symbol) = codes.find((self.bits >> 48) as u32)?;
        self.skip(length)?;
        Some(symbol)
    }

    fn skip(&mut self, count: u32) -> Option<()> {
        self.count = self.count.checked_sub(count)?;
        self.bits <<= count;
        Some(())
    }

    /// Takes bytes up to the next mark.
    fn fill(&mut self) {
        if self.count <= 32
            && let Some((word, rest)) = self.data.split_first_chunk()
        {
            let word = u32::from_be_bytes(*word);
            // Whether some byte of it is 0xff.
            if (!word).wrapping_sub(0x0101_0101) & word & 0x8080_8080 == 0 {
                self.bits |= u64::from(word) << (32 - self.count);
                (self.count, self.data) = (self.count + 32, rest);
            }
        }
        while self.count <= 56 {
            let (byte, length) = match *self.data {
                [0xff, 0, ..] => (0xff, 2),
                [0xff, ..] | [] => return,
                [byte, ..] => (byte, 1),
            };
            self.data = &self.data[length..];
            self.bits |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Passes over a mark, which must come after the byte begun.
    fn mark(&mut self, mark: u8) -> Option<()> {
        self.fill();
        if self.count >= 8 {
            return None;
        }
        (self.bits, self.count) = (0, 0);
        let mut rest = self.data.strip_prefix(&[0xff])?;
        while let Some(more) = rest.strip_prefix(&[0xff]) {
            rest = more;
        }
        self.data = rest.strip_prefix(&[mark])?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::codecs::jpeg::JpegEncoder;
    use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
    use proptest::prelude::*;

    use super::*;

    fn encoded(width: u32, height: u32, quality: u8, is_grey: bool, noise: &[u8]) -> Vec<u8> {
        let value = |x: u32, y: u32| noise[(x * 7 + y * 31) as usize % noise.len()];
        let image: DynamicImage = if is_grey {
            GrayImage::from_fn(width, height, |x, y| image::Luma([value(x, y)])).into()
        } else {
            RgbImage::from_fn(width, height, |x, y| image::Rgb([value(x, y), value(y, x), (x * y) as u8]))
                .into()
        };
        let mut bytes = Vec::new();
        JpegEncoder::new_with_quality(&mut bytes, quality).encode_image(&image).unwrap();
        bytes
    }

    fn decodes(bytes: &[u8]) -> bool {
        image::load(Cursor::new(bytes), ImageFormat::Jpeg).is_ok()
    }

    proptest! {
        #[test]
        fn what_an_encoder_writes_is_sound_whole_and_only_whole(
            width in 1..70u32,
            height in 1..70u32,
            quality in 1..=100u8,
            is_grey: bool,
            noise in prop::collection::vec(any::<u8>(), 1..200),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = encoded(width, height, quality, is_grey, &noise);
            prop_assert!(is_sound(&bytes));
            prop_assert!(!is_sound(&bytes[..cut.index(bytes.len())]));
        }

        #[test]
        fn what_is_called_sound_can_be_decoded(
            noise in prop::collection::vec(any::<u8>(), 1..50),
            quality in 1..=100u8,
            is_grey: bool,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = encoded(19, 23, quality, is_grey, &noise);
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            prop_assert!(!is_sound(&bytes) || decodes(&bytes));
        }

        #[test]
        fn any_bytes_are_looked_through_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(!is_sound(&[&[0xff, 0xd8], bytes.as_slice()].concat()) || decodes(&bytes));
        }
    }
}
