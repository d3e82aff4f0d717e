//! Patterns such as `data/*/part-[0-9].parquet`: `*`, `?`, `[...]`, `{a,b}` and `{00..99}` within one step of a path, `**`
//! for any number of folders. Knows nothing of where the paths come from.

use globset::{GlobBuilder, GlobMatcher};

use super::InputsError;
use super::ranges::as_choices;

/// The characters that make a step of a path a pattern.
const WILD: [char; 4] = ['*', '?', '[', '{'];

/// A pattern, relative to the folders before its first wildcard.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) enum Step {
    /// Any number of folders.
    Folders,
    /// One file or folder of such a name.
    Name(GlobMatcher),
}

impl Pattern {
    /// The folders before the first wildcard, and the pattern that follows them; `None` if there is no wildcard.
    pub(super) fn split(path: &str) -> Option<(&str, &str)> {
        let wild = path.find(WILD)?;
        let start = path[..wild].rfind('/').map_or(0, |slash| slash + 1);
        Some((&path[..start], &path[start..]))
    }

    pub(super) fn parse(text: &str) -> Result<Pattern, InputsError> {
        let step = |step: &str| match step {
            "**" => Ok(Step::Folders),
            name => {
                let glob = GlobBuilder::new(&as_choices(name)).literal_separator(true).build();
                glob.map(|glob| Step::Name(glob.compile_matcher()))
            }
        };
        let steps = text.split('/').filter(|step| !step.is_empty()).map(step).collect::<Result<_, _>>();
        let malformed = |error: globset::Error| InputsError::Malformed {
            given: text.to_owned(),
            reason: format!(
                "not a pattern: {}; put a wildcard that is meant literally in brackets, as [*]",
                error.kind()
            ),
        };
        Ok(Pattern { steps: steps.map_err(malformed)? })
    }

    /// Whether a file of this path is matched, or a folder that it lies in.
    pub(super) fn fit(&self, path: &str) -> Fit {
        let path: Vec<&str> = path.split('/').collect();
        fit(&self.steps, &path)
    }
}

/// The part of a path that a pattern matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    Nothing,
    File,
    /// A folder, and with it all that is below.
    Folder,
}

impl Step {
    pub(super) fn fits(&self, name: &str) -> bool {
        match self {
            Step::Folders => true,
            Step::Name(glob) => glob.is_match(name),
        }
    }
}

fn fit(steps: &[Step], path: &[&str]) -> Fit {
    match (steps, path) {
        ([], []) => Fit::File,
        ([], _) => Fit::Folder,
        (_, []) => Fit::Nothing,
        ([Step::Folders, rest @ ..], [_, below @ ..]) => fit(rest, path).max(fit(steps, below)),
        ([step, rest @ ..], [name, below @ ..]) if step.fits(name) => fit(rest, below),
        _ => Fit::Nothing,
    }
}
