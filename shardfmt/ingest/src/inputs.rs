//! All files of an input: found below a directory, or given by the caller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::input::{Content, InputFile, Links, ReadAt, Trouble, read_error};
use super::{IngestError, Resources, tree};

#[derive(Debug)]
struct InMemory(Bytes);

impl Content for InMemory {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(self.0.clone()))
    }

    fn is_near(&self) -> bool {
        true
    }
}

/// All files of an input, in the one order that ingest knows: by the bytes of their names.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::{IngestConfig, Inputs, Links, Source};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("a.csv"), "word,label\ncat,0\n")?;
/// std::fs::write(folder.path().join("b.csv"), "word,label\ndog,1\n")?;
///
/// let inputs = Inputs::local(folder.path(), None, Links::Within)?;
/// assert_eq!(inputs.bytes(), 34);
/// let source = Source::new(inputs, &IngestConfig::default())?;
/// assert_eq!(source.schema().field(1).name(), "label");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Inputs {
    pub(super) path: PathBuf,
    pub(super) files: Vec<InputFile>,
    /// Whether the user named one file, and not a directory that happens to hold one.
    pub(super) is_file: bool,
    /// The only folder of it that was looked at.
    pub(super) under: Option<String>,
    pub(super) trouble: Trouble,
}

impl Inputs {
    /// The file at `path`, or all files below the directory at `path`; of those only the ones in `under`.
    ///
    /// # Errors
    /// When there is nothing, when it is neither file nor directory, when it cannot be read, or when a name is not UTF-8.
    pub fn local(path: &Path, under: Option<&str>, links: Links) -> Result<Inputs, IngestError> {
        let metadata = fs::metadata(path).map_err(|error| read_error(path, error))?;
        let under = super::config::folder(under)?;
        let files = if metadata.is_dir() {
            tree::walk(path, under.as_deref(), links)?
        } else if metadata.is_file() {
            vec![InputFile::local(path, tree::file_name(path)?, &metadata)]
        } else {
            let special = InputFile::special(path, tree::file_name(path)?, metadata.file_type());
            return Err(special.unfit().expect("neither file nor directory"));
        };
        Ok(Self::new(path, files, !metadata.is_dir(), under))
    }

    fn new(
        path: impl Into<PathBuf>,
        mut files: Vec<InputFile>,
        is_file: bool,
        under: Option<String>,
    ) -> Inputs {
        let trouble = Trouble::default();
        files.iter_mut().for_each(|file| file.trouble = trouble.clone());
        Inputs { path: path.into(), files, is_file, under, trouble }
    }

    /// Files that the caller found, wherever they lie. `path` is shown to people; `is_file` says that the user named a
    /// single file. Files outside of the folder `under` are left out, unless it is a single file, such as an archive.
    ///
    /// # Errors
    /// When two files have the same name.
    pub fn of_files(
        path: impl Into<PathBuf>,
        mut files: Vec<InputFile>,
        is_file: bool,
        under: Option<&str>,
    ) -> Result<Inputs, IngestError> {
        let (path, under) = (path.into(), super::config::folder(under)?);
        if let (Some(under), false) = (&under, is_file) {
            let folders = tree::folders_of(files.iter().map(|file| file.name.as_str()));
            files.retain(|file| {
                file.name.strip_prefix(under.as_str()).is_some_and(|rest| rest.starts_with('/'))
            });
            if files.is_empty() {
                let there = tree::folders_there(&folders);
                return Err(IngestError::NotUnder { path, under: under.clone(), there });
            }
        }
        files.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
        if let Some(pair) = files.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(IngestError::Entry {
                path,
                entry: pair[0].name.clone(),
                reason: "is given twice; give each file once",
            });
        }
        Ok(Self::new(path, files, is_file, under))
    }

    /// The same, to be read with these resources: a row that their memory does not allow for is refused before it is read to its end.
    /// Without this it is refused once it is read.
    #[must_use]
    pub fn within(mut self, resources: &Resources) -> Inputs {
        let largest_row = resources.largest_row();
        self.files.iter_mut().for_each(|file| file.largest_row = largest_row);
        self
    }

    /// The files, to be given to [`Inputs::of_files`] together with others.
    pub fn into_files(self) -> Vec<InputFile> {
        self.files
    }

    /// A single file that lies in memory.
    pub fn in_memory(name: &str, bytes: impl Into<Bytes>) -> Inputs {
        let bytes = bytes.into();
        let file = InputFile::new(name, name, bytes.len() as u64, "", Arc::new(InMemory(bytes)));
        Self::new(name, vec![file], true, None)
    }

    /// Takes out the unreadable inputs: each with its name.
    pub(super) fn take_unfit(&mut self) -> Vec<(String, IngestError)> {
        let unfit = self.files.extract_if(.., |file| file.unfit.is_some());
        unfit.filter_map(|file| file.unfit().map(|error| (file.name, error))).collect()
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }
}
