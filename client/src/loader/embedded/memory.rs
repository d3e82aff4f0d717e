//! How much memory there is for pages of files.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that the kernel can still give, by its figures for the machine, and the bytes that the control
/// groups around this process, of either version, have left; any number, if it says nothing.
pub(crate) fn room() -> u64 {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| of_machine(&text));
    let groups = read(Path::new("/proc/self/cgroup")).zip(read(Path::new("/proc/self/mounts")));
    let groups = groups.map_or_else(Vec::new, |(groups, mounts)| groups_of(&groups, &mounts));
    let left = groups.iter().filter_map(|group| group.left(read));
    machine.into_iter().chain(left).min().unwrap_or(u64::MAX)
}

/// How much of `room` one of `loaders` that may share it takes for rows that are read ahead, if it has batches of `batches`
/// bytes: three quarters of the rest, since others take memory, too.
pub(crate) fn for_rows(room: u64, loaders: u64, batches: u64) -> u64 {
    let own = (room / loaders.max(1)).saturating_sub(batches);
    own - own / 4
}

/// How many bytes one of a loader's `threads` that gather rows asks the disk for ahead of itself. Those of all `loaders` together
/// are a part of `room`: what the kernel has read last is used, and the pages beside it are those of rows used before.
pub(crate) fn ahead_of_gathering(room: u64, loaders: u64, threads: u64) -> u64 {
    (room / AHEAD_OF_ROOM / loaders.max(1) / threads.max(1)).clamp(LEAST_AHEAD, MOST_AHEAD)
}

const AHEAD_OF_ROOM: u64 = 8;

/// With less, a disk has little to do at a time; with more, it is no faster.
const LEAST_AHEAD: u64 = 1 << 20;
const MOST_AHEAD: u64 = 16 << 20;

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group of memory.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    dir: PathBuf,
    files: &'static Files,
}

/// The names of a version's files.
#[derive(Debug, PartialEq, Eq)]
struct Files {
    /// How much the group may have. `max` is no limit.
    limit: &'static str,
    /// How much it has.
    usage: &'static str,
    /// The line in `memory.stat` for pages of files.
    cached: &'static str,
}

static FIRST: Files =
    Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", cached: "total_cache" };
static SECOND: Files = Files { limit: "memory.max", usage: "memory.current", cached: "file" };

impl Group {
    /// Bytes that it may still have, pages of files counted, which make room for others; `None` without a limit.
    fn left(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        let number = |file: &str| read(&self.dir.join(file))?.trim().parse::<u64>().ok();
        let limit = number(self.files.limit)?;
        let stat = read(&self.dir.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.files.cached)?.trim().parse().ok());
        let held = number(self.files.usage).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
        Some(limit.saturating_sub(held))
    }
}

/// The control groups of a process that is in `groups` (`/proc/self/cgroup`), by where they are mounted (`/proc/self/mounts`), and those
/// around them.
fn groups_of(groups: &str, mounts: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for group in groups.lines() {
        let mut parts = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        for mount in mounts.lines() {
            let mut fields = mount.split(' ').skip(1);
            let (Some(place), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let has_memory = |list: &str| list.split(',').any(|name| name == "memory");
            let files = match kind {
                "cgroup2" if controllers.is_empty() => &SECOND,
                "cgroup" if has_memory(controllers) && has_memory(options) => &FIRST,
                _ => continue,
            };
            // In a container the path may be that outside, and only its own group be mounted.
            let around = Path::new(path).ancestors().filter_map(|path| path.strip_prefix("/").ok());
            found.extend(around.map(|path| Group { dir: Path::new(place).join(path), files }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(of_machine("MemTotal:  9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert!(room() < u64::MAX);
    }

    #[test]
    fn loaders_share_what_there_is_and_leave_some() {
        assert_eq!(for_rows(1000, 1, 0), 750);
        assert_eq!(for_rows(1000, 2, 100), 300);
        assert_eq!((for_rows(1000, 0, 0), for_rows(10, 1, 11)), (750, 0));
    }

    #[test]
    fn what_all_threads_of_all_loaders_ask_for_ahead_is_a_part_of_the_room() {
        for room in [1 << 28, 1 << 30, 1 << 34, u64::MAX] {
            for (loaders, threads) in [(1, 1), (2, 2), (4, 2), (8, 4), (0, 0)] {
                let ahead = ahead_of_gathering(room, loaders, threads);
                let all = ahead * loaders * threads;
                assert!(all <= room / 8, "{ahead} of {room} for {threads} threads of {loaders}");
                assert!((1 << 20..=16 << 20).contains(&ahead));
            }
        }
        assert_eq!(ahead_of_gathering(0, 2, 2), 1 << 20, "a disk is always asked for something");
    }

    #[test]
    fn every_group_around_a_process_is_asked_in_either_version() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = groups_of("9:name=systemd:/\n4:memory:/jobs/7\n1:cpu:/jobs/8\n0::/a\n", mounts);
        let expected = [
            ("memory/jobs/7", &FIRST),
            ("memory/jobs", &FIRST),
            ("memory", &FIRST),
            ("unified/a", &SECOND),
            ("unified", &SECOND),
        ];
        let expected =
            expected.map(|(dir, files)| Group { dir: Path::new("/sys/fs/cgroup").join(dir), files });
        assert_eq!(found, expected);
        assert_eq!(groups_of("nonsense\n0::\n:", "x\ncgroup2 /c cgroup2\n"), []);
    }

    #[test]
    fn what_a_group_has_left_counts_files_as_room() {
        let read = |files: &'static [(&str, &str)]| {
            move |path: &Path| {
                let found = files.iter().find(|(file, _)| Path::new("/g").join(file) == path)?;
                Some(found.1.to_owned())
            }
        };
        let group = |files| Group { dir: "/g".into(), files };
        let second =
            [("memory.max", "1000\n"), ("memory.current", "700\n"), ("memory.stat", "anon 400\nfile 250\n")];
        assert_eq!(group(&SECOND).left(read(Box::leak(Box::new(second)))), Some(550));
        let first = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "1200\n"),
            ("memory.stat", "cache 1\ntotal_cache 100\n"),
        ];
        assert_eq!(group(&FIRST).left(read(Box::leak(Box::new(first)))), Some(0));
        assert_eq!(group(&SECOND).left(read(&[("memory.max", "max\n")])), None);
        assert_eq!(
            group(&SECOND).left(read(&[("memory.max", "9\n")])),
            Some(9),
            "a missing figure is nothing"
        );
    }
}
