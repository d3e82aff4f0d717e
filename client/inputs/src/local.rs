//! Files of this machine: a path, or a pattern that the shell left alone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use shardd_ingest::{IngestError, InputFile, Inputs, Links, is_hidden};

use super::pattern::{Pattern, Step};
use super::{Found, InputsError, Root};

/// Deeper trees are refused: a link that leads back up would never end.
const DEEPEST: usize = 64;

/// Whether it is a path of this machine as it stands: what exists is no pattern.
pub(super) fn is_path(given: &Path) -> bool {
    match given.to_str() {
        Some(text) if text.contains("://") => false,
        Some(text) => given.exists() || Pattern::split(text).is_none(),
        None => true,
    }
}

pub(super) fn find(given: &Path, links: Links) -> Result<Found, InputsError> {
    let pattern = given.to_str().filter(|_| !is_path(given)).and_then(Pattern::split);
    let Some((folder, pattern)) = pattern else {
        let files = Inputs::local(given, None, links)?.into_files();
        let is_folder = given.is_dir();
        let folder = if is_folder { Some(given) } else { given.parent() };
        return Ok(Found { root: root(folder.unwrap_or(given))?, files, is_folder, shown: None });
    };
    let base = if folder.is_empty() { Path::new(".") } else { Path::new(folder) };
    let bounds = match links {
        Links::Within => Some(canonical(base)?),
        Links::Followed => None,
    };
    let mut search = Search { links, bounds, files: Vec::new() };
    let is_folder = search.expand(base, "", &Pattern::parse(pattern)?.steps, 0)?;
    let mut files = search.files;
    if files.is_empty() {
        let (pattern, folder) = (given.display().to_string(), base.display().to_string());
        return Err(InputsError::NoMatch { pattern, folder });
    }
    // `**/x` finds `a/x` once, but `**/**/x` finds it twice.
    files.sort_by(|a, b| a.name().cmp(b.name()));
    files.dedup_by(|a, b| a.name() == b.name());
    Ok(Found { root: root(base)?, files, is_folder, shown: None })
}

/// A search for what fits a pattern.
struct Search {
    links: Links,
    /// Where links may lead that a `**` comes upon: what a step names may lie anywhere, as if the shell had found it.
    bounds: Option<PathBuf>,
    files: Vec<InputFile>,
}

impl Search {
    /// Takes the matching entries of `folder`, called `prefix` up to here. Returns whether a folder was among
    /// it.
    fn expand(
        &mut self,
        folder: &Path,
        prefix: &str,
        steps: &[Step],
        depth: usize,
    ) -> Result<bool, InputsError> {
        let (step, rest) = match steps {
            [] => return self.take(folder, prefix),
            [step, rest @ ..] => (step, rest),
        };
        if depth > DEEPEST {
            let reason = "lies too deep; does a link in it lead back to a folder above?";
            let entry = prefix.to_owned();
            return Err(IngestError::Entry { path: folder.to_owned(), entry, reason }.into());
        }
        let is_any = matches!(step, Step::Folders);
        let mut holds_folders = if is_any { self.expand(folder, prefix, rest, depth + 1)? } else { false };
        if is_any && rest.is_empty() {
            return Ok(holds_folders);
        }
        let refused = |source: std::io::Error| match source.kind() {
            ErrorKind::NotFound => IngestError::Missing { path: folder.to_owned() },
            _ => IngestError::Read { path: folder.to_owned(), source },
        };
        for entry in fs::read_dir(folder).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            // A name that is not UTF-8 fits no pattern; hidden files are left out.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_hidden(&name) || !step.fits(&name) {
                continue;
            }
            let (path, name) = (entry.path(), format!("{prefix}{name}"));
            let is_dir = path.is_dir();
            if is_dir {
                if is_any {
                    self.check_within(&path)?;
                }
                let steps = if is_any { steps } else { rest };
                holds_folders |= self.expand(&path, &format!("{name}/"), steps, depth + 1)?;
            } else if !is_any && rest.is_empty() {
                self.take(&path, &name)?;
            }
        }
        Ok(holds_folders)
    }

    /// Takes a file called `name`, or all below a folder whose files are called `name` and more.
    fn take(&mut self, path: &Path, name: &str) -> Result<bool, InputsError> {
        let is_folder = path.is_dir();
        let found = Inputs::local(path, None, self.links)?.into_files();
        self.files.extend(found.into_iter().map(|file| {
            let name = if is_folder { format!("{name}{}", file.name()) } else { name.to_owned() };
            file.named(name)
        }));
        Ok(is_folder)
    }

    fn check_within(&self, path: &Path) -> Result<(), InputsError> {
        let Some(bounds) = self.bounds.as_ref().filter(|_| path.is_symlink()) else { return Ok(()) };
        let target = canonical(path)?;
        match target.starts_with(bounds) {
            true => Ok(()),
            false => Err(IngestError::LeadsOut { path: path.to_owned(), target }.into()),
        }
    }
}

/// A path without links.
fn canonical(path: &Path) -> Result<PathBuf, IngestError> {
    fs::canonicalize(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => IngestError::Missing { path: path.to_owned() },
        _ => IngestError::Read { path: path.to_owned(), source },
    })
}

/// A folder by its own name, not by what a link or `.` stands for, unless it has none.
fn root(folder: &Path) -> Result<Root, InputsError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let absolute = if folder.components().any(|step| step == Component::ParentDir) {
        fs::canonicalize(folder)
    } else {
        std::path::absolute(folder)
    };
    let refused = |source| IngestError::Read { path: folder.to_owned(), source };
    let absolute: PathBuf = absolute.map_err(refused)?;
    let steps = absolute.components().filter_map(|step| match step {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    let steps: Vec<String> = steps.collect();
    Ok(Root::new("file", steps.iter().map(String::as_str)))
}
