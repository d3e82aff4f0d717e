//! Joining a cluster: the new node makes its key, learns which authority the cluster has, checks that against the digest its
//! token pins, and only then shows the secret, behind TLS if the first node has it.

use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use shardd_api::duration::now;
use shardd_api::node::NodeId;
use shardd_certificates::{
    self, CA_CERTIFICATE, FetchError, Fetched, Host, NODE_CERTIFICATE, NODE_KEY, Request, write_private,
    write_public,
};
use shardd_store::http::{Credentials, HttpClient, HttpError};
use shardfmt::digest::Digest;
use tracing::warn;

use super::{Cluster, ClusterRole, Identity, IdentityError, JoinToken};

/// How long the first node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Clocks that differ by more are worth a word.
const NOTICED_SKEW: u64 = 120;

/// The body that a joining node posts to `/v1/join`.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The secret of the join token.
    pub secret: String,
    /// A certificate request (PEM), signed with the node's own key, or the certificate (PEM) that it has from the
    /// cluster's authority already.
    pub csr: String,
    /// The name the node wants.
    pub id: NodeId,
    /// The names and addresses under which its HTTP API is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JoinReply {
    /// The node's certificate (PEM).
    pub certificate: String,
    /// The authority's certificate (PEM).
    pub authority: String,
    /// How to find the cluster from now on.
    pub cluster: Cluster,
}

/// Joins the cluster of `token` as `id`, or under a name made from the new key, and keeps everything in `tls`. Blocks.
/// Repeating it after a crash continues with the same key.
///
/// # Errors
/// [`IdentityError`]: unreachable, refused (with the first node's reason), or not the cluster that the token names.
pub fn join(
    tls: &Path,
    token: &JoinToken,
    id: Option<NodeId>,
    hosts: &[Host],
) -> Result<(Identity, Cluster), IdentityError> {
    shardd_certificates::private_directory(tls)?;
    let key = shardd_certificates::key_in(&tls.join(NODE_KEY))?;
    let issued = match Identity::open(tls)? {
        ClusterRole::Issued(identity) if identity.authority() == token.authority => Some(identity),
        ClusterRole::Issued(_) => return Err(IdentityError::OtherCluster),
        _ => None,
    };
    let named = id.or_else(|| issued.as_ref().map(|identity| identity.node().clone()));
    let id = named.unwrap_or_else(|| name_from_key(shardd_certificates::key_digest(&key)));
    let csr = match &issued {
        Some(_) => shardd_certificates::read(&tls.join(NODE_CERTIFICATE))
            .map(|pem| String::from_utf8_lossy(&pem).into_owned())?,
        None => Request::make(&key).map_err(shardd_certificates::CertificateError::from)?,
    };
    let authority = authority(token)?;
    // Before TLS looks at the time, and says only that it is another.
    check_clock(authority.now).map_err(|reason| IdentityError::JoinRefused { site: token.site, reason })?;
    let authority = authority.pem;
    write_public(&tls.join(CA_CERTIFICATE), authority.as_bytes())?;
    let request = JoinRequest {
        secret: token.secret.reveal(),
        csr,
        id: id.clone(),
        hosts: hosts.iter().map(ToString::to_string).collect(),
    };
    let reply = post(token, &tls.join(CA_CERTIFICATE), &request)?;

    let refused = |reason: &str| IdentityError::JoinRefused { site: token.site, reason: reason.to_owned() };
    check_authority(token, &reply.authority)?;
    let (ca, certificate) = (pem(&authority), pem(&reply.certificate));
    let (Some(ca), Some(certificate)) = (ca, certificate) else {
        return Err(refused("its reply holds no certificate"));
    };
    let identity = Identity::of(tls, ca, key, certificate)
        .map_err(|reason| refused(&format!("bad certificate: {reason}")))?;
    if *identity.node() != id {
        return Err(refused(&format!("the certificate does not name {id}")));
    }
    reply.cluster.save(tls)?;
    write_private(&tls.join(NODE_CERTIFICATE), reply.certificate.as_bytes())?;
    Ok((identity, reply.cluster))
}

/// The authority's certificate (PEM), from any server that answers: it must be the one that the token pins.
fn authority(token: &JoinToken) -> Result<Fetched, IdentityError> {
    let fetched = shardd_certificates::fetch(&token.site.to_string(), Some(token.authority), TIMEOUT);
    fetched.map_err(|error| wrong(token, error))
}

fn check_authority(token: &JoinToken, said: &str) -> Result<(), IdentityError> {
    match shardd_certificates::digest_of(said).map_err(|error| wrong(token, error))? {
        found if found == token.authority => Ok(()),
        found => Err(wrong(token, FetchError::Wrong { pinned: token.authority, found })),
    }
}

fn wrong(token: &JoinToken, error: FetchError) -> IdentityError {
    let site = token.site;
    match error {
        FetchError::Unreachable { reason } => IdentityError::JoinUnreachable { site, reason },
        FetchError::NoAuthority { reason } => IdentityError::JoinRefused { site, reason },
        FetchError::Wrong { pinned, found } => IdentityError::WrongAuthority { site, pinned, found },
    }
}

/// Asks the first node at `url`: a server that shows a certificate of the authority in `ca`; or, where it was
/// given one of its own, one of an authority that this machine trusts.
pub(crate) fn ask<T>(
    url: &str,
    ca: &Path,
    within: Duration,
    question: impl Fn(&HttpClient) -> Result<T, HttpError>,
) -> Result<T, HttpError> {
    let by = |credentials: Credentials| question(&HttpClient::with(within, &credentials));
    let asked = by(Credentials { token: None, ca: Some(ca.to_owned()) });
    let is_strange = matches!(asked, Err(HttpError::Unreachable { .. } | HttpError::Untrusted { .. }));
    if !url.starts_with("https://") || !is_strange {
        return asked;
    }
    let system = Credentials::of_env().map(|credentials| Credentials { token: None, ..credentials });
    system.map_err(HttpError::from).and_then(by).or(asked)
}

fn post(token: &JoinToken, ca: &Path, request: &JoinRequest) -> Result<JoinReply, IdentityError> {
    let url = format!("{}/v1/join", token.site);
    let asked = ask(&url, ca, TIMEOUT, |client| client.post_json::<_, JoinReply>(&url, request));
    asked.map_err(|error| match error {
        HttpError::Problem { detail, .. } => IdentityError::JoinRefused { site: token.site, reason: detail },
        HttpError::Unreachable { reason, .. } | HttpError::Untrusted { reason, .. } => {
            IdentityError::JoinUnreachable { site: token.site, reason }
        }
        other => IdentityError::JoinRefused { site: token.site, reason: other.to_string() },
    })
}

/// A clock that is too far from the first node's makes every certificate one of another time.
fn check_clock(theirs: Option<u64>) -> Result<(), String> {
    let ours = now();
    let Some(theirs) = theirs.filter(|theirs| ours.abs_diff(*theirs) >= NOTICED_SKEW) else { return Ok(()) };
    let side = if ours < theirs { "behind" } else { "ahead of" };
    let apart = ours.abs_diff(theirs);
    let said = format!("this machine's clock is {apart} s {side} the first node's");
    if apart >= shardd_certificates::SKEW.as_secs() {
        return Err(format!("{said}; set it right, as certificates have their time"));
    }
    warn!("{said}");
    Ok(())
}

fn pem(text: &str) -> Option<CertificateDer<'static>> {
    CertificateDer::from_pem_slice(text.as_bytes()).ok()
}

/// A name for a node that was given none: two of them hardly ever meet.
fn name_from_key(key: Digest) -> NodeId {
    format!("n-{}", &key.to_string()[..8]).parse().expect("a prefix and hex digits")
}
