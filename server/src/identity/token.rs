//! The join token: one line with all that a node needs to join a cluster and to know that it joined the right one.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use shardd_certificates::{CertificateError, write_private};
use shardfmt::digest::Digest;

/// `shardd1,<HTTP address, or URL where it has TLS>,<digest of the authority>,<secret>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// Where the first node speaks HTTP.
    pub site: Site,
    /// Digest of the authority's certificate; a server that shows another one is not the cluster.
    pub authority: Digest,
    /// The secret that the first node requires of joining nodes.
    pub secret: Secret,
}

/// An address where a node's HTTP API is, with TLS or without. CertResolver as a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The address.
    pub address: SocketAddr,
    /// Whether it is behind TLS.
    pub tls: bool,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.address)
    }
}

/// A secret of 32 random bytes: compared in constant time, never printed by accident.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new one, from the system's source of randomness.
    ///
    /// # Panics
    /// When the system has none.
    #[must_use]
    pub fn random() -> Secret {
        let mut bytes = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).expect("the system gives random bytes");
        Secret(bytes)
    }

    /// Whether `shown` is this secret as 64 hex digits. Takes the same time for every wrong one.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        // Comparing digests of equal length, in constant time, says nothing about how much of a guess was right.
        blake3::hash(self.reveal().as_bytes()) == blake3::hash(shown.as_bytes())
    }

    /// The secret as text, for the token and the request only.
    #[must_use]
    pub fn reveal(&self) -> String {
        Digest(self.0).to_string()
    }
}

impl FromStr for Secret {
    type Err = NoSecret;

    fn from_str(text: &str) -> Result<Secret, NoSecret> {
        text.parse::<Digest>().map(|bytes| Secret(bytes.0)).map_err(|_| NoSecret)
    }
}

/// Not 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSecret;

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.is(&other.reveal())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl JoinToken {
    /// The token as its one line; it holds the secret.
    #[must_use]
    pub fn reveal(&self) -> String {
        let (tls, address) = (if self.site.tls { "https://" } else { "" }, self.site.address);
        format!("shardd1,{tls}{address},{},{}", self.authority, self.secret.reveal())
    }

    /// The token file at `path`, kept up to date: its secret stays while the cluster does, the address follows the node.
    ///
    /// # Errors
    /// [`CertificateError::Io`] when it cannot be written.
    pub fn keep(path: &Path, site: Site, authority: Digest) -> Result<JoinToken, CertificateError> {
        let kept = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<JoinToken>().ok());
        let secret = match kept {
            Some(kept) if kept.authority == authority => kept.secret,
            _ => Secret::random(),
        };
        let token = JoinToken { site, authority, secret };
        write_private(path, format!("{}\n", token.reveal()).as_bytes())?;
        Ok(token)
    }
}

impl FromStr for JoinToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<JoinToken, BadToken> {
        let parts: Vec<&str> = text.split(',').collect();
        let [magic, http, authority, secret] = parts[..] else { return Err(BadToken::Shape) };
        if magic != "shardd1" {
            return Err(BadToken::Shape);
        }
        let (address, tls) = http.strip_prefix("https://").map_or((http, false), |address| (address, true));
        let address = address.parse().map_err(|_| BadToken::Address(http.into()))?;
        Ok(JoinToken {
            site: Site { address, tls },
            authority: authority.parse().map_err(|_| BadToken::Authority)?,
            secret: secret.parse().map_err(|_| BadToken::Secret)?,
        })
    }
}

/// Why a line is not a join token. The secret is never repeated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Not four parts beginning with `shardd1`.
    #[error(
        "not a join token; copy the whole line that `shardctl token create --join` printed, or give @ and the path of its file"
    )]
    Shape,
    /// The second part.
    #[error("join token: {0:?} is not an address and port")]
    Address(String),
    /// The third part.
    #[error("join token: its third part is not a digest of 64 hex digits; was the line cut?")]
    Authority,
    /// The fourth part.
    #[error("join token: its last part is not 64 hex digits; was the line cut?")]
    Secret,
}
