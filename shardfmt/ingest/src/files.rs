//! One digest over many files. Files of a directory of images are read by the thousand, on all threads;
//! between one piece of the input and the next ingest keeps 32 bytes of them.

use serde::{Deserialize, Serialize};
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

/// Many files in input order: how many, their bytes, and a digest that is a chain over the name and digest of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileChain {
    count: u64,
    bytes: u64,
    digest: Digest,
}

impl FileChain {
    pub(super) fn new() -> FileChain {
        FileChain { count: 0, bytes: 0, digest: Digest([0; 32]) }
    }

    /// Takes in the next file.
    pub(super) fn add(&mut self, file: &InputDigest) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(file.bytes);
        let mut hasher = blake3::Hasher::new_derive_key("shardfmt 2026 files v1");
        hasher.update(&self.digest.0).update(&file.digest.0).update(file.name.as_bytes());
        self.digest = Digest(hasher.finalize().into());
    }

    /// Their record in a version: one input, named for the folder they lie in. `None` if there were none.
    pub(super) fn finish(self, folder: &str) -> Option<InputDigest> {
        let name = format!("{folder}/ ({} files)", self.count);
        (self.count > 0).then_some(InputDigest { name, bytes: self.bytes, digest: self.digest })
    }
}
