//! `shardctl replay`: what a rank was given for a step, once more and byte for byte, from the plan and the store.

use std::collections::HashMap;
use std::io::BufWriter;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::writer::FileWriter;
use clap::{ArgGroup, Args};
use serde::Serialize;
use shardd_api::lookup::Step;
use shardd_client::loader::{Failed, Transforms};
use shardd_client::replay::{MicroBatch, Replay as Replayer, ReplayError, Row};
use shardd_plan::Plan;
use shardd_store::connect::Connect;
use shardfmt::{Digest, DigestSum, RowDigest};
use tempfile::NamedTempFile;

use crate::failure::{Failure, one_line};
use crate::human::{count, plural};
use crate::output;
use crate::plan::PlanOrRun;
use crate::read::digest_of;
use crate::table::Table;

/// Read a rank's rows of a step again, byte for byte, and print their facts
///
/// Nothing of the training is needed but its plan and sizes: rows come from the store, and each is compared with the manifest.
#[derive(Args)]
#[command(group(ArgGroup::new("size").required(true).args(["global_batch_size", "batch_size"])))]
pub(crate) struct Replay {
    #[command(flatten)]
    which: PlanOrRun,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,

    /// First position of the step
    #[arg(long, default_value_t = 0)]
    position: u64,

    /// Samples that all ranks together read in a step
    #[arg(long, value_name = "N")]
    global_batch_size: Option<NonZeroU64>,

    /// The same, as samples per virtual rank
    #[arg(long, value_name = "N")]
    batch_size: Option<NonZeroU32>,

    /// The rank of the rows
    #[arg(long, default_value_t = 0)]
    rank: u32,

    /// Number of ranks of the training
    #[arg(long, default_value_t = 1)]
    world: u32,

    /// Number of virtual ranks of the training [default: those of RUN; else that of a loader with this
    /// --global-batch-size; with --batch-size the smallest divisor of the partitions that is no less than
    /// WORLD]
    #[arg(long, conflicts_with = "run")]
    virtual_ranks: Option<u32>,

    /// Number of consecutive steps
    #[arg(long, default_value = "1")]
    steps: NonZeroU64,

    /// Transforms of the training's pictures or sounds, to get the numbers that the model saw: a file of JSON, or the JSON itself
    #[arg(long, value_name = "FILE", value_parser = Transforms::of_argument)]
    transforms: Option<Transforms>,

    /// Write the rows to this Arrow IPC file, a record batch for each micro-batch, with columns that identify
    /// them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A rank's share of a step. `digest` and `sum` are those that `read` prints.
#[derive(Serialize)]
struct Given<'a> {
    epoch: u32,
    from: u64,
    to: u64,
    rank: u32,
    world: u32,
    virtual_ranks: u32,
    samples: u64,
    digest: String,
    sum: DigestSum,
    micro_batches: Vec<GivenBatch<'a>>,
}

#[derive(Serialize)]
struct GivenBatch<'a> {
    virtual_rank: u32,
    samples: usize,
    /// Over the canonical bytes of the rows.
    digest: Digest,
    /// The same, of what transforms made of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    transformed: Option<Digest>,
    /// Rows that could not be decoded or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedRow<'a>>,
    rows: &'a [Row],
}

#[derive(Serialize)]
struct FailedRow<'a> {
    position: u64,
    reason: &'a str,
    /// Whether it was left out; else it was zeros.
    skipped: bool,
}

impl Replay {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let (plan, manifest, run) = self.which.open(&*catalog)?;
        let virtual_ranks = run.map(|run| run.virtual_ranks).or(self.virtual_ranks);
        let virtual_ranks = virtual_ranks.unwrap_or_else(|| match self.global_batch_size {
            Some(size) => plan.default_virtual_ranks(size.get()),
            None => plan.fewest_virtual_ranks(self.world),
        });
        let global_batch_size = match (self.global_batch_size, self.batch_size) {
            (Some(size), _) => size.get(),
            (None, Some(size)) => u64::from(size.get()) * u64::from(virtual_ranks),
            (None, None) => unreachable!("one of them is required"),
        };
        let mut step = Step {
            epoch: self.epoch,
            position: self.position,
            global_batch_size,
            rank: Some(self.rank),
            world: self.world,
            virtual_ranks: Some(virtual_ranks),
        };
        let mut replayer = Replayer::new(&*catalog, &plan, &manifest)?;
        if let Some(chain) = &self.transforms {
            replayer = replayer.with_transforms(chain).map_err(Failure::wrong)?;
        }
        let mut file = None;
        for _ in 0..self.steps.get() {
            let micro_batches = replayer.give(&step, self.rank).map_err(refused)?;
            let end = step.position.saturating_add(step.global_batch_size).min(plan.sample_count());
            if let Some(path) = &self.out {
                let file = match &mut file {
                    Some(file) => file,
                    none => none.insert(StepsFile::create(path, replayer.schema(), &plan, &step, self.rank)?),
                };
                micro_batches.iter().try_for_each(|one| file.write(step.epoch, one))?;
            }
            print(&step, end, self.rank, &micro_batches, json);
            (step.epoch, step.position) = match end == plan.sample_count() {
                true => (step.epoch + 1, 0), // far from the last there can be: that was refused
                false => (step.epoch, end),
            };
        }
        file.map_or(Ok(()), StepsFile::finish)
    }
}

fn refused(error: ReplayError) -> Failure {
    match error {
        ReplayError::Lookup(error) => Failure::wrong(error),
        error => error.into(),
    }
}

fn print(step: &Step, end: u64, rank: u32, micro_batches: &[MicroBatch], json: bool) {
    let rows = micro_batches.iter().flat_map(|one| &one.rows);
    let mut digests: Vec<(u64, RowDigest)> = rows.map(|row| (row.found.position, row.digest)).collect();
    let (digest, sum) = digest_of(&mut digests);
    let given = Given {
        epoch: step.epoch,
        from: step.position,
        to: end,
        rank,
        world: step.world,
        virtual_ranks: step.virtual_ranks.expect("it was worked out"),
        samples: digests.len() as u64,
        digest,
        sum,
        micro_batches: micro_batches
            .iter()
            .map(|one| GivenBatch {
                virtual_rank: one.virtual_rank,
                samples: one.rows.len(),
                digest: one.digest,
                transformed: one.transformed,
                failed: one
                    .failed
                    .iter()
                    .map(|Failed { position, reason, skipped, .. }| FailedRow {
                        position: *position,
                        reason,
                        skipped: *skipped,
                    })
                    .collect(),
                rows: &one.rows,
            })
            .collect(),
    };
    if json {
        output::json(&given);
        return;
    }
    let mut page = format!(
        "epoch {}  positions {}..{}  rank {rank} of {}  {}  {}\n",
        given.epoch,
        given.from,
        given.to,
        given.world,
        plural(given.samples, "sample"),
        &given.digest[..16]
    );
    for one in &given.micro_batches {
        page.push_str(&format!(
            "\nvirtual rank {} of {}: {}, bytes {}\n",
            one.virtual_rank,
            given.virtual_ranks,
            plural(one.samples as u64, "sample"),
            one.digest
        ));
        if let Some(digest) = one.transformed {
            page.push_str(&format!("transformed: {digest}\n"));
        }
        for FailedRow { position, reason, skipped } in &one.failed {
            let remedy = if *skipped { "left out" } else { "zeros" };
            page.push_str(&format!("position {}: {remedy}: {reason}\n", count(*position)));
        }
        let mut table = Table::new(&["position", "sample", "shard", "row", "digest"]);
        for Row { found, digest } in one.rows {
            let (shard, row) = (found.shard.short(), count(found.row.into()));
            table.row([count(found.position), count(found.sample), shard, row, digest.to_string()]);
        }
        page.push_str(&table.render());
    }
    output::print(&page);
}

/// An Arrow IPC file of micro-batches, which has its name when it is whole.
struct StepsFile {
    path: PathBuf,
    schema: SchemaRef,
    writer: FileWriter<BufWriter<NamedTempFile>>,
}

impl StepsFile {
    /// Before the columns of the dataset come four that say which row it is; the metadata says which share of what.
    fn create(
        path: &Path,
        rows: &SchemaRef,
        plan: &Plan,
        first: &Step,
        rank: u32,
    ) -> Result<StepsFile, Failure> {
        let number = |name: &str, kind| Field::new(format!("shardd.{name}"), kind, false);
        let said = [
            number("epoch", DataType::UInt32),
            number("virtual_rank", DataType::UInt32),
            number("position", DataType::UInt64),
            number("sample", DataType::UInt64),
        ];
        let fields = said.map(Arc::new).into_iter().chain(rows.fields().iter().cloned());
        let facts = [
            ("plan", plan.id().to_string()),
            ("epoch", first.epoch.to_string()),
            ("position", first.position.to_string()),
            ("global_batch_size", first.global_batch_size.to_string()),
            ("rank", rank.to_string()),
            ("world", first.world.to_string()),
            ("virtual_ranks", first.virtual_ranks.expect("it was worked out").to_string()),
        ];
        let mut metadata: HashMap<String, String> = rows.metadata().clone().into();
        metadata.extend(facts.map(|(name, value)| (format!("shardd.{name}"), value)));
        let schema = Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata));
        let directory = path.parent().filter(|directory| *directory != Path::new(""));
        let unfinished = NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
        let unfinished = unfinished.map_err(|error| unwritten(path, &error))?;
        let writer = FileWriter::try_new(BufWriter::new(unfinished), &schema);
        let writer = writer.map_err(|error| unwritten(path, &error))?;
        Ok(StepsFile { path: path.to_owned(), schema, writer })
    }

    fn write(&mut self, epoch: u32, micro_batch: &MicroBatch) -> Result<(), Failure> {
        let MicroBatch { virtual_rank, batch, .. } = micro_batch;
        let same = |value| UInt32Array::from_value(value, batch.num_rows());
        let positions = UInt64Array::from_iter_values(micro_batch.given().map(|row| row.found.position));
        let samples = UInt64Array::from_iter_values(micro_batch.given().map(|row| row.found.sample));
        let said: [ArrayRef; 4] =
            [Arc::new(same(epoch)), Arc::new(same(*virtual_rank)), Arc::new(positions), Arc::new(samples)];
        let columns = said.into_iter().chain(batch.columns().iter().cloned()).collect();
        let whole = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        let written = whole.and_then(|whole| self.writer.write(&whole));
        written.map_err(|error| unwritten(&self.path, &error))
    }

    fn finish(self) -> Result<(), Failure> {
        let StepsFile { path, writer, .. } = self;
        // The file written so far is removed if this fails.
        let buffered = writer.into_inner().map_err(|error| unwritten(&path, &error))?;
        let unfinished = buffered.into_inner().map_err(|error| unwritten(&path, error.error()))?;
        unfinished.persist(&path).map_err(|error| unwritten(&path, &error.error))?;
        Ok(())
    }
}

fn unwritten(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::failed(format!("{} cannot be written: {}", path.display(), one_line(error)))
}
