//! Manifests, as they are.

use shardfmt::Manifest;

/// What is accepted as a manifest is one: written and read again, it is the same.
pub(crate) fn manifest(data: &[u8]) -> bool {
    let Ok(manifest) = Manifest::decode(data) else { return false };
    let again = Manifest::decode(&manifest.encode()).expect("what was written is read");
    assert_eq!(again, manifest);
    assert_eq!(again.id(), manifest.id());
    let _ = (manifest.sample_count(), manifest.bytes(), manifest.row_bytes(), manifest.digest_sum());
    let _ = (manifest.labels(), manifest.label_column(), manifest.class_names());
    true
}
