//! How much memory there is for pages of files.

use std::fs;

/// Bytes that the kernel can still give, by what it says of the machine and of this process's control group.
pub(super) fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        limit(&fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.max")).ok()?)
    });
    [machine, group].into_iter().flatten().min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// `max` is no limit.
fn limit(memory_max: &str) -> Option<u64> {
    memory_max.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(of_machine("MemTotal:  9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!((limit("1048576\n"), limit("max\n")), (Some(1 << 20), None));
        assert!(available().is_some());
    }
}
