//! The exchange as nodes report it and as operators change it: its counts per epoch, its rate, and the settings that hold.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardfmt::ByteSize;

use crate::node::NodeId;
use crate::protocol::RunId;
use crate::serde_str::as_text;

/// One epoch's exchange of one run, as this node saw it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EpochExchange {
    /// Grains that the plan and the placement move into this node.
    pub expected_grains: u64,
    /// Grains that came in by the exchange and are durable.
    pub received_grains: u64,
    /// Their bytes, proofs included.
    pub received_bytes: u64,
    /// Grains that this node sent and the other side acknowledged.
    pub sent_grains: u64,
    /// Bytes that it sent, proofs included, to nodes that answered.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Grains that should have been sent but were refused or lost their receiver.
    pub unsent_grains: u64,
    /// Time in which this node was sending, in millionths of a second.
    #[serde(default)]
    pub sending_micros: u64,
    /// Time that ranks here waited for grains which had not come when their epoch began: what the exchange did not hide.
    #[serde(default)]
    pub waited_micros: u64,
}

impl EpochExchange {
    /// Adds what another node saw of the same epoch.
    pub fn add_node(&mut self, node: &EpochExchange) {
        self.expected_grains += node.expected_grains;
        self.received_grains += node.received_grains;
        self.received_bytes += node.received_bytes;
        self.sent_grains += node.sent_grains;
        self.sent_bytes += node.sent_bytes;
        self.unsent_grains += node.unsent_grains;
        self.sending_micros += node.sending_micros;
        // A wait that is longer than the sending had another cause.
        self.waited_micros += node.waited_micros.min(node.sending_micros);
    }

    /// Which part of the time of sending was hidden behind reading; `None` if nothing was sent.
    pub fn hidden(&self) -> Option<f64> {
        (self.sending_micros > 0).then(|| 1.0 - self.waited_micros as f64 / self.sending_micros as f64)
    }
}

/// An [`EpochExchange`] with its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EpochCount {
    /// The run.
    pub run: String,
    /// The epoch after which the grains moved.
    pub epoch: u32,
    /// The counts.
    #[serde(flatten)]
    pub counts: EpochExchange,
}

/// How fast a node may send what the exchange moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ExchangeRate {
    /// As fast as it must, by how fast the ranks read.
    #[default]
    Auto,
    /// The same, and at most this number of bytes a second.
    Most(ByteSize),
    /// As fast as it goes.
    Unlimited,
}

impl FromStr for ExchangeRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "unlimited" => Ok(Self::Unlimited),
            size => match size.parse() {
                Ok(ByteSize(0)) => Err("0 bytes a second never end; `auto`, `unlimited` or more".to_owned()),
                Ok(rate) => Ok(Self::Most(rate)),
                Err(error) => Err(format!("{error}; or `auto`, or `unlimited`")),
            },
        }
    }
}

impl fmt::Display for ExchangeRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Unlimited => f.write_str("unlimited"),
            // Exactly, as settings have it.
            Self::Most(rate) => rate.serialize(f),
        }
    }
}

as_text!(ExchangeRate);

/// The pace of a node's exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExchangeSettings {
    /// How fast.
    pub rate: ExchangeRate,
    /// Nothing is sent until this is lifted. Grains that become overdue meanwhile are requested, as misses.
    pub paused: bool,
}

impl ExchangeSettings {
    /// The limit of the node's sending, in bytes a second, for all its runs together.
    pub fn most(&self) -> f64 {
        match self.rate {
            _ if self.paused => 0.0,
            ExchangeRate::Most(rate) => rate.0 as f64,
            ExchangeRate::Auto | ExchangeRate::Unlimited => f64::INFINITY,
        }
    }
}

/// An override for the exchange; absent fields stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeOverride {
    /// How fast: `auto`, `unlimited`, or at most a number of bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, nullable = false))]
    pub rate: Option<ExchangeRate>,
    /// Whether nothing is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub paused: Option<bool>,
}

/// All overrides, as the metastore keeps it under `exchange/overrides`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeOverrides {
    /// Of all nodes.
    #[serde(default)]
    pub all: ExchangeOverride,
    /// Of single ones, since the last override for all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeId, ExchangeOverride>,
}

impl ExchangeOverrides {
    /// The settings of `node`, whose settings without an override are `own`.
    pub fn settings_of(&self, node: &NodeId, own: ExchangeSettings) -> ExchangeSettings {
        let wanted = self.nodes.get(node).copied().unwrap_or_default();
        ExchangeSettings {
            rate: wanted.rate.or(self.all.rate).unwrap_or(own.rate),
            paused: wanted.paused.or(self.all.paused).unwrap_or(own.paused),
        }
    }

    /// Changes an override.
    pub fn say(&mut self, change: &ChangeExchange) {
        let wanted = match &change.node {
            Some(node) => self.nodes.entry(node.clone()).or_default(),
            None => &mut self.all,
        };
        if let Some(rate) = change.rate {
            wanted.rate = rate.into();
        }
        wanted.paused = change.paused.or(wanted.paused);
        for of_node in self.nodes.values_mut().filter(|_| change.node.is_none()) {
            of_node.rate = of_node.rate.filter(|_| change.rate.is_none());
            of_node.paused = of_node.paused.filter(|_| change.paused.is_none());
        }
        self.nodes.retain(|_, wanted| *wanted != ExchangeOverride::default());
    }
}

/// A rate that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RateOverride {
    /// The setting without an override: for a node, that for all; for all, the start-up setting of each.
    Default,
    /// This one.
    Rate(ExchangeRate),
}

impl FromStr for RateOverride {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self::Default),
            rate => rate.parse().map(Self::Rate),
        }
    }
}

impl fmt::Display for RateOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

impl From<RateOverride> for Option<ExchangeRate> {
    fn from(wanted: RateOverride) -> Self {
        match wanted {
            RateOverride::Default => None,
            RateOverride::Rate(rate) => Some(rate),
        }
    }
}

as_text!(RateOverride);

/// Changes the pace of the exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChangeExchange {
    /// Of this node; without it, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// How fast from now on: `auto`, `unlimited`, a size such as `50MiB` a second at most, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^(auto|unlimited|default|[1-9][0-9]{0,5}([KMG](i?B)?)?)$"))]
    pub rate: Option<RateOverride>,
    /// Whether nothing is sent from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// The pace of a node's exchange, and its queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeNow {
    /// How fast it sends.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub rate: ExchangeRate,
    /// Whether it sends nothing.
    pub paused: bool,
    /// The queue, by run.
    pub waiting: Vec<ExchangeWaiting>,
}

/// The bytes that a node has yet to send for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExchangeWaiting {
    /// The run.
    pub run: RunId,
    /// Bytes, about.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn a_change() -> impl Strategy<Value = ChangeExchange> {
        let rates = prop::sample::select(vec![
            RateOverride::Default,
            RateOverride::Rate(ExchangeRate::Auto),
            RateOverride::Rate(ExchangeRate::Most(ByteSize::mib(50))),
        ]);
        let nodes = prop::sample::select(vec!["n1", "n2"]).prop_map(|name| name.parse().expect("a name"));
        (prop::option::of(nodes), prop::option::of(rates), any::<Option<bool>>())
            .prop_map(|(node, rate, paused)| ChangeExchange { node, rate, paused })
    }

    proptest! {
        #[test]
        fn what_was_said_last_of_a_node_or_of_all_holds(changes in prop::collection::vec(a_change(), 0..12)) {
            let own = ExchangeSettings::default();
            let mut overrides = ExchangeOverrides::default();
            changes.iter().for_each(|change| overrides.say(change));
            for node in ["n1", "n2", "n3"].map(|name| name.parse::<NodeId>().expect("a name")) {
                let concerns = |change: &&ChangeExchange| change.node.as_ref().is_none_or(|of| *of == node);
                let paused = changes.iter().filter(concerns).filter_map(|change| change.paused).next_back();
                let settings = overrides.settings_of(&node, own);
                prop_assert_eq!(settings.paused, paused.unwrap_or(false));
                let last = |of_all: bool| {
                    let of = changes.iter().filter(|change| change.rate.is_some());
                    of.filter(concerns).rfind(|change| !of_all || change.node.is_none())
                };
                let rate = match last(false).and_then(|change| change.rate) {
                    // `default` of one node: the override for all.
                    Some(RateOverride::Default) => last(true).and_then(|change| change.rate),
                    rate => rate,
                };
                prop_assert_eq!(settings.rate, rate.and_then(Option::from).unwrap_or(own.rate));
            }
            prop_assert!(overrides.nodes.values().all(|wanted| *wanted != ExchangeOverride::default()));
        }
    }
}
