//! More samples for a version: they are ingested as the version was, and their shards follow its own, which stay as they
//! are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use arrow::datatypes::{DataType, Field, SchemaRef};
use shardfmt::compare::{SchemaChange, changes};
use shardfmt::digest::{Digest, ShardId};
use shardfmt::manifest::ShardEntry;
use shardfmt::shard::{Compression, FinishedShard, Shard, ShardError, ShardWriter};
use shardfmt::{InputDigest, Provenance};

use super::store::one_line;
use super::{Base, Layout, made_of, settings};
use crate::canonical::canonical_schema;
use crate::source::chat::template::TemplateFiles;
use crate::{IngestConfig, IngestError, Ingested, Progress, Resources, Sink, Source};

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
    #[error(
        "{name} is in the version already, as {there}; if these are not the samples that are there, or to have them twice, append it --again"
    )]
    Known { name: String, there: String },
    /// It would make other tokens than those that are there. Give the tokenizer that made them.
    #[error("{} is not the tokenizer that the version was made with{}", .path.display(), named(recorded))]
    Tokenizer { path: PathBuf, recorded: Option<PathBuf> },
    /// It would make other text of conversations. Give the template that made theirs.
    #[error("{} is not the chat template that the version was made with{}", .path.display(), named(recorded))]
    ChatTemplate { path: PathBuf, recorded: Option<PathBuf> },
    /// The input could not be ingested.
    #[error(transparent)]
    Ingest(#[from] IngestError),
}

fn named(recorded: &Option<PathBuf>) -> String {
    match recorded {
        Some(name) => format!(": give the {} whose digest is among its inputs", name.display()),
        None => ", which has none: leave it out".to_owned(),
    }
}

/// The version with the samples of `source` after its own, ingested with `config`: the settings of
/// [`appending`](super::appending), or others, with the tokenizer and the chat template, if there are any, where they lie now.
/// Only new shards are written. Unless `again`, an input that the version has already is refused.
///
/// # Errors
///
/// When the source has other columns, cannot be ingested, or is known, or the tokenizer or the chat template is not that of the
/// version.
pub fn append(
    base: Base<'_>,
    source: Source,
    config: IngestConfig,
    again: bool,
    resources: &Resources,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Ingested, AppendError> {
    let schema = &base.manifest.schema;
    let of_settings = [tokenizer_of(base, &config)?, template_of(base, &config)?].concat();
    check_source(schema, &source)?;
    let Ingested { manifest: added, provenance: mut read } =
        ingest_as(schema, source, &config, resources, sink, progress)?;
    // They are among the inputs of the version, and no samples are made of them.
    read.inputs.retain(|input| !of_settings.contains(&input.digest));
    if !again && !is_another_folder(base, config.under.as_deref()) {
        read.inputs.iter().try_for_each(|input| refuse(known_inputs(base), input))?;
    }
    let layout = Layout::recorded(&added).unwrap_or(Layout::of(&config));
    Ok(grown(base, added.shards, layout, read))
}

/// The version with these shards, which were laid out and read so, after its own.
pub(crate) fn grown(base: Base<'_>, added: Vec<ShardEntry>, layout: Layout, read: Provenance) -> Ingested {
    let mut manifest = base.manifest.clone();
    manifest.config = settings::appended(base, layout);
    manifest.shards.extend(added);
    let mut provenance = base.provenance.cloned().unwrap_or_default();
    provenance.settings = read.settings;
    provenance.inputs.extend(read.inputs);
    provenance.skipped.extend(read.skipped);
    Ingested { manifest, provenance }
}

/// The digest of the tokenizer, if there is one, which has to be that of the version.
fn tokenizer_of(base: Base<'_>, config: &IngestConfig) -> Result<Vec<Digest>, AppendError> {
    let Some(path) = &config.tokenizer else { return Ok(Vec::new()) };
    let bytes = fs::read(path).map_err(|source| IngestError::Read { path: path.clone(), source })?;
    let digest = Digest::of(&bytes);
    if has_inputs(base, &[digest]) {
        return Ok(vec![digest]);
    }
    let recorded = settings::settings(base.manifest, base.provenance).and_then(|settings| settings.tokenizer);
    Err(AppendError::Tokenizer { path: path.clone(), recorded })
}

/// The digests of the files of the chat template, which have to be those of the version.
fn template_of(base: Base<'_>, config: &IngestConfig) -> Result<Vec<Digest>, AppendError> {
    let Some(path) = &config.chat_template else { return Ok(Vec::new()) };
    let digests: Vec<Digest> = TemplateFiles::read(path)?.digests().collect();
    if has_inputs(base, &digests) {
        return Ok(digests);
    }
    let recorded =
        settings::settings(base.manifest, base.provenance).and_then(|settings| settings.chat_template);
    Err(AppendError::ChatTemplate { path: path.clone(), recorded })
}

fn has_inputs(base: Base<'_>, digests: &[Digest]) -> bool {
    digests.iter().all(|digest| known_inputs(base).iter().any(|input| input.digest == *digest))
}

fn known_inputs(base: Base<'_>) -> &[InputDigest] {
    base.provenance.map_or(&[], |provenance| &provenance.inputs)
}

/// Opens the input to append. Where types are inferred from values, such as in CSV, and come out otherwise
/// than the dataset has them, they are set to those of the dataset: `open` is asked again, and the settings
/// say so.
///
/// # Errors
///
/// When there is nothing that can be ingested.
pub fn open_to_append<E>(
    base: Base<'_>,
    config: IngestConfig,
    open: impl Fn(&IngestConfig) -> Result<Source, E>,
) -> Result<(Source, IngestConfig), E> {
    let source = open(&config)?;
    let schema = &base.manifest.schema;
    if check_source(schema, &source).is_ok() {
        return Ok((source, config));
    }
    let is_written_so =
        |text: &str, field: &Field| text.parse::<DataType>().ok().as_ref() == Some(field.data_type());
    let types = schema.fields().iter().map(|field| (field, field.data_type().to_string()));
    let types = types.filter(|(field, text)| is_written_so(text, field));
    let types = types.map(|(field, text)| (field.name().clone(), text)).collect();
    let typed = IngestConfig { types, ..config.clone() };
    match open(&typed) {
        Ok(again) if check_source(schema, &again).is_ok() => Ok((again, typed)),
        _ => Ok((source, config)),
    }
}

fn check_source(schema: &SchemaRef, source: &Source) -> Result<(), AppendError> {
    check_columns(schema, source.path(), source.schema())
}

/// Refuses samples that have other columns. That some are never null here, or there, is no matter, nor are the names of the
/// items of lists, which earlier releases kept as the writer of the file had them.
pub(crate) fn check_columns(schema: &SchemaRef, path: &Path, found: &SchemaRef) -> Result<(), AppendError> {
    let canonical = canonical_schema(path, schema).unwrap_or_else(|_| schema.clone());
    let mut changes = changes(&canonical, found).into_iter();
    match changes.find(|change| !matches!(change, SchemaChange::Nullable { .. })) {
        None => Ok(()),
        Some(change) => Err(AppendError::Schema { path: path.to_owned(), change }),
    }
}

/// Whether `under` is certainly a folder of which the version has nothing: then the same file may hold other samples. Of a
/// version that has grown, only the last folder is known.
fn is_another_folder(base: Base<'_>, under: Option<&str>) -> bool {
    let there = settings::settings(base.manifest, base.provenance);
    let there = there.filter(|_| made_of(base.manifest).is_none());
    let there = there.and_then(|settings| settings.under);
    there.zip(under).is_some_and(|(there, under)| {
        let (there, under) = (Path::new(there.trim_matches('/')), Path::new(under.trim_matches('/')));
        !there.starts_with(under) && !under.starts_with(there)
    })
}

/// Refuses a file of this machine that the version has already, before anything is read but the file; it is hashed only
/// when an input is as long. Of anything else nothing is known yet. `under` is the folder of it that is to be read.
///
/// # Errors
///
/// [`AppendError::Known`] when it is there.
pub fn refuse_file(base: Base<'_>, path: &Path, under: Option<&str>) -> Result<(), AppendError> {
    if is_another_folder(base, under) {
        return Ok(());
    }
    let inputs = known_inputs(base);
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

/// A version of the samples under `schema`, which differs from the source's at most in what may be null.
fn ingest_as(
    schema: &SchemaRef,
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
    sink: &dyn Sink,
    progress: &dyn Progress,
) -> Result<Ingested, AppendError> {
    if source.schema().fields() == schema.fields() {
        return Ok(crate::ingest(source, config, resources, sink, progress)?);
    }
    let path = source.path().to_owned();
    let (fitted, misfit) = Default::default();
    let fit = Fit { schema: schema.clone(), compression: config.compression, sink, fitted, misfit };
    let mut added = crate::ingest(source, config, resources, &fit, progress).map_err(|error| {
        let misfit = fit.misfit.lock().unwrap_or_else(PoisonError::into_inner).take();
        misfit.map_or(AppendError::Ingest(error), |reason| AppendError::Null { path, reason })
    })?;
    let fitted = fit.fitted.into_inner().unwrap_or_else(PoisonError::into_inner);
    for entry in &mut added.manifest.shards {
        *entry = fitted.get(&entry.id).expect("every shard went through the sink").clone();
    }
    Ok(added)
}

/// Rewrites shards under a schema that differs in nullability. A canonical row does not: it stays.
struct Fit<'a> {
    schema: SchemaRef,
    compression: Compression,
    sink: &'a dyn Sink,
    fitted: Mutex<BTreeMap<ShardId, ShardEntry>>,
    /// Why a shard has no place under the schema.
    misfit: Mutex<Option<String>>,
}

impl Sink for Fit<'_> {
    fn put_shard(&self, shard: FinishedShard) -> io::Result<()> {
        let id = shard.id;
        let fitted = self.fit(shard).map_err(|error| {
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

    /// The stored form of no shard is known: all are made again.
    fn has_shard(&self, _: &ShardId) -> io::Result<bool> {
        Ok(false)
    }
}

impl Fit<'_> {
    fn fit(&self, shard: FinishedShard) -> Result<FinishedShard, ShardError> {
        let read = Shard::from_bytes(shard.bytes)?;
        let mut writer = ShardWriter::with_compression(self.schema.clone(), self.compression)?;
        let mut row = Vec::new();
        for number in 0..read.rows() {
            row.clear();
            read.encode_row(number, &mut row)?;
            writer.push_row(&row)?;
        }
        writer.finish()
    }
}
