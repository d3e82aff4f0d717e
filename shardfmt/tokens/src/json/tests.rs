//! Files in many forms: ids and offsets of the own path against those of the crate `tokenizers`, in one process.

use serde_json::json;

use super::*;
use crate::Tokenizer;

fn small() -> Value {
    serde_json::from_str(include_str!("../../testdata/small.json")).expect("made by make.py")
}

fn open(file: &Value) -> Tokenizer {
    Tokenizer::from_bytes(file.to_string().as_bytes()).expect("valid")
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// Files that the own path carries out, each with another part that differs from `small.json`.
fn native() -> Vec<(&'static str, Value)> {
    let with = |key: &str, value: Value| {
        let mut file = small();
        file[key] = value;
        file
    };
    let mut ignoring = small();
    ignoring["model"]["ignore_merges"] = true.into();
    // The token of a whole word that no merges make, in the place of the last one that they do.
    let merges = ignoring["model"]["merges"].as_array_mut().expect("a list");
    let last = merges.pop().expect("a merge");
    let vocab = ignoring["model"]["vocab"].as_object_mut().expect("a map");
    vocab.remove(&[&last[0], &last[1]].map(|part| part.as_str().expect("a token")).concat());
    vocab.insert("Ġzqzq".into(), 999.into());
    let mut unusual = small();
    for (number, id) in (1000..1003).enumerate() {
        let token = &mut unusual["added_tokens"][number];
        assert_eq!(token["id"], id);
        token["content"] = ["caf\u{65}\u{301}", " é ", "line,"][number].into();
        token["normalized"] = (number < 2).into();
        token["single_word"] = (number == 2).into();
        token["special"] = (number == 0).into();
    }
    unusual["normalizer"] = json!({"type": "NFC"});
    let mut merges = small();
    for pair in merges["model"]["merges"].as_array_mut().expect("a list") {
        *pair =
            format!("{} {}", pair[0].as_str().expect("a token"), pair[1].as_str().expect("a token")).into();
    }
    let digits = json!({"type": "Digits", "individual_digits": true});
    vec![
        ("small", small()),
        ("composed", with("normalizer", json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]}))),
        ("whole words", ignoring),
        ("added tokens", unusual),
        ("merges as strings", merges),
        ("gpt2", with("pre_tokenizer", byte_level(true))),
        ("digits", with("pre_tokenizer", sequence(vec![digits, byte_level(true)]))),
        ("unknown regex", with("pre_tokenizer", sequence(vec![split("[aeiou]|(?<=T)h"), byte_level(false)]))),
        (
            "regex, then gpt2",
            with("pre_tokenizer", sequence(vec![split(r"\p{N}"), split("line"), byte_level(true)])),
        ),
        ("no trimming", with("post_processor", Value::Null)),
        (
            "trimming all",
            with(
                "post_processor",
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}),
            ),
        ),
    ]
}

#[test]
fn files_in_a_form_of_their_own_stay_native() {
    for (name, file) in native() {
        assert_eq!(open(&file).fallback_reason(), None, "{name}");
    }
}

#[cfg(feature = "fallback")]
mod against_tokenizers {
    use proptest::prelude::*;

    use super::*;
    use crate::Specials;

    /// A name, our tokenizer, theirs, and theirs with special tokens as text.
    type Compared = (&'static str, Tokenizer, tokenizers::Tokenizer, tokenizers::Tokenizer);

    fn pairs() -> &'static [Compared] {
        static PAIRS: std::sync::LazyLock<Vec<Compared>> = std::sync::LazyLock::new(|| {
            let both = |(name, file): (_, Value)| {
                let bytes = file.to_string();
                let theirs = tokenizers::Tokenizer::from_bytes(bytes.as_bytes()).expect("valid");
                let mut literal = theirs.clone();
                literal.set_encode_special_tokens(true);
                (name, open(&file), theirs, literal)
            };
            native().into_iter().map(both).collect()
        });
        &PAIRS
    }

    fn text() -> impl Strategy<Value = String> {
        const WORDS: &[&str] = &[
            "The",
            " first",
            " zqzq",
            "'ll",
            "\n",
            "  ",
            " \u{3000}",
            "Größe",
            "<|pad|>",
            "<|end|>",
            "你好",
            "e\u{301}",
            "é",
            "caf\u{65}\u{301}",
            "a\u{323}\u{301}",
            "\u{958}",
            "\u{1100}\u{1161}\u{11a8}",
            "x1",
            "line",
            "\u{301}",
        ];
        let word = prop_oneof![5 => prop::sample::select(WORDS).prop_map(String::from), 1 => any::<String>()];
        prop::collection::vec(word, 0..16).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn ids_and_offsets_are_equal(text in text()) {
            for (name, ours, theirs, literal) in pairs() {
                let expected = theirs.encode(&text[..], true).expect("valid");
                let (mut ids, mut offsets) = (Vec::new(), Vec::new());
                ours.encode_with_offsets(&text, &mut ids, &mut offsets, Specials::PARSE_AND_TEMPLATE).expect("short");
                prop_assert_eq!(&ids, expected.get_ids(), "{}", name);
                let offsets: Vec<_> = offsets.into_iter().map(|range| (range.start, range.end)).collect();
                prop_assert_eq!(&offsets, expected.get_offsets(), "{}", name);

                let expected = literal.encode(&text[..], false).expect("valid");
                ids.clear();
                ours.encode(&text, &mut ids, Specials::TEXT).expect("short");
                prop_assert_eq!(&ids, expected.get_ids(), "{}", name);
            }
        }
    }

    #[test]
    fn other_files_fall_back_with_a_reason_and_the_same_ids() {
        for (part, value, reason) in foreign() {
            let mut file = small();
            file[part] = value;
            let tokenizer = open(&file);
            let given = tokenizer.fallback_reason().expect(reason);
            assert!(given.contains(reason), "{given}");
            let theirs = tokenizers::Tokenizer::from_bytes(file.to_string().as_bytes()).expect("valid");
            let expected = theirs.encode("The first <|end|> line", true).expect("valid");
            let (mut ids, mut offsets) = (Vec::new(), Vec::new());
            let specials = Specials::PARSE_AND_TEMPLATE;
            tokenizer
                .encode_with_offsets("The first <|end|> line", &mut ids, &mut offsets, specials)
                .expect("short");
            assert_eq!(ids, expected.get_ids());
            assert_eq!(tokenizer.count("The first <|end|> line", specials).expect("short"), ids.len());
            assert!(tokenizer.decode(&[u32::MAX]).is_err());
            assert_eq!(tokenizer.vocabulary_size(), 1003);
        }
    }
}

/// Parts that the own path does not know, and a part of the reason that it gives.
#[cfg(feature = "fallback")]
fn foreign() -> Vec<(&'static str, Value, &'static str)> {
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let prefixed =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    vec![
        ("normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("pre_tokenizer", metaspace, "Metaspace"),
        ("pre_tokenizer", prefixed, "a space before"),
        ("pre_tokenizer", Value::Null, "no pre-tokenizer"),
        ("decoder", Value::Null, "decoder"),
        (
            "post_processor",
            json!({"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2], "trim_offsets": true, "add_prefix_space": true}),
            "RobertaProcessing",
        ),
    ]
}

#[test]
fn a_merge_of_unknown_tokens_is_refused_by_name() {
    let mut file = small();
    file["model"]["merges"][3] = json!(["zq", "zq"]);
    let refused = Tokenizer::from_bytes(file.to_string().as_bytes()).expect_err("unknown").to_string();
    assert!(refused.contains("merge 3") && refused.contains("zq"), "{refused}");
}
