//! `shardctl ingest`: makes a dataset of files. Nothing is visible before all of it is there.

mod auto;
mod split;

use std::env;
use std::fs;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use shardd_ingest::{
    ChatDate, Delimiter, Documents, Edges, HashRange, ImageSize, Ingest as Reading, IngestConfig, Kind,
    Links, LongDocuments, Loss, Mix, Offsets, OnError, PackingStrategy, Resources, Source, Windows,
    private_directory,
};
use shardd_store::catalog::{Catalog, CatalogError, CatalogStore, CommitNote, LocalCatalog, StorePlace};
use shardd_store::connect::{Connect, Target};
use shardfmt::shard::Compression;
use shardfmt::{ByteSize, DatasetName, Manifest, Message, Operation, Provenance, SkippedList, VersionId};

use self::split::Split;
use crate::failure::{Failure, one_line};
use crate::human::{duration, plural};
use crate::output;
use crate::progress::IngestProgress;

/// Make a dataset of tables, images, archives or text
#[derive(Args)]
pub(crate) struct Ingest {
    /// Files, directories, patterns such as 'data/*.parquet', or URLs: s3://, gs://, az://, http(s)://
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Name of the dataset: a-z, 0-9, '.', '_' and '-'
    #[arg(long)]
    name: DatasetName,

    /// Message for the log of the dataset
    #[arg(long, short, value_name = "TEXT", default_value = "")]
    message: Message,

    #[command(flatten)]
    settings: Settings,

    /// Follow symbolic links that lead out of a folder given
    #[arg(long, help_heading = "Input")]
    follow_symlinks: bool,

    #[command(flatten)]
    resource_args: ResourceArgs,
}

/// The options that decide the version.
#[derive(Args)]
pub(crate) struct Settings {
    /// Lay samples into shards in random order, with each class spread evenly, in the order of the input, or by hash: at random and
    /// whatever the order of the input
    #[arg(long, value_enum, default_value = "random", help_heading = "Order and shards")]
    mix: MixArg,

    /// Column whose classes a stratified mix spreads [default: label]
    #[arg(long, value_name = "COLUMN", help_heading = "Order and shards")]
    label: Option<String>,

    /// Key of the random order and of --split
    #[arg(long, default_value_t = 0, help_heading = "Order and shards")]
    seed: u64,

    /// Target size of shards, such as 4MiB, or `auto`: also from memory and the store [default: a 64th of the
    /// data, between 1 and 64 MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Order and shards")]
    shard_size: Option<ShardSize>,

    /// Compress the bodies of shards: `none`, `lz4`, `zstd`, or `zstd:LEVEL`
    #[arg(long, value_name = "HOW", default_value_t, help_heading = "Order and shards")]
    compression: Compression,

    /// Read the files as this format, in place of the detected one
    #[arg(long, value_name = "KIND", value_parser = parse_kind, help_heading = "Input")]
    format: Option<Kind>,

    /// Read only this folder of PATH
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    under: Option<String>,

    /// Keep only these columns, in this order
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', help_heading = "Input")]
    columns: Option<Vec<String>>,

    /// Type of a column of CSV or JSON Lines, as Arrow writes it: `id=Utf8`, `score=Float32` [default:
    /// inferred from all of its values]
    #[arg(long = "type", value_name = "COLUMN=TYPE", value_parser = parse_type, help_heading = "Input")]
    types: Vec<(String, String)>,

    /// Separator of the fields of CSV files [default: tabs in .tsv, else commas]
    #[arg(long, value_enum, help_heading = "Input")]
    delimiter: Option<DelimiterArg>,

    /// Make tokens of text with this tokenizer.json of Hugging Face, or these ranks of tiktoken
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    tokenizer: Option<PathBuf>,

    /// Pack text into samples of exactly this number of tokens (without --tokenizer: bytes)
    #[arg(long, value_name = "TOKENS", help_heading = "Input")]
    sequence_length: Option<u32>,

    /// Which documents share a sample of --sequence-length tokens
    #[arg(
        long,
        value_enum,
        default_value = "concat_then_split",
        requires = "sequence_length",
        help_heading = "Input"
    )]
    packing: PackingArg,

    /// Handling of documents longer than a sample, for packings of whole documents [default: split]
    #[arg(long, value_enum, value_name = "HOW", requires = "packing", help_heading = "Input")]
    long_documents: Option<LongArg>,

    /// Make tokens of this column of a table, beside its other columns or packed
    #[arg(long, value_name = "COLUMN", help_heading = "Input")]
    text_column: Option<String>,

    /// Make tokens of conversations, with a loss mask: the tokenizer_config.json or chat_template.jinja of the model
    #[arg(long, value_name = "FILE", requires = "tokenizer", help_heading = "Input")]
    chat_template: Option<PathBuf>,

    /// Column of the messages of a conversation [default: messages, or else conversations]
    #[arg(long, value_name = "COLUMN", requires = "chat_template", help_heading = "Input")]
    messages_column: Option<String>,

    /// Which tokens of a conversation have a loss [default: assistant]
    #[arg(long, value_enum, requires = "chat_template", help_heading = "Input")]
    loss: Option<LossArg>,

    /// Date for a chat template that asks for the present one: `2026-07-26`
    #[arg(long, value_name = "DATE", requires = "chat_template", help_heading = "Input")]
    chat_date: Option<ChatDate>,

    /// Give samples the rows around their own: `action=0..50` for 50 rows from the sample's own on, `state=-1,0` for the one
    /// before it and itself. The column becomes a tensor; repeatable
    #[arg(long = "window", value_name = "COLUMN=ROWS", value_parser = window, help_heading = "Input")]
    windows: Vec<(String, Offsets)>,

    /// Column whose changes end a sequence, such as an episode: windows do not pass its ends
    #[arg(long, value_name = "COLUMN", requires = "windows", help_heading = "Input")]
    window_by: Option<String>,

    /// Every how many rows of a sequence a sample begins [default: 1]
    #[arg(long, value_name = "ROWS", requires = "windows", help_heading = "Input")]
    window_stride: Option<NonZeroU32>,

    /// Beyond the ends of a sequence, repeat its last row, or leave the sample out [default: repeat]
    #[arg(long, value_enum, requires = "windows", help_heading = "Input")]
    window_edges: Option<EdgesArg>,

    /// The unit of a document in text files
    #[arg(long, value_enum, default_value = "file", help_heading = "Input")]
    documents: DocumentsArg,

    /// Keep a part of the samples, selected by their content: `0..8/10` to train, `8..10/10` to test
    #[arg(long, value_name = "FROM..TO/OF", value_parser = parse_take, help_heading = "Input")]
    take: Option<HashRange>,

    /// Make several datasets in one pass, by content: `train:0.9,test:0.1` makes NAME-train and NAME-test
    #[arg(long, value_name = "NAME:FRACTION,...", conflicts_with = "take", help_heading = "Input")]
    split: Option<Split>,

    /// Decode images, to tensors of height x width x 3 bytes (RGB)
    #[arg(long, help_heading = "Input")]
    decode: bool,

    /// Resize decoded images to this size
    #[arg(long, value_name = "WIDTHxHEIGHT", requires = "decode", help_heading = "Input")]
    resize: Option<ImageSize>,

    /// Let samples of a WebDataset lack members that others have, as nulls
    #[arg(long, help_heading = "Input")]
    allow_missing: bool,

    /// The action on files, members and lines that cannot be read: stop, or leave them out and list them
    #[arg(long, value_enum, default_value = "fail", help_heading = "Input")]
    on_error: OnErrorArg,
}

/// The options that do not change the version.
#[derive(Args, Clone)]
pub(crate) struct ResourceArgs {
    /// Threads to work with; the result does not depend on it [default: one per processor]
    #[arg(long, help_heading = "Resources")]
    threads: Option<NonZeroUsize>,

    /// Memory to work with, shards in the making included; the result does not depend on it
    #[arg(long, value_name = "SIZE", default_value = "2GiB", help_heading = "Resources")]
    memory: ByteSize,

    /// Where to keep data that does not fit memory, and the progress: run again after an interruption, the
    /// ingest continues [default: a directory of yours in $TMPDIR or, if that is not set, /var/tmp]
    #[arg(long, value_name = "DIR", help_heading = "Resources")]
    work: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum MixArg {
    Random,
    Stratified,
    Sequential,
    Hash,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnErrorArg {
    Fail,
    Skip,
}

#[derive(Clone, Copy, ValueEnum)]
enum DelimiterArg {
    Comma,
    Semicolon,
    Tab,
    Pipe,
}

#[derive(Clone, Copy, ValueEnum)]
enum DocumentsArg {
    File,
    Line,
    BlankLine,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum PackingArg {
    /// Documents are joined, and cut where a sample is full
    ConcatThenSplit,
    /// Whole documents: each joins the first sample with room
    FirstFit,
    /// The same, from the longest document to the shortest
    FirstFitDecreasing,
    /// Whole documents: each joins the sample where it leaves the least room
    BestFit,
    /// The same, from the longest document to the shortest: the least padding
    #[value(alias = "bfd")]
    BestFitDecreasing,
}

#[derive(Clone, Copy, ValueEnum)]
enum LongArg {
    /// Cut them into samples and a rest
    Split,
    /// Keep their first tokens
    Truncate,
    /// Leave them out
    Drop,
    /// End with an error
    Raise,
}

#[derive(Clone, Copy, ValueEnum)]
enum LossArg {
    /// Those of the assistant
    Assistant,
    /// All of them
    All,
}

#[derive(Clone, Copy, ValueEnum)]
enum EdgesArg {
    /// The first or last row again; COLUMN_is_pad marks these
    Repeat,
    /// Only samples whose windows are whole
    Drop,
}

/// A window as it is written.
fn window(text: &str) -> Result<(String, Offsets), String> {
    // The end of `..=` is of the rows.
    let (column, rows) = text
        .rmatch_indices('=')
        .find(|(at, _)| !text[..*at].ends_with(".."))
        .map(|(at, _)| (&text[..at], &text[at + 1..]))
        .filter(|(column, _)| !column.is_empty())
        .ok_or("write COLUMN=ROWS, such as action=0..50")?;
    Ok((column.to_owned(), rows.parse()?))
}

#[derive(Clone, Copy)]
enum ShardSize {
    Auto,
    Bytes(ByteSize),
}

impl FromStr for ShardSize {
    type Err = <ByteSize as FromStr>::Err;

    fn from_str(text: &str) -> Result<ShardSize, Self::Err> {
        if text == "auto" { Ok(ShardSize::Auto) } else { text.parse().map(ShardSize::Bytes) }
    }
}

impl Settings {
    /// # Errors
    /// When settings contradict each other.
    pub(crate) fn config(&self) -> Result<IngestConfig, Failure> {
        let mix = match (self.mix, &self.label) {
            (MixArg::Stratified, label) => {
                Mix::Stratified(label.clone().unwrap_or_else(|| "label".to_owned()))
            }
            (MixArg::Random, None) => Mix::Random,
            (MixArg::Sequential, None) => Mix::Sequential,
            (MixArg::Hash, None) => Mix::Hash,
            (_, Some(_)) => {
                return Err(Failure::usage("--label is for --mix stratified: add that, or leave it out"));
            }
        };
        let names = || self.windows.iter().map(|(column, _)| column);
        if let Some(twice) =
            names().enumerate().find(|(at, name)| names().take(*at).any(|other| other == *name))
        {
            return Err(Failure::usage(format!(
                "--window names column {:?} twice: give all its rows in one",
                twice.1
            )));
        }
        Ok(IngestConfig {
            mix,
            seed: self.seed,
            shard_size: match self.shard_size {
                Some(ShardSize::Bytes(size)) => Some(size),
                Some(ShardSize::Auto) | None => None,
            },
            compression: self.compression,
            format: self.format,
            under: self.under.clone(),
            columns: self.columns.clone(),
            types: self.types.iter().cloned().collect(),
            delimiter: self.delimiter.map(|delimiter| match delimiter {
                DelimiterArg::Comma => Delimiter::Comma,
                DelimiterArg::Semicolon => Delimiter::Semicolon,
                DelimiterArg::Tab => Delimiter::Tab,
                DelimiterArg::Pipe => Delimiter::Pipe,
            }),
            tokenizer: self.tokenizer.clone(),
            sequence_length: self.sequence_length,
            packing: match self.packing {
                PackingArg::ConcatThenSplit => None,
                PackingArg::FirstFit => Some(PackingStrategy::FirstFit),
                PackingArg::FirstFitDecreasing => Some(PackingStrategy::FirstFitDecreasing),
                PackingArg::BestFit => Some(PackingStrategy::BestFit),
                PackingArg::BestFitDecreasing => Some(PackingStrategy::BestFitDecreasing),
            },
            long_documents: self.long_documents.map(|long| match long {
                LongArg::Split => LongDocuments::Split,
                LongArg::Truncate => LongDocuments::Truncate,
                LongArg::Drop => LongDocuments::Drop,
                LongArg::Raise => LongDocuments::Raise,
            }),
            text_column: self.text_column.clone(),
            chat_template: self.chat_template.clone(),
            messages_column: self.messages_column.clone(),
            loss: match self.loss {
                None | Some(LossArg::Assistant) => Loss::Assistant,
                Some(LossArg::All) => Loss::All,
            },
            chat_date: self.chat_date,
            window: (!self.windows.is_empty()).then(|| Windows {
                columns: self.windows.iter().cloned().collect(),
                by: self.window_by.clone(),
                stride: self.window_stride,
                edges: match self.window_edges {
                    None | Some(EdgesArg::Repeat) => Edges::Repeat,
                    Some(EdgesArg::Drop) => Edges::Drop,
                },
            }),
            documents: match self.documents {
                DocumentsArg::File => Documents::File,
                DocumentsArg::Line => Documents::Line,
                DocumentsArg::BlankLine => Documents::BlankLine,
            },
            decode: self.decode,
            resize: self.resize,
            allow_missing: self.allow_missing,
            take: self.take,
            on_error: match self.on_error {
                OnErrorArg::Fail => OnError::Fail,
                OnErrorArg::Skip => OnError::Skip,
            },
        })
    }
}

impl ResourceArgs {
    /// # Errors
    /// When someone else has taken the place where work would lie by default.
    pub(crate) fn resources(self) -> Result<Resources, Failure> {
        let work = match self.work {
            Some(work) => work,
            None => own_work()?,
        };
        let threads = self.threads.map_or_else(processors, usize::from);
        Ok(Resources { threads, memory: self.memory, work: Some(work) })
    }
}

/// A directory of this user's own where temporary files lie, on a disk if that is for us to choose: `/tmp` may be memory.
fn own_work() -> Result<PathBuf, Failure> {
    let on_disk = Path::new("/var/tmp");
    let is_chosen = env::var_os("TMPDIR").is_some_and(|chosen| !chosen.is_empty());
    let parent = if is_chosen || !on_disk.is_dir() { env::temp_dir() } else { on_disk.to_owned() };
    let work = parent.join(format!("shardd-ingest-{}", rustix::process::geteuid().as_raw()));
    private_directory(&work).map_err(|error| {
        let said = one_line(&error);
        Failure::failed(format!(
            "{}: no work can be kept there ({said}); choose a place with --work",
            work.display()
        ))
    })?;
    Ok(work)
}

impl Ingest {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let new_store = match connect.target()? {
            Target::Store(StorePlace::Directory(dir)) if !LocalCatalog::is_at(&dir) => {
                Some((dir.exists(), dir))
            }
            Target::Store(_) | Target::Servers(_) => None,
        };
        let done = self.fill(connect, json);
        if let (Err(_), Some((was_there, dir))) = (&done, new_store) {
            LocalCatalog::remove_unused(&dir);
            if !was_there {
                // Not, if anything was stored.
                let _ = fs::remove_dir(dir);
            }
        }
        done
    }

    fn fill(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let started = Instant::now();
        let Ingest { paths, name, message, settings, follow_symlinks, resource_args } = self;
        let (config, resources) = (settings.config()?, resource_args.resources()?);
        let targets = match &settings.split {
            None => vec![(name, None)],
            Some(split) => {
                let parts = split.parts(&name, settings.seed).map_err(Failure::usage)?;
                parts.into_iter().map(|(name, range)| (name, Some(range))).collect()
            }
        };
        let inputs = shardd_inputs::open(&paths, config.under.as_deref(), links(follow_symlinks))?;
        let source = resources.install(|| Source::new(inputs.within(&resources), &config))??;
        let catalog = connect.catalog_to_fill()?;
        let samples = source.sample_count().filter(|_| config.take.is_none());
        let progress = Arc::new(IngestProgress::new(json, samples));
        progress.end_on_signals()?;
        let size = |data: u64| match settings.shard_size {
            Some(ShardSize::Auto) => {
                let choice = auto::choose(&*catalog, data, &resources)?;
                choice.reasons.iter().for_each(|reason| progress.note(reason));
                progress.note(&format!("shards of {}", choice.size));
                Ok(Some(choice.size))
            }
            Some(ShardSize::Bytes(size)) => Ok(Some(size)),
            None => Ok(None),
        };
        let how = How { config: &config, resources: &resources, size: &size, message };
        let done = into_datasets(&*catalog, &targets, source, how, &progress)?;
        progress.finish();
        for ((name, _), done) in targets.iter().zip(&done) {
            report(name, done, started.elapsed(), json);
        }
        Ok(())
    }
}

/// A dataset as an ingest left it.
pub(crate) struct Ingested {
    pub(crate) manifest: Manifest,
    pub(crate) provenance: Provenance,
    pub(crate) version: VersionId,
    /// The version that had the name before.
    pub(crate) before: Option<VersionId>,
}

/// Ingests all of the source into one dataset; see [`into_datasets`].
pub(crate) fn into_dataset(
    catalog: &dyn Catalog,
    name: &DatasetName,
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
    progress: &IngestProgress,
    message: Message,
) -> Result<Ingested, Failure> {
    let targets = [(name.clone(), None)];
    let how = How { config, resources, size: &|_| Ok(config.shard_size), message };
    let mut done = into_datasets(catalog, &targets, source, how, progress)?;
    Ok(done.pop().expect("one for the only target"))
}

/// How to ingest, and what to say of it.
struct How<'a> {
    config: &'a IngestConfig,
    resources: &'a Resources,
    /// Chooses the size of shards for this number of bytes.
    size: &'a dyn Fn(u64) -> Result<Option<ByteSize>, Failure>,
    message: Message,
}

/// Ingests the source into datasets, each with its range of rows, and when every shard is stored, gives the new versions
/// their names: unless another writer changed the target of a name in the meantime.
fn into_datasets(
    catalog: &dyn Catalog,
    targets: &[(DatasetName, Option<HashRange>)],
    source: Source,
    how: How<'_>,
    progress: &IngestProgress,
) -> Result<Vec<Ingested>, Failure> {
    let How { config, resources, size, message } = how;
    let datasets = catalog.datasets()?;
    let before =
        |name: &DatasetName| datasets.iter().find(|info| info.name == *name).map(|info| info.version);
    let ranges: Vec<HashRange> = targets.iter().filter_map(|(_, range)| *range).collect();
    let read = Reading::read(source, config, &ranges, resources, progress)?;
    let size = size(read.row_bytes())?;
    let written = read.write(size, &CatalogStore(catalog), progress)?;
    let part = |((name, _), made): (&(DatasetName, _), &shardd_ingest::Ingested)| {
        let shardd_ingest::Ingested { manifest, provenance } = made.clone();
        (name.clone(), Ingested { version: manifest.id(), manifest, provenance, before: before(name) })
    };
    let parts: Vec<_> = targets.iter().zip(written.versions()).map(part).collect();
    commit_all(catalog, &parts, &message)?;
    written.finish();
    Ok(parts.into_iter().map(|(_, part)| part).collect())
}

/// Gives all parts of an ingest their names, one right after the other. What may stand in the way of any is looked for before
/// the first.
fn commit_all(
    catalog: &dyn Catalog,
    parts: &[(DatasetName, Ingested)],
    message: &Message,
) -> Result<(), Failure> {
    if parts.len() > 1 {
        for (_, part) in parts {
            catalog.put_manifest(&part.manifest)?;
        }
        let datasets = catalog.datasets()?;
        for (name, part) in parts {
            let actual = datasets.iter().find(|info| info.name == *name).map(|info| info.version);
            if actual != part.before && actual != Some(part.version) {
                let (dataset, expected) = (name.clone(), part.before);
                return Err(CatalogError::Conflict { dataset, expected, actual }.into());
            }
        }
    }
    for (place, (name, part)) in parts.iter().enumerate() {
        // Also where nothing seems to change: someone else may have changed it meanwhile.
        let note = CommitNote {
            operation: Operation::INGEST,
            message: message.clone(),
            provenance: Some(part.provenance.clone()),
        };
        if let Err(error) = catalog.commit(name, part.before, &part.manifest, &note) {
            return Err(half_way(&parts[..place], error));
        }
    }
    Ok(())
}

/// The error when some parts of an ingest have their new versions and the next one has not.
fn half_way(done: &[(DatasetName, Ingested)], error: CatalogError) -> Failure {
    let back = |(name, part): &(DatasetName, Ingested)| match part.before {
        Some(before) if before == part.version => None,
        Some(_) => Some(format!("`shardctl restore {name}@~1`")),
        None => Some(format!("`shardctl rm {name}`")),
    };
    let back: Vec<String> = done.iter().filter_map(back).collect();
    let failure = Failure::from(error);
    match back.is_empty() {
        true => failure,
        false => Failure::failed(format!(
            "{failure}; other parts are new already: ingest again to complete them, or take them back with {}",
            back.join(" and ")
        )),
    }
}

/// Which links are followed.
pub(crate) fn links(follow_symlinks: bool) -> Links {
    if follow_symlinks { Links::Followed } else { Links::Within }
}

/// One thread per processor.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn report(name: &DatasetName, done: &Ingested, took: Duration, json: bool) {
    let Ingested { manifest, provenance, version, before } = done;
    if json {
        output::json(&json!({
            "event": "done",
            "dataset": name,
            "version": version,
            "before": before,
            "samples": manifest.sample_count(),
            "shards": manifest.shards.len(),
            "bytes": manifest.bytes(),
            "row_bytes": manifest.row_bytes(),
            "digest_sum": manifest.digest_sum(),
            "skipped": provenance.skipped.count,
            "seconds": took.as_secs_f64(),
        }));
        notes(name, manifest, &provenance.skipped).iter().for_each(|note| output::note(json, note));
        return;
    }
    let change = match before {
        Some(before) if before == version => ", unchanged".to_owned(),
        Some(before) => format!(", in place of {}", before.short()),
        None => String::new(),
    };
    output::print(&format!(
        "{name}: {} in {} ({}), version {}{change}; {} at {}/s\n",
        plural(manifest.sample_count(), "sample"),
        plural(manifest.shards.len() as u64, "shard"),
        ByteSize(manifest.bytes()),
        version.short(),
        duration(took),
        ByteSize((manifest.row_bytes() as f64 / took.as_secs_f64().max(1e-6)) as u64),
    ));
    notes(name, manifest, &provenance.skipped).iter().for_each(|note| output::note(json, note));
}

/// Surprises for the user.
fn notes(name: &DatasetName, manifest: &Manifest, skipped: &SkippedList) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(first) = skipped.first.first() {
        let places = match skipped.count {
            1 => String::new(),
            many => format!(" (and {} more: see `shardctl info {name}`)", plural(many - 1, "place")),
        };
        notes.push(format!("left out: {}: {}{places}", first.name, first.reason));
    }
    if let [only] = manifest.schema.fields().as_ref()
        && let Some(at) = only.name().find([';', '\t', '|', ','])
    {
        let name = only.name();
        let found = &name[at..=at];
        notes.push(format!(
            "the only column is {name:?}: if {found:?} separates fields of CSV, say so with --delimiter"
        ));
    }
    let is_part =
        |class: &String| ["train", "test", "val", "valid", "validation", "dev"].contains(&class.as_str());
    if let Some(classes) = manifest.class_names().filter(|classes| classes.iter().all(is_part)) {
        notes.push(format!(
            "the classes are {}: if these are parts, ingest each by itself, such as --under {}",
            classes.join(", "),
            classes[0]
        ));
    }
    notes
}

/// A kind of files, by the name it has in configurations.
fn parse_kind(text: &str) -> Result<Kind, String> {
    serde_json::from_value(json!(text)).map_err(|_| {
        let all: Vec<String> =
            Kind::ALL.iter().map(|kind| json!(kind).as_str().unwrap_or_default().to_owned()).collect();
        format!("there are {}", all.join(", "))
    })
}

/// `COLUMN=TYPE`.
fn parse_type(text: &str) -> Result<(String, String), String> {
    let (column, data_type) = text.rsplit_once('=').ok_or("use COLUMN=TYPE, such as id=Utf8")?;
    Ok((column.to_owned(), data_type.to_owned()))
}

/// `FROM..TO/OF`, optionally `@SEED`.
fn parse_take(text: &str) -> Result<HashRange, String> {
    let refused =
        || "use FROM..TO/OF, such as 0..8/10 to train and 8..10/10 to test, optionally with @SEED".to_owned();
    let (range, seed) = match text.split_once('@') {
        Some((range, seed)) => (range, seed.parse().map_err(|_| refused())?),
        None => (text, 0),
    };
    let (range, of) = range.split_once('/').ok_or_else(refused)?;
    let (from, to) = range.split_once("..").ok_or_else(refused)?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| refused());
    let (from, to, of) = (number(from)?, number(to)?, number(of)?);
    if from < to && to <= of { Ok(HashRange::parts(seed, from, to, of)) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use shardd_store::catalog::LocalCatalog;
    use shardfmt::ShardWriter;

    use super::*;

    /// A version of one row, stored, in place of another.
    fn part(
        catalog: &dyn Catalog,
        name: &str,
        row: i64,
        before: Option<VersionId>,
    ) -> (DatasetName, Ingested) {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![row]));
        let batch = RecordBatch::try_from_iter([("number", numbers)]).expect("one column");
        let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
        writer.push(&batch).expect("rows of the schema");
        let shard = writer.finish().expect("a row");
        catalog.put_shard(&shard).expect("stores");
        let manifest = Manifest::new(batch.schema(), vec![shard.entry], json!({}));
        (
            name.parse().expect("a name"),
            Ingested { version: manifest.id(), manifest, provenance: Provenance::default(), before },
        )
    }

    fn names(catalog: &dyn Catalog) -> Vec<(String, VersionId)> {
        let datasets = catalog.datasets().expect("lists").into_iter();
        datasets.map(|info| (info.name.to_string(), info.version)).collect()
    }

    #[test]
    fn no_part_of_a_split_moves_when_another_cannot() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let catalog = LocalCatalog::open(dir.path()).expect("opens");
        let note = Message::default();
        let theirs = part(&catalog, "d-test", 9, None);
        let their_version = theirs.1.version;
        commit_all(&catalog, &[theirs], &note).expect("commits");
        let parts = [part(&catalog, "d-train", 1, None), part(&catalog, "d-test", 2, None)];
        let refused = commit_all(&catalog, &parts, &note).expect_err("d-test is elsewhere").to_string();
        assert!(refused.contains("d-test was expected at no version"), "{refused}");
        assert!(refused.contains("`shardctl log d-test`"), "{refused}");
        assert_eq!(names(&catalog), [("d-test".to_owned(), their_version)]);
        // A part unchanged for us may have changed for others.
        let unchanged = part(&catalog, "d-test", 2, Some(parts[1].1.version));
        let refused = commit_all(&catalog, &[unchanged], &note).expect_err("it has").to_string();
        assert!(refused.contains("d-test was expected at version"), "{refused}");
    }

    #[test]
    fn a_split_that_stops_halfway_says_what_moved_and_how_to_go_back() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let catalog = LocalCatalog::open(dir.path()).expect("opens");
        let note = Message::default();
        let old = part(&catalog, "d-old", 0, None);
        let before = Some(old.1.version);
        commit_all(&catalog, &[old], &note).expect("commits");
        let same = part(&catalog, "d-old", 0, before);
        let parts = [("d-a", 1, None), ("d-old", 2, before), ("d-z", 3, None)];
        let parts = parts.map(|(name, row, before)| part(&catalog, name, row, before));
        let lost = parts[2].1.manifest.shards[0].id.object_key();
        std::fs::remove_file(dir.path().join("store").join(lost)).expect("a shard");
        let [first, second, last] = parts;
        let refused = commit_all(&catalog, &[same, first, second, last], &note);
        let refused = refused.expect_err("a shard is lost").to_string();
        assert!(refused.contains("`shardctl rm d-a` and `shardctl restore d-old@~1`"), "{refused}");
    }

    #[test]
    fn a_part_is_a_range_of_equal_parts() {
        assert_eq!(parse_take("0..8/10"), Ok(HashRange::parts(0, 0, 8, 10)));
        assert_eq!(parse_take("8..10/10@7"), Ok(HashRange::parts(7, 8, 10, 10)));
        for odd in ["", "1..2", "2..1/3", "0..0/3", "0..4/3", "a..b/c", "0..1/2@x"] {
            assert!(parse_take(odd).is_err(), "{odd}");
        }
    }
}
