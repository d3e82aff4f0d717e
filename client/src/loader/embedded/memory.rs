//! How much memory there is for pages of files.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that the kernel can still give, by what it says of the machine, and what this process's control groups, of either
/// version, allow it; any number, if it says nothing.
pub(crate) fn room() -> u64 {
    let read = |path: &str| fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| of_machine(&text));
    let groups = read("/proc/self/cgroup").zip(read("/proc/self/mounts"));
    let files = groups.map_or_else(Vec::new, |(groups, mounts)| limits_of(&groups, &mounts));
    let limits = files.iter().filter_map(|file| limit(&fs::read_to_string(file).ok()?));
    machine.into_iter().chain(limits).min().unwrap_or(u64::MAX)
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The files that say how much memory a process may have that is in `groups` (`/proc/self/cgroup`), by where control groups are
/// mounted (`/proc/self/mounts`): those of each group and of all that it is in.
fn limits_of(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
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
            let file = match kind {
                "cgroup2" if controllers.is_empty() => "memory.max",
                "cgroup" if has_memory(controllers) && has_memory(options) => "memory.limit_in_bytes",
                _ => continue,
            };
            // In a container the path may be that outside, and only its own group be mounted.
            let around = Path::new(path).ancestors().filter_map(|path| path.strip_prefix("/").ok());
            files.extend(around.map(|path| Path::new(place).join(path).join(file)));
        }
    }
    files
}

/// `max` is no limit.
fn limit(said: &str) -> Option<u64> {
    said.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(of_machine("MemTotal:  9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!((limit("1048576\n"), limit("max\n")), (Some(1 << 20), None));
        assert!(room() < u64::MAX);
    }

    #[test]
    fn every_group_around_a_process_is_asked_in_either_version() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let files = limits_of("9:name=systemd:/\n4:memory:/jobs/7\n1:cpu:/jobs/8\n0::/a\n", mounts);
        let expected = [
            "memory/jobs/7/memory.limit_in_bytes",
            "memory/jobs/memory.limit_in_bytes",
            "memory/memory.limit_in_bytes",
            "unified/a/memory.max",
            "unified/memory.max",
        ];
        assert_eq!(files, expected.map(|file| Path::new("/sys/fs/cgroup").join(file)));
        assert_eq!(limits_of("nonsense\n0::\n:", "x\ncgroup2 /c cgroup2\n"), Vec::<PathBuf>::new());
    }
}
