//! Detects the kind of some files: by their first bytes where those are telling, by their names otherwise. Checks that
//! the settings fit it.

use std::borrow::Cow;
use std::path::Path;

use super::compressed::Compression;
use super::{tars, tfrecord};
use crate::config::Documents;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

impl Kind {
    /// The kind of the input: that of the user, or the one it looks like.
    pub(super) fn of(inputs: &Inputs, config: &IngestConfig) -> Result<Kind, IngestError> {
        match (config.format, inputs.files.as_slice()) {
            (Some(kind), _) => Ok(kind),
            (None, [file]) if inputs.is_file => Self::of_file(file),
            (None, files) => Self::of_directory(inputs, files),
        }
    }

    /// Those of the files that are of this kind, and how many others there are. A single file always is, and so are all,
    /// if the user named the kind and the names show none.
    pub(super) fn files(self, inputs: Inputs, config: &IngestConfig) -> (Vec<InputFile>, u64) {
        let count = inputs.files.len();
        let all = inputs.is_file
            || config.format.is_some() && !inputs.files.iter().any(|file| self.names(&file.name));
        let files: Vec<_> = inputs.files.into_iter().filter(|file| all || self.names(&file.name)).collect();
        let others = (count - files.len()) as u64;
        (files, others)
    }

    /// Refuses settings that are about other kinds: no user should think that they had an effect.
    pub(super) fn check_settings(self, config: &IngestConfig) -> Result<(), IngestError> {
        let is_table = matches!(self, Kind::Csv | Kind::Tsv | Kind::JsonLines | Kind::TfRecord);
        let is_typed = is_table || matches!(self, Kind::Archive | Kind::WebDataset);
        let is_chat = config.chat_template.is_some();
        let (is_other, has_text) = (self != Kind::Text, config.text_column.is_some() || is_chat);
        let is_inferred = is_typed && !(is_chat && self == Kind::JsonLines);
        let of_others = [
            ("types", !is_inferred && !config.types.is_empty()),
            ("tokenizer", is_other && !has_text && config.tokenizer.is_some()),
            ("sequence_length", is_other && !has_text && config.sequence_length.is_some()),
            ("text_column", !is_other && config.text_column.is_some()),
            ("chat_template", !is_other && is_chat),
            ("documents", is_other && config.documents != Documents::default()),
        ];
        match of_others.into_iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((setting, _)) => Err(IngestError::Config {
                setting,
                reason: format!("it means nothing for {}", self.description()),
                way_out: "leave it out, or say with `format` what the files are",
            }),
        }
    }

    /// The kind of a single file.
    fn of_file(file: &InputFile) -> Result<Kind, IngestError> {
        let head = file.head(512)?;
        let magic: [(&[u8], Kind); 4] = [
            (b"PAR1", Kind::Parquet),
            (b"ARROW1", Kind::Arrow),
            (b"\xff\xff\xff\xff", Kind::Arrow),
            (b"\x93NUMPY", Kind::Numpy),
        ];
        if let Some((_, kind)) = magic.iter().find(|(magic, _)| head.starts_with(magic)) {
            return Ok(*kind);
        }
        if tfrecord::is_head(&head) {
            return Ok(Kind::TfRecord);
        }
        let named = |kind: &&Kind| **kind != Kind::Images && kind.names(&file.name);
        let named = Kind::ALL.iter().find(named).copied();
        if tars::is_tar(&head) {
            return Ok(Kind::Archive);
        }
        if let Some(kind) = named {
            return Ok(kind);
        }
        if Compression::of(&head).is_some() && tars::is_compressed_tar(file)? {
            return Ok(Kind::Archive);
        }
        if let Some((what, way_out)) = for_python([&*last_name(&file.path)]) {
            return Err(IngestError::ForPython { path: file.path.clone(), what, way_out });
        }
        let found = if Kind::Images.names(&file.name) {
            "a single image is no dataset".to_owned()
        } else if head.is_empty() {
            "the file is empty".to_owned()
        } else {
            match file.path.extension() {
                Some(extension) => format!("unknown kind of file (.{})", extension.to_string_lossy()),
                None => "unknown kind of file".to_owned(),
            }
        };
        Err(IngestError::Unknown { path: file.path.clone(), found })
    }

    /// The kind of a directory's files; files of no kind are passed over.
    fn of_directory(inputs: &Inputs, files: &[InputFile]) -> Result<Kind, IngestError> {
        let first_of = |kind: Kind| Some((kind, files.iter().find(|file| kind.names(&file.name))?));
        // Notes lie beside any data: they are the data only where there is no other.
        let is_telling = |kind: &Kind| !matches!(kind, Kind::WebDataset | Kind::Text);
        let mut kinds = Kind::ALL.iter().copied().filter(is_telling).filter_map(first_of);
        let first = kinds.next();
        let given = last_name(&inputs.path);
        let names = std::iter::once(&*given).chain(files.iter().map(|file| file.name.as_str()));
        if let (None, Some((what, way_out))) = (first, for_python(names)) {
            return Err(IngestError::ForPython { path: inputs.path.clone(), what, way_out });
        }
        match (first.or_else(|| first_of(Kind::Text)), kinds.next()) {
            (Some((kind, _)), None) => Ok(kind),
            (Some((_, first)), Some((_, second))) => Err(IngestError::Ambiguous {
                path: inputs.path.clone(),
                first: first.name.clone(),
                second: second.name.clone(),
            }),
            (None, _) => {
                let found = format!("no samples found, {}", describe(files));
                Err(IngestError::Unknown { path: inputs.path.clone(), found })
            }
        }
    }
}

/// Kinds of data that libraries of Python read: the ending of a file or folder, the kind, and the way to ingest it.
const FOR_PYTHON: [(&str, &str, &str); 3] = [
    (".lance", "Lance", "pass `lance.dataset(PATH)` to `shardd.from_arrow` in Python"),
    (".h5ad", "AnnData", "pass its path to `shardd.from_anndata` in Python"),
    (
        ".zarr",
        "Zarr",
        "pass its path to `shardd.from_anndata` in Python if it is AnnData, or rows of its arrays to `shardd.from_iter`",
    ),
];

/// The kind of data that these paths have, and the way to ingest it, if it is one for Python.
fn for_python<'p>(paths: impl IntoIterator<Item = &'p str>) -> Option<(&'static str, &'static str)> {
    paths.into_iter().find_map(|path| {
        let names = || path.split('/').map(str::to_ascii_lowercase);
        let found = FOR_PYTHON.iter().find(|(ending, ..)| names().any(|name| name.ends_with(ending)));
        found.map(|(_, what, way_out)| (*what, *way_out))
    })
}

fn last_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The list of files, for someone who expected samples.
fn describe(files: &[InputFile]) -> String {
    match files {
        [] => "the directory is empty".to_owned(),
        [file] => format!("only {}", file.name),
        [file, rest @ ..] => format!("only {} and {} more files", file.name, rest.len()),
    }
}
