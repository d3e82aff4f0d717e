//! `shardctl explain step`: from a step of a recorded training to the samples that each rank read in it.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use shardd_api::lookup::{self, Found, Step};
use shardd_api::protocol::RunId;
use shardd_plan::Plan;
use shardd_store::connect::{Connect, Target};
use shardd_store::record::{Record, RecordId, StepExplained};
use shardfmt::PlanId;

use crate::failure::Failure;
use crate::human::{count, plural};
use crate::output;
use crate::runs::records::Place;
use crate::table::{Table, facts};

/// Numbers of samples on a line.
const LISTED: usize = 12;

/// Arguments of `explain step`.
#[derive(Args)]
pub(super) struct ExplainStep {
    /// The step, counted from the beginning of the training, from 0
    step: u64,

    /// The run; it needs a record, which `shardtrain --record` writes
    #[arg(long)]
    run: RunId,

    /// Only the samples of this rank
    #[arg(long)]
    rank: Option<u32>,

    /// Directory or bucket of the records: that of `shardtrain --record` or `--checkpoints` [default: the
    /// nodes or the store in use]
    #[arg(long, value_name = "DIR|URL")]
    record: Option<PathBuf>,
}

impl ExplainStep {
    pub(super) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let is_of_nodes = self.record.is_none() && matches!(connect.target()?, Target::Servers(_));
        let (known, explained) = if is_of_nodes { self.by_nodes(connect)? } else { self.by_store(connect)? };
        if self.rank.is_some_and(|rank| rank >= explained.world) {
            return Err(Failure::usage(format!(
                "--rank: the training had {} at this step, so give 0 to {}",
                plural(explained.world.into(), "rank"),
                explained.world - 1
            )));
        }
        let (samples, total) = self.samples(connect, known.plan, &explained)?;
        if json {
            output::json(
                &json!({ "run": self.run, "record": known.id, "step": explained, "samples": samples }),
            );
            return Ok(());
        }
        output::print(&page(&self.run, &known, &explained, &samples, total));
        if let (Some(dataset), Some(first)) = (&known.dataset, samples.first()) {
            output::note(
                false,
                &format!("to look at a sample: shardctl head {dataset} --from {} -n 1", first.sample),
            );
        }
        Ok(())
    }

    /// The nodes read the records of their store.
    fn by_nodes(&self, connect: &Connect) -> Result<(Known, StepExplained), Failure> {
        let servers = connect.servers()?;
        let records = format!("{}/v1/runs/{}/records", servers.first_that_answers(), self.run);
        let listed: Vec<Known> = servers.http().get_json(&records)?;
        let known = self.choose(listed)?;
        let explained = servers.http().get_json(&format!("{records}/{}/steps/{}", known.id, self.step))?;
        Ok((known, explained))
    }

    fn by_store(&self, connect: &Connect) -> Result<(Known, StepExplained), Failure> {
        let place = Place::open(connect, self.record.as_deref())?;
        let mut records = place.of_run(&self.run)?;
        records.reverse();
        let known = self.choose(records.iter().map(|(id, record)| Known::of(*id, record)).collect())?;
        let (id, record) = records.into_iter().find(|(id, _)| *id == known.id).expect("it was chosen");
        let row = place.step(&record, self.step)?.ok_or_else(|| {
            Failure::failed(format!("record {} does not hold step {}", id.short(), self.step))
        })?;
        let explained = record.explained(&row).ok_or_else(|| {
            Failure::failed(format!("record {} does not have the size of a step", id.short()))
        })?;
        Ok((known, explained))
    }

    /// The newest record that has the step; the newest comes first.
    fn choose(&self, records: Vec<Known>) -> Result<Known, Failure> {
        let run = &self.run;
        let Some((first, end)) = records.first().map(|newest| (newest.first, newest.end)) else {
            return Err(Failure::failed(format!(
                "run {run} has no record here: name its place with --record, and write one with `shardtrain --record`"
            )));
        };
        records.into_iter().find(|known| (known.first..known.end).contains(&self.step)).ok_or_else(|| {
            Failure::usage(format!(
                "run {run} has no record of step {}: the newest has {first} to {}",
                self.step,
                end.saturating_sub(1)
            ))
        })
    }

    /// The samples of the step, by position, and how many the version has.
    fn samples(
        &self,
        connect: &Connect,
        plan: PlanId,
        explained: &StepExplained,
    ) -> Result<(Vec<Found>, u64), Failure> {
        let catalog = connect.catalog()?;
        let document = catalog.plan(plan)?;
        let manifest = catalog.open_manifest(document.version)?;
        let plan = Plan::new(document, &manifest.shard_rows()?)?;
        let step = Step {
            epoch: explained.epoch,
            position: explained.position,
            global_batch_size: explained.global_batch_size,
            rank: self.rank,
            world: explained.world,
            virtual_ranks: Some(explained.virtual_ranks),
        };
        let found = lookup::at(&plan, &manifest, &step).map_err(Failure::wrong)?;
        Ok((found, manifest.totals().samples))
    }
}

/// A record, as far as it matters here: a part of what `/v1/runs/{id}/records` lists.
#[derive(Deserialize)]
struct Known {
    id: RecordId,
    dataset: Option<String>,
    plan: PlanId,
    first: u64,
    end: u64,
    of: u64,
}

impl Known {
    fn of(id: RecordId, record: &Record) -> Known {
        let (data, steps) = (&record.data, &record.steps);
        let (first, end, of) = (steps.first, steps.end, steps.of);
        Known { id, dataset: data.dataset.clone(), plan: data.plan, first, end, of }
    }
}

fn page(run: &RunId, known: &Known, explained: &StepExplained, samples: &[Found], total: u64) -> String {
    let or_nan =
        |value: Option<f64>| value.map_or_else(|| "not a number".to_owned(), |value| value.to_string());
    let end = total.min(explained.position + explained.global_batch_size);
    let positions = format!("{} to {}", count(explained.position), count(end.saturating_sub(1)));
    let outcome = if explained.is_skipped { "skipped: it changed nothing" } else { "applied" };
    let mut page = facts(&[
        ("run", run.to_string()),
        ("record", known.id.short()),
        ("step", format!("{} of {}", count(explained.step), count(known.of))),
        ("epoch", format!("{}, step {} of it", explained.epoch, count(explained.step_of_epoch))),
        ("positions", positions),
        ("loss", or_nan(explained.loss)),
        ("gradient norm", or_nan(explained.gradient_norm)),
        ("learning rate", explained.learning_rate.to_string()),
        ("outcome", outcome.to_owned()),
    ]);
    let mut table = Table::new(&["rank", "virtual rank", "loss", "right", "samples"]);
    for share in &explained.shares {
        let own = samples.iter().filter(|found| found.virtual_rank == Some(share.virtual_rank));
        let own: Vec<String> = own.map(|found| found.sample.to_string()).collect();
        if own.is_empty() {
            continue;
        }
        let more = own.len().saturating_sub(LISTED);
        let mut listed = own[..own.len() - more].join(" ");
        if more > 0 {
            listed.push_str(&format!(" and {more} more"));
        }
        table.row([
            share.rank.to_string(),
            share.virtual_rank.to_string(),
            or_nan(share.loss),
            format!("{} of {}", count(share.correct), count(share.samples)),
            listed,
        ]);
    }
    page.push_str(&format!("\n{}", table.render()));
    page
}
