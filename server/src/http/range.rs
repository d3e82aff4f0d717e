//! Which bytes a request wants of something that never changes: ranges and conditions (RFC 9110, sections 13 and 14).
//! Pure.

use std::ops::Range;

use axum::http::HeaderMap;
use axum::http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};

/// What to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// 304: the client has it.
    Nothing,
    /// 200.
    Whole,
    /// 206: these bytes.
    Part(Range<u64>),
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

/// A single range of bytes. Other units, several ranges and what cannot be read are ignored, as the standard allows.
fn parse(range: &str, size: u64) -> Wanted {
    let bytes = range.trim().split_once('=').filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
    let Some((first, last)) = bytes.and_then(|(_, range)| range.trim().split_once('-')) else {
        return Wanted::Whole;
    };
    let number = |text: &str| -> Option<u64> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // More than fits is more than there is.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = (first.trim(), last.trim());
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first > last => Wanted::Whole,
        (Some(first), _) if first >= size && (last.is_empty() || number(last).is_some()) => {
            Wanted::Unsatisfiable
        }
        (Some(first), Some(last)) => Wanted::Part(first..last.saturating_add(1).min(size)),
        (Some(first), None) if last.is_empty() => Wanted::Part(first..size),
        (None, Some(0)) if first.is_empty() => Wanted::Unsatisfiable,
        (None, Some(_)) if first.is_empty() && size == 0 => Wanted::Unsatisfiable,
        (None, Some(suffix)) if first.is_empty() => Wanted::Part(size.saturating_sub(suffix)..size),
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        use Wanted::{Part, Unsatisfiable, Whole};
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
            ("bytes=0-1,3-4", Whole),
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

    proptest! {
        #[test]
        fn a_part_is_never_empty_nor_outside(range in "bytes=[0-9]{0,4}-[0-9]{0,4}", size in 0..2000u64) {
            if let Wanted::Part(part) = parse(&range, size) {
                prop_assert!(part.start < part.end && part.end <= size);
            }
        }
    }
}
