//! Rank files: reading, refusing, and encodings by name.

use super::*;
use crate::{Specials, Tokenizer};

/// The 256 bytes, then `more`.
fn file(more: &[&[u8]]) -> String {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    let tokens = bytes.chain(more.iter().map(|token| token.to_vec()));
    tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
}

fn ranks() -> Ranks {
    Ranks { special_tokens: vec![AddedToken::special("<|end|>", 400)], ..Encoding::Cl100kBase.into() }
}

fn ids(tokenizer: &Tokenizer, text: &str, specials: Specials) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, &mut ids, specials).expect("short");
    ids
}

#[test]
fn the_lowest_rank_merges_first_and_a_whole_word_needs_no_merges() {
    let tokenizer =
        Tokenizer::from_ranks(file(&[b"bc", b"ab", b"xyz"]).as_bytes(), ranks()).expect("complete");
    assert_eq!(ids(&tokenizer, "abc", Specials::TEXT), [97, 256]);
    assert_eq!(ids(&tokenizer, "xyz", Specials::TEXT), [258]);
    assert_eq!(ids(&tokenizer, "xyzab", Specials::TEXT), [120, 121, 122, 257]);
    assert_eq!(ids(&tokenizer, "<|end|>", Specials::PARSE), [400]);
    assert_eq!(tokenizer.decode(&[400, 258]).expect("known"), b"<|end|>xyz");
    assert_eq!(tokenizer.vocabulary_size(), 401);
    assert_eq!((tokenizer.token_to_id("xyz"), tokenizer.token_to_id("<|end|>")), (Some(258), Some(400)));
    assert!(matches!(tokenizer.decode(&[97, 300]), Err(crate::DecodeError::Token { id: 300, place: 1, .. })));
}

#[test]
fn a_token_is_made_of_any_two_others() {
    let whole = |tokens: &[&[u8]]| {
        let tokenizer = Tokenizer::from_ranks(file(tokens).as_bytes(), ranks()).expect("complete");
        ids(&tokenizer, "abcx", Specials::TEXT)
    };
    assert_eq!(whole(&[b"bc", b"ab", b"abc"]), [258, 120]);
    assert_eq!(whole(&[b"ab", b"bc", b"abc"]), [258, 120]);
}

#[test]
fn a_token_of_a_megabyte_does_not_take_the_square_of_its_length() {
    let long = b"ab".repeat(1 << 19);
    let tokenizer = Tokenizer::from_ranks(file(&[b"ab", &long]).as_bytes(), ranks()).expect("complete");
    assert_eq!(ids(&tokenizer, "abab", Specials::TEXT), [256, 256]);
}

#[test]
fn a_file_of_no_known_encoding_asks_for_one() {
    let refused = Tokenizer::from_bytes(file(&[b"ab"]).as_bytes()).expect_err("257 tokens");
    assert!(
        refused.to_string().contains("257 tokens") && refused.to_string().contains("cl100k_base"),
        "{refused}"
    );
}

#[test]
fn a_file_that_is_none_names_the_line() {
    let whole = file(&[]);
    for (bytes, part) in [
        ("", "empty"),
        ("YQ== 0\n*** 1\n", "line 2"),
        ("YQ==\n", "line 1"),
        ("YQ== 0\nYg== 0\n", "rank 0 is there twice"),
        ("YQ== 99999999\n", "line 1"),
        (whole.split_once('\n').expect("256 lines").1, "byte 0x00"),
    ] {
        let refused = Tokenizer::from_ranks(bytes.as_bytes(), ranks()).expect_err(part).to_string();
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn each_encoding_has_a_name_and_special_tokens_with_ids_of_their_own() {
    for (encoding, name, _) in KNOWN {
        assert_eq!(name.parse(), Ok(encoding));
        assert_eq!(encoding.to_string(), name);
        let ranks = Ranks::from(encoding);
        assert!(!ranks.special_tokens.is_empty());
        let mut contents: Vec<_> = ranks.special_tokens.iter().map(|token| &token.content).collect();
        contents.sort_unstable();
        contents.dedup();
        assert_eq!(contents.len(), ranks.special_tokens.len());
    }
    assert_eq!("gpt2".parse(), Ok(Encoding::R50kBase));
    assert!("gpt5".parse::<Encoding>().expect_err("unknown").to_string().contains("o200k_base"));
    let llama = Ranks::from(Encoding::Llama3).special_tokens;
    assert_eq!(llama.len(), 256);
    assert_eq!(llama[255], AddedToken::special("<|reserved_special_token_247|>", 128_255));
}
