//! A small tokenizer against ids and offsets of Hugging Face, and the laws of encoding.

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

const SMALL: &str = include_str!("../../testdata/small.json");

#[derive(Deserialize)]
struct Expected {
    text: String,
    ids: Vec<u32>,
    offsets: Vec<(usize, usize)>,
}

fn expected() -> Vec<Expected> {
    serde_json::from_str(include_str!("../../testdata/small.expected.json")).expect("made by make.py")
}

fn small() -> Tokenizer {
    Tokenizer::from_bytes(SMALL.as_bytes()).expect("valid")
}

fn ids(encoder: &mut Encoder, text: &str, specials: Specials) -> Vec<u32> {
    let mut ids = Vec::new();
    encoder.encode(text, &mut ids, specials).expect("short");
    ids
}

fn text() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "The",
        " first",
        "'ll",
        "\n",
        "  ",
        "Größe",
        "<|pad|>",
        "<|end|>",
        "你好",
        "x1",
        "aaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let word = prop_oneof![3 => prop::sample::select(WORDS).prop_map(String::from), 1 => any::<String>()];
    prop::collection::vec(word, 0..20).prop_map(|words| words.concat())
}

#[test]
fn ids_and_offsets_are_those_of_hugging_face() {
    let tokenizer = small();
    assert!(tokenizer.is_native());
    let mut encoder = tokenizer.encoder();
    for Expected { text, ids: expected, offsets: places } in expected() {
        assert_eq!(ids(&mut encoder, &text, Specials::PARSE_AND_TEMPLATE), expected, "{text:?}");
        let (mut ids, mut offsets) = (Vec::new(), Vec::new());
        encoder
            .encode_with_offsets(&text, &mut ids, &mut offsets, Specials::PARSE_AND_TEMPLATE)
            .expect("short");
        assert_eq!(ids, expected, "{text:?}");
        assert_eq!(
            offsets.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>(),
            places,
            "{text:?}"
        );
    }
}

#[test]
fn special_tokens_are_text_unless_they_are_asked_for() {
    let mut encoder = small().encoder();
    let end = encoder.tokenizer().token_to_id("<|end|>").expect("added");
    assert_eq!(ids(&mut encoder, "<|end|>", Specials::PARSE), [end]);
    let text = ids(&mut encoder, "<|end|>", Specials::TEXT);
    assert!(!text.contains(&end) && text.len() > 1);
    let around = ids(&mut encoder, "", Specials::TEMPLATE);
    assert_eq!(encoder.tokenizer().decode(&around).expect("known"), b"<|begin|><|end|>");
    assert_eq!(encoder.tokenizer().id_to_token(end).as_deref(), Some(&b"<|end|>"[..]));
    assert_eq!(encoder.tokenizer().vocabulary_size(), 1003);
}

#[test]
fn a_tokenizer_and_an_encoder_go_to_other_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Tokenizer>();
    is_shared::<Encoder>();
}

#[test]
fn a_file_that_is_none_is_refused_with_the_reason() {
    for (bytes, part) in [
        (&b"{"[..], "not valid"),
        (b"{\"model\": {}", "not valid"),
        (b"\xff", "line 1"),
        (b"{\xff}", "UTF-8"),
    ] {
        let refused = Tokenizer::from_bytes(bytes).expect_err(part).to_string();
        assert!(refused.contains(part), "{refused}");
    }
    let refused = Tokenizer::from_file("no/such/file").expect_err("absent").to_string();
    assert!(refused.contains("no/such/file"), "{refused}");
}

proptest! {
    #[test]
    fn what_was_encoded_before_changes_no_result(texts in prop::collection::vec(text(), 1..20)) {
        let tokenizer = small();
        let mut used = tokenizer.encoder();
        for text in texts {
            let (mut fresh, mut with_offsets, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
            tokenizer.encode(&text, &mut fresh, Specials::PARSE).expect("short");
            prop_assert_eq!(&ids(&mut used, &text, Specials::PARSE), &fresh);
            prop_assert_eq!(used.count(&text, Specials::PARSE).expect("short"), fresh.len());
            tokenizer.encode_with_offsets(&text, &mut with_offsets, &mut offsets, Specials::PARSE).expect("short");
            prop_assert_eq!(&with_offsets, &fresh);
            prop_assert_eq!(offsets.len(), fresh.len());
        }
    }

    #[test]
    fn decoding_gives_the_text_back(text in text()) {
        let tokenizer = small();
        let plain = text.replace("<|pad|>", "");
        let ids = ids(&mut tokenizer.encoder(), &plain, Specials::PARSE);
        prop_assert_eq!(tokenizer.decode(&ids).expect("known"), plain.as_bytes());
    }

    #[test]
    fn damaged_files_are_refused_or_read_but_never_stop_the_program(at in 0usize..SMALL.len(), byte in any::<u8>()) {
        let mut bytes = SMALL.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(tokenizer) = Tokenizer::from_bytes(&bytes) {
            let mut ids = Vec::new();
            let _ = tokenizer.encode("The first line <|end|> 你好", &mut ids, Specials::PARSE_AND_TEMPLATE);
        }
    }
}
