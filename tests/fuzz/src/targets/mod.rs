//! The fuzzed functions: those that take any bytes at all. They must not panic, hang or take memory without
//! end, and they state what holds for bytes that are accepted. Knows nothing of the fuzzer, so that tests can
//! run them, too.
//!
//! A new target is a function, a line in [`TARGETS`], and seeds in `corpus/NAME`.

mod commit;
mod draw;
mod grain;
mod ingest;
mod manifest;
mod plan;
mod row;
mod shard;
mod sidecar;
mod strata;
mod text;
mod transforms;
mod tree;

pub(crate) use draw::Draw;

/// Takes any bytes; says whether they were accepted, that is, went all the way.
pub(crate) type Target = fn(&[u8]) -> bool;

/// Every target under its name.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("archive", ingest::archive),
    ("chain", transforms::chain),
    ("commit", commit::commit),
    ("csv", ingest::csv),
    ("decoded", transforms::decoded),
    ("grain", grain::grain),
    ("image", ingest::image),
    ("ipc", ingest::ipc),
    ("jsonl", ingest::jsonl),
    ("libsvm", ingest::libsvm),
    ("manifest", manifest::manifest),
    ("mds", ingest::mds),
    ("numpy", ingest::numpy),
    ("plan", plan::plan),
    ("row", row::row),
    ("shard", shard::shard),
    ("sidecar", sidecar::sidecar),
    ("strata", strata::strata),
    ("text", text::text),
    ("tokens", ingest::tokens),
    ("tree", tree::tree),
    ("webdataset", ingest::webdataset),
];
