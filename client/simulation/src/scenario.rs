//! The scenario: the number of nodes, joins and departures, and the rate of the link. Does not know costs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};
use shardd_plan::Plan;
use shardfmt::ByteSize;

/// Nodes that a placement can number.
const MOST_NODES: u64 = 1 << 16;
/// Epochs that are still reported.
const MOST_EPOCHS: u32 = 100_000;

/// A cluster that trains, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Nodes in epoch 0, each with one rank of the run.
    pub nodes: u32,
    /// Epochs that are trained; an exchange is made after each.
    pub epochs: u32,
    /// Who comes and goes.
    pub events: Vec<Event>,
    /// The bandwidth of a node in a second, in each direction.
    pub link: LinkRate,
    /// The round-trip time between nodes.
    pub round_trip: Duration,
    /// How long a step takes, if that is known.
    pub step: Option<Duration>,
    /// Samples in a step.
    pub global_batch_size: u64,
}

/// Nodes come or go before an epoch. Written `join:EPOCH:NODES`, `leave:...` or `death:...`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of change.
    pub kind: EventKind,
    /// The epoch before which they do it.
    pub epoch: u32,
    /// How many they are.
    pub nodes: u32,
}

/// How nodes come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// New ones come, with empty disks; the first of them take the ranks of those that are gone.
    Join,
    /// Some are drained: they stay until others have their grains.
    Leave,
    /// Some are lost, with their grains.
    Death,
}

/// Bytes in a second. Written `10Gbit/s`, `10Gbit` or `1.25GB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate(ByteSize);

/// Why a scenario cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// No nodes.
    #[error("a cluster needs at least 1 node")]
    NoNodes,
    /// Nothing to do.
    #[error("{epochs} epochs are outside 1 to {MOST_EPOCHS}")]
    Epochs {
        /// Epochs that are trained.
        epochs: u32,
    },
    /// Some node would never host anything.
    #[error(
        "{nodes} nodes cannot share {partitions} partitions: make the plan with {nodes} partitions or more"
    )]
    TooManyNodes {
        /// Nodes at that time.
        nodes: u64,
        /// Partitions of the plan.
        partitions: u32,
    },
    /// Too many to distinguish.
    #[error("{nodes} nodes are more than a placement can number: use at most {MOST_NODES}")]
    Nodes {
        /// Nodes at that time.
        nodes: u64,
    },
    /// An event outside the run.
    #[error(
        "{event}: nodes come and go before epochs from 1 on that are trained, and there are {epochs} epochs"
    )]
    EventEpoch {
        /// The event.
        event: Event,
        /// Epochs that are trained.
        epochs: u32,
    },
    /// An event that leaves no node.
    #[error("{event}: there are {nodes} nodes then, and one has to stay")]
    EventNodes {
        /// The event.
        event: Event,
        /// Nodes at that time.
        nodes: u64,
    },
    /// A text that is no event.
    #[error("use join:EPOCH:NODES, leave:EPOCH:NODES or death:EPOCH:NODES, such as death:30:1")]
    EventSyntax,
    /// A text that is no rate, or one that never gets anywhere.
    #[error("use a number and a unit per second, such as 10Gbit/s or 1.25GB/s")]
    LinkSyntax,
    /// No sample in a step.
    #[error("a step needs at least 1 sample: give a global batch size of 1 or more")]
    NoBatch,
    /// A matrix of an epoch that is not played.
    #[error("epoch {epoch} is not played: there are {epochs} epochs, from 0")]
    MatrixEpoch {
        /// The epoch.
        epoch: u32,
        /// Epochs that are trained.
        epochs: u32,
    },
    /// An exchange that would take too long to count.
    #[error("{grains} grains in one exchange are too many to count: use larger grains or a smaller share")]
    TooManyMoves {
        /// Grains of the exchange.
        grains: u64,
    },
}

impl Scenario {
    /// A cluster in which nothing happens, with 32 samples of a step for each node, and no round-trip time.
    #[must_use]
    pub fn healthy(nodes: u32, epochs: u32, link: LinkRate) -> Self {
        Self {
            nodes,
            epochs,
            events: Vec::new(),
            link,
            round_trip: Duration::ZERO,
            step: None,
            global_batch_size: 32 * u64::from(nodes.max(1)),
        }
    }

    /// Whether all of it can happen over `plan`.
    pub(super) fn check(&self, plan: &Plan, moves_of_epoch: u64) -> Result<(), ScenarioError> {
        if self.nodes == 0 {
            return Err(ScenarioError::NoNodes);
        }
        if !(1..=MOST_EPOCHS).contains(&self.epochs) {
            return Err(ScenarioError::Epochs { epochs: self.epochs });
        }
        if self.global_batch_size == 0 {
            return Err(ScenarioError::NoBatch);
        }
        let nodes = self.most_nodes()?;
        let partitions = plan.document().partitions;
        if nodes > u64::from(partitions) {
            return Err(ScenarioError::TooManyNodes { nodes, partitions });
        }
        let share = u128::from(plan.document().schedule.largest().units());
        let grains = ((u128::from(plan.full_grain_count()) * share) >> 32) as u64;
        if grains > moves_of_epoch {
            return Err(ScenarioError::TooManyMoves { grains });
        }
        Ok(())
    }

    /// The most nodes there are at a time.
    ///
    /// # Errors
    /// [`ScenarioError`] if an event is outside the run or leaves no node, or if there are too many nodes.
    pub fn most_nodes(&self) -> Result<u64, ScenarioError> {
        let mut events = self.events.clone();
        events.sort_by_key(|event| event.epoch);
        let (mut nodes, mut most) = (u64::from(self.nodes), u64::from(self.nodes));
        for event in events {
            if !(1..self.epochs).contains(&event.epoch) {
                return Err(ScenarioError::EventEpoch { event, epochs: self.epochs });
            }
            nodes = match event.kind {
                EventKind::Join => nodes + u64::from(event.nodes),
                EventKind::Leave | EventKind::Death => nodes
                    .checked_sub(event.nodes.into())
                    .filter(|left| *left > 0)
                    .ok_or(ScenarioError::EventNodes { event, nodes })?,
            };
            most = most.max(nodes);
        }
        if most > MOST_NODES {
            return Err(ScenarioError::Nodes { nodes: most });
        }
        Ok(most)
    }

    /// The events before an epoch, in the order given.
    pub(super) fn events_at(&self, epoch: u32) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.epoch == epoch)
    }
}

impl FromStr for Event {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let number = |text: &str| text.parse().map_err(|_| ScenarioError::EventSyntax);
        let [kind, epoch, nodes] =
            text.split(':').collect::<Vec<_>>().try_into().map_err(|_| ScenarioError::EventSyntax)?;
        let kind = match kind {
            "join" => EventKind::Join,
            "leave" => EventKind::Leave,
            "death" => EventKind::Death,
            _ => return Err(ScenarioError::EventSyntax),
        };
        Ok(Event { kind, epoch: number(epoch)?, nodes: number(nodes)? })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            EventKind::Join => "join",
            EventKind::Leave => "leave",
            EventKind::Death => "death",
        };
        write!(f, "{kind}:{}:{}", self.epoch, self.nodes)
    }
}

impl LinkRate {
    /// The time that a number of bytes takes.
    pub fn time_of(self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.0.0 as f64).unwrap_or(Duration::MAX)
    }
}

impl FromStr for LinkRate {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let syntax = |_| ScenarioError::LinkSyntax;
        let text = text.trim();
        let per_second = text.strip_suffix("/s");
        let bytes = match per_second.unwrap_or(text).strip_suffix("bit") {
            // 10Gbit is 10 GB over 8; 10Gibit has the binary unit in the same way. Bits are those of a second in any case.
            Some(bits) => format!("{bits}B").parse::<ByteSize>().map_err(syntax)?.0 / 8,
            None => per_second.ok_or(ScenarioError::LinkSyntax)?.parse::<ByteSize>().map_err(syntax)?.0,
        };
        match bytes {
            0 => Err(ScenarioError::LinkSyntax),
            bytes => Ok(LinkRate(ByteSize(bytes))),
        }
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.0 as f64 * 8.0;
        match bits {
            b if b >= 1e9 => write!(f, "{} Gbit/s", b / 1e9),
            b if b >= 1e6 => write!(f, "{} Mbit/s", b / 1e6),
            b => write!(f, "{b} bit/s"),
        }
    }
}

/// Bytes in a second, as a number.
impl Serialize for LinkRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0.0)
    }
}
