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
                if self.identity.is_due(&self.hosts) || self.is_asked_for().await {
                    match self.renew().await {
                        Ok(()) => {
                            let days = self.identity.info().not_after.saturating_sub(now()) / (24 * 3600);
                            info!(%node, days, "the certificate was renewed");
                            trouble = None;
                        }
                        Err(error) => {
                            say(&mut trouble, error);
                            sleep(PAUSE).await;
                        }
                    }
                }
                self.wait().await;
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    /// Until there may be something to do.
    async fn wait(&self) {
        let key = register_key(self.identity.node());
        let changed = async {
            let Ok(listing) = self.metastore.list(&key).await else { return std::future::pending().await };
            if self.metastore.changed(&key, listing.revision).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = sleep(LOOK) => {}
            () = changed => {}
        }
    }

    async fn is_asked_for(&self) -> bool {
        let register = Register::in_metastore(Arc::clone(&self.metastore));
        let Ok(Some(record)) = register.of(self.identity.node()).await else { return false };
        record.renew_before.is_some_and(|before| self.identity.info().issued() < before)
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
