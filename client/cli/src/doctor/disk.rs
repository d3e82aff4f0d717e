//! Room on a disk, by bytes and by files, and the kind of its file system.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{statfs, statvfs};
use shardd_store::reserve::Disk;
use shardfmt::ByteSize;

use super::finding::{Check, Finding, Group, doc};

/// The least limit that a cache may have.
const LEAST_CACHE: u64 = 64 << 20;
/// Files that a node may still make: those of its store count most.
const LEAST_INODES: u64 = 10_000;

pub(super) const SPACE: Check = Check::new(Group::Directory, "disk_space", doc::LEAVING);
const INODES: Check = Check::new(Group::Directory, "disk_inodes", doc::LEAVING);
const FILE_SYSTEM: Check = Check::new(Group::Directory, "file_system", doc::START);

/// The room of a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Its disk.
    pub(super) disk: Disk,
    /// The bytes that stay free.
    pub(super) reserve: u64,
    /// Its limit.
    pub(super) cache_bytes: u64,
    /// The bytes that it takes now.
    pub(super) used_bytes: u64,
}

/// Whether a cache can grow to its limit.
pub(super) fn space(place: &Path, room: &Room) -> Finding {
    let Room { disk: Disk { size: all, free }, reserve, cache_bytes, used_bytes } = *room;
    let (left, grows) = (free.saturating_sub(reserve), cache_bytes.saturating_sub(used_bytes));
    let evidence = format!("{} of {} are free on the disk of {}", size(free), size(all), place.display());
    let kept = format!("{} stay free (--disk-reserve)", size(reserve));
    if left == 0 {
        return SPACE
            .error(format!("{evidence}, and {kept}: the node can write nothing"))
            .mend(format!("Free {} at least on this disk.", size(reserve.saturating_sub(free) + 1)));
    }
    if grows <= left {
        return SPACE.ok(format!("{evidence}; the cache may take {} more", size(grows)));
    }
    let finding = SPACE.warning(format!(
        "{evidence}, {kept}, and the cache may take {} more, up to its limit of {}",
        size(grows),
        size(cache_bytes)
    ));
    let fits = used_bytes.saturating_add(left);
    let free_more = format!("free {} on this disk", size(grows - left));
    match fits >= LEAST_CACHE {
        true => {
            finding.mend(format!("Start the node with `--cache-size {}`, or {free_more}.", setting(fits)))
        }
        false => finding.mend(format!("A cache has 64 MiB at least: {free_more}, or use another one.")),
    }
}

/// Files that a file system may still have, and all that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inodes {
    pub(super) free: u64,
    pub(super) all: u64,
}

/// Whether more files can be made.
pub(super) fn enough_inodes(place: &Path, Inodes { free, all }: Inodes) -> Finding {
    if all == 0 {
        return INODES.ok(format!("the file system of {} has no limit of files", place.display()));
    }
    let evidence = format!("{free} of {all} inodes are free on the disk of {}", place.display());
    let mend = "Remove small files (`du --inodes -x / | sort -n | tail` finds them), or make the file system with more inodes.";
    match free {
        0 => INODES.error(evidence).mend(mend),
        few if few < LEAST_INODES.min(all / 20) => INODES.warning(evidence).mend(mend),
        _ => INODES.ok(evidence),
    }
}

/// The inodes of the file system of a path.
pub(super) fn inodes(path: &Path) -> Option<Inodes> {
    let found = statvfs(path).ok()?;
    Some(Inodes { free: found.f_favail, all: found.f_files })
}

/// The kind of a file system, where it matters to a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// On a disk of this machine.
    Local(&'static str),
    /// In memory.
    Memory(&'static str),
    /// On another machine.
    Network(&'static str),
    /// The writable layer of a container.
    Layer,
    /// Of a number that this program does not know.
    Unknown(u64),
}

/// Whether a cache belongs on such a file system.
pub(super) fn file_system(place: &Path, kind: Kind) -> Finding {
    let shown = place.display();
    match kind {
        Kind::Local(name) => FILE_SYSTEM.ok(format!("{shown} is on {name}")),
        Kind::Memory(name) => FILE_SYSTEM
            .warning(format!("{shown} is on {name}: the data takes memory, and is lost when the machine stops"))
            .mend("Put the data directory (`--data`) on a disk."),
        Kind::Network(name) => FILE_SYSTEM
            .warning(format!("{shown} is on {name}: the cache is read over the network, and slow when that is"))
            .mend("Put the data directory (`--data`) on a disk of this machine. A store may be on a network file system."),
        Kind::Layer => FILE_SYSTEM
            .warning(format!("{shown} is in the writable layer of a container: slow, and lost with the container"))
            .mend("Mount a volume there: `docker run -v /srv/shardd:DIR`."),
        Kind::Unknown(number) => FILE_SYSTEM.info(format!("{shown} is on a file system of kind {number:#x}")),
    }
}

/// The kind of the file system of a path.
pub(super) fn kind(path: &Path) -> Option<Kind> {
    let number = statfs(path).ok()?.f_type;
    // The numbers have 32 bits; the type has a sign on some systems.
    Some(kind_of(number as u64 & 0xffff_ffff))
}

fn kind_of(number: u64) -> Kind {
    match number {
        0xef53 => Kind::Local("ext4"),
        0x5846_5342 => Kind::Local("XFS"),
        0x9123_683e => Kind::Local("Btrfs"),
        0x2fc1_2fc1 => Kind::Local("ZFS"),
        0xf2f5_2010 => Kind::Local("F2FS"),
        0xca45_1a4e => Kind::Local("bcachefs"),
        0x0102_1994 => Kind::Memory("tmpfs"),
        0x8584_58f6 => Kind::Memory("ramfs"),
        0x6969 => Kind::Network("NFS"),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => Kind::Network("SMB"),
        0x0102_1997 => Kind::Network("9P"),
        0x00c3_6400 => Kind::Network("Ceph"),
        0x0bd0_0bd0 => Kind::Network("Lustre"),
        0x4750_4653 => Kind::Network("GPFS"),
        0x6573_5546 => Kind::Network("FUSE"),
        0x794c_7630 => Kind::Layer,
        number => Kind::Unknown(number),
    }
}

/// Where the file system of a path is mounted.
pub(super) fn mount_of(path: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = path.canonicalize().ok()?;
    innermost(&mounts, &path)
}

/// The innermost mount over a path, by the text of mountinfo. Blanks in names are written as octal numbers there.
fn innermost(mounts: &str, path: &Path) -> Option<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.map(|point| PathBuf::from(point.replace("\\040", " ").replace("\\134", "\\")));
    points.filter(|point| path.starts_with(point)).max_by_key(|point| point.components().count())
}

/// The size of a cache as a setting: whole MiB.
fn setting(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

/// For evidence.
fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Info, Ok, Warning};
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_cache_that_cannot_grow_is_given_the_size_that_fits() {
        for (free, cache, used, severity, words) in [
            (100 * GIB, 64 * GIB, 0, Ok, "may take 64.0 GiB more"),
            (10 * GIB, 64 * GIB, 60 * GIB, Ok, "may take 4.0 GiB more"),
            (10 * GIB, 64 * GIB, 0, Warning, "--cache-size 9216MiB"),
            (10 * GIB, 64 * GIB, 20 * GIB, Warning, "--cache-size 29696MiB"),
            (GIB + (1 << 20), 64 * GIB, 0, Warning, "64 MiB at least"),
            (GIB / 2, 64 * GIB, 64 * GIB, Error, "Free 512.0 MiB"),
        ] {
            let disk = Disk { size: 200 * GIB, free };
            let found =
                space(Path::new("/srv"), &Room { disk, reserve: GIB, cache_bytes: cache, used_bytes: used });
            let all = format!("{} {}", found.evidence, found.remedy.clone().unwrap_or_default());
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(all.contains(words), "{found:?}");
        }
    }

    #[test]
    fn few_inodes_are_a_warning_and_none_an_error() {
        for (free, all, severity) in [
            (900_000, 1_000_000, Ok),
            (5000, 1_000_000, Warning),
            (0, 1000, Error),
            (0, 0, Ok),
            (900, 1000, Ok),
        ] {
            assert_eq!(
                enough_inodes(Path::new("/srv"), Inodes { free, all }).severity,
                severity,
                "{free} {all}"
            );
        }
    }

    #[test]
    fn a_cache_belongs_on_a_disk_of_this_machine() {
        for (number, severity, name) in [
            (0xef53, Ok, "ext4"),
            (0x0102_1994, Warning, "tmpfs"),
            (0x6969, Warning, "NFS"),
            (0x794c_7630, Warning, "container"),
            (0x1234, Info, "0x1234"),
        ] {
            let found = file_system(Path::new("/srv"), kind_of(number));
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.evidence.contains(name), "{found:?}");
        }
    }

    #[test]
    fn the_innermost_mount_is_the_one_of_a_path() {
        let mounts = "22 27 0:21 / / rw - ext4 /dev/vda rw\n\
                      23 22 0:22 / /srv rw - ext4 /dev/vdb rw\n\
                      24 23 0:23 / /srv/a\\040b ro - ext4 /dev/vdc ro\n";
        let of = |path: &str| innermost(mounts, Path::new(path)).map(|point| point.display().to_string());
        assert_eq!(of("/srv/a b/c").as_deref(), Some("/srv/a b"));
        assert_eq!(of("/srv/ab").as_deref(), Some("/srv"));
        assert_eq!(of("/etc").as_deref(), Some("/"));
        assert!(mount_of(Path::new("/proc")).is_some());
    }
}
