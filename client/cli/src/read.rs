//! `shardctl read`: reads epochs exactly as a rank of a training would, and prints a fingerprint of the
//! samples.
//!
//! Every row that comes out of the loader is encoded again and hashed, so the digests speak of delivered bytes and not
//! of what the plan says should have come.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;
use shardd_api::protocol::RunId;
use shardd_client::loader::{BatchSize, LastBatch, Loader, LoaderConfig, LoaderSource, Step};
use shardd_plan::{Epoch, Plan};
use shardd_store::connect::{Connect, Servers, Target, find_plan};
use shardfmt::audit::Consumed;
use shardfmt::{DigestSum, RowCodec, RowDigest, RowError};

use crate::failure::Failure;
use crate::human::{count, duration, plural};
use crate::output;

/// Read epochs as a rank would, without training, and print digests of the delivered samples
#[derive(Args)]
pub(crate) struct Read {
    /// Id of the plan or the beginning of it, or its dataset or version (NAME, NAME@TAG); may be left out if there is only
    /// one
    #[arg(long)]
    plan: Option<String>,

    /// Name of the run; ranks of one run share it
    #[arg(long, default_value = "read")]
    run: RunId,

    /// The rank to read as
    #[arg(long, default_value_t = 0)]
    rank: u32,

    /// Number of ranks
    #[arg(long, default_value_t = 1)]
    world: u32,

    /// Number of virtual ranks [default: a function of the plan and --global-batch-size; with --batch-size
    /// the smallest divisor of the partitions that is no less than WORLD]
    #[arg(long)]
    virtual_ranks: Option<u32>,

    /// Samples per step and virtual rank
    #[arg(long, default_value_t = 32)]
    batch_size: u32,

    /// Samples per step, of all ranks together
    #[arg(long, value_name = "SAMPLES", conflicts_with = "batch_size")]
    global_batch_size: Option<u64>,

    /// The use of the samples left at the end of an epoch: a shorter step, none, one that is filled up with
    /// samples of the same epoch, or with those of the next
    #[arg(long, value_enum, default_value = "short")]
    last_batch: LastBatchArg,

    /// The epoch to stop before
    #[arg(long, default_value_t = 1)]
    epochs: u32,

    /// Where to begin
    #[arg(long, value_name = "EPOCH:POSITION", default_value = "0:0", value_parser = parse_start)]
    start: (u32, u64),

    /// Print each row's position and digest with its step
    #[arg(long)]
    rows: bool,

    /// Print no steps, only the end
    #[arg(long)]
    quiet: bool,

    /// Write the delivered samples of each epoch to this file, as hashes, for `audit verify`
    #[arg(long, value_name = "FILE")]
    consumed: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LastBatchArg {
    Short,
    Drop,
    Wrap,
    Carry,
}

/// The samples delivered in one step.
#[derive(Debug, Serialize)]
struct Delivered {
    epoch: u32,
    step: u64,
    from: u64,
    to: u64,
    samples: u64,
    /// BLAKE3 over (position, row digest) of every row in the order of positions: equal for equal deliveries.
    digest: String,
    /// Sum of a 128-bit digest of each (position, row digest): the sums of all ranks add up to that of one rank alone.
    sum: DigestSum,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<Vec<(u64, String)>>,
}

impl Read {
    fn batch(&self) -> BatchSize {
        self.global_batch_size.map_or(self.batch_size.into(), BatchSize::Global)
    }

    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let plan = find_plan(&*catalog, self.plan.as_deref())?;
        let batch = self.batch();
        let source = match connect.target()? {
            Target::Servers(Servers { urls, credentials, .. }) => {
                LoaderSource::Nodes { servers: urls, run: self.run, credentials }
            }
            Target::Store(place) => LoaderSource::Store(place),
        };
        if self.consumed.is_some() && matches!(self.last_batch, LastBatchArg::Wrap | LastBatchArg::Carry) {
            return Err(Failure::usage(
                "--consumed is of steps that lie in one stretch: read with --last-batch short or drop",
            ));
        }
        let mut config = LoaderConfig::new(source, plan, batch);
        config.rank = self.rank;
        config.world = self.world;
        config.virtual_ranks = self.virtual_ranks;
        config.last_batch = match self.last_batch {
            LastBatchArg::Short => LastBatch::Short,
            LastBatchArg::Drop => LastBatch::Drop,
            LastBatchArg::Wrap => LastBatch::Wrap,
            LastBatchArg::Carry => LastBatch::Carry,
        };
        config.start = self.start;
        config.end_epoch = self.epochs;
        config.audit = true;
        let mut loader = Loader::open(config)?;
        let codec = RowCodec::new(loader.schema().clone())?;
        let started = Instant::now();
        let (mut steps, mut samples) = (0u64, 0u64);
        let mut consumed: BTreeMap<u32, Consumed> = BTreeMap::new();
        while let Some(step) = loader.next_step()? {
            let parts = digests(&step, &codec)?;
            if self.consumed.is_some() {
                let plan = &loader.sources()[0].plan;
                // Samples that only fill a step up were consumed before.
                for (part, rows) in step.parts.iter().zip(&parts).filter(|(part, _)| !part.repeats) {
                    let epoch = Epoch(part.epoch);
                    let consumed = consumed.entry(epoch.0).or_insert_with(|| Consumed::new(plan, epoch));
                    consume(consumed, plan, epoch, rows)?;
                }
            }
            let delivered = fingerprint(&step, &mut parts.concat(), self.rows);
            steps += 1;
            samples += delivered.samples;
            if !self.quiet {
                print_step(&delivered, json);
            }
        }
        if let Some(file) = &self.consumed {
            write_consumed(file, &consumed)?;
        }
        print_end(&loader, steps, samples, started.elapsed(), json);
        Ok(())
    }
}

/// The position and digest of every row of each part of a step, in the order of their positions.
fn digests(step: &Step, codec: &RowCodec) -> Result<Vec<Vec<(u64, RowDigest)>>, RowError> {
    let mut parts: Vec<Vec<(u64, RowDigest)>> = vec![Vec::new(); step.parts.len()];
    let mut canonical = Vec::new();
    for micro_batch in &step.micro_batches {
        let encoder = codec.encoder(&micro_batch.batch)?;
        let mut row = 0;
        for (rows, end) in parts.iter_mut().zip(&micro_batch.ends) {
            for (row, position) in (row..*end).zip(&micro_batch.positions[row..*end]) {
                canonical.clear();
                encoder.encode(row, &mut canonical)?;
                rows.push((*position, RowDigest::of(&canonical)));
            }
            row = *end;
        }
    }
    parts.iter_mut().for_each(|rows| rows.sort_unstable_by_key(|(position, _)| *position));
    Ok(parts)
}

fn fingerprint(step: &Step, rows: &mut [(u64, RowDigest)], with_rows: bool) -> Delivered {
    let (digest, sum) = digest_of(rows);
    Delivered {
        epoch: step.epoch,
        step: step.step,
        from: step.positions().start,
        to: step.positions().start + step.global_samples(),
        samples: rows.len() as u64,
        digest,
        sum,
        rows: with_rows
            .then(|| rows.iter().map(|(position, digest)| (*position, digest.to_string())).collect()),
    }
}

/// The digest of rows with their positions, which it puts in order, and the sum of a digest of each.
pub(crate) fn digest_of(rows: &mut [(u64, RowDigest)]) -> (String, DigestSum) {
    rows.sort_unstable_by_key(|(position, _)| *position);
    let mut hasher = blake3::Hasher::new();
    let mut sum = DigestSum::default();
    for (position, digest) in rows.iter() {
        let mut entry = [0; 24];
        entry[..8].copy_from_slice(&position.to_le_bytes());
        entry[8..].copy_from_slice(&digest.0);
        hasher.update(&entry);
        let hashed = blake3::hash(&entry);
        sum += RowDigest(hashed.as_bytes()[..16].try_into().expect("16 of 32 bytes"));
    }
    (hasher.finalize().to_hex().to_string(), sum)
}

/// Counts rows of a step, in the order of their positions, as consumed.
fn consume(
    consumed: &mut Consumed,
    plan: &Plan,
    epoch: Epoch,
    rows: &[(u64, RowDigest)],
) -> Result<(), Failure> {
    for (position, digest) in rows {
        consumed.take(plan, *position, plan.sample_at(epoch, *position), digest)?;
    }
    Ok(())
}

fn write_consumed(file: &Path, consumed: &BTreeMap<u32, Consumed>) -> Result<(), Failure> {
    let mut lines = String::new();
    for consumed in consumed.values() {
        lines.push_str(&serde_json::to_string(&consumed.report())?);
        lines.push('\n');
    }
    std::fs::write(file, lines)
        .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", file.display())))
}

fn print_step(step: &Delivered, json: bool) {
    if json {
        output::json(step);
        return;
    }
    let mut text = format!(
        "epoch {} step {:>4}  positions {:>7}..{:<7} {:>5} samples  {}\n",
        step.epoch,
        step.step,
        step.from,
        step.to,
        step.samples,
        &step.digest[..16]
    );
    for (position, digest) in step.rows.iter().flatten() {
        text.push_str(&format!("  {position:>8}  {digest}\n"));
    }
    output::print(&text);
}

fn print_end(loader: &Loader, steps: u64, samples: u64, took: Duration, json: bool) {
    let speed = samples as f64 / took.as_secs_f64().max(1e-9);
    let stats = loader.stats();
    let audits = loader.audits();
    if json {
        output::json(&json!({
            "event": "done",
            "steps": steps,
            "samples": samples,
            "seconds": took.as_secs_f64(),
            "samples_per_s": speed,
            "waited_s": stats.waited_s,
            "transports": loader.transports(),
            "asked": loader.asked(),
            "audits": audits,
        }));
        return;
    }
    let mut text = format!(
        "{} in {}: {} samples/s in {}, {} of it waiting for data\n",
        plural(samples, "sample"),
        plural(steps, "step"),
        count(speed as u64),
        duration(took),
        duration(Duration::from_secs_f64(stats.waited_s))
    );
    for (node, transport) in loader.transports() {
        text.push_str(&format!("from {node} by {transport}\n"));
    }
    for audit in audits {
        text.push_str(&format!(
            "epoch {}: {}, digest sum {}\n",
            audit.epoch,
            plural(audit.samples, "sample"),
            audit.digest_sum
        ));
    }
    output::print(&text);
}

fn parse_start(text: &str) -> Result<(u32, u64), String> {
    let refused = || "use EPOCH:POSITION, such as 3:0".to_owned();
    let (epoch, position) = text.split_once(':').unwrap_or((text, "0"));
    Ok((epoch.parse().map_err(|_| refused())?, position.parse().map_err(|_| refused())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_an_epoch_and_a_position() {
        assert_eq!(parse_start("3:40"), Ok((3, 40)));
        assert_eq!(parse_start("3"), Ok((3, 0)));
        assert!(parse_start("3:x").is_err());
    }
}
