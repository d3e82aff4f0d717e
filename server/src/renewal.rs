//! Keeps the node's certificate fresh: renews it when two thirds of its time are over, when the node gets
//! other hosts, and when an administrator requests it; takes it from the file when that changes.

use std::sync::Arc;
use std::time::Duration;

use shardd_api::duration::{Span, now};
use shardd_certificates::Host;
use shardd_store::metastore::{MetaError, Metastore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::ca::{CertificateIssuer, Register, rotation_key};
use crate::identity::Identity;
use crate::metastore::MetastoreNode;
use crate::transport::Transport;

/// How often the clock and the file are looked at: the clock may be set, and a machine may sleep.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a signer is left alone at least...
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// ...and at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Who signs.
pub(crate) enum Signer {
    /// This node.
    Here(Arc<CertificateIssuer>),
    /// The first one, whichever that is by then.
    First(Arc<Transport>, Arc<MetastoreNode>),
}

/// The means to keep a certificate fresh.
pub(crate) struct Renewal {
    pub(crate) identity: Arc<Identity>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) signer: Signer,
    pub(crate) metastore: Arc<dyn Metastore>,
}

impl Renewal {
    /// Works until `stop`. A certificate that cannot be renewed is shown until it lapses.
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let keeping = async {
            let mut trouble = Trouble::default();
            let mut noted = false;
            loop {
                match self.on_a_thread(|identity| identity.look_again()).await {
                    Ok(true) => {
                        info!(node = %self.identity.node(), "the certificate in <data>/tls is another: it is shown from now on");
                        noted = false;
                    }
                    Ok(false) => {}
                    Err(error) => trouble.say(format!("<data>/tls: {error}")),
                }
                if !noted {
                    // One that was signed elsewhere is on nobody's list yet.
                    noted = self.note().await.is_ok();
                }
                let due = self.due().await;
                if due > now() {
                    self.wait(Duration::from_secs(due - now())).await;
                    continue;
                }
                let pause = match self.renew().await {
                    Ok(()) if self.identity.info().due() > now() => {
                        trouble = Trouble::default();
                        SHORTEST_PAUSE
                    }
                    // Else it would be renewed without end.
                    Ok(()) => {
                        trouble.say(
                            "the new one is due already; is the clock of this machine right?".to_owned(),
                        );
                        self.pause()
                    }
                    Err(error) => {
                        trouble.say(match self.identity.check_time() {
                            Ok(()) => error,
                            Err(lapsed) => format!("{lapsed} ({error})"),
                        });
                        self.pause()
                    }
                };
                sleep(pause).await;
            }
        };
        stop.run_until_cancelled(keeping).await;
    }

    /// An eighth of the rest of the certificate's time, within limits.
    fn pause(&self) -> Duration {
        let left = Duration::from_secs(self.identity.info().not_after.saturating_sub(now()));
        (left / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }

    fn register(&self) -> Register {
        Register::in_metastore(Arc::clone(&self.metastore))
    }

    /// Notes the node's certificate, and on the first node whether it signs.
    async fn note(&self) -> Result<(), MetaError> {
        let register = self.register();
        if let Signer::Here(issuer) = &self.signer {
            register.note_signing(self.identity.node(), issuer.authority.is_some()).await?;
        }
        register.note(&self.identity.info()).await
    }

    /// Files are read and written where that holds up no other task.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Identity) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let identity = Arc::clone(&self.identity);
        let done = tokio::task::spawn_blocking(move || work(&identity)).await;
        done.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// When the next certificate is wanted, in seconds since 1970.
    async fn due(&self) -> u64 {
        let info = self.identity.info();
        let asked = self.register().rotation(self.identity.node()).await.ok().flatten();
        let is_asked_for = asked.is_some_and(|asked| info.issued() <= asked.issued_until);
        match is_asked_for || !info.covers(&self.hosts) || info.is_early(now()) {
            true => 0,
            false => info.due(),
        }
    }

    /// Until then, or until there may be something to do.
    async fn wait(&self, until_due: Duration) {
        let key = rotation_key(self.identity.node());
        let changed = async {
            let Ok(listing) = self.metastore.list(&key).await else { return std::future::pending().await };
            if self.metastore.changed(&key, listing.revision).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = sleep(POLL_INTERVAL.min(until_due)) => {}
            () = changed => {}
        }
    }

    async fn renew(&self) -> Result<(), String> {
        let node = self.identity.node();
        let csr = self.identity.request().map_err(|error| error.to_string())?;
        let pem = match &self.signer {
            Signer::Here(issuer) => issuer
                .renew(node, self.identity.key_digest(), &csr, &self.hosts)
                .await
                .map_err(|error| error.to_string())?,
            Signer::First(transport, first) => transport
                .ask_certificate(&first.get(), csr, self.hosts.clone())
                .await
                .map_err(|error| error.to_string())?,
        };
        self.on_a_thread(move |identity| identity.take(&pem)).await?;
        let left = self.identity.info().not_after.saturating_sub(now());
        info!(node = %node, left = %Span(Duration::from_secs(left)), "the certificate was renewed");
        Ok(())
    }
}

/// The last error.
#[derive(Default)]
struct Trouble(Option<String>);

impl Trouble {
    /// Says it once.
    fn say(&mut self, now: String) {
        if self.0.as_ref() != Some(&now) {
            warn!(error = now, "the certificate is not renewed; trying again");
            self.0 = Some(now);
        }
    }
}
