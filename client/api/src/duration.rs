//! The time in seconds, and lengths of it as people write them: `90s`, `30m`, `12h`, `30d`.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::serde_str::as_text;

/// The time, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A length of time in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

/// A text that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a number and s, m, h or d, such as 30m")]
pub struct BadSpan;

const UNITS: [(u64, char); 4] = [(24 * 3600, 'd'), (3600, 'h'), (60, 'm'), (1, 's')];

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Span, BadSpan> {
        let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(BadSpan)?;
        let (seconds, _) = UNITS.iter().find(|(_, name)| unit == name.to_string()).ok_or(BadSpan)?;
        if !number.bytes().all(|c| c.is_ascii_digit()) {
            return Err(BadSpan);
        }
        let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*seconds));
        seconds.map(|seconds| Span(Duration::from_secs(seconds))).ok_or(BadSpan)
    }
}

impl fmt::Display for Span {
    /// In the largest unit that leaves nothing out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let fits = |(unit, _): &&(u64, char)| seconds.is_multiple_of(*unit) && seconds > 0;
        let (unit, name) = UNITS.iter().find(fits).unwrap_or(&(1, 's'));
        write!(f, "{}{name}", seconds / unit)
    }
}

as_text!(Span);

/// The unit that fits a length of time, in seconds, and its name.
#[must_use]
pub fn unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s < 120.0 => (1.0, "s"),
        s if s < 7200.0 => (60.0, "min"),
        s if s < 172_800.0 => (3600.0, "h"),
        _ => (86_400.0, "days"),
    }
}

/// A length of time as a number of units; `None` if it is none, or too long to be of use.
#[must_use]
pub fn amount(seconds: f64, unit: f64) -> Option<String> {
    let amount = seconds / unit;
    (amount.is_finite() && (0.0..1e6).contains(&amount)).then(|| format!("{amount:.0}"))
}

/// A length of time in the unit that fits it, such as `18 min`.
#[must_use]
pub fn about(seconds: f64) -> String {
    let (unit, name) = unit(seconds);
    amount(seconds, unit).map_or_else(|| "?".to_owned(), |amount| format!("{amount} {name}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_have_a_unit() {
        let hours = |hours: u64| Ok(Span(Duration::from_secs(hours * 3600)));
        assert_eq!(["0s", "3600s", "60m", "2h", "1d"].map(str::parse), [0, 1, 1, 2, 24].map(hours));
        let odd = [
            "",
            "1",
            "h",
            "1.5h",
            "-1h",
            "+1h",
            "1w",
            "1h30m",
            "1é",
            "99999999999999999999s",
            "999999999999999999d",
        ];
        for odd in odd {
            assert_eq!(odd.parse::<Span>(), Err(BadSpan), "{odd}");
        }
    }

    #[test]
    fn a_length_of_time_has_the_unit_that_fits() {
        assert_eq!(
            [0.0, 119.0, 120.0, 7200.0, 2e5, f64::NAN, 1e300].map(about),
            ["0 s", "119 s", "2 min", "2 h", "2 days", "?", "?"]
        );
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(seconds in any::<u64>()) {
            let span = Span(Duration::from_secs(seconds));
            prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
    }
}
