//! The fuzzed functions: those that take any bytes at all. They must not panic, hang or take memory without
//! end, and they state what holds for bytes that are accepted. Knows nothing of the fuzzer, so that tests can
//! run them, too.
//!
//! A new target is a function, a line in [`TARGETS`], and seeds in `corpus/NAME`.

mod columns;
mod commit;
mod draw;
mod grain;
mod ingest;
mod manifest;
mod plan;
mod row;
mod shard;
mod sidecar;
mod sounds;
mod strata;
mod template;
mod text;
mod tokenizer;
mod transforms;
mod tree;
mod views;

pub(crate) use draw::Draw;

/// Takes any bytes; says whether they were accepted, that is, went all the way.
pub(crate) type Target = fn(&[u8]) -> bool;

/// Every target under its name.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("archive", ingest::archive),
    ("chain", transforms::chain),
    ("columns", columns::columns),
    ("commit", commit::commit),
    ("csv", ingest::csv),
    ("decoded", transforms::decoded),
    ("filter", views::filter),
    ("flac", sounds::flac),
    ("grain", grain::grain),
    ("image", ingest::image),
    ("ipc", ingest::ipc),
    ("jsonl", ingest::jsonl),
    ("libsvm", ingest::libsvm),
    ("litdata", ingest::litdata),
    ("manifest", manifest::manifest),
    ("mds", ingest::mds),
    ("mp3", sounds::mp3),
    ("numpy", ingest::numpy),
    ("ogg", sounds::ogg),
    ("plan", plan::plan),
    ("row", row::row),
    ("rule", views::rule),
    ("shard", shard::shard),
    ("sidecar", sidecar::sidecar),
    ("sound_chain", sounds::sound_chain),
    ("strata", strata::strata),
    ("template", template::template),
    ("text", text::text),
    ("tfrecord", ingest::tfrecord),
    ("tokenizer", tokenizer::tokenizer),
    ("tokens", ingest::tokens),
    ("tree", tree::tree),
    ("wav", sounds::wav),
    ("webdataset", ingest::webdataset),
];
