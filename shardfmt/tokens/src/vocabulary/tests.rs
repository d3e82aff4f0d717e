//! Tokens are found by id and by bytes.

use super::*;

#[test]
fn a_token_is_found_by_id_and_by_bytes() {
    let tokens: Vec<_> =
        (0..5000u32).map(|id| (id * 3, format!("token {id}").into_bytes(), id % 7 != 0)).collect();
    let vocabulary = Vocabulary::new(&tokens);
    for (id, bytes, reachable) in &tokens {
        assert_eq!(vocabulary.token(*id), Some(&bytes[..]));
        assert_eq!(vocabulary.id(bytes), reachable.then_some(*id));
        assert_eq!(vocabulary.token(id + 1), None);
    }
    assert_eq!(vocabulary.id(b"token"), None);
    assert_eq!(vocabulary.size(), 4999 * 3 + 1);
}

#[test]
fn an_empty_vocabulary_has_nothing() {
    assert_eq!(Vocabulary::default().id(b"a"), None);
    assert_eq!(Vocabulary::new(&[]).id(b"a"), None);
    assert_eq!(Vocabulary::new(&[]).token(0), None);
}
