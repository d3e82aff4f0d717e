//! Reads single samples of a version from the store: the manifest finds them, byte ranges hold them, digests verify them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use arrow::array::RecordBatch;
use axum::body::Bytes;
use shardd_api::problem::Kind;
use shardfmt::{
    ByteSize, ManifestError, RangePlan, RowCodec, RowDigest, ShardEntry, ShardId, Sidecar, VersionId,
};

use super::super::client::Client;
use super::super::problem::{Refusal, chain, invalid};
use super::super::shards::blocking;
use super::super::{State, look, stream_memory};

/// The most bytes that several samples may take in the store. A single one is bounded by the memory that is lent.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes in memory for one that is fetched: as fetched, and decoded.
const COPIES: u64 = 2;

/// Samples, and what their version says of them.
pub(super) struct Samples {
    /// How many samples the version has.
    pub(super) total: u64,
    /// The index of the column of labels.
    pub(super) label_column: Option<usize>,
    /// The names of the classes.
    pub(super) classes: Vec<String>,
    /// The samples, in the order asked for.
    pub(super) samples: Vec<Sample>,
}

/// A sample that equals its digest.
pub(super) struct Sample {
    /// Its number, in the order of the version.
    pub(super) number: u64,
    /// The shard that holds it.
    pub(super) shard: ShardId,
    /// Its row there.
    pub(super) row: u32,
    /// The digest of its canonical form.
    pub(super) digest: RowDigest,
    /// Its values: one row.
    pub(super) values: RecordBatch,
}

/// Where samples are: by shard the rows, and for which of the samples asked for.
type Places = BTreeMap<u64, (ShardEntry, Vec<(u32, usize)>)>;

/// The samples that `choose` names, once it knows how many the version has.
pub(super) async fn read(
    state: &State,
    client: Client,
    version: VersionId,
    choose: impl FnOnce(u64) -> Result<Vec<u64>, Refusal> + Send + 'static,
) -> Result<Samples, Refusal> {
    let _one_of_few = look(state).await?;
    let origin = state.api.catalog.origin();
    let found = origin
        .ask_manifest(version, move |manifest| {
            let total = manifest.totals().samples;
            let numbers = match choose(total) {
                Ok(numbers) => numbers,
                Err(refusal) => return Ok(Err(refusal)),
            };
            let mut places = Places::new();
            for (at, number) in numbers.iter().enumerate() {
                let Some((index, row)) = manifest.find_sample(*number)? else { continue };
                let (_, rows) = match places.entry(index) {
                    Entry::Occupied(place) => place.into_mut(),
                    Entry::Vacant(place) => place.insert((manifest.entry(index)?, Vec::new())),
                };
                rows.push((row, at));
            }
            let schema = manifest.schema().clone();
            let label_column = manifest.label_column().and_then(|name| schema.index_of(name).ok());
            let classes = manifest.class_names().unwrap_or_default();
            Ok::<_, ManifestError>(Ok((total, numbers, places, schema, label_column, classes)))
        })
        .await?;
    let (total, numbers, places, schema, label_column, classes) = found?;
    let codec = RowCodec::new(schema.clone()).map_err(|error| corrupt(&error))?;
    let mut samples: Vec<Option<Sample>> = numbers.iter().map(|_| None).collect();
    let mut bytes = 0;
    let mut loans = Vec::new();
    for (entry, rows) in places.into_values() {
        let sidecar = origin.sidecar(&entry).await?;
        let ranges: Vec<Range<u32>> = rows.iter().map(|(row, _)| *row..row + 1).collect();
        let plan = sidecar.read_plan(&schema, &ranges).map_err(|error| corrupt(&error))?;
        bytes += plan.bytes();
        if bytes > MOST_BYTES && numbers.len() > 1 {
            let (bytes, most) = (ByteSize(bytes), ByteSize(MOST_BYTES));
            return Err(invalid(format!(
                "limit: these samples take {bytes} and more, and at most {most} are read at once: ask for fewer"
            )));
        }
        loans.push(stream_memory(state, client, plan.bytes().saturating_mul(COPIES))?);
        let fetched = origin.read_ranges(&entry.id, plan.ranges()).await?;
        let (codec, wanted) = (codec.clone(), rows.iter().map(|(row, _)| *row).collect());
        let decoded = blocking(move || decode(&plan, &fetched, &codec, &sidecar, wanted)).await?;
        for ((row, at), (digest, values)) in rows.into_iter().zip(decoded) {
            samples[at] = Some(Sample { number: numbers[at], shard: entry.id, row, digest, values });
        }
    }
    Ok(Samples { total, label_column, classes, samples: samples.into_iter().flatten().collect() })
}

/// The rows that a plan reads, each on its own and equal to its digest.
fn decode(
    plan: &RangePlan,
    fetched: &[Bytes],
    codec: &RowCodec,
    sidecar: &Sidecar,
    rows: Vec<u32>,
) -> Result<Vec<(RowDigest, RecordBatch)>, Refusal> {
    let decoded = plan.decode(fetched).map_err(|error| corrupt(&error))?;
    let verified = rows.into_iter().zip(decoded).map(|(row, batches)| {
        let damaged = || damaged(row, sidecar.shard);
        let values = batches.into_iter().next().filter(|values| values.num_rows() == 1);
        let values = values.ok_or_else(damaged)?;
        let digest = codec.digest(&values, 0).map_err(|error| corrupt(&error))?;
        if digest == sidecar.rows[row as usize] { Ok((digest, values)) } else { Err(damaged()) }
    });
    verified.collect()
}

fn damaged(row: u32, shard: ShardId) -> Refusal {
    Refusal::of(Kind::Corrupt, format!("row {row} of shard {shard} does not match its digest"))
}

fn corrupt(error: &dyn std::error::Error) -> Refusal {
    Refusal::of(Kind::Corrupt, chain(error))
}
