//! The framing of TFRecord files: the length of a record and its checksum, the record and its checksum. Pure functions on
//! bytes from outside.

/// The bytes before a record.
pub(super) const HEAD: usize = 12;
/// The bytes behind it.
pub(super) const FOOT: usize = 4;
/// The polynomial of CRC-32C (Castagnoli), the lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Added to a checksum, so that one of bytes that hold checksums is none of theirs.
const MASK: u32 = 0xa282_ead8;

/// The length of the record behind this head, unless its checksum is another.
pub(super) fn length(head: [u8; HEAD]) -> Option<u64> {
    let (length, checksum) = head.split_first_chunk::<8>()?;
    is_intact(length, checksum.try_into().ok()?).then(|| u64::from_le_bytes(*length))
}

/// A record as a file has it.
///
/// ```
/// // The length, its checksum, the record, and its checksum.
/// assert_eq!(shardd_ingest::tfrecord_frame(b"abc").len(), 8 + 4 + 3 + 4);
/// ```
#[must_use]
pub fn tfrecord_frame(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    let (head, foot) = (masked(&length).to_le_bytes(), masked(record).to_le_bytes());
    [&length[..], &head, record, &foot].concat()
}

/// Whether the bytes are those of the checksum.
pub(super) fn is_intact(bytes: &[u8], checksum: [u8; FOOT]) -> bool {
    masked(bytes) == u32::from_le_bytes(checksum)
}

/// The checksum of the bytes as files hold it.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let by_words = words.iter().fold(!0, |crc: u32, word| {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        let place = |at: usize| TABLES[7 - at][(word >> (8 * at)) as usize & 0xff];
        (0..8).fold(0, |crc, at| crc ^ place(at))
    });
    !rest.iter().fold(by_words, |crc, byte| (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

/// The remainder of each byte with 0 to 7 zeros behind it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut index = 0;
    while index < 8 * 256 {
        let (zeros, byte) = (index / 256, index % 256);
        tables[zeros][byte] = if zeros == 0 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            crc
        } else {
            let before = tables[zeros - 1][byte];
            (before >> 8) ^ tables[0][(before & 0xff) as usize]
        };
        index += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4, and the check value of the polynomial.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b""), 0);
    }

    proptest! {
        #[test]
        fn words_and_bytes_give_one_checksum(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let by_bits = |crc: u32, byte: &u8| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ ((crc & 1) * POLYNOMIAL))
            };
            prop_assert_eq!(crc32c(&bytes), !bytes.iter().fold(!0, by_bits));
        }

        #[test]
        fn a_changed_length_is_none(length: u64, at in 0..HEAD, bits in 1..=255u8) {
            let mut head = [0; HEAD];
            head[..8].copy_from_slice(&length.to_le_bytes());
            head[8..].copy_from_slice(&masked(&length.to_le_bytes()).to_le_bytes());
            prop_assert_eq!(super::length(head), Some(length));
            head[at] ^= bits;
            prop_assert_eq!(super::length(head), None);
        }
    }
}
