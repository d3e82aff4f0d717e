//! Asking a node for its cluster's authority, before there is anything to believe it by: its digest is that.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use shardd_api::problem::Problem;
use shardfmt::digest::Digest;
use ureq::tls::TlsConfig;

/// The longest that an authority's certificate may be, as PEM.
const LONGEST: u64 = 64 << 10;

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum FetchError {
    /// No answer.
    #[error("{reason}")]
    Unreachable { reason: String },
    /// The server is not a node.
    #[error("{reason}")]
    NoAuthority { reason: String },
    /// It is another than the one expected.
    #[error("its authority {found} is not {pinned}")]
    Wrong { pinned: Digest, found: Digest },
}

/// A node's answer about its cluster's authority.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Its certificate.
    pub pem: String,
    /// The digest of that.
    pub digest: Digest,
    /// The time there, in seconds since 1970, by the answering server.
    pub now: Option<u64>,
}

/// Asks the node at `url`. The server that answers there is believed only if the digest is `pinned`; without
/// one the caller has to compare it. Nothing is sent to the server that answers.
///
/// # Errors
/// [`FetchError`].
pub fn fetch(url: &str, pinned: Option<Digest>, within: Duration) -> Result<Fetched, FetchError> {
    let unreachable = |error: ureq::Error| FetchError::Unreachable { reason: error.to_string() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let anyone =
        TlsConfig::builder().unversioned_rustls_crypto_provider(provider).disable_verification(true).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(within))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .tls_config(anyone)
        .build()
        .into();
    let mut answer = agent.get(format!("{url}/v1/authority")).call().map_err(unreachable)?;
    if !answer.status().is_success() {
        let status = answer.status();
        let problem: Option<Problem> = answer.body_mut().read_json().ok();
        let why = problem.map_or_else(|| status.to_string(), |problem| problem.detail);
        let reason = format!("asked for its authority, it answers: {why}");
        return Err(FetchError::NoAuthority { reason });
    }
    let now = answer.headers().get("date").and_then(|date| {
        let date = httpdate::parse_http_date(date.to_str().ok()?).ok()?;
        Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
    });
    let said = answer.body_mut().with_config().limit(LONGEST).read_to_string().map_err(unreachable)?;
    let digest = digest_of(&said)?;
    match pinned {
        Some(pinned) if pinned != digest => Err(FetchError::Wrong { pinned, found: digest }),
        _ => Ok(Fetched { pem: said, digest, now }),
    }
}

/// The digest of a certificate in PEM.
///
/// # Errors
/// [`FetchError::NoAuthority`] when it is none.
pub fn digest_of(pem: &str) -> Result<Digest, FetchError> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes());
    certificate.map(|certificate| Digest::of(&certificate)).map_err(|_| {
        let reason = "the authority that it sent is not a certificate".to_owned();
        FetchError::NoAuthority { reason }
    })
}
