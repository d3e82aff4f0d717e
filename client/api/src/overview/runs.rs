//! The runs that are being read: how far, how fast, and what their ranks wait for.

use std::collections::BTreeMap;

use super::{EXPOSED, MOST_RANKS, NodeReport, RankOverview, RunExchange, RunOverview, RunWaits, SlowRank};
use crate::exchange::EpochExchange;
use crate::local_transport::Transport;
use crate::machine::Forecast;
use crate::node::NodeId;
use crate::protocol::RunId;
use crate::status::Reader;

/// A rank that waits for more than this many times the median of its run is a straggler.
const TIMES_THE_MEDIAN: f64 = 3.0;

/// A rank works slowly if the median of the others waits for ranks longer than it does, by more than this part of the time.
const SLOWER: f64 = 0.1;

/// The ranks of each run, each with its own node and as that one has it.
pub(super) type Ranks<'a> = BTreeMap<&'a RunId, BTreeMap<u32, (&'a NodeId, &'a Reader)>>;

/// All ranks, each once. A rank reports to the hosts of its partitions, too.
pub(super) fn ranks(nodes: &[NodeReport]) -> Ranks<'_> {
    let mut all = Ranks::new();
    for status in nodes.iter().filter_map(|node| node.status.as_ref()) {
        for reader in &status.readers {
            let ranks = all.entry(&reader.run).or_default();
            // Its own node alone hears of its steps. A rank that has just changed its node has reported fewer to the one before; a
            // node that lends it files is on its machine.
            let heard = |reader: &Reader| {
                let is_lent = reader.transport != Transport::Stream;
                (reader.loop_time.map(|time| time.steps), is_lent, reader.epoch, reader.position)
            };
            let is_better = |known: &(&NodeId, &Reader)| heard(known.1) < heard(reader);
            if ranks.get(&reader.rank).is_none_or(is_better) {
                ranks.insert(reader.rank, (&status.node, reader));
            }
        }
    }
    all
}

/// All runs that ranks read, the one that waits most first.
pub(super) fn runs(nodes: &[NodeReport]) -> Vec<RunOverview> {
    let mut runs: Vec<RunOverview> =
        ranks(nodes).into_iter().map(|(run, ranks)| of_run(run, &ranks, nodes)).collect();
    let waits = |run: &RunOverview| run.waits.as_ref().map_or(0.0, |waits| waits.exposed_share);
    runs.sort_by(|one, other| waits(other).total_cmp(&waits(one))); // stable: by name otherwise
    runs
}

fn of_run(run: &RunId, ranks: &BTreeMap<u32, (&NodeId, &Reader)>, nodes: &[NodeReport]) -> RunOverview {
    let (_, ahead) = ranks
        .values()
        .max_by_key(|(_, reader)| (reader.epoch, reader.position))
        .expect("a run is listed with its ranks");
    let mut listed: Vec<RankOverview> =
        ranks.iter().filter_map(|(rank, (node, reader))| of_rank(*rank, node, reader)).collect();
    listed.sort_by(|one, other| exposed(other).total_cmp(&exposed(one)));
    let samples_per_second =
        (!listed.is_empty()).then(|| listed.iter().map(|rank| rank.samples_per_second).sum());
    let left = ahead.samples_left() as f64;
    let epoch_ends = ahead.run_rate.filter(|rate| rate.least > 0.0).map(|rate| Forecast {
        in_s: left / rate.middle(),
        earliest_s: left / rate.most,
        latest_s: left / rate.least,
    });
    let (waits, slow) = (waits(&listed, ranks), slow(&listed));
    listed.truncate(MOST_RANKS);
    RunOverview {
        run: run.clone(),
        ranks: ranks.len(),
        epoch: ahead.epoch,
        position: ahead.position,
        epoch_samples: ahead.epoch_samples,
        samples_per_second,
        epoch_ends,
        waits,
        slow,
        readers: listed,
        exchange: exchange(run, ahead.epoch, nodes),
    }
}

fn of_rank(rank: u32, node: &NodeId, reader: &Reader) -> Option<RankOverview> {
    let recent = reader.recent.as_ref()?;
    Some(RankOverview {
        rank,
        node: node.clone(),
        samples_per_second: recent.samples_per_second,
        compute_share: recent.compute_share,
        ranks_share: recent.ranks_share,
        wait_shares: recent.wait_shares.clone(),
    })
}

/// The part of its time that a rank waits.
fn exposed(rank: &RankOverview) -> f64 {
    rank.wait_shares.values().sum::<f64>().min(1.0)
}

/// What the rank that waits most waits for; `sorted` by that.
fn waits(sorted: &[RankOverview], ranks: &BTreeMap<u32, (&NodeId, &Reader)>) -> Option<RunWaits> {
    let first = sorted.first()?;
    let stages = first.wait_shares.iter().filter(|(_, share)| **share > 0.0);
    let stage = stages.max_by(|one, other| one.1.total_cmp(other.1)).map(|(stage, _)| *stage);
    let others = &sorted[1..];
    let median = others.get(others.len() / 2).map(exposed);
    Some(RunWaits {
        exposed_share: exposed(first),
        stage,
        rank: first.rank,
        node: first.node.clone(),
        since: ranks[&first.rank].1.exposed_since,
        is_straggler: exposed(first) > EXPOSED
            && median.is_some_and(|median| exposed(first) > TIMES_THE_MEDIAN * median.max(EXPOSED / 2.0)),
    })
}

/// The rank that the others wait for although it does not wait for data: its own work takes longer.
fn slow(ranks: &[RankOverview]) -> Option<SlowRank> {
    let slowest = ranks.iter().min_by(|one, other| one.ranks_share.total_cmp(&other.ranks_share))?;
    let mut others: Vec<f64> =
        ranks.iter().filter(|rank| rank.rank != slowest.rank).map(|rank| rank.ranks_share).collect();
    others.sort_by(f64::total_cmp);
    let waits = *others.get(others.len() / 2)?;
    // All of them wait for messages; the slow rank waits for little else.
    let is_slow = waits - slowest.ranks_share > SLOWER && exposed(slowest) <= EXPOSED;
    is_slow.then(|| SlowRank {
        rank: slowest.rank,
        node: slowest.node.clone(),
        compute_share: slowest.compute_share,
        others_wait_share: waits,
    })
}

fn exchange(run: &RunId, epoch: u32, nodes: &[NodeReport]) -> RunExchange {
    let statuses = || nodes.iter().filter_map(|node| node.status.as_ref());
    let now = statuses().map(|status| &status.exchange_now);
    let waiting = now.clone().flat_map(|now| &now.waiting).filter(|waiting| waiting.run == *run);
    let counts = || {
        let counts = statuses().flat_map(|status| &status.counters.exchange);
        counts.filter(|count| count.run == run.as_str())
    };
    let mut last = EpochExchange::default();
    let before = epoch.checked_sub(1);
    counts().filter(|count| Some(count.epoch) == before).for_each(|count| last.add_node(&count.counts));
    RunExchange {
        waiting_bytes: waiting.map(|waiting| waiting.bytes).sum(),
        paused_nodes: now.filter(|now| now.paused).count(),
        hidden_share: last.hidden().map(|hidden| hidden.clamp(0.0, 1.0)),
        unsent_grains: counts().map(|count| count.counts.unsent_grains).sum(),
    }
}
