//! Words for a shell, in the commands that mend something.

use std::path::Path;

/// The text as one word of a shell.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The path as one word of a shell.
pub(crate) fn path(path: &Path) -> String {
    word(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word() {
        let words = ["/srv/shardd", "a b", "it's", "", "$HOME"].map(word);
        assert_eq!(words, ["/srv/shardd", "'a b'", "'it'\\''s'", "''", "'$HOME'"]);
    }
}
