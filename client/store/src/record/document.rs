//! The document of a record, and its name. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardd_api::protocol::RunId;
use shardfmt::digest::DigestError;
use shardfmt::{Digest, PlanId, VersionId};

use super::{RecordError, STEPS_PER_PART};

/// The format that is written, and the newest that is read. Format 1 has neither the memory of launches nor the writes of checkpoints.
pub const FORMAT: u32 = 2;

/// Names a record: the digest of its document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordId(pub Digest);

impl RecordId {
    /// For people: the beginning of it.
    pub fn short(&self) -> String {
        self.0.short()
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for RecordId {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<RecordId, DigestError> {
        text.parse().map(RecordId)
    }
}

/// The data of the training. All of it is content-addressed, so these are the very samples in the very order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The name it had, if it was asked for by one.
    pub dataset: Option<String>,
    /// The samples.
    pub version: VersionId,
    /// Their order.
    pub plan: PlanId,
    /// The plan's schedule of Q, as people write it.
    pub q: String,
    /// The plan's seed.
    pub seed: u64,
    /// How many samples there are.
    pub samples: u64,
}

/// The place of a record's steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepsTable {
    /// The first step in the table: not 0 where a training resumed from a checkpoint whose record is not
    /// there.
    pub first: u64,
    /// The step after the last one in the table.
    pub end: u64,
    /// Steps of the whole training.
    pub of: u64,
    /// Weights, gradients and inputs are digested in every so-many-th step of the training.
    pub digests_every: u64,
    /// Parts by their digest: part n holds the steps from n x [`STEPS_PER_PART`] on. The first is that with step `first`.
    pub parts: Vec<Digest>,
}

impl StepsTable {
    /// The numbers of the parts that hold these steps.
    pub fn part_numbers(steps: Range<u64>) -> Range<u64> {
        match steps.is_empty() {
            true => 0..0,
            false => steps.start / STEPS_PER_PART..steps.end.div_ceil(STEPS_PER_PART),
        }
    }

    /// The steps of part `number`, those in the table.
    pub fn steps_of(&self, number: u64) -> Range<u64> {
        let (start, end) = (number * STEPS_PER_PART, (number + 1) * STEPS_PER_PART);
        start.max(self.first)..end.min(self.end)
    }

    /// The digest of part `number`, if there is one.
    pub fn part(&self, number: u64) -> Option<Digest> {
        let index = number.checked_sub(self.first / STEPS_PER_PART)?;
        self.parts.get(usize::try_from(index).ok()?).copied()
    }

    /// One digest of the whole table, the same for the same steps in every computation.
    pub fn digest(&self) -> Digest {
        let mut bytes = Vec::from(self.first.to_le_bytes());
        self.parts.iter().for_each(|part| bytes.extend(part.0));
        Digest::of(&bytes)
    }
}

/// A start of the training's processes: the first, or one that resumed from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The first step it trained.
    pub first_step: u64,
    /// How many ranks there were.
    pub world: u32,
    /// When it began, in seconds since 1970 by rank 0's clock.
    pub started: u64,
    /// When it was last heard of.
    pub until: u64,
    /// Version of the program.
    pub version: String,
    /// BLAKE3 of rank 0's executable, if it could be read.
    pub program: Option<Digest>,
    /// Where rank 0 computed: `cpu`, or a kind of accelerator.
    pub device: String,
    /// Rank 0's processor.
    pub processor: String,
    /// The most memory of a rank's process that was resident at any time, in bytes: of the rank with the most, if their system tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// A checkpoint that the training wrote. One that was there already, as the same training had written it before, is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointWritten {
    /// Its name, which is among those of [`Record::checkpoints`].
    pub name: String,
    /// Steps of the training before it.
    pub step: u64,
    /// When it was complete, in seconds since 1970 by rank 0's clock.
    pub at: u64,
    /// Bytes of its objects, of all ranks.
    pub bytes: u64,
    /// Of these, bytes that were written: the checkpoint before had the others.
    pub written_bytes: u64,
    /// Milliseconds from its beginning until it was complete. Training continues meanwhile.
    pub millis: u64,
}

/// How a training ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ending {
    /// It had not when this was written; if no process trains any more, it was killed after that.
    Underway,
    /// All steps were trained.
    Trained,
    /// It was asked to stop.
    Stopped,
    /// It could not continue.
    Failed {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Underway => f.write_str("under way"),
            Ending::Trained => f.write_str("trained"),
            Ending::Stopped => f.write_str("stopped"),
            Ending::Failed { reason } => write!(f, "failed: {reason}"),
        }
    }
}

/// A run record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// 1 or 2.
    pub format: u32,
    /// The run.
    pub run: RunId,
    /// The data of the training.
    pub data: Data,
    /// V: how many shares a step has.
    pub virtual_ranks: u32,
    /// The trainer's settings, beside data, virtual ranks, and where everything is: with these, enough to
    /// train again.
    pub arguments: Vec<String>,
    /// All that the ranks had in common, by name; values as JSON text.
    pub settings: BTreeMap<String, String>,
    /// Whether the same training gives the same bits.
    pub is_exact: bool,
    /// The outcome of the steps.
    pub steps: StepsTable,
    /// The weights before step `first`.
    pub first_weights: Digest,
    /// The weights at the end, with running statistics, if it was trained to the end.
    pub weights: Option<Digest>,
    /// Checkpoints that were written.
    pub checkpoints: Vec<String>,
    /// When and how these were written, in order, as far as it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoint_writes: Vec<CheckpointWritten>,
    /// The processes that trained it, in order.
    pub launches: Vec<Launch>,
    /// How it ended.
    pub ending: Ending,
}

impl Record {
    /// As bytes: the same for equal records.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("maps have text for keys");
        bytes.push(b'\n');
        bytes
    }

    /// Its name.
    pub fn id(&self) -> RecordId {
        RecordId(Digest::of(&self.to_bytes()))
    }

    /// When it was written, in seconds since 1970.
    pub fn written(&self) -> u64 {
        self.launches.last().map_or(0, |launch| launch.until)
    }

    /// Reads the record that is called `id`.
    ///
    /// # Errors
    /// [`RecordError::TooNew`], and [`RecordError::Damaged`] when the bytes are no record, or not of that name.
    pub fn from_bytes(id: RecordId, bytes: &[u8]) -> Result<Record, RecordError> {
        #[derive(Deserialize)]
        struct Head {
            format: u64,
        }
        let damaged =
            |reason: String| RecordError::Damaged { what: format!("record {}", id.short()), reason };
        let found = RecordId(Digest::of(bytes));
        if found != id {
            return Err(damaged(format!("its bytes have digest {found}")));
        }
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if head.format > u64::from(FORMAT) {
            let what = format!("record {}", id.short());
            return Err(RecordError::TooNew { what, found: head.format, known: FORMAT });
        }
        let record: Record = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        match record.flaw() {
            None => Ok(record),
            Some(flaw) => Err(damaged(flaw)),
        }
    }

    /// The impossible value, if any.
    fn flaw(&self) -> Option<String> {
        let StepsTable { first, end, of, digests_every, parts } = &self.steps;
        if first > end || end > of || end.checked_add(STEPS_PER_PART).is_none() {
            return Some(format!("it tells steps {first} to {end} of {of}"));
        }
        let numbers = StepsTable::part_numbers(*first..*end);
        if parts.len() as u64 != numbers.end - numbers.start {
            return Some(format!("it has {} parts for steps {first} to {end}", parts.len()));
        }
        if *digests_every == 0 || self.virtual_ranks == 0 || self.virtual_ranks > i32::MAX as u32 {
            let virtual_ranks = self.virtual_ranks;
            return Some(format!(
                "it has {virtual_ranks} virtual ranks, and digests every {digests_every} steps"
            ));
        }
        None
    }
}
