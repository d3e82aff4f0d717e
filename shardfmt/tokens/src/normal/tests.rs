//! Composition in stretches against composition of the whole text.

use proptest::prelude::*;

use super::*;

fn character() -> impl Strategy<Value = char> {
    prop_oneof![
        3 => prop::sample::select("aeoAé \n語한".chars().collect::<Vec<_>>()),
        3 => prop::sample::select("\u{301}\u{323}\u{308}\u{327}\u{345}\u{334}".chars().collect::<Vec<_>>()),
        2 => prop::sample::select("\u{1100}\u{1161}\u{11a8}가\u{9c7}\u{9be}\u{958}\u{2126}\u{f73}".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn stretches_compose_as_the_whole(text in prop::collection::vec(character(), 0..30)) {
        let text: String = text.into_iter().collect();
        let whole: String = text.nfc().map(|(c, _)| c).collect();
        prop_assert_eq!(composed(&text), &whole[..]);
        if let Some(composed) = compose(&text, true) {
            prop_assert_eq!(composed.origins.len(), whole.len());
            for origin in composed.origins {
                prop_assert!(text.get(origin).is_some());
            }
        }
    }
}

#[test]
fn closed_ranges_agree_with_the_tables() {
    for c in '\0'..=char::MAX {
        let by_tables =
            canonical_combining_class(c) == 0 && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
        assert_eq!(is_closed(c), by_tables, "{c:?}");
    }
}

#[test]
fn text_in_form_c_stays_where_it_is() {
    assert!(compose("Grüße, Привет, 日本語, 한국어", true).is_none());
}
