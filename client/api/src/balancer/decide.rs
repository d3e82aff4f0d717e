//! One look: how the shares change.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{BalancerRecord, Decision, Forecast, JOURNAL, Mode, Outcome, Share, Standing};
use super::slowness::{Signal, Slowness};
use crate::node::NodeId;

/// The usual time between looks.
const LOOK: Duration = Duration::from_secs(10);
/// As many looks in a row must ask for a smaller share...
const PATIENCE: u32 = 3;
/// ...for a larger one...
const PATIENCE_BACK: u32 = 12;
/// ...and for one of a node that hosts nothing, of which less is known. To turn back takes twice as long each time,
const PATIENCE_TO_TRY: u32 = 60;
/// up to this number of doublings.
const MOST_DOUBLINGS: u32 = 6;
/// After as many looks without a change, which is a day, earlier reversals do not count any more.
const FADED: u64 = 8640;
/// Looks without a node after which it is forgotten.
const FORGOTTEN: u32 = 360;
/// A smaller share must shorten the expected time of its node to this part, or it is not worth the moves.
const WORTH_IT: f64 = 0.9;
/// The most minutes of the budget that are saved up.
const SAVED_MINUTES: i64 = 5;
/// Looks after which the effect of a decision is noted.
const EFFECT_AFTER: u64 = 18;

/// What is seen at one look.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// When, in seconds since 1970: for the journal alone.
    pub at: u64,
    /// The time since the last look at which something was written down.
    pub elapsed: Duration,
    /// The nodes that may host partitions.
    pub nodes: Vec<NodeId>,
    /// The partitions of all runs that are read.
    pub partitions: usize,
    /// The bytes of them all.
    pub bytes: u64,
    /// How slow nodes are that measure.
    pub slowness: BTreeMap<NodeId, Slowness>,
    /// The samples per second of all ranks, where they report.
    pub samples_per_second: Option<f64>,
}

/// The record after a look; `None` if there is nothing to write down. The decisions are the last of its journal, those with
/// its number of looks.
pub fn decide(record: &BalancerRecord, look: &Look) -> Option<BalancerRecord> {
    if record.settings.mode == Mode::Off || look.nodes.len() < 2 || look.partitions == 0 {
        return None;
    }
    let mut next = record.clone();
    // Looks at which there is nothing to write down are counted by the time that they take.
    next.look += (look.elapsed.as_secs() / LOOK.as_secs()).max(1);
    next.save_up(look);
    next.nodes.values_mut().for_each(|standing| standing.away += 1);
    for node in &look.nodes {
        let standing = next.nodes.entry(node.clone()).or_default();
        standing.away = 0;
        standing.see(look.slowness.get(node).copied());
    }
    next.change(look);
    next.note_effects(look);
    let at = next.look;
    next.nodes.retain(|_, standing| standing.is_remarkable(at) && standing.away < FORGOTTEN);
    (next.nodes != record.nodes || next.journal != record.journal).then_some(next)
}

impl Standing {
    /// Counts how often in a row the same is asked for. A change must be clear: to half of the share or less, or to half more.
    fn see(&mut self, slowness: Option<Slowness>) {
        let wanted = match slowness.map(|slowness| Share::of(slowness.times)) {
            // It is tried with the least share before it gets more.
            wanted if self.share == Share::NONE => Some(wanted.unwrap_or(Share::FULL).min(Share::LEAST)),
            wanted => wanted,
        };
        let share = self.share.eighths();
        let direction = match wanted {
            Some(wanted) if wanted < self.share && 2 * wanted.eighths() <= share => Ordering::Less,
            Some(wanted) if wanted > self.share && wanted.eighths() >= (share * 3 / 2).min(8) => {
                Ordering::Greater
            }
            Some(_) | None => Ordering::Equal,
        };
        match (direction, wanted) {
            (Ordering::Less, Some(wanted)) => {
                let mildest = self.wanted.filter(|_| self.asked < 0).map_or(wanted, |mild| mild.max(wanted));
                (self.asked, self.wanted) = (self.asked.min(0).saturating_sub(1), Some(mildest));
            }
            (Ordering::Greater, Some(wanted)) => {
                let mildest = self.wanted.filter(|_| self.asked > 0).map_or(wanted, |mild| mild.min(wanted));
                (self.asked, self.wanted) = (self.asked.max(0).saturating_add(1), Some(mildest));
            }
            _ => (self.asked, self.wanted) = (0, None),
        }
        // Where nothing comes of it, there is nothing new to write down.
        let enough = i32::try_from(self.patience()).unwrap_or(i32::MAX);
        self.asked = self.asked.clamp(-enough, enough);
    }

    /// The share that it is to get, once enough looks have asked for it.
    fn ripe(&self) -> Option<Share> {
        self.wanted.filter(|_| self.asked.unsigned_abs() >= self.patience())
    }

    /// The looks in a row that have to ask for the same.
    fn patience(&self) -> u32 {
        let patience = match self.share {
            _ if self.asked < 0 => PATIENCE,
            Share::NONE => PATIENCE_TO_TRY,
            _ => PATIENCE_BACK,
        };
        let doublings = if self.turns() { self.reversals.min(MOST_DOUBLINGS) } else { 0 };
        patience << doublings
    }

    /// Whether the share changed in the other direction the last time.
    fn turns(&self) -> bool {
        self.last_was_smaller.is_some_and(|was_smaller| was_smaller != (self.asked < 0))
    }

    fn get(&mut self, share: Share, look: u64) {
        let is_smaller = share < self.share;
        if look.saturating_sub(self.changed) > FADED {
            self.reversals = 0;
        } else if self.turns() {
            self.reversals += 1;
        }
        (self.share, self.changed, self.last_was_smaller) = (share, look, Some(is_smaller));
        (self.asked, self.wanted) = (0, None);
    }

    /// Whether there is something to remember of it.
    fn is_remarkable(&self, look: u64) -> bool {
        let has_faded = self.last_was_smaller.is_none() || look.saturating_sub(self.changed) > FADED;
        !self.share.is_full() || self.asked != 0 || !has_faded
    }
}

impl BalancerRecord {
    fn save_up(&mut self, look: &Look) {
        let most = self.most_saved(look);
        let per_minute = most / SAVED_MINUTES;
        let elapsed = i64::try_from(look.elapsed.as_secs()).unwrap_or(0);
        self.budget_bytes =
            self.budget_bytes.saturating_add((per_minute / 60).saturating_mul(elapsed)).min(most);
    }

    fn most_saved(&self, look: &Look) -> i64 {
        let most = self.settings.bytes_per_minute.saturating_mul(look.nodes.len() as u64);
        i64::try_from(most).unwrap_or(i64::MAX / SAVED_MINUTES).saturating_mul(SAVED_MINUTES)
    }

    /// Gives nodes the shares that enough looks have asked for, the slowest first.
    fn change(&mut self, look: &Look) {
        let mut expected = Expected::of(self, look);
        let time_before = expected.time();
        let mut ripe: Vec<(NodeId, Share, Share, Slowness)> = Vec::new();
        for node in &look.nodes {
            let standing = self.nodes[node];
            if let Some(to) = standing.ripe() {
                let unknown = Slowness { signal: Signal::Trial, times: 1.0 };
                let slowness = look.slowness.get(node).copied().unwrap_or(unknown);
                ripe.push((node.clone(), standing.share, to, slowness));
            }
        }
        // Nodes that have the least share and are still slow cannot be helped: others need not be faster than they are.
        let helpless = expected.shares.iter().filter(|(_, share)| **share <= Share::LEAST);
        let times: Vec<(NodeId, f64)> =
            helpless.map(|(node, share)| (node.clone(), expected.time_of(node, *share))).collect();
        ripe.retain(|(node, from, to, _)| {
            let others = times.iter().filter(|(other, _)| other != node).map(|(_, time)| *time);
            let least = others.fold(expected.time_of(node, *to), f64::max);
            to > from || expected.time_of(node, *from) * WORTH_IT >= least
        });
        ripe.sort_by(|one, other| other.3.times.total_cmp(&one.3.times));
        let (first, full) = (self.journal.len(), self.most_saved(look));
        for (node, from, to, slowness) in ripe {
            let Some((to, bytes)) = expected.affordable(from, to, self.budget_bytes, full) else { continue };
            self.budget_bytes = self.budget_bytes.saturating_sub(bytes);
            expected.give(&node, to);
            self.nodes.get_mut(&node).expect("every node has a standing").get(to, self.look);
            let Slowness { signal, times } = slowness;
            self.journal.push(Decision {
                look: self.look,
                at: look.at,
                node,
                from,
                to,
                signal,
                times,
                carried_out: self.settings.mode == Mode::On,
                forecast: Forecast { bytes: bytes.unsigned_abs(), time_before, time_after: time_before },
                samples_per_second: look.samples_per_second,
                outcome: None,
            });
        }
        let time_after = expected.time();
        self.journal.iter_mut().skip(first).for_each(|decision| decision.forecast.time_after = time_after);
        self.journal.drain(..self.journal.len().saturating_sub(JOURNAL));
    }

    fn note_effects(&mut self, look: &Look) {
        let Some(samples_per_second) = look.samples_per_second else { return };
        let is_due = |decision: &&mut Decision| {
            decision.outcome.is_none() && decision.carried_out && decision.look + EFFECT_AFTER <= self.look
        };
        for decision in self.journal.iter_mut().filter(is_due) {
            decision.outcome = Some(Outcome { samples_per_second });
        }
    }
}

/// How many partitions each node is expected to host, and how long it takes for them.
struct Expected<'a> {
    look: &'a Look,
    shares: BTreeMap<NodeId, Share>,
    /// The eighths of all shares.
    all: u64,
}

impl<'a> Expected<'a> {
    fn of(record: &BalancerRecord, look: &'a Look) -> Self {
        let shares: BTreeMap<NodeId, Share> =
            look.nodes.iter().map(|node| (node.clone(), record.share(node))).collect();
        let all = shares.values().map(|share| u64::from(share.eighths())).sum();
        Self { look, shares, all }
    }

    fn give(&mut self, node: &NodeId, share: Share) {
        let before = self.shares.insert(node.clone(), share).expect("a node of the look");
        self.all = self.all + u64::from(share.eighths()) - u64::from(before.eighths());
    }

    /// The time of the node that takes longest, in times of a node with an even share and the speed of the median.
    fn time(&self) -> f64 {
        self.shares.iter().map(|(node, share)| self.time_of(node, *share)).fold(0.0, f64::max)
    }

    /// The same of one node, with a share.
    fn time_of(&self, node: &NodeId, share: Share) -> f64 {
        let times = self.look.slowness.get(node).map_or(1.0, |slowness| slowness.times);
        f64::from(share.eighths()) / self.all.max(1) as f64 * self.shares.len() as f64 * times
    }

    /// The bytes that move when a node gets another share.
    fn bytes(&self, from: Share, to: Share) -> u64 {
        let (from, to) = (u64::from(from.eighths()), u64::from(to.eighths()));
        let part = |eighths: u64, all: u64| eighths as f64 / all.max(1) as f64;
        let moved = part(from, self.all) - part(to, self.all - from + to);
        (self.look.bytes as f64 * moved.abs()).round() as u64
    }

    /// The share nearest to the wanted one whose bytes are within the budget, and these bytes. From a `full` budget the
    /// smallest step is paid in any case, with a debt: partitions may be larger than the budget ever is.
    fn affordable(&self, from: Share, to: Share, budget: i64, full: i64) -> Option<(Share, i64)> {
        let (low, high) = (from.min(to), from.max(to));
        let mut between: Vec<Share> = Share::between(low, high).filter(|share| *share != from).collect();
        between.sort_by_key(|share| share.eighths().abs_diff(to.eighths()));
        let price = |share| i64::try_from(self.bytes(from, share)).unwrap_or(i64::MAX / 2);
        let priced: Vec<(Share, i64)> = between.into_iter().map(|share| (share, price(share))).collect();
        let smallest = priced.last().copied().filter(|_| budget >= full);
        priced.into_iter().find(|(_, bytes)| *bytes <= budget).or(smallest)
    }
}

impl Share {
    /// All shares from one to another.
    fn between(low: Share, high: Share) -> impl Iterator<Item = Share> {
        (0..=8).map(Share).filter(move |share| (low..=high).contains(share))
    }
}
