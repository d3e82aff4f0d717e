//! `shardctl gc`: what nothing names any more, and its deletion.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use shardd_store::catalog::{GcOptions, GcReport, StorePlace, Tally};
use shardd_store::connect::Connect;
use shardfmt::ByteSize;

use crate::checkpoints::{self, Unnamed};
use crate::failure::Failure;
use crate::human::{count, parse_duration, plural};
use crate::output;
use crate::table::Table;

/// Show the objects that no version, tag, plan or run reaches; with --delete, delete them
#[derive(Args)]
pub(crate) struct Gc {
    /// Delete, instead of only listing the objects
    #[arg(long)]
    delete: bool,

    /// Spare objects written since then, such as 30m, 12h or 7d: someone may be about to commit it. Longer
    /// than the longest ingest takes
    #[arg(long, value_name = "AGE", default_value = "1h", value_parser = parse_duration)]
    older_than: Duration,

    /// Instead of data sets: unfinished checkpoints of killed trainings in this directory or bucket, once
    /// they are a day old (that of `shardtrain --checkpoints`)
    #[arg(long, value_name = "DIR|URL")]
    checkpoints: Option<PathBuf>,
}

impl Gc {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if let Some(given) = &self.checkpoints {
            return self.of_checkpoints(&connect.place_of_records(Some(given))?, json);
        }
        let options = GcOptions { dry_run: !self.delete, older_than_s: self.older_than.as_secs() };
        let report = connect.catalog()?.gc(&options)?;
        match json {
            true => output::json(&report),
            false => output::print(&describe(&report)),
        }
        Ok(())
    }
}

impl Gc {
    fn of_checkpoints(&self, place: &StorePlace, json: bool) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let found = runtime.block_on(checkpoints::collect(place, self.older_than, self.delete))?;
        let total = found.iter().fold(Tally::default(), |sum, run| Tally {
            objects: sum.objects + run.parts + run.files,
            bytes: sum.bytes + run.bytes,
        });
        if json {
            let runs: Vec<_> = found
                .iter()
                .map(|Unnamed { run, parts, files, bytes, unread }| {
                    json!({ "run": run, "parts": parts, "unfinished_files": files, "bytes": bytes, "unread": unread })
                })
                .collect();
            output::json(&json!({ "dry_run": !self.delete, "unfinished": total, "runs": runs }));
            return Ok(());
        }
        for Unnamed { run, parts, files, bytes, unread } in &found {
            let files = match files {
                0 => String::new(),
                files => format!(", {} of killed uploads", plural(*files, "file")),
            };
            output::print(&match unread {
                None => format!("run {run}: {}{files} ({})\n", plural(*parts, "part"), ByteSize(*bytes)),
                Some(reason) => {
                    format!("run {run}: no part goes, as a checkpoint cannot be read: {reason}{files}\n")
                }
            });
        }
        output::print(&match (total.objects, self.delete) {
            (0, _) => "no part of an unfinished checkpoint to delete\n".to_owned(),
            (_, false) => format!("{} would go: --delete deletes them\n", tallied(total)),
            (_, true) => format!("{} deleted\n", tallied(total)),
        });
        Ok(())
    }
}

fn describe(report: &GcReport) -> String {
    let total = report.total();
    let mut page = String::new();
    if total.objects > 0 {
        let mut table = Table::new(&[if report.dry_run { "would go" } else { "deleted" }, "objects", "size"]);
        let kinds = [
            ("shards", report.shards),
            ("sidecars", report.sidecars),
            ("manifests", report.manifests),
            ("trees", report.trees),
            ("provenances", report.provenances),
            ("commits", report.commits),
            ("plans", report.plans),
            ("unfinished uploads", report.leftovers),
        ];
        for (kind, tally) in kinds.into_iter().filter(|(_, tally)| tally.objects > 0) {
            table.row([kind.to_owned(), count(tally.objects), ByteSize(tally.bytes).to_string()]);
        }
        page.push_str(&table.render());
        page.push('\n');
    }
    for gone in &report.versions {
        let dataset =
            gone.dataset.as_ref().map_or_else(|| "never committed".to_owned(), |name| format!("once {name}"));
        page.push_str(&format!("version {} ({dataset})\n", gone.version.short()));
    }
    let unnamed = report.manifests.objects.saturating_sub(report.versions.len() as u64);
    if unnamed > 0 {
        page.push_str(&format!("and {} more\n", plural(unnamed, "version")));
    }
    page.push_str(&match (total.objects, report.dry_run) {
        (0, _) => "nothing to delete".to_owned(),
        (_, true) => format!("{} would go: --delete deletes them", tallied(total)),
        (_, false) => format!("{} deleted", tallied(total)),
    });
    page.push_str(&format!("; {} reached, and kept\n", tallied(report.reached)));
    if report.young.objects > 0 {
        page.push_str(&format!(
            "{} that nothing reaches are too young; see --older-than (a node keeps uncommitted objects for \
            an hour)\n",
            tallied(report.young)
        ));
    }
    if report.unknown.objects > 0 {
        let named: Vec<&str> = report.unknown_keys.iter().take(5).map(String::as_str).collect();
        let more = if report.unknown.objects > named.len() as u64 { ", …" } else { "" };
        page.push_str(&format!(
            "{} not of shardd are left alone: {}{more}\n",
            tallied(report.unknown),
            named.join(", ")
        ));
    }
    page
}

fn tallied(tally: Tally) -> String {
    format!("{} ({})", plural(tally.objects, "object"), ByteSize(tally.bytes))
}
