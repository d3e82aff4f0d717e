//! Clocks: whether the kernel knows this machine's clock to be right, and how far the clocks of nodes and of the store are
//! from it. Leases, certificates, tokens and signed requests depend on them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::finding::{Check, Finding, Group, Severity, doc};

/// A clock that differs by more is a warning, and by more than the second an error, in seconds.
const WRONG: f64 = 1.0;
const VERY_WRONG: f64 = 30.0;
/// A server says whole seconds, and may repeat a second for one more.
const COARSE: f64 = 2.0;

const SYNCHRONIZED: Check = Check::new(Group::Machine, "clock_synchronized", doc::CERTIFICATES);
const SKEW: Check = Check::new(Group::Cluster, "clock_skew", doc::CERTIFICATES);
const BETWEEN: Check = Check::new(Group::Cluster, "clocks_of_nodes", doc::CERTIFICATES);

/// The way to a clock that is right.
const MEND: &str =
    "Set the clock by NTP on the machine whose clock is wrong; `chronyc makestep` does it with chrony.";
const COMMAND: &str = "timedatectl set-ntp true";

/// By how many seconds another clock is ahead of that of this machine: a number in this range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Skew {
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Skew {
    /// By one answer: sent and received at these times, in seconds since 1970, and dated with whole seconds.
    pub(crate) fn of_answer(sent: f64, received: f64, date: u64) -> Skew {
        let date = date as f64;
        Skew { least: date - received, most: date + COARSE - sent }
    }

    /// By one more answer. Two that contradict each other, as when a clock was set between them, leave the later one.
    pub(crate) fn and(self, later: Skew) -> Skew {
        let both = Skew { least: self.least.max(later.least), most: self.most.min(later.most) };
        if both.least <= both.most { both } else { later }
    }

    /// How far they differ, at least.
    pub(crate) fn distance(self) -> f64 {
        self.least.max(-self.most).max(0.0)
    }
}

/// The time of this machine, in seconds since 1970.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Whether the kernel counts the clock of this machine as right.
pub(crate) fn check() -> Vec<Finding> {
    synchronized(kernel_state()).into_iter().collect()
}

/// `is_synchronized` is the word of the kernel, where it has one.
fn synchronized(is_synchronized: Option<bool>) -> Option<Finding> {
    Some(match is_synchronized? {
        true => SYNCHRONIZED.ok("the kernel counts the clock as synchronized"),
        false => SYNCHRONIZED
            .info("the kernel does not know the clock to be synchronized: no NTP runs here, or the host keeps the clock")
            .mend("Run NTP, unless the host of this virtual machine keeps its clock.")
            .run(COMMAND),
    })
}

fn kernel_state() -> Option<bool> {
    // SAFETY: the structure has integers only, for which zero is a value; with `modes` 0 nothing is changed.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole structure that outlives the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    (answer >= 0).then_some(state.status & libc::STA_UNSYNC == 0)
}

/// How far the clock of a server is from that of this machine.
pub(crate) fn skewed(name: &str, skew: Skew) -> Finding {
    match severity(skew.distance()) {
        Severity::Ok => {
            SKEW.ok(format!("the clock of {name} agrees, within the two seconds that its answers tell"))
        }
        severity => {
            let direction = if skew.least > 0.0 { "ahead of" } else { "behind" };
            let evidence =
                format!("the clock of {name} is {:.0} s {direction} that of this machine", skew.distance());
            SKEW.finding(severity, evidence).mend(MEND).run(COMMAND)
        }
    }
}

/// How far the clocks of nodes are apart.
pub(crate) fn between(nodes: &[(String, Skew)]) -> Option<Finding> {
    if nodes.len() < 2 {
        return None;
    }
    let ahead = nodes.iter().max_by(|a, b| a.1.least.total_cmp(&b.1.least))?;
    let behind = nodes.iter().min_by(|a, b| a.1.most.total_cmp(&b.1.most))?;
    let apart = (ahead.1.least - behind.1.most).max(0.0);
    Some(match severity(apart) {
        Severity::Ok => BETWEEN.ok(format!("the clocks of {} nodes agree", nodes.len())),
        severity => {
            let evidence = format!("the clock of {} is {apart:.0} s ahead of that of {}", ahead.0, behind.0);
            BETWEEN.finding(severity, evidence).mend(MEND).run(COMMAND)
        }
    })
}

/// How far the clock of a store is from that of this machine, by the date of an object that was just written.
pub(crate) fn of_store(check: Check, skew: Skew) -> Finding {
    match severity(skew.distance()) {
        Severity::Ok => check.ok("the clock of the store agrees"),
        severity => check
            .finding(
                severity,
                format!(
                    "the clock of the store differs by {:.0} s from that of this machine",
                    skew.distance()
                ),
            )
            .mend(MEND)
            .run(COMMAND),
    }
}

/// A store that refuses a request for its time.
pub(crate) fn refused(check: Check, reason: &str) -> Finding {
    check
        .error(format!(
            "the store refuses requests, as the clock of this machine differs from its own ({reason})"
        ))
        .mend(MEND)
        .run(COMMAND)
}

fn severity(distance: f64) -> Severity {
    match distance {
        far if far > VERY_WRONG => Severity::Error,
        far if far > WRONG => Severity::Warning,
        _ => Severity::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Info, Ok, Warning};
    use super::*;

    #[test]
    fn a_clock_is_judged_by_the_least_that_it_can_be_wrong() {
        for (sent, received, date, severity) in [
            (1000.2, 1000.3, 1000, Ok),
            (1000.2, 1000.3, 1001, Ok),
            (1000.2, 1000.3, 998, Ok),
            (1000.2, 1000.3, 1002, Warning),
            (1000.2, 1000.3, 996, Warning),
            (1000.2, 1000.3, 1300, Error),
            (1000.2, 1000.3, 700, Error),
            // An answer that took long says less.
            (1000.0, 1040.0, 1030, Ok),
        ] {
            let found = skewed("n1", Skew::of_answer(sent, received, date));
            assert_eq!(found.severity, severity, "{found:?}");
            assert_eq!(found.command.is_some(), severity != Ok);
        }
        assert!(skewed("n1", Skew::of_answer(0.0, 0.1, 100)).evidence.contains("100 s ahead"));
        assert!(skewed("n1", Skew::of_answer(500.0, 500.1, 100)).evidence.contains("398 s behind"));
    }

    #[test]
    fn several_answers_say_more_than_one() {
        let skew = Skew::of_answer(10.0, 10.1, 10).and(Skew::of_answer(10.9, 11.0, 11));
        assert!(skew.least > -0.2 && skew.most < 2.2, "{skew:?}");
        let (early, late) = (Skew { least: 5.0, most: 6.0 }, Skew { least: -1.0, most: 0.0 });
        assert_eq!(early.and(late), late);
    }

    #[test]
    fn nodes_are_compared_with_each_other() {
        let node = |name: &str, at: f64| (name.to_owned(), Skew { least: at - 1.0, most: at + 1.0 });
        assert_eq!(between(&[node("n1", 0.0)]), None);
        let of = |ats: &[f64]| {
            let nodes: Vec<_> = ats.iter().enumerate().map(|(n, at)| node(&format!("n{n}"), *at)).collect();
            between(&nodes).expect("several")
        };
        assert_eq!(of(&[0.0, 0.5, -0.5]).severity, Ok);
        assert_eq!(of(&[0.0, 5.0]).severity, Warning);
        let found = of(&[0.0, -100.0, 0.3]);
        assert_eq!(found.severity, Error);
        assert!(found.evidence.contains("n2 is 98 s ahead of that of n1"), "{found:?}");
    }

    #[test]
    fn the_word_of_the_kernel_is_taken_where_it_has_one() {
        assert_eq!(synchronized(None), None);
        assert_eq!(synchronized(Some(true)).map(|found| found.severity), Some(Ok));
        assert_eq!(synchronized(Some(false)).map(|found| found.severity), Some(Info));
        check();
        let of = |distance| of_store(SKEW, Skew { least: distance, most: distance + 1.0 }).severity;
        assert_eq!([of(0.0), of(3.0), of(1000.0)], [Ok, Warning, Error]);
        assert!(refused(SKEW, "RequestTimeTooSkewed").evidence.contains("RequestTimeTooSkewed"));
    }
}
