//! Operator overrides of the exchange, for all nodes or for one. It is kept in the metastore, so that it
//! holds for nodes that restart, and every node follows it. The last override holds: one for all nodes clears
//! those for single nodes.
//!
//! Does not know the grains: it only computes [`ExchangeSettings`].

use shardd_api::exchange::{
    ChangeExchange, ExchangeNow, ExchangeOverrides, ExchangeSettings, ExchangeWaiting,
};
use shardd_store::metastore::{Expected, Listing, MetaError};

use super::value::{pack, parse, understood};
use super::{Engine, EngineError};

pub(super) const EXCHANGE: &str = "exchange/";
/// One document for all nodes, so that a word about all of them is one change.
const KEY: &str = "exchange/overrides";

/// The settings of a node's exchange.
#[derive(Debug, Default)]
pub(super) struct EffectiveSettings {
    /// Its settings without overrides.
    own: ExchangeSettings,
    overrides: ExchangeOverrides,
    /// The metastore's, of the overrides.
    revision: u64,
}

impl Engine {
    /// The overrides of the exchange, as this node knows them.
    pub fn exchange_overrides(&self) -> ExchangeOverrides {
        self.exchange.overrides.lock().expect("no panic while held").overrides.clone()
    }

    /// Overrides the pace of the exchange, on one node or on all. Returns what holds then.
    ///
    /// # Errors
    /// A node that is not there; what only a later release understands; a lost metastore.
    pub async fn change_exchange(&self, change: &ChangeExchange) -> Result<ExchangeOverrides, EngineError> {
        if let Some(node) = &change.node
            && !self.live_nodes().contains(node)
        {
            return Err(EngineError::UnknownNode { node: node.clone() });
        }
        loop {
            let entry = self.meta.get(KEY).await?;
            let (said, revision) = match &entry {
                None => (ExchangeOverrides::default(), 0),
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
                    self.take_overrides(next.clone(), revision);
                    return Ok(next);
                }
                // Another caller changed the overrides: read them again.
                Err(MetaError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the pace of this node's exchange without overrides.
    pub fn set_exchange(&self, own: ExchangeSettings) {
        self.go_by(|said| said.own = own);
    }

    /// The pace of this node's exchange.
    pub fn exchange_now(&self) -> ExchangeNow {
        let ExchangeSettings { rate, paused } = *self.exchange.settings.borrow();
        let waiting = self.active_run_states().into_iter().filter_map(|run| {
            let bytes = run.bytes_to_send();
            (bytes > 0).then(|| ExchangeWaiting { run: run.record.id.clone(), bytes })
        });
        ExchangeNow { rate, paused, waiting: waiting.collect() }
    }

    pub(super) fn list_overrides(&self, listing: &Listing) {
        let Some((_, entry)) = listing.entries.iter().find(|(key, _)| key == KEY) else { return };
        // Overrides of a later release are not understood: the last understood ones hold on.
        if let Some(overrides) = parse(entry) {
            self.take_overrides(overrides, entry.revision);
        }
    }

    /// Overrides older than the known ones are no news.
    fn take_overrides(&self, overrides: ExchangeOverrides, revision: u64) {
        self.go_by(|said| {
            if revision >= said.revision {
                (said.overrides, said.revision) = (overrides, revision);
            }
        });
    }

    fn go_by(&self, change: impl FnOnce(&mut EffectiveSettings)) {
        let mut said = self.exchange.overrides.lock().expect("no panic while held");
        change(&mut said);
        let settings = said.overrides.settings_of(&self.node, said.own);
        self.exchange.settings.send_if_modified(|now| {
            let changes = *now != settings;
            *now = settings;
            if changes {
                self.exchange.gate.set_rate(settings.most());
            }
            changes
        });
    }
}
