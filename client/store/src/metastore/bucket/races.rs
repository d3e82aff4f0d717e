//! Whether the conditional puts of a store hold when many are made at once. Some servers ignore the conditions, some look at
//! them a moment before they write: names kept there would get lost one day without a word.

use bytes::Bytes;
use futures::future::join_all;

use super::{BucketMetastore, MetaError};
use crate::causes::in_a_line;
use crate::origin::{Swap, Swappable, Tag};
use crate::random::unlikely_twice;

/// How many swaps race for one object.
const RACERS: u8 = 8;
/// How long an object is that they race for: the longer, the wider the moment.
const BYTES: usize = 64 << 10;
/// How often they race to replace it.
const ROUNDS: u8 = 3;

/// Lets swaps race for an object of their own: of all who found the same, one may replace it.
///
/// # Errors
/// [`MetaError::Unchangeable`] when several have, or none may.
pub(super) async fn check(metastore: &BucketMetastore) -> Result<(), MetaError> {
    let object = format!("race-{:016x}", unlikely_twice());
    let raced = race(metastore, &object).await;
    if let Err(error) = metastore.origin.remove_swappable(&object).await {
        tracing::debug!(%error, object, "the object of the race stays");
    }
    raced
}

async fn race(metastore: &BucketMetastore, object: &str) -> Result<(), MetaError> {
    let mut base: Option<Tag> = None;
    for round in 0..=ROUNDS {
        let swaps = (0..RACERS).map(|racer| {
            let bytes = Bytes::from(vec![round * RACERS + racer; BYTES]);
            metastore.origin.swap(object, bytes, base.as_ref())
        });
        let mut won = [false; RACERS as usize];
        let mut unknown = None;
        for (racer, outcome) in join_all(swaps).await.into_iter().enumerate() {
            match outcome {
                Swap::Done(_) => won[racer] = true,
                Swap::Lost => {}
                Swap::Refused(error) => {
                    return Err(
                        metastore.unchangeable(&format!("a conditional put fails: {}", in_a_line(&error)))
                    );
                }
                Swap::Unknown(error) => unknown = Some(error),
            }
        }
        let read = metastore.origin.read_swappable(object, None, BYTES as u64).await;
        let found = match read.map_err(|error| metastore.unavailable(&error))? {
            Swappable::Present { bytes, tag } => Some((bytes, tag)),
            Swappable::Absent | Swappable::Unchanged => None,
        };
        // Whose answer got lost may have won all the same.
        let last = found.as_ref().and_then(|(bytes, _)| bytes.first()?.checked_sub(round * RACERS));
        if let Some(won) = last.and_then(|last| won.get_mut(usize::from(last))) {
            *won = true;
        }
        match (won.iter().filter(|won| **won).count(), unknown, found) {
            (1, _, Some((_, Some(tag)))) => base = Some(tag),
            (0, Some(error), _) => return Err(metastore.unavailable(&error)),
            (1, _, _) => return Err(metastore.unchangeable("it gives no ETags, so nothing can be compared")),
            (winners, _, _) => {
                let reason = format!(
                    "its conditional puts do not hold: of {RACERS} that raced to replace the same object, \
                    {winners} were granted it; use a store that does If-Match and If-None-Match properly, \
                    or let a node keep the names (`shardd serve --store`)"
                );
                return Err(metastore.unchangeable(&reason));
            }
        }
    }
    Ok(())
}
