//! All ranks read a checkpoint together: rank 0 chooses it, every object is read once, by the rank that needs
//! most of it, and sent to the others that need it. So the store sends each byte once for any number of
//! ranks, and no rank ever has more than its own state and one object in reading. The residuals of compression
//! are read whole, each by its heir; in a smaller world a rank has those of several former ranks at once.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tracing::warn;

use super::CheckpointError;
use super::checkpoint_store::CheckpointStore;
use super::codec::{decode, decode_residual};
use super::manifest::{CheckpointId, Manifest, PARTS};
use super::objects::{Object, objects};
use super::peer_checkpoint::PeerCheckpoint;
use super::pieces::Piece;
use super::plan::{Holding, turns};
use super::state::State;
use crate::collective::{
    Among, Collective, CollectiveError, Incoming, Message, Outgoing, Place as Destination,
};
use crate::compress::{RankResidual, heir};
use crate::reduce::VirtualRanks;
use crate::zero::Slicing;

/// From where a training resumes.
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
    /// Its numbers, those that this rank needs.
    pub state: State,
    /// Checkpoints of later steps, from before the training went back to this one.
    pub(crate) superseded: Vec<CheckpointId>,
    /// Whether it is in a store.
    pub(crate) is_stored: bool,
}

impl Checkpoint {
    /// The state handed to a rank; nothing if it is in a store.
    pub(crate) fn into_remains(self) -> Option<PeerCheckpoint> {
        let Checkpoint { manifest, state, is_stored, .. } = self;
        (!is_stored).then_some(PeerCheckpoint { manifest, state })
    }

    /// The state from which a training resumes that is in no store.
    pub(super) fn unstored(manifest: Manifest, state: State) -> Checkpoint {
        Checkpoint { id: manifest.id(), manifest, state, superseded: Vec::new(), is_stored: false }
    }
}

/// Rank 0's listing of the store, or its error.
#[derive(Debug, Serialize, Deserialize)]
enum Listing<T> {
    This(T),
    /// The checkpoint there is damaged.
    Damaged(String),
    /// Something else is wrong.
    Failed(String),
}

/// The checkpoint from which a run resumes, the same on all ranks; `None` if it begins. All ranks call this
/// together. Each is given the numbers that it needs where ranks keep such slices, in any world of the
/// writer.
///
/// One that is damaged is passed over for the one before it, and a warning says so.
///
/// # Errors
/// See [`CheckpointError`]; every rank has one if any has.
pub fn load(
    collective: &mut dyn Collective,
    shelf: &CheckpointStore,
    resume: &Resume,
    slicing: impl Into<Slicing>,
) -> Result<Option<Checkpoint>, CheckpointError> {
    let slicing = slicing.into();
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
        match read(collective, shelf, id, slicing)? {
            Ok((manifest, state)) => {
                // Only an explicit request goes back; damaged checkpoints passed over are no longer needed
                // either.
                let superseded = listed.iter().copied().filter(|other| other.step > id.step).collect();
                return Ok(Some(Checkpoint { id, manifest, state, superseded, is_stored: true }));
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
    shelf: &CheckpointStore,
    id: CheckpointId,
    slicing: Slicing,
) -> Result<Result<(Manifest, State), String>, CheckpointError> {
    let bytes = match say(collective, || shelf.manifest(id).map(|manifest| manifest.to_bytes())) {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(CheckpointError::Damaged { reason, .. })) => return Ok(Err(reason)),
        Ok(Err(error)) | Err(error) => return Err(error),
    };
    let manifest = match Manifest::from_bytes(id, &bytes) {
        Ok(manifest) => manifest,
        Err(CheckpointError::Damaged { reason, .. }) => return Ok(Err(reason)),
        Err(error) => return Err(error),
    };
    let (world, count) = (collective.world(), manifest.virtual_ranks);
    if world > count {
        let differences = format!("it has {count} virtual ranks, too few for {world} ranks; start fewer");
        return Err(CheckpointError::Settings { id: id.short(), differences });
    }
    // Format 1 does not record the trained parts of a block, by which it is sliced: there every rank gets
    // everything.
    let holding = match manifest.format {
        PARTS => Holding::everything(world),
        _ => Holding::needed(slicing, collective.hosts(), collective.rank()),
    };
    let reading = Reading::new(&manifest, holding, VirtualRanks { count, world });
    let mut state = match reading.run(collective, shelf, id)? {
        Ok(state) => state,
        Err(reason) => return Ok(Err(reason)),
    };
    if !manifest.residuals.is_empty() {
        state.residuals = match read_residuals(collective, shelf, id, &manifest)? {
            Ok(residuals) => residuals,
            Err(reason) => return Ok(Err(reason)),
        };
    }
    Ok(Ok((manifest, state)))
}

/// The residuals that this rank inherits, or why some rank's are no good. All ranks call this together; each is read once.
fn read_residuals(
    collective: &mut dyn Collective,
    shelf: &CheckpointStore,
    id: CheckpointId,
    manifest: &Manifest,
) -> Result<Result<Vec<RankResidual>, String>, CheckpointError> {
    let writers = manifest.residuals.len() as u32;
    if collective.world() == 1 {
        // A single rank compresses nothing, and has no use for them.
        return Ok(Ok(Vec::new()));
    }
    let mine = |rank: &u32| heir(*rank, writers, collective.world()) == collective.rank();
    let read = async |rank: u32| {
        let bytes = shelf.objects().read_part(manifest.residuals[rank as usize]).await?;
        let damaged = |reason| CheckpointError::Damaged { id: id.short(), reason };
        let residual = decode_residual(&bytes).map_err(damaged)?;
        Ok::<_, CheckpointError>(RankResidual { rank, world: writers, residual })
    };
    let mut residuals = Vec::new();
    let mut outcome = Ok(());
    for rank in (0..writers).filter(mine) {
        match shelf.handle().block_on(read(rank)) {
            Ok(residual) => residuals.push(residual),
            Err(error) => outcome = Err(error),
        }
    }
    Ok(all_have_read(collective, outcome)?.map(|()| residuals))
}

/// Whether all ranks have read their objects; the inner error is one of damage.
fn all_have_read(
    collective: &mut dyn Collective,
    outcome: Result<(), CheckpointError>,
) -> Result<Result<(), String>, CheckpointError> {
    for (other, message) in (0..).zip(&collective.all_gather(&pack(outcome))?) {
        match unpack(other, message)? {
            Listing::This(()) => {}
            Listing::Damaged(reason) => return Ok(Err(reason)),
            Listing::Failed(reason) => return Err(CheckpointError::Elsewhere { rank: other, reason }),
        }
    }
    Ok(Ok(()))
}

/// Objects that all ranks together read at a time, which is no more than each of them may be given: this
/// number of bytes, and one of each rank that has more than its part.
const ROUND_BYTES: u64 = 64 << 20;

/// No rank reads more than this at a time, or one object that has more.
const RANK_BYTES: u64 = 16 << 20;

/// And this number of objects.
const ROUND: usize = 16;

/// Who reads what of a checkpoint, and who is given what of it.
struct Reading<'a> {
    manifest: &'a Manifest,
    holding: Holding,
    ranks: VirtualRanks,
    objects: Vec<Object>,
    /// By object.
    pieces: Vec<Piece>,
    /// By rank, then by round.
    rounds: Vec<Vec<Vec<usize>>>,
}

/// The parts read of an object: its piece, and running statistics.
type Decoded = (Vec<f32>, Vec<f32>);

impl<'a> Reading<'a> {
    /// Statistics are read by who hosts their virtual rank, anything else by who is given most of it.
    fn new(manifest: &'a Manifest, holding: Holding, ranks: VirtualRanks) -> Reading<'a> {
        let objects = objects(manifest);
        let pieces: Vec<Piece> = objects.iter().map(Object::piece).collect();
        let shared: Vec<usize> = (0..objects.len()).filter(|&it| objects[it].statistics.is_none()).collect();
        let of_shared: Vec<Piece> = shared.iter().map(|&it| pieces[it].clone()).collect();
        let at_most = (ROUND_BYTES / u64::from(ranks.world)).min(RANK_BYTES);
        let mut rounds = vec![Vec::new(); ranks.world as usize];
        let mut give = |rank: u32, object: usize| {
            let rounds: &mut Vec<Vec<usize>> = &mut rounds[rank as usize];
            let bytes = |round: &Vec<usize>| round.iter().map(|&it| objects[it].part.bytes).sum::<u64>();
            match rounds.last_mut() {
                Some(round)
                    if round.len() < ROUND && bytes(round) + objects[object].part.bytes <= at_most =>
                {
                    round.push(object);
                }
                _ => rounds.push(vec![object]),
            }
        };
        for (&object, turn) in shared.iter().zip(turns(&holding, &manifest.layout, &of_shared)) {
            give(turn.rank, object);
        }
        for rank in 0..ranks.world {
            let hosted = ranks.of(rank);
            let is_own = |object: &Object| object.statistics.is_some_and(|(of, _)| hosted.contains(&of));
            (0..objects.len()).filter(|&it| is_own(&objects[it])).for_each(|object| give(rank, object));
        }
        Reading { manifest, holding, ranks, objects, pieces, rounds }
    }

    fn run(
        &self,
        collective: &mut dyn Collective,
        shelf: &CheckpointStore,
        id: CheckpointId,
    ) -> Result<Result<State, String>, CheckpointError> {
        let (rank, world) = (collective.rank(), collective.world());
        let layout = &self.manifest.layout;
        let mut state = State::blank(self.holding.all_of(layout, rank));
        let last = self.rounds.iter().map(Vec::len).max().unwrap_or(0);
        let mut under_way = self.begin(rank, 0, shelf, id);
        for round in 0..last {
            let read = shelf.handle().block_on(finish(under_way));
            under_way = self.begin(rank, round + 1, shelf, id);
            let (outcome, decoded) = match read {
                Ok(decoded) => (Ok(()), decoded),
                Err(error) => (Err(error), Vec::new()),
            };
            if let Err(reason) = all_have_read(collective, outcome)? {
                return Ok(Err(reason));
            }
            let mine = self.round(rank, round);
            if world > 1 {
                self.pass_on(collective, round, &decoded, &mut state)?;
            }
            for (&object, (numbers, own)) in mine.iter().zip(decoded) {
                for run in self.runs(object, rank) {
                    state.place(&self.pieces[object], &run, &numbers[run.clone()]);
                }
                if let Some((virtual_rank, _)) = self.objects[object].statistics {
                    state.statistics.push((virtual_rank, own));
                }
            }
        }
        if layout.statistics() == 0 {
            state.statistics = self.ranks.of(rank).map(|virtual_rank| (virtual_rank, Vec::new())).collect();
        }
        state.statistics.sort_by_key(|(virtual_rank, _)| *virtual_rank);
        Ok(Ok(state))
    }

    fn round(&self, rank: u32, round: usize) -> &[usize] {
        self.rounds[rank as usize].get(round).map_or(&[], Vec::as_slice)
    }

    /// The part of an object's piece for a rank.
    fn runs(&self, object: usize, rank: u32) -> Vec<Range<usize>> {
        self.holding.runs(&self.manifest.layout, &self.pieces[object], rank)
    }

    /// Begins to read this rank's objects of a round.
    fn begin(&self, rank: u32, round: usize, shelf: &CheckpointStore, id: CheckpointId) -> Vec<Read> {
        let read = |&index: &usize| {
            let (objects, object) = (shelf.objects(), self.objects[index].clone());
            Read(shelf.handle().spawn(async move {
                let bytes = objects.read_part(object.part).await?;
                let damaged = |reason| CheckpointError::Damaged { id: id.short(), reason };
                decode(&bytes, &object).map_err(damaged)
            }))
        };
        self.round(rank, round).iter().map(read).collect()
    }

    /// Gives all ranks their parts of this one's reads, and takes its parts of their reads.
    fn pass_on(
        &self,
        collective: &mut dyn Collective,
        round: usize,
        decoded: &[Decoded],
        state: &mut State,
    ) -> Result<(), CheckpointError> {
        let rank = collective.rank();
        let others = || (0..self.ranks.world).filter(|other| *other != rank);
        let mut outgoing = Vec::new();
        for to in others() {
            for (&object, (numbers, _)) in self.round(rank, round).iter().zip(decoded) {
                let runs = self.runs(object, to).into_iter();
                outgoing.extend(runs.map(|run| Outgoing { to, bytes: bytemuck::cast_slice(&numbers[run]) }));
            }
        }
        let mut arriving = Vec::new();
        for from in others() {
            for &object in self.round(from, round) {
                let runs = self.runs(object, rank).into_iter();
                arriving.extend(runs.map(|run| (from, object, vec![0f32; run.len()], run)));
            }
        }
        let mut incoming: Vec<Incoming<'_>> = (arriving.iter_mut())
            .map(|(from, _, numbers, _)| {
                let into = Destination::Slice(bytemuck::cast_slice_mut(numbers));
                Incoming { from: *from, into }
            })
            .collect();
        collective.begin(Among::All);
        collective.transfer(&outgoing, &mut incoming, &mut |_| {})?;
        for (_, object, numbers, run) in arriving {
            state.place(&self.pieces[object], &run, &numbers);
        }
        Ok(())
    }
}

/// An object that is being read; given up when it is dropped.
struct Read(JoinHandle<Result<Decoded, CheckpointError>>);

impl Drop for Read {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for all of them, in order.
async fn finish(under_way: Vec<Read>) -> Result<Vec<Decoded>, CheckpointError> {
    let mut all = Vec::with_capacity(under_way.len());
    for mut read in under_way {
        all.push(
            (&mut read.0)
                .await
                .expect("reading does not panic, and is not given up while it is waited for")?,
        );
    }
    Ok(all)
}

/// Rank 0's result, on all ranks.
pub(super) fn say<T: Serialize + for<'de> Deserialize<'de>>(
    collective: &mut dyn Collective,
    find: impl FnOnce() -> Result<T, CheckpointError>,
) -> Result<Result<T, CheckpointError>, CheckpointError> {
    let mut own = None;
    let mut bytes = Vec::new();
    if collective.rank() == 0 {
        let said = match find() {
            Ok(found) => Listing::This(found),
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
    let heard: Listing<T> = serde_json::from_slice(heard.bytes()).map_err(malformed)?;
    Ok(match (heard, own) {
        (Listing::This(found), _) => Ok(found),
        (Listing::Damaged(reason), _) => Err(CheckpointError::Damaged { id: "of rank 0".to_owned(), reason }),
        (Listing::Failed(_), Some(error)) => Err(error),
        (Listing::Failed(reason), None) => Err(CheckpointError::Elsewhere { rank: 0, reason }),
    })
}

/// Whether an older checkpoint could do instead.
fn said_of<T>(error: &CheckpointError) -> Listing<T> {
    use shardd_store::origin::OriginError;
    let text = crate::causes::chain(error);
    match error {
        CheckpointError::Damaged { .. }
        | CheckpointError::Store(OriginError::NotFound { .. } | OriginError::Corrupt { .. }) => {
            Listing::Damaged(text)
        }
        _ => Listing::Failed(text),
    }
}

const WHOLE: u8 = 0;
const DAMAGED: u8 = 1;
const FAILED: u8 = 2;

/// Whether this rank's reads succeeded: a byte for that, and the error.
fn pack(read: Result<(), CheckpointError>) -> Vec<u8> {
    let (kind, rest) = match read {
        Ok(()) => (WHOLE, String::new()),
        Err(error) => match said_of::<()>(&error) {
            Listing::Damaged(reason) => (DAMAGED, reason),
            Listing::This(()) => unreachable!("the caller asked for no error"),
            Listing::Failed(reason) => (FAILED, reason),
        },
    };
    [&[kind][..], rest.as_bytes()].concat()
}

fn unpack(rank: u32, message: &Message) -> Result<Listing<()>, CollectiveError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match message.bytes().split_first() {
        Some((&WHOLE, [])) => Ok(Listing::This(())),
        Some((&DAMAGED, rest)) => Ok(Listing::Damaged(text(rest))),
        Some((&FAILED, rest)) => Ok(Listing::Failed(text(rest))),
        _ => Err(CollectiveError::Malformed { rank, what: "no word about a checkpoint".to_owned() }),
    }
}
