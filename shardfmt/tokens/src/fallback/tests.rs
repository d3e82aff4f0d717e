//! Files for the crate `tokenizers` that would end a program, or fill its memory.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::{FileError, Specials, Tokenizer};

fn open(part: &str, value: Value) -> Result<Tokenizer, FileError> {
    let mut file = json!({"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}});
    file[part] = value;
    Tokenizer::from_bytes(file.to_string().as_bytes())
}

/// A normalizer with a table: the bytes of its trie, as the table names them, and those that follow.
fn precompiled(length: u32, rest: &[u8]) -> Value {
    let table = [&length.to_le_bytes()[..], rest].concat();
    json!({"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(table)})
}

#[test]
fn a_table_larger_than_its_file_is_refused() {
    for (length, rest) in [(u32::MAX, &b""[..]), (8, b"abcd"), (5, b"abcd")] {
        let refused = open("normalizer", precompiled(length, rest)).expect_err("cut off").to_string();
        assert!(refused.contains("cut off"), "{refused}");
    }
}

#[test]
fn a_panic_is_an_error() {
    // A trie of one unit that leads outside of it.
    let tokenizer = open("normalizer", precompiled(4, &(200u32 << 10).to_le_bytes())).expect("a table");
    let refused = tokenizer.encode("abc", &mut Vec::new(), Specials::TEXT).expect_err("outside").to_string();
    assert!(refused.contains("panicked"), "{refused}");
}

#[test]
fn steps_that_make_a_text_longer_and_longer_are_refused() {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"});
    let bytes =
        |count| open("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![&bytes; count]}));
    let replace =
        |count| open("normalizer", json!({"type": "Sequence", "normalizers": vec![&replace; count]}));
    assert!(bytes(4).is_ok() && replace(4).is_ok());
    for refused in [bytes(40), replace(12)] {
        let refused = refused.expect_err("bombs").to_string();
        assert!(refused.contains("times longer"), "{refused}");
    }
}
