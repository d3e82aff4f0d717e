//! `shardctl prune`: cuts off the older part of a dataset's history, so that gc frees what only that part kept.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use shardd_api::duration::now;
use shardd_store::catalog::LogEntry;
use shardd_store::connect::{Connect, find_version};
use shardfmt::{ByteSize, DatasetName, VersionId};

use crate::failure::Failure;
use crate::holders::Holders;
use crate::human::{date, parse_duration, plural};
use crate::output;

/// Cut off the older part of a dataset's history; shows it unless you give --delete
///
/// Tags, plans and runs keep the versions that they name. `shardctl gc` deletes the objects that nothing
/// keeps any more.
#[derive(Args)]
pub(crate) struct Prune {
    /// The dataset
    dataset: DatasetName,

    /// Keep this many versions, the newest; with --older-than, the removed ones are also older than that
    #[arg(long, value_name = "N", required_unless_present = "older_than", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,

    /// Cut off commits older than this, such as 90d; the present version stays
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    older_than: Option<Duration>,

    /// Cut them off instead of listing them
    #[arg(long)]
    delete: bool,
}

impl Prune {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let name = &find_version(&*catalog, &self.dataset.clone().into())?.name;
        let log = catalog.log(name, usize::MAX)?;
        let (kept, cut) = log.split_at(kept(&log, self.keep, self.older_than, now()));
        let versions = |entries: &[LogEntry]| -> BTreeSet<VersionId> {
            entries.iter().map(|entry| entry.commit.version).collect()
        };
        let (staying, going) = (versions(kept), versions(cut));
        let holders = Holders::beside(&*catalog, name)?;
        let freed = holders.freed(&*catalog, &going, &staying)?;
        let held: Vec<_> = going
            .iter()
            .filter(|version| !staying.contains(version))
            .map(|version| (*version, holders.of(*version)))
            .filter(|(_, by)| !by.is_empty())
            .collect();
        let oldest = kept.last().ok_or_else(|| Failure::failed(format!("{name} has no history")))?;
        if self.delete && !cut.is_empty() {
            catalog.prune(name, oldest.id)?;
        }
        if json {
            let held: Vec<_> =
                held.iter().map(|(version, by)| json!({ "version": version, "by": by })).collect();
            output::json(&json!({
                "dataset": name, "dry_run": !self.delete, "kept": kept.len(), "cut": cut, "held": held, "freed_bytes": freed,
            }));
            return Ok(());
        }
        if cut.is_empty() {
            output::print(&format!(
                "nothing to cut off: {name} has {} in its history\n",
                plural(log.len() as u64, "version")
            ));
            return Ok(());
        }
        for (version, by) in &held {
            output::print(&format!("version {} stays: {}\n", version.short(), by.join(", ")));
        }
        let (count, since) = (plural(cut.len() as u64, "version"), date(oldest.commit.time));
        let goes = match freed {
            0 => "nothing is freed, as other versions have the same shards or are kept".to_owned(),
            bytes => format!("{} that nothing else keeps go with `shardctl gc --delete`", ByteSize(bytes)),
        };
        output::print(&match self.delete {
            true => format!("{count} cut off: the history of {name} begins on {since} (UTC); {goes}\n"),
            false => format!("{count} would be cut off, before {since} (UTC): --delete does; {goes}\n"),
        });
        Ok(())
    }
}

/// How many commits of a log, the newest first, stay. The present one always does; a history has no gaps, so all that are newer than
/// one that stays do as well.
fn kept(log: &[LogEntry], keep: Option<u64>, older_than: Option<Duration>, now: u64) -> usize {
    let least = usize::try_from(keep.unwrap_or(1)).unwrap_or(usize::MAX).max(1);
    let is_young = |entry: &LogEntry| {
        older_than.is_some_and(|limit| Duration::from_secs(now.saturating_sub(entry.commit.time)) < limit)
    };
    let young = log.iter().rposition(is_young).map_or(0, |last| last + 1);
    least.max(young).min(log.len())
}

#[cfg(test)]
mod tests {
    use shardfmt::{Commit, CommitId, Digest, Message, Operation};

    use super::*;

    const NOW: u64 = 1_000_000;

    fn log(ages: &[u64]) -> Vec<LogEntry> {
        let entry = |(number, age): (u64, &u64)| {
            let commit = Commit {
                format: shardfmt::commit::FORMAT,
                dataset: "d".parse().expect("a name"),
                version: VersionId::of(&number.to_le_bytes()),
                provenance: None,
                parent: (number > 1).then(|| CommitId(Digest::of(b"parent"))),
                number,
                time: NOW - age,
                operation: Operation::INGEST,
                message: Message::default(),
                samples: 1,
                bytes: 1,
                shards: 1,
            };
            LogEntry { id: commit.id(), commit }
        };
        let numbers = (1..=ages.len() as u64).rev();
        numbers.zip(ages).map(entry).collect()
    }

    #[test]
    fn what_is_neither_new_nor_young_is_cut_and_the_present_version_never() {
        let log = log(&[10, 100, 50, 1000, 2000]);
        let after = |keep, age: Option<u64>| kept(&log, keep, age.map(Duration::from_secs), NOW);
        assert_eq!([1, 3, 9].map(|keep| after(Some(keep), None)), [1, 3, 5]);
        assert_eq!(
            [5, 50, 60, 3000].map(|age| after(None, Some(age))),
            [1, 1, 3, 5],
            "the clock went back once"
        );
        assert_eq!((after(Some(4), Some(60)), after(Some(2), Some(60))), (4, 3));
        assert_eq!(kept(&[], Some(1), None, NOW), 0);
    }
}
