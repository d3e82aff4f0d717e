//! Who is in which group of ranks, where ranks stay when others go. Pure: join and exit events in, commands
//! out.
//!
//! A group is formed of members that ask for a place. It dissolves when one of its members ends or has lost
//! the others, or pauses because another process waits for a place. In either case its members ask again, and
//! once each of them has asked or ended, those present form the next group.

#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, BTreeSet};

use shardd_trainer::elastic::Left;

use super::restart_policy::{End, Rules, Verdict};

/// An action of the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// These, by rank, are the next group.
    Form { generation: u64, members: Vec<u32>, world_before: u32, cause: String },
    /// They are to stop after a step, and to ask.
    Pause { generation: u64, members: Vec<u32> },
    /// They are in a group that has lost a rank, and have the time of the rules to notice.
    Hurry { generation: u64, members: Vec<u32> },
    /// The time to notice is over for a group that has ended, all the same.
    Calm,
    /// A process is to be started for this seat, after a while.
    Return { seat: u32 },
    /// The launch is over. Members that ask get that answer, and those that do not end are killed.
    End { code: u8, said: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MemberState {
    /// Started, and silent so far.
    Starting,
    /// Wants a place.
    Asks(Left),
    /// Has one in the present group.
    Placed,
    Ended(End),
}

#[derive(Clone, Debug)]
struct Member {
    seat: u32,
    standing: MemberState,
}

/// The members of a launch.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    rules: Rules,
    /// Whether members that have ended are replaced.
    returns: bool,
    /// Ranks come in such numbers only.
    multiple: u32,
    members: BTreeMap<u32, Member>,
    generation: u64,
    /// The present group, by rank; before there is one, all that were started.
    group: Vec<u32>,
    restarts: u32,
    /// Seats whose processes are still to be started.
    returning: u32,
    is_hurried: bool,
    is_paused: bool,
    is_stopping: bool,
    is_over: bool,
}

impl Membership {
    pub(super) fn new(rules: Rules, returns: bool, multiple: u32) -> Membership {
        Membership {
            rules,
            returns,
            multiple: multiple.max(1),
            members: BTreeMap::new(),
            generation: 0,
            group: Vec::new(),
            restarts: 0,
            returning: 0,
            is_hurried: false,
            is_paused: false,
            is_stopping: false,
            is_over: false,
        }
    }

    /// The number of the member that was started last.
    pub(super) fn newest(&self) -> u32 {
        self.members.len() as u32 - 1
    }

    /// A process is started for this seat: its number.
    pub(super) fn start(&mut self, seat: u32, is_return: bool) -> u32 {
        let number = self.members.len() as u32;
        self.members.insert(number, Member { seat, standing: MemberState::Starting });
        if is_return {
            self.returning -= 1;
        } else {
            self.group.push(number);
        }
        number
    }

    /// Those whose processes have not ended.
    pub(super) fn living(&self) -> Vec<u32> {
        let lives = |(number, member): (&u32, &Member)| {
            (!matches!(member.standing, MemberState::Ended(_))).then_some(*number)
        };
        self.members.iter().filter_map(lives).collect()
    }

    /// Those that have sent nothing yet.
    pub(super) fn starting(&self) -> Vec<u32> {
        let living = self.living().into_iter();
        living.filter(|number| *self.standing(*number) == MemberState::Starting).collect()
    }

    /// Whether this one waits for an answer.
    pub(super) fn asks(&self, number: u32) -> bool {
        self.members.get(&number).is_some_and(|member| matches!(member.standing, MemberState::Asks(_)))
    }

    /// A member wants a place; one that has ended may have asked before, and is ignored.
    pub(super) fn asked(&mut self, number: u32, left: Left) -> Vec<Act> {
        if !self.living().contains(&number) {
            return Vec::new();
        }
        self.stand(number, MemberState::Asks(left));
        self.next()
    }

    /// A member's process has ended.
    pub(super) fn ended(&mut self, number: u32, end: End) -> Vec<Act> {
        self.stand(number, MemberState::Ended(end));
        let mut acts = Vec::new();
        let is_newcomer = !self.group.contains(&number);
        if is_newcomer && end != End::Code(0) {
            self.restarts += 1;
        }
        let may_return = !self.is_over && !self.is_stopping && self.restarts < self.rules.max_restarts;
        if self.returns && may_return && end != End::Code(0) {
            self.returning += 1;
            acts.extend(self.members.get(&number).map(|member| Act::Return { seat: member.seat }));
        }
        acts.extend(self.next());
        acts
    }

    /// Seats without a member, present or coming: processes will be started for them.
    pub(super) fn recall(&mut self, on_the_way: &[u32]) -> Vec<u32> {
        if self.is_over || self.is_stopping {
            return Vec::new();
        }
        let living = self.living();
        let taken = living.iter().map(|number| self.members[number].seat).chain(on_the_way.iter().copied());
        let taken: Vec<u32> = taken.collect();
        let seats: BTreeSet<u32> = self.members.values().map(|member| member.seat).collect();
        let missing: Vec<u32> = seats.into_iter().filter(|seat| !taken.contains(seat)).collect();
        self.returning += missing.len() as u32;
        missing
    }

    /// All got a stop signal.
    pub(super) fn stopping(&mut self) {
        self.is_stopping = true;
    }

    /// A process will not be started after all.
    pub(super) fn stays_away(&mut self) -> Vec<Act> {
        self.returning -= 1;
        self.next()
    }

    /// Members of the present group that have had their time to notice that it is over.
    pub(super) fn late(&self) -> Vec<u32> {
        self.group.iter().copied().filter(|number| self.is_placed(*number)).collect()
    }

    fn stand(&mut self, number: u32, standing: MemberState) {
        if let Some(member) = self.members.get_mut(&number) {
            member.standing = standing;
        }
    }

    fn standing(&self, number: u32) -> &MemberState {
        &self.members[&number].standing
    }

    /// Whether nothing has been heard of it since it was given its place, or was started.
    fn is_placed(&self, number: u32) -> bool {
        matches!(self.standing(number), MemberState::Placed | MemberState::Starting)
    }

    /// Those that wait for a place and were not in the present group.
    fn newcomers(&self) -> Vec<u32> {
        let numbers = self.members.keys().copied();
        numbers.filter(|number| self.asks(*number) && !self.group.contains(number)).collect()
    }

    /// How many of `count` members can be in a group.
    fn possible(&self, count: usize) -> usize {
        count - count % self.multiple as usize
    }

    fn next(&mut self) -> Vec<Act> {
        if self.is_over {
            return Vec::new();
        }
        let is_in = self.group.iter().filter(|number| self.is_placed(**number)).count();
        if is_in > 0 {
            return self.of_present(is_in);
        }
        let mut acts = Vec::new();
        if std::mem::take(&mut self.is_hurried) {
            acts.push(Act::Calm);
        }
        acts.extend(self.of_next());
        acts
    }

    /// The actions for the present group, of which this number still trains, by their reports.
    fn of_present(&mut self, is_in: usize) -> Vec<Act> {
        let (generation, placed) = (self.generation, self.late());
        let is_left = |number: &u32| match self.standing(*number) {
            MemberState::Ended(end) => *end != End::Code(0) || self.group[0] == *number,
            MemberState::Asks(left) => matches!(left, Left::Lost { .. }),
            MemberState::Starting | MemberState::Placed => false,
        };
        // Before the first group no rank is lost: those that are still opening their files are waited for.
        if !self.is_hurried && generation > 0 && self.group.iter().any(is_left) {
            self.is_hurried = true;
            return vec![Act::Hurry { generation, members: placed }];
        }
        let could_be = self.possible(self.group.len() + self.newcomers().len());
        let is_whole = is_in == self.group.len() && generation > 0;
        if is_whole && !self.is_paused && !self.is_stopping && could_be > self.group.len() {
            self.is_paused = true;
            return vec![Act::Pause { generation, members: placed }];
        }
        Vec::new()
    }

    /// The next actions after the present group, all of which have asked or ended.
    fn of_next(&mut self) -> Vec<Act> {
        let end = |number: &u32| match self.standing(*number) {
            MemberState::Ended(end) => *end,
            // It could continue if the others could.
            _ => End::Code(i32::from(shardd_trainer::launch_env::OTHERS_ARE_GONE)),
        };
        let ends: Vec<End> = self.group.iter().map(end).collect();
        let has_ended = |number: &u32| matches!(self.standing(*number), MemberState::Ended(_));
        let has_lost = |number: &u32| matches!(self.standing(*number), MemberState::Asks(Left::Lost { .. }));
        let is_unharmed = !self.group.iter().any(|number| has_ended(number) || has_lost(number));
        let mut cause = String::new();
        if !is_unharmed {
            // Who comes makes up for who is missing.
            let is_made_up = self.is_awaited() || !self.newcomers().is_empty();
            let min_ranks = if is_made_up { 0 } else { self.rules.min_ranks };
            let rules = Rules { min_ranks, ..self.rules };
            match rules.judge(0, &ends, self.restarts, self.is_stopping) {
                Verdict::Done => return self.end(0, None),
                Verdict::Ended => return self.end(SIGNALLED, None),
                Verdict::Over { code, cause } => {
                    return self.end(u8::try_from(code).unwrap_or(1), Some(cause));
                }
                Verdict::Again { cause: why, .. } => cause = why,
            }
            if let Some(reason) = self.reason().filter(|_| !self.group.iter().any(has_ended)) {
                cause = format!("{cause} ({reason})");
            }
        } else if self.generation > 0 {
            let newcomers = self.newcomers().len();
            cause = match newcomers {
                0 => "the ranks have paused".to_owned(),
                1 => "a rank has come".to_owned(),
                _ => format!("{newcomers} ranks have come"),
            };
        }
        let members = self.chosen();
        if members.len() < self.rules.min_ranks.max(1) as usize {
            if self.is_awaited() {
                return Vec::new();
            }
            let why = if cause.is_empty() { String::new() } else { format!("{cause}; ") };
            let said =
                format!("{why}{} of the ranks are left, too few to continue (--min-ranks)", members.len());
            return self.end(1, Some(said));
        }
        self.restarts += u32::from(!is_unharmed);
        self.generation += 1;
        let world_before = if self.generation == 1 { 0 } else { self.group.len() as u32 };
        (self.is_paused, self.group) = (false, members.clone());
        members.iter().for_each(|number| self.stand(*number, MemberState::Placed));
        vec![Act::Form { generation: self.generation, members, world_before, cause }]
    }

    /// Who of those that ask is the next group: as many as can be. Who comes has nothing yet, and stays in reserve first; then one of whose place in
    /// a group that shares slices there is another, so that together they still have every number.
    fn chosen(&self) -> Vec<u32> {
        let stay = self.group.iter().copied().filter(|number| self.asks(*number));
        let mut chosen: Vec<u32> = stay.chain(self.newcomers()).collect();
        let place = |number: u32| {
            let rank = self.group.iter().position(|it| *it == number)?;
            Some(rank % self.multiple as usize)
        };
        while chosen.len() > self.possible(chosen.len()) {
            let is_spare = |at: &usize| match place(chosen[*at]) {
                None => true,
                own => chosen.iter().filter(|number| place(**number) == own).count() > 1,
            };
            let spare = (0..chosen.len()).rev().find(is_spare);
            chosen.remove(spare.unwrap_or(chosen.len() - 1));
        }
        chosen
    }

    /// Why the first of the present group that says so has lost the others.
    fn reason(&self) -> Option<&str> {
        self.group.iter().find_map(|number| match self.standing(*number) {
            MemberState::Asks(Left::Lost { reason }) => Some(&reason[..]),
            _ => None,
        })
    }

    /// Whether a member is still to come.
    fn is_awaited(&self) -> bool {
        let is_starting = |member: &Member| member.standing == MemberState::Starting;
        self.returning > 0 || self.members.values().any(is_starting)
    }

    fn end(&mut self, code: u8, said: Option<String>) -> Vec<Act> {
        self.is_over = true;
        vec![Act::End { code, said }]
    }
}

/// The exit code stands for the signal that the launcher was sent.
pub(super) const SIGNALLED: u8 = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULES: Rules = Rules { min_ranks: 2, max_restarts: 3, keeps_world: false };

    fn roster(seats: u32, returns: bool, multiple: u32) -> Membership {
        let mut roster = Membership::new(RULES, returns, multiple);
        (0..seats).for_each(|seat| assert_eq!(roster.start(seat, false), seat));
        roster
    }

    fn lost() -> Left {
        Left::Lost { reason: "rank 1 is gone".to_owned() }
    }

    fn formed(acts: &[Act]) -> Option<(u64, Vec<u32>)> {
        acts.iter().find_map(|act| match act {
            Act::Form { generation, members, .. } => Some((*generation, members.clone())),
            _ => None,
        })
    }

    /// Four that have found together.
    fn four(returns: bool, multiple: u32) -> Membership {
        let mut roster = roster(4, returns, multiple);
        for number in [2, 0, 3] {
            assert_eq!(roster.asked(number, Left::New), []);
        }
        assert_eq!(formed(&roster.asked(1, Left::New)), Some((1, vec![0, 1, 2, 3])));
        roster
    }

    #[test]
    fn those_that_are_left_go_on_and_those_that_come_are_waited_for_by_nobody() {
        let mut roster = four(true, 1);
        let acts = roster.ended(0, End::Signal(9));
        let hurry = Act::Hurry { generation: 1, members: vec![1, 2, 3] };
        assert_eq!(acts, [Act::Return { seat: 0 }, hurry]);
        assert_eq!(roster.asked(0, lost()), [], "its message before it died");
        assert_eq!(roster.asked(3, lost()), []);
        assert_eq!(roster.asked(1, lost()), []);
        let acts = roster.asked(2, lost());
        assert_eq!(acts[0], Act::Calm);
        assert_eq!(formed(&acts), Some((2, vec![1, 2, 3])));
        // One that has been started is of no account until it asks; then the group pauses for it, once.
        assert_eq!(roster.start(0, true), 4);
        assert_eq!(roster.asked(4, Left::New), [Act::Pause { generation: 2, members: vec![1, 2, 3] }]);
        assert_eq!(roster.asked(2, Left::Paused), []);
        assert_eq!(roster.asked(3, Left::Paused), []);
        assert_eq!(formed(&roster.asked(1, Left::Paused)), Some((3, vec![1, 2, 3, 4])));
    }

    #[test]
    fn one_that_does_not_notice_is_late_and_one_that_cannot_take_part_is_kept_in_reserve() {
        let mut roster = four(false, 2);
        roster.ended(3, End::Signal(9));
        roster.asked(0, lost());
        assert_eq!(roster.late(), [1, 2]);
        roster.asked(1, lost());
        assert_eq!(formed(&roster.asked(2, lost())), Some((2, vec![0, 1])), "groups of two");
        assert!(roster.asks(2));
        roster.ended(1, End::Signal(9));
        assert_eq!(formed(&roster.asked(0, lost())), Some((3, vec![0, 2])));
    }

    #[test]
    fn those_that_go_on_in_groups_have_every_slice_if_they_can() {
        for gone in 0..4 {
            let mut roster = four(false, 2);
            roster.ended(gone, End::Signal(9));
            let mut acts = Vec::new();
            (0..4).filter(|number| *number != gone).for_each(|number| acts = roster.asked(number, lost()));
            let (_, members) = formed(&acts).unwrap();
            assert_eq!(
                members.iter().map(|number| number % 2).sum::<u32>(),
                1,
                "{gone} is gone: {members:?}"
            );
        }
    }

    #[test]
    fn nobody_is_hurried_before_there_is_a_group() {
        let mut roster = roster(4, false, 1);
        assert_eq!(roster.ended(2, End::Signal(9)), []);
        (0..2).for_each(|number| assert_eq!(roster.asked(number, Left::New), []));
        assert_eq!(formed(&roster.asked(3, Left::New)), Some((1, vec![0, 1, 3])));
    }

    #[test]
    fn a_group_that_is_gone_is_made_up_for_by_those_that_return() {
        let mut roster = four(true, 1);
        (0..4).for_each(|number| {
            assert!(roster.ended(number, End::Signal(9)).contains(&Act::Return { seat: number }))
        });
        for (seat, number) in (0..4).zip(4..) {
            assert_eq!(roster.start(seat, true), number);
        }
        assert_eq!(roster.asked(5, Left::New), [], "one of at least two");
        assert_eq!(formed(&roster.asked(4, Left::New)), Some((2, vec![4, 5])));
    }

    #[test]
    fn why_ranks_have_lost_each_other_is_told() {
        let mut roster = four(false, 1);
        (0..3).for_each(|number| drop(roster.asked(number, lost())));
        let acts = roster.asked(3, lost());
        let told = |act: &Act| matches!(act, Act::Form { cause, .. } if cause.ends_with("each other (rank 1 is gone)"));
        assert!(acts.iter().any(told), "{acts:?}");
    }

    #[test]
    fn a_launch_ends_as_one_without_members_would() {
        let ends = |acts: &[Act]| match acts.last() {
            Some(Act::End { code, said }) => (*code, said.clone().unwrap_or_default()),
            other => panic!("{other:?}"),
        };
        let mut done = four(false, 1);
        (1..4).for_each(|number| assert_eq!(done.ended(number, End::Code(0)), []));
        assert_eq!(ends(&done.ended(0, End::Code(0))), (0, String::new()));

        let mut few = four(false, 1);
        (0..3).for_each(|number| drop(few.ended(number, End::Signal(9))));
        let (code, said) = ends(&few.asked(3, lost()));
        assert!(code == 1 && said.contains("--min-ranks"), "{said}");

        let mut wrong = four(false, 1);
        (1..4).for_each(|number| drop(wrong.asked(number, lost())));
        assert_eq!(ends(&wrong.ended(0, End::Code(2))).0, 2);

        let mut again = four(false, 1);
        for generation in 2..5 {
            (0..3).for_each(|number| drop(again.asked(number, lost())));
            assert_eq!(formed(&again.asked(3, lost())), Some((generation, vec![0, 1, 2, 3])));
        }
        (0..3).for_each(|number| drop(again.asked(number, lost())));
        let (code, said) = ends(&again.asked(3, lost()));
        assert!(code == 1 && said.contains("--max-restarts"), "{said}");

        let mut stopped = four(false, 1);
        stopped.stopping();
        (1..4).for_each(|number| drop(stopped.ended(number, End::Signal(15))));
        assert_eq!(ends(&stopped.ended(0, End::Signal(15))).0, SIGNALLED);
    }

    #[test]
    fn who_is_too_few_waits_for_those_that_return() {
        let mut roster = four(true, 1);
        (0..3).for_each(|number| drop(roster.ended(number, End::Signal(9))));
        assert_eq!(roster.asked(3, lost()), [Act::Calm], "one of at least two");
        assert_eq!(roster.start(1, true), 4);
        assert_eq!(formed(&roster.asked(4, Left::New)), Some((2, vec![3, 4])));
    }

    proptest! {
        #[test]
        fn every_launch_comes_to_an_end_and_groups_are_of_those_that_ask(
            seats in 1u32..6,
            multiple in 1u32..3,
            returns: bool,
            events in prop::collection::vec((0u8..6, 0usize..8, 0u8..4), 0..60),
        ) {
            let mut roster = roster(seats, returns, multiple);
            let (mut returning, mut is_over) = (Vec::new(), false);
            let mut group: Vec<u32> = Vec::new();
            let end = |kind: u8| [End::Signal(9), End::Code(0), End::Code(1), End::Code(3)][usize::from(kind)];
            let mut check = |roster: &Membership, acts: Vec<Act>, returning: &mut Vec<u32>| {
                for act in acts {
                    assert!(!is_over, "nothing after the end");
                    match act {
                        Act::Form { members, .. } => {
                            assert!((members.len() as u32).is_multiple_of(multiple) && members.len() >= 2);
                            assert!(members.iter().all(|it| *roster.standing(*it) == MemberState::Placed));
                            let stayed = members.iter().filter(|it| group.contains(it));
                            let before = group.iter().filter(|it| members.contains(it));
                            assert!(stayed.eq(before), "in their order");
                            let news = members.iter().skip_while(|it| group.contains(it));
                            assert!(news.into_iter().all(|it| !group.contains(it)), "newcomers come last");
                            group = members;
                        }
                        Act::Return { seat } => returning.push(seat),
                        Act::End { .. } => is_over = true,
                        Act::Pause { .. } | Act::Hurry { .. } | Act::Calm => {}
                    }
                }
                is_over
            };
            for (event, which, kind) in events {
                let living = roster.living();
                let Some(number) = living.get(which % living.len().max(1)).copied() else { break };
                let acts = match event {
                    0 => roster.ended(number, end(kind)),
                    1 if !returning.is_empty() => {
                        let seat = returning.remove(0);
                        roster.start(seat, true);
                        Vec::new()
                    }
                    2 if kind == 3 => {
                        roster.stopping();
                        Vec::new()
                    }
                    _ if roster.asks(number) => Vec::new(),
                    _ => {
                        let is_new = *roster.standing(number) == MemberState::Starting;
                        let left = if is_new { Left::New } else if roster.is_paused { Left::Paused } else { lost() };
                        roster.asked(number, left)
                    }
                };
                check(&roster, acts, &mut returning);
            }
            // However it went: when no rank is left and none comes, it is over.
            for number in roster.living() {
                let acts = roster.ended(number, End::Signal(9));
                check(&roster, acts, &mut returning);
            }
            while !returning.is_empty() {
                returning.remove(0);
                let acts = roster.stays_away();
                check(&roster, acts, &mut returning);
            }
            prop_assert!(check(&roster, Vec::new(), &mut returning));
        }
    }
}
