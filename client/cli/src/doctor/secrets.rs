//! Files with secrets: tokens and keys are for their owner alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shardd_certificates::{CA_KEY, NODE_KEY};

use super::finding::{Check, Finding, Group, doc};
use super::shell;

const FILES: Check = Check::new(Group::Settings, "secret_files", doc::TOKENS);

/// Files of a data directory that hold a secret.
const OF_DATA: [&str; 2] = ["admin-token", "join-token"];

/// All of them: `named` are files that a flag, a variable, a context or a settings file names.
pub(crate) fn check(named: &[PathBuf], data: Option<&Path>) -> Vec<Finding> {
    let keys = [CA_KEY, NODE_KEY].map(|key| Path::new("tls").join(key));
    let in_data = OF_DATA.iter().map(PathBuf::from).chain(keys);
    let in_data = data.into_iter().flat_map(|data| in_data.clone().map(|name| data.join(name)));
    let all: Vec<PathBuf> = named.iter().cloned().chain(in_data).collect();
    let modes = all.iter().filter_map(|path| Some((path, fs::metadata(path).ok()?.mode())));
    let modes: Vec<(&PathBuf, u32)> = modes.collect();
    let mut found: Vec<Finding> =
        modes.iter().filter_map(|(path, mode)| open_to_others(path, *mode)).collect();
    if found.is_empty() && !modes.is_empty() {
        found.push(FILES.ok(format!("{} files with tokens and keys are for their owner alone", modes.len())));
    }
    found
}

/// Whether users other than its owner may use a file of this mode.
fn open_to_others(path: &Path, mode: u32) -> Option<Finding> {
    let who = match (mode & 0o077, mode & 0o007) {
        (0, _) => return None,
        (_, 0) => "the users of its group",
        _ => "all users of this machine",
    };
    Some(
        FILES
            .warning(format!(
                "{} (mode {:o}) holds a secret, and {who} may use it",
                path.display(),
                mode & 0o7777
            ))
            .mend("Keep it for its owner. If others may have read it, make another token or key.")
            .run(format!("chmod 600 {}", shell::path(path))),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::finding::Severity::{Ok, Warning};
    use super::*;

    #[test]
    fn a_secret_is_for_its_owner_alone() {
        for (mode, words) in [
            (0o100_600, None),
            (0o100_400, None),
            (0o100_640, Some("users of its group")),
            (0o100_644, Some("all users")),
            (0o100_604, Some("all users")),
        ] {
            let found = open_to_others(Path::new("/a b"), mode);
            assert_eq!(found.is_some(), words.is_some(), "{mode:o}");
            let Some((found, words)) = found.zip(words) else { continue };
            assert!(found.severity == Warning && found.evidence.contains(words), "{found:?}");
            assert_eq!(found.command.as_deref(), Some("chmod 600 '/a b'"));
        }
    }

    #[test]
    fn files_of_a_data_directory_are_looked_at() {
        let root = tempfile::TempDir::new().expect("a directory");
        assert_eq!(check(&[], Some(root.path())), []);
        let token = root.path().join("admin-token");
        fs::write(&token, "secret").expect("written");
        let mode = |mode| fs::set_permissions(&token, fs::Permissions::from_mode(mode)).expect("set");
        mode(0o644);
        let found = check(&[], Some(root.path()));
        assert!(found.len() == 1 && found[0].severity == Warning, "{found:?}");
        mode(0o600);
        assert_eq!(check(&[], Some(root.path()))[0].severity, Ok);
    }
}
