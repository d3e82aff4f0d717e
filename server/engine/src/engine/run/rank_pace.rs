//! How fast a rank reads, lately, and where the time of its loop goes: from its reports of the last minute. Pure: times come
//! with the reports.

use std::collections::VecDeque;

use shardd_api::loop_time::{LoopTime, RecentTime, Stage};
use shardd_api::overview::EXPOSED;
use tokio::time::{Duration, Instant};

/// How far back reports count.
const WINDOW: Duration = Duration::from_secs(60);
/// Reports that come faster replace each other.
const APART: Duration = Duration::from_secs(1);

/// The reports of one rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct RankPace {
    reports: VecDeque<Reported>,
    /// Since when the rank waits for data for more than [`EXPOSED`] of its time, in seconds since 1970.
    exposed_since: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Reported {
    at: Instant,
    time: LoopTime,
    /// Samples of all ranks since epoch 0.
    reached: u64,
}

impl RankPace {
    /// A rank says at `at`, `wall` seconds after 1970, how its time went by, and that all ranks have read `reached` samples since epoch 0.
    pub(crate) fn report(&mut self, at: Instant, wall: u64, time: LoopTime, reached: u64) {
        let report = Reported { at, time, reached };
        // Of another loader, which counts from 0.
        let is_earlier = |last: &Reported| time.steps < last.time.steps || reached < last.reached;
        if self.reports.back().is_some_and(is_earlier) {
            self.reports.clear();
            self.exposed_since = None;
        }
        // The last report may move; the ones before it are apart.
        if let [.., before, last] = self.reports.make_contiguous()
            && last.at.saturating_duration_since(before.at) < APART
        {
            *last = report;
        } else {
            self.reports.push_back(report);
        }
        while self.reports.len() > 2 && at.saturating_duration_since(self.reports[1].at) >= WINDOW {
            self.reports.pop_front();
        }
        if let Some(recent) = self.recent() {
            // It ends at half of where it begins, so that it does not come and go.
            let least = if self.exposed_since.is_some() { EXPOSED / 2.0 } else { EXPOSED };
            let before = self.exposed_since.unwrap_or(wall);
            self.exposed_since = (recent.exposed_share() > least).then_some(before);
        }
    }

    /// Since when the rank waits for data for more than a twentieth of its time, in seconds since 1970.
    pub(crate) fn exposed_since(&self) -> Option<u64> {
        self.exposed_since
    }

    /// The last report.
    pub(crate) fn time(&self) -> Option<LoopTime> {
        self.reports.back().map(|report| report.time)
    }

    /// Whether nothing was reported for as long as reports count.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.is_silent_for(now, WINDOW)
    }

    /// Whether nothing was reported for longer than this.
    pub(crate) fn is_silent_for(&self, now: Instant, time: Duration) -> bool {
        self.reports.back().is_none_or(|last| now.saturating_duration_since(last.at) > time)
    }

    /// The time between the first and the last report of the window.
    pub(crate) fn recent(&self) -> Option<RecentTime> {
        let (first, last) = (self.reports.front()?, self.reports.back()?);
        let over_s = last.at.saturating_duration_since(first.at).as_secs_f64();
        if over_s <= 0.0 {
            return None;
        }
        let grown = |count: fn(&LoopTime) -> u64| count(&last.time).saturating_sub(count(&first.time)) as f64;
        let waited =
            |stage: Stage| last.time.waits.of(stage).saturating_sub(first.time.waits.of(stage)) as f64;
        Some(RecentTime {
            over_s,
            samples_per_second: grown(|time| time.samples) / over_s,
            steps_per_second: grown(|time| time.steps) / over_s,
            compute_share: (grown(|time| time.compute_ms) / 1e3 / over_s).min(1.0),
            ranks_share: (grown(|time| time.ranks_ms) / 1e3 / over_s).min(1.0),
            wait_shares: Stage::ALL.map(|stage| (stage, (waited(stage) / 1e3 / over_s).min(1.0))).into(),
        })
    }

    /// Samples that all ranks read per second: the least and the most of the two halves of the window.
    pub(crate) fn run_rate(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.reports.front()?, self.reports.back()?);
        let middle = &self.reports[self.reports.len() / 2];
        let rate = |from: &Reported, to: &Reported| {
            let over_s = to.at.saturating_duration_since(from.at).as_secs_f64();
            (over_s > 0.0).then(|| to.reached.saturating_sub(from.reached) as f64 / over_s)
        };
        let rates: Vec<f64> = [rate(first, middle), rate(middle, last)].into_iter().flatten().collect();
        let least = rates.iter().copied().reduce(f64::min)?;
        Some((least, rates.iter().copied().fold(least, f64::max)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_api::loop_time::Waits;

    use super::*;

    fn time(steps: u64) -> LoopTime {
        let waits = Waits { disk_ms: 250 * steps, ..Waits::default() };
        LoopTime { steps, samples: 32 * steps, compute_ms: 750 * steps, ranks_ms: 0, waits, loss: None }
    }

    proptest! {
        #[test]
        fn a_steady_rank_has_its_rate_whenever_it_reports(gaps in prop::collection::vec(1..90u64, 2..200)) {
            let began = Instant::now();
            let (mut pace, mut at) = (RankPace::default(), 0);
            for gap in gaps {
                at += gap;
                let (steps, moment) = (at, began + Duration::from_millis(at * 1000));
                pace.report(moment, 0, time(steps), 4 * 32 * steps);
                prop_assert!(pace.reports.len() <= 64);
                if let Some(recent) = pace.recent() {
                    prop_assert!((recent.samples_per_second - 32.0).abs() < 1e-6);
                    prop_assert!((recent.compute_share - 0.75).abs() < 1e-6 && (recent.wait_shares[&Stage::Disk] - 0.25).abs() < 1e-6);
                    let (least, most) = pace.run_rate().expect("as above");
                    prop_assert!((least - 128.0).abs() < 1e-6 && (most - 128.0).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn a_rate_is_that_of_the_last_minute_and_a_silent_rank_has_none() {
        let began = Instant::now();
        let at = |s| began + Duration::from_secs(s);
        let mut pace = RankPace::default();
        for s in 0..100 {
            pace.report(at(s), s, time(10 * s), 320 * s);
        }
        for s in 100..200 {
            pace.report(at(s), s, time(1000 + (s - 100)), 32_000 + 32 * (s - 100));
        }
        let recent = pace.recent().expect("it reports");
        assert!((recent.steps_per_second - 1.0).abs() < 1e-9 && recent.over_s <= 61.0, "{recent:?}");
        assert!(!pace.is_silent(at(199) + WINDOW) && pace.is_silent(at(200) + WINDOW));
        // It continues with another loader.
        pace.report(at(201), 201, time(0), 40_000);
        assert_eq!((pace.recent(), pace.time()), (None, Some(time(0))));
    }

    #[test]
    fn waiting_begins_once_and_ends_when_it_is_clearly_over() {
        let began = Instant::now();
        let mut pace = RankPace::default();
        let (mut waited, mut begins) = (0, Vec::new());
        for s in 0..600u64 {
            // Ten percent of the time from 100 s on, four percent from 300 s on, and nothing from 400 s on.
            waited += match s {
                100..300 => 100,
                300..400 => 40,
                _ => 0,
            };
            let waits = Waits { network_ms: waited, ..Waits::default() };
            pace.report(
                began + Duration::from_secs(s),
                s,
                LoopTime { steps: s, waits, ..LoopTime::default() },
                s,
            );
            begins.push(pace.exposed_since());
        }
        let since = begins[200].expect("it waits");
        assert!((100..200).contains(&since), "{since}");
        assert!(
            begins[since as usize..390].iter().all(|begin| *begin == Some(since)),
            "four percent are not clearly over"
        );
        assert_eq!((begins[99], begins[599]), (None, None));
    }

    #[test]
    fn halves_of_the_window_that_differ_are_a_range() {
        let began = Instant::now();
        let mut pace = RankPace::default();
        for s in 0..=40u64 {
            let reached = if s <= 20 { 10 * s } else { 200 + 30 * (s - 20) };
            pace.report(began + Duration::from_secs(s), s, time(s), reached);
        }
        assert_eq!(pace.run_rate(), Some((10.0, 30.0)));
    }
}
