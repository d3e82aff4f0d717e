//! The stores that a loader reads, each opened once.

use shardd_store::catalog::{LocalCatalog, StorePlace};
use tracing::{debug, info, warn};

use super::{CacheChoice, LoadError};

/// Stores that are open, each once. Not for async tasks, as no [`LocalCatalog`] is.
pub(crate) struct Stores<'a> {
    opened: Vec<(StorePlace, LocalCatalog)>,
    /// Where shards of stores elsewhere are kept.
    cache: &'a CacheChoice,
}

impl<'a> Stores<'a> {
    /// None yet.
    pub(crate) fn new(cache: &'a CacheChoice) -> Self {
        Self { opened: Vec::new(), cache }
    }

    /// The store at a place. When it is opened, what this machine keeps of its shards that hold forgotten rows goes.
    pub(crate) fn at(&mut self, place: &StorePlace) -> Result<&LocalCatalog, LoadError> {
        let at = match self.opened.iter().position(|(known, _)| known == place) {
            Some(at) => at,
            None => {
                let catalog = LocalCatalog::open_at(place)?;
                if let StorePlace::Url { .. } = place {
                    drop_forgotten(&catalog, self.cache);
                }
                self.opened.push((place.clone(), catalog));
                self.opened.len() - 1
            }
        };
        Ok(&self.opened[at].1)
    }
}

/// Removes from the shards that this machine keeps those that a store has marked. Reading continues where
/// that cannot be done.
fn drop_forgotten(catalog: &LocalCatalog, cache: &CacheChoice) {
    // A web server does not list its files.
    if catalog.origin().is_read_only() || !cache.place().exists() {
        return;
    }
    let forgotten = match catalog.forgotten() {
        Ok(forgotten) if forgotten.is_empty() => return,
        Ok(forgotten) => forgotten,
        Err(error) => return debug!(%error, "it is not known which shards hold rows that were forgotten"),
    };
    match cache.open().and_then(|cache| cache.forget(&forgotten)) {
        Ok(0) => {}
        Ok(files) => info!(files, "rows were forgotten, and the local copies of their shards"),
        Err(error) => warn!(%error, "the local copies of shards with forgotten rows could not be removed"),
    }
}
