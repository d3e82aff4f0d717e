//! All ranks read a checkpoint together: rank 0 says which, each rank reads the parts of its virtual ranks, and all get all of them.

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::CheckpointError;
use super::manifest::{CheckpointId, Manifest};
use super::part::{State, decode, share};
use super::shelf::Shelf;
use crate::collective::{Collective, CollectiveError, Message};
use crate::reduce::VirtualRanks;

/// From where a training goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// From the newest checkpoint that is whole; from the beginning if there are none.
    #[default]
    Auto,
    /// From the beginning; a run that has checkpoints is refused.
    Never,
    /// From the checkpoint of this many steps; those after it are given up once a new one is written.
    Step(u64),
}

/// A checkpoint that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its name.
    pub id: CheckpointId,
    /// Its document.
    pub manifest: Manifest,
    /// Its numbers, as far as this rank needs them.
    pub state: State,
    /// Checkpoints of later steps, from before the training went back to this one.
    pub(crate) superseded: Vec<CheckpointId>,
}

/// What rank 0 says of the store, or why it cannot.
#[derive(Debug, Serialize, Deserialize)]
enum Said<T> {
    This(T),
    /// What lies there is no good.
    Damaged(String),
    /// Something else is wrong.
    Failed(String),
}

/// The checkpoint that a run goes on from, the same on all ranks; `None` if it begins. All ranks call this together.
///
/// One that is damaged is passed over for the one before it, and a warning says so.
///
/// # Errors
/// See [`CheckpointError`]; every rank has one if any has.
pub fn load(
    collective: &mut dyn Collective,
    shelf: &Shelf,
    resume: &Resume,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let listed =
        say(collective, || shelf.list().map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>()))?;
    let listed: Vec<CheckpointId> = listed?.iter().filter_map(|id| id.parse().ok()).collect();
    let (run, store) = (shelf.run().to_string(), shelf.store().to_owned());
    let candidates: Vec<CheckpointId> = match resume {
        Resume::Auto => listed.clone(),
        Resume::Never => match listed.first() {
            None => return Ok(None),
            Some(newest) => return Err(CheckpointError::HasBegun { run, store, newest: newest.short() }),
        },
        Resume::Step(step) => listed.iter().copied().filter(|id| id.step == *step).collect(),
    };
    if candidates.is_empty() {
        let Resume::Step(step) = resume else { return Ok(None) };
        let steps: Vec<String> = listed.iter().map(|id| id.step.to_string()).collect();
        let present = if steps.is_empty() { "none".to_owned() } else { steps.join(", ") };
        return Err(CheckpointError::NoSuch { wanted: step.to_string(), run, store, present });
    }
    let mut reasons = Vec::new();
    for id in candidates {
        match read(collective, shelf, id)? {
            Ok((manifest, state)) => {
                // Only who was told to goes back; what was passed over as damaged is no longer needed either.
                let superseded = listed.iter().copied().filter(|other| other.step > id.step).collect();
                return Ok(Some(Checkpoint { id, manifest, state, superseded }));
            }
            Err(reason) => {
                if collective.rank() == 0 {
                    warn!(checkpoint = %id.short(), %reason, "a checkpoint is damaged and passed over");
                }
                reasons.push(reason);
            }
        }
    }
    Err(CheckpointError::NoneWhole { run, store, reasons: reasons.join("; ") })
}

/// The numbers of one checkpoint, or why they are no good.
fn read(
    collective: &mut dyn Collective,
    shelf: &Shelf,
    id: CheckpointId,
) -> Result<Result<(Manifest, State), String>, CheckpointError> {
    let bytes = match say(collective, || shelf.manifest(id).map(|manifest| manifest.to_bytes())) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(CheckpointError::Damaged { reason, .. })) => return Ok(Err(reason)),
        Ok(Err(error)) | Err(error) => return Err(error),
    };
    let manifest = Manifest::from_bytes(id, &bytes)?;
    let (world, count) = (collective.world(), manifest.virtual_ranks);
    if world > count {
        let differences = format!("it has {count} virtual ranks, too few for {world} ranks; start fewer");
        return Err(CheckpointError::Settings { id: id.short(), differences });
    }
    let ranks = VirtualRanks { count, world };
    let mine = ranks.of(collective.rank());
    let rounds = (0..world).map(|rank| ranks.of(rank).len()).max().unwrap_or(0);
    let (common, statistics) = (manifest.layout.common(), manifest.layout.statistics());
    let mut state = State { common: vec![0.0; common], statistics: Vec::with_capacity(mine.len()) };
    for round in 0..rounds {
        let virtual_rank = mine.clone().nth(round);
        let message = virtual_rank.map_or_else(Vec::new, |virtual_rank| {
            let part = shelf.part(manifest.parts[virtual_rank as usize]);
            let checked = part.and_then(|bytes| {
                let share = share(common, count, virtual_rank);
                let damaged = |reason| CheckpointError::Damaged { id: id.short(), reason };
                decode(&bytes, share.len(), statistics).map_err(damaged)?;
                Ok(bytes)
            });
            pack(checked)
        });
        for (rank, message) in collective.all_gather(&message)?.iter().enumerate() {
            let Some(virtual_rank) = ranks.of(rank as u32).nth(round) else { continue };
            let bytes = match unpack(rank as u32, message)? {
                Said::This(bytes) => bytes,
                Said::Damaged(reason) => return Ok(Err(reason)),
                Said::Failed(reason) => {
                    return Err(CheckpointError::Elsewhere { rank: rank as u32, reason });
                }
            };
            let share = share(common, count, virtual_rank);
            let [shared, own] = decode(bytes, share.len(), statistics)
                .map_err(|what| CollectiveError::Malformed { rank: rank as u32, what })?;
            state.common[share].copy_from_slice(&shared);
            if mine.contains(&virtual_rank) {
                state.statistics.push((virtual_rank, own));
            }
        }
    }
    Ok(Ok((manifest, state)))
}

/// What rank 0 finds, on all ranks.
fn say<T: Serialize + for<'de> Deserialize<'de>>(
    collective: &mut dyn Collective,
    find: impl FnOnce() -> Result<T, CheckpointError>,
) -> Result<Result<T, CheckpointError>, CheckpointError> {
    let mut own = None;
    let mut bytes = Vec::new();
    if collective.rank() == 0 {
        let said = match find() {
            Ok(found) => Said::This(found),
            Err(error) => {
                let said = said_of(&error);
                own = Some(error);
                said
            }
        };
        bytes = serde_json::to_vec(&said).expect("lists and text serialize");
    }
    let heard = collective.broadcast(0, &bytes)?;
    let malformed =
        |error: serde_json::Error| CollectiveError::Malformed { rank: 0, what: error.to_string() };
    let heard: Said<T> = serde_json::from_slice(heard.bytes()).map_err(malformed)?;
    Ok(match (heard, own) {
        (Said::This(found), _) => Ok(found),
        (Said::Damaged(reason), _) => Err(CheckpointError::Damaged { id: "of rank 0".to_owned(), reason }),
        (Said::Failed(_), Some(error)) => Err(error),
        (Said::Failed(reason), None) => Err(CheckpointError::Elsewhere { rank: 0, reason }),
    })
}

/// Whether an older checkpoint could do instead.
fn said_of<T>(error: &CheckpointError) -> Said<T> {
    use shardd_client::origin::OriginError;
    let text = crate::train::chain(error);
    match error {
        CheckpointError::Damaged { .. }
        | CheckpointError::Store(OriginError::NotFound { .. } | OriginError::Corrupt { .. }) => {
            Said::Damaged(text)
        }
        _ => Said::Failed(text),
    }
}

const WHOLE: u8 = 0;
const DAMAGED: u8 = 1;
const FAILED: u8 = 2;

/// A part for all ranks, or why there is none: a byte that says which, and the rest.
fn pack(read: Result<Vec<u8>, CheckpointError>) -> Vec<u8> {
    let (kind, rest) = match read {
        Ok(bytes) => (WHOLE, bytes),
        Err(error) => match said_of::<()>(&error) {
            Said::Damaged(reason) => (DAMAGED, reason.into_bytes()),
            Said::This(()) => unreachable!("an error is not what was asked for"),
            Said::Failed(reason) => (FAILED, reason.into_bytes()),
        },
    };
    [&[kind][..], &rest].concat()
}

fn unpack(rank: u32, message: &Message) -> Result<Said<&[u8]>, CollectiveError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match message.bytes().split_first() {
        Some((&WHOLE, rest)) => Ok(Said::This(rest)),
        Some((&DAMAGED, rest)) => Ok(Said::Damaged(text(rest))),
        Some((&FAILED, rest)) => Ok(Said::Failed(text(rest))),
        _ => Err(CollectiveError::Malformed { rank, what: "no part of a checkpoint".to_owned() }),
    }
}
