//! The state of runs in lists, computed from their records. Pure.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardd_api::protocol::{RanksRecord, RunId, RunRecord};
use shardfmt::{DatasetName, PlanId, VersionId};

use crate::record::{Ending, StoredRun};

/// A run whose ranks were silent for this time is taken for interrupted: the same time after which nodes may
/// evict its objects.
pub const RUN_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Whether a run is being trained, and how it ended if not.
///
/// ```
/// use shardd_store::catalog::RunState;
///
/// assert!(RunState::Finished.is_over());
/// assert!(!RunState::Running.is_over());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It is known by name, and no rank has attached yet.
    Created,
    /// Ranks are attached, and were heard of in the last 15 minutes.
    Running,
    /// Its ranks were lost: their processes ended without detaching, or they cannot reach any node.
    Interrupted,
    /// All ranks have detached, or its record says that all steps were trained.
    Finished,
    /// Its record says that it was asked to stop.
    Stopped,
    /// Its record says that it could not continue.
    Failed,
    /// Its removal has begun and not ended: remove it again.
    Removing,
}

impl RunState {
    /// Whether nothing trains it any more.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Created | Self::Running)
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Removing => "removing",
        })
    }
}

/// A run in a list: one that nodes know, or one of which only records or checkpoints in the store tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunInfo {
    /// The run.
    pub id: RunId,
    /// Whether it is being trained.
    pub state: RunState,
    /// The dataset whose version it reads, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::DatasetName>, nullable = false))]
    pub dataset: Option<DatasetName>,
    /// The plan it trains over; absent where only checkpoints are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::Digest>, nullable = false))]
    pub plan: Option<PlanId>,
    /// The version that plan is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<shardd_api::schema::Digest>, nullable = false))]
    pub version: Option<VersionId>,
    /// V.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub virtual_ranks: Option<u32>,
    /// How many ranks its launch has; absent if none is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub world: Option<u32>,
    /// When it began, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub began: Option<u64>,
    /// When its ranks were last heard of, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub seen: Option<u64>,
    /// Its other objects, on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub details: Option<RunDetails>,
}

/// The objects of a run, and those that go with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunDetails {
    /// Epochs of which a rank has reported that it read its share.
    pub epochs: u32,
    /// These reports.
    pub audits: u64,
    /// Its objects in the store.
    #[serde(flatten)]
    pub stored: StoredRun,
}

/// How a run is removed.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_store::catalog::{Catalog, LocalCatalog};
/// # let (shard, manifest) = numbers()?;
/// # let directory = tempfile::tempdir()?;
/// # let catalog = LocalCatalog::open(directory.path())?;
/// # catalog.put_shard(&shard)?;
/// # let name: shardfmt::DatasetName = "numbers".parse()?;
/// # let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
/// # let dataset = catalog.commit(&name, None, &manifest, &note)?;
/// use shardd_store::catalog::{CatalogError, RemoveRun};
///
/// let options = RemoveRun { checkpoints: true, ..RemoveRun::default() };
/// let refused = catalog.remove_run(&"no-such-run".parse()?, options);
/// assert!(matches!(refused, Err(CatalogError::NotFound { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoveRun {
    /// Also if its ranks were heard of lately: they were killed, as the caller knows.
    pub force: bool,
    /// Its checkpoints, too.
    pub checkpoints: bool,
}

/// The known facts about a run.
pub(super) struct Signs<'a> {
    /// As nodes know it.
    pub(super) record: Option<&'a RunRecord>,
    /// The ranks that are attached.
    pub(super) ranks: Option<&'a RanksRecord>,
    /// How its newest training record says that it ended, and when that was written.
    pub(super) ending: Option<(&'a Ending, u64)>,
}

impl Signs<'_> {
    /// When ranks were last heard of.
    pub(super) fn seen(&self) -> Option<u64> {
        let left = self.record.and_then(|record| record.left);
        let written = self.ending.map(|(_, written)| written);
        self.ranks.and_then(|ranks| ranks.seen).max(left).max(written)
    }

    /// Whether it is being trained `now`.
    pub(super) fn state(&self, now: u64) -> RunState {
        let is_recent = |at: u64| now.saturating_sub(at) < RUN_IDLE_TIMEOUT.as_secs();
        let heard = |recent| if recent { RunState::Running } else { RunState::Interrupted };
        if self.record.is_some_and(|record| record.removing) {
            return RunState::Removing;
        }
        if let Some(ranks) = self.ranks.filter(|ranks| ranks.nodes.iter().any(Option::is_some)) {
            // Where it was never written down, a node of an earlier release may still hear of them.
            return heard(ranks.seen.is_none_or(is_recent));
        }
        match (self.ending, self.record) {
            (Some((Ending::Trained, _)), _) => RunState::Finished,
            (Some((Ending::Stopped, _)), _) => RunState::Stopped,
            (Some((Ending::Failed { .. }, _)), _) => RunState::Failed,
            // Ranks that read from nodes would be attached.
            (Some((Ending::Underway, _)), Some(_)) => RunState::Interrupted,
            (Some((Ending::Underway, written)), None) => heard(is_recent(written)),
            (None, Some(RunRecord { began: Some(_), left: None, .. })) => RunState::Created,
            (None, Some(RunRecord { interrupted: true, .. })) => RunState::Interrupted,
            (None, _) => RunState::Finished,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn record(began: Option<u64>, left: Option<u64>) -> RunRecord {
        let (plan, version) = (PlanId::of(b"plan"), VersionId::of(b"version"));
        let id = "r".parse().expect("a name");
        RunRecord { id, plan, version, virtual_ranks: 1, began, left, interrupted: false, removing: false }
    }

    fn ranks(seen: Option<u64>) -> RanksRecord {
        let nodes = vec![Some("n1".parse().expect("a name")), None];
        RanksRecord { launch: 1, world: 2, epoch: 0, reached: 0, nodes, seen, lost: Vec::new() }
    }

    #[test]
    fn a_run_is_what_its_ranks_and_its_record_say() {
        let (just, long_ago) = (NOW - 899, NOW - 900);
        let attached = |seen| (Some(record(Some(1), None)), Some(ranks(Some(seen))), None);
        let stored = |ending, at| (None, None, Some((ending, at)));
        let lost = |left| RunRecord { interrupted: true, ..record(Some(1), Some(left)) };
        let failed = || Ending::Failed { reason: "no room".to_owned() };
        let table = [
            ((Some(record(Some(1), None)), None, None), RunState::Created, None),
            (attached(just), RunState::Running, Some(just)),
            (attached(long_ago), RunState::Interrupted, Some(long_ago)),
            ((Some(record(None, None)), Some(ranks(None)), None), RunState::Running, None),
            ((Some(record(Some(1), Some(7))), None, None), RunState::Finished, Some(7)),
            ((Some(record(None, None)), None, None), RunState::Finished, None),
            ((Some(lost(7)), None, None), RunState::Interrupted, Some(7)),
            ((Some(lost(7)), None, Some((Ending::Trained, 9))), RunState::Finished, Some(9)),
            ((Some(lost(7)), Some(ranks(Some(just))), None), RunState::Running, Some(just)),
            ((Some(record(Some(1), Some(7))), None, Some((failed(), 9))), RunState::Failed, Some(9)),
            (
                (Some(record(Some(1), None)), None, Some((Ending::Underway, just))),
                RunState::Interrupted,
                Some(just),
            ),
            (stored(Ending::Underway, just), RunState::Running, Some(just)),
            (stored(Ending::Underway, long_ago), RunState::Interrupted, Some(long_ago)),
            (stored(Ending::Stopped, just), RunState::Stopped, Some(just)),
            (stored(Ending::Trained, just), RunState::Finished, Some(just)),
            ((None, None, None), RunState::Finished, None),
        ];
        for (at, ((record, ranks, ending), state, seen)) in table.iter().enumerate() {
            let ending = ending.as_ref().map(|(ending, at)| (ending, *at));
            let signs = Signs { record: record.as_ref(), ranks: ranks.as_ref(), ending };
            assert_eq!((signs.state(NOW), signs.seen()), (*state, *seen), "line {at}");
        }
        let removing = RunRecord { removing: true, ..record(Some(1), None) };
        let signs = Signs { record: Some(&removing), ranks: Some(&ranks(Some(just))), ending: None };
        assert_eq!(signs.state(NOW), RunState::Removing);
    }
}
