//! Manifests, as they are.

use std::io;
use std::ops::Range;

use shardfmt::manifest::ManifestBytes;
use shardfmt::{Manifest, ManifestFile, VersionId};

/// Bytes accepted as a manifest are one: once written, it is read and written as the same, and by range it
/// says the same.
pub(crate) fn manifest(data: &[u8]) -> bool {
    let file = ManifestFile::open(VersionId::of(data), InMemory { file: data.to_vec(), tree: Vec::new() });
    if let Ok(file) = &file {
        look_through(file);
    }
    let Ok(manifest) = Manifest::decode(data) else { return false };
    let written = manifest.encode();
    let again = Manifest::decode(&written).expect("the written bytes are read");
    assert_eq!(again.encode(), written);
    assert_eq!((again.sample_count(), again.schema), (manifest.sample_count(), manifest.schema.clone()));

    let file = file.expect("a manifest can be opened");
    assert_eq!(file.manifest().expect("it was decoded"), manifest);
    assert_eq!(file.totals().samples, manifest.sample_count());
    assert_eq!(file.labels().expect("it was decoded"), manifest.labels());
    assert_eq!(file.class_names(), manifest.class_names());
    let rows: Vec<u32> = manifest.shards.iter().map(|shard| shard.rows).collect();
    assert_eq!(file.shard_rows().expect("it was decoded"), rows);
    let _ = (manifest.bytes(), manifest.row_bytes(), manifest.digest_sum(), manifest.label_column());
    true
}

/// Asks everything that there is to ask; answers may be errors.
pub(crate) fn look_through(file: &ManifestFile) {
    let totals = file.totals();
    let (shards, samples) = (totals.shards, totals.samples);
    for index in [0, shards / 2, shards.saturating_sub(1), shards] {
        let _ = (file.entry(index), file.entries(index..shards));
    }
    for sample in [0, samples / 2, samples.saturating_sub(1), samples] {
        if let Ok(Some((shard, row))) = file.find_sample(sample) {
            let entry = file.entry(shard).expect("a sample is in a shard that there is");
            assert!(row < entry.rows);
        }
    }
    let _ = (file.labels(), file.shard_rows(), file.manifest());
}

/// A manifest in a foreign store.
pub(crate) struct InMemory {
    pub(crate) file: Vec<u8>,
    pub(crate) tree: Vec<u8>,
}

impl ManifestBytes for InMemory {
    fn whole(&self) -> io::Result<Vec<u8>> {
        Ok(self.file.clone())
    }

    fn part(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        Ok(part(&self.file, range))
    }

    fn tree(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        Ok(part(&self.tree, range))
    }
}

fn part(bytes: &[u8], range: Range<u64>) -> Vec<u8> {
    let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes[place(range.start)..place(range.end).max(place(range.start))].to_vec()
}
