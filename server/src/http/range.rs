//! Which bytes a request wants of something that never changes: ranges and conditions (RFC 9110, sections 13 and 14).
//! Pure.

use std::ops::Range;

use axum::http::HeaderMap;
use axum::http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};

/// The answer to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// 304: the client has it.
    Nothing,
    /// 200.
    Whole,
    /// 206: these bytes.
    Part(Range<u64>),
    /// 206, in several parts: these bytes, none of them twice.
    Parts(Vec<Range<u64>>),
    /// 416: there are no such bytes.
    Unsatisfiable,
}

/// What `headers` ask of `size` bytes known by the strong tag `etag` (quotes included).
pub(crate) fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> Wanted {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let has_it = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|list| {
        list.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
    });
    if has_it {
        return Wanted::Nothing;
    }
    let Some(range) = text(RANGE) else { return Wanted::Whole };
    if text(IF_RANGE).is_some_and(|condition| condition.trim() != etag) {
        return Wanted::Whole;
    }
    parse(range, size)
}

/// The most ranges that are looked at. A client that wants more gets all.
const MAX_RANGES: usize = 16;

/// Ranges of bytes. Other units, what cannot be read, and many or overlapping ranges are ignored, as the standard allows: an
/// answer never has more bytes of the thing than the thing has.
fn parse(ranges: &str, size: u64) -> Wanted {
    let bytes = ranges.trim().split_once('=').filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
    let Some((_, list)) = bytes else { return Wanted::Whole };
    let mut parts: Vec<Range<u64>> = Vec::new();
    for (count, range) in list.split(',').enumerate() {
        match one(range, size) {
            _ if count >= MAX_RANGES => return Wanted::Whole,
            None => return Wanted::Whole,
            Some(part) if part.is_empty() => {}
            Some(part) if parts.iter().any(|other| part.start < other.end && other.start < part.end) => {
                return Wanted::Whole;
            }
            Some(part) => parts.push(part),
        }
    }
    match parts.len() {
        0 => Wanted::Unsatisfiable,
        1 => Wanted::Part(parts.remove(0)),
        _ => Wanted::Parts(parts),
    }
}

/// A single range: empty if there are no such bytes, `None` if it cannot be read.
fn one(range: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = range.trim().split_once('-')?;
    // A number, or nothing; more than fits is more than there is.
    let number = |text: &str| -> Option<Option<u64>> {
        match text.trim() {
            "" => Some(None),
            text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(Some(text.parse().unwrap_or(u64::MAX)))
            }
            _ => None,
        }
    };
    match (number(first)?, number(last)?) {
        (None, None) => None,
        (Some(first), Some(last)) if first > last => None,
        (Some(first), _) if first >= size => Some(0..0),
        (Some(first), last) => Some(first..last.map_or(size, |last| last.saturating_add(1).min(size))),
        (None, Some(suffix)) => Some(size.saturating_sub(suffix)..size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        use Wanted::{Part, Parts, Unsatisfiable, Whole};
        let table = [
            ("bytes=0-0", Part(0..1)),
            ("bytes=0-99", Part(0..100)),
            ("bytes=10-19", Part(10..20)),
            ("bytes=90-1000", Part(90..100)),
            ("bytes=90-", Part(90..100)),
            ("bytes=-1", Part(99..100)),
            ("bytes=-1000", Part(0..100)),
            ("bytes=0-99999999999999999999", Part(0..100)),
            ("BYTES = 5-6", Part(5..7)),
            ("bytes=100-", Unsatisfiable),
            ("bytes=100-200", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=5-4", Whole),
            ("bytes=0-1,3-4", Parts(vec![0..2, 3..5])),
            ("bytes=50-, 0-0 ,200-", Parts(vec![50..100, 0..1])),
            ("bytes=200-,5-6", Part(5..7)),
            ("bytes=200-,300-", Unsatisfiable),
            ("bytes=0-10,5-20", Whole),
            ("bytes=0-0,0-0", Whole),
            ("bytes=-100,0-", Whole),
            ("bytes=0-1,", Whole),
            ("bytes=0-1,x", Whole),
            ("bytes=a-b", Whole),
            ("bytes=200-x", Whole),
            ("bytes=-", Whole),
            ("bytes=+1-2", Whole),
            ("rows=0-1", Whole),
            ("", Whole),
        ];
        for (range, expected) in table {
            assert_eq!(parse(range, 100), expected, "{range}");
        }
        assert_eq!(parse("bytes=0-", 0), Unsatisfiable);
        assert_eq!(parse("bytes=-5", 0), Unsatisfiable);
    }

    #[test]
    fn conditions_decide_before_ranges() {
        let of = |headers: &[(HeaderName, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
            wanted(&headers.collect(), "\"abc\"", 100)
        };
        assert_eq!(of(&[]), Wanted::Whole);
        assert_eq!(of(&[(IF_NONE_MATCH, "\"abc\"")]), Wanted::Nothing);
        assert_eq!(of(&[(IF_NONE_MATCH, "\"x\", W/\"abc\"")]), Wanted::Nothing);
        assert_eq!(of(&[(IF_NONE_MATCH, "*"), (RANGE, "bytes=0-1")]), Wanted::Nothing);
        assert_eq!(of(&[(IF_NONE_MATCH, "\"x\""), (RANGE, "bytes=0-1")]), Wanted::Part(0..2));
        assert_eq!(of(&[(IF_RANGE, "\"abc\""), (RANGE, "bytes=0-1")]), Wanted::Part(0..2));
        assert_eq!(of(&[(IF_RANGE, "\"x\""), (RANGE, "bytes=0-1")]), Wanted::Whole);
    }

    #[test]
    fn no_list_of_ranges_is_answered_with_more_than_there_is() {
        let many = (0..MAX_RANGES + 1).map(|at| format!("{0}-{0}", at * 2)).collect::<Vec<_>>().join(",");
        assert_eq!(parse(&format!("bytes={many}"), 1000), Wanted::Whole);
    }

    proptest! {
        #[test]
        fn parts_are_never_empty_nor_outside_nor_twice(
            ranges in "bytes=[0-9]{0,4}-[0-9]{0,4}(,[0-9]{0,4}-[0-9]{0,4}){0,20}",
            size in 0..2000u64,
        ) {
            let parts = match parse(&ranges, size) {
                Wanted::Part(part) => vec![part],
                Wanted::Parts(parts) => parts,
                Wanted::Nothing | Wanted::Whole | Wanted::Unsatisfiable => vec![],
            };
            prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= size));
            prop_assert!(parts.iter().map(|part| part.end - part.start).sum::<u64>() <= size);
            prop_assert!(parts.len() <= MAX_RANGES);
        }
    }
}
