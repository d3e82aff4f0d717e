//! What a simulation found, in samples and bytes; a sample of a dataset counts with the mean size.

use std::time::Duration;

use serde::Serialize;
use shardd_plan::{Epoch, Partition, Plan};
use shardfmt::PlanId;

use super::cluster::Cluster;
use super::mixing::fraction;
use super::traffic::Traffic;
use super::{Change, LinkRate, Mixing, Scenario};
use crate::hiding::Hiding;

/// All that was found.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Report {
    /// The plan that was played.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub plan: PlanId,
    /// Its samples.
    pub samples: u64,
    /// Their canonical bytes.
    pub row_bytes: u64,
    /// P.
    pub partitions: u32,
    /// Rows in a grain.
    pub grain_rows: u32,
    /// Grains, short ones included.
    pub grains: u64,
    /// Parts of an exchange.
    pub chunks: u32,
    /// V.
    pub virtual_ranks: u32,
    /// Bytes that a node sends, and at the same time receives, in a second.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub link_bytes_per_second: LinkRate,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// The consequences for the run.
    pub summary: Summary,
    /// Epoch by epoch.
    pub epochs: Vec<EpochReport>,
    /// Node by node over all epochs that were counted; empty where nodes came or went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeReport>,
}

/// The run as a whole. The largest values are of the epochs that were counted.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Summary {
    /// Epochs whose exchanges were played move by move; of the others, traffic is estimated from the last one before.
    pub counted_epochs: u32,
    /// All epochs.
    pub epochs: u32,
    /// The share of all samples that changed its partition in an exchange, in the mean over the counted epochs...
    pub moved_share: f64,
    /// ...and Q (1 - 1/P) over the same.
    pub predicted_moved_share: f64,
    /// Bytes from node to node by exchange, all epochs together...
    pub exchanged_bytes: u64,
    /// ...and Q D (1 - 1/nodes), summed over all epochs.
    pub predicted_exchanged_bytes: u64,
    /// The most that one node sent or received in one exchange.
    pub largest_node_bytes: u64,
    /// Bytes that ranks read from other nodes than theirs, all epochs together.
    pub remote_read_bytes: u64,
    /// The most peers that one node had in one exchange.
    pub most_peers: u32,
    /// Bytes of the dataset over the nodes, where they are fewest.
    pub mean_held_bytes: u64,
    /// The most that is on one node's disk at a time: the grains it hosts, those that have arrived, those it
    /// keeps until others have them.
    pub peak_node_bytes: u64,
    /// The same in samples.
    pub peak_node_samples: u64,
    /// The longest time that a node's part of one exchange takes at the full rate of the link.
    pub slowest_exchange_seconds: f64,
    /// A step of at least this time hides every exchange; see [`Hiding`].
    pub hiding_step_seconds: f64,
    /// The least part of an exchange that is hidden, if the time of a step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub hidden_share: Option<f64>,
    /// The most that training waits for an exchange, if the time of a step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub exposed_seconds: Option<f64>,
    /// Partitions that changed their host as nodes came and went.
    pub partitions_moved: u64,
    /// Bytes that this took from other nodes.
    pub refetched_from_peers: u64,
    /// Bytes that were lost and read from the store again.
    pub refetched_from_store: u64,
}

/// One epoch and the exchange after it. A field that is `None` was not counted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EpochReport {
    /// The epoch.
    pub epoch: u32,
    /// Live nodes.
    pub nodes: u32,
    /// The events before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub change: Option<Change>,
    /// Whether its exchange was played; else its bytes are estimated.
    pub is_counted: bool,
    /// Grains whose turn it was, those that stayed by chance included.
    pub grains_exchanged: u64,
    /// The share of all samples that changed its partition.
    pub moved_share: f64,
    /// Q (1 - 1/P).
    pub predicted_moved_share: f64,
    /// Bytes from node to node by exchange.
    pub exchanged_bytes: u64,
    /// Q D (1 - 1/nodes).
    pub predicted_exchanged_bytes: u64,
    /// The most that one node sent or received.
    pub largest_node_bytes: Option<u64>,
    /// With how many others a node exchanges.
    pub peers: Option<Peers>,
    /// The most bytes on one node's disk at the end of the exchange.
    pub peak_node_bytes: Option<u64>,
    /// Bytes that ranks read from other nodes than theirs.
    pub remote_read_bytes: u64,
    /// How long the busiest node's part takes at the full rate of the link.
    pub exchange_seconds: Option<f64>,
    /// The share of grains in their first partition as the epoch begins.
    pub home_share: Option<Mixing>,
}

/// Connections in an exchange.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Peers {
    /// Of a node in the mean.
    pub mean: f64,
    /// Of the node that has most.
    pub largest: u32,
}

/// One node in all epochs that were counted.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeReport {
    /// Its number.
    pub node: u32,
    /// Partitions it hosts.
    pub partitions: u32,
    /// Bytes of them.
    pub held_bytes: u64,
    /// Bytes it sent by exchange in an epoch, in the mean...
    pub sent_bytes: u64,
    /// ...and received.
    pub received_bytes: u64,
    /// The most others it exchanged with after one epoch.
    pub most_peers: u32,
    /// Bytes that its rank reads elsewhere in an epoch.
    pub remote_read_bytes: u64,
    /// The most bytes on its disk.
    pub peak_bytes: u64,
}

/// Writes the report, epoch after epoch.
pub(super) struct Recorder<'p> {
    plan: &'p Plan,
    row_bytes: u64,
    scenario: &'p Scenario,
    virtual_ranks: u32,
    epochs: Vec<EpochReport>,
    summary: Summary,
    nodes: Vec<NodeReport>,
    /// Of the last exchange that was counted: grains exchanged, moved to another partition, and to another node.
    last: [u64; 3],
}

impl<'p> Recorder<'p> {
    pub(super) fn new(plan: &'p Plan, row_bytes: u64, scenario: &'p Scenario) -> Self {
        let summary = Summary { epochs: scenario.epochs, ..Summary::default() };
        let (epochs, nodes) = (vec![], vec![]);
        Recorder { plan, row_bytes, scenario, virtual_ranks: 0, epochs, summary, nodes, last: [0; 3] }
    }

    /// An epoch whose exchange was played.
    pub(super) fn counted(
        &mut self,
        epoch: Epoch,
        cluster: &Cluster,
        change: Option<Change>,
        traffic: &Traffic,
        mixing: Mixing,
    ) {
        let grain_rows = u64::from(self.plan.document().grain_rows);
        let sent: u64 = traffic.sent.iter().sum();
        self.last = [traffic.exchanged, traffic.moved, sent];
        let busiest = traffic.sent.iter().chain(&traffic.received).max().copied().unwrap_or(0);
        let largest = self.bytes(busiest * grain_rows);
        let held = cluster.held();
        let peaks: Vec<u64> =
            held.iter().zip(&traffic.received).map(|(held, grains)| held + grains * grain_rows).collect();
        let peak_samples = peaks.iter().max().copied().unwrap_or(0);
        let peers = traffic.peers.iter().copied();
        let peers = Peers {
            mean: peers.clone().map(f64::from).sum::<f64>() / f64::from(cluster.live_count()),
            largest: peers.max().unwrap_or(0),
        };
        let seconds = self.scenario.link.time_of(largest).as_secs_f64();

        let summary = &mut self.summary;
        summary.counted_epochs += 1;
        summary.largest_node_bytes = summary.largest_node_bytes.max(largest);
        summary.most_peers = summary.most_peers.max(peers.largest);
        summary.peak_node_samples = summary.peak_node_samples.max(peak_samples);
        summary.slowest_exchange_seconds = summary.slowest_exchange_seconds.max(seconds);
        self.record_nodes(cluster, traffic, &held, &peaks);
        self.push(EpochReport {
            change,
            is_counted: true,
            grains_exchanged: traffic.exchanged,
            moved_share: self.share(traffic.moved * grain_rows),
            exchanged_bytes: self.bytes(sent * grain_rows),
            largest_node_bytes: Some(largest),
            peers: Some(peers),
            peak_node_bytes: Some(self.bytes(peak_samples)),
            exchange_seconds: Some(seconds),
            home_share: Some(mixing),
            ..self.expected(epoch, cluster)
        });
    }

    /// An epoch whose exchange is taken to be like the last one counted.
    pub(super) fn estimated(
        &mut self,
        epoch: Epoch,
        exchanged: u64,
        cluster: &Cluster,
        change: Option<Change>,
    ) {
        let [before, moved, sent] = self.last;
        let scaled = |count: u64| {
            let samples = u128::from(count) * u128::from(exchanged) / u128::from(before.max(1));
            samples as u64 * u64::from(self.plan.document().grain_rows)
        };
        let expected = self.expected(epoch, cluster);
        // After nothing was exchanged, there is only the formula.
        let (moved_share, exchanged_bytes) = match before {
            0 => (expected.predicted_moved_share, expected.predicted_exchanged_bytes),
            _ => (self.share(scaled(moved)), self.bytes(scaled(sent))),
        };
        self.push(EpochReport {
            change,
            grains_exchanged: exchanged,
            moved_share,
            exchanged_bytes,
            ..expected
        });
    }

    /// The figures of an epoch by formulas and the placement.
    fn expected(&self, epoch: Epoch, cluster: &Cluster) -> EpochReport {
        let document = self.plan.document();
        let share = fraction(document.schedule.after(epoch));
        let nodes = cluster.live_count();
        let elsewhere = |parts: u32| 1.0 - 1.0 / f64::from(parts);
        EpochReport {
            epoch: epoch.0,
            nodes,
            change: None,
            is_counted: false,
            grains_exchanged: 0,
            moved_share: 0.0,
            predicted_moved_share: share * elsewhere(document.partitions),
            exchanged_bytes: 0,
            predicted_exchanged_bytes: (share * elsewhere(nodes) * self.row_bytes as f64) as u64,
            largest_node_bytes: None,
            peers: None,
            peak_node_bytes: None,
            remote_read_bytes: self.bytes(cluster.remote().iter().sum()),
            exchange_seconds: None,
            home_share: None,
        }
    }

    fn push(&mut self, epoch: EpochReport) {
        let summary = &mut self.summary;
        summary.exchanged_bytes = summary.exchanged_bytes.saturating_add(epoch.exchanged_bytes);
        summary.predicted_exchanged_bytes =
            summary.predicted_exchanged_bytes.saturating_add(epoch.predicted_exchanged_bytes);
        summary.remote_read_bytes = summary.remote_read_bytes.saturating_add(epoch.remote_read_bytes);
        let mean = self.row_bytes / u64::from(epoch.nodes);
        summary.mean_held_bytes = summary.mean_held_bytes.max(mean);
        if epoch.is_counted {
            summary.moved_share += epoch.moved_share;
            summary.predicted_moved_share += epoch.predicted_moved_share;
        }
        if let Some(change) = epoch.change {
            let (peers, store) =
                (self.bytes(change.samples_from_peers), self.bytes(change.samples_from_store));
            let summary = &mut self.summary;
            summary.partitions_moved += change.partitions_moved;
            summary.refetched_from_peers = summary.refetched_from_peers.saturating_add(peers);
            summary.refetched_from_store = summary.refetched_from_store.saturating_add(store);
        }
        self.epochs.push(epoch);
    }

    fn record_nodes(&mut self, cluster: &Cluster, traffic: &Traffic, held: &[u64], peaks: &[u64]) {
        self.virtual_ranks = cluster.virtual_ranks();
        if !self.scenario.events.is_empty() {
            return;
        }
        let grain_rows = u64::from(self.plan.document().grain_rows);
        let remote = cluster.remote();
        self.nodes.resize_with(held.len(), NodeReport::default);
        for (at, mut node) in std::mem::take(&mut self.nodes).into_iter().enumerate() {
            node.node = at as u32;
            node.held_bytes = self.bytes(held[at]);
            node.sent_bytes = node.sent_bytes.saturating_add(self.bytes(traffic.sent[at] * grain_rows));
            node.received_bytes =
                node.received_bytes.saturating_add(self.bytes(traffic.received[at] * grain_rows));
            node.most_peers = node.most_peers.max(traffic.peers[at]);
            node.remote_read_bytes = self.bytes(remote[at]);
            node.peak_bytes = node.peak_bytes.max(self.bytes(peaks[at]));
            self.nodes.push(node);
        }
        if self.summary.counted_epochs == 1 {
            for (_, host) in (0..).map(Partition).zip(&cluster.placement().of_partition) {
                self.nodes[usize::from(*host)].partitions += 1;
            }
        }
    }

    pub(super) fn finish(self) -> Report {
        let Recorder { plan, row_bytes, scenario, virtual_ranks, epochs, mut summary, mut nodes, .. } = self;
        let counted = f64::from(summary.counted_epochs);
        summary.moved_share /= counted;
        summary.predicted_moved_share /= counted;
        summary.peak_node_bytes = bytes(plan, row_bytes, summary.peak_node_samples);
        for node in &mut nodes {
            node.sent_bytes /= u64::from(summary.counted_epochs);
            node.received_bytes /= u64::from(summary.counted_epochs);
        }
        let steps = plan.sample_count().div_ceil(scenario.global_batch_size);
        let document = plan.document();
        let slowest = Duration::try_from_secs_f64(summary.slowest_exchange_seconds).unwrap_or(Duration::MAX);
        let hiding = Hiding::new(slowest, scenario.round_trip, document.chunks, steps);
        summary.hiding_step_seconds = hiding.hiding_step_s();
        summary.hidden_share = scenario.step.map(|step| hiding.hidden_share(step));
        summary.exposed_seconds = scenario.step.map(|step| hiding.exposed_s(step));
        Report {
            plan: plan.id(),
            samples: plan.sample_count(),
            row_bytes,
            partitions: document.partitions,
            grain_rows: document.grain_rows,
            grains: plan.grain_count(),
            chunks: document.chunks,
            virtual_ranks,
            link_bytes_per_second: scenario.link,
            global_batch_size: scenario.global_batch_size,
            steps_per_epoch: steps,
            summary,
            epochs,
            nodes,
        }
    }

    fn bytes(&self, samples: u64) -> u64 {
        bytes(self.plan, self.row_bytes, samples)
    }

    fn share(&self, samples: u64) -> f64 {
        samples as f64 / self.plan.sample_count() as f64
    }
}

/// The bytes of a number of samples of mean size.
fn bytes(plan: &Plan, row_bytes: u64, samples: u64) -> u64 {
    let bytes = u128::from(row_bytes) * u128::from(samples) / u128::from(plan.sample_count());
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
