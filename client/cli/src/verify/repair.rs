//! The places that a repair reads, in order: near ones first, slow ones last.

use shardd_ingest::version::{Finding, Lost, Mended, Repair, Store, made_of, settings};
use shardd_ingest::{IngestConfig, Links, Resources, Source, ingest};
use shardd_store::catalog::{Catalog, CatalogStore};
use shardfmt::{Manifest, VersionId};

use super::places::{Place, kept_versions};
use crate::failure::Failure;
use crate::output;
use crate::work::WorkProgress;

/// Mends the damaged shards, where it can. A place that fails is named, and the next one asked.
pub(super) fn repair(
    catalog: &dyn Catalog,
    version: VersionId,
    manifest: &Manifest,
    findings: &[Finding],
    from: &[Place],
    threads: usize,
    json: bool,
) -> Result<(Vec<Mended>, Vec<Lost>), Failure> {
    let shelf = CatalogStore(catalog);
    let repair = Repair::new(manifest, findings, &shelf, &shelf)?;
    let search = Search { repair: &repair, catalog, version, manifest, threads, json };
    // Copies cost least, rows among those of other versions more, a source most.
    search.own_versions()?;
    for step in [Step::Copies, Step::Versions, Step::Source] {
        for place in from.iter().filter(|_| !repair.is_done()) {
            let looked = match step {
                Step::Copies => search.copies(place),
                Step::Versions => search.versions(place),
                Step::Source => search.source(place),
            };
            if let Err(failure) = looked {
                output::note(json, &format!("{place} is of no help: {failure}"));
            }
        }
    }
    Ok(repair.finish())
}

enum Step {
    Copies,
    Versions,
    Source,
}

struct Search<'a> {
    repair: &'a Repair<'a>,
    catalog: &'a dyn Catalog,
    version: VersionId,
    manifest: &'a Manifest,
    threads: usize,
    json: bool,
}

impl Search<'_> {
    /// The versions of this store.
    fn own_versions(&self) -> Result<(), Failure> {
        for version in kept_versions(self.catalog)? {
            if self.repair.is_done() {
                break;
            }
            if let Ok(other) = self.catalog.manifest(version) {
                self.version(&other, &CatalogStore(self.catalog), &format!("version {}", version.short()))?;
            }
        }
        Ok(())
    }

    fn copies(&self, place: &Place) -> Result<(), Failure> {
        match place.store() {
            Some(store) => Ok(self.repair.search_store(&*store, &place.to_string())?),
            None => Ok(()),
        }
    }

    fn versions(&self, place: &Place) -> Result<(), Failure> {
        let Some(store) = place.store() else { return Ok(()) };
        place.versions()?.iter().try_for_each(|other| self.version(other, &*store, &place.to_string()))
    }

    fn source(&self, place: &Place) -> Result<(), Failure> {
        let Place::Source(given) = place else { return Ok(()) };
        for config in self.all_settings() {
            if self.repair.is_done() {
                break;
            }
            // Digests check all reads: where it lies does not matter.
            let files =
                shardd_inputs::open(std::slice::from_ref(given), config.under.as_deref(), Links::Followed)?;
            let source = Source::new(files, &config)?;
            let progress = WorkProgress::new(self.json, "reading", source.sample_count().unwrap_or(0));
            let resources = Resources::threads(self.threads);
            let read = self.repair.search_source(&place.to_string(), |sink| {
                ingest(source, &config, &resources, sink, &progress)
            });
            progress.finish();
            read??;
        }
        Ok(())
    }

    fn version(&self, other: &Manifest, store: &dyn Store, name: &str) -> Result<(), Failure> {
        let progress = WorkProgress::new(self.json, "searching", other.sample_count());
        let searched = self.repair.search_version(other, store, name, &progress);
        progress.finish();
        Ok(searched?)
    }

    /// All settings that samples of the version were ingested with, the last first.
    fn all_settings(&self) -> Vec<IngestConfig> {
        let of = |version, manifest: &Manifest| {
            let provenance = self.catalog.provenance(version).ok().flatten();
            settings(manifest, provenance.as_ref())
        };
        let mut all: Vec<IngestConfig> = of(self.version, self.manifest).into_iter().collect();
        let mut next = made_of(self.manifest);
        while let Some((version, base)) =
            next.and_then(|version| Some((version, self.catalog.manifest(version).ok()?)))
        {
            all.extend(of(version, &base).filter(|settings| !all.contains(settings)));
            next = made_of(&base);
        }
        all
    }
}
