//! The machine of this process, for records.

use std::fs::File;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_compared_by_their_bits() {
        let ours = processor();
        assert!(compute_alike(&ours, &ours) && ours.contains(", bits "), "{ours}");
        assert!(compute_alike("x86_64, EPYC, avx512, bits 3fa9", "x86_64, Xeon, avx2, bits 3fa9"));
        assert!(!compute_alike("x86_64, EPYC, avx512, bits 3fa9", "x86_64, EPYC, avx512, bits 41c0"));
        assert!(!compute_alike("x86_64, EPYC", &ours), "a record of an earlier version has no word");
    }
}
