//! The files below a directory, in the one order that ingest knows: by the bytes of their relative path.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use rayon::prelude::*;

use super::IngestError;
use super::input::{InputFile, read_error};

/// Deeper trees are refused: a link that leads back up would never end.
const DEEPEST: usize = 64;

/// All files below `root`, or only those of its folder `under`. Names that begin with a dot are left out, as `ls` does,
/// and so are folders such as `__MACOSX`, whose files only look like images. Links are followed; a cycle of them is an
/// error.
pub(super) fn walk(root: &Path, under: Option<&str>) -> Result<Vec<InputFile>, IngestError> {
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
    let mut files = collect(root, &start, under.unwrap_or_default(), 0)?;
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

/// The files below a folder, in no order. Looking at each takes longer than listing them, so that is done in parallel.
fn collect(root: &Path, folder: &Path, prefix: &str, depth: usize) -> Result<Vec<InputFile>, IngestError> {
    if depth > DEEPEST {
        return Err(IngestError::Entry {
            path: root.to_owned(),
            entry: prefix.to_owned(),
            reason: "lies too deep; does a link in it lead back to a folder above?",
        });
    }
    let failed = |error| read_error(folder, error);
    let entries = fs::read_dir(folder).map_err(failed)?.collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let look = |entry: &fs::DirEntry| {
        let (path, name) = (entry.path(), entry.file_name());
        if is_hidden(&name.to_string_lossy()) {
            return Ok(Vec::new());
        }
        let name = utf8_name(root, &name)?;
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // Asked of the folder, where a path would be followed from its beginning.
        let metadata = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => entry.metadata(),
            _ => fs::metadata(&path),
        };
        let metadata = metadata.map_err(|error| read_error(&path, error))?;
        if metadata.is_dir() {
            return collect(root, &path, &name, depth + 1);
        }
        Ok(if metadata.is_file() { vec![InputFile::local(&path, name, &metadata)] } else { Vec::new() })
    };
    let found: Vec<Result<Vec<InputFile>, IngestError>> = entries.par_iter().map(look).collect();
    let mut files = Vec::with_capacity(found.len());
    for found in found {
        files.append(&mut found?);
    }
    Ok(files)
}

/// Whether files of this name, or below a folder of this name, are never samples.
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
