//! What to do when the processes of a training have ended. Pure: exits of ranks in, the next action out.

use std::fmt;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With this exit code.
    Code(i32),
    /// By a signal that was not the launcher's.
    Signal(i32),
    /// By the launcher, because the others had ended and it had not.
    Killed,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Code(code) => write!(f, "ended with exit code {code}"),
            End::Signal(signal) => write!(f, "was killed by signal {signal}"),
            End::Killed => write!(f, "did not end when the others had"),
        }
    }
}

/// The exit code of a process that could continue if the others could.
const OTHERS_ARE_GONE: i32 = shardd_trainer::launch_env::OTHERS_ARE_GONE as i32;
/// The exit code of one with invalid arguments.
const ASKED_WRONGLY: i32 = 2;

/// The signal by which ranks are asked to stop; who keeps no checkpoints ends by it.
const TERMINATE: i32 = 15;

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The training is done, or has stopped as it was asked to.
    Done,
    /// It was ended as it was asked to, but not all ranks could write a checkpoint first.
    Ended,
    /// It continues with this number of ranks.
    Again { ranks: u32, cause: String },
    /// It does not continue.
    Over { code: i32, cause: String },
}

/// The rules of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// Fewer ranks than this do not continue; 0 where others come.
    pub(super) min_ranks: u32,
    /// How often a training may continue after ranks have ended.
    pub(super) max_restarts: u32,
    /// Whether a rank that is lost is restarted, because launchers elsewhere count on it.
    pub(super) keeps_world: bool,
}

impl Rules {
    /// The next action when the processes of this launcher, the first of which is rank `first`, ended like
    /// this, after a number of restarts.
    pub(super) fn judge(self, first: u32, ends: &[End], restarts: u32, is_stopping: bool) -> Verdict {
        if ends.iter().all(|end| *end == End::Code(0)) || first == 0 && ends[0] == End::Code(0) {
            // Rank 0 has written what there is to write; what befell others after that undoes nothing.
            return Verdict::Done;
        }
        let is_as_asked =
            |end: &End| matches!(end, End::Killed | End::Code(0 | OTHERS_ARE_GONE) | End::Signal(TERMINATE));
        if is_stopping && ends.iter().all(is_as_asked) {
            return Verdict::Ended;
        }
        // Those that died themselves; if none did, those that did not end.
        let died = |end: &&End| !matches!(end, End::Killed | End::Code(0 | OTHERS_ARE_GONE));
        let hung = |end: &&End| **end == End::Killed;
        let has_died = ends.iter().any(|end| died(&end));
        let is_lost = |end: &&End| if has_died { died(end) } else { hung(end) };
        let lost: Vec<String> = (first..)
            .zip(ends)
            .filter(|(_, end)| is_lost(end))
            .map(|(rank, end)| format!("rank {rank} {end}"))
            .collect();
        let cause = if lost.is_empty() { "the ranks lost each other".to_owned() } else { lost.join(", ") };
        let code = ends.iter().find_map(|end| match end {
            End::Code(code) if died(&end) => Some(*code),
            _ => None,
        });
        let over = |code: i32, why: &str| Verdict::Over { code, cause: format!("{cause}{why}") };
        let left = ends.len() as u32 - if self.keeps_world { 0 } else { lost.len() as u32 };
        if code == Some(ASKED_WRONGLY) {
            over(ASKED_WRONGLY, "")
        } else if is_stopping {
            over(1, ", while the training was being stopped")
        } else if restarts >= self.max_restarts {
            let times = if restarts == 1 { "once".to_owned() } else { format!("{restarts} times") };
            over(1, &format!("; the training has been restarted {times} and is not again (--max-restarts)"))
        } else if left < self.min_ranks {
            over(1, &format!("; {left} of the ranks are left, too few to continue (--min-ranks)"))
        } else {
            Verdict::Again { ranks: left, cause }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { min_ranks: 2, max_restarts: 3, keeps_world: false };
    const NOTICED: End = End::Code(3);

    fn again(ends: &[End]) -> u32 {
        match RULES.judge(0, ends, 0, false) {
            Verdict::Again { ranks, .. } => ranks,
            other => panic!("{ends:?}: {other:?}"),
        }
    }

    fn over(rules: Rules, ends: &[End], restarts: u32, is_stopping: bool) -> (i32, String) {
        match rules.judge(0, ends, restarts, is_stopping) {
            Verdict::Over { code, cause } => (code, cause),
            other => panic!("{ends:?}: {other:?}"),
        }
    }

    #[test]
    fn a_training_goes_on_with_those_that_have_not_died() {
        assert_eq!(again(&[NOTICED, NOTICED, End::Signal(9), NOTICED]), 3);
        assert_eq!(again(&[End::Code(1), NOTICED, End::Signal(9), NOTICED]), 2);
        // Who was too slow to notice is not to blame for it.
        assert_eq!(again(&[End::Killed, NOTICED, End::Signal(11)]), 2);
        // Unless no other rank is.
        assert_eq!(again(&[NOTICED, NOTICED, End::Killed]), 2);
        assert_eq!(again(&[NOTICED, NOTICED, NOTICED]), 3);
    }

    #[test]
    fn it_is_done_when_rank_0_is() {
        assert_eq!(RULES.judge(0, &[End::Code(0); 3], 0, false), Verdict::Done);
        assert_eq!(RULES.judge(0, &[End::Code(0), End::Signal(9)], 0, false), Verdict::Done);
        assert_eq!(RULES.judge(2, &[End::Code(0); 2], 0, false), Verdict::Done);
        assert!(matches!(
            RULES.judge(2, &[End::Code(0), NOTICED], 0, false),
            Verdict::Again { ranks: 2, .. }
        ));
    }

    #[test]
    fn it_ends_when_going_on_makes_no_sense() {
        let (code, cause) = over(RULES, &[End::Code(2), NOTICED, NOTICED], 0, false);
        assert_eq!((code, &cause[..]), (2, "rank 0 ended with exit code 2"));
        let (code, cause) = over(RULES, &[End::Signal(9), NOTICED], 0, false);
        assert!(code == 1 && cause.contains("signal 9") && cause.contains("--min-ranks"), "{cause}");
        let (code, cause) = over(RULES, &[End::Code(1), NOTICED, NOTICED], 3, false);
        assert!(code == 1 && cause.contains("3 times") && cause.contains("--max-restarts"), "{cause}");
        let (code, cause) = over(RULES, &[End::Signal(9), NOTICED, NOTICED], 0, true);
        assert!(code == 1 && cause.contains("being stopped"), "{cause}");
        for ends in [[End::Signal(15), NOTICED], [End::Killed, End::Code(0)]] {
            assert_eq!(RULES.judge(2, &ends, 0, true), Verdict::Ended, "as requested");
            assert_ne!(RULES.judge(2, &ends, 0, false), Verdict::Ended);
        }
        let (all, one) = ([End::Code(1), End::Code(1)], Rules { min_ranks: 1, ..RULES });
        assert!(over(one, &all, 0, false).1.contains("0 of the ranks are left"));
        let made_up = Rules { min_ranks: 0, ..RULES };
        assert!(matches!(made_up.judge(0, &all, 0, false), Verdict::Again { ranks: 0, .. }));
    }

    #[test]
    fn with_other_launchers_the_world_stays_as_large_as_it_is() {
        let rules = Rules { keeps_world: true, min_ranks: 4, ..RULES };
        let verdict = rules.judge(4, &[NOTICED, End::Signal(9), NOTICED, NOTICED], 0, false);
        assert_eq!(verdict, Verdict::Again { ranks: 4, cause: "rank 5 was killed by signal 9".to_owned() });
    }
}
