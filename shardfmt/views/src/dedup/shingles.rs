//! Texts as sets of hashed n-grams.

use icu_normalizer::{ComposingNormalizer, ComposingNormalizerBorrowed};

use super::minhash::Unit;
use crate::expr::text::lower;

/// FNV-1a, 64 bits (draft-eastlake-fnv): start and factor.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01b3;

/// Factor of the rolling polynomial; odd, and otherwise arbitrary.
const ROLL: u64 = 0x9e37_79b9_7f4a_7c15;

/// Byte classes of ASCII: the byte in lower case, or 0 for a byte that is no part of a word.
const WORD: [u8; 128] = {
    let mut table = [0; 128];
    let mut byte = 0u8;
    while byte < 128 {
        if byte.is_ascii_alphanumeric() || byte == b'_' {
            table[byte as usize] = byte.to_ascii_lowercase();
        }
        byte += 1;
    }
    table
};

/// Calls `see` with a hash of each n-gram of the normalised text. A text of fewer than `n` words or
/// characters is one n-gram, and a text without any gives none.
pub(super) fn each(text: &str, unit: Unit, n: usize, mut see: impl FnMut(u64)) {
    let tokens = match unit {
        Unit::Word => words(text),
        Unit::Character => characters(text),
    };
    if tokens.is_empty() {
        return;
    }
    let n = n.clamp(1, tokens.len());
    let oldest = (0..n).fold(1u64, |power, _| power.wrapping_mul(ROLL));
    let mut rolling = 0u64;
    for (index, token) in tokens.iter().enumerate() {
        rolling = rolling.wrapping_mul(ROLL).wrapping_add(*token);
        if index >= n {
            rolling = rolling.wrapping_sub(tokens[index - n].wrapping_mul(oldest));
        }
        if index + 1 >= n {
            see(rolling);
        }
    }
}

/// Hashes of the words: runs of letters, digits and underscores.
fn words(text: &str) -> Vec<u64> {
    let mut tokens = Vec::with_capacity(text.len() / 5 + 1);
    let mut word = Fnv::default();
    if text.is_ascii() {
        for byte in text.bytes() {
            match WORD[usize::from(byte & 127)] {
                0 => word.end(&mut tokens),
                letter => word.add(letter),
            }
        }
    } else {
        let mut utf8 = [0; 4];
        for c in composed(text).chars() {
            if c.is_alphanumeric() || c == '_' {
                lower(c).encode_utf8(&mut utf8).bytes().for_each(|byte| word.add(byte));
            } else {
                word.end(&mut tokens);
            }
        }
    }
    word.end(&mut tokens);
    tokens
}

/// The characters, each run of white space as one space, and none at either end.
fn characters(text: &str) -> Vec<u64> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut space = false;
    for c in composed(text).chars() {
        if c.is_whitespace() {
            space = !tokens.is_empty();
            continue;
        }
        if space {
            tokens.push(u64::from(u32::from(' ')));
            space = false;
        }
        tokens.push(u64::from(u32::from(lower(c))));
    }
    tokens
}

/// The text in Unicode's normalisation form C.
fn composed(text: &str) -> std::borrow::Cow<'_, str> {
    const NFC: ComposingNormalizerBorrowed<'static> = ComposingNormalizer::new_nfc();
    NFC.normalize(text)
}

/// The word that is being read.
struct Fnv {
    hash: u64,
    is_empty: bool,
}

impl Default for Fnv {
    fn default() -> Self {
        Self { hash: FNV_START, is_empty: true }
    }
}

impl Fnv {
    fn add(&mut self, byte: u8) {
        self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV_FACTOR);
        self.is_empty = false;
    }

    fn end(&mut self, tokens: &mut Vec<u64>) {
        if !self.is_empty {
            tokens.push(mix(self.hash));
            *self = Self::default();
        }
    }
}

/// The finalizer of MurmurHash3 (Austin Appleby): each bit of the input changes half of the bits of the
/// output.
pub(super) fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
