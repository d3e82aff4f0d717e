//! A launcher and its ranks under a clock of events: ranks die, hang, lose each other and return, messages are late and
//! overtaken by the end of their sender; a seed decides. The launcher is [`Membership`]; the rest of it, and the ranks, are here
//! what `elastic.rs` and `shardd_trainer::elastic` make of them.
//!
//! `SHARDD_SIM_SEEDS=A..B cargo test --release -p shardd-trainer --bin shardtrain simulation:: -- --nocapture` runs other
//! seeds than CI does.

use std::collections::BTreeMap;

use super::*;

/// The seeds that every run of the tests goes through.
const SEEDS: std::ops::Range<u64> = 0..5_000;
/// Times are in milliseconds. How long a rank has to notice that its group is over.
const GRACE: u64 = 15_000;
const RETURNS_AFTER: u64 = 2_000;
/// The longest that a rank takes to open its files.
const STARTUP: u64 = 8_000;
/// The longest that a message is on its way.
const DELAY: u64 = 900;
/// After the last fault, one group has all that live within this.
const BOUND: u64 = LONGEST_HANG + 3 * GRACE + RETURNS_AFTER + STARTUP + 10 * DELAY;
/// The longest that a rank hangs, unless it is killed.
const LONGEST_HANG: u64 = 60_000;

/// Random numbers that are the same for a seed everywhere (splitmix64; Steele, Lea and Flood, OOPSLA 2014).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// A rank says that it wants a place; heard by the launcher.
    Heard(u32, Left),
    /// The launcher learns that a process has ended.
    Reaped(u32, End),
    /// A rank hears its place, which is in this group.
    Placed(u32, u64),
    /// A rank hears that its group is to pause, or is over.
    Paused(u32, u64),
    Over(u32, u64),
    /// A rank begins to ask.
    Asks(u32, Left),
    /// A rank that hangs continues.
    Wakes(u32, u64),
    /// Patience ends, unless it was taken back.
    Late(u64),
    Returns(u32),
    Fault,
}

/// What a rank does, as only it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rank {
    /// Opens its files, or waits for an answer.
    Waits,
    /// Trains in this group; one that hangs hears nothing.
    Trains {
        generation: u64,
        hangs: bool,
    },
    Gone,
}

struct World {
    dice: Dice,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    sent: u64,
    /// When the last message to or from each rank arrives: a connection keeps the order.
    arrives: BTreeMap<(u32, bool), u64>,
    roster: Membership,
    ranks: BTreeMap<u32, Rank>,
    /// Who has left which group.
    left: BTreeSet<(u32, u64)>,
    /// Which groups are to pause.
    paused: BTreeSet<u64>,
    /// The members of every group, in order.
    groups: BTreeMap<u64, Vec<u32>>,
    patience: u64,
    code: Option<u8>,
    faults: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed);
        let rules = Rules { min_ranks: 1 + dice.below(2) as u32, max_restarts: 12, keeps_world: false };
        let roster = Membership::new(rules, dice.below(4) > 0, 1 + dice.below(2) as u32);
        let mut world = World {
            dice,
            now: 0,
            events: BTreeMap::new(),
            sent: 0,
            arrives: BTreeMap::new(),
            roster,
            ranks: BTreeMap::new(),
            left: BTreeSet::new(),
            paused: BTreeSet::new(),
            groups: BTreeMap::new(),
            patience: 0,
            code: None,
            faults: 0,
        };
        for seat in 0..2 + world.dice.below(6) as u32 {
            world.start(seat, false);
        }
        let mut at = 0;
        for _ in 0..world.dice.below(12) {
            at += world.dice.below(12_000);
            world.at(at, Event::Fault);
        }
        world
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sent += 1;
        self.events.insert((at, self.sent), event);
    }

    /// After a time, and after earlier messages on the same connection.
    fn send(&mut self, number: u32, to_rank: bool, event: Event) {
        let at = self.now + 1 + self.dice.below(DELAY);
        let before = self.arrives.get(&(number, to_rank)).copied().unwrap_or(0);
        self.arrives.insert((number, to_rank), at.max(before));
        self.at(at.max(before), event);
    }

    fn start(&mut self, seat: u32, is_return: bool) {
        let number = self.roster.start(seat, is_return);
        self.ranks.insert(number, Rank::Waits);
        let at = self.now + self.dice.below(STARTUP);
        self.at(at, Event::Asks(number, Left::New));
    }

    fn end(&mut self, number: u32, end: End) {
        if self.ranks.insert(number, Rank::Gone) != Some(Rank::Gone) {
            let at = self.now + self.dice.below(DELAY);
            self.at(at, Event::Reaped(number, end));
            self.is_noticed(number);
        }
    }

    /// Those that train with a rank which has left the group lose it, sooner or later.
    fn is_noticed(&mut self, gone: u32) {
        for (number, rank) in self.ranks.clone() {
            let Rank::Trains { generation, hangs: false } = rank else { continue };
            if self.groups[&generation].contains(&gone) {
                let at = self.now + self.dice.below(2 * GRACE);
                self.at(at, Event::Over(number, generation));
            }
        }
    }

    /// All ranks of a group agree after a step that they pause: with one that is lost or hangs they cannot.
    fn pause(&mut self, generation: u64) {
        let members = self.groups[&generation].clone();
        if self.paused.contains(&generation) && members.iter().all(|it| self.of_group(*it, generation)) {
            members.into_iter().for_each(|it| self.leave(it, Left::Paused));
        }
    }

    /// A rank calls the others, and finds out if one of them has left.
    fn look_around(&mut self, number: u32, generation: u64) {
        let has_left = |it: &u32| self.left.contains(&(*it, generation)) || self.ranks[it] == Rank::Gone;
        if self.groups[&generation].iter().any(has_left) {
            let at = self.now + self.dice.below(2 * GRACE);
            self.at(at, Event::Over(number, generation));
        }
    }

    fn of_group(&self, number: u32, generation: u64) -> bool {
        self.ranks[&number] == Rank::Trains { generation, hangs: false }
    }

    /// A rank leaves its group, and asks.
    fn leave(&mut self, number: u32, left: Left) {
        if let Some(Rank::Trains { generation, .. }) = self.ranks.insert(number, Rank::Waits) {
            self.left.insert((number, generation));
        }
        let is_lost = matches!(left, Left::Lost { .. });
        self.send(number, false, Event::Heard(number, left));
        if is_lost {
            self.is_noticed(number);
        }
    }

    fn happens(&mut self, event: Event) {
        let lost = || Left::Lost { reason: "it is gone".to_owned() };
        match event {
            Event::Asks(number, left) if self.ranks[&number] == Rank::Waits => self.leave(number, left),
            Event::Asks(..) => {}
            Event::Heard(number, left) => {
                let acts = self.roster.asked(number, left);
                self.perform(acts);
            }
            Event::Reaped(number, end) => {
                let acts = self.roster.ended(number, end);
                self.perform(acts);
            }
            Event::Placed(number, generation) => {
                if self.ranks[&number] == Rank::Waits {
                    self.ranks.insert(number, Rank::Trains { generation, hangs: false });
                    self.look_around(number, generation);
                    self.pause(generation);
                }
            }
            Event::Wakes(number, generation) => {
                if self.ranks[&number] == (Rank::Trains { generation, hangs: true }) {
                    self.ranks.insert(number, Rank::Trains { generation, hangs: false });
                    self.look_around(number, generation);
                    self.pause(generation);
                }
            }
            Event::Paused(_, generation) => {
                self.paused.insert(generation);
                self.pause(generation);
            }
            Event::Over(number, generation) if self.of_group(number, generation) => {
                self.leave(number, lost())
            }
            Event::Over(..) => {}
            Event::Late(patience) if patience == self.patience => {
                let late = if self.code.is_some() { self.roster.living() } else { self.roster.late() };
                late.into_iter().for_each(|number| self.end(number, End::Killed));
            }
            Event::Late(_) => {}
            Event::Returns(seat) if self.code.is_none() => self.start(seat, true),
            Event::Returns(_) => {}
            Event::Fault => self.befall(),
        }
    }

    fn befall(&mut self) {
        let living: Vec<u32> =
            self.ranks.iter().filter(|(_, rank)| **rank != Rank::Gone).map(|(number, _)| *number).collect();
        if living.is_empty() {
            return;
        }
        self.faults += 1;
        let number = living[self.dice.below(living.len() as u64) as usize];
        match (self.dice.below(4), self.ranks[&number].clone()) {
            (0, Rank::Trains { generation, .. }) => {
                self.ranks.insert(number, Rank::Trains { generation, hangs: true });
                self.is_noticed(number);
                let at = self.now + self.dice.below(LONGEST_HANG);
                self.at(at, Event::Wakes(number, generation));
            }
            (1, Rank::Trains { generation, hangs: false }) => {
                self.at(self.now, Event::Over(number, generation));
            }
            _ => self.end(number, End::Signal(9)),
        }
    }

    fn perform(&mut self, acts: Vec<Act>) {
        for act in acts {
            assert!(self.code.is_none(), "nothing after the end: {act:?}");
            match act {
                Act::Form { generation, members, .. } => self.form(generation, members),
                Act::Pause { generation, members } => {
                    members.into_iter().for_each(|it| self.send(it, true, Event::Paused(it, generation)));
                }
                Act::Hurry { generation, members } => {
                    self.patience += 1;
                    self.at(self.now + GRACE, Event::Late(self.patience));
                    members.into_iter().for_each(|it| self.send(it, true, Event::Over(it, generation)));
                }
                Act::Calm => self.patience += 1,
                Act::Return { seat } => self.at(self.now + RETURNS_AFTER, Event::Returns(seat)),
                Act::End { code, said } => {
                    let said = said.unwrap_or_default();
                    let is_excused = ["--max-restarts", "--min-ranks"].iter().any(|rule| said.contains(rule));
                    assert!(is_excused, "it ends with {code} and {said:?}");
                    self.code = Some(code);
                    self.patience += 1;
                    self.at(self.now, Event::Late(self.patience));
                }
            }
        }
    }

    fn form(&mut self, generation: u64, members: Vec<u32>) {
        let trains = |rank: &Rank| matches!(rank, Rank::Trains { .. });
        assert!(
            !self.ranks.values().any(trains),
            "a group still trains when {generation} is formed: {:?}",
            self.ranks
        );
        assert_eq!(generation, self.groups.len() as u64 + 1, "groups are counted");
        let different: BTreeSet<&u32> = members.iter().collect();
        assert_eq!(different.len(), members.len(), "a rank is twice in {members:?}");
        for number in &members {
            self.send(*number, true, Event::Placed(*number, generation));
        }
        self.groups.insert(generation, members);
    }

    fn play(&mut self) {
        let last = |events: &BTreeMap<(u64, u64), Event>| {
            events.iter().rev().find(|(_, event)| **event == Event::Fault).map(|((at, _), _)| *at)
        };
        let until = last(&self.events).unwrap_or(0) + BOUND;
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > until {
                break;
            }
            self.now = at;
            self.happens(event);
            self.check_present();
        }
        self.check_end();
    }

    /// Ranks that train do so in one group, as many as it has.
    fn check_present(&self) {
        let mut present: BTreeMap<u64, u32> = BTreeMap::new();
        for rank in self.ranks.values() {
            if let Rank::Trains { generation, .. } = rank {
                *present.entry(*generation).or_default() += 1;
            }
        }
        assert!(present.len() <= 1, "ranks train in several groups: {:?}", self.ranks);
    }

    /// One group has all that live, but for those which the multiple leaves over; or all is over for a reason.
    fn check_end(&self) {
        let living: Vec<u32> = self.roster.living();
        if self.code.is_some() {
            assert_eq!(living, [0; 0], "ranks outlive the launch");
            return;
        }
        let (generation, members) = self.groups.last_key_value().expect("a group was formed");
        let trains = members.iter().all(|number| self.of_group(*number, *generation));
        assert!(trains, "group {generation} of {members:?} does not train: {:?}", self.ranks);
        let possible = living.len() - living.len() % self.roster.multiple as usize;
        assert_eq!(members.len(), possible, "of {living:?}, {members:?} train");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SHARDD_SIM_SEEDS") else { return SEEDS };
    let (from, to) = text.split_once("..").expect("SHARDD_SIM_SEEDS=FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn whatever_goes_wrong_one_group_trains_at_a_time_and_in_the_end_one_has_all_that_live() {
    let (began, mut faults, mut groups, mut over) = (std::time::Instant::now(), 0, 0, 0);
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut world = World::new(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.play()));
        assert!(played.is_ok(), "seed {seed} fails: SHARDD_SIM_SEEDS={seed}..{} repeats it", seed + 1);
        faults += world.faults;
        groups += world.groups.len();
        over += u32::from(world.code.is_some());
    }
    let took = began.elapsed().as_secs_f64();
    println!(
        "{count} seeds in {took:.1} s: {faults} faults, {groups} groups, {over} launches that ended early"
    );
}
