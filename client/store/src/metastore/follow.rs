//! Follows a prefix without missing a change, through times when the metastore is unreachable.

use std::time::Duration;

use tokio::time::sleep;

use super::{Listing, MetaError, Metastore};

/// The entries under a prefix, now and after every change.
pub struct Following<'a> {
    metastore: &'a dyn Metastore,
    prefix: &'a str,
    again_after: Duration,
    since: Since,
}

/// The last news.
enum Since {
    /// Nothing yet.
    Beginning,
    /// All up to this revision.
    Revision(u64),
    /// The metastore is unavailable.
    Away,
}

impl<'a> Following<'a> {
    /// Begins with the present entries. After a failure it waits this long before the next request.
    pub fn new(metastore: &'a dyn Metastore, prefix: &'a str, again_after: Duration) -> Self {
        Self { metastore, prefix, again_after, since: Since::Beginning }
    }

    /// The entries after the next change, or why they cannot be known. Dropping the future misses nothing.
    ///
    /// # Errors
    /// Those of the metastore; the next call asks again.
    pub async fn next(&mut self) -> Result<Listing, MetaError> {
        if let Since::Away = self.since {
            sleep(self.again_after).await;
        }
        let found = self.look().await;
        self.since = match &found {
            Ok(listing) => Since::Revision(listing.revision),
            Err(_) => Since::Away,
        };
        found
    }

    async fn look(&self) -> Result<Listing, MetaError> {
        if let Since::Revision(revision) = self.since {
            self.metastore.changed(self.prefix, revision).await?;
        }
        self.metastore.list(self.prefix).await
    }
}
