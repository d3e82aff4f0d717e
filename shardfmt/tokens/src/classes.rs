//! Classes of characters: a table over all code points, made once from the data behind the regexes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// `\p{Lu}`, `\p{Lt}`, `\p{Lm}`, `\p{Lo}` or `\p{M}`: may stand in the capital part of a word of o200k.
pub(crate) const UPPER: u8 = 1;
/// `\p{Ll}`, `\p{Lm}`, `\p{Lo}` or `\p{M}`: may stand in the small part of a word of o200k.
pub(crate) const LOWER: u8 = 2;
/// `\p{L}`.
pub(crate) const LETTER: u8 = 4;
/// `\p{N}`.
pub(crate) const NUMBER: u8 = 8;
/// `\s`.
pub(crate) const SPACE: u8 = 16;
/// `[\r\n]`; such a character is a `SPACE`, too.
pub(crate) const NEWLINE: u8 = 32;
/// `\p{P}` or `\p{S}`.
pub(crate) const SYMBOL: u8 = 64;
/// `\p{M}`; such a character is `UPPER` and `LOWER`, too.
pub(crate) const MARK: u8 = 128;

/// The properties behind each bit, as a regex names them.
const PROPERTIES: [(&str, u8); 8] = [
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
    (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
    (r"\p{L}", LETTER),
    (r"\p{N}", NUMBER),
    (r"\s", SPACE),
    (r"[\r\n]", NEWLINE),
    (r"[\p{P}\p{S}]", SYMBOL),
    (r"\p{M}", MARK),
];

const CODE_POINTS: usize = 0x11_0000;
const BLOCK_BITS: u32 = 7;
const BLOCK: usize = 1 << BLOCK_BITS;

/// Classes of the ASCII characters, for loops over bytes. Bytes above have none.
pub(crate) const ASCII: [u8; 256] = ascii();

/// The class of each code point, in two levels: equal blocks of 128 are kept once (about 30 KiB).
#[derive(Debug)]
pub(crate) struct Classes {
    index: Vec<u16>,
    blocks: Vec<u8>,
}

impl Classes {
    /// The one table, made at the first call.
    pub(crate) fn shared() -> &'static Self {
        static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::from_regex_syntax);
        &CLASSES
    }

    /// Bits of the code point `c`; 0 beyond the last one.
    #[inline(always)]
    pub(crate) fn of(&self, c: u32) -> u8 {
        let Some(&block) = self.index.get((c >> BLOCK_BITS) as usize) else { return 0 };
        let at = (usize::from(block) << BLOCK_BITS) | (c as usize & (BLOCK - 1));
        self.blocks.get(at).copied().unwrap_or(0)
    }

    fn from_regex_syntax() -> Self {
        let mut flat = vec![0u8; CODE_POINTS];
        for (property, bit) in PROPERTIES {
            for (first, last) in ranges(property) {
                flat[first as usize..=last as usize].iter_mut().for_each(|class| *class |= bit);
            }
        }
        let mut known: BTreeMap<&[u8], u16> = BTreeMap::new();
        let (mut index, mut blocks) = (Vec::with_capacity(CODE_POINTS / BLOCK), Vec::new());
        for block in flat.chunks_exact(BLOCK) {
            let next = known.len() as u16;
            let number = *known.entry(block).or_insert(next);
            if number == next {
                blocks.extend_from_slice(block);
            }
            index.push(number);
        }
        Self { index, blocks }
    }
}

/// The ranges of code points that the class `property` of a regex has.
fn ranges(property: &str) -> Vec<(u32, u32)> {
    let hir = regex_syntax::parse(property).expect("the properties above are valid");
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|range| (u32::from(range.start()), u32::from(range.end()))).collect()
        }
        other => unreachable!("{property} is a class of characters, not {other:?}"),
    }
}

const fn ascii() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = match byte {
            b'A'..=b'Z' => UPPER | LETTER,
            b'a'..=b'z' => LOWER | LETTER,
            b'0'..=b'9' => NUMBER,
            b'\r' | b'\n' => SPACE | NEWLINE,
            b' ' | b'\t' | 0x0b | 0x0c => SPACE,
            b'!'..=b'/' | b':'..=b'@' | b'['..=b'`' | b'{'..=b'~' => SYMBOL,
            _ => 0,
        };
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests;
