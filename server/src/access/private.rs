//! Where tokens are asked, what a node keeps is for its owner alone: the shards in its files are what the tokens are for.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

/// Closes a data directory to other users of the machine. One that is not this user's stays unchanged, with a
/// warning.
pub fn close(data: &Path) {
    if let Err(error) = try_close(data) {
        warn!(path = %data.display(), %error,
              "other users of this machine may read the data directory; close it with `chmod 0700`");
    }
}

fn try_close(data: &Path) -> io::Result<()> {
    let there = std::fs::metadata(data)?;
    match there.mode() & 0o077 {
        0 => Ok(()),
        _ => std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o700)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_may_look_into_a_directory_that_is_closed() {
        let data = tempfile::TempDir::new().expect("a directory");
        let mode = || std::fs::metadata(data.path()).expect("it is there").mode() & 0o777;
        for before in [0o755, 0o770, 0o700, 0o500] {
            std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(before)).expect("ours");
            close(data.path());
            assert_eq!(mode() & 0o077, 0, "{before:o}");
        }
    }
}
