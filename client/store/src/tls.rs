//! The one implementation of cryptography that TLS uses in this tree.

use rustls::crypto::{CryptoProvider, ring};

/// Makes ring the implementation that TLS uses in this process, unless one was chosen before. Programs call it when they
/// start; what opens connections makes sure of it.
pub fn use_ring() {
    if CryptoProvider::get_default().is_none() {
        // Someone else may be faster, and does the same.
        let _ = ring::default_provider().install_default();
    }
}
