//! Limits and abilities of the kernel and of the processor: open files, maps, huge pages, swap, shared memory, the kernel's
//! release, vectors of the processor, memory nodes.

use std::fs;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};
use shardfmt::ByteSize;

use super::finding::{Check, Finding, Group, doc};

/// Files that a node may need: 128 of its cache, a connection for each of 1,024 loaders, as many over HTTP, the store.
const FILES: u64 = 4096;
/// With fewer, a node has none left after its cache and some connections.
const FEWEST_FILES: u64 = 512;
/// The limit of the unit in the documentation.
const FILES_OF_UNIT: u64 = 65_536;
/// The bytes of a segment of a cache, which a loader maps whole.
const SEGMENT: u64 = 64 << 20;
/// Maps that a loader needs beside segments: of libraries, threads and buffers.
const OTHER_MAPS: u64 = 8192;
/// The size of /dev/shm that containers have by default. Workers of a data loader need more.
const SMALL_SHM: u64 = 64 << 20;

const OPEN_FILES: Check = Check::new(Group::Machine, "open_files", doc::START);
const MAPS: Check = Check::new(Group::Machine, "max_map_count", doc::LOADERS);
const HUGE_PAGES: Check = Check::new(Group::Machine, "huge_pages", doc::LOADERS);
const SWAP: Check = Check::new(Group::Machine, "swap", doc::LOADERS);
const SHM: Check = Check::new(Group::Machine, "shared_memory", doc::LOADERS);
const KERNEL: Check = Check::new(Group::Machine, "kernel", doc::EXCHANGE);
const MEMFD: Check = Check::new(Group::Machine, "memory_files", doc::LOADERS);
const PROCESSOR: Check = Check::new(Group::Machine, "processor", doc::TRAINER);
const NUMA: Check = Check::new(Group::Machine, "memory_nodes", doc::LOADERS);

/// All of them. A cache of `cache_bytes` is lent to loaders.
pub(crate) fn check(cache_bytes: u64) -> Vec<Finding> {
    let limit = getrlimit(Resource::Nofile);
    let mut found = vec![open_files(limit.current, limit.maximum)];
    found.extend(number("/proc/sys/vm/max_map_count").map(|most| maps(most, cache_bytes)));
    let huge_pages_setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    found.extend(huge_pages_setting.ok().map(|setting| huge_pages(&setting)));
    found.extend(fs::read_to_string("/proc/meminfo").ok().and_then(|text| swap(&text)));
    found.push(shared_memory(shm_size()));
    let name = rustix::system::uname();
    found.push(kernel(&name.release().to_string_lossy()));
    let memfd = memfd_create("shardd-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    found.push(memory_files(memfd.err().map(|error| error.to_string())));
    found.push(processor(std::env::consts::ARCH, &vectors()));
    let online = fs::read_to_string("/sys/devices/system/node/online");
    found.extend(
        online
            .ok()
            .map(|online| memory_nodes(online.trim(), number("/proc/sys/vm/zone_reclaim_mode").unwrap_or(0))),
    );
    found
}

/// Open files of a process of this shell: `None` is any number.
fn open_files(soft: Option<u64>, hard: Option<u64>) -> Finding {
    let shown = |limit: Option<u64>| limit.map_or_else(|| "any number".to_owned(), |limit| limit.to_string());
    let evidence = format!(
        "a process of this shell may have {} files open (hard limit {}); a node wants {FILES}",
        shown(soft),
        shown(hard)
    );
    let Some(soft) = soft.filter(|soft| *soft < FILES) else { return OPEN_FILES.ok(evidence) };
    let finding = match soft < FEWEST_FILES {
        true => OPEN_FILES.error(evidence),
        false => OPEN_FILES.warning(evidence),
    };
    match hard.is_none_or(|hard| hard >= FILES) {
        true => finding
            .mend("Raise the limit in the shell that starts the node; under systemd, set LimitNOFILE=65536 in its unit.")
            .run(format!("ulimit -S -n {}", hard.map_or(FILES_OF_UNIT, |hard| hard.min(FILES_OF_UNIT)))),
        false => finding.mend(
            "Raise the hard limit, too: LimitNOFILE=65536 in the unit of systemd, `nofile` in /etc/security/limits.conf, or \
             `--ulimit nofile=65536` of a container.",
        ),
    }
}

/// Maps of a process: a loader maps each segment that it reads.
fn maps(most: u64, cache_bytes: u64) -> Finding {
    let wanted = cache_bytes / SEGMENT + OTHER_MAPS;
    let evidence = format!(
        "a process may have {most} maps; a loader of a cache of {} needs up to {wanted}",
        ByteSize(cache_bytes)
    );
    match most >= wanted {
        true => MAPS.ok(evidence),
        false => MAPS
            .warning(evidence)
            .mend("Raise it; put the setting into /etc/sysctl.d to keep it.")
            .run(format!("sysctl -w vm.max_map_count={}", wanted.next_power_of_two())),
    }
}

/// The setting of transparent huge pages: the kernel marks the one that holds with brackets.
fn huge_pages(setting: &str) -> Finding {
    let holds =
        setting.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(holds, _)| holds);
    match holds {
        "never" => HUGE_PAGES
            .info("transparent huge pages are off; buffers of loaders take more of the processor's time")
            .mend("Let programs request them.")
            .run("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        holds => HUGE_PAGES.ok(format!("transparent huge pages: {holds}")),
    }
}

/// Swap space, by /proc/meminfo.
fn swap(meminfo: &str) -> Option<Finding> {
    let (size, free) = (kib(meminfo, "SwapTotal")?, kib(meminfo, "SwapFree")?);
    let memory = kib(meminfo, "MemTotal")?;
    let used = size.saturating_sub(free);
    let evidence = format!("{} of {} of swap are used", ByteSize(used), ByteSize(size));
    // A machine that lacks a tenth of its memory reads from swap in place of files.
    Some(match used > memory / 10 {
        true => SWAP
            .warning(evidence)
            .mend("Look for the process that takes the memory (`ps aux --sort=-rss | head`), and give this machine less to do."),
        false => SWAP.ok(evidence),
    })
}

/// The size of /dev/shm; `None` where there is none.
fn shared_memory(size: Option<u64>) -> Finding {
    match size {
        Some(size) if size > SMALL_SHM => SHM.ok(format!("/dev/shm has {}", ByteSize(size))),
        Some(size) => SHM
            .warning(format!(
                "/dev/shm has {}; processes of a data loader exchange batches there, and end with SIGBUS when it is full",
                ByteSize(size)
            ))
            .mend("Make it larger. Of a container: `docker run --shm-size=2g`, or a memory-backed volume at /dev/shm.")
            .run("mount -o remount,size=2G /dev/shm"),
        None => SHM
            .warning("there is no /dev/shm; processes of a data loader exchange batches there")
            .mend("Mount one.")
            .run("mkdir -p /dev/shm && mount -t tmpfs -o size=2G shm /dev/shm"),
    }
}

fn shm_size() -> Option<u64> {
    let found = statvfs("/dev/shm").ok().filter(|_| Path::new("/dev/shm").is_dir())?;
    Some(found.f_blocks.saturating_mul(found.f_frsize))
}

/// The release of the kernel, such as `6.8.0-40-generic`. shardd uses no io_uring.
fn kernel(release: &str) -> Finding {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let version = parts.next().flatten().zip(parts.next().flatten());
    match version {
        None => KERNEL.info(format!("Linux {release}: an unknown kind of release")),
        // memfd_create.
        Some(version) if version < (3, 17) => KERNEL
            .error(format!("Linux {release} has no memory files, which nodes lend to loaders"))
            .mend("Use Linux 4.18 or later."),
        // UDP_SEGMENT.
        Some(version) if version < (4, 18) => KERNEL
            .warning(format!("Linux {release} cannot split UDP datagrams itself; the exchange takes more of the processor's time"))
            .mend("Use Linux 4.18 or later, best 5.0."),
        Some(_) => KERNEL.ok(format!("Linux {release}")),
    }
}

/// The error of an attempt to make a file in memory.
fn memory_files(error: Option<String>) -> Finding {
    match error {
        None => MEMFD.ok("memfd_create works"),
        Some(error) => MEMFD
            .warning(format!(
                "memfd_create fails: {error}; nodes cannot lend rings to loaders, and loaders share no memory"
            ))
            .mend("Let the sandbox of this process call memfd_create, or start nodes with `--share none`."),
    }
}

/// Vectors that the processor has.
fn processor(architecture: &str, vectors: &[&str]) -> Finding {
    let evidence = format!("{architecture} with {}", vectors.join(", "));
    match architecture {
        "x86_64" if !vectors.contains(&"avx2") || !vectors.contains(&"fma") => PROCESSOR
            .warning(format!("{evidence}: without AVX2 and FMA, trainers are slower, and their weights may differ"))
            .mend("Train on processors with AVX2 and FMA only; a virtual machine may hide them (`-cpu host` of QEMU)."),
        "x86_64" => PROCESSOR.ok(evidence),
        _ => PROCESSOR.info(format!("{architecture}: trainings give the same weights on x86_64 with AVX2 alone")),
    }
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> Vec<&'static str> {
    [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ]
    .into_iter()
    .filter_map(|(name, is_there)| is_there.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> Vec<&'static str> {
    Vec::new()
}

/// The memory nodes, as `0-1`, and the kernel's setting about memory of others.
fn memory_nodes(online: &str, zone_reclaim_mode: u64) -> Finding {
    let evidence = format!("memory nodes {online}");
    match zone_reclaim_mode {
        0 => NUMA.ok(evidence),
        mode => NUMA
            .warning(format!(
                "{evidence}, with vm.zone_reclaim_mode={mode}: pages of files are dropped while other nodes have free memory"
            ))
            .mend("Turn it off, so that the page cache may use all memory.")
            .run("sysctl -w vm.zone_reclaim_mode=0"),
    }
}

/// A field of /proc/meminfo, in bytes.
pub(super) fn kib(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The number in a file of the kernel.
pub(super) fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Info, Ok, Warning};
    use super::*;

    #[test]
    fn few_open_files_are_raised_as_high_as_the_hard_limit_allows() {
        for (soft, hard, severity, command) in [
            (Some(1 << 20), Some(1 << 20), Ok, None),
            (None, None, Ok, None),
            (Some(4096), Some(4096), Ok, None),
            (Some(1024), Some(524_288), Warning, Some("ulimit -S -n 65536")),
            (Some(256), Some(8192), Error, Some("ulimit -S -n 8192")),
            (Some(256), None, Error, Some("ulimit -S -n 65536")),
            (Some(1024), Some(1024), Warning, None),
        ] {
            let found = open_files(soft, hard);
            assert_eq!((found.severity, found.command.as_deref()), (severity, command), "{found:?}");
            assert_eq!(found.remedy.is_some(), severity != Ok);
        }
    }

    #[test]
    fn a_large_cache_needs_more_maps() {
        assert_eq!(maps(65_530, 64 << 30).severity, Ok);
        let found = maps(65_530, 8 << 40);
        assert_eq!(found.severity, Warning);
        assert_eq!(found.command.as_deref(), Some("sysctl -w vm.max_map_count=262144"));
        assert_eq!(maps(262_144, 8 << 40).severity, Ok, "the remedy is enough");
    }

    #[test]
    fn huge_pages_are_worth_a_word_when_they_are_off() {
        assert_eq!(huge_pages("always [madvise] never\n").severity, Ok);
        assert_eq!(huge_pages("[always] madvise never\n").evidence, "transparent huge pages: always");
        assert_eq!(huge_pages("always madvise [never]\n").severity, Info);
    }

    #[test]
    fn swap_is_a_problem_when_much_of_it_is_used() {
        let of = |used: u64| {
            let (size, free) = (8 << 20, (8 << 20) - used);
            swap(&format!("MemTotal: 16777216 kB\nSwapTotal:  {size} kB\nSwapFree: {free} kB\n"))
        };
        assert_eq!(of(0).map(|found| found.severity), Some(Ok));
        assert_eq!(of(4 << 20).map(|found| found.severity), Some(Warning));
        assert_eq!(swap("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn the_shared_memory_of_a_container_is_small() {
        assert_eq!(shared_memory(Some(16 << 30)).severity, Ok);
        assert_eq!(shared_memory(Some(64 << 20)).severity, Warning);
        assert_eq!(shared_memory(None).severity, Warning);
    }

    #[test]
    fn kernels_are_judged_by_the_calls_that_they_have() {
        for (release, severity) in [
            ("6.8.0-40-generic", Ok),
            ("4.18.0-553.el8.x86_64", Ok),
            ("4.4.302", Warning),
            ("3.10.0-1160.el7", Error),
            ("next", Info),
        ] {
            assert_eq!(kernel(release).severity, severity, "{release}");
        }
        assert_eq!(memory_files(None).severity, Ok);
        assert_eq!(memory_files(Some("denied".to_owned())).severity, Warning);
    }

    #[test]
    fn a_processor_without_wide_vectors_trains_otherwise() {
        assert_eq!(processor("x86_64", &["avx2", "fma"]).severity, Ok);
        assert_eq!(processor("x86_64", &["avx2"]).severity, Warning);
        assert_eq!(processor("aarch64", &[]).severity, Info);
        assert_eq!(memory_nodes("0-1", 0).severity, Ok);
        assert_eq!(memory_nodes("0-1", 1).severity, Warning);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let found = check(64 << 30);
        assert!(found.iter().any(|finding| finding.check == "open_files"), "{found:?}");
    }
}
