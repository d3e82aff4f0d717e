//! Who sends to whom in a run: the bytes of its exchange between each two hosts, beside those that its plan and its placement let
//! expect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::node::NodeId;
use crate::protocol::Placement;

/// The bytes that a node has sent to another one for a run, since it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SentTo {
    /// The other one.
    pub node: NodeId,
    /// By the exchange, proofs included.
    pub exchange_bytes: u64,
    /// On request: grains that the other one lacked, proofs included.
    pub served_bytes: u64,
}

/// The bytes between the hosts of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Traffic {
    /// Hosts, by name: rows are senders and columns receivers, in this order.
    pub nodes: Vec<NodeId>,
    /// How many hosts there are, with those that are left out.
    pub hosts: usize,
    /// Bytes sent by the exchange since the sender started.
    pub exchange: Vec<Vec<u64>>,
    /// The same bytes, spread over the pairs as plan and placement let expect: by the partitions of sender and receiver.
    pub predicted: Vec<Vec<u64>>,
    /// Bytes sent on request since the sender started.
    pub served: Vec<Vec<u64>>,
    /// Hosts that did not answer; their rows are zeros.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<NodeId>,
}

impl Traffic {
    /// Of the first `most` hosts of a placement, by their answers.
    #[must_use]
    pub fn of(placement: &Placement, most: usize, answers: &BTreeMap<NodeId, Vec<SentTo>>) -> Traffic {
        let nodes: Vec<NodeId> = placement.hosts.iter().take(most).cloned().collect();
        let column: BTreeMap<&NodeId, usize> = nodes.iter().zip(0..).collect();
        let bytes = |of: fn(&SentTo) -> u64| -> Vec<Vec<u64>> {
            let row = |node: &NodeId| {
                let mut row = vec![0; nodes.len()];
                for sent in answers.get(node).into_iter().flatten() {
                    if let Some(column) = column.get(&sent.node) {
                        row[*column] = of(sent);
                    }
                }
                row
            };
            nodes.iter().map(row).collect()
        };
        let (exchange, served) = (bytes(|sent| sent.exchange_bytes), bytes(|sent| sent.served_bytes));
        let mut partitions = vec![0_u64; nodes.len()];
        for host in &placement.of_partition {
            if let Some(count) = partitions.get_mut(usize::from(*host)) {
                *count += 1;
            }
        }
        // A grain that moves gets to any partition with the same probability.
        let weight = |from: usize, to: usize| {
            if from == to { 0 } else { u128::from(partitions[from]) * u128::from(partitions[to]) }
        };
        let pairs = || (0..nodes.len()).flat_map(|from| (0..nodes.len()).map(move |to| (from, to)));
        let whole: u128 = pairs().map(|(from, to)| weight(from, to)).sum();
        let sent: u128 = exchange.iter().flatten().map(|bytes| u128::from(*bytes)).sum();
        let expected = |from: usize, to: usize| (sent * weight(from, to) / whole.max(1)) as u64;
        let predicted =
            (0..nodes.len()).map(|from| (0..nodes.len()).map(|to| expected(from, to)).collect()).collect();
        let unanswered = nodes.iter().filter(|node| !answers.contains_key(*node)).cloned().collect();
        Traffic { hosts: placement.hosts.len(), nodes, exchange, predicted, served, unanswered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> NodeId {
        name.parse().expect("a name")
    }

    fn sent(node: &str, exchange_bytes: u64, served_bytes: u64) -> SentTo {
        SentTo { node: id(node), exchange_bytes, served_bytes }
    }

    #[test]
    fn bytes_are_where_they_were_sent_and_expected_by_partitions() {
        // n1 hosts two of four partitions.
        let placement = Placement {
            generation: 1,
            hosts: ["n1", "n2", "n3"].map(id).to_vec(),
            of_partition: vec![0, 1, 2, 0],
            moved: Vec::new(),
            departed: BTreeMap::new(),
        };
        let answers = BTreeMap::from([
            (id("n1"), vec![sent("n2", 300, 7), sent("n3", 100, 0), sent("gone", 50, 0)]),
            (id("n2"), vec![sent("n1", 600, 0)]),
        ]);
        let traffic = Traffic::of(&placement, 8, &answers);
        assert_eq!(traffic.exchange, [[0, 300, 100], [600, 0, 0], [0, 0, 0]]);
        assert_eq!(traffic.served, [[0, 7, 0], [0; 3], [0; 3]]);
        // 1,000 bytes over pairs that weigh 2, 2, 2, 1, 2 and 1.
        assert_eq!(traffic.predicted, [[0, 200, 200], [200, 0, 100], [200, 100, 0]]);
        assert_eq!((traffic.hosts, traffic.unanswered), (3, vec![id("n3")]));

        let first = Traffic::of(&placement, 2, &answers);
        assert_eq!(
            (first.nodes.len(), first.hosts, first.exchange),
            (2, 3, vec![vec![0, 300], vec![600, 0]])
        );
        let quiet = Traffic::of(&placement, 8, &BTreeMap::new());
        assert_eq!(quiet.predicted, [[0; 3]; 3]);
    }
}
