//! The fuzzer: libFuzzer around one of the targets, which the environment variable `SHARDD_FUZZ_TARGET` names.

#![no_main]

mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

use targets::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("SHARDD_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    found.unwrap_or_else(|| panic!("no target {wanted:?}; there are {}", names.join(", "))).1
});

fuzz_target!(
    init: {
        // The hook that libfuzzer-sys installs ends the process at any panic. One that is caught, as ingest does around
        // other people's readers, is no finding; one that escapes still is.
        let _ = std::panic::take_hook();
        LazyLock::force(&TARGET);
    },
    |data: &[u8]| {
        TARGET(data);
    }
);
