//! Ranges of numbers in names, such as `part-{000000..000127}.tar`: as a shell expands them, and as WebDataset writes them.

use std::iter::successors;

/// A range of more numbers is taken for text, and so is one that would make more texts.
const MOST: u64 = 1_000_000;

/// The first range of a text: the text before it, its numbers, and the text after it.
fn split(text: &str) -> Option<(&str, Vec<String>, &str)> {
    text.match_indices('{').find_map(|(open, _)| {
        let (inside, after) = text[open + 1..].split_once('}')?;
        Some((&text[..open], numbers(inside)?, after))
    })
}

/// The numbers of `first..last`, both inclusive. They have as many digits as the longer, if either begins with a zero.
fn numbers(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once("..")?;
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<u64>().ok()).flatten()
    };
    let (from, to) = (number(first)?, number(last)?);
    if to < from || to - from >= MOST {
        return None;
    }
    let is_padded = [first, last].iter().any(|digits| digits.len() > 1 && digits.starts_with('0'));
    let width = if is_padded { first.len().max(last.len()) } else { 0 };
    Some((from..=to).map(|number| format!("{number:0width$}")).collect())
}

/// The text with each range as a choice, `{0..2}` as `{0,1,2}`, which patterns have.
pub(super) fn as_choices(text: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, numbers, after)) = split(rest) {
        done.extend([before, "{", &numbers.join(","), "}"]);
        rest = after;
    }
    done + rest
}

/// All texts that the ranges stand for.
pub(super) fn expand(text: &str) -> Vec<String> {
    let step = |texts: &Vec<String>| {
        let more: Vec<Vec<String>> = texts
            .iter()
            .map(|text| {
                let (before, numbers, after) = split(text)?;
                Some(numbers.iter().map(|number| format!("{before}{number}{after}")).collect())
            })
            .collect::<Option<_>>()?;
        (more.iter().map(Vec::len).sum::<usize>() as u64 <= MOST).then(|| more.concat())
    };
    successors(Some(vec![text.to_owned()]), step).last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_each_of_its_numbers_with_its_zeros() {
        assert_eq!(as_choices("a-{08..11}.tar"), "a-{08,09,10,11}.tar");
        assert_eq!(as_choices("{0..1}/{9..10}-{a,b}"), "{0,1}/{9,10}-{a,b}");
        assert_eq!(expand("x{0..1}/y{2..3}"), ["x0/y2", "x0/y3", "x1/y2", "x1/y3"]);
        assert_eq!(expand("x{7..7}"), ["x7"]);
    }

    #[test]
    fn what_is_no_range_stays() {
        for text in
            ["", "a", "{a,b}", "{1..}", "{..2}", "{3..1}", "{a..c}", "{0..9999999}", "{1..2", "-{+1..2}"]
        {
            assert_eq!(as_choices(text), text);
            assert_eq!(expand(text), [text]);
        }
    }
}
