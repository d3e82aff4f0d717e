//! `shardctl gc`: what nothing names any more, and its deletion.

use std::time::Duration;

use clap::Args;
use shardd_client::catalog::{GcOptions, GcReport, Tally};
use shardfmt::ByteSize;

use crate::connect::Connect;
use crate::failure::Failure;
use crate::human::{count, parse_duration, plural};
use crate::output;
use crate::table::Table;

/// Show what no version, tag, plan or run reaches; with --delete, delete it
#[derive(Args)]
pub(crate) struct Gc {
    /// Delete, instead of only showing what would be
    #[arg(long)]
    delete: bool,

    /// Spare what was written since, such as 30m, 12h or 7d: someone may be about to commit it. Longer than the longest
    /// ingest takes
    #[arg(long, value_name = "AGE", default_value = "1h", value_parser = parse_duration)]
    older_than: Duration,
}

impl Gc {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let options = GcOptions { dry_run: !self.delete, older_than_s: self.older_than.as_secs() };
        let report = connect.catalog()?.gc(&options)?;
        match json {
            true => output::json(&report),
            false => output::print(&describe(&report)),
        }
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
            "{} that nothing reaches are too young; see --older-than (a node keeps for an hour what was never committed)\n",
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
