//! Joining a cluster: the new node makes its key, shows the secret, and gets a certificate that it checks against the
//! digest its token pins.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rcgen::CertificateParams;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use shardd_client::node::NodeId;
use shardfmt::digest::Digest;

use super::{
    CA_CERTIFICATE, Cluster, Identity, IdentityError, JoinToken, NODE_CERTIFICATE, NODE_KEY,
    check_certificate, files, key_digest, node_of,
};

/// How long the first node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a joining node posts to `/v1/join`.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The secret of the join token.
    pub secret: String,
    /// A certificate request (PEM), signed with the node's own key.
    pub csr: String,
    /// The name the node wants.
    pub id: NodeId,
}

/// What it gets.
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
pub fn join(tls: &Path, token: &JoinToken, id: Option<NodeId>) -> Result<(Identity, Cluster), IdentityError> {
    files::private_directory(tls)?;
    let key = files::key(&tls.join(NODE_KEY))?;
    let id = id.unwrap_or_else(|| name_from_key(key_digest(&key)));
    let csr = CertificateParams::default().serialize_request(&key)?.pem()?;
    let request = JoinRequest { secret: token.secret.reveal(), csr, id: id.clone() };
    let reply = post(token.http, &request)?;

    let refused = |reason: &str| IdentityError::JoinRefused { http: token.http, reason: reason.to_owned() };
    let ca = CertificateDer::from_pem_slice(reply.authority.as_bytes())
        .map_err(|_| refused("its reply holds no authority"))?;
    if Digest::of(&ca) != token.authority {
        let (pinned, found) = (token.authority, Digest::of(&ca));
        return Err(IdentityError::WrongAuthority { http: token.http, pinned, found });
    }
    let certificate = CertificateDer::from_pem_slice(reply.certificate.as_bytes())
        .map_err(|_| refused("its reply holds no certificate"))?;
    check_certificate(&certificate, &ca, &key)
        .map_err(|reason| refused(&format!("bad certificate: {reason}")))?;
    if node_of(&certificate).as_ref() != Some(&id) {
        return Err(refused(&format!("the certificate does not name {id}")));
    }

    files::write_private(&tls.join(CA_CERTIFICATE), reply.authority.as_bytes())?;
    reply.cluster.save(tls)?;
    files::write_private(&tls.join(NODE_CERTIFICATE), reply.certificate.as_bytes())?;
    Ok((Identity { node: id, ca, certificate, key }, reply.cluster))
}

fn post(http: SocketAddr, request: &JoinRequest) -> Result<JoinReply, IdentityError> {
    let unreachable = |error: ureq::Error| IdentityError::JoinUnreachable { http, reason: error.to_string() };
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .into();
    let mut reply = agent.post(format!("http://{http}/v1/join")).send_json(request).map_err(unreachable)?;
    if reply.status().is_success() {
        return reply.body_mut().read_json().map_err(unreachable);
    }
    let problem: serde_json::Value = reply.body_mut().read_json().unwrap_or_default();
    let detail = problem.get("detail").and_then(serde_json::Value::as_str);
    let reason = detail.map_or_else(|| format!("status {}", reply.status()), str::to_owned);
    Err(IdentityError::JoinRefused { http, reason })
}

/// A name for a node that was given none: two of them hardly ever meet.
fn name_from_key(key: Digest) -> NodeId {
    format!("n-{}", &key.to_string()[..8]).parse().expect("a prefix and hex digits")
}
