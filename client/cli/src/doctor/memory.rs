//! Memory and processors that this process may use: of the machine, and of its control group (version 1 or 2).

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use shardfmt::ByteSize;

use super::finding::{Check, Finding, Group, doc};
use super::system::{kib, number};

/// Less memory than this is too little for a node and its part of the page cache.
const LEAST: u64 = 1 << 30;
/// With less than this available, the kernel is about to end processes.
const LEAST_AVAILABLE: u64 = 256 << 20;
/// Control groups of version 1 have this number of bytes or more where there is no limit.
const NO_LIMIT: u64 = 1 << 62;

const MEMORY: Check = Check::new(Group::Machine, "memory", doc::START);
const PROCESSORS: Check = Check::new(Group::Machine, "processors", doc::START);
const PAGE_CACHE: Check = Check::new(Group::Machine, "page_cache", doc::LOADERS);

/// The memory that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    /// Of the machine.
    total: u64,
    /// Free, or filled with pages of files.
    available: u64,
    /// The limit of the control group.
    limit: Option<u64>,
    /// What of it is used, beside pages of files that could be dropped.
    used: Option<u64>,
}

/// All of them. `data_bytes` are those that ranks read of this machine's disk in an epoch.
pub(crate) fn check(data_bytes: Option<u64>) -> Vec<Finding> {
    let mut found = Vec::new();
    let groups = control_groups();
    if let Some(memory) = read_memory(&groups) {
        found.push(enough_memory(memory));
        found.extend(data_bytes.map(|data| page_cache(memory, data)));
    }
    let processors = available_parallelism().map_or(1, std::num::NonZero::get);
    found.push(enough_processors(processors, read_quota(&groups)));
    found
}

fn enough_memory(memory: Memory) -> Finding {
    let Memory { total, available, limit, used } = memory;
    let most = limit.unwrap_or(total).min(total);
    let left = match (limit, used) {
        (Some(limit), Some(used)) => available.min(limit.saturating_sub(used)),
        _ => available,
    };
    let of_group = limit
        .filter(|limit| *limit < total)
        .map_or_else(String::new, |limit| format!("; its control group allows {}", ByteSize(limit)));
    let evidence = format!("{} of {} of memory are available{of_group}", ByteSize(left), ByteSize(total));
    let raise = "Give the container or unit more memory (`docker run --memory`, MemoryMax= of systemd), or use a larger machine. \
                 Pages of files count against this limit, too.";
    match (most < LEAST, left < LEAST_AVAILABLE) {
        (true, _) => MEMORY.warning(evidence).mend(raise),
        (false, true) => MEMORY.warning(evidence).mend(
            "Look for the process that takes the memory (`ps aux --sort=-rss | head`), and give this machine less to do.",
        ),
        (false, false) => MEMORY.ok(evidence),
    }
}

/// Whether the data of an epoch stays in memory.
fn page_cache(memory: Memory, data_bytes: u64) -> Finding {
    let most = memory.limit.unwrap_or(memory.available).min(memory.available);
    let (data, room) = (ByteSize(data_bytes), ByteSize(most));
    match data_bytes <= most {
        true => PAGE_CACHE.ok(format!("{data} of data fit into the {room} that the page cache may take")),
        false => PAGE_CACHE
            .info(format!("{data} of data do not fit into the {room} that the page cache may take: each epoch reads the disk"))
            .mend("That is fine with a fast disk. Else add memory or nodes, or make rows smaller at ingest."),
    }
}

/// `quota` is the number of processors that the control group may use.
fn enough_processors(processors: usize, quota: Option<f64>) -> Finding {
    let of_group = quota.map_or_else(String::new, |quota| format!("; its control group allows {quota:.1}"));
    let evidence = format!("{processors} processors{of_group}");
    match quota.is_some_and(|quota| quota < 1.0) {
        true => PROCESSORS.warning(evidence).mend(
            "Give the container or unit one processor at least (`docker run --cpus`, CPUQuota= of systemd): a node that waits \
             for its quota answers late.",
        ),
        false => PROCESSORS.ok(evidence),
    }
}

/// The directories of the control groups of this process, of memory and of processors: the innermost first.
fn control_groups() -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    group_directories(&own)
}

/// The directories to look into, by the text of /proc/self/cgroup. A limit further out holds, too.
fn group_directories(own: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let roots: &[&str] = match controllers {
            "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            "memory" => &["/sys/fs/cgroup/memory"],
            list if list.split(',').any(|name| name == "cpu") => {
                &["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        for root in roots.iter().map(Path::new) {
            found.extend(path.ancestors().map(|inner| root.join(inner)));
        }
    }
    found
}

fn read_memory(groups: &[PathBuf]) -> Option<Memory> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let of = |directory: &PathBuf, name: &str| number(&directory.join(name).display().to_string());
    let limits = groups.iter().filter_map(|directory| {
        let limit = of(directory, "memory.max").or_else(|| of(directory, "memory.limit_in_bytes"))?;
        let used = of(directory, "memory.current").or_else(|| of(directory, "memory.usage_in_bytes"));
        let files = fs::read_to_string(directory.join("memory.stat")).ok().and_then(|stat| of_files(&stat));
        Some((limit, used.map(|used| used.saturating_sub(files.unwrap_or(0)))))
    });
    let tightest = limits.filter(|(limit, _)| *limit < NO_LIMIT).min_by_key(|(limit, _)| *limit);
    Some(Memory {
        total: kib(&meminfo, "MemTotal")?,
        available: kib(&meminfo, "MemAvailable")?,
        limit: tightest.map(|(limit, _)| limit),
        used: tightest.and_then(|(_, used)| used),
    })
}

/// The bytes of pages of files, by memory.stat of either version.
fn of_files(stat: &str) -> Option<u64> {
    let field = |name: &str| {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok())
    };
    field("file").or_else(|| field("total_cache"))
}

/// The processors that the tightest control group allows.
fn read_quota(groups: &[PathBuf]) -> Option<f64> {
    let quotas = groups.iter().filter_map(|directory| {
        let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
        match read("cpu.max") {
            Some(line) => quota(&line),
            None => {
                quota(&format!("{} {}", read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim()))
            }
        }
    });
    quotas.min_by(f64::total_cmp)
}

/// The processors of a line `QUOTA PERIOD`; `None` without a limit.
fn quota(line: &str) -> Option<f64> {
    let (quota, period) = line.trim().split_once(' ')?;
    let quota: f64 = quota.parse::<f64>().ok().filter(|quota| *quota > 0.0)?;
    Some(quota / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Info, Ok, Warning};
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_that_of_the_machine_and_of_the_group() {
        let machine = Memory { total: 16 * GIB, available: 8 * GIB, limit: None, used: None };
        for (memory, severity, words) in [
            (machine, Ok, "8.0 GiB of 16.0 GiB of memory are available"),
            (Memory { limit: Some(512 << 20), ..machine }, Warning, "its control group allows 512.0 MiB"),
            (Memory { limit: Some(4 * GIB), used: Some(GIB), ..machine }, Ok, "3.0 GiB of 16.0 GiB"),
            (Memory { limit: Some(4 * GIB), used: Some(4 * GIB), ..machine }, Warning, "0 B of 16.0 GiB"),
            (Memory { available: 100 << 20, ..machine }, Warning, "100.0 MiB of"),
            (Memory { limit: Some(64 * GIB), ..machine }, Ok, "available"),
        ] {
            let found = enough_memory(memory);
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.evidence.contains(words), "{found:?}");
        }
        assert_eq!(page_cache(machine, 4 * GIB).severity, Ok);
        assert_eq!(page_cache(machine, 40 * GIB).severity, Info);
        assert_eq!(page_cache(Memory { limit: Some(GIB), ..machine }, 4 * GIB).severity, Info);
    }

    #[test]
    fn a_quota_below_one_processor_is_a_problem() {
        assert_eq!(enough_processors(8, None).severity, Ok);
        assert_eq!(enough_processors(8, quota("50000 100000")).severity, Warning);
        assert_eq!(enough_processors(8, quota("400000 100000\n")).severity, Ok);
        assert_eq!([quota("max 100000"), quota("-1 100000"), quota("")], [None; 3]);
    }

    #[test]
    fn groups_of_both_versions_are_found_out_to_the_root() {
        let second = group_directories("0::/system.slice/shardd.service\n");
        let shown: Vec<String> = second.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(shown[0], "/sys/fs/cgroup/system.slice/shardd.service");
        assert_eq!(shown[2], "/sys/fs/cgroup/");
        let first = group_directories("4:memory:/a\n3:cpu,cpuacct:/b\n2:cpuset:/c\n");
        assert!(first.contains(&PathBuf::from("/sys/fs/cgroup/memory/a")));
        assert!(first.contains(&PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/b")));
        assert!(!first.iter().any(|path| path.ends_with("c")));
        assert_eq!(of_files("anon 1\nfile 2\n"), Some(2));
        assert_eq!(of_files("cache 1\ntotal_cache 3\n"), Some(3));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let found = check(Some(1));
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
