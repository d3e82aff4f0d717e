//! The state of the balancer between looks, as the metastore keeps it under `balancer`, and its journal.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::slowness::Signal;
use crate::node::NodeId;

/// Decisions that are kept.
pub(super) const JOURNAL: usize = 64;
/// Nodes that differ by less, in times, are as fast as each other.
const ALIKE: f64 = 1.3;
/// A node that takes as many times as long would hold up the others with an eighth of their share, too.
const HOPELESS: f64 = 16.0;
/// Bytes of partitions that may move in a minute by default, for each node.
const BYTES_PER_MINUTE: u64 = 1 << 30;

/// The part of the partitions that a node may host, in eighths of that of a node that is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Share(pub(super) u8);

impl Share {
    /// It is not limited.
    pub const FULL: Share = Share(8);
    /// The least that is measured: a node that hosts nothing does not show whether it has recovered.
    pub const LEAST: Share = Share(1);
    /// It hosts nothing.
    pub const NONE: Share = Share(0);

    /// The share of a node that takes `times` as long as others: with it, it needs as long as they do. Differences that
    /// lie in what nodes publish, or in noise, are none.
    pub fn of(times: f64) -> Share {
        if times < ALIKE {
            return Self::FULL;
        }
        if times >= HOPELESS {
            return Self::NONE;
        }
        Share((8.0 / times).round().clamp(1.0, 8.0) as u8)
    }

    /// In eighths.
    pub fn eighths(self) -> u8 {
        self.0
    }

    /// Whether the node is not limited.
    pub fn is_full(self) -> bool {
        self >= Self::FULL
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            8.. => f.write_str("full"),
            0 => f.write_str("none"),
            4 => f.write_str("1/2"),
            even if even % 2 == 0 => write!(f, "{}/4", even / 2),
            odd => write!(f, "{odd}/8"),
        }
    }
}

/// Whether decisions are made, and carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// None is made.
    Off,
    /// They are made and written down, and nothing moves.
    #[default]
    Observe,
    /// Placement follows them.
    On,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::On => "on",
        })
    }
}

/// What people set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether decisions are made, and carried out.
    pub mode: Mode,
    /// Bytes of partitions that may move in a minute for each node of the cluster, in the long run.
    #[serde(default = "bytes_per_minute")]
    pub bytes_per_minute: u64,
}

fn bytes_per_minute() -> u64 {
    BYTES_PER_MINUTE
}

impl Default for Settings {
    fn default() -> Self {
        Self { mode: Mode::default(), bytes_per_minute: BYTES_PER_MINUTE }
    }
}

/// A node as the balancer knows it from earlier looks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Standing {
    /// Its share.
    pub share: Share,
    /// Looks in a row that asked for a smaller share (less than 0) or for a larger one.
    #[serde(default)]
    pub asked: i32,
    /// The mildest change that they asked for.
    #[serde(default)]
    pub wanted: Option<Share>,
    /// Changes in the opposite direction of the change before. They fade.
    #[serde(default)]
    pub reversals: u32,
    /// Whether the last change was to a smaller share.
    #[serde(default)]
    pub last_was_smaller: Option<bool>,
    /// The look of the last change.
    #[serde(default)]
    pub changed: u64,
    /// Looks in a row without the node.
    #[serde(default)]
    pub away: u32,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            share: Share::FULL,
            asked: 0,
            wanted: None,
            reversals: 0,
            last_was_smaller: None,
            changed: 0,
            away: 0,
        }
    }
}

/// The expected effect of a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forecast {
    /// Bytes of the partitions that move.
    pub bytes: u64,
    /// The time of the node that takes longest for its partitions, in times of one that has an even share and is as fast
    /// as the median...
    pub time_before: f64,
    /// ...and that time after this look's decisions.
    pub time_after: f64,
}

/// The effect of a decision, some looks later.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// The samples per second of all ranks then.
    pub samples_per_second: f64,
}

/// A change of a node's share, and its reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Decision {
    /// The number of the look.
    pub look: u64,
    /// When, in seconds since 1970.
    pub at: u64,
    /// The node.
    pub node: NodeId,
    /// Its share before.
    pub from: Share,
    /// Its share from then on.
    pub to: Share,
    /// The signal by which it is slowest.
    pub signal: Signal,
    /// How slow it is by that: 2 takes twice the time of the median of the others.
    pub times: f64,
    /// Whether it was carried out: the mode was `on`.
    pub carried_out: bool,
    /// The expected effect.
    pub forecast: Forecast,
    /// The samples per second of all ranks before it, where they report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub samples_per_second: Option<f64>,
    /// The effect, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub outcome: Option<Outcome>,
}

/// All that the balancer remembers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BalancerRecord {
    /// What people set.
    #[serde(default)]
    pub settings: Settings,
    /// The number of looks so far at which there was something to write down.
    #[serde(default)]
    pub look: u64,
    /// The bytes that may move at once by now; less than 0 after a change that was larger than any budget.
    #[serde(default)]
    pub budget_bytes: i64,
    /// The nodes that are limited, or on the way there or back.
    #[serde(default)]
    pub nodes: BTreeMap<NodeId, Standing>,
    /// The last decisions, the oldest first.
    #[serde(default)]
    pub journal: Vec<Decision>,
}

impl BalancerRecord {
    /// The shares of these nodes that placement goes by.
    pub fn shares_in_force<'a>(&self, nodes: impl Iterator<Item = &'a NodeId>) -> BTreeMap<NodeId, Share> {
        let share = |node: &NodeId| match self.settings.mode {
            Mode::On => self.share(node),
            Mode::Off | Mode::Observe => Share::FULL,
        };
        nodes.map(|node| (node.clone(), share(node))).collect()
    }

    /// The share that a node has, or would have.
    pub fn share(&self, node: &NodeId) -> Share {
        self.nodes.get(node).map_or(Share::FULL, |standing| standing.share)
    }

    /// With other settings. Shares that were only observed begin to count, so what was observed is forgotten.
    #[must_use]
    pub fn with(self, settings: Settings) -> Self {
        if settings.mode == self.settings.mode {
            return Self { settings, ..self };
        }
        Self { settings, nodes: BTreeMap::new(), budget_bytes: 0, ..self }
    }
}
