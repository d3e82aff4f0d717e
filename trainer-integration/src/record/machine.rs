//! The machine of this process, for records.

use std::fs::File;
use std::time::{Duration, Instant};

use shardfmt::Digest;

use crate::arithmetic::probe::Probe;

/// Architecture, model where the system says it, vector instructions, and a word that is the same for processors that compute the same
/// bits.
pub(super) fn processor() -> String {
    let said = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = said.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let probe = Probe::of_this_machine();
    let bits = format!("{}, bits {}", probe.instructions, probe.word());
    match model {
        Some((_, model)) => format!("{}, {}, {bits}", std::env::consts::ARCH, model.trim()),
        None => format!("{}, {bits}", std::env::consts::ARCH),
    }
}

/// Whether two processors compute the same bits: by their words, and by all that is known of them where one has none.
pub(super) fn compute_alike(one: &str, other: &str) -> bool {
    let word = |processor: &str| processor.rsplit_once(", bits ").map(|(_, word)| word.to_owned());
    match (word(one), word(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// BLAKE3 of this program, if it can be read.
pub(super) fn program() -> Option<Digest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(std::env::current_exe().ok()?).ok()?).ok()?;
    Some(Digest(*hasher.finalize().as_bytes()))
}

/// The kernel is asked for the memory at most this often.
const ASKED_EVERY: Duration = Duration::from_millis(250);

/// The most memory of this process that was resident at any time.
#[derive(Debug, Default)]
pub(super) struct Resident {
    asked: Option<Instant>,
    bytes: u64,
}

impl Resident {
    /// In bytes, as it was a moment ago; 0 where the system does not tell it.
    pub(super) fn most(&mut self) -> u64 {
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASKED_EVERY) {
            let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            self.bytes = most_resident(&status).unwrap_or(0);
            self.asked = Some(Instant::now());
        }
        self.bytes
    }
}

/// The same in the kernel's status of a process.
fn most_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_that_of_the_kernel() {
        assert_eq!(
            most_resident("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(most_resident("Name:\tx\n"), None);
        assert_eq!(most_resident("VmHWM:\tmany kB\n"), None);
        if cfg!(target_os = "linux") {
            assert!(Resident::default().most() > 1 << 20);
        }
    }

    #[test]
    fn processors_are_compared_by_their_bits() {
        let ours = processor();
        assert!(compute_alike(&ours, &ours) && ours.contains(", bits "), "{ours}");
        assert!(compute_alike("x86_64, EPYC, avx512, bits 3fa9", "x86_64, Xeon, avx2, bits 3fa9"));
        assert!(!compute_alike("x86_64, EPYC, avx512, bits 3fa9", "x86_64, EPYC, avx512, bits 41c0"));
        assert!(!compute_alike("x86_64, EPYC", &ours), "a record of an earlier version has no word");
    }
}
