//! The files below a directory, in the one order that ingest knows: by the bytes of their relative path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rayon::prelude::*;

use super::IngestError;
use super::input::{InputFile, Links, read_error};

/// Deeper trees are refused: a link that leads back up would never end.
const DEEPEST: usize = 64;

/// All files below `root`, or only those of its folder `under`. Names that begin with a dot are left out, as `ls` does,
/// and so are folders such as `__MACOSX`, whose files only look like images. Links are followed as `links` says; a cycle of
/// them is an error. Entries that are not files, and links that are not followed, are listed as such.
pub(super) fn walk(root: &Path, under: Option<&str>, links: Links) -> Result<Vec<InputFile>, IngestError> {
    let start = under.map_or_else(|| root.to_owned(), |under| root.join(under));
    if let Some(under) = under
        && !start.is_dir()
    {
        return Err(IngestError::NotUnder {
            path: root.to_owned(),
            under: under.to_owned(),
            there: folders_there(&folders_in(root)),
        });
    }
    let bounds = match links {
        Links::Within => Some(fs::canonicalize(root).map_err(|error| read_error(root, error))?),
        Links::Followed => None,
    };
    let walk = Walk { root, bounds };
    if let Some(target) = walk.leads_out(&start)? {
        return Err(IngestError::LeadsOut { path: start, target });
    }
    let mut files = walk.collect(&start, under.unwrap_or_default(), 0)?;
    files.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    Ok(files)
}

/// The recorded name of a file given by itself: its file name alone.
pub(super) fn file_name(path: &Path) -> Result<String, IngestError> {
    utf8_name(path, path.file_name().unwrap_or(path.as_os_str()))
}

/// The folders there are, for someone who named another.
pub(super) fn folders_there(folders: &BTreeSet<String>) -> String {
    if folders.is_empty() {
        return "it has no folders, leave `under` out".to_owned();
    }
    let shown: Vec<&str> = folders.iter().take(8).map(String::as_str).collect();
    let more = if folders.len() > shown.len() { ", …" } else { "" };
    format!("its folders are {}{more}", shown.join(", "))
}

/// A walk through a folder.
struct Walk<'r> {
    root: &'r Path,
    /// Where links may lead: the folder's own path, without links.
    bounds: Option<PathBuf>,
}

impl Walk<'_> {
    /// The files below a folder, in no order. Looking at each takes longer than listing them, so that is done in parallel.
    fn collect(&self, folder: &Path, prefix: &str, depth: usize) -> Result<Vec<InputFile>, IngestError> {
        if depth > DEEPEST {
            return Err(IngestError::Entry {
                path: self.root.to_owned(),
                entry: prefix.to_owned(),
                reason: "lies too deep; does a link in it lead back to a folder above?",
            });
        }
        let failed = |error| read_error(folder, error);
        let entries =
            fs::read_dir(folder).map_err(failed)?.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let look = |entry: &fs::DirEntry| self.look(entry, prefix, depth);
        let found: Vec<Result<Vec<InputFile>, IngestError>> = entries.par_iter().map(look).collect();
        let mut files = Vec::with_capacity(found.len());
        for found in found {
            files.append(&mut found?);
        }
        Ok(files)
    }

    fn look(&self, entry: &fs::DirEntry, prefix: &str, depth: usize) -> Result<Vec<InputFile>, IngestError> {
        let (path, name) = (entry.path(), entry.file_name());
        if is_hidden(&name.to_string_lossy()) {
            return Ok(Vec::new());
        }
        let name = utf8_name(self.root, &name)?;
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // Asked of the folder, where a path would be followed from its beginning.
        let is_link = entry.file_type().map_or(true, |kind| kind.is_symlink());
        if is_link && let Some(target) = self.leads_out(&path)? {
            return Ok(vec![InputFile::leading_out(&path, name, target)]);
        }
        let metadata = if is_link { fs::metadata(&path) } else { entry.metadata() };
        let metadata = metadata.map_err(|error| read_error(&path, error))?;
        if metadata.is_dir() {
            return self.collect(&path, &name, depth + 1);
        }
        Ok(vec![match metadata.is_file() {
            true => InputFile::local(&path, name, &metadata),
            false => InputFile::special(&path, name, metadata.file_type()),
        }])
    }

    /// The target of a path, if that lies elsewhere and links are not followed there.
    fn leads_out(&self, path: &Path) -> Result<Option<PathBuf>, IngestError> {
        let Some(bounds) = &self.bounds else { return Ok(None) };
        let target = fs::canonicalize(path).map_err(|error| read_error(path, error))?;
        Ok((!target.starts_with(bounds)).then_some(target))
    }
}

/// Whether files of this name, or below a folder of this name, are never samples.
///
/// ```
/// use shardd_ingest::is_hidden;
///
/// assert!(is_hidden(".DS_Store"));
/// assert!(!is_hidden("cat.png"));
/// ```
pub fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "__MACOSX"
}

fn utf8_name(path: &Path, name: &std::ffi::OsStr) -> Result<String, IngestError> {
    name.to_str().map(str::to_owned).ok_or_else(|| IngestError::Entry {
        path: path.to_owned(),
        entry: name.to_string_lossy().into_owned(),
        reason: "is not named in UTF-8; rename it",
    })
}

fn folders_in(root: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !is_hidden(name))
        .collect()
}

/// The first folders of the names.
pub(super) fn folders_of<'n>(names: impl Iterator<Item = &'n str>) -> BTreeSet<String> {
    names.filter_map(|name| name.split_once('/')).map(|(folder, _)| folder.to_owned()).collect()
}
