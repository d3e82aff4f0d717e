//! Words for a shell, in the commands that mend something.

use std::path::Path;

pub(crate) use shardd_api::shell::word;

/// The path as one word of a shell.
pub(crate) fn path(path: &Path) -> String {
    word(&path.display().to_string())
}
