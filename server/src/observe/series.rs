//! The last hour of a node's values, in bounded memory: a ring of numbers for each series, all with the same times.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shardd_api::series::Series;

/// How often values are taken.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// How many points are kept: an hour.
pub(super) const KEPT: usize = 720;
/// No more series than this, so 3 MB. Those that come later are not kept.
pub(super) const MOST_SERIES: usize = 1024;

/// What tells series apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeriesKey {
    pub(super) name: &'static str,
    pub(super) labels: Vec<(&'static str, String)>,
}

/// Series whose points have the same times. Not a number: there was no value.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How many points there are, at most [`KEPT`].
    length: usize,
    rings: BTreeMap<SeriesKey, VecDeque<f32>>,
}

impl History {
    /// Adds a point: the values of one moment.
    pub(super) fn push(&mut self, values: impl IntoIterator<Item = (SeriesKey, f64)>) {
        for (key, value) in values {
            if !self.rings.contains_key(&key) {
                if self.rings.len() >= MOST_SERIES {
                    continue;
                }
                let nothing = std::iter::repeat_n(f32::NAN, self.length);
                self.rings.insert(key.clone(), nothing.collect());
            }
            let ring = self.rings.get_mut(&key).expect("inserted above");
            // The first of two values with one key counts.
            if ring.len() == self.length {
                #[expect(clippy::cast_possible_truncation, reason = "seven digits are enough to look at")]
                ring.push_back(value as f32);
            }
        }
        self.length += 1;
        for ring in self.rings.values_mut() {
            if ring.len() < self.length {
                ring.push_back(f32::NAN);
            }
            if self.length > KEPT {
                ring.pop_front();
            }
        }
        self.length = self.length.min(KEPT);
        self.rings.retain(|_, ring| ring.iter().any(|value| !value.is_nan()));
    }

    /// The series whose names one of `names` begins (all, if there are none), in at most `points` points: each is the mean of
    /// `per_point` values, and the last ends now.
    pub(super) fn series(&self, names: &[String], points: usize, per_point: usize) -> Vec<Series> {
        let is_wanted = |key: &SeriesKey| {
            names.is_empty() || names.iter().any(|name| key.name.starts_with(name.as_str()))
        };
        let wanted = self.rings.iter().filter(|(key, _)| is_wanted(key));
        wanted
            .map(|(key, ring)| Series {
                name: key.name.to_owned(),
                labels: key.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
                points: means(ring, points, per_point.max(1)),
            })
            .collect()
    }
}

/// The means of groups of `size` values, the last group at the end; at most `most` of them.
fn means(ring: &VecDeque<f32>, most: usize, size: usize) -> Vec<Option<f64>> {
    let mut newest_first = ring.iter().rev().copied().peekable();
    let mut points = Vec::new();
    while points.len() < most && newest_first.peek().is_some() {
        let group = newest_first.by_ref().take(size).filter(|value| !value.is_nan()).map(f64::from);
        let (sum, count) = group.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
        points.push((count > 0).then(|| short(sum / f64::from(count))));
    }
    points.reverse();
    points
}

/// Four significant digits: what a chart can show, in few bytes.
fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    if scale >= 1.0 {
        (value * scale).round() / scale
    } else {
        (value / (1.0 / scale)).round() * (1.0 / scale)
    }
}

/// Turns counters into rates.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<SeriesKey, f64>);

impl Rates {
    /// How much a counter has grown in `over`, per second; none at its first value, and none after it was reset.
    pub(super) fn per_second(&mut self, key: &SeriesKey, count: f64, over: Duration) -> Option<f64> {
        let before = self.0.insert(key.clone(), count)?;
        (count >= before && !over.is_zero()).then(|| (count - before) / over.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 3] = ["cache_used_bytes", "origin_read_bytes_per_second", "rank_samples_per_second"];

    fn key(name: usize, rank: u8) -> SeriesKey {
        SeriesKey { name: NAMES[name], labels: vec![("rank", rank.to_string())] }
    }

    proptest! {
        #[test]
        fn all_series_have_the_same_times_and_the_last_hour(
            moments in prop::collection::vec(prop::collection::btree_map((0..3usize, 0..4u8), 0.0..1e9f64, 0..6), 1..40),
            repeat in 1..40usize,
            points in 1..100usize,
            per_point in 1..8usize,
        ) {
            let mut history = History::default();
            let all: Vec<_> = moments.iter().cycle().take(moments.len() * repeat).collect();
            for moment in &all {
                history.push(moment.iter().map(|((name, rank), value)| (key(*name, *rank), *value)));
            }
            let kept = &all[all.len().saturating_sub(KEPT)..];
            for series in history.series(&[], points, per_point) {
                let name = NAMES.iter().position(|name| *name == series.name).expect("one of them");
                let rank: u8 = series.labels["rank"].parse().expect("a number");
                prop_assert_eq!(series.points.len(), points.min(kept.len().div_ceil(per_point)));
                for (group, point) in kept.rchunks(per_point).zip(series.points.iter().rev()) {
                    let values: Vec<f64> = group.iter().filter_map(|moment| moment.get(&(name, rank)).copied()).collect();
                    prop_assert_eq!(values.is_empty(), point.is_none());
                    if let Some(point) = point {
                        let mean = values.iter().sum::<f64>() / values.len() as f64;
                        prop_assert!((mean - point).abs() <= mean.abs() * 1e-3, "{mean} {point}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_series_that_ended_an_hour_ago_is_gone_and_there_are_never_too_many() {
        let mut history = History::default();
        history.push([(key(0, 0), 1.0)]);
        for _ in 1..KEPT {
            history.push([]);
        }
        assert_eq!(history.rings.len(), 1);
        history.push([]);
        assert!(history.rings.is_empty());
        let labelled =
            |number: usize| SeriesKey { name: NAMES[0], labels: vec![("run", number.to_string())] };
        history.push((0..2 * MOST_SERIES).map(|number| (labelled(number), 1.0)));
        assert_eq!(history.rings.len(), MOST_SERIES);
    }

    #[test]
    fn names_select_and_numbers_are_short() {
        let mut history = History::default();
        history.push([(key(0, 0), 123_456.0), (key(1, 0), 0.123_456)]);
        let series = history.series(&["origin_".to_owned()], 10, 1);
        assert_eq!(series.len(), 1);
        assert_eq!(series[0].points, [Some(0.1235)]);
        assert_eq!(history.series(&[], 10, 1)[0].points, [Some(123_500.0)]);
    }

    #[test]
    fn a_rate_begins_with_the_second_value_and_again_after_a_reset() {
        let mut rates = Rates::default();
        let (one, second) = (key(0, 0), Duration::from_secs(2));
        assert_eq!(rates.per_second(&one, 10.0, second), None);
        assert_eq!(rates.per_second(&one, 30.0, second), Some(10.0));
        assert_eq!(rates.per_second(&one, 5.0, second), None);
        assert_eq!(rates.per_second(&one, 5.0, second), Some(0.0));
    }
}
