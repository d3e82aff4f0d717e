//! Words for a shell, in commands that answers and reports name.

/// The text as one word of a shell: in quotes where a shell would read it as something else.
///
/// ```
/// # use shardd_api::shell::word;
/// assert_eq!(word("s3://bucket/a-b"), "s3://bucket/a-b");
/// assert_eq!(word("my store"), "'my store'");
/// ```
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word_and_what_it_is() {
        for plain in ["s3://bucket/a-b", "/srv/shardd", "http://node:7070", "a=b,c@e%f+g_h"] {
            assert_eq!(word(plain), plain);
        }
        let quoted = ["/data/my store", "a'b", "", "$HOME", "~", "~root/store", "a;b"].map(word);
        assert_eq!(
            quoted,
            ["'/data/my store'", r"'a'\''b'", "''", "'$HOME'", "'~'", "'~root/store'", "'a;b'"]
        );
    }
}
