//! The directory in which a node keeps its data: its rights, the room on its disk, its file system, and how fast that is.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;
use shardd_store::reserve::Disk;

use super::finding::{Check, Finding, Group, doc};
use super::limit::within;
use super::{disk, shell, speed};

/// How long a probe of a disk may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The most files of a cache that are counted.
const MOST_FILES: usize = 200_000;

const DIRECTORY: Check = Check::new(Group::Directory, "data_directory", doc::SETTINGS);

/// The data directory of a node, with the settings that decide about its disk.
#[derive(Debug, Clone)]
pub(crate) struct DataDirectory {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// The limit of the node's cache.
    pub(crate) cache_bytes: u64,
    /// The bytes that stay free; without a number they follow from the size of the disk.
    pub(crate) reserve: Option<u64>,
}

/// The state of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// There is none, and it can be made or not.
    Missing { can_be_made: bool },
    /// Something else has its name.
    NoDirectory,
    /// It is there.
    Present { owner: u32, mode: u32, write: Result<(), ErrorKind> },
    /// The system does not say.
    Unknown(String),
}

/// All of them.
pub(crate) fn check(data: &DataDirectory) -> Vec<Finding> {
    let path = data.path.clone();
    let Some((state, mount)) = within(LIMIT, move || (look(&path), disk::mount_of(&path))) else {
        return vec![DIRECTORY.given_up(LIMIT)];
    };
    let is_written = matches!(state, State::Present { write: Ok(()), .. });
    let is_there = matches!(state, State::Present { .. });
    let mut found = vec![usable(&data.path, &state, geteuid().as_raw(), mount.as_deref())];
    if !is_there {
        return found;
    }
    // The cache may have a disk of its own.
    let cache = Some(data.path.join("cache")).filter(|cache| cache.is_dir());
    let place = cache.clone().unwrap_or_else(|| data.path.clone());
    let (asked, wanted) = (place.clone(), data.clone());
    let room = within(LIMIT, move || {
        let used = cache.as_deref().map_or(0, bytes_below);
        let disk = Disk::of(&asked).ok()?;
        let room = disk::Room {
            disk,
            reserve: wanted.reserve.unwrap_or_else(|| disk.default_reserve()),
            cache_bytes: wanted.cache_bytes,
            used_bytes: used,
        };
        Some((room, disk::inodes(&asked), disk::kind(&asked)))
    });
    match room {
        None => found.push(disk::SPACE.given_up(LIMIT)),
        Some(None) => {}
        Some(Some((room, inodes, kind))) => {
            found.push(disk::space(&place, &room));
            found.extend(inodes.map(|inodes| disk::enough_inodes(&place, inodes)));
            found.extend(kind.map(|kind| disk::file_system(&place, kind)));
        }
    }
    if is_written {
        found.extend(speed::check(Group::Directory, &place));
    }
    found
}

/// Whether a node can use it.
fn usable(path: &Path, state: &State, user: u32, mount: Option<&Path>) -> Finding {
    let (shown, word) = (path.display(), shell::path(path));
    match state {
        State::Missing { can_be_made: true } => {
            DIRECTORY.info(format!("{shown} does not exist; `shardd serve` makes it"))
        }
        State::Missing { can_be_made: false } => DIRECTORY
            .error(format!("{shown} does not exist, and user {user} cannot make it"))
            .mend("Make it for the user of the node.")
            .run(format!("sudo install -d -m 700 -o {user} {word}")),
        State::NoDirectory => DIRECTORY
            .error(format!("{shown} is no directory"))
            .mend("Name another place with `--data`, or move the file away."),
        State::Unknown(reason) => DIRECTORY
            .error(format!("{shown} cannot be looked at: {reason}"))
            .mend("Run the doctor as the user of the node, or repair the rights of the directories above."),
        State::Present { owner, mode, write: Ok(()) } if mode & 0o022 != 0 => DIRECTORY
            .warning(format!(
                "{shown} (owner {owner}, mode {:o}) can be written by other users",
                mode & 0o7777
            ))
            .mend("Take their right away: the directory holds keys and tokens.")
            .run(format!("chmod go-w {word}")),
        State::Present { owner, mode, write: Ok(()) } => {
            DIRECTORY.ok(format!("{shown} can be written (owner {owner}, mode {:o})", mode & 0o7777))
        }
        State::Present { owner, mode, write: Err(kind) } => {
            not_writable(path, (*owner, *mode), *kind, user, mount)
        }
    }
}

fn not_writable(
    path: &Path,
    (owner, mode): (u32, u32),
    kind: ErrorKind,
    user: u32,
    mount: Option<&Path>,
) -> Finding {
    let (shown, word) = (path.display(), shell::path(path));
    match kind {
        ErrorKind::ReadOnlyFilesystem => {
            let mount = mount.unwrap_or(path);
            DIRECTORY
                .error(format!("{shown} is on {}, which is mounted read-only", mount.display()))
                .mend("Mount it for writing. If the kernel did this after an error of the disk, look at `dmesg` first.")
                .run(format!("mount -o remount,rw {}", shell::path(mount)))
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DIRECTORY
            .error(format!("{shown} takes no more files: the disk or the quota is full"))
            .mend("Free space on the disk: the metadata takes no changes once it is full."),
        _ if owner == user => DIRECTORY
            .error(format!("{shown} (mode {:o}) cannot be written by its owner, user {user}", mode & 0o7777))
            .mend("Let its owner write.")
            .run(format!("chmod u+rwx {word}")),
        _ => DIRECTORY
            .error(format!("{shown} belongs to user {owner}, and user {user} cannot write it"))
            .mend(format!(
                "Run the node and the doctor as user {owner} (`sudo -u '#{owner}' shardctl doctor`), or give the directory to \
                 user {user}."
            ))
            .run(format!("sudo chown -R {user} {word}")),
    }
}

fn look(path: &Path) -> State {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent =
                path.ancestors().skip(1).find(|parent| parent.as_os_str().is_empty() || parent.is_dir());
            let parent = parent.filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return State::Missing { can_be_made: write_to(parent).is_ok() };
        }
        Err(error) => return State::Unknown(error.to_string()),
    };
    match metadata.is_dir() {
        false => State::NoDirectory,
        true => State::Present {
            owner: metadata.uid(),
            mode: metadata.mode(),
            write: write_to(path).map_err(|error| error.kind()),
        },
    }
}

/// Writes a file that has no name, so that nothing is left of it.
fn write_to(directory: &Path) -> io::Result<()> {
    use std::io::Write;
    tempfile::tempfile_in(directory)?.write_all(b"x")
}

/// The bytes of the files below a directory, of the first [`MOST_FILES`].
fn bytes_below(directory: &Path) -> u64 {
    let (mut waiting, mut files, mut bytes) = (vec![directory.to_owned()], 0, 0);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            match metadata.is_dir() {
                true => waiting.push(entry.path()),
                false => bytes += metadata.blocks().saturating_mul(512),
            }
            files += 1;
            if files == MOST_FILES {
                return bytes;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Info, Ok as Fine, Warning};
    use super::*;

    fn present(owner: u32, mode: u32, write: Result<(), ErrorKind>) -> State {
        State::Present { owner, mode, write }
    }

    #[test]
    fn each_fault_of_a_directory_has_its_own_remedy() {
        let missing = |can_be_made| State::Missing { can_be_made };
        let read_only = Err(ErrorKind::ReadOnlyFilesystem);
        let denied = Err(ErrorKind::PermissionDenied);
        for (state, severity, command) in [
            (present(1000, 0o40700, Ok(())), Fine, None),
            (present(1000, 0o40777, Ok(())), Warning, Some("chmod go-w '/srv/a b'")),
            (missing(true), Info, None),
            (missing(false), Error, Some("sudo install -d -m 700 -o 1000 '/srv/a b'")),
            (State::NoDirectory, Error, None),
            (State::Unknown("denied".to_owned()), Error, None),
            (present(1000, 0o40700, read_only), Error, Some("mount -o remount,rw /srv")),
            (present(1000, 0o40500, denied), Error, Some("chmod u+rwx '/srv/a b'")),
            (present(7, 0o40700, denied), Error, Some("sudo chown -R 1000 '/srv/a b'")),
            (present(1000, 0o40700, Err(ErrorKind::StorageFull)), Error, None),
        ] {
            let found = usable(Path::new("/srv/a b"), &state, 1000, Some(Path::new("/srv")));
            assert_eq!((found.severity, found.command.as_deref()), (severity, command), "{found:?}");
            assert_eq!(found.remedy.is_some(), found.is_problem(), "{found:?}");
        }
    }

    #[test]
    fn a_directory_is_looked_at_without_a_trace() {
        let root = tempfile::TempDir::new().expect("a directory");
        assert!(matches!(look(root.path()), State::Present { write: Ok(()), .. }));
        assert_eq!(look(&root.path().join("a/b")), State::Missing { can_be_made: true });
        assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 0, "nothing is left");
        fs::write(root.path().join("file"), vec![1; 5000]).expect("written");
        assert_eq!(look(&root.path().join("file")), State::NoDirectory);
        assert!(bytes_below(root.path()) >= 5000);
        let data = DataDirectory { path: root.path().to_owned(), cache_bytes: 1 << 20, reserve: Some(0) };
        let checks: Vec<String> = check(&data).into_iter().map(|finding| finding.check).collect();
        for wanted in
            ["data_directory", "disk_space", "disk_inodes", "file_system", "disk_writes", "disk_reads"]
        {
            assert!(checks.iter().any(|check| check == wanted), "{wanted}: {checks:?}");
        }
        assert_eq!(fs::read_dir(root.path()).expect("readable").count(), 1, "nothing but the file is left");
    }
}
