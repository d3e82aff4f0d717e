//! The files below a directory, in the one order that ingest knows: by the bytes of their relative path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::read_error;
use crate::ingest::IngestError;

/// Deeper trees are refused: a link that leads back up would never end.
const DEEPEST: usize = 64;

/// A file of the input.
#[derive(Clone, Debug)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    /// Relative to the path the user gave, with `/` between folders: what versions record, so that they do not depend
    /// on where the input lay.
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// All files below a directory, sorted by name. Names that begin with a dot are left out, as `ls` does, and so are
/// folders such as `__MACOSX`, whose files only look like images.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: Vec<FoundFile>,
}

impl Tree {
    /// Lists `root`, or only its folder `under`. Links are followed; a cycle of them is an error.
    pub(super) fn walk(root: &Path, under: Option<&str>) -> Result<Tree, IngestError> {
        let start = match under {
            Some(under) => root.join(under),
            None => root.to_owned(),
        };
        if let Some(under) = under
            && !start.is_dir()
        {
            return Err(IngestError::NotUnder {
                path: root.to_owned(),
                under: under.to_owned(),
                there: folders_there(&folders_of(root)),
            });
        }
        let mut files = Vec::new();
        collect(root, &start, under.unwrap_or_default(), 0, &mut files)?;
        files.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
        Ok(Tree { files })
    }

    /// What is there, for someone who expected samples.
    pub(super) fn describe(&self) -> String {
        match self.files.as_slice() {
            [] => "the directory is empty".to_owned(),
            [file] => format!("only {}", file.name),
            [file, rest @ ..] => format!("only {} and {} more files", file.name, rest.len()),
        }
    }
}

/// A file given by itself: named by its file name alone.
pub(super) fn single(path: &Path, bytes: u64) -> Result<FoundFile, IngestError> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(FoundFile { path: path.to_owned(), name: utf8_name(path, name)?, bytes })
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

fn collect(
    root: &Path,
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<FoundFile>,
) -> Result<(), IngestError> {
    if depth > DEEPEST {
        return Err(IngestError::Entry {
            path: root.to_owned(),
            entry: prefix.to_owned(),
            reason: "lies too deep; does a link in it lead back to a folder above?",
        });
    }
    for entry in fs::read_dir(folder).map_err(|error| read_error(folder, error))? {
        let entry = entry.map_err(|error| read_error(folder, error))?;
        let (path, name) = (entry.path(), entry.file_name());
        if is_hidden(&name.to_string_lossy()) {
            continue;
        }
        let name = utf8_name(root, &name)?;
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let metadata = fs::metadata(&path).map_err(|error| read_error(&path, error))?;
        if metadata.is_dir() {
            collect(root, &path, &name, depth + 1, files)?;
        } else if metadata.is_file() {
            files.push(FoundFile { path, name, bytes: metadata.len() });
        }
    }
    Ok(())
}

/// Whether files of this name, or below a folder of this name, are never samples.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "__MACOSX"
}

fn utf8_name(path: &Path, name: &std::ffi::OsStr) -> Result<String, IngestError> {
    name.to_str().map(str::to_owned).ok_or_else(|| IngestError::Entry {
        path: path.to_owned(),
        entry: name.to_string_lossy().into_owned(),
        reason: "is not named in UTF-8; rename it",
    })
}

fn folders_of(root: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !is_hidden(name))
        .collect()
}
