//! Resolves the certificate for TLS handshakes. It can be replaced while the node serves.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Gives every TLS handshake, on the client or the server side, the current certificate.
pub struct CertResolver(RwLock<Arc<CertifiedKey>>);

impl CertResolver {
    /// Begins with this chain, the node's own certificate first.
    ///
    /// # Errors
    /// When the key is of a kind that cannot sign, or is not that of the certificate.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self(RwLock::new(certified(chain, key)?)))
    }

    /// Replaces the certificate for later handshakes. Open connections stay.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the current certificate stays.
    pub fn replace(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let fresh = certified(chain, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The node's own certificate, without the chain.
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

impl ResolvesServerCert for CertResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl ResolvesClientCert for CertResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for CertResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertResolver(…)")
    }
}
