//! `shardctl verify`: reads the shards of a version, or some of them, checks them against the manifest, row
//! by row, and repairs damage from any place that still has the samples.

mod places;
mod repair;

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use clap::Args;
use serde_json::json;
use shardd_ingest::version::{Confidence, Finding, Lost, Mended, sample, verify};
use shardd_store::catalog::{Catalog, CatalogError, CatalogStore, DatasetInfo};
use shardd_store::connect::{Connect, only_dataset};
use shardd_store::origin::OriginError;
use shardfmt::{ByteSize, DatasetRef, Manifest};

use self::places::Place;
use crate::failure::Failure;
use crate::human::{count, percent, plural};
use crate::ingest::processors;
use crate::output;
use crate::work::WorkProgress;

/// Read the shards of a version and check them against the manifest; with --repair, mend the damaged ones
#[derive(Args)]
pub(crate) struct Verify {
    /// The version: NAME, NAME@TAG, NAME@ID or NAME@~1; may be left out if there is only one dataset
    dataset: Option<DatasetRef>,

    /// Check this many shards, chosen at random
    #[arg(long, value_name = "N")]
    sample: Option<NonZeroUsize>,

    /// Seed of the choice of shards; the same seed checks the same ones [default: random]
    #[arg(long, requires = "sample")]
    seed: Option<u64>,

    /// Mend damaged shards: from their undamaged rest, from other versions, and from the places of --from
    #[arg(long)]
    repair: bool,

    /// Source of copies of damaged shards: another store or its directory, the address of a node, or the
    /// source of the dataset. You can repeat it
    #[arg(long, value_name = "PLACE", requires = "repair")]
    from: Vec<String>,

    /// Threads to work with [default: one per processor]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

impl Verify {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let dataset = only_dataset(&*catalog, self.dataset.as_ref(), "verify")?;
        let threads = self.threads.map_or_else(processors, usize::from);
        let from = self.from.iter().map(|place| Place::parse(place, connect));
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let manifest = manifest(&*catalog, &dataset, self.repair, &from, json)?;

        let shards = manifest.shards.len();
        let seed = self.seed.unwrap_or_else(shardd_api::duration::now);
        let chosen = match self.sample {
            None => (0..shards).collect(),
            Some(count) => sample(shards, count.get(), seed),
        };
        let samples = chosen.iter().map(|place| u64::from(manifest.shards[*place].rows)).sum();
        let progress = WorkProgress::new(json, "verifying", samples);
        let findings = verify(&manifest, &chosen, &CatalogStore(&*catalog), threads, &progress)?;
        progress.finish();
        let (mended, lost) = match self.repair && !findings.is_empty() {
            true => repair::repair(&*catalog, dataset.version, &manifest, &findings, &from, threads, json)?,
            false => (Vec::new(), Vec::new()),
        };

        let report = Report {
            dataset: &dataset,
            manifest: &manifest,
            checked: chosen.len(),
            samples,
            seed: self.sample.map(|_| seed),
            findings: &findings,
            repaired: self.repair,
            mended: &mended,
            lost: &lost,
        };
        if json {
            report.json();
        } else {
            report.print();
        }
        report.outcome()
    }
}

/// The manifest of the version; when it is damaged itself and shall be mended, from another place.
fn manifest(
    catalog: &dyn Catalog,
    dataset: &DatasetInfo,
    repair: bool,
    from: &[Place],
    json: bool,
) -> Result<Manifest, Failure> {
    let error = match catalog.manifest(dataset.version) {
        Ok(manifest) => return Ok(manifest),
        Err(error) => error,
    };
    let is_damaged = matches!(
        error,
        CatalogError::NotFound { .. }
            | CatalogError::Corrupt { .. }
            | CatalogError::Origin(OriginError::NotFound { .. } | OriginError::Corrupt { .. })
    );
    if !is_damaged || !repair {
        return Err(error.into());
    }
    for place in from {
        if let Some(manifest) = place.manifest(dataset.version)? {
            if catalog.put_manifest(&manifest)? != dataset.version {
                let (version, key) = (dataset.version.short(), dataset.version.object_key());
                return Err(Failure::failed(format!(
                    "the manifest of version {version} in {place} is intact, but was written by another release, which wrote it otherwise: copy {key} from there as it is"
                )));
            }
            if !json {
                let version = dataset.version.short();
                output::print(&format!(
                    "the manifest of version {version} was damaged; it was mended from {place}\n"
                ));
            }
            return Ok(manifest);
        }
    }
    Err(Failure::failed(format!(
        "{}; give another store or a node that has version {} with --from",
        crate::failure::one_line(&error),
        dataset.version
    )))
}

struct Report<'a> {
    dataset: &'a DatasetInfo,
    manifest: &'a Manifest,
    checked: usize,
    samples: u64,
    /// Of the sample, if it was one.
    seed: Option<u64>,
    findings: &'a [Finding],
    repaired: bool,
    mended: &'a [Mended],
    lost: &'a [Lost],
}

impl Report<'_> {
    fn json(&self) {
        let shards = self.manifest.shards.len();
        let confidence = self.seed.map(|seed| {
            let confidence = Confidence::of(self.checked, shards);
            json!({
                "seed": seed,
                "chance_to_miss_1_percent": confidence.chance_missed(one_percent(shards)),
                "found_with_95_percent": confidence.would_have_found(0.95),
            })
        });
        output::json(&json!({
            "event": "done",
            "dataset": self.dataset.name,
            "version": self.dataset.version,
            "shards": shards,
            "checked": self.checked,
            "samples": self.samples,
            "sample": confidence,
            "damaged": self.findings,
            "mended": self.mended,
            "lost": self.lost,
        }));
    }

    fn print(&self) {
        let mut page = String::new();
        for Finding { shard, file, damage } in self.findings {
            page.push_str(&format!("shard {shard}: its {file} {damage}\n"));
        }
        for Mended { shard, from } in self.mended {
            page.push_str(&format!("shard {shard}: mended from {from}\n"));
        }
        for Lost { shard, reason } in self.lost {
            page.push_str(&format!("shard {shard}: not mended: {reason}\n"));
        }
        let (name, shards) = (&self.dataset.name, self.manifest.shards.len());
        match self.findings.is_empty() {
            true if self.seed.is_none() => page.push_str(&format!(
                "{name}: {} in {} ({}) are as the manifest says, row by row\n",
                plural(self.samples, "sample"),
                plural(shards as u64, "shard"),
                ByteSize(self.manifest.bytes())
            )),
            true => page.push_str(&format!(
                "{name}: {} in {} of {} are as the manifest says, row by row\n",
                plural(self.samples, "sample"),
                count(self.checked as u64),
                plural(shards as u64, "shard"),
            )),
            false => {}
        }
        if let Some(seed) = self.seed {
            page.push_str(&self.confidence(seed));
        }
        output::print(&page);
    }

    /// The conclusion from a sample about the unchecked shards.
    fn confidence(&self, seed: u64) -> String {
        let shards = self.manifest.shards.len();
        let confidence = Confidence::of(self.checked, shards);
        let (few, enough) = (one_percent(shards), confidence.would_have_found(0.95));
        format!(
            "if {} of {} were damaged, the chance to have looked at none of them was {}; {} or more ({}) would have been \
             noticed with a chance of 95 %; --seed {seed} looks at the same again\n",
            count(few),
            plural(shards as u64, "shard"),
            percent(confidence.chance_missed(few)),
            count(enough),
            percent(enough as f64 / shards.max(1) as f64),
        )
    }

    fn outcome(&self) -> Result<(), Failure> {
        let damaged = self.findings.iter().map(|finding| finding.shard).collect::<BTreeSet<_>>().len();
        let of = format!("{} of {}", plural(self.checked as u64, "shard"), self.dataset.name);
        match (damaged, self.repaired, self.lost.len()) {
            (0, ..) | (_, true, 0) => Ok(()),
            (damaged, false, _) => Err(Failure::failed(format!(
                "{damaged} of {of} damaged: `shardctl verify {} --repair` mends what can be mended",
                self.dataset.name
            ))),
            (damaged, true, lost) => Err(Failure::failed(format!(
                "{damaged} of {of} damaged, and {lost} of them could not be mended: give places to look at with --from"
            ))),
        }
    }
}

/// A hundredth of the shards, one at least.
fn one_percent(shards: usize) -> u64 {
    (shards as u64).div_ceil(100)
}
