//! Turns files into a version: reads a [`Source`], mixes its rows, cuts them into shards, hands those to a [`Sink`]
//! and lists them in a [`Manifest`].
//!
//! Two passes. The first reads the input in one fixed order, checks it (every image is decoded once), brings it to
//! plain types and spills the canonical rows to an unlinked temporary file. The second gathers the rows of each shard
//! in mixed order and writes the shards in parallel. Memory holds 8 bytes a row and a few shards, never the data.
//!
//! The version depends on the input and the [`IngestConfig`] alone: not on the number of threads, the machine, the
//! clock, or where the input lies. This module knows nothing of networks, names of datasets or commits.

mod canonical;
mod config;
mod cut;
mod error;
mod input;
mod pipeline;
mod sink;
mod source;
mod spill;
#[cfg(test)]
mod stories;
mod tree;

use arrow::array::RecordBatch;
use rayon::prelude::*;

pub use self::config::{HashRange, IngestConfig, Mix, OnError};
pub(crate) use self::cut::Cut;
use self::cut::MixedOrder;
pub use self::error::IngestError;
pub use self::input::{Content, InputFile, Inputs, ReadAt};
pub use self::sink::{NoProgress, Progress, Sink};
pub use self::source::{Kind, Source};
use self::spill::{RowBlock, Spill, SpilledRows};
use crate::manifest::{InputDigest, Manifest, ShardEntry};
use crate::row::{RowCodec, RowDigest, RowError};
use crate::shard::{FinishedShard, ShardError, ShardWriter};

/// Makes a version of the source: gives its shards to `sink`, then returns the manifest that lists them. Committing
/// it is up to the caller; until then nothing refers to the shards.
///
/// Uses `threads` threads (at least one) and needs space for the canonical rows in the directory for temporary files
/// (`TMPDIR`), about the size of the decoded input.
///
/// # Errors
/// At the first fault of the input in input order, or when the sink refuses a shard.
pub fn ingest(
    source: Source,
    config: &IngestConfig,
    threads: usize,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Manifest, IngestError> {
    config.check()?;
    let refuse = |error| canonical::row_error(source.path(), error);
    let codec = RowCodec::new(source.schema().clone()).map_err(refuse)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.max(1))
        .thread_name(|index| format!("ingest-{index}"))
        .build()
        .map_err(|error| IngestError::Config {
            setting: "threads",
            reason: error::one_line(error),
            way_out: "use fewer threads",
        })?;
    pool.install(|| {
        let (rows, inputs) = read(&source, &codec, config, progress)?;
        let (shards, cut) = write(&rows, &codec, config, sink, progress)?;
        let recorded = IngestConfig { shard_size: Some(cut.size), under: config.folder()?, ..config.clone() };
        let config = serde_json::to_value(recorded).expect("settings are plain values");
        Ok(Manifest::new(source.schema().clone(), shards, config, inputs))
    })
}

/// Pass 1: all kept rows, in input order.
fn read(
    source: &Source,
    codec: &RowCodec,
    config: &IngestConfig,
    progress: &dyn Progress,
) -> Result<(SpilledRows, Vec<InputDigest>), IngestError> {
    let mut spill = Spill::create()?;
    let mut seen = 0;
    let inputs = pipeline::in_order(
        2 * rayon::current_num_threads() + 1,
        |push| source.pieces(push),
        |piece| {
            let (batch, _faults) = source.read(piece)?;
            let Some(batch) = batch else { return Ok(RowBlock::default()) };
            encode(codec, &batch, config.take.as_ref())
                .map_err(|error| canonical::row_error(source.path(), error))
        },
        |block: RowBlock| {
            spill.append(&block)?;
            seen += block.seen;
            progress.advanced(block.ends.len() as u64, block.bytes.len() as u64, "reading");
            Ok(())
        },
    )?;
    let rows = spill.finish()?;
    if rows.count() == 0 {
        return Err(IngestError::NothingTaken { path: source.path().to_owned(), rows: seen });
    }
    Ok((rows, inputs))
}

/// The canonical rows of a record batch that are to be kept.
fn encode(codec: &RowCodec, batch: &RecordBatch, take: Option<&HashRange>) -> Result<RowBlock, RowError> {
    let encoder = codec.encoder(batch)?;
    let mut block = RowBlock { seen: batch.num_rows() as u64, ..RowBlock::default() };
    for row in 0..batch.num_rows() {
        let start = block.bytes.len();
        encoder.encode(row, &mut block.bytes)?;
        if take.is_none_or(|take| take.holds(&RowDigest::of(&block.bytes[start..]))) {
            block.ends.push(block.bytes.len());
        } else {
            block.bytes.truncate(start);
        }
    }
    Ok(block)
}

/// Pass 2: all shards, in order.
fn write(
    rows: &SpilledRows,
    codec: &RowCodec,
    config: &IngestConfig,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<(Vec<ShardEntry>, Cut), IngestError> {
    let cut = Cut::new(rows.count(), rows.bytes(), config.shard_size);
    let order = MixedOrder::new(config, rows.count());
    let shards = (0..cut.shard_count()).into_par_iter().map(|index| {
        let positions = cut.positions(index);
        let gathered = positions.map(|position| rows.row(order.row_at(position)));
        let failed = |source| IngestError::Shard { index, source };
        let finished = write_shard(codec, gathered).map_err(failed)?;
        sink.put_shard(&finished).map_err(|source| IngestError::Sink { shard: finished.id, source })?;
        progress.advanced(u64::from(finished.entry.rows), finished.entry.row_bytes, "writing");
        Ok(finished.entry)
    });
    Ok((shards.collect::<Result<Vec<_>, _>>()?, cut))
}

fn write_shard<'r>(
    codec: &RowCodec,
    rows: impl Iterator<Item = &'r [u8]>,
) -> Result<FinishedShard, ShardError> {
    let mut writer = ShardWriter::new(codec.schema().clone())?;
    for row in rows {
        writer.push_row(row)?;
    }
    writer.finish()
}
