//! A file that is there while tokens are asked. By it a node that starts without its metastore, or with an empty one, knows that
//! it is not open to everyone.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use shardd_certificates::write_private;
use tracing::warn;

use super::private;

/// The file's name in the data directory.
const NAME: &str = "asks-tokens";
/// Its text for people.
const TEXT: &str =
    "There are tokens: this node answers who shows one, also while its metadata is lost or unreachable.\n";

/// Whether there were tokens when the node last knew.
#[derive(Debug)]
pub struct Mark {
    data: PathBuf,
    path: PathBuf,
}

impl Mark {
    /// The one of a data directory.
    #[must_use]
    pub fn in_data(data: &Path) -> Mark {
        Mark { data: data.to_owned(), path: data.join(NAME) }
    }

    /// Whether there were any.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.path.exists()
    }

    /// Notes whether there are any, unless that is known; where there are, the data directory is closed to other users. Where that fails, the next start goes by the metastore alone.
    pub fn keep(&self, any: bool) {
        if any == self.is_set() {
            return;
        }
        if any {
            private::close(&self.data);
        }
        let kept = match any {
            true => write_private(&self.path, TEXT.as_bytes()).map_err(|error| error.to_string()),
            false => match std::fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            },
        };
        if let Err(error) = kept {
            warn!(path = %self.path.display(), error, "the setting that tokens are required does not \
                survive a restart");
        }
    }
}
