//! The table against the standard library and against itself.

use super::*;

#[test]
fn the_ascii_table_is_the_large_table() {
    for byte in 0..128u8 {
        assert_eq!(ASCII[usize::from(byte)], Classes::shared().of(byte.into()), "byte {byte}");
    }
    assert!(ASCII[128..].iter().all(|&class| class == 0));
}

#[test]
fn a_space_is_white_space_of_the_standard_library() {
    for c in '\0'..=char::MAX {
        assert_eq!(Classes::shared().of(c.into()) & SPACE != 0, c.is_whitespace(), "{c:?}");
    }
}

#[test]
fn bits_keep_their_promises() {
    for c in '\0'..=char::MAX {
        let class = Classes::shared().of(c.into());
        let letter_or_mark = class & (LETTER | MARK) != 0;
        assert_eq!(letter_or_mark, class & (UPPER | LOWER) != 0, "{c:?}");
        assert!(class & NEWLINE == 0 || class & SPACE != 0, "{c:?}");
        assert!(class & MARK == 0 || class & (UPPER | LOWER) == UPPER | LOWER, "{c:?}");
    }
}

#[test]
fn beyond_unicode_there_is_nothing() {
    assert_eq!(Classes::shared().of(0x11_0000), 0);
    assert_eq!(Classes::shared().of(u32::MAX), 0);
}
