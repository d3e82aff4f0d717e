//! The time of `strftime_now`, and its format.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// A text is no time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no time: write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS")]
pub struct DateError(String);

/// A date and a time without a zone, of the years 1 to 9999.
///
/// ```
/// let now: shardd_packing::chat::Now = "2026-07-26T09:05:00".parse()?;
/// assert_eq!(now.format("%d %b %Y"), Ok("26 Jul 2026".to_owned()));
/// # Ok::<(), shardd_packing::chat::DateError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Now {
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

impl Now {
    /// The time in a format of C's `strftime`, in English and without a zone.
    ///
    /// # Errors
    /// The directive, such as `%Q`, if it is unknown.
    pub fn format(&self, format: &str) -> Result<String, String> {
        let mut text = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            let mut directive = rest.next();
            // glibc's sign for numbers without padding.
            let bare = directive == Some('-');
            if bare {
                directive = rest.next();
            }
            let unknown = || {
                format!("%{}{}", if bare { "-" } else { "" }, directive.map(String::from).unwrap_or_default())
            };
            let part = directive.and_then(|directive| self.directive(directive)).ok_or_else(unknown)?;
            text.push_str(if bare { without_padding(&part) } else { &part });
        }
        Ok(text)
    }

    fn directive(&self, directive: char) -> Option<String> {
        let day_name = DAYS[self.weekday() as usize];
        let month_name = MONTHS[self.month as usize - 1];
        let hour = (self.hour + 11) % 12 + 1;
        let half = if self.hour < 12 { "AM" } else { "PM" };
        let (iso_year, iso_week) = self.iso_week();
        Some(match directive {
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'a' => day_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'B' => month_name.to_owned(),
            'c' => format!(
                "{} {} {:2} {} {}",
                &day_name[..3],
                &month_name[..3],
                self.day,
                self.clock(),
                self.year
            ),
            'C' => format!("{:02}", self.year / 100),
            'd' => format!("{:02}", self.day),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'e' => format!("{:2}", self.day),
            'f' => "000000".to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'g' => format!("{:02}", iso_year % 100),
            'G' => iso_year.to_string(),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour:02}"),
            'j' => format!("{:03}", self.day_of_year()),
            'k' => format!("{:2}", self.hour),
            'l' => format!("{hour:2}"),
            'm' => format!("{:02}", self.month),
            'M' => format!("{:02}", self.minute),
            'p' => half.to_owned(),
            'P' => half.to_lowercase(),
            'r' => format!("{hour:02}:{:02}:{:02} {half}", self.minute, self.second),
            'R' => format!("{:02}:{:02}", self.hour, self.minute),
            'S' => format!("{:02}", self.second),
            'T' | 'X' => self.clock(),
            'u' => ((self.weekday() + 6) % 7 + 1).to_string(),
            'U' => format!("{:02}", (self.day_of_year() + 6 - self.weekday()) / 7),
            'V' => format!("{iso_week:02}"),
            'w' => self.weekday().to_string(),
            'W' => format!("{:02}", (self.day_of_year() + 6 - (self.weekday() + 6) % 7) / 7),
            'y' => format!("{:02}", self.year % 100),
            'Y' => self.year.to_string(),
            'z' | 'Z' => String::new(),
            _ => return None,
        })
    }

    fn clock(&self) -> String {
        format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }

    /// From 1.
    fn day_of_year(&self) -> u32 {
        (1..self.month).map(|month| month_days(self.year, month)).sum::<u32>() + self.day
    }

    /// Days since Sunday.
    fn weekday(&self) -> u32 {
        let years = self.year - 1;
        // The first of January of the year 1 was a Monday.
        (years * 365 + years / 4 - years / 100 + years / 400 + self.day_of_year()) % 7
    }

    /// The year and the number of the week of ISO 8601.
    fn iso_week(&self) -> (u32, u32) {
        let monday_based = (self.weekday() + 6) % 7;
        let week = (self.day_of_year() + 9 - monday_based) / 7;
        if week == 0 {
            return (self.year - 1, iso_weeks(self.year - 1));
        }
        if week > iso_weeks(self.year) { (self.year + 1, 1) } else { (self.year, week) }
    }
}

/// Weeks of a year by ISO 8601: 53 if it ends on a Thursday, or on a Friday as a leap year.
fn iso_weeks(year: u32) -> u32 {
    let end = |year: u32| (year + year / 4 + year / 400).wrapping_sub(year / 100) % 7;
    if end(year) == 4 || (year > 0 && end(year - 1) == 3) { 53 } else { 52 }
}

fn month_days(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => 31,
    }
}

/// A number without leading zeros and spaces; any other text as it is.
fn without_padding(part: &str) -> &str {
    let number = part.trim_start();
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let bare = number.trim_start_matches('0');
    match (is_number, bare.is_empty()) {
        (false, _) => part,
        (true, true) => "0",
        (true, false) => bare,
    }
}

impl FromStr for Now {
    type Err = DateError;

    fn from_str(text: &str) -> Result<Self, DateError> {
        let refusal = || DateError(text.to_owned());
        let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
        let [year, month, day] = numbers(date, '-').ok_or_else(refusal)?;
        let [hour, minute, second] = numbers(clock, ':').ok_or_else(refusal)?;
        let exists = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=month_days(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if exists { Ok(Self { year, month, day, hour, minute, second }) } else { Err(refusal()) }
    }
}

fn numbers(text: &str, separator: char) -> Option<[u32; 3]> {
    let mut parts = text.split(separator);
    let mut number = || {
        let part = parts.next()?;
        (part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| part.parse().ok())
            .flatten()
    };
    let numbers = [number()?, number()?, number()?];
    parts.next().is_none().then_some(numbers)
}

impl fmt::Display for Now {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04}-{:02}-{:02}T{}", self.year, self.month, self.day, self.clock())
    }
}

impl TryFrom<String> for Now {
    type Error = DateError;

    fn try_from(text: String) -> Result<Self, DateError> {
        text.parse()
    }
}

impl From<Now> for String {
    fn from(now: Now) -> Self {
        now.to_string()
    }
}

#[cfg(test)]
mod tests;
