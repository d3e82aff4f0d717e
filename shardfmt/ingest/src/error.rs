//! Why an ingest stopped. Every message is one line that names the file or row and the way out.

use std::io;
use std::path::PathBuf;

use shardfmt::digest::ShardId;
use shardfmt::shard::ShardError;
use shardfmt::size::ByteSize;

use super::image_size::ImageSize;

/// The valid sources, for the error about another one.
pub(super) const ACCEPTED: &str = "files, or directories of files, of Parquet (.parquet), Arrow (.arrow, .feather), CSV \
                                   (.csv, .tsv), JSON Lines (.jsonl), NumPy (.npy, .npz), libsvm (.libsvm, .svm), \
                                   TFRecord (.tfrecord) or text (.txt), a directory of images (png, jpg, jpeg, webp, bmp), a .tar, .tar.gz or .tar.zst \
                                   of images or WebDataset samples or a directory of them, or a directory of MosaicML \
                                   shards or LitData chunks (index.json with .mds or chunk-*.bin)";

/// Why an ingest stopped. Nothing was committed: shards already handed to the sink are harmless, and running again
/// makes the same ones.
///
/// ```
/// use shardd_ingest::{IngestConfig, IngestError, Source};
/// use std::path::Path;
///
/// match Source::open(Path::new("no/such/words.csv"), &IngestConfig::default()) {
///     Err(IngestError::Missing { path }) => assert_eq!(path, Path::new("no/such/words.csv")),
///     Err(other) => panic!("{other}"),
///     Ok(_) => panic!("there is no such file"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum IngestError {
    /// The path given does not exist.
    #[error(
        "{path}: no such file or directory; check the path, relative ones start at the current directory"
    )]
    Missing { path: PathBuf },
    /// The system refused to read.
    #[error("{path}: cannot be read; check its permissions and the disk it is on")]
    Read { path: PathBuf, source: io::Error },
    /// Nothing that can be read from its beginning to its end, and again.
    #[error("{path}: is {what}, not a file; write its content to a file, or take it out of the input")]
    Special { path: PathBuf, what: &'static str },
    /// A link out of the folder that was given: perhaps to files not meant to be published.
    #[error(
        "{path}: is a link that leads out of the input, to {target}; copy its target, or follow such links \
        (`follow_symlinks`)"
    )]
    LeadsOut { path: PathBuf, target: PathBuf },
    /// A store or server did not give a file; the source says why, and the way out.
    #[error("{path}: cannot be fetched")]
    Fetch { path: PathBuf, source: io::Error },
    /// The file is none of the kinds we read.
    #[error("{path}: {found}; accepted are {ACCEPTED}")]
    Unknown { path: PathBuf, found: String },
    /// Data of a kind that a library of Python reads.
    #[error("{path}: is {what}, which is none of the kinds that are read here; {way_out}")]
    ForPython { path: PathBuf, what: &'static str, way_out: &'static str },
    /// A directory that could be read in two ways.
    #[error(
        "{path}: holds files of several kinds ({first}, {second}); choose one with `format`, or a folder with `under`"
    )]
    Ambiguous { path: PathBuf, first: String, second: String },
    /// A file that must be read as a whole is larger than that allows.
    #[error("{path}: has {bytes} bytes, the most is {most}; split it or leave it out")]
    TooLarge { path: PathBuf, bytes: u64, most: u64 },
    /// A column that was asked for is not there.
    #[error("{path}: has no column {column:?}; its columns are {there}")]
    NoColumn { path: PathBuf, column: String, there: String },
    /// Nothing to ingest.
    #[error("{path}: no samples found, {found}; give an input with samples")]
    NoSamples { path: PathBuf, found: String },
    /// `take` kept no row.
    #[error("{path}: `take` keeps none of its {rows} rows; widen the range or use another seed")]
    NothingTaken { path: PathBuf, rows: u64 },
    /// The folder asked for by `under` is not there.
    #[error("{path}: nothing found under {under:?}; {there}")]
    NotUnder { path: PathBuf, under: String, there: String },
    /// A setting that makes no sense.
    #[error("ingest setting `{setting}`: {reason}; {way_out}")]
    Config { setting: &'static str, reason: String, way_out: &'static str },
    /// A file name that cannot be a sample's path.
    #[error("{path}: entry {entry:?} {reason}")]
    Entry { path: PathBuf, entry: String, reason: &'static str },
    /// Not Parquet, or damaged.
    #[error(
        "{path}: not a readable Parquet file ({reason}); copy it again, or rename it if it is something else"
    )]
    Parquet { path: PathBuf, reason: String },
    /// Two files of one dataset differ in their columns.
    #[error(
        "{path}: {difference}, unlike {first}; files of one dataset need the same columns, use `under` to take a part"
    )]
    Schemas { path: PathBuf, first: PathBuf, difference: String },
    /// A row of a CSV file has too many or too few columns.
    #[error(
        "{path}: line {line} has {found} columns where the header has {expected}; quote values that hold a comma or newline"
    )]
    Columns { path: PathBuf, line: u64, found: String, expected: u64 },
    /// A line of a text file that makes no row.
    #[error("{path}: line {line}: {reason}; correct it, or leave such lines out (`on_error`: skip)")]
    Line { path: PathBuf, line: u64, reason: String },
    /// Not of the kind it is taken for, or damaged.
    #[error(
        "{path}: not a readable {kind} file ({reason}); make or copy it again, or name its format with \
        `format`"
    )]
    Damaged { path: PathBuf, kind: &'static str, reason: String },
    /// A column of a type that shards do not hold.
    #[error("{path}: column {column:?} of type {data_type} cannot be ingested: {reason}; drop or convert it")]
    Column { path: PathBuf, column: String, data_type: String, reason: String },
    /// Compressed to next to nothing: a bomb, or zeros.
    #[error("{path}: unpacks from {bytes} to more than {most}; unpack it yourself if you trust it")]
    Expands { path: PathBuf, bytes: ByteSize, most: ByteSize },
    /// A MosaicML shard or index that is damaged, or of a kind that is not read.
    #[error("{path}: not a readable MDS file ({reason}); copy it again, or write it again")]
    Mds { path: PathBuf, reason: String },
    /// A member of an archive, or a sample of a shard, that makes no row.
    #[error("{path}: {entry:?} {reason}; correct it, or leave such samples out (`on_error`: skip)")]
    Member { path: PathBuf, entry: String, reason: String },
    /// Samples that lack what others have.
    #[error(
        "{path}: {lacking} of {samples} samples have no {column:?}, the first of them {first:?}; allow it with `allow_missing` (they get nulls), leave the column out (`columns`) or the samples (`on_error`: skip)"
    )]
    Incomplete { path: PathBuf, column: String, lacking: u64, samples: u64, first: String },
    /// An archive that is truncated or damaged.
    #[error("{path}: {reason}; the archive is truncated or damaged, copy it again")]
    Archive { path: PathBuf, reason: String },
    /// An image that no decoder reads.
    #[error("{path}: image {entry:?} cannot be decoded ({reason}); repair or remove it")]
    Image { path: PathBuf, entry: String, reason: String },
    /// An image of another size than the others, all of which are to have one.
    #[error(
        "{path}: image {entry:?} is {found}, where the first is {first}; give one size for all (`resize`)"
    )]
    ImageSize { path: PathBuf, entry: String, found: ImageSize, first: ImageSize },
    /// Images both directly in the folder and in folders below it: it is unclear what the labels are.
    #[error(
        "{path}: image {in_root:?} lies beside folders of images ({in_folder:?}); move it into a folder (its label) or choose one with `under`"
    )]
    Mixed { path: PathBuf, in_root: String, in_folder: String },
    /// The source has changed since it was opened.
    #[error("{path}: changed while it was read ({what}); run again when nothing writes to it")]
    Changed { path: PathBuf, what: String },
    /// A row that has no canonical form.
    #[error("{path}: a row cannot be encoded ({reason}); drop or convert its column")]
    Row { path: PathBuf, reason: String },
    /// Rows that do not fit memory could not be kept on disk.
    #[error("temporary file in {directory}: {}", unkept(source))]
    Spill { directory: PathBuf, source: io::Error },
    /// The bytes kept on disk are not those written.
    #[error("temporary file in {directory}: is damaged; run again, and it starts from the beginning")]
    Spoiled { directory: PathBuf, source: io::Error },
    /// A shard could not be made.
    #[error("shard {index} cannot be written; choose a smaller shard size")]
    Shard { index: usize, source: ShardError },
    /// The sink refused a shard.
    #[error("shard {shard} cannot be stored; running again continues with the same shards")]
    Sink { shard: ShardId, source: io::Error },
}

impl IngestError {
    /// Whether it is about the contents of the input, so that it can be left out: not about the settings, the
    /// disk, or files that change while they are read.
    pub(super) fn is_about_content(&self) -> bool {
        match self {
            Self::Unknown { .. }
            | Self::ForPython { .. }
            | Self::Special { .. }
            | Self::LeadsOut { .. }
            | Self::TooLarge { .. }
            | Self::Entry { .. }
            | Self::Parquet { .. }
            | Self::Schemas { .. }
            | Self::Columns { .. }
            | Self::Line { .. }
            | Self::Damaged { .. }
            | Self::Archive { .. }
            | Self::Image { .. }
            | Self::ImageSize { .. }
            | Self::Mds { .. }
            | Self::Member { .. }
            | Self::Expands { .. }
            | Self::Row { .. } => true,
            Self::Missing { .. }
            | Self::Read { .. }
            | Self::Fetch { .. }
            | Self::Ambiguous { .. }
            | Self::NoColumn { .. }
            | Self::NoSamples { .. }
            | Self::NothingTaken { .. }
            | Self::NotUnder { .. }
            | Self::Config { .. }
            | Self::Column { .. }
            | Self::Mixed { .. }
            | Self::Incomplete { .. }
            | Self::Changed { .. }
            | Self::Spill { .. }
            | Self::Spoiled { .. }
            | Self::Shard { .. }
            | Self::Sink { .. } => false,
        }
    }

    /// Whether the same input with the same settings may be ingested when it is tried again: the obstacle lies elsewhere.
    pub(super) fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Fetch { .. }
                | Self::Spill { .. }
                | Self::Shard { .. }
                | Self::Sink { .. }
        )
    }
}

/// Why nothing can be kept there, and the way out.
fn unkept(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "no space is left; free some, or choose a larger disk (`work` for rows, TMPDIR for all else)"
        }
        _ => "cannot be used; check the disk and its permissions, or choose another place (`work`, TMPDIR)",
    }
}

/// The first line of someone else's message, short enough to stand in ours.
pub(super) fn one_line(message: impl std::fmt::Display) -> String {
    let text = message.to_string();
    let line = text.lines().next().unwrap_or("no reason given").trim_end_matches(['.', ' ']);
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_is_told_to_be_full() {
        let said = |code| {
            let source = io::Error::from_raw_os_error(code);
            IngestError::Spill { directory: "/work".into(), source }.to_string()
        };
        for (error, is_full) in
            [(libc::ENOSPC, true), (libc::EDQUOT, true), (libc::EMFILE, false), (libc::EIO, false)]
        {
            assert_eq!(said(error).contains("no space"), is_full);
        }
    }
}
