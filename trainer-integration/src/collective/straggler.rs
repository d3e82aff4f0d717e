//! Whom the ranks wait for: at the end, and while they train.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Collective, CollectiveError};

/// How long all other ranks together have waited for each rank so far, see [`Collective::waits`]; the same on every rank.
///
/// # Errors
/// As [`Collective::transfer`].
pub fn waited_for(collective: &mut dyn Collective) -> Result<Vec<Duration>, CollectiveError> {
    let mine: Vec<u64> = collective.waits().iter().map(|wait| wait.as_nanos() as u64).collect();
    let all = collective.all_gather(bytemuck::cast_slice(&mine))?;
    let mut total = vec![Duration::ZERO; mine.len()];
    for (from, message) in all.iter().enumerate() {
        let waits = message.numbers::<u64>().filter(|waits| waits.len() == total.len());
        let waits = waits.ok_or_else(|| CollectiveError::Malformed {
            rank: from as u32,
            what: format!("{} bytes of waits", message.bytes().len()),
        })?;
        for (total, &nanoseconds) in total.iter_mut().zip(waits.iter()) {
            *total = total.saturating_add(Duration::from_nanos(nanoseconds));
        }
    }
    Ok(total)
}

/// The rank that was waited for longest; `None` where there was no wait.
pub fn straggler(waited_for: &[Duration]) -> Option<u32> {
    let longest =
        waited_for.iter().enumerate().max_by_key(|(rank, wait)| (**wait, std::cmp::Reverse(*rank)))?;
    (!longest.1.is_zero()).then_some(longest.0 as u32)
}

/// A rank for which the others wait a smaller part of the time is not named.
const LEAST_SHARE: f64 = 0.05;

/// A rank that the others wait for.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use shardd_trainer::collective::StragglerWatch;
///
/// let begun = Instant::now();
/// let mut watch = StragglerWatch::new(begun, vec![Duration::ZERO; 4]);
/// // In ten seconds, three other ranks waited 6 seconds for rank 2, added up over them.
/// let waited_for = [0, 0, 6, 1].map(Duration::from_secs);
/// let slow = watch.look(begun + Duration::from_secs(10), waited_for.to_vec()).expect("it is slow");
/// assert_eq!((slow.rank, slow.wait_share), (2, 0.2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Straggler {
    /// Its number.
    pub rank: u32,
    /// The part of the time that another rank waited for it, in the mean over the others.
    pub wait_share: f64,
}

/// Names the rank that the others wait for since it last looked; see [`Straggler`].
#[derive(Debug)]
pub struct StragglerWatch {
    looked: Instant,
    waited_for: Vec<Duration>,
    /// What the last two looks found, the later one first.
    found: [Option<Straggler>; 2],
    warned: Option<u32>,
}

impl StragglerWatch {
    /// Begins at `begun`, when [`waited_for`] returned this. Earlier waits do not count.
    pub fn new(begun: Instant, waited_for: Vec<Duration>) -> StragglerWatch {
        StragglerWatch { looked: begun, waited_for, found: [None; 2], warned: None }
    }

    /// The slowest rank since the last look, if the others waited for it for a twentieth of the time or more. `waited_for` is what
    /// [`waited_for`] returns at `now`: where a group formed again, it began at nothing.
    pub fn look(&mut self, now: Instant, waited_for: Vec<Duration>) -> Option<Straggler> {
        self.found = [self.find(now, waited_for), self.found[0]];
        self.found[0]
    }

    /// The straggler to warn about: once for a rank that two looks in a row have named. On a busy machine each rank is the last at
    /// times.
    pub fn warning(&mut self) -> Option<Straggler> {
        let [now, before] = self.found;
        let now = now.filter(|now| before.is_some_and(|before| before.rank == now.rank))?;
        (self.warned.replace(now.rank) != Some(now.rank)).then_some(now)
    }

    fn find(&mut self, now: Instant, waited_for: Vec<Duration>) -> Option<Straggler> {
        let before = std::mem::replace(&mut self.waited_for, waited_for);
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        let others = self.waited_for.len().saturating_sub(1);
        let is_same_group = before.len() == self.waited_for.len()
            && before.iter().zip(&self.waited_for).all(|(was, is)| was <= is);
        let since =
            |(rank, waited): (usize, &Duration)| if is_same_group { *waited - before[rank] } else { *waited };
        let waits: Vec<Duration> = self.waited_for.iter().enumerate().map(since).collect();
        let rank = straggler(&waits)?;
        let wait_share = waits[rank as usize].as_secs_f64() / others.max(1) as f64 / elapsed.as_secs_f64();
        (wait_share >= LEAST_SHARE).then_some(Straggler { rank, wait_share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::spawn;

    #[test]
    fn a_rank_is_slow_by_the_waits_since_the_last_look() {
        let begun = Instant::now();
        let (at, seconds) = (
            |s| begun + Duration::from_secs(s),
            |all: &[u64]| all.iter().copied().map(Duration::from_secs).collect(),
        );
        let mut late_start = StragglerWatch::new(begun, seconds(&[0, 90, 0]));
        assert_eq!(
            late_start.look(at(100), seconds(&[0, 91, 0])),
            None,
            "it was late before the training began"
        );
        let mut watch = StragglerWatch::new(begun, seconds(&[0, 0, 0]));
        assert_eq!(watch.look(at(100), seconds(&[4, 4, 0])), None, "less than a twentieth");
        let slow = Some(Straggler { rank: 2, wait_share: 0.5 });
        assert_eq!(watch.look(at(120), seconds(&[4, 5, 20])), slow);
        assert_eq!(watch.look(at(140), seconds(&[4, 5, 20])), None, "nobody has waited since");
        let formed_again = Some(Straggler { rank: 0, wait_share: 0.3 });
        assert_eq!(watch.look(at(150), seconds(&[3, 1])), formed_again);
    }

    #[test]
    fn a_warning_comes_once_for_a_rank_that_stays_slow() {
        let begun = Instant::now();
        let mut watch = StragglerWatch::new(begun, vec![Duration::ZERO; 3]);
        let mut waited = [0; 3];
        let mut warned = Vec::new();
        for (second, slow) in (1..).zip([0, 1, 2, 2, 2, 0, 2, 2, 1, 1]) {
            waited[slow] += 1;
            watch.look(begun + Duration::from_secs(second), waited.map(Duration::from_secs).to_vec());
            warned.extend(watch.warning().map(|straggler| (second, straggler.rank)));
        }
        assert_eq!(warned, [(4, 2), (10, 1)]);
    }

    #[test]
    fn the_longest_wait_names_the_straggler_and_none_nobody() {
        let seconds =
            |all: &[u64]| straggler(&all.iter().copied().map(Duration::from_secs).collect::<Vec<_>>());
        assert_eq!(seconds(&[]), None);
        assert_eq!(seconds(&[0, 0]), None);
        assert_eq!(seconds(&[1, 7, 3]), Some(1));
        assert_eq!(seconds(&[0, 5, 5]), Some(1), "of equals the first");
    }

    #[test]
    fn all_ranks_know_the_same_waits() {
        let all = spawn(3, |mut collective| {
            collective.barrier().unwrap();
            collective.barrier().unwrap();
            waited_for(&mut collective).unwrap()
        });
        assert!(all.iter().all(|waits| *waits == all[0]));
        assert!(all[0].len() == 3 && all[0].iter().any(|wait| !wait.is_zero()));
    }
}
