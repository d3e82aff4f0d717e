//! More samples for a version: they are ingested as the version was, and their shards follow its own, which stay as they
//! are.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, SchemaRef};

use super::schema::{SchemaChange, changes};
use super::store::one_line;
use super::{Base, settings};
use crate::digest::{Digest, ShardId};
use crate::ingest::{self, IngestConfig, IngestError, Progress, Resources, Sink, Source};
use crate::manifest::{InputDigest, Manifest, SKIPPED_LISTED, ShardEntry};
use crate::shard::{FinishedShard, Shard, ShardError, ShardWriter};

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum AppendError {
    /// The samples have other columns. Bring them to those of the dataset, or make another dataset.
    #[error("{}: {change}; samples can be appended to those of the same columns only", .path.display())]
    Schema { path: PathBuf, change: SchemaChange },
    /// A null in a column that the dataset's shards promise never to be null.
    #[error("{}: {reason}; the shards there are say that this column is never null, so fill the gaps or make another dataset", .path.display())]
    Null { path: PathBuf, reason: String },
    /// The input is part of the version already. Say so if its samples shall be there twice.
    #[error("{name} is in the version already, as {there}; append it --again to have its samples twice")]
    Known { name: String, there: String },
    /// The input could not be ingested.
    #[error(transparent)]
    Ingest(#[from] IngestError),
}

/// The version with the samples of `parts` after its own, one part after the other, each ingested with its settings: those
/// of [`appending`](super::appending), or others. Only new shards are written.
///
/// Unless `again`, an input that the version has already is refused; a single file at the beginning, a directory when
/// it has been read.
///
/// # Errors
///
/// At the first part that has other columns, cannot be ingested, or is known.
pub fn append(
    base: Base<'_>,
    parts: Vec<(Source, IngestConfig)>,
    again: bool,
    resources: &Resources,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Manifest, AppendError> {
    let mut manifest = base.manifest.clone();
    for (source, _) in &parts {
        check_columns(&manifest.schema, source)?;
        if !again {
            refuse_file(&manifest.inputs, source.path())?;
        }
    }
    let mut recorded = Vec::with_capacity(parts.len());
    for (source, config) in parts {
        let part = ingest_part(&manifest.schema, source, &config, resources, sink, progress)?;
        if !again {
            part.inputs.iter().try_for_each(|input| refuse(&manifest.inputs, input))?;
        }
        recorded.push(settings::settings(&part).unwrap_or(config));
        manifest.shards.extend(part.shards);
        manifest.inputs.extend(part.inputs);
        manifest.skipped.extend(part.skipped);
        manifest.skipped_count = manifest.skipped_count.saturating_add(part.skipped_count);
    }
    manifest.skipped.truncate(SKIPPED_LISTED);
    manifest.config = settings::appended(base, recorded);
    Ok(manifest)
}

/// Opens a part of an append. Where types are inferred from what is there, such as in CSV, and come out otherwise than the
/// dataset has them, they are set to those of the dataset: `open` is asked again, and the settings say so.
///
/// # Errors
///
/// When there is nothing that can be ingested.
pub fn open_part(
    base: Base<'_>,
    config: IngestConfig,
    open: impl Fn(&IngestConfig) -> Result<Source, IngestError>,
) -> Result<(Source, IngestConfig), IngestError> {
    let source = open(&config)?;
    let schema = &base.manifest.schema;
    if check_columns(schema, &source).is_ok() {
        return Ok((source, config));
    }
    let is_written_so =
        |text: &str, field: &Field| text.parse::<DataType>().ok().as_ref() == Some(field.data_type());
    let types = schema.fields().iter().map(|field| (field, field.data_type().to_string()));
    let types = types.filter(|(field, text)| is_written_so(text, field));
    let types = types.map(|(field, text)| (field.name().clone(), text)).collect();
    let typed = IngestConfig { types, ..config.clone() };
    match open(&typed) {
        Ok(again) if check_columns(schema, &again).is_ok() => Ok((again, typed)),
        _ => Ok((source, config)),
    }
}

/// Refuses samples that have other columns. That some are never null here, or there, is no matter.
fn check_columns(schema: &SchemaRef, source: &Source) -> Result<(), AppendError> {
    let mut changes = changes(schema, source.schema()).into_iter();
    match changes.find(|change| !matches!(change, SchemaChange::Nullable { .. })) {
        None => Ok(()),
        Some(change) => Err(AppendError::Schema { path: source.path().to_owned(), change }),
    }
}

/// Refuses a file of this machine that is among the inputs: hashed only when one of them is as long.
fn refuse_file(inputs: &[InputDigest], path: &Path) -> Result<(), AppendError> {
    let Some(length) = path.metadata().ok().filter(|found| found.is_file()).map(|found| found.len()) else {
        return Ok(());
    };
    if !inputs.iter().any(|input| input.bytes == length) {
        return Ok(());
    }
    let mut hasher = blake3::Hasher::new();
    let read = hasher.update_mmap_rayon(path).map(|hasher| hasher.finalize());
    let digest = read.map_err(|source| IngestError::Read { path: path.to_owned(), source })?;
    let name = path.display().to_string();
    refuse(inputs, &InputDigest { name, bytes: length, digest: Digest(digest.into()) })
}

fn refuse(inputs: &[InputDigest], input: &InputDigest) -> Result<(), AppendError> {
    match inputs.iter().find(|there| there.digest == input.digest) {
        None => Ok(()),
        Some(there) => {
            Err(AppendError::Known { name: input.name.clone(), there: format!("{:?}", there.name) })
        }
    }
}

/// A version of the part's samples under `schema`, which differs from the source's at most in what may be null.
fn ingest_part(
    schema: &SchemaRef,
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Manifest, AppendError> {
    if source.schema().fields() == schema.fields() {
        return Ok(ingest::ingest(source, config, resources, sink, progress)?);
    }
    let path = source.path().to_owned();
    let fit = Fit { schema: schema.clone(), sink, fitted: Mutex::default(), misfit: Mutex::default() };
    let mut part = ingest::ingest(source, config, resources, &fit, progress).map_err(|error| {
        let misfit = fit.misfit.lock().unwrap_or_else(PoisonError::into_inner).take();
        misfit.map_or(AppendError::Ingest(error), |reason| AppendError::Null { path, reason })
    })?;
    let mut fitted = fit.fitted.into_inner().unwrap_or_else(PoisonError::into_inner);
    for entry in &mut part.shards {
        *entry = fitted.remove(&entry.id).expect("every shard of the part went through the sink");
    }
    Ok(part)
}

/// Writes shards anew under a schema that says other things of what may be null. A canonical row does not: it stays.
struct Fit<'a> {
    schema: SchemaRef,
    sink: &'a dyn Sink,
    fitted: Mutex<BTreeMap<ShardId, ShardEntry>>,
    /// Why a shard has no place under the schema.
    misfit: Mutex<Option<String>>,
}

impl Sink for Fit<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        let id = shard.id;
        let fitted = fit(&self.schema, shard).map_err(|error| {
            if let ShardError::Row { source, .. } = &error {
                *self.misfit.lock().unwrap_or_else(PoisonError::into_inner) = Some(one_line(source));
            }
            io::Error::other(error)
        })?;
        let entry = fitted.entry.clone();
        self.sink.put_shard(fitted)?;
        self.fitted.lock().unwrap_or_else(PoisonError::into_inner).insert(id, entry);
        Ok(())
    }

    /// Of no shard it is known what it became when it was stored: all are made again.
    fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
        Ok(false)
    }
}

fn fit(schema: &SchemaRef, shard: FinishedShard) -> Result<FinishedShard, ShardError> {
    let read = Shard::from_bytes(shard.bytes)?;
    let mut writer = ShardWriter::new(schema.clone())?;
    let mut row = Vec::new();
    for number in 0..read.rows() {
        row.clear();
        read.encode_row(number, &mut row)?;
        writer.push_row(&row)?;
    }
    writer.finish()
}
