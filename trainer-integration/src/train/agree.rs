//! What ranks must have in common, and how they find out that they have not.

use serde_json::Value;
use shardfmt::digest::Digest;
use tracing::warn;

use crate::checkpoint::{Checkpoint, CheckpointError, Settings, differences};
use crate::collective::{Collective, CollectiveError, Message};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::reduce::Comm;

/// Compares settings, a JSON object, on all ranks: those by which ranks do something together before a training compares its own.
///
/// # Errors
/// When a rank has others than rank 0, is gone or late.
///
/// # Panics
/// If it is no JSON object.
pub fn agree(collective: &mut dyn Collective, mine: &Value) -> Result<(), TrainError> {
    let mine = as_settings(mine);
    same(&collective.all_gather(&to_bytes(&mine))?)
}

/// The same of settings that are remembered.
pub(crate) fn agree_on(comm: &Comm, mine: &Value) -> Result<Settings, TrainError> {
    let mine = as_settings(mine);
    let bytes = to_bytes(&mine);
    same(&comm.run(move |collective| collective.all_gather(&bytes))?)?;
    Ok(mine)
}

/// As text: numbers read from JSON need not be those that were written.
fn as_settings(all: &Value) -> Settings {
    let all = all.as_object().expect("an object").iter();
    all.map(|(name, value)| (name.clone(), value.to_string())).collect()
}

fn to_bytes(settings: &Settings) -> Vec<u8> {
    serde_json::to_vec(settings).expect("text serializes")
}

/// Whether all ranks have sent the same.
fn same(all: &[Message]) -> Result<(), TrainError> {
    let settings: Vec<Settings> =
        all.iter().map(|theirs| serde_json::from_slice(theirs.bytes()).unwrap_or_default()).collect();
    for (rank, theirs) in settings.iter().enumerate() {
        let differences = differences(&settings[0], theirs);
        if !differences.is_empty() {
            return Err(TrainError::Settings { rank: rank as u32, differences });
        }
    }
    Ok(())
}

/// Gives all ranks rank 0's first weights, block by block.
pub(crate) fn begin(engine: &mut Engine, seed: u64, comm: &Comm) -> Result<(), CollectiveError> {
    for (block, count) in engine.model().parameter_counts().collect::<Vec<_>>().into_iter().enumerate() {
        let mine = if comm.rank() == 0 { engine.model().stages[block].initial(seed) } else { Vec::new() };
        let received = comm.run(move |collective| collective.broadcast(0, bytemuck::cast_slice(&mine)))?;
        let weights =
            received.numbers::<f32>().filter(|numbers| numbers.len() == count).ok_or_else(|| {
                let what =
                    format!("{} bytes for the {count} parameters of block {block}", received.bytes().len());
                CollectiveError::Malformed { rank: 0, what }
            })?;
        engine.begin_block(block, &weights);
    }
    Ok(())
}

/// Compares the digests of all blocks on all ranks.
pub(crate) fn compare(comm: &Comm, ours: &[Digest], moment: &str) -> Result<(), TrainError> {
    let mine: Vec<u8> = ours.iter().flat_map(|digest| digest.0).collect();
    let all = comm.run(move |collective| collective.all_gather(&mine))?;
    let digest = |bytes: &[u8]| Digest(bytes.try_into().unwrap_or_default());
    for (rank, theirs) in all.iter().enumerate() {
        let pairs = all[0].bytes().chunks(32).zip(theirs.bytes().chunks(32)).enumerate();
        if let Some((block, (ours, theirs))) = pairs.into_iter().find(|(_, (ours, theirs))| ours != theirs) {
            let (ours, theirs) = (digest(ours), digest(theirs));
            return Err(TrainError::Diverged {
                rank: rank as u32,
                block,
                moment: moment.to_owned(),
                ours,
                theirs,
            });
        }
    }
    Ok(())
}

/// Settings that may change when a training resumes: the first decide nothing but the last bits, the last the
/// action at its end.
pub(crate) const MAY_CHANGE: [&str; 6] =
    ["version", "device", "bad steps", "steps gone back by", "transport", ALL_REDUCE];

/// The setting that names the algorithms of all-reduce.
pub(super) const ALL_REDUCE: &str = "all-reduce";

/// Settings that decide nothing that a checkpoint holds.
const NOT_KEPT: [&str; 5] = ["steps between comparisons", "checkpoints", "test samples", "record", "zero"];

/// Those of the settings that checkpoints keep.
pub(crate) fn kept(settings: &Settings) -> Settings {
    without(settings, &NOT_KEPT)
}

fn without(settings: &Settings, names: &[&str]) -> Settings {
    let others = settings.iter().filter(|(name, _)| !names.contains(&name.as_str()));
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Refuses a checkpoint of another training than one with these settings. A training that has ended may be prolonged,
/// unless it is recorded: a record is of one schedule.
pub(crate) fn same_training(
    checkpoint: &Checkpoint,
    settings: &Settings,
    is_recorded: bool,
    comm: &Comm,
) -> Result<(), CheckpointError> {
    let (id, settings, theirs) = (checkpoint.id.short(), kept(settings), &checkpoint.manifest.settings);
    let mut may_change = MAY_CHANGE.to_vec();
    let epochs = |settings: &Settings| settings.get("epochs").and_then(|epochs| epochs.parse::<u32>().ok());
    if let (Some(ours), Some(theirs)) = (epochs(&settings), epochs(theirs))
        && ours > theirs
        && checkpoint.manifest.place.epoch >= theirs
        && !is_recorded
    {
        may_change.push("epochs");
    }
    let firm = differences(&without(&settings, &may_change), &without(theirs, &may_change));
    if !firm.is_empty() {
        return Err(CheckpointError::Settings { id, differences: firm });
    }
    let changed = differences(&settings, theirs);
    if !changed.is_empty() && comm.rank() == 0 {
        warn!(
            checkpoint = id,
            changed,
            "the training continues with settings other than those of its \
            beginning"
        );
    }
    Ok(())
}
