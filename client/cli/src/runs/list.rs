//! Runs in a list, and one of them in full.

use serde_json::json;
use shardd_api::protocol::RunId;
use shardd_store::catalog::{Catalog, CatalogError, RunInfo};
use shardfmt::ByteSize;

use super::records::{Place, described};
use crate::failure::Failure;
use crate::human::{count, date, plural};
use crate::output;
use crate::table::{Table, facts};

/// Prints all runs, or one.
pub(super) fn list(catalog: &dyn Catalog, run: Option<&RunId>, json: bool) -> Result<(), Failure> {
    let runs = match run {
        Some(run) => vec![catalog.run_info(run)?],
        None => catalog.runs()?,
    };
    if json {
        output::json(&runs);
    } else if runs.is_empty() {
        output::print(
            "no runs yet: a run begins when its first trainer attaches, or writes a record (`shardtrain --record`)\n",
        );
    } else {
        output::print(&table(&runs).render());
    }
    Ok(())
}

/// Prints a run and its records, or a record.
pub(super) fn show(
    catalog: &dyn Catalog,
    place: impl FnOnce() -> Result<Place, Failure>,
    asked: &str,
    steps: bool,
    json: bool,
) -> Result<(), Failure> {
    let Ok(name) = asked.parse::<RunId>() else { return place()?.show(asked, steps, json) };
    let info = match catalog.run_info(&name) {
        Err(missing @ CatalogError::NotFound { .. }) => {
            // A name of no run may be a record; where records are elsewhere, it is neither.
            let Ok(place) = place() else { return Err(missing.into()) };
            return place.show(asked, steps, json);
        }
        found => found?,
    };
    let place = match info.details.map_or(0, |details| details.stored.records) {
        0 => None,
        _ => place().ok(),
    };
    let records = place.as_ref().map(|place| place.of_run(&name)).transpose()?.unwrap_or_default();
    if let ([(id, _)], Some(place)) = (&records[..], &place) {
        return place.show(&id.to_string(), steps, json);
    }
    if json {
        let records: Vec<_> = records.iter().map(|(id, record)| described(*id, record)).collect();
        output::json(&json!({ "run": info, "records": records }));
        return Ok(());
    }
    output::print(&page(&info));
    if !records.is_empty() {
        output::print(&format!("\n{}", Place::table(&records).render()));
    }
    Ok(())
}

/// Runs as a table.
pub(super) fn table(runs: &[RunInfo]) -> Table {
    let headings = [
        "run",
        "state",
        "dataset",
        "plan",
        "audited epochs",
        "began (UTC)",
        "last seen (UTC)",
        "records",
        "checkpoints",
    ];
    let mut table = Table::new(&headings);
    for run in runs {
        let details = run.details.unwrap_or_default();
        table.row([
            run.id.to_string(),
            run.state.to_string(),
            or_dash(run.dataset.as_ref()),
            or_dash(run.plan.map(|plan| plan.short())),
            count(details.epochs.into()),
            or_dash(run.began.map(date)),
            or_dash(run.seen.map(date)),
            sized(details.stored.records, details.stored.record_bytes),
            sized(details.stored.checkpoints, details.stored.checkpoint_bytes),
        ]);
    }
    table
}

fn page(run: &RunInfo) -> String {
    let details = run.details.unwrap_or_default();
    facts(&[
        ("run", run.id.to_string()),
        ("state", run.state.to_string()),
        ("dataset", or_dash(run.dataset.as_ref())),
        ("version", or_dash(run.version)),
        ("plan", or_dash(run.plan)),
        ("virtual ranks", or_dash(run.virtual_ranks)),
        ("ranks", or_dash(run.world)),
        ("began (UTC)", or_dash(run.began.map(date))),
        ("last seen (UTC)", or_dash(run.seen.map(date))),
        ("audited epochs", format!("{} ({})", count(details.epochs.into()), plural(details.audits, "audit"))),
        ("records", sized(details.stored.records, details.stored.record_bytes)),
        ("checkpoints", sized(details.stored.checkpoints, details.stored.checkpoint_bytes)),
    ])
}

/// How many, and their size.
pub(super) fn sized(number: u64, bytes: u64) -> String {
    match (number, bytes) {
        (0, 0) => "-".to_owned(),
        (number, bytes) => format!("{} ({})", count(number), ByteSize(bytes)),
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
