//! The certificate that this node shows, which may change while connections are made.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Shows at every handshake what was put there last, at either end of it.
pub struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    /// Shows this chain, the node's own certificate first.
    ///
    /// # Errors
    /// When the key is of a kind that cannot sign, or is not that of the certificate.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self(RwLock::new(certified(chain, key)?)))
    }

    /// Shows this from now on. Connections that are there stay.
    ///
    /// # Errors
    /// As [`new`](Self::new); then it shows what it has shown before.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let fresh = certified(chain, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The node's own certificate, as it is shown now.
    #[must_use]
    pub fn leaf(&self) -> CertificateDer<'static> {
        self.current().cert.first().cloned().unwrap_or_else(|| Vec::new().into())
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    let key = rustls::crypto::ring::sign::any_supported_type(key)?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match()?;
    Ok(Arc::new(certified))
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown(…)")
    }
}
