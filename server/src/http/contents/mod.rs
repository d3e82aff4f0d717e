//! What versions hold, for people: columns, labels, shards, and samples.

mod diff;
mod samples;
mod summary;
mod value;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::IntoResponse;
use rayon::ThreadPoolBuilder;
use serde::{Deserialize, Serialize};
use shardd_api::problem::Kind;
use shardd_api::schema;
use shardfmt::compare::{self, BoundedDiff, Bounds, DiffError, diff_within, drift};
use shardfmt::{Manifest, ManifestError, ManifestFile, RowDigest, ShardEntry, ShardId, VersionId};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use utoipa::{IntoParams, ToSchema};

use super::client::Client;
use super::openapi::Binary;
use super::problem::{Refusal, bad_request, chain, invalid, not_found};
use super::request::TIMEOUT;
use super::shards::blocking;
use super::{Answer, PathParam, PathTriple, State, ValidQuery, json, look, place, within};
use diff::VersionDiff;
use samples::{Sample, Samples};
use summary::{ShardRows, VersionSummary};
use value::{Room, Value};

/// The default number of shards, and the most.
const SHARDS: u64 = 50;
const MOST_SHARDS: u64 = 1000;
/// The default number of samples, and the most.
const SAMPLES: u64 = 12;
const MOST_SAMPLES: usize = 100;
/// The most shards of each of two versions that are compared here, and the most counts of labels of all its shards: 128 MiB.
/// `shardctl diff` has no such limits.
const MOST_COMPARED_SHARDS: u64 = 1 << 17;
const MOST_COMPARED_LABELS: u64 = 2 << 20;
/// The most rows whose digests are compared, 128 MiB of counts, and the most shards that have them.
const COMPARED: Bounds = Bounds { rows: 2 << 20, shards: 2000 };
/// From here on no further sidecar is read: the answer has to begin in time.
const COMPARED_FOR: Duration = Duration::from_secs(40);
const _: () = assert!(COMPARED_FOR.as_secs() + 10 <= TIMEOUT.as_secs());
/// Shards whose labels are counted at a time.
const COUNTED_AT_ONCE: u64 = 64;
/// Threads of a comparison.
const COMPARING: usize = 4;
/// Comparisons at once.
pub(super) const COMPARISONS: usize = 1;

/// What a version holds: its columns with statistics, its labels, and its sizes
#[utoipa::path(get, path = "/v1/versions/{id}/summary", tag = "datasets", operation_id = "version_summary",
    params(("id" = schema::Digest, Path, description = "The version")),
    responses((status = 200, description = "The contents", body = VersionSummary), (status = 404)))]
pub(super) async fn summary(state: State, PathParam(id): PathParam<VersionId>) -> Answer {
    let _one_of_few = look(&state).await?;
    let origin = state.api.catalog.origin();
    let provenance = origin.provenance(id).await?;
    json(&origin.ask_manifest(id, |manifest| VersionSummary::of(&manifest, provenance)).await?)
}

/// Which shards of a version are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedShards {
    /// How many shards come before.
    #[serde(default)]
    #[param(default = 0, required = false)]
    offset: u64,
    /// Shards, 50 by default.
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    limit: Option<u64>,
}

/// The shards of a version, with their samples and labels
#[utoipa::path(get, path = "/v1/versions/{id}/shards", tag = "datasets", operation_id = "version_shards",
    params(("id" = schema::Digest, Path, description = "The version"), WantedShards),
    responses((status = 200, description = "Shards, in the order of the version", body = ShardRows),
        (status = 404)))]
pub(super) async fn shards(
    state: State,
    PathParam(id): PathParam<VersionId>,
    ValidQuery(WantedShards { offset, limit }): ValidQuery<WantedShards>,
) -> Answer {
    let limit = within("limit", limit.unwrap_or(SHARDS), MOST_SHARDS)?;
    let _one_of_few = look(&state).await?;
    let origin = state.api.catalog.origin();
    json(&origin.ask_manifest(id, move |manifest| ShardRows::of(&manifest, offset, limit)).await?)
}

/// Which samples of a version are wanted.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedSamples {
    /// The number of the first sample, in the order of the version, from 0.
    #[param(nullable = false)]
    from: Option<u64>,
    /// Samples, 12 by default.
    #[param(minimum = 1, maximum = 100, nullable = false)]
    limit: Option<u64>,
    /// The numbers of samples, with commas between them, at most 100, in place of `from` and `limit`.
    #[param(nullable = false, pattern = r"^[0-9]{1,18}(,[0-9]{1,18}){0,99}$")]
    numbers: Option<String>,
}

impl WantedSamples {
    /// The numbers of the samples, of a version that has `total`.
    fn numbers(self, total: u64) -> Result<Vec<u64>, Refusal> {
        let Some(numbers) = self.numbers else {
            let from = self.from.unwrap_or(0);
            let limit = within("limit", self.limit.unwrap_or(SAMPLES), MOST_SAMPLES as u64)?;
            let wanted: Range<u64> = from.min(total)..total.min(from.saturating_add(limit));
            return Ok(wanted.collect());
        };
        if self.from.is_some() || self.limit.is_some() {
            return Err(bad_request("numbers: give numbers, or from and limit"));
        }
        let numbers: Vec<u64> = numbers
            .split(',')
            .map(|number| {
                let is_short = (1..=18).contains(&number.len());
                let is_number = is_short && number.bytes().all(|byte| byte.is_ascii_digit());
                let parsed = is_number.then(|| number.parse().ok()).flatten();
                parsed.ok_or_else(|| bad_request(format!("numbers: {number:?} is no number of a sample")))
            })
            .collect::<Result<_, _>>()?;
        if numbers.len() > MOST_SAMPLES {
            return Err(bad_request(format!("numbers: give at most {MOST_SAMPLES}")));
        }
        match numbers.iter().find(|number| **number >= total) {
            Some(number) => Err(invalid(format!("numbers: the version has no sample {number}, but {total}"))),
            None => Ok(numbers),
        }
    }
}

/// Samples of a version.
#[derive(Serialize, ToSchema)]
struct SampleRows {
    /// How many samples the version has.
    total: u64,
    /// The samples asked for, in that order.
    rows: Vec<SampleRow>,
}

/// A sample of a version.
#[derive(Serialize, ToSchema)]
struct SampleRow {
    /// Its number, in the order of the version.
    sample: u64,
    /// The shard that holds it.
    #[schema(value_type = schema::Digest)]
    shard: ShardId,
    /// Its row there.
    row: u32,
    /// The digest of its canonical form.
    #[schema(value_type = schema::Digest)]
    digest: RowDigest,
    /// Its values, in the order of the columns; null where one is missing.
    values: Vec<Option<Value>>,
}

/// Samples of a version as people look at them
///
/// Each is compared with its digest. Long texts and lists are cut, and files are named by their kind and length.
#[utoipa::path(get, path = "/v1/versions/{id}/samples", tag = "datasets", operation_id = "version_samples",
    params(("id" = schema::Digest, Path, description = "The version"), WantedSamples),
    responses((status = 200, description = "Samples", body = SampleRows), (status = 404), (status = 422)))]
pub(super) async fn samples(
    state: State,
    client: Client,
    PathParam(id): PathParam<VersionId>,
    ValidQuery(wanted): ValidQuery<WantedSamples>,
) -> Answer {
    let read = samples::read(&state, client, id, |total| wanted.numbers(total)).await?;
    let Samples { total, label_column, classes, samples } = read;
    let mut room = Room::new();
    let rows = samples.into_iter().map(|sample| {
        let Sample { number, shard, row, digest, values } = sample;
        let columns = values.columns().iter().enumerate().map(|(at, column)| {
            let classes = if Some(at) == label_column { classes.as_slice() } else { &[] };
            Value::of(column, 0, classes, &mut room)
        });
        SampleRow { sample: number, shard, row, digest, values: columns.collect() }
    });
    json(&SampleRows { total, rows: rows.collect() })
}

/// What a version is compared with.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Compared {
    /// The earlier version.
    #[param(value_type = schema::Digest)]
    from: VersionId,
    /// Also how far labels, lengths of rows and columns of numbers are apart.
    #[serde(default)]
    #[param(default = false, required = false)]
    stats: bool,
}

/// What changed from an earlier version to this one: columns, inputs, shards and samples, by content
///
/// By the code of `shardctl diff`. Samples are compared where at most 2,000 shards differ, with at most 2 million rows, and their sidecars
/// are read within 40 seconds; else `left_out` says why not. Versions have at most 131,072 shards and 2 million counts of labels by shard.
#[utoipa::path(get, path = "/v1/versions/{id}/diff", tag = "datasets", operation_id = "diff_versions",
    params(("id" = schema::Digest, Path, description = "The version"), Compared),
    responses((status = 200, description = "The changes", body = VersionDiff), (status = 404), (status = 422), (status = 429)))]
pub(super) async fn diff(
    state: State,
    PathParam(id): PathParam<VersionId>,
    ValidQuery(Compared { from, stats }): ValidQuery<Compared>,
) -> Answer {
    let the_only_one = place(&state.comparisons, "comparison", COMPARISONS)?;
    let deadline = Instant::now() + COMPARED_FOR;
    let (old, new) = (compared(&state, from).await?, compared(&state, id).await?);
    let inputs = {
        let origin = state.api.catalog.origin();
        let (old, new) = (origin.provenance(from).await?, origin.provenance(id).await?);
        compare::inputs(old.as_ref(), new.as_ref())
    };
    let (origin, runtime) = (Arc::clone(state.api.catalog.origin()), Handle::current());
    // The thread has the place: it works on, should the client be gone.
    let found = blocking(move || {
        let _the_only_one = the_only_one;
        let sidecar = |entry: &ShardEntry| runtime.block_on(until(deadline, origin.sidecar(entry)));
        // Threads of their own: they wait for the store, and what is read there is checked on those of the node.
        let threads = ThreadPoolBuilder::new().num_threads(COMPARING).build();
        let threads = threads.map_err(|error| Refusal::of(Kind::Unavailable, chain(&error)))?;
        let compare = || diff_within(COMPARED, &old, &new, &sidecar, &|_| {});
        let found = threads.install(compare).map_err(|error| match error {
            DiffError::Sidecar(error) => Refusal::from(error),
            error @ DiffError::Spill(_) => Refusal::of(Kind::Unavailable, chain(&error)),
        })?;
        let found = BoundedDiff { inputs, ..found };
        let drift = stats.then(|| drift(&old, &new));
        Ok(VersionDiff::of([from, id], [&old, &new], found, drift))
    });
    json(&found.await?)
}

/// The manifest of a version that is compared.
async fn compared(state: &State, version: VersionId) -> Result<Manifest, Refusal> {
    let read = state.api.catalog.origin().ask_manifest(version, |manifest| {
        let shards = manifest.totals().shards;
        if shards > MOST_COMPARED_SHARDS {
            return Ok(Err(format!("{shards} shards, and at most {MOST_COMPARED_SHARDS} are compared here")));
        }
        if has_more_labels(&manifest, MOST_COMPARED_LABELS)? {
            return Ok(Err(format!(
                "more than {MOST_COMPARED_LABELS} counts of labels in {shards} shards, too many to compare here"
            )));
        }
        manifest.manifest().map(Ok)
    });
    read.await?.map_err(|why| invalid(format!("version {version} has {why}: `shardctl diff` compares all")))
}

/// Whether the shards of a version have more counts of labels than that. Holds those of a few shards at a time.
fn has_more_labels(manifest: &ManifestFile, most: u64) -> Result<bool, ManifestError> {
    let shards = manifest.totals().shards;
    if manifest.labels()?.is_some_and(|known| shards.saturating_mul(known.len() as u64) <= most) {
        return Ok(false);
    }
    let (mut counts, mut first) = (0, 0);
    while first < shards && counts <= most {
        let end = shards.min(first + COUNTED_AT_ONCE);
        let entries = manifest.entries(first..end)?;
        counts += entries.iter().flat_map(|entry| &entry.labels).map(|of| of.len() as u64).sum::<u64>();
        first = end;
    }
    Ok(counts > most)
}

/// What a question to the store yields, if that is before the deadline. After it nothing is asked.
async fn until<T, E>(deadline: Instant, answer: impl Future<Output = Result<T, E>>) -> Result<Option<T>, E> {
    if Instant::now() >= deadline {
        return Ok(None);
    }
    timeout_at(deadline, answer).await.ok().transpose()
}

/// The first sample of a version as one row, compared with its digest; none of a version without samples.
pub(super) async fn first_sample(
    state: &State,
    client: Client,
    version: VersionId,
) -> Result<Option<RecordBatch>, Refusal> {
    let first = |total: u64| Ok(if total > 0 { vec![0] } else { Vec::new() });
    let read = samples::read(state, client, version, first).await?;
    Ok(read.samples.into_iter().next().map(|sample| sample.values))
}

/// A value of a sample, whole: the bytes of a picture, a sound, a text
#[utoipa::path(get, path = "/v1/versions/{id}/samples/{sample}/{column}", tag = "datasets", operation_id = "sample_value",
    params(("id" = schema::Digest, Path, description = "The version"),
        ("sample" = u64, Path, description = "The number of the sample, in the order of the version"),
        ("column" = String, Path, description = "The name of the column")),
    responses((status = 200, description = "The bytes, with the media type of their kind", content(
            (Binary = "application/octet-stream"), (Binary = "text/plain"), (Binary = "image/*"), (Binary = "audio/*"), (Binary = "video/*"))),
        (status = 404), (status = 422)))]
pub(super) async fn value(
    state: State,
    client: Client,
    PathTriple(version, sample, column): PathTriple<VersionId, u64, String>,
) -> Answer {
    let only = move |total| match sample < total {
        true => Ok(vec![sample]),
        false => Err(not_found(format!("the version has no sample {sample}, but {total}"))),
    };
    let read = samples::read(&state, client, version, only).await?;
    let Some(Sample { digest, values, .. }) = read.samples.into_iter().next() else {
        return Err(not_found(format!("there is no sample {sample}")));
    };
    let found = values.column_by_name(&column).ok_or_else(|| {
        let names: Vec<String> = values.schema().fields().iter().map(|field| field.name().clone()).collect();
        not_found(shardd_api::suggest::no_such(&format!("column {column:?}"), &column, &names))
    })?;
    if found.is_null(0) {
        return Err(not_found(format!("sample {sample} has no value in column {column:?}")));
    }
    let (bytes, media_type) = value::content(found, 0).ok_or_else(|| {
        invalid(format!("column {column:?} has type {}: only bytes and texts are files", found.data_type()))
    })?;
    let known = [
        (CONTENT_TYPE, HeaderValue::from_static(media_type)),
        // A dataset's bytes are no page of this node, whatever they hold.
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
    ];
    let etag = (ETAG, format!("\"{digest}\""));
    Ok((known, [etag], bytes.to_vec()).into_response())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};

    use arrow::array::{ArrayRef, Int64Array};
    use shardfmt::ShardWriter;
    use shardfmt::manifest::LocalManifest;

    use super::*;

    #[test]
    fn counts_of_labels_are_bounded_before_a_manifest_is_decoded_whole() {
        let shard = |first: i64| {
            let labels: ArrayRef = Arc::new(Int64Array::from_iter_values([first, first, first + 1]));
            let rows = RecordBatch::try_from_iter([("label", labels)]).expect("a column");
            let mut writer = ShardWriter::new(rows.schema()).expect("a schema");
            writer.push(&rows).expect("rows");
            (rows.schema(), writer.finish().expect("a shard").entry)
        };
        let directory = tempfile::tempdir().expect("a directory");
        let opened = |labels: &[i64]| {
            let (schemas, entries): (Vec<_>, Vec<_>) = labels.iter().map(|first| shard(*first)).unzip();
            let manifest = Manifest::new(schemas[0].clone(), entries, serde_json::json!({}));
            let place = LocalManifest {
                file: directory.path().join(manifest.id().to_string()),
                tree: directory.path().join("tree"),
            };
            std::fs::write(&place.file, manifest.encode()).expect("written");
            ManifestFile::open(manifest.id(), place).expect("a manifest")
        };
        // 200 counts of two labels; and 200 counts of 200 labels, which could be 20,000.
        for manifest in [opened(&[0; 100]), opened(&(0..100).map(|shard| 2 * shard).collect::<Vec<_>>())] {
            let more = |most| has_more_labels(&manifest, most).expect("read");
            assert_eq!((more(199), more(200), more(20_000)), (true, false, false));
        }
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_ends_a_comparison_at_its_deadline() {
        let soon = || Instant::now() + Duration::from_millis(20);
        assert_eq!(until(soon(), ready(Ok::<_, Infallible>(1))).await, Ok(Some(1)));
        assert_eq!(until(soon(), ready(Err::<u8, _>("damaged"))).await, Err("damaged"));
        assert_eq!(until(soon(), pending::<Result<u8, Infallible>>()).await, Ok(None));
        assert_eq!(until(Instant::now(), ready(Ok::<_, Infallible>(1))).await, Ok(None), "nothing is asked");
    }
}
