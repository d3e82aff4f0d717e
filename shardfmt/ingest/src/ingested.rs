//! A version with its provenance: the result of an ingest, and the start of each operation on a version.

use shardfmt::Provenance;
use shardfmt::digest::VersionId;
use shardfmt::manifest::Manifest;

/// A version that an ingest made, and what it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Ingested {
    /// The version.
    pub manifest: Manifest,
    /// Its inputs, and how they were read.
    pub provenance: Provenance,
}

impl Ingested {
    /// To start an operation from.
    pub fn base(&self) -> Base<'_> {
        Base { id: self.manifest.id(), manifest: &self.manifest, provenance: Some(&self.provenance) }
    }
}

/// A version that an operation starts from.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/kept.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_ingest::version::{append, appending, diff, verify};
/// use shardd_ingest::{IngestConfig, Inputs, NoProgress, Resources, Source, ingest};
///
/// # let kept = Kept::default();
/// let resources = Resources::threads(1);
/// let config = IngestConfig::default();
/// let source = Source::new(Inputs::in_memory("a.csv", "word\ncat\ndog\n"), &config)?;
/// let old = ingest(source, &config, &resources, &kept, &NoProgress)?;
/// let base = old.base();
///
/// let config = appending(base);
/// let source = Source::new(Inputs::in_memory("b.csv", "word\ncow\n"), &config)?;
/// let new = append(base, source, config, false, &resources, &kept, &NoProgress)?;
/// let changes = diff(base, new.base(), &kept, &NoProgress)?;
/// assert_eq!((changes.samples.kept, changes.samples.added), (2, 1));
/// assert!(verify(&new.manifest, &[0, 1], &kept, 1, &NoProgress)?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Base<'a> {
    /// Its name.
    pub id: VersionId,
    /// The shards it lists.
    pub manifest: &'a Manifest,
    /// What it was made of, if that is known. Appends and selections of columns look at it.
    pub provenance: Option<&'a Provenance>,
}
