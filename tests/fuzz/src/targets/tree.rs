//! The tree beside a long manifest, by which parts of it are verified.

use std::sync::LazyLock;

use shardfmt::{Manifest, ManifestFile, VersionId};

use super::manifest::{InMemory, look_through};

const FILE: &[u8] = include_bytes!("../../../../shardfmt/testdata/golden.indexed.arrow");

static TRUTH: LazyLock<(VersionId, Manifest)> =
    LazyLock::new(|| (VersionId::of(FILE), Manifest::decode(FILE).expect("a golden file")));

/// With any tree, the manifest that is read is the one that was asked for.
pub(crate) fn tree(data: &[u8]) -> bool {
    let (id, truth) = &*TRUTH;
    let file = ManifestFile::open(*id, InMemory { file: FILE.to_vec(), tree: data.to_vec() });
    let file = file.expect("its bytes are those of the version");
    let last = truth.shards.len() as u64 - 1;
    assert_eq!(file.entry(last).expect("it is there"), truth.shards[last as usize]);
    let by_range = file.bytes_read() < FILE.len() as u64;
    look_through(&file);
    by_range
}
