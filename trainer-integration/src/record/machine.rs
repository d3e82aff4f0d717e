//! What this process runs on, for records: the same bits need the same program on the same kind of processor.

use std::fs::File;

use shardfmt::Digest;

/// Architecture and, where the system says it, model of the processor.
pub(super) fn processor() -> String {
    let said = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = said.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    match model {
        Some((_, model)) => format!("{}, {}", std::env::consts::ARCH, model.trim()),
        None => std::env::consts::ARCH.to_owned(),
    }
}

/// BLAKE3 of this program, if it can be read.
pub(super) fn program() -> Option<Digest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(std::env::current_exe().ok()?).ok()?).ok()?;
    Some(Digest(*hasher.finalize().as_bytes()))
}
