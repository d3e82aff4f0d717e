//! Keeps the node's certificate fresh: renewed when two thirds of its time are over, when the node is reached under other
//! hosts, when an administrator asks for it; and taken from the file when somebody puts another there.

use std::sync::Arc;
use std::time::Duration;

use shardd_client::certificates::{Host, now};
use shardd_client::metastore::Metastore;
use shardd_client::node::NodeId;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::desk::{Desk, Register, register_key};
use crate::identity::Identity;
use crate::transport::Transport;

/// How often the clock and the file are looked at: the clock may be set, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(5);
/// How long a signer that could not sign is left alone.
const PAUSE: Duration = Duration::from_secs(5);

/// Who signs.
pub(crate) enum Signer {
    /// This node.
    Here(Arc<Desk>),
    /// The first one.
    First(Arc<Transport>, NodeId),
}

/// What it takes to keep a certificate fresh.
pub(crate) struct Renewal {
    pub(crate) identity: Arc<Identity>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) signer: Signer,
    pub(crate) metastore: Arc<dyn Metastore>,
}

impl Renewal {
    /// Works until `stop`. A certificate that cannot be renewed is shown until it lapses.
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let node = self.identity.node();
        let mut trouble: Option<String> = None;
        let keeping = async {
            loop {
                match self.identity.look_again() {
                    Ok(true) => {
                        info!(%node, "the certificate in <data>/tls is another: it is shown from now on")
                    }
                    Ok(false) => {}
                    Err(error) => say(&mut trouble, format!("<data>/tls: {error}")),
                }
                let due = self.due().await;
                if due > now() {
                    self.wait(Duration::from_secs(due - now())).await;
                    continue;
                }
                match self.renew().await {
                    Ok(()) => {
                        let until = self.identity.info().not_after;
                        info!(%node, days = until.saturating_sub(now()) / (24 * 3600), "the certificate was renewed");
                        trouble = None;
                    }
                    Err(error) => {
                        say(&mut trouble, error);
                        sleep(PAUSE).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    /// When the next certificate is wanted, in seconds since 1970.
    async fn due(&self) -> u64 {
        let info = self.identity.info();
        if !info.covers(&self.hosts) {
            return 0;
        }
        let register = Register::in_metastore(Arc::clone(&self.metastore));
        let asked = register.of(self.identity.node()).await.ok().flatten();
        let before = asked.and_then(|record| record.renew_before).filter(|before| info.issued() < *before);
        before.unwrap_or(u64::MAX).min(info.due())
    }

    /// Until then, or until there may be something to do.
    async fn wait(&self, until_due: Duration) {
        let key = register_key(self.identity.node());
        let changed = async {
            let Ok(listing) = self.metastore.list(&key).await else { return std::future::pending().await };
            if self.metastore.changed(&key, listing.revision).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = sleep(LOOK.min(until_due)) => {}
            () = changed => {}
        }
    }

    async fn renew(&self) -> Result<(), String> {
        let node = self.identity.node();
        let csr = self.identity.request().map_err(|error| error.to_string())?;
        let pem = match &self.signer {
            Signer::Here(desk) => desk
                .renew(node, self.identity.key_digest(), &csr, &self.hosts)
                .await
                .map_err(|error| error.to_string())?,
            Signer::First(transport, first) => transport
                .ask_certificate(first, csr, self.hosts.clone())
                .await
                .map_err(|error| error.to_string())?,
        };
        self.identity.take(&pem)
    }
}

/// Says it once.
fn say(trouble: &mut Option<String>, now: String) {
    if trouble.as_ref() != Some(&now) {
        warn!(error = now, "the certificate could not be renewed; trying again");
        *trouble = Some(now);
    }
}
