//! Dates and timestamps in quotes, as ISO 8601 has them.

/// Nanoseconds of a day.
pub(super) const DAY: i128 = 86_400 * 1_000_000_000;

/// A point in time, exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instant {
    /// Nanoseconds since 1970-01-01T00:00:00, in UTC if there was an offset.
    pub(super) nanos: i128,
    /// Whether the text named its distance from UTC.
    pub(super) has_offset: bool,
}

/// Reads `YYYY-MM-DD`, alone or with `[T ]HH:MM[:SS[.fffffffff]]` and then `Z`, `±HH`, `±HHMM` or `±HH:MM`.
/// Days and times that do not exist give `None`.
pub(super) fn parse(text: &str) -> Option<Instant> {
    let mut rest = text.trim();
    let year = number(&mut rest, 4)?;
    let month = after(&mut rest, "-")?;
    let day = after(&mut rest, "-")?;
    let days = days_from_civil(year, month, day)?;
    let mut instant = Instant { nanos: i128::from(days) * DAY, has_offset: false };
    if rest.is_empty() {
        return Some(instant);
    }
    rest = rest.strip_prefix(['T', 't', ' '])?;
    instant.nanos += time(&mut rest)?;
    rest = rest.trim_start();
    if !rest.is_empty() {
        instant.has_offset = true;
        instant.nanos -= offset(&mut rest)?;
    }
    rest.is_empty().then_some(instant)
}

fn time(rest: &mut &str) -> Option<i128> {
    let hour = number(rest, 2).filter(|hour| *hour < 24)?;
    let minute = after(rest, ":").filter(|minute| *minute < 60)?;
    let second = if rest.starts_with(':') { after(rest, ":").filter(|second| *second < 60)? } else { 0 };
    let nanos = if rest.starts_with('.') { fraction(rest)? } else { 0 };
    Some(i128::from((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos)
}

/// Nanoseconds of `.f`, with 1 to 9 digits.
fn fraction(rest: &mut &str) -> Option<i128> {
    *rest = rest.strip_prefix('.')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let missing = 9usize.checked_sub(digits).filter(|_| digits > 0)?;
    let value: i128 = rest.get(..digits)?.parse().ok()?;
    *rest = &rest[digits..];
    Some(value * 10i128.pow(u32::try_from(missing).ok()?))
}

/// Nanoseconds east of UTC.
fn offset(rest: &mut &str) -> Option<i128> {
    if let Some(end) = rest.strip_prefix(['Z', 'z']) {
        *rest = end;
        return Some(0);
    }
    let sign = if rest.starts_with('-') { -1 } else { 1 };
    *rest = rest.strip_prefix(['+', '-'])?;
    let hour = number(rest, 2).filter(|hour| *hour < 24)?;
    *rest = rest.strip_prefix(':').unwrap_or(rest);
    let minute = if rest.is_empty() { 0 } else { number(rest, 2).filter(|minute| *minute < 60)? };
    Some(i128::from(sign * (hour * 60 + minute)) * 60 * 1_000_000_000)
}

/// Exactly `digits` digits.
fn number(rest: &mut &str, digits: usize) -> Option<i64> {
    let head = rest.get(..digits).filter(|head| head.bytes().all(|b| b.is_ascii_digit()))?;
    let value = head.parse().ok()?;
    *rest = &rest[digits..];
    Some(value)
}

fn after(rest: &mut &str, separator: &str) -> Option<i64> {
    *rest = rest.strip_prefix(separator)?;
    number(rest, 2)
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, after `days_from_civil` of Howard Hinnant's
/// "chrono-Compatible Low-Level Date Algorithms". `None` for days that do not exist.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}
