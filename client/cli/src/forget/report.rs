//! The output of the command: the holders of the rows, the steps taken, and the copies beyond reach.

use serde_json::json;
use shardd_store::catalog::{DatasetInfo, ForgetReport, HoldingDataset};
use shardfmt::{ByteSize, DatasetName, VersionId};

use crate::human::{count, plural};
use crate::output;
use crate::table::Table;

/// The most shards, and the most versions, that the report lists.
const LISTED: usize = 20;

/// The copies that no command here can reach.
const BEYOND_REACH: [&str; 5] = [
    "files that were exported, and copies that others made",
    "backups of the store, older versions of objects that a bucket keeps, and uploads to it that were cut off",
    "what loaders that are running have mapped, until they end",
    "what models have learnt from the rows",
    "nodes that are not running, until they start, and caches of loaders, until they next read from this store",
];

/// A version that was committed without the rows.
pub(super) struct Committed {
    pub(super) before: VersionId,
    pub(super) rows: u64,
    pub(super) after: DatasetInfo,
}

/// The report.
pub(super) struct Outcome {
    pub(super) dataset: DatasetName,
    pub(super) dry_run: bool,
    pub(super) everywhere: bool,
    pub(super) checkpoints: bool,
    /// Samples of the version in which the rows were looked up, if that is known.
    pub(super) matching: Option<u64>,
    pub(super) committed: Vec<Committed>,
    pub(super) report: ForgetReport,
}

impl Outcome {
    pub(super) fn print(&self, json: bool) {
        match json {
            true => output::json(&self.value()),
            false => output::print(&self.page()),
        }
    }

    fn value(&self) -> serde_json::Value {
        let ForgetReport { rows, shards, versions, datasets, tags, plans, runs, deleted, .. } = &self.report;
        let committed = self.committed.iter().map(|Committed { before, rows, after }| {
            json!({ "dataset": after.name, "version": after.version, "before": before, "rows": rows, "samples": after.samples })
        });
        json!({
            "dataset": self.dataset,
            "dry_run": self.dry_run,
            "everywhere": self.everywhere,
            "matching": self.matching,
            "rows": rows,
            "shards": shards,
            "versions": versions,
            "datasets": datasets,
            "tags": tags,
            "plans": plans,
            "runs": runs,
            "committed": committed.collect::<Vec<_>>(),
            "deleted": deleted,
            "beyond_reach": if self.everywhere { &BEYOND_REACH[..] } else { &[] },
        })
    }

    fn page(&self) -> String {
        let report = &self.report;
        let mut page = String::new();
        if report.rows > 0 {
            let samples = |matching| format!(" ({} of {})", plural(matching, "sample"), self.dataset);
            page.push_str(&format!(
                "{}{} in {} of {}\n\n",
                plural(report.rows, "row"),
                self.matching.map_or_else(String::new, samples),
                plural(report.shards.len() as u64, "shard"),
                plural(report.versions.len() as u64, "version"),
            ));
        }
        if !report.shards.is_empty() {
            page.push_str(&self.tables());
        }
        page.push_str(&self.done());
        page
    }

    /// The holders of the rows.
    fn tables(&self) -> String {
        let (report, mut page) = (&self.report, String::new());
        let mut shards = Table::new(&["shard", "rows"]);
        for held in report.shards.iter().take(LISTED) {
            shards.row([held.shard.short(), count(held.rows)]);
        }
        page.push_str(&shards.render());
        page.push_str(&more(report.shards.len(), "shard"));
        page.push('\n');
        let mut versions = Table::new(&["version", "dataset", "rows", "samples", "shards"]);
        for held in report.versions.iter().take(LISTED) {
            let dataset = held.dataset.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            let shards = count(held.shards);
            versions.row([held.version.short(), dataset, count(held.rows), count(held.samples), shards]);
        }
        page.push_str(&versions.render());
        page.push_str(&more(report.versions.len(), "version"));
        let holders = self.holders();
        if !holders.is_empty() {
            let head = if self.everywhere { "held by, and removed there" } else { "held by" };
            page.push_str(&format!("\n{head}:\n"));
            holders.iter().for_each(|holder| page.push_str(&format!("  {holder}\n")));
        }
        page.push('\n');
        page
    }

    /// The references to the rows, one line each.
    fn holders(&self) -> Vec<String> {
        let ForgetReport { datasets, tags, plans, runs, .. } = &self.report;
        let dataset = |held: &HoldingDataset| {
            let commits = plural(held.commits, "commit");
            match (held.is_present, self.everywhere) {
                (true, false) => {
                    format!("dataset {}: its present version, {commits} of its history", held.name)
                }
                (_, false) => format!("dataset {}: {commits} of its history", held.name),
                (_, true) => {
                    format!("dataset {}: {} cut off its history", held.name, plural(held.cut, "commit"))
                }
            }
        };
        let mut holders: Vec<String> = datasets.iter().map(dataset).collect();
        holders.extend(tags.iter().map(|tag| format!("tag {}@{}", tag.dataset, tag.tag)));
        holders.extend(plans.iter().map(|plan| format!("plan {} of {}", plan.id.short(), plan.dataset)));
        holders.extend(runs.iter().map(|run| {
            let stored = run.details.unwrap_or_default().stored;
            let kept = match (stored.checkpoints, self.checkpoints) {
                (0, _) => String::new(),
                (checkpoints, true) => format!(", with {}", plural(checkpoints, "checkpoint")),
                (checkpoints, false) => {
                    format!(", whose {} learnt from them (--checkpoints)", plural(checkpoints, "checkpoint"))
                }
            };
            format!("run {} ({}){kept}", run.id, run.state)
        }));
        holders
    }

    fn done(&self) -> String {
        if self.dry_run {
            return format!(
                "nothing was changed: --delete commits a version of {} without them, and --delete \
                --everywhere also removes the objects listed here\n",
                self.dataset
            );
        }
        let mut said = String::new();
        for Committed { before, rows, after } in &self.committed {
            said.push_str(&format!(
                "{}: {} forgotten, {} in {} left, version {} in place of {}\n",
                after.name,
                plural(*rows, "sample"),
                plural(after.samples, "sample"),
                plural(after.shards, "shard"),
                after.version.short(),
                before.short(),
            ));
        }
        if self.committed.is_empty() && !self.everywhere {
            said.push_str(&format!("the present version of {} has none of them\n", self.dataset));
        }
        if !self.everywhere {
            if !self.report.shards.is_empty() {
                said.push_str(
                    "the objects listed here still hold them: --delete --everywhere removes these \
                    objects\n",
                );
            }
            return said;
        }
        let deleted = self.report.deleted;
        said.push_str(&format!(
            "{} ({}) deleted from the store; nodes drop what their caches have of these shards\n\nbeyond reach:\n",
            plural(deleted.objects, "object"),
            ByteSize(deleted.bytes)
        ));
        BEYOND_REACH.iter().for_each(|what| said.push_str(&format!("  {what}\n")));
        said.push_str("copies of the metadata hold names and digests, no rows\n");
        said
    }
}

fn more(of: usize, noun: &str) -> String {
    match of.saturating_sub(LISTED) {
        0 => String::new(),
        more => format!("and {} more\n", plural(more as u64, noun)),
    }
}
