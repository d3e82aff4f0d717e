//! Numbers of a cluster in words that fit a column.

use std::collections::BTreeMap;

use shardd_api::duration::{about, amount, unit};
use shardd_api::loop_time::Stage;
use shardd_api::machine::Forecast;

use crate::human::{count, date};

/// A part of a whole, from 0 to 1, as per cent.
pub(super) fn share(share: f64) -> String {
    match share {
        share if !share.is_finite() => "?".to_owned(),
        share if share > 0.0 && share < 0.01 => "<1 %".to_owned(),
        share => format!("{:.0} %", 100.0 * share),
    }
}

/// A part of a whole; 0 of nothing.
pub(super) fn part(of: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { of as f64 / whole as f64 }
}

/// A rate as a number of a second.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        rate if !rate.is_finite() || rate < 0.0 => "?".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{}/s", count(rate as u64)),
    }
}

/// The earliest and the latest moment, in the unit of the latter: `15-22 min`.
pub(super) fn range(forecast: &Forecast) -> String {
    let (unit, name) = unit(forecast.latest_s);
    match (amount(forecast.earliest_s, unit), amount(forecast.latest_s, unit)) {
        (Some(earliest), Some(latest)) if earliest == latest => format!("{latest} {name}"),
        (Some(earliest), Some(latest)) => format!("{earliest}-{latest} {name}"),
        (Some(earliest), None) => format!(">{earliest} {name}"),
        (None, _) => "?".to_owned(),
    }
}

/// A moment with its range: `18 min (15-22 min)`.
pub(super) fn forecast(forecast: &Forecast) -> String {
    match (about(forecast.in_s), range(forecast)) {
        (likely, range) if likely == range => likely,
        (likely, range) => format!("{likely} ({range})"),
    }
}

/// The time of day in UTC: `14:02:11`.
pub(super) fn time(seconds: u64) -> String {
    date(seconds).get(11..19).unwrap_or("?").to_owned()
}

/// A bar that is full by a part.
pub(super) fn bar(part: f64, width: usize) -> String {
    let full = (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(width - full)
}

/// The letter of a stage in a bar.
pub(super) fn letter(stage: Stage) -> char {
    match stage {
        Stage::Network => 'n',
        Stage::Disk => 'd',
        Stage::Decode => 'c',
        Stage::Transform => 't',
        Stage::Python => 'p',
    }
}

/// The time of a loop as a bar of `width` letters: of the stages that it waits for, and a point for its own work.
pub(super) fn stages(shares: &BTreeMap<Stage, f64>, width: usize) -> String {
    let (mut bar, mut sum) = (String::new(), 0.0);
    for stage in Stage::ALL {
        sum += shares.get(&stage).copied().filter(|share| *share > 0.0).unwrap_or(0.0);
        let end = (sum.min(1.0) * width as f64).round() as usize;
        while bar.chars().count() < end {
            bar.push(letter(stage));
        }
    }
    let rest = width - bar.chars().count();
    bar + &"·".repeat(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_their_columns() {
        assert_eq!([0.0, 0.004, 0.41, 1.0, f64::NAN].map(share), ["0 %", "<1 %", "41 %", "100 %", "?"]);
        assert_eq!([0.0, 9.94, 12_345.6, f64::INFINITY].map(rate), ["0.0/s", "9.9/s", "12,345/s", "?"]);
        assert_eq!(time(1_790_000_000), "14:13:20");
        assert_eq!(time(u64::MAX), "?");
    }

    #[test]
    fn a_forecast_has_its_range_in_one_unit() {
        let of = |earliest_s, in_s, latest_s| forecast(&Forecast { in_s, earliest_s, latest_s });
        assert_eq!(of(900.0, 1080.0, 1320.0), "18 min (15-22 min)");
        assert_eq!(of(30.0, 30.0, 30.0), "30 s");
        assert_eq!(of(3600.0, 7200.0, f64::INFINITY), "2 h (>0 days)");
        assert_eq!(of(f64::NAN, f64::NAN, f64::NAN), "?");
    }

    #[test]
    fn bars_are_as_wide_as_they_should_whatever_the_numbers() {
        assert_eq!((bar(0.5, 4), bar(-1.0, 2), bar(7.0, 2)), ("██░░".into(), "░░".into(), "██".into()));
        let waits = BTreeMap::from([(Stage::Network, 0.21), (Stage::Disk, 0.3), (Stage::Python, 0.02)]);
        assert_eq!(stages(&waits, 10), "nnddd·····");
        let odd = BTreeMap::from([(Stage::Disk, 5.0), (Stage::Decode, f64::NAN), (Stage::Python, -1.0)]);
        assert_eq!(stages(&odd, 10), "dddddddddd");
    }
}
