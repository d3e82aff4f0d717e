//! Texts of other programs, made safe for a terminal: no control character reaches it, and nothing that reorders a line.

/// The most characters that are kept of a text.
const MOST: usize = 2000;

/// The text with a replacement for each character that could steer a terminal or hide others, and cut if it is very long.
pub(crate) fn plain(text: &str) -> String {
    let mut kept: String = text.chars().take(MOST).map(shown).collect();
    if text.chars().nth(MOST).is_some() {
        kept.push('…');
    }
    kept
}

fn shown(c: char) -> char {
    match c {
        '\t' | '\n' | '\r' => ' ',
        c if c.is_control() || is_invisible(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Characters without a shape that change how others look: marks of direction, joiners, separators, tags.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        assert_eq!(plain("a\u{1b}[2Jb\u{9b}c\nd\te"), "a\u{fffd}[2Jb\u{fffd}c d e");
        assert_eq!(plain("abc\u{202e}gnp.exe"), "abc\u{fffd}gnp.exe");
        assert_eq!(plain("größer 猫 ▁"), "größer 猫 ▁");
        assert_eq!(plain(&"x".repeat(MOST + 1)).chars().count(), MOST + 1);
    }

    proptest! {
        #[test]
        fn no_text_keeps_a_control_character(text in any::<String>()) {
            prop_assert!(!plain(&text).contains(|c: char| c.is_control() || is_invisible(c)));
        }
    }
}
