//! Each option of an added token, in a line of text.

use super::*;

fn parts(tokens: Vec<AddedToken>, text: &str, specials: bool) -> Vec<(Option<u32>, &str)> {
    let finder = Finder::new(tokens, str::to_owned).expect("few tokens");
    let mut parts = Vec::new();
    finder.split(text, specials, |part| match part {
        Part::Token(id, range) => parts.push((Some(id), &text[range])),
        Part::Text(range) => parts.push((None, &text[range])),
    });
    parts
}

fn token() -> AddedToken {
    AddedToken::special("<s>", 7)
}

#[test]
fn the_longest_token_at_a_place_is_found() {
    let tokens = vec![token(), AddedToken::special("<s>>", 8), AddedToken::special("s>", 9)];
    assert_eq!(
        parts(tokens, "a<s>>b<s>", true),
        [(None, "a"), (Some(8), "<s>>"), (None, "b"), (Some(7), "<s>")]
    );
}

#[test]
fn special_tokens_can_be_text_and_others_cannot() {
    let tokens = vec![token(), AddedToken { special: false, ..AddedToken::special("<t>", 8) }];
    assert_eq!(parts(tokens, "<s>a<t>", false), [(None, "<s>a"), (Some(8), "<t>")]);
}

#[test]
fn white_space_beside_a_token_belongs_to_it_if_it_strips() {
    let tokens = vec![AddedToken { lstrip: true, rstrip: true, ..token() }];
    let expected = [(None, "a"), (Some(7), " \u{3000}<s>\n "), (Some(7), "<s>"), (None, "b")];
    assert_eq!(parts(tokens, "a \u{3000}<s>\n <s>b", true), expected);
}

#[test]
fn a_single_word_has_no_word_beside_it() {
    let tokens = vec![AddedToken { single_word: true, ..AddedToken::special("ab", 7) }];
    assert_eq!(parts(tokens.clone(), "cab abé_ab", true), [(None, "cab abé_ab")]);
    assert_eq!(parts(tokens, "ab-ab", true), [(Some(7), "ab"), (None, "-"), (Some(7), "ab")]);
}

#[test]
fn without_tokens_the_text_is_one_part_and_without_text_there_is_none() {
    assert_eq!(parts(vec![], "a", true), [(None, "a")]);
    assert_eq!(parts(vec![token()], "", true), []);
}
