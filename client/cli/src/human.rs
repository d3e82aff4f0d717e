//! Numbers as people like to read them.

use std::time::Duration;

use arrow::temporal_conversions::timestamp_s_to_datetime;
use shardd_api::duration::{BadSpan, Span};

/// `1437` as `1,437`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A fraction as per cent, with one digit after the point, or more where that would say nothing.
pub(crate) fn percent(fraction: f64) -> String {
    let value = fraction * 100.0;
    match value.abs() {
        v if v != 0.0 && v < 0.095 => format!("{value:.3} %"),
        v if v != 0.0 && v < 0.95 => format!("{value:.2} %"),
        _ => format!("{value:.1} %"),
    }
}

/// A number with four digits that matter.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if (1e-3..1e9).contains(&v) => {
            let decimals = (3 - v.log10().floor() as i32).max(0) as usize;
            let text = format!("{value:.decimals$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        }
        _ => format!("{value:.3e}"),
    }
}

/// A duration in the unit that fits.
pub(crate) fn duration(value: Duration) -> String {
    let seconds = value.as_secs_f64();
    match seconds {
        0.0 => "0 s".to_owned(),
        s if s < 0.0095 => format!("{:.1} ms", s * 1e3),
        s if s < 0.95 => format!("{:.0} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
    }
}

/// A moment in seconds since 1970 as `2026-10-01 12:30:00`, in UTC.
pub(crate) fn date(seconds: impl TryInto<i64>) -> String {
    let moment = seconds.try_into().ok().and_then(timestamp_s_to_datetime);
    moment.map_or_else(|| "out of time".to_owned(), |moment| moment.format("%Y-%m-%d %H:%M:%S").to_string())
}

/// `90s`, `30m`, `12h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, BadSpan> {
    text.parse::<Span>().map(|span| span.0)
}

/// `1 node`, `4 nodes`.
pub(crate) fn plural(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// The values as a row of bars from the smallest to the largest.
pub(crate) fn sparkline(values: &[f64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let finite = values.iter().copied().filter(|v| v.is_finite());
    let low = finite.clone().fold(f64::INFINITY, f64::min);
    let high = finite.fold(f64::NEG_INFINITY, f64::max);
    let bar = |value: f64| match value {
        v if !v.is_finite() => '?',
        _ if high <= low => BARS[0],
        v => BARS[(((v - low) / (high - low)) * 7.0).round() as usize],
    };
    values.iter().map(|v| bar(*v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        assert_eq!([0, 7, 999, 1437, 1_000_000].map(count), ["0", "7", "999", "1,437", "1,000,000"]);
    }

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        let shown = [0.0, 4.0, -0.5, 135.0, 1234567.8, 35.583333, 0.012345, 1.7e12, -3e-9].map(number);
        let expected = ["0", "4", "-0.5", "135", "1234568", "35.58", "0.01235", "1.700e12", "-3.000e-9"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn small_shares_keep_their_digits() {
        assert_eq!([0.0, 0.1, 0.009375, 0.0005].map(percent), ["0.0 %", "10.0 %", "0.94 %", "0.050 %"]);
    }

    #[test]
    fn durations_choose_their_unit() {
        let shown = [0.0, 0.0012, 0.25, 12.34, 75.0, 7260.0].map(|s| duration(Duration::from_secs_f64(s)));
        assert_eq!(shown, ["0 s", "1.2 ms", "250 ms", "12.3 s", "1 min 15 s", "2 h 01 min"]);
    }

    #[test]
    fn moments_are_shown_in_utc_whatever_they_are() {
        assert_eq!(date(0_u64), "1970-01-01 00:00:00");
        assert_eq!(date(1_790_000_000_u64), "2026-09-21 14:13:20");
        assert_eq!(date(-1_i64), "1969-12-31 23:59:59");
        assert_eq!(date(u64::MAX), "out of time");
        assert_eq!(date(i64::MAX), "out of time");
    }

    #[test]
    fn sparklines_span_their_values_and_survive_odd_ones() {
        assert_eq!(sparkline(&[2.0, 1.0, 0.0]), "█▅▁");
        assert_eq!(sparkline(&[1.0, 1.0]), "▁▁");
        assert_eq!(sparkline(&[f64::NAN, 1.0, 0.0]), "?█▁");
        assert_eq!(sparkline(&[]), "");
    }
}
