//! Tokenizers: a byte that chooses how rank files are used, a `tokenizer.json` or a rank file, a byte that no UTF-8 has,
//! and a text.

use std::ops::Range;

use shardd_tokens::{AddedToken, Encoder, Pattern, Ranks, Specials, Tokenizer};

/// Bytes of the longest text that is encoded here.
const MOST_TEXT: usize = 256;

/// The one special token of rank files; they have no such id.
const SPECIAL: (&str, u32) = ("<|end|>", u32::MAX - 1);

/// A tokenizer gives the same tokens to a text each time, whatever was encoded before. They are within the text, and those
/// of the own path become the text again.
pub(crate) fn tokenizer(data: &[u8]) -> bool {
    let [choice, data @ ..] = data else { return false };
    let mut parts = data.splitn(2, |&byte| byte == 0xff);
    let (file, text) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let text = String::from_utf8_lossy(&text[..text.len().min(MOST_TEXT)]);
    let is_json = file.trim_ascii_start().starts_with(b"{");
    let opened =
        if is_json { Tokenizer::from_bytes(file) } else { Tokenizer::from_ranks(file, ranks(*choice)) };
    let Ok(tokenizer) = opened else { return false };

    let mut used = tokenizer.encoder();
    let mut complete = true;
    for specials in [Specials::TEXT, Specials::PARSE_AND_TEMPLATE, Specials::PARSE, Specials::TEXT] {
        let Some(ids) = encoded(&tokenizer, &mut used, &text, specials) else {
            complete = false;
            continue;
        };
        if !is_json {
            assert_eq!(tokenizer.decode(&ids).expect("its own tokens"), text.as_bytes());
        } else if tokenizer.is_native() && !specials.template {
            let bytes = tokenizer.decode(&ids).expect("its own tokens");
            // Added tokens may take blanks along, or have the id of another one; a normalizer changes the text.
            let is_plain = [&b"added_tokens"[..], b"normalizer"].iter().all(|part| !contains(file, part));
            assert!(!is_plain || bytes == text.as_bytes());
        } else {
            let _ = tokenizer.decode(&ids);
        }
    }
    complete
}

/// The tokens of a text, after all ways to get them were compared.
fn encoded(tokenizer: &Tokenizer, used: &mut Encoder, text: &str, specials: Specials) -> Option<Vec<u32>> {
    let mut ids = Vec::new();
    let encoded = tokenizer.encode(text, &mut ids, specials);
    let (mut again, mut with_offsets, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let repeated = used.encode(text, &mut again, specials);
    let counted = used.count(text, specials);
    let placed = used.encode_with_offsets(text, &mut with_offsets, &mut offsets, specials);
    if encoded.is_err() {
        assert!(repeated.is_err() && counted.is_err());
        return None;
    }
    repeated.expect("as before");
    placed.expect("as before");
    assert_eq!(again, ids);
    assert_eq!(counted.expect("as before"), ids.len());
    assert_eq!(with_offsets, ids);
    assert_eq!(offsets.len(), ids.len());
    if tokenizer.is_native() {
        let is_inside = |range: &Range<usize>| text.get(range.clone()).is_some();
        assert!(offsets.iter().all(is_inside), "{offsets:?} of {} bytes", text.len());
    }
    for &id in ids.iter().filter(|_| tokenizer.is_native() && !specials.template) {
        assert!((id as usize) < tokenizer.vocabulary_size());
        assert!(tokenizer.id_to_token(id).is_some());
    }
    Some(ids)
}

/// Each pattern in turn.
fn ranks(choice: u8) -> Ranks {
    let (content, id) = SPECIAL;
    Ranks {
        pattern: Pattern::ALL[usize::from(choice) % Pattern::ALL.len()],
        compose: false,
        special_tokens: vec![AddedToken::special(content, id)],
        begin: None,
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
