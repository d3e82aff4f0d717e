//! Records of trainings, which `shardtrain --record` writes: shown and compared. Asks no node: they are in a directory or bucket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shardd_api::protocol::RunId;
use shardd_store::catalog::StorePlace;
use shardd_store::connect::Connect;
use shardd_store::origin::Origin;
use shardd_store::record::{Listed, Record, RecordError, RecordId, Records, StepRow, compare};
use shardfmt::ByteSize;
use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;
use crate::human::{count, date, duration};
use crate::output;
use crate::table::{Table, facts};

/// The records of a place.
pub(crate) struct Place {
    records: Records,
    runtime: Runtime,
}

impl Place {
    pub(crate) fn open(connect: &Connect, given: Option<&Path>) -> Result<Place, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let origin = match connect.place_of_records(given)? {
            StorePlace::Directory(directory) if !directory.is_dir() => {
                let directory = directory.display();
                return Err(Failure::failed(format!(
                    "there is no directory {directory}: name that of the records with --record"
                )));
            }
            StorePlace::Directory(directory) => Origin::open_dir(&directory)?,
            StorePlace::Url { url, options } => Origin::open_with(&url, &options)?,
        };
        runtime.block_on(origin.probe())?;
        Ok(Place { records: Records::new(Arc::new(origin)), runtime })
    }

    /// The records of a run, the oldest first.
    pub(crate) fn of_run(&self, run: &RunId) -> Result<Vec<(RecordId, Record)>, Failure> {
        let mut found = Vec::new();
        for listed in self.runtime.block_on(self.records.list(Some(run)))? {
            found.push((listed.id, self.runtime.block_on(self.records.read(&listed))?));
        }
        found.sort_by_key(|(id, record)| (record.written(), *id));
        Ok(found)
    }

    /// A step of a record; none if it has no such step.
    pub(crate) fn step(&self, record: &Record, step: u64) -> Result<Option<StepRow>, Failure> {
        Ok(self.runtime.block_on(self.records.step(record, step))?)
    }

    /// Those as a table.
    pub(super) fn table(found: &[(RecordId, Record)]) -> Table {
        let headings = ["record", "dataset", "steps", "of", "ending", "weights", "written (UTC)"];
        let mut table = Table::new(&headings);
        for (id, record) in found {
            let ending = record.ending.to_string();
            table.row([
                id.short(),
                dataset(record),
                count(record.steps.end),
                count(record.steps.of),
                ending.split(':').next().unwrap_or_default().to_owned(),
                record.weights.map_or_else(|| "-".to_owned(), |weights| weights.short()),
                date(record.written()),
            ]);
        }
        table
    }

    /// Prints the record that is called so.
    pub(super) fn show(&self, asked: &str, with_steps: bool, json: bool) -> Result<(), Failure> {
        let (id, record) = self.read(asked)?;
        if json {
            output::json(&described(id, &record));
        } else {
            output::print(&page(id, &record));
        }
        if !with_steps {
            return Ok(());
        }
        let mut table = Table::new(&[
            "step",
            "epoch",
            "mean loss",
            "right",
            "gradient norm",
            "rate",
            "",
            "weights after it",
        ]);
        for part in 0..record.steps.parts.len() as u64 {
            let number = record.steps.first / shardd_store::record::STEPS_PER_PART + part;
            for row in self.runtime.block_on(self.records.steps(&record, number))? {
                if json {
                    output::json(&step(&row));
                    continue;
                }
                table.row([
                    row.step.to_string(),
                    row.epoch.to_string(),
                    row.mean().to_string(),
                    format!("{} of {}", row.correct, row.samples),
                    row.gradient_norm.to_string(),
                    row.rate.to_string(),
                    if row.is_skipped { "skipped" } else { "" }.to_owned(),
                    row.weights.map_or_else(|| "-".to_owned(), |weights| weights.short()),
                ]);
            }
        }
        if !json {
            output::print(&format!("\n{}", table.render()));
        }
        Ok(())
    }

    /// Whether both are the same.
    pub(super) fn diff(&self, a: &str, b: &str, json: bool) -> Result<bool, Failure> {
        let ((one, a), (other, b)) = (self.read(a)?, self.read(b)?);
        let compared = self.runtime.block_on(compare((&self.records, &a), (&self.records, &b)))?;
        match json {
            true => output::json(&json!({
                "a": one, "b": other, "same": compared.is_same(), "difference": compared,
            })),
            false => {
                let name = |id: RecordId, record: &Record| format!("{} ({})", id.short(), record.run);
                output::print(&format!("{} -> {}\n{compared}", name(one, &a), name(other, &b)));
            }
        }
        Ok(compared.is_same())
    }

    /// The record that is called so.
    pub(super) fn read(&self, asked: &str) -> Result<(RecordId, Record), Failure> {
        let read = async {
            let listed: Listed = self.records.find(asked).await?;
            Ok((listed.id, self.records.read(&listed).await?))
        };
        self.runtime.block_on(read).map_err(|error: RecordError| match error {
            RecordError::Ambiguous { .. } => Failure::wrong(error),
            error => error.into(),
        })
    }
}

fn dataset(record: &Record) -> String {
    let version = record.data.version.short();
    record.data.dataset.as_ref().map_or(version.clone(), |name| format!("{name} ({version})"))
}

pub(super) fn described(id: RecordId, record: &Record) -> serde_json::Value {
    json!({ "id": id, "steps_digest": record.steps.digest(), "record": record })
}

fn page(id: RecordId, record: &Record) -> String {
    let steps = &record.steps;
    let mut page = facts(&[
        ("record", id.to_string()),
        ("run", record.run.to_string()),
        ("dataset", dataset(record)),
        ("samples", count(record.data.samples)),
        ("plan", format!("{} (Q {}, seed {})", record.data.plan.short(), record.data.q, record.data.seed)),
        ("virtual ranks", record.virtual_ranks.to_string()),
        ("ending", record.ending.to_string()),
        ("steps", format!("{} to {} of {}", count(steps.first), count(steps.end), count(steps.of))),
        ("digests", format!("every {} steps", count(steps.digests_every))),
        ("steps digest", steps.digest().to_string()),
        ("first weights", record.first_weights.to_string()),
        ("weights", record.weights.map_or_else(|| "-".to_owned(), |weights| weights.to_string())),
        ("same bits again", if record.is_exact { "yes" } else { "not promised" }.to_owned()),
        ("checkpoints", count(record.checkpoints.len() as u64)),
        ("arguments", record.arguments.join(" ")),
    ]);
    let headings =
        ["from step", "ranks", "began (UTC)", "until (UTC)", "most memory", "version", "device", "processor"];
    let mut launches = Table::new(&headings);
    for launch in &record.launches {
        launches.row([
            count(launch.first_step),
            launch.world.to_string(),
            date(launch.started),
            date(launch.until),
            launch.memory_bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
            launch.version.clone(),
            launch.device.clone(),
            launch.processor.clone(),
        ]);
    }
    page.push_str(&format!("\n{}", launches.render()));
    if !record.checkpoint_writes.is_empty() {
        let mut table = Table::new(&["checkpoint", "complete (UTC)", "size", "written", "took"]);
        for write in &record.checkpoint_writes {
            table.row([
                count(write.step),
                date(write.at),
                ByteSize(write.bytes).to_string(),
                ByteSize(write.written_bytes).to_string(),
                duration(Duration::from_millis(write.millis)),
            ]);
        }
        page.push_str(&format!("\n{}", table.render()));
    }
    let mut settings = Table::new(&["setting", "value"]);
    for (name, value) in &record.settings {
        settings.row([name.clone(), value.clone()]);
    }
    page.push_str(&format!("\n{}", settings.render()));
    page
}

fn step(row: &StepRow) -> serde_json::Value {
    let digest = |digest: Option<shardd_store::record::Digest128>| digest.map(|digest| digest.to_string());
    let share = |share: &shardd_store::record::ShareRow| {
        json!({
            "samples": share.samples, "loss_sum": share.loss, "correct": share.correct,
            "input": digest(share.input), "gradient": digest(share.gradient),
        })
    };
    json!({
        "step": row.step, "epoch": row.epoch, "rate": row.rate, "samples": row.samples, "loss": row.mean(),
        "loss_sum": row.loss, "correct": row.correct, "gradient_norm": row.gradient_norm, "skipped": row.is_skipped,
        "weights": row.weights, "virtual_ranks": row.shares.iter().map(share).collect::<Vec<_>>(),
    })
}
