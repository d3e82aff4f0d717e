//! The summary as a page for a terminal. Pure.

use shardd_store::training_data::{Training, Version};
use shardfmt::ByteSize;

use super::Facts;
use crate::human::{count, date};
use crate::plain::plain;
use crate::table::{Table, facts};

pub(super) fn page(known: &Facts) -> String {
    let mut parts = Vec::new();
    for training in &known.trainings {
        parts.push(training_page(training));
    }
    let headings =
        ["dataset", "version", "samples", "read", "size", "content", "source", "licence", "derived from"];
    let mut table = Table::new(&headings);
    for version in &known.versions {
        table.row(row(version, known));
    }
    parts.push(table.render());
    parts.join("\n")
}

fn training_page(training: &Training) -> String {
    let mut known = Vec::new();
    known.extend(training.run.as_ref().map(|run| ("run", run.clone())));
    known.extend(training.record.map(|record| ("record", record.to_string())));
    known.push(("plan", training.plan.to_string()));
    if let (Some(from), Some(until)) = (training.from, training.until) {
        known.push(("trained (UTC)", format!("{} to {}", date(from), date(until))));
    }
    let ending = training.ending.as_ref();
    known.extend(ending.map(|ending| ("ending", format!("{}{}", plain(ending), training.caution()))));
    known.extend(training.weights.as_ref().map(|weights| ("weights", weights.clone())));
    let mut read = format!("{} in {} epochs", count(training.samples_read()), training.epochs.len());
    if training.steps_unknown > 0 {
        read.push_str(&format!(
            "; and those of {} steps before, which the record does not have",
            count(training.steps_unknown)
        ));
    }
    known.push(("samples read", read));
    let mut page = facts(&known);
    if training.epochs.iter().any(|epoch| epoch.root.is_some()) {
        let mut table = Table::new(&["epoch", "samples", "root"]);
        for epoch in &training.epochs {
            let root = epoch.root.map(|root| root.to_string()).unwrap_or_default();
            table.row([epoch.epoch.to_string(), count(epoch.samples), root]);
        }
        page.push_str(&format!("\n{}", table.render()));
    }
    page
}

fn row(version: &Version, known: &Facts) -> [String; 9] {
    let about = known.about.of(&version.dataset);
    let amounts = version.amounts.iter();
    let amounts = amounts.map(|it| format!("{} {}", count(it.amount), it.unit.noun()));
    let or_undeclared =
        |text: Option<String>| text.map_or_else(|| "not declared".to_owned(), |text| plain(&text));
    let source = about.source.map(|source| serde_json::to_value(source).expect("a name"));
    [
        version.dataset.clone(),
        version.version.short(),
        count(version.samples),
        count(version.samples_read),
        ByteSize(version.bytes).to_string(),
        amounts.collect::<Vec<_>>().join(", "),
        or_undeclared(source.and_then(|source| source.as_str().map(str::to_owned))),
        or_undeclared(about.license),
        match version.derived_from.first() {
            Some(base) => base.short(),
            None => "-".to_owned(),
        },
    ]
}
