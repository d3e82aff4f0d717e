//! `shardctl runs summary`: the content that a model was trained on, from records, manifests and declared facts.
//!
//! The samples that a training read and the media of a version are [`shardd_store::training_data`]'s.
//!
//! - `about.rs`: facts that a person declares.
//! - `text.rs`, `template.rs`, `croissant.rs`: the summary as a page, as the template of the European Commission, and as metadata
//!   of a dataset. Pure.

mod about;
mod croissant;
mod template;
mod text;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use shardd_api::lookup::check_table;
use shardd_client::audit::row_digests;
use shardd_plan::{Epoch, Plan, SlotTable};
use shardd_store::catalog::Catalog;
use shardd_store::connect::{Connect, find_plan};
use shardd_store::training_data::{EpochRead, Training, Version, base};
use shardfmt::audit::root;
use shardfmt::{ManifestFile, PlanId, VersionId};

use self::about::About;
use super::records::Place;
use crate::failure::Failure;
use crate::head;
use crate::output;

/// Arguments of `runs summary`.
#[derive(Args)]
pub(super) struct Summary {
    /// Records of the trainings of a model, the first training first: each its id or the beginning of it, or
    /// the name of a run that has only one
    #[arg(value_name = "RECORD", required_unless_present = "plan")]
    records: Vec<String>,

    /// The plan that a training without a record read, such as one in PyTorch: its id or the beginning of it
    #[arg(long, value_name = "PLAN", requires = "epochs", conflicts_with = "records")]
    plan: Option<String>,

    /// Whole epochs that this training read
    #[arg(long, value_name = "COUNT", requires = "plan")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    epochs: Option<u32>,

    /// File with the facts that only you know, such as sources, licences and the provider
    #[arg(long, value_name = "FILE")]
    about: Option<PathBuf>,

    /// Write a file for --about, to fill in; it must not exist
    #[arg(long, value_name = "FILE", conflicts_with_all = ["about", "format", "roots"])]
    write_about: Option<PathBuf>,

    /// Form of the summary
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Add the root of each epoch, which commits to all its samples and their positions; it reads the digests
    /// of all samples
    #[arg(long)]
    roots: bool,

    /// Dataset for --format croissant, if the model was trained on several
    #[arg(long, value_name = "NAME[@VERSION]")]
    dataset: Option<String>,
}

/// The form of a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A page for a terminal.
    Text,
    /// The public summary of training content that the AI Act asks for, Article 53(1)(d), as Markdown.
    EuTemplate,
    /// Croissant metadata of a dataset, as JSON-LD.
    Croissant,
}

/// All that is known about the content.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Facts {
    trainings: Vec<Training>,
    versions: Vec<Version>,
    about: About,
}

impl Summary {
    pub(super) fn run(
        &self,
        connect: &Connect,
        place: impl FnOnce() -> Result<Place, Failure>,
        json: bool,
    ) -> Result<(), Failure> {
        // Clap does not see it beside records.
        if self.epochs.is_some() && self.plan.is_none() {
            return Err(Failure::usage("--epochs goes with --plan: a record has its epochs"));
        }
        if self.dataset.is_some() && self.format != Format::Croissant {
            return Err(Failure::usage(
                "--dataset goes with --format croissant: the others have all datasets",
            ));
        }
        let catalog = connect.catalog()?;
        let mut trainings = self.trainings(&*catalog, place)?;
        let manifests = manifests(&*catalog, &trainings)?;
        if self.roots {
            for training in &mut trainings {
                let manifest = manifests.iter().find(|manifest| manifest.id() == training.version);
                add_roots(&*catalog, training, manifest.expect("each training has its manifest"))?;
            }
        }
        let mut versions = Vec::new();
        for manifest in &manifests {
            versions.push(version(&*catalog, manifest, &trainings)?);
        }
        let mut names: Vec<String> = versions.iter().map(|version| version.dataset.clone()).collect();
        names.dedup();
        if let Some(path) = &self.write_about {
            return write_form(path, &names, json);
        }
        let about = match &self.about {
            Some(path) => About::read(path, &names)?,
            None => About::default(),
        };
        for version in &mut versions {
            let declared = about.of(&version.dataset);
            version.declare(declared.tokens, declared.modality);
        }
        let facts = Facts { trainings, versions, about };
        match (self.format, json) {
            (Format::Croissant, _) => {
                let version = self.one_dataset(&facts.versions)?;
                let manifest = manifests.iter().find(|manifest| manifest.id() == version.version);
                let found = manifest.expect("each version has its manifest");
                let (manifest, file) = (found.manifest()?, found.file_bytes()?);
                let about = facts.about.of(&version.dataset);
                let metadata = croissant::metadata(version, &about, &manifest, file);
                match json {
                    true => output::json(&metadata),
                    false => {
                        output::raw(format!("{}\n", serde_json::to_string_pretty(&metadata)?).as_bytes());
                    }
                }
                let missing = about.missing_in_croissant();
                if !missing.is_empty() {
                    let name = &version.dataset;
                    let missing = missing.join(", ");
                    output::note(
                        json,
                        &format!(
                            "catalogues ask for more: declare {missing} of [datasets.{name}] with --about"
                        ),
                    );
                }
            }
            (_, true) => output::json(&facts),
            (Format::EuTemplate, false) => output::raw(template::page(&facts).as_bytes()),
            (Format::Text, false) => output::print(&text::page(&facts)),
        }
        Ok(())
    }

    fn trainings(
        &self,
        catalog: &dyn Catalog,
        place: impl FnOnce() -> Result<Place, Failure>,
    ) -> Result<Vec<Training>, Failure> {
        if let (Some(plan), Some(epochs)) = (&self.plan, self.epochs) {
            let id = find_plan(catalog, Some(plan))?;
            let document = catalog.plan(id)?;
            let dataset =
                catalog.plans()?.into_iter().find(|info| info.id == id).map(|info| info.dataset.to_string());
            let samples = catalog.open_manifest(document.version)?.totals().samples;
            let read = |epoch| EpochRead { epoch, samples, root: None };
            return Ok(vec![Training {
                record: None,
                run: None,
                dataset,
                version: document.version,
                plan: id,
                from: None,
                until: None,
                ending: None,
                is_underway: false,
                weights: None,
                steps_unknown: 0,
                epochs: (0..epochs).map(read).collect(),
            }]);
        }
        let place = place()?;
        let mut trainings: Vec<Training> = Vec::new();
        for asked in &self.records {
            let (id, record) = place.read(asked)?;
            if trainings.iter().any(|training| training.record == Some(id)) {
                return Err(Failure::usage(format!("{asked} names record {} a second time", id.short())));
            }
            trainings.push(Training::of(id, &record).map_err(Failure::failed)?);
        }
        Ok(trainings)
    }

    fn one_dataset<'v>(&self, versions: &'v [Version]) -> Result<&'v Version, Failure> {
        let names = versions.iter().map(|version| format!("{}@{}", version.dataset, version.version.short()));
        let names = names.collect::<Vec<_>>().join(", ");
        let is_asked = |version: &&Version| match &self.dataset {
            None => true,
            Some(asked) => match asked.split_once('@') {
                Some((name, id)) => version.dataset == name && version.version.to_string().starts_with(id),
                None => version.dataset == *asked,
            },
        };
        let mut fitting = versions.iter().filter(is_asked);
        match (fitting.next(), fitting.next()) {
            (Some(version), None) => Ok(version),
            (Some(_), Some(_)) => Err(Failure::usage(format!(
                "Croissant describes one version of a dataset: name one of {names} with --dataset"
            ))),
            (None, _) => {
                let asked = self.dataset.as_deref().unwrap_or_default();
                Err(Failure::usage(format!("--dataset {asked}: the model was trained on {names}")))
            }
        }
    }
}

/// The manifests of the trainings' versions, each once.
fn manifests(catalog: &dyn Catalog, trainings: &[Training]) -> Result<Vec<ManifestFile>, Failure> {
    let mut manifests: Vec<ManifestFile> = Vec::new();
    for training in trainings {
        if manifests.iter().all(|manifest| manifest.id() != training.version) {
            manifests.push(catalog.open_manifest(training.version)?);
        }
    }
    Ok(manifests)
}

fn version(
    catalog: &dyn Catalog,
    manifest: &ManifestFile,
    trainings: &[Training],
) -> Result<Version, Failure> {
    let first = match manifest.totals().samples {
        0 => Vec::new(),
        _ => head::read(catalog, manifest, 0, 1)?,
    };
    let derived_from = bases(catalog, manifest.config());
    let provenance = catalog.provenance(manifest.id())?;
    Ok(Version::of(manifest, provenance.as_ref(), first.first(), trainings, derived_from)?)
}

/// The versions that one was derived from, as far as the store still has them.
fn bases(catalog: &dyn Catalog, config: &serde_json::Value) -> Vec<VersionId> {
    let mut found: Vec<VersionId> = Vec::new();
    let mut next = base(config);
    while let Some(version) = next.filter(|version| !found.contains(version)) {
        found.push(version);
        next = catalog.open_manifest(version).ok().and_then(|manifest| base(manifest.config()));
    }
    found
}

fn add_roots(catalog: &dyn Catalog, training: &mut Training, manifest: &ManifestFile) -> Result<(), Failure> {
    let plan = open_plan(catalog, training.plan, manifest)?;
    let digests = row_digests(catalog, manifest)?;
    for read in &mut training.epochs {
        check_table(&plan, read.epoch).map_err(Failure::wrong)?;
        read.root = Some(root(&plan, &SlotTable::at(&plan, Epoch(read.epoch)), &digests));
    }
    Ok(())
}

fn open_plan(catalog: &dyn Catalog, id: PlanId, manifest: &ManifestFile) -> Result<Plan, Failure> {
    Ok(Plan::new(catalog.plan(id)?, &manifest.shard_rows()?)?)
}

fn write_form(path: &Path, datasets: &[String], json: bool) -> Result<(), Failure> {
    let refused =
        |error: std::io::Error| Failure::failed(format!("{} cannot be written: {error}", path.display()));
    let mut file = std::fs::File::create_new(path).map_err(refused)?;
    std::io::Write::write_all(&mut file, about::form(datasets).as_bytes()).map_err(refused)?;
    match json {
        true => output::json(&serde_json::json!({ "about": path })),
        false => output::print(&format!("{}: fill it in, and give it with --about\n", path.display())),
    }
    Ok(())
}
