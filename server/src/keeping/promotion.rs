//! Another node takes over the metadata: from its copy in the store, fencing the node before; and that one becomes a member
//! like others when it comes back.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use shardd_api::node::NodeId;
use shardd_api::protocol::Health;
use shardd_certificates::{Authority, CA_CERTIFICATE, CA_KEY};
use shardd_store::metastore::copy::{CopyTag, Found, Replaced};
use shardd_store::metastore::{CopyShelf, MetadataCopy, MetastoreAddress};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{AHEAD, KeepError, META, opening};
use crate::identity::{self, CLUSTER};

/// How long the node before may take to say that it lives.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Ends the names of what made a node the first one, once it is that no more.
const BEFORE: &str = ".before";

/// The way to promote a running node: requested over HTTP, done when it has stopped and started again.
pub struct Promotion {
    pub(crate) shelf: CopyShelf,
    pub(crate) node: NodeId,
    pub(crate) tls: std::path::PathBuf,
    /// Cancelled when it is to be done.
    pub(crate) asked: CancellationToken,
}

impl Promotion {
    /// Looks whether it can be done, and begins.
    ///
    /// # Errors
    /// [`KeepError`], with the obstacle.
    pub(crate) async fn ask(&self) -> Result<(), KeepError> {
        check(&self.shelf, &self.node, &self.tls).await?;
        // The node shall not stop for a key with which it does not start again.
        if self.tls.join(CA_KEY).exists() {
            Authority::open(&self.tls)?;
        }
        self.asked.cancel();
        Ok(())
    }
}

/// The copy to continue from, if no node keeps the metadata.
async fn check(shelf: &CopyShelf, me: &NodeId, tls: &Path) -> Result<(MetadataCopy, CopyTag), KeepError> {
    let none = |reason: String| KeepError::NoCopy { reason };
    let (copy, tag) = match shelf.read(None).await {
        Ok(Found::Copy(copy, tag)) => (copy, tag),
        Ok(Found::Absent | Found::Unchanged) => return Err(none(String::new())),
        Ok(Found::Damaged(reason, _)) => return Err(none(format!(" that is whole ({reason})"))),
        Err(error) => return Err(none(format!(" that can be read ({:#})", anyhow::Error::from(error)))),
    };
    if let Some(to) = copy.moved_to {
        return Err(KeepError::Moved { to });
    }
    if copy.keeper.node != *me && is_alive(&copy.keeper, tls).await {
        let MetastoreAddress { node, http, .. } = copy.keeper;
        return Err(KeepError::Alive { keeper: node, http });
    }
    Ok((copy, tag))
}

async fn is_alive(keeper: &MetastoreAddress, tls: &Path) -> bool {
    let (url, ca) = (format!("{}/v1/health", keeper.http), tls.join(CA_CERTIFICATE));
    let asked = tokio::task::spawn_blocking(move || {
        identity::ask(&url, &ca, TIMEOUT, |client| client.get_json::<Health>(&url))
    });
    matches!(asked.await, Ok(Ok(health)) if health.id == keeper.node)
}

/// Makes `me` the node that keeps the metadata, in `data`. It can be repeated after a crash.
///
/// # Errors
/// [`KeepError`]; then another node keeps it, or none.
pub(crate) async fn promote(data: &Path, shelf: &CopyShelf, me: &MetastoreAddress) -> Result<(), KeepError> {
    let (copy, tag) = check(shelf, &me.node, &data.join("tls")).await?;
    let (before, copied_before) = (copy.keeper.node.clone(), opening::age(&copy));
    let epoch = copy.epoch.saturating_add(1);
    let next = MetadataCopy { epoch, keeper: me.clone(), ..copy };
    match shelf.replace(&next, Some(&tag)).await {
        Replaced::Done(_) => {}
        Replaced::Lost => return Err(KeepError::Raced),
        Replaced::Refused(reason) | Replaced::Unknown(reason) => return Err(KeepError::NoFence { reason }),
    }
    opening::set_aside(&data.join(META), "before")?;
    let _ = fs::remove_file(data.join(AHEAD));
    opening::make(data, &next, epoch).await?;
    warn!(
        epoch,
        %copied_before,
        "this node keeps the metadata from now on, and continues from the copy of {}; changes that {before} acknowledged after that are lost",
        opening::stamp(next.taken_at)
    );
    Ok(())
}

/// Takes from a node what makes it the first one of its cluster, so that it can join; to be undone if it cannot.
pub(crate) fn retire(tls: &Path) -> Result<(), KeepError> {
    [CA_KEY, CLUSTER]
        .iter()
        .try_for_each(|name| rename(&tls.join(name), &tls.join(format!("{name}{BEFORE}"))))
}

/// Undoes that.
pub(crate) fn unretire(tls: &Path) -> Result<(), KeepError> {
    [CA_KEY, CLUSTER]
        .iter()
        .try_for_each(|name| rename(&tls.join(format!("{name}{BEFORE}")), &tls.join(name)))
}

fn rename(from: &Path, to: &Path) -> Result<(), KeepError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(KeepError::Move { path: from.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
