//! Which tokens there are. Nodes follow the tokens in the metastore. So every node knows new and revoked
//! tokens within moments, and uses the last known ones while the metastore is unreachable.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use shardd_api::duration::now;
use shardd_store::metastore::{Expected, Following, Listing, MetaError, Metastore};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Denied, Mark, Role, Scope, Token, TokenId, TokenRecord};

/// Where they are kept.
const PREFIX: &str = "tokens/";
/// After this a metastore that was away is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The tokens of a cluster, as this node knows them.
pub struct Tokens {
    metastore: Arc<dyn Metastore>,
    /// Remembers over restarts whether there are any.
    mark: Option<Mark>,
    /// `None` until the metastore has been read once.
    known: RwLock<Option<BTreeMap<TokenId, Arc<TokenRecord>>>>,
}

/// A token that was shown and is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which one: for logs.
    pub id: TokenId,
    /// Its stored form.
    pub record: Arc<TokenRecord>,
}

impl Tokens {
    /// The tokens that are kept in a metastore. While that is unavailable no token is known, and none is
    /// good. With a mark it is remembered over restarts whether there are any.
    pub async fn open(metastore: Arc<dyn Metastore>, mark: Option<Mark>) -> Arc<Tokens> {
        let tokens = Arc::new(Tokens { metastore, mark, known: RwLock::default() });
        if let Err(error) = tokens.load().await {
            warn!(%error, "tokens are not known yet");
        }
        tokens
    }

    /// Whether there are any; by the state at the node's last run, while the metastore has not been read yet.
    #[must_use]
    pub fn any(&self) -> bool {
        match self.known.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(known) => !known.is_empty(),
            None => self.mark.as_ref().is_some_and(Mark::is_set),
        }
    }

    /// Whether a token other than `but` makes and revokes tokens now.
    #[must_use]
    pub fn has_administrator(&self, but: Option<TokenId>) -> bool {
        let now = now();
        self.list().iter().any(|(id, record)| Some(*id) != but && record.is_administrator(now))
    }

    /// Whether the metastore could not be read yet.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Keeps up with the metastore until `stop`.
    pub async fn follow(self: Arc<Tokens>, stop: CancellationToken) {
        let following = async {
            let mut listings = Following::new(self.metastore.as_ref(), PREFIX, PAUSE);
            loop {
                if let Ok(listing) = listings.next().await {
                    self.take(listing);
                }
            }
        };
        stop.run_until_cancelled(following).await;
    }

    async fn load(&self) -> Result<(), MetaError> {
        self.take(self.metastore.list(PREFIX).await?);
        Ok(())
    }

    fn take(&self, listing: Listing) {
        let parse = |(key, entry): (String, shardd_store::metastore::Entry)| {
            let id = key.strip_prefix(PREFIX)?.parse().ok()?;
            match serde_json::from_slice::<TokenRecord>(&entry.value) {
                Ok(record) if record.is_known() => Some((id, Arc::new(record))),
                // One that this release cannot read allows nothing.
                _ => {
                    warn!(token = %id, "the record of a token cannot be read; it is not accepted");
                    None
                }
            }
        };
        let known: BTreeMap<_, _> = listing.entries.into_iter().filter_map(parse).collect();
        let mut slot = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let (was_known, any) = (slot.is_some(), !known.is_empty());
        *slot = Some(known);
        drop(slot);
        // The first look at an empty metastore may be one at a lost one.
        if let Some(mark) = self.mark.as_ref().filter(|_| was_known || any) {
            mark.keep(any);
        }
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> Vec<(TokenId, Arc<TokenRecord>)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().flatten().map(|(id, record)| (*id, record.clone())).collect()
    }

    /// The rights of a token's bearer.
    ///
    /// # Errors
    /// [`Denied`] when it is none, no longer, or was never one.
    pub fn check(&self, shown: &str) -> Result<Grant, Denied> {
        let token: Token = shown.parse().map_err(|_| Denied::Unknown)?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let record = known.as_ref().ok_or(Denied::Away)?.get(&token.id).ok_or(Denied::Unknown)?;
        record.check(&token, now())?;
        Ok(Grant { id: token.id, record: record.clone() })
    }

    /// Makes a token. It is shown once: it cannot be computed from the stored form.
    ///
    /// # Errors
    /// When the metastore cannot keep it; then there is no such token.
    pub async fn create(
        &self,
        name: String,
        role: Role,
        datasets: Scope,
        lifetime: Option<Duration>,
    ) -> Result<(Token, TokenRecord), MetaError> {
        let (token, now) = (Token::random(), now());
        let expires_at = lifetime.map(|lifetime| now.saturating_add(lifetime.as_secs()));
        let record = TokenRecord::of(&token, name, role, datasets, now, expires_at);
        self.put(&token, &record).await?;
        Ok((token, record))
    }

    /// Takes a token that was made before as an administrator's: one that a metastore knew which is not there any more.
    ///
    /// # Errors
    /// When the metastore cannot keep it.
    pub async fn adopt(&self, token: &Token, name: String) -> Result<(), MetaError> {
        let record = TokenRecord::of(token, name, Role::Admin, Scope::default(), now(), None);
        self.put(token, &record).await
    }

    async fn put(&self, token: &Token, record: &TokenRecord) -> Result<(), MetaError> {
        let value = serde_json::to_vec(record).expect("a record is plain data");
        self.metastore.put(&key(token.id), value, Expected::Absent, None).await?;
        self.load().await
    }

    /// Ends a token. False: there is none of that name.
    ///
    /// # Errors
    /// When the metastore cannot be changed; then it stays good.
    pub async fn revoke(&self, id: TokenId) -> Result<bool, MetaError> {
        let was_there = self.metastore.get(&key(id)).await?.is_some();
        self.metastore.delete(&key(id), Expected::Any).await?;
        self.load().await?;
        Ok(was_there)
    }
}

fn key(id: TokenId) -> String {
    format!("{PREFIX}{id}")
}

#[cfg(test)]
mod tests {
    use shardd_store::metastore::MemoryMetastore;

    use super::*;

    #[tokio::test]
    async fn a_token_is_good_on_every_node_until_it_is_revoked() {
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        let here = Tokens::open(metastore.clone(), None).await;
        let there = Tokens::open(metastore.clone(), None).await;
        let stop = CancellationToken::new();
        let following = tokio::spawn(there.clone().follow(stop.clone()));

        let made = here.create("ci".to_owned(), Role::Write, Scope::default(), None).await;
        let (token, record) = made.expect("is kept");
        let shown = token.reveal();
        assert_eq!(here.check(&shown).expect("is good").record.as_ref(), &record);
        while there.check(&shown).is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(here.revoke(token.id).await, Ok(true));
        assert_eq!(here.check(&shown), Err(Denied::Unknown));
        while there.check(&shown).is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(here.revoke(token.id).await, Ok(false));
        assert!(here.list().is_empty() && metastore.list(PREFIX).await.expect("lists").entries.is_empty());
        stop.cancel();
        following.await.expect("no panic");
    }

    #[tokio::test]
    async fn what_cannot_be_read_allows_nothing() {
        let metastore: Arc<dyn Metastore> = Arc::new(MemoryMetastore::new());
        let tokens = Tokens::open(metastore.clone(), None).await;
        let made = tokens.create("ci".to_owned(), Role::Read, Scope::default(), None).await;
        let (token, _) = made.expect("is kept");
        metastore.put(&key(token.id), b"{".to_vec(), Expected::Any, None).await.expect("puts");
        tokens.load().await.expect("the others are read");
        assert_eq!(tokens.check(&token.reveal()), Err(Denied::Unknown));
        assert_eq!(tokens.check("Bearer"), Err(Denied::Unknown));
    }

    #[tokio::test]
    async fn a_token_ends_with_its_time() {
        let tokens = Tokens::open(Arc::new(MemoryMetastore::new()), None).await;
        let made = tokens.create("ci".to_owned(), Role::Read, Scope::default(), Some(Duration::ZERO)).await;
        let (token, record) = made.expect("is kept");
        let at = record.expires_at.expect("it has an end");
        assert_eq!(tokens.check(&token.reveal()), Err(Denied::Expired { at }));
    }
}
