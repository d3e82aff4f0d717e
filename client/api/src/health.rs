//! Classifies nodes as slow, silent or wrong. Each node decides from its measurements: its own disk against
//! the disks of other nodes, and its peers against each other. Measurements in, verdicts out; old
//! measurements expire. Knows neither the source of the numbers nor the readers of the verdicts.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::NodeId;

/// The factor that counts as slow: this many times the time of others...
const BEGINS: u64 = 8;
/// ...and no longer when it takes less than this many times that.
const ENDS: u64 = 4;
/// However much faster others are, a disk that reads a grain in less is not slow,
const SLOW_READ: Duration = Duration::from_millis(20);
/// nor one that makes writes durable in less,
const SLOW_SYNC: Duration = Duration::from_millis(200);
/// nor a node that answers in less. Half of it, once it was slow.
const SLOW_ANSWER: Duration = Duration::from_millis(250);
/// As many questions lately without an answer make a node silent, and as few no more.
const SILENT: (f64, f64) = (3.0, 1.0);
/// The number of recent grains with wrong bytes that begins a report, and that ends it: one, for half an
/// hour.
const WRONG: (f64, f64) = (0.5, 0.1);
/// Fewer measurements than this are no mean.
const FEWEST: f64 = 4.0;
/// Measurements within this time count as one...
const COUNT_AS_ONE: Duration = Duration::from_secs(10);
/// ...and when less is left of them, there is no mean.
const FADED: f64 = 0.05;
/// The most peers that a node says something of.
const MOST_SAID: usize = 64;

/// Measurements of late: each counts half as much after every half-life.
#[derive(Clone, Debug)]
pub struct Lately {
    half_life: Duration,
    sum: f64,
    weight: f64,
    at: Duration,
}

impl Lately {
    /// None yet.
    pub fn new(half_life: Duration) -> Lately {
        Lately { half_life, sum: 0.0, weight: 0.0, at: Duration::ZERO }
    }

    /// One more, at a time since whenever.
    pub fn add(&mut self, at: Duration, value: f64) {
        let left = self.left(at);
        (self.sum, self.weight) = (self.sum * left + value, self.weight * left + 1.0);
        self.at = self.at.max(at);
    }

    /// How many there were lately.
    pub fn count(&self, at: Duration) -> f64 {
        self.weight * self.left(at)
    }

    /// Their mean, if there were enough.
    pub fn mean(&self, at: Duration) -> Option<f64> {
        (self.count(at) >= FEWEST).then(|| self.sum / self.weight)
    }

    fn left(&self, at: Duration) -> f64 {
        (-(at.saturating_sub(self.at).as_secs_f64() / self.half_life.as_secs_f64())).exp2()
    }
}

/// Measurements of late that come fast at times and slowly at others: those of ten seconds count as one, their mean. Otherwise
/// a disk that has become slow, and so does little, would be judged for minutes by the many fast operations before.
#[derive(Clone, Debug)]
pub struct LatelyByTime {
    earlier: Lately,
    began: Duration,
    sum: f64,
    count: f64,
}

impl LatelyByTime {
    /// None yet.
    pub fn new(half_life: Duration) -> LatelyByTime {
        LatelyByTime { earlier: Lately::new(half_life), began: Duration::ZERO, sum: 0.0, count: 0.0 }
    }

    /// One more, at a time since whenever.
    pub fn add(&mut self, at: Duration, value: f64) {
        if self.count == 0.0 {
            self.began = at;
        } else if self.count >= FEWEST && at.saturating_sub(self.began) >= COUNT_AS_ONE {
            self.earlier.add(self.began, self.sum / self.count);
            (self.began, self.sum, self.count) = (at, 0.0, 0.0);
        }
        (self.sum, self.count) = (self.sum + value, self.count + 1.0);
    }

    /// Their mean, if there were enough.
    pub fn mean(&self, at: Duration) -> Option<f64> {
        let mut all = self.earlier.clone();
        if self.count >= FEWEST {
            all.add(self.began, self.sum / self.count);
        }
        (all.count(at) >= FADED).then(|| all.sum / all.weight)
    }
}

/// How long a node's disk takes, in the mean of late; `None` where it had little to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Disk {
    /// To read a grain from the cache, in millionths of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_micros: Option<u64>,
    /// To make written bytes durable, in millionths of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_micros: Option<u64>,
}

/// A node's recent observations of one that it asks for grains, or that sends it some.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// How long it takes to answer, for each MiB that it gives where that is more than one, in millionths of a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_micros: Option<u64>,
    /// How often it did not answer; fades.
    pub silences: f64,
    /// Grains that it gave or sent with wrong bytes; fades.
    pub wrong_grains: f64,
}

/// The measurements of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Measured {
    /// Its own disk.
    pub disk: Disk,
    /// The nodes that it has had to do with.
    pub peers: Vec<Peer>,
}

/// The fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ailment {
    /// Its disk is slow to read.
    SlowReads,
    /// Its disk is slow to make writes durable.
    SlowSyncs,
    /// It is slow to answer: itself, or what leads to it.
    SlowAnswers,
    /// It does not answer.
    Silence,
    /// It sends wrong bytes: its disk, its memory or its network spoils it.
    WrongGrains,
}

impl Ailment {
    /// Its name, as documents have it.
    pub fn name(self) -> &'static str {
        match self {
            Ailment::SlowReads => "slow_reads",
            Ailment::SlowSyncs => "slow_syncs",
            Ailment::SlowAnswers => "slow_answers",
            Ailment::Silence => "silence",
            Ailment::WrongGrains => "wrong_grains",
        }
    }
}

/// A node that others have reason to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthIssue {
    /// The node.
    pub node: NodeId,
    /// The fault.
    pub what: Ailment,
    /// The node that has measured it.
    pub by: NodeId,
    /// Millionths of a second in the mean, of the slow operation; else how often, lately.
    pub measured: u64,
    /// The time of others for the slow operation: the median of them; else 0.
    pub others: u64,
}

impl HealthIssue {
    /// Whether it is the same trouble, whatever the numbers.
    fn is_same(&self, node: &NodeId, what: Ailment) -> bool {
        self.node == *node && self.what == what
    }
}

/// In one line, without the names.
impl fmt::Display for HealthIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (does, what) = match self.what {
            Ailment::SlowReads => ("its disk takes", "to read a grain"),
            Ailment::SlowSyncs => ("its disk takes", "to make writes durable"),
            Ailment::SlowAnswers => ("it takes", "to answer for grains"),
            Ailment::Silence => return write!(f, "it did not answer {} times lately", self.measured),
            Ailment::WrongGrains if self.measured == 1 => {
                return f.write_str("it gave a grain lately whose bytes were wrong");
            }
            Ailment::WrongGrains => {
                return write!(f, "it gave {} grains lately whose bytes were wrong", self.measured);
            }
        };
        let [took, others] = [self.measured, self.others].map(|micros| micros as f64 / 1e3);
        let times = self.measured / self.others.max(1);
        write!(f, "{does} {took:.1} ms {what}, {times} times the median of the others ({others:.1} ms)")
    }
}

/// A node's report on itself and on those that it asks: `before` is its last report, `others` are the
/// disks of the other nodes. A fault lasts until it is clearly over.
pub fn judge(own: &NodeId, measured: &Measured, others: &[Disk], before: &[HealthIssue]) -> Vec<HealthIssue> {
    let was = |node: &NodeId, what| before.iter().any(|trouble| trouble.is_same(node, what));
    let mut found = Vec::new();
    let mut slow = |node: &NodeId, what, took: Option<u64>, others: Vec<u64>, least: Duration| {
        let (Some(measured), Some(others)) = (took, median(others)) else { return };
        let least = u64::try_from(least.as_micros()).unwrap_or(u64::MAX);
        let (times, least) = if was(node, what) { (ENDS, least / 2) } else { (BEGINS, least) };
        if measured >= least && measured >= others.saturating_mul(times) {
            found.push(HealthIssue { node: node.clone(), what, by: own.clone(), measured, others });
        }
    };
    let reads = others.iter().filter_map(|disk| disk.read_micros).collect();
    slow(own, Ailment::SlowReads, measured.disk.read_micros, reads, SLOW_READ);
    let syncs = others.iter().filter_map(|disk| disk.sync_micros).collect();
    slow(own, Ailment::SlowSyncs, measured.disk.sync_micros, syncs, SLOW_SYNC);
    let mut answers: Vec<u64> = measured.peers.iter().filter_map(|peer| peer.answer_micros).collect();
    answers.sort_unstable();
    for peer in &measured.peers {
        let Some(took) = peer.answer_micros else { continue };
        let mut others = answers.clone();
        others.remove(others.partition_point(|answer| *answer < took));
        slow(&peer.node, Ailment::SlowAnswers, peer.answer_micros, others, SLOW_ANSWER);
    }
    for peer in &measured.peers {
        // Who hears nothing from anybody is itself cut off.
        let others = measured.peers.iter().filter(|other| other.node != peer.node);
        let silences = median(others.map(|other| other.silences as u64).collect());
        let is_heard_by_others = silences.is_none_or(|silences| (silences as f64) < SILENT.1);
        for (what, often, (begins, ends)) in
            [(Ailment::Silence, peer.silences, SILENT), (Ailment::WrongGrains, peer.wrong_grains, WRONG)]
        {
            if what == Ailment::Silence && !is_heard_by_others {
                continue;
            }
            if often >= if was(&peer.node, what) { ends } else { begins } {
                let measured = often.ceil() as u64;
                found.push(HealthIssue {
                    node: peer.node.clone(),
                    what,
                    by: own.clone(),
                    measured,
                    others: 0,
                });
            }
        }
    }
    found.sort_by_key(|trouble| std::cmp::Reverse(trouble.what)); // faults before slowness
    found.truncate(MOST_SAID);
    found
}

/// The one in the middle, the smaller of two.
fn median(mut values: Vec<u64>) -> Option<u64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: usize) -> NodeId {
        format!("n{number}").parse().expect("a name")
    }

    fn peer(number: usize, answer_micros: Option<u64>, silences: f64, wrong_grains: f64) -> Peer {
        Peer { node: node(number), answer_micros, silences, wrong_grains }
    }

    fn reads(micros: u64) -> Disk {
        Disk { read_micros: Some(micros), sync_micros: None }
    }

    fn said(health_issues: &[HealthIssue]) -> Vec<(String, Ailment)> {
        health_issues.iter().map(|trouble| (trouble.node.to_string(), trouble.what)).collect()
    }

    #[test]
    fn an_ailment_has_one_name() {
        use Ailment::*;
        for what in [SlowReads, SlowSyncs, SlowAnswers, Silence, WrongGrains] {
            assert_eq!(serde_json::to_value(what).expect("a name"), what.name());
        }
    }

    #[test]
    fn a_slow_disk_is_named_by_its_node_with_how_slow_it_is() {
        let measured = Measured { disk: reads(40_000), peers: vec![] };
        let found = judge(&node(3), &measured, &[reads(900), reads(1000), reads(70_000)], &[]);
        assert_eq!(said(&found), [("n3".to_owned(), Ailment::SlowReads)]);
        let line = "its disk takes 40.0 ms to read a grain, 40 times the median of the others (1.0 ms)";
        assert_eq!(found[0].to_string(), line);
        // No node to compare with, a fast one among faster ones, one of many that are slow.
        assert_eq!(judge(&node(3), &measured, &[], &[]), []);
        let fast = Measured { disk: reads(9_000), peers: vec![] };
        assert_eq!(judge(&node(3), &fast, &[reads(10), reads(10)], &[]), []);
        assert_eq!(judge(&node(3), &measured, &[reads(30_000), reads(1000), reads(70_000)], &[]), []);
    }

    #[test]
    fn who_answers_late_or_wrong_or_not_is_named_and_whose_own_link_is_slow_accuses_nobody() {
        let peers = vec![
            peer(1, Some(2_000), 0.9, 0.0),
            peer(2, Some(900_000), 0.0, 0.0),
            peer(4, Some(3_000), 0.0, 1.0),
            peer(5, None, 3.5, 0.0),
        ];
        let measured = Measured { disk: Disk::default(), peers };
        let found = judge(&node(3), &measured, &[], &[]);
        let expected = [("n4", Ailment::WrongGrains), ("n5", Ailment::Silence), ("n2", Ailment::SlowAnswers)];
        assert_eq!(said(&found), expected.map(|(node, what)| (node.to_owned(), what)));
        assert!(found[0].to_string().contains("a grain"), "{}", found[0]);
        let far = (1..5).map(|number| peer(number, Some(800_000 + number as u64), 0.0, 0.0)).collect();
        assert_eq!(judge(&node(7), &Measured { disk: Disk::default(), peers: far }, &[], &[]), []);
        let cut_off = (1..5).map(|number| peer(number, None, 9.0, 0.0)).collect();
        assert_eq!(judge(&node(7), &Measured { disk: Disk::default(), peers: cut_off }, &[], &[]), []);
    }

    proptest! {
        /// Between where it begins and where it ends, it stays as it was.
        #[test]
        fn a_trouble_does_not_come_and_go_as_numbers_waver(
            others in 30_000u64..1_000_000, wavers in prop::collection::vec(41u64..79, 1..20), began in any::<bool>(),
        ) {
            let mut now = Vec::new();
            if began {
                now = judge(&node(1), &Measured { disk: reads(others * 9), peers: vec![] }, &[reads(others)], &now);
                prop_assert_eq!(now.len(), 1);
            }
            for tenths in wavers {
                let disk = reads(others * tenths / 10);
                now = judge(&node(1), &Measured { disk, peers: vec![] }, &[reads(others)], &now);
                prop_assert_eq!(now.len(), usize::from(began));
            }
            now = judge(&node(1), &Measured { disk: reads(others * 3), peers: vec![] }, &[reads(others)], &now);
            prop_assert_eq!(now.len(), 0);
        }

        /// However many fast reads there were before: after two half-lives of slow ones, the mean is mostly of these.
        #[test]
        fn a_disk_that_becomes_slow_is_judged_by_what_it_does_now(fast in 10u64..2000, slow in 5u64..200) {
            let mut lately = LatelyByTime::new(Duration::from_secs(60));
            for second in 0..300 {
                (0..fast).for_each(|_| lately.add(Duration::from_secs(second), 1.0));
            }
            prop_assert!((lately.mean(Duration::from_secs(300)).expect("measured") - 1.0).abs() < 1e-9);
            for second in 300..420 {
                if second % 2 == 0 {
                    lately.add(Duration::from_secs(second), slow as f64);
                }
            }
            let mean = lately.mean(Duration::from_secs(420)).expect("measured");
            prop_assert!(mean > 0.6 * slow as f64 && mean <= slow as f64, "{mean} of {slow}");
            prop_assert_eq!(lately.mean(Duration::from_secs(420 + 600)), None);
        }

        #[test]
        fn a_mean_of_late_is_between_what_was_measured_and_fades(
            values in prop::collection::vec((0u64..100_000, 0.0f64..1e6), 8..50),
        ) {
            let mut lately = Lately::new(Duration::from_secs(3600));
            let mut at = 0;
            for (pause, value) in &values {
                at += pause;
                lately.add(Duration::from_millis(at), *value);
            }
            let now = Duration::from_millis(at);
            prop_assert!(lately.count(now) <= values.len() as f64);
            let bounds = values.iter().map(|(_, value)| *value);
            let (least, most) = bounds.fold((f64::MAX, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
            if let Some(mean) = lately.mean(now) {
                prop_assert!(least - 1e-6 <= mean && mean <= most + 1e-6, "{mean} outside {least}..{most}");
            }
            prop_assert_eq!(lately.mean(now + Duration::from_secs(3600 * 24)), None);
        }
    }
}
