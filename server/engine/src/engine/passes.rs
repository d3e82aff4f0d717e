//! The names under which loaders of this machine ask for segments. Only a client that located a grain has
//! one: a client with that right over HTTP may read the segment, and the name of another file cannot be
//! guessed.

use std::fs::File;
use std::io;
use std::path::Path;

use super::Engine;

/// Gives passes and knows them again. One that another key made is none.
#[derive(Clone)]
pub struct Passes {
    key: [u8; 32],
}

/// Why a segment is not opened.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// It was not this node that gave it, or not since it started: ask over HTTP where the grain is.
    #[error("this node has given no such pass since it started")]
    Unknown,
    /// The segment has been dropped: ask over HTTP where the grain is.
    #[error("the segment is gone")]
    Gone,
    /// The disk.
    #[error("the segment cannot be opened")]
    Io(#[from] io::Error),
}

impl Passes {
    /// Of a secret key.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// The pass of a segment of the cache: its name, and what only this key makes of it.
    fn give(&self, segment: &Path) -> String {
        let name = segment.file_name().unwrap_or_default().to_string_lossy();
        format!("{name}:{}", self.seal(&name).to_hex())
    }

    /// The name of the segment that a pass was given for.
    fn name<'a>(&self, pass: &'a str) -> Option<&'a str> {
        let (name, shown) = pass.split_once(':')?;
        // Hashes are compared in constant time.
        (blake3::Hash::from_hex(shown).ok()? == self.seal(name)).then_some(name)
    }

    fn seal(&self, name: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.key, name.as_bytes())
    }
}

impl Engine {
    /// From now on loaders that can take segments get passes for them. Once only: later calls change nothing.
    pub fn lend(&self, passes: Passes) {
        let _ = self.passes.set(passes);
    }

    /// The pass of a segment, if this node lends any.
    pub(super) fn pass(&self, segment: &Path) -> Option<String> {
        self.passes.get().map(|passes| passes.give(segment))
    }

    /// Opens the segment that a pass was given for, to be read and nothing else. Blocks.
    ///
    /// # Errors
    /// A pass that is none, a segment that has been dropped, and what the disk says.
    pub fn open_segment(&self, pass: &str) -> Result<File, PassError> {
        let name = self.passes.get().and_then(|passes| passes.name(pass)).ok_or(PassError::Unknown)?;
        File::open(self.cache.segment_path(name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PassError::Gone,
            _ => error.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pass_is_good_for_its_segment_where_it_was_given() {
        let (ours, theirs) = (Passes::new([1; 32]), Passes::new([2; 32]));
        let pass = ours.give(Path::new("/data/cache/00000001-00000002.seg"));
        assert_eq!(ours.name(&pass), Some("00000001-00000002.seg"));
        assert_eq!(theirs.name(&pass), None);
        assert_eq!(ours.name(&pass.replace("2.seg", "3.seg")), None);
    }

    proptest! {
        #[test]
        fn what_nobody_gave_is_no_pass(
            name in "[ -~]{0,40}", shown in "[0-9a-f]{64}", at in any::<prop::sample::Index>(), byte in 0u8..128,
        ) {
            let passes = Passes::new([1; 32]);
            prop_assert_eq!(passes.name(&name), None);
            let invented = format!("{name}:{shown}");
            prop_assert_eq!(passes.name(&invented), None);
            let given = passes.give(Path::new("00000001-00000002.seg"));
            let mut changed = given.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = byte;
            let changed = String::from_utf8(changed).expect("ASCII");
            // A digit of the seal may be written in capitals: that is the same seal.
            prop_assert!(changed.eq_ignore_ascii_case(&given) || passes.name(&changed).is_none());
        }
    }
}
