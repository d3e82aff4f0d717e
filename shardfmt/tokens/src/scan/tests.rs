//! Words by hand against words by regex, over texts made to reach every alternative.

use fancy_regex::Regex;
use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Ends(Vec<(usize, usize)>);

impl splitter::Words for Ends {
    fn word(&mut self, _: Text<'_>, start: usize, end: usize) {
        self.0.push((start, end));
    }
}

fn by_hand(splitter: &Splitter, text: &str) -> Vec<(usize, usize)> {
    let mut ends = Ends::default();
    splitter.split(text, &mut ends);
    ends.0
}

fn by_regexes(regexes: &[Regex], text: &str, base: usize) -> Vec<(usize, usize)> {
    let Some((regex, rest)) = regexes.split_first() else { return vec![(base, base + text.len())] };
    let (mut pieces, mut done) = (Vec::new(), 0);
    for found in regex.find_iter(text).map(|found| found.expect("no limit is reached")) {
        pieces.extend([(done, found.start()), (found.start(), found.end())]);
        done = found.end();
    }
    pieces.push((done, text.len()));
    pieces.retain(|(start, end)| start < end);
    pieces.into_iter().flat_map(|(start, end)| by_regexes(rest, &text[start..end], base + start)).collect()
}

/// Characters of every class, and those that the patterns name.
fn character() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => prop::sample::select(" \t\r\n'/\u{a0}\u{3000}\u{85}".chars().collect::<Vec<_>>()),
        4 => prop::sample::select("sdmtlvreSDMTLVREſKxX".chars().collect::<Vec<_>>()),
        3 => prop::sample::select("019٣Ⅷ²".chars().collect::<Vec<_>>()),
        3 => prop::sample::select("éÉßǅʰªא字か゠・한\u{301}\u{93e}\u{200d}😀".chars().collect::<Vec<_>>()),
        2 => prop::sample::select("!-_€«.,\0\u{7f}\u{e000}".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let runs = (character(), 1usize..12).prop_map(|(c, length)| c.to_string().repeat(length));
    let pieces = prop_oneof![6 => character().prop_map(String::from), 1 => runs];
    prop::collection::vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn each_pattern_has_the_matches_of_each_of_its_regexes(text in text()) {
        thread_local! {
            static REGEXES: Vec<(Pattern, Regex)> = Pattern::ALL
                .into_iter()
                .flat_map(|pattern| pattern.regexes().iter().map(move |regex| (pattern, regex)))
                .map(|(pattern, regex)| (pattern, Regex::new(regex).expect("valid")))
                .collect();
        }
        REGEXES.with(|regexes| {
            for (pattern, regex) in regexes {
                let expected = by_regexes(std::slice::from_ref(regex), &text, 0);
                prop_assert_eq!(by_hand(&Splitter::of(*pattern), &text), expected, "{:?}", pattern);
            }
            Ok(())
        })?;
    }

    #[test]
    fn steps_by_hand_are_steps_by_regex(text in text()) {
        let regexes = [r"\p{N}{1,3}", "[一-龥\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", Pattern::DeepSeek3.regexes()[0]];
        let stages = regexes[..2].iter().map(|regex| Stage::of_regex(regex).expect("valid")).collect();
        let splitter = Splitter { stages, last: Some(Pattern::DeepSeek3) };
        let slow = Splitter {
            stages: regexes.iter().map(|regex| Stage::Regex(Box::new(Regex::new(regex).expect("valid")))).collect(),
            last: None,
        };
        let regexes: Vec<_> = regexes.iter().map(|regex| Regex::new(regex).expect("valid")).collect();
        let expected = by_regexes(&regexes, &text, 0);
        prop_assert_eq!(&by_hand(&splitter, &text), &expected);
        prop_assert_eq!(&by_hand(&slow, &text), &expected);
    }

    #[test]
    fn eight_letters_are_counted_as_one_by_one(bytes in any::<[u8; 8]>(), letter in 0usize..9) {
        let mut bytes = bytes;
        bytes[..letter].fill(b'q');
        let eight = u64::from_le_bytes(bytes);
        let count = |is: fn(&u8) -> bool| bytes.iter().take_while(|byte| is(byte)).count();
        prop_assert_eq!(ascii_letters(eight), count(u8::is_ascii_alphabetic));
        prop_assert_eq!(ascii_lowers(eight), count(u8::is_ascii_lowercase));
    }
}

#[test]
fn every_character_alone_and_between_letters_is_cut_as_by_the_regex() {
    for pattern in Pattern::ALL {
        let regex = [Regex::new(pattern.regexes()[0]).expect("valid")];
        let splitter = Splitter::of(pattern);
        for c in ('\0'..=char::MAX).filter(|c| u32::from(*c) < 0x3100 || u32::from(*c) % 61 == 0) {
            let text = format!("{c}aB{c}{c} {c}1 \n");
            assert_eq!(by_hand(&splitter, &text), by_regexes(&regex, &text, 0), "{pattern:?} {c:?}");
        }
    }
}

#[test]
fn digits_are_cut_one_by_one_or_together() {
    let split = |individual| {
        by_hand(&Splitter { stages: vec![Stage::Digits { individual }], last: Some(Pattern::Gpt2) }, "a12 3")
    };
    assert_eq!(split(true), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]);
    assert_eq!(split(false), [(0, 1), (1, 3), (3, 4), (4, 5)]);
}
