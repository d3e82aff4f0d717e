//! Says who hosts what of a run, why, and what would move: by what this node knows, decided by the code that places.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardd_api::explain::{MoveExplained, NodeExplained, PartitionExplained, PlacementExplained, Waits};
use shardd_api::node::NodeId;
use shardd_api::placement::explain::Facts;
use shardd_api::placement::{place, preferences};
use shardd_api::protocol::{Placement, RanksRecord, RunId};
use shardd_plan::{Plan, VirtualRank};

use super::run::RunState;
use super::{Engine, EngineError};

impl Engine {
    /// The hosts of a run's partitions, the reasons, and the moves to come: now, or if `without` were
    /// drained.
    ///
    /// # Errors
    /// An unknown run or node, a node without which there is none.
    pub async fn explain_placement(
        self: &Arc<Self>,
        id: &RunId,
        without: Option<&NodeId>,
    ) -> Result<PlacementExplained, EngineError> {
        let run = self.run(id).await?;
        self.know_placement(&run, 1).await;
        let ranks = match self.ranks(id).await {
            Ok(ranks) => ranks.map(|(ranks, _)| ranks),
            // The last news will do.
            Err(_) => self.watched.launches.borrow().get(id).cloned(),
        };
        let live: Vec<NodeId> = self.live_nodes().into_iter().collect();
        let mut hosts = self.hosts(&run, &live);
        if let Some(without) = without {
            if live.binary_search(without).is_err() {
                return Err(EngineError::UnknownNode { node: without.clone() });
            }
            hosts.retain(|host| host.node != *without);
            if hosts.is_empty() {
                return Err(EngineError::OnlyNode { node: without.clone() });
            }
        }
        let preferred = match &ranks {
            Some(ranks) => preferences(&run.plan, run.record.virtual_ranks, ranks),
            None => vec![None; run.plan.document().partitions as usize],
        };
        let reached = ranks.as_ref().map_or(0, |ranks| ranks.reached);
        let epoch = run.ranks.progress.borrow().furthest().map_or(reached, |(epoch, _)| epoch);
        let partition_bytes = run.needs.read_bytes;
        let mut explained = PlacementExplained {
            run: id.clone(),
            plan: run.record.plan,
            generation: run.generation(),
            epoch,
            partition_bytes,
            remote_bytes_per_epoch: 0,
            remote_bytes_per_epoch_then: 0,
            nodes: self.explain_nodes(&run, &live, ranks.as_ref()),
            partitions: Vec::new(),
            moves: Vec::new(),
            waits: ranks.is_none().then_some(Waits::NoRanks),
        };
        let Some(current) = run.placement() else { return Ok(explained) };
        // No partition of a run without readers moves.
        let target = match (&ranks, hosts.as_slice()) {
            (Some(_), [_, ..]) => place(&hosts, &preferred, Some(&current)),
            _ => None,
        };
        let facts = Facts::new(&hosts, &live, &preferred, &current, target.as_ref());
        let rank_of = ranks_of_partitions(&run, ranks.as_ref());
        let (now, then) = facts.read_elsewhere();
        explained.remote_bytes_per_epoch = now.saturating_mul(partition_bytes);
        explained.remote_bytes_per_epoch_then = then.saturating_mul(partition_bytes);
        for partition in 0..preferred.len() as u32 {
            let node = current.host(partition).clone();
            if let Some(because) = facts.because(partition) {
                let (saves, next) = (facts.saves(partition), target.as_ref().unwrap_or(&current));
                explained.moves.push(MoveExplained {
                    partition,
                    from: node.clone(),
                    to: next.host(partition).clone(),
                    because,
                    copied_bytes: partition_bytes,
                    saved_bytes_per_epoch: if saves > 0 { partition_bytes } else { 0 },
                    added_bytes_per_epoch: if saves < 0 { partition_bytes } else { 0 },
                });
            }
            let reads_at = preferred[partition as usize].clone();
            let rank = reads_at.as_ref().and(rank_of[partition as usize]);
            let why = facts.why(partition);
            explained.partitions.push(PartitionExplained { partition, node, rank, reads_at, why });
        }
        explained.waits = match &ranks {
            None => Some(Waits::NoRanks),
            Some(_) if self.is_copying(&run, &current, &live) => Some(Waits::Copying),
            Some(ranks) if ranks.nodes.iter().any(Option::is_none) => Some(Waits::Gathering),
            Some(_) => None,
        };
        Ok(explained)
    }

    /// Decides the placement of a run again, from the metastore's present state, and makes the first step.
    ///
    /// # Errors
    /// An unknown run, a lost metastore.
    pub async fn rebalance(self: &Arc<Self>, id: &RunId) -> Result<PlacementExplained, EngineError> {
        let run = self.run(id).await?;
        if let Some((ranks, _)) = self.ranks(id).await? {
            self.settle(&run, &ranks, false).await?;
        }
        self.explain_placement(id, None).await
    }

    fn explain_nodes(
        &self,
        run: &RunState,
        live: &[NodeId],
        ranks: Option<&RanksRecord>,
    ) -> Vec<NodeExplained> {
        let (draining, free) = (self.draining(), self.free_for(run));
        let placement = run.placement();
        let hosts = placement.iter().flat_map(|placement| &placement.hosts);
        let mut nodes: BTreeMap<&NodeId, Vec<u32>> =
            live.iter().chain(hosts).map(|node| (node, Vec::new())).collect();
        for (rank, node) in (0u32..).zip(ranks.iter().flat_map(|ranks| &ranks.nodes)) {
            if let Some(node) = node {
                nodes.entry(node).or_default().push(rank);
            }
        }
        let hosted = |node: &NodeId| {
            placement
                .as_ref()
                .map_or(0, |placement: &Arc<Placement>| placement.hosted_by(node).count() as u64)
        };
        let explained = nodes.into_iter().map(|(node, ranks)| NodeExplained {
            node: node.clone(),
            hosts: hosted(node),
            room: run.needs.room_in(free.get(node).copied().unwrap_or(0)) as u64,
            ranks,
            is_live: live.binary_search(node).is_ok(),
            draining: draining.get(node).copied(),
        });
        explained.collect()
    }
}

/// For each partition the rank that reads it.
fn ranks_of_partitions(run: &RunState, ranks: Option<&RanksRecord>) -> Vec<Option<u32>> {
    let (plan, virtual_ranks) = (&run.plan, run.record.virtual_ranks);
    let mut of_partition = vec![None; plan.document().partitions as usize];
    let world = ranks.map_or(0, |ranks| ranks.world);
    for rank in 0..world {
        for virtual_rank in Plan::virtual_ranks_of(rank, world, virtual_ranks) {
            for partition in plan.partitions_of(VirtualRank(virtual_rank), virtual_ranks) {
                of_partition[partition as usize] = Some(rank);
            }
        }
    }
    of_partition
}
