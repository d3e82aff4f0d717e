//! What was said of the exchange while the nodes run: of all of them or of one. It is kept in the metastore, so that it holds for
//! nodes that restart, and every node follows it. What was said last holds: a word about all nodes takes back those about one.
//!
//! Knows nothing of what is sent: it only says how ([`ExchangeSettings`]).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::value::{pack, parse, understood};
use super::{Engine, EngineError, ExchangeRate, ExchangeSettings};
use crate::metastore::{Expected, Listing, MetaError};
use crate::node::NodeId;
use crate::protocol::RunId;
use crate::text::as_text;

pub(super) const EXCHANGE: &str = "exchange/";
/// One document for all nodes, so that a word about all of them is one change.
const KEY: &str = "exchange/wishes";

/// What is wanted of the exchange; what is not said is left to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExchangeWish {
    /// How fast: `auto`, `unlimited`, or so many bytes a second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub rate: Option<ExchangeRate>,
    /// Whether nothing is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub paused: Option<bool>,
}

/// All that was said, as the metastore keeps it under `exchange/wishes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExchangeWishes {
    /// Of all nodes.
    #[serde(default)]
    pub all: ExchangeWish,
    /// Of single ones, since something was last said of all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<NodeId, ExchangeWish>,
}

/// What a node's exchange goes by.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// What it would do by itself.
    own: ExchangeSettings,
    wishes: ExchangeWishes,
    /// The metastore's, of the wishes.
    revision: u64,
}

/// A rate that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RateWish {
    /// What holds if nothing is said: of a node, what is said of all; of all, what each was started with.
    Default,
    /// This one.
    Rate(ExchangeRate),
}

/// Says how the exchange goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeExchange {
    /// Of this node; without it, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// How fast from now on: `auto`, `unlimited`, a size such as `50MiB` a second at most, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^(auto|unlimited|default|[1-9][0-9]{0,5}([KMG](i?B)?)?)$")]
    pub rate: Option<RateWish>,
    /// Whether nothing is sent from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// How the exchange of a node goes on, and what waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExchangeNow {
    /// How fast it sends.
    #[schema(value_type = String)]
    pub rate: ExchangeRate,
    /// Whether it sends nothing.
    pub paused: bool,
    /// What has yet to be sent, by run.
    pub waiting: Vec<ExchangeWaiting>,
}

/// What a node has yet to send for a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExchangeWaiting {
    /// The run.
    pub run: RunId,
    /// Bytes, about.
    pub bytes: u64,
}

impl ExchangeWishes {
    /// How the exchange of `node` goes on if it would go on like `own` by itself.
    pub(super) fn settings_of(&self, node: &NodeId, own: ExchangeSettings) -> ExchangeSettings {
        let wish = self.nodes.get(node).copied().unwrap_or_default();
        ExchangeSettings {
            rate: wish.rate.or(self.all.rate).unwrap_or(own.rate),
            paused: wish.paused.or(self.all.paused).unwrap_or(own.paused),
        }
    }

    /// Something else is said.
    fn say(&mut self, change: &ChangeExchange) {
        let wish = match &change.node {
            Some(node) => self.nodes.entry(node.clone()).or_default(),
            None => &mut self.all,
        };
        if let Some(rate) = change.rate {
            wish.rate = rate.into();
        }
        wish.paused = change.paused.or(wish.paused);
        for of_node in self.nodes.values_mut().filter(|_| change.node.is_none()) {
            of_node.rate = of_node.rate.filter(|_| change.rate.is_none());
            of_node.paused = of_node.paused.filter(|_| change.paused.is_none());
        }
        self.nodes.retain(|_, wish| *wish != ExchangeWish::default());
    }
}

impl Engine {
    /// What was said of the exchange, as far as this node knows.
    pub fn exchange_wishes(&self) -> ExchangeWishes {
        self.said.lock().expect("no panic while held").wishes.clone()
    }

    /// Says how the exchange goes on, on one node or on all. Returns what holds then.
    ///
    /// # Errors
    /// A node that is not there; what only a later release understands; a lost metastore.
    pub async fn change_exchange(&self, change: &ChangeExchange) -> Result<ExchangeWishes, EngineError> {
        if let Some(node) = &change.node
            && !self.live_nodes().contains(node)
        {
            return Err(EngineError::UnknownNode { node: node.clone() });
        }
        loop {
            let entry = self.meta.get(KEY).await?;
            let (said, revision) = match &entry {
                None => (ExchangeWishes::default(), 0),
                Some(entry) => (understood(KEY, entry)?, entry.revision),
            };
            let mut next = said.clone();
            next.say(change);
            let expected = entry.as_ref().map_or(Expected::Absent, |entry| Expected::At(entry.revision));
            let put = match next == said {
                true => Ok(revision),
                false => self.meta.put(KEY, pack(&next), expected, None).await,
            };
            match put {
                Ok(revision) => {
                    self.take_wishes(next.clone(), revision);
                    return Ok(next);
                }
                // Somebody else said something: look at what.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How the exchange of this node goes on where nothing else is said.
    pub fn set_exchange(&self, own: ExchangeSettings) {
        self.go_by(|said| said.own = own);
    }

    /// How the exchange of this node goes on.
    pub fn exchange_now(&self) -> ExchangeNow {
        let ExchangeSettings { rate, paused } = *self.exchange_settings.borrow();
        let waiting = self.active_run_states().into_iter().filter_map(|run| {
            let bytes = run.bytes_to_send();
            (bytes > 0).then(|| ExchangeWaiting { run: run.record.id.clone(), bytes })
        });
        ExchangeNow { rate, paused, waiting: waiting.collect() }
    }

    pub(super) fn list_wishes(&self, listing: &Listing) {
        let Some((_, entry)) = listing.entries.iter().find(|(key, _)| key == KEY) else { return };
        // What a later release says is not understood: what was understood last goes on.
        if let Some(wishes) = parse(entry) {
            self.take_wishes(wishes, entry.revision);
        }
    }

    /// What was said before what is known already is news no more.
    fn take_wishes(&self, wishes: ExchangeWishes, revision: u64) {
        self.go_by(|said| {
            if revision >= said.revision {
                (said.wishes, said.revision) = (wishes, revision);
            }
        });
    }

    fn go_by(&self, change: impl FnOnce(&mut Said)) {
        let mut said = self.said.lock().expect("no panic while held");
        change(&mut said);
        let settings = said.wishes.settings_of(&self.node, said.own);
        self.exchange_settings.send_if_modified(|now| {
            let changes = *now != settings;
            *now = settings;
            if changes {
                self.exchange_gate.set_rate(settings.most());
            }
            changes
        });
    }
}

impl From<RateWish> for Option<ExchangeRate> {
    fn from(wish: RateWish) -> Self {
        match wish {
            RateWish::Default => None,
            RateWish::Rate(rate) => Some(rate),
        }
    }
}

impl FromStr for RateWish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => Ok(Self::Default),
            rate => rate.parse().map(Self::Rate),
        }
    }
}

as_text!(RateWish);

impl fmt::Display for RateWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardfmt::ByteSize;

    use super::*;

    fn a_change() -> impl Strategy<Value = ChangeExchange> {
        let rates = prop::sample::select(vec![
            RateWish::Default,
            RateWish::Rate(ExchangeRate::Auto),
            RateWish::Rate(ExchangeRate::Most(ByteSize::mib(50))),
        ]);
        let nodes = prop::sample::select(vec!["n1", "n2"]).prop_map(|name| name.parse().expect("a name"));
        (prop::option::of(nodes), prop::option::of(rates), any::<Option<bool>>())
            .prop_map(|(node, rate, paused)| ChangeExchange { node, rate, paused })
    }

    proptest! {
        #[test]
        fn what_was_said_last_of_a_node_or_of_all_holds(changes in prop::collection::vec(a_change(), 0..12)) {
            let own = ExchangeSettings::default();
            let mut wishes = ExchangeWishes::default();
            changes.iter().for_each(|change| wishes.say(change));
            for node in ["n1", "n2", "n3"].map(|name| name.parse::<NodeId>().expect("a name")) {
                let concerns = |change: &&ChangeExchange| change.node.as_ref().is_none_or(|of| *of == node);
                let paused = changes.iter().filter(concerns).filter_map(|change| change.paused).next_back();
                let settings = wishes.settings_of(&node, own);
                prop_assert_eq!(settings.paused, paused.unwrap_or(false));
                let last = |of_all: bool| {
                    let of = changes.iter().filter(|change| change.rate.is_some());
                    of.filter(concerns).rfind(|change| !of_all || change.node.is_none())
                };
                let rate = match last(false).and_then(|change| change.rate) {
                    // `default` of one node: what was said of all.
                    Some(RateWish::Default) => last(true).and_then(|change| change.rate),
                    rate => rate,
                };
                prop_assert_eq!(settings.rate, rate.and_then(Option::from).unwrap_or(own.rate));
            }
            prop_assert!(wishes.nodes.values().all(|wish| *wish != ExchangeWish::default()));
        }
    }
}
