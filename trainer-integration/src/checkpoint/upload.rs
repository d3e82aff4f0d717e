//! Puts the objects of one rank into the store, in the background. What the last checkpoint has already is not put again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shardfmt::Digest;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};

use super::CheckpointError;
use super::capture::Captured;
use super::checkpoint_store::Objects;
use super::codec::{encode_piece, encode_residual, encode_statistics};
use super::part::Part;
use super::plan::Plan;
use crate::compress::Residual;
use crate::ledger::Numbers;

/// How many objects are encoded and put at once.
const AT_ONCE: usize = 4;

/// A rank's part of a checkpoint.
pub(super) struct Upload {
    pub(super) plan: Arc<Plan>,
    pub(super) captured: Captured,
    /// By virtual rank of this rank; none if the model has none.
    pub(super) statistics: Vec<Vec<f32>>,
    /// Of this rank, if gradients are compressed.
    pub(super) residual: Option<Residual>,
    /// Objects that were written or read by this training.
    pub(super) known: Arc<BTreeSet<Digest>>,
    /// Ends when what belongs before the checkpoint is in the store, or cannot be.
    pub(super) before: Option<oneshot::Receiver<()>>,
}

/// The objects that a rank has put.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    /// Its pieces, then the statistics of its virtual ranks, then its residual.
    pub(super) parts: Vec<Part>,
    /// Bytes that were put.
    pub(super) put: u64,
    /// Bytes that were there.
    pub(super) there: u64,
}

/// The numbers of one object.
enum Object {
    Piece(usize, Numbers<f32>),
    Statistics(Vec<f32>),
    Residual(Residual),
}

impl Upload {
    pub(super) async fn run(self, objects: Objects) -> Result<Written, CheckpointError> {
        let Upload { plan, captured, statistics, residual, known, before } = self;
        if let Some(before) = before {
            let _ = before.await; // in vain, perhaps: this does not depend on it
        }
        let pieces = blocking(move || captured.complete()).await?;
        // A known object could have been removed or cut short by someone.
        let there = if known.is_empty() { BTreeMap::new() } else { objects.present().await? };
        let present = Arc::new(Present { known, there });
        let pieces = pieces.into_iter().map(|(index, numbers)| Object::Piece(index, numbers));
        let own = statistics.into_iter().map(Object::Statistics).chain(residual.map(Object::Residual));
        let mut work = pieces.chain(own).enumerate();
        let (mut parts, mut written) = (BTreeMap::new(), Written::default());
        let mut putting = JoinSet::new();
        loop {
            while putting.len() < AT_ONCE
                && let Some((place, object)) = work.next()
            {
                let (plan, objects, present) = (Arc::clone(&plan), objects.clone(), Arc::clone(&present));
                putting.spawn(async move {
                    let encode = move || {
                        let bytes = match object {
                            Object::Piece(index, numbers) => encode_piece(&plan.pieces[index], &numbers),
                            Object::Statistics(numbers) => encode_statistics(&numbers),
                            Object::Residual(residual) => encode_residual(&residual),
                        };
                        (Part::of(&bytes), bytes)
                    };
                    let (part, bytes) = blocking(encode).await;
                    let is_there = present.has(part);
                    if !is_there {
                        objects.put_part(part, bytes).await?;
                    }
                    Ok::<_, CheckpointError>((place, part, is_there))
                });
            }
            let Some(done) = putting.join_next().await else { break };
            let (place, part, is_there) = done.expect("puts neither panic nor are they given up alone")?;
            parts.insert(place, part);
            *(if is_there { &mut written.there } else { &mut written.put }) += part.bytes;
        }
        written.parts = parts.into_values().collect();
        Ok(written)
    }
}

/// The objects that need not be put.
struct Present {
    known: Arc<BTreeSet<Digest>>,
    there: BTreeMap<Digest, u64>,
}

impl Present {
    /// Only what this training has verified or put is trusted to match its name: damaged objects are put
    /// again.
    fn has(&self, part: Part) -> bool {
        self.known.contains(&part.digest) && self.there.get(&part.digest) == Some(&part.bytes)
    }
}

/// Off the thread that waits for the store.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("the work does not panic, and the runtime lives while it is awaited")
}
