//! `shardctl forget`: takes rows out of a dataset, and with --everywhere out of all that the store and the nodes have.

mod report;
mod rows;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use shardd_ingest::version::{Base, VersionError, forget};
use shardd_store::catalog::{
    Catalog, CatalogError, CatalogStore, CommitNote, Forget as ForgetRows, ForgetReport, RunState,
};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{DatasetName, DatasetRef, Message, Operation, RowDigest};

use crate::failure::Failure;
use crate::human::plural;
use crate::ingest::processors;
use crate::output;
use crate::work::WorkProgress;
use report::{Committed, Outcome};
use rows::{Found, Where};

/// Forget rows: commit a version without them, or remove them everywhere; without --delete show the objects
/// that hold them
///
/// Values on a command line stay in the history of your shell: --where COLUMN=@FILE keeps them out of it. Exports, backups and copies that
/// others made are beyond its reach.
#[derive(Args)]
pub(crate) struct Forget {
    /// The dataset, or the version of it in which the rows are looked up, such as NAME@~1
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: DatasetRef,

    /// Rows with this value in this column, or with one of those in FILE, one a line. May be repeated: for one column any of the values
    /// fits, and a row has to fit for every column. `@@` stands for a value that begins with @
    #[arg(
        long = "where",
        value_name = "COLUMN=VALUE|COLUMN=@FILE",
        required_unless_present = "rows",
        conflicts_with = "rows"
    )]
    conditions: Vec<Where>,

    /// Rows that FILE names, one a line: a sample's number in the version, from 0, or a row digest of 32 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,

    /// Commit a version without them, instead of only showing them
    #[arg(long)]
    delete: bool,

    /// Also remove all objects that still hold them: versions, tags, plans and runs, and at once the bytes in
    /// the store and in caches
    #[arg(long, requires = "delete")]
    everywhere: bool,

    /// Also remove runs whose ranks sent a report in the last 15 minutes: they were killed
    #[arg(long, requires = "everywhere")]
    force: bool,

    /// The checkpoints of the runs, too
    #[arg(long, requires = "everywhere")]
    checkpoints: bool,

    /// Threads to work with, each of which takes memory for two shards [default: one per processor]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

/// The findings on the rows.
enum Look {
    /// They, their digests, and what holds them.
    Rows(Box<(Found, Vec<RowDigest>, ForgetReport)>),
    /// None, as this message says.
    Nothing(String),
}

impl Forget {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = &*connect.catalog()?;
        let (found, rows, before) = match self.look(catalog, json)? {
            Look::Rows(looked) => *looked,
            Look::Nothing(message) if self.everywhere => return self.finish(catalog, message, json),
            Look::Nothing(message) => return Err(Failure::failed(message)),
        };
        if !self.delete {
            self.outcome(&found, before, Vec::new()).print(json);
            return Ok(());
        }
        self.check(&before)?;
        let mut committed = Vec::new();
        for held in before.datasets.iter().filter(|held| held.is_present) {
            if self.everywhere || held.name == self.dataset.dataset {
                committed.push(self.commit_without(catalog, &held.name, &found, json)?);
            }
        }
        // The holders have changed by now.
        let after = catalog.forget(&self.asked(&rows, !self.everywhere))?;
        self.outcome(&found, after, committed).print(json);
        Ok(())
    }

    /// The rows, and what holds them.
    fn look(&self, catalog: &dyn Catalog, json: bool) -> Result<Look, Failure> {
        let found = match self.find(catalog, json)? {
            Ok(found) => found,
            Err(nothing) => return Ok(Look::Nothing(nothing)),
        };
        let rows: Vec<RowDigest> = found.rows.iter().copied().collect();
        let held = catalog.forget(&self.asked(&rows, true))?;
        Ok(match held.rows {
            0 => Look::Nothing(format!("no shard of the store has {}", found.meant)),
            _ => Look::Rows(Box::new((found, rows, held))),
        })
    }

    /// There are no such rows: an earlier forget of them may have been killed, and have left something. If not, that is the failure.
    fn finish(&self, catalog: &dyn Catalog, nothing: String, json: bool) -> Result<(), Failure> {
        let report = catalog.forget(&self.asked(&[], false))?;
        if report.shards.is_empty() {
            return Err(Failure::failed(nothing));
        }
        output::note(json, &format!("{nothing}; an earlier forget was not finished, and is now"));
        self.outcome(&Found::default(), report, Vec::new()).print(json);
        Ok(())
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(processors, usize::from)
    }

    /// The rows that are meant; else the message that there are none.
    fn find(&self, catalog: &dyn Catalog, json: bool) -> Result<Result<Found, String>, Failure> {
        let version = find_version(catalog, &self.dataset)?;
        let found = match &self.rows {
            Some(file) => rows::named(catalog, &self.dataset, &version, file)?,
            None => rows::fitting(catalog, &version, &self.conditions, self.threads(), json)?,
        };
        match found.rows.len() {
            0 => Ok(Err(format!("no row of {}, in any of its versions, has {}", version.name, found.meant))),
            count if count > ForgetRows::MOST_ROWS => Err(Failure::usage(format!(
                "{} are meant, more than the {} that are forgotten at once: narrow it down with another --where",
                plural(count as u64, "row"),
                ForgetRows::MOST_ROWS
            ))),
            _ => Ok(Ok(found)),
        }
    }

    fn asked(&self, rows: &[RowDigest], dry_run: bool) -> ForgetRows {
        let Self { force, checkpoints, .. } = *self;
        ForgetRows { rows: rows.to_vec(), dry_run, force, checkpoints }
    }

    fn outcome(&self, found: &Found, report: ForgetReport, committed: Vec<Committed>) -> Outcome {
        Outcome {
            dataset: self.dataset.dataset.clone(),
            dry_run: !self.delete,
            everywhere: self.everywhere,
            checkpoints: self.checkpoints,
            matching: found.matching,
            committed,
            report,
        }
    }

    /// Refuses, before anything is changed, what would be refused halfway.
    fn check(&self, report: &ForgetReport) -> Result<(), Failure> {
        for held in report.datasets.iter().filter(|held| held.is_present) {
            let is_concerned = self.everywhere || held.name == self.dataset.dataset;
            let of_version = report.versions.iter().find(|version| version.version == held.version);
            if is_concerned && of_version.is_some_and(|version| version.rows >= version.samples) {
                return Err(Failure::failed(format!(
                    "nothing would be left of {name}: `shardctl rm {name}` removes it with all of its samples, and `shardctl gc --delete` their bytes",
                    name = held.name
                )));
            }
        }
        match report.runs.iter().find(|run| run.state == RunState::Running) {
            Some(run) if self.everywhere && !self.force => {
                Err(CatalogError::Running { run: run.id.to_string() }.into())
            }
            _ => Ok(()),
        }
    }

    /// Commits the present version of a dataset without the rows.
    fn commit_without(
        &self,
        catalog: &dyn Catalog,
        name: &DatasetName,
        found: &Found,
        json: bool,
    ) -> Result<Committed, Failure> {
        let before = catalog.dataset(name)?;
        let manifest = catalog.manifest(before.version)?;
        let provenance = catalog.provenance(before.version)?;
        let base = Base { id: before.version, manifest: &manifest, provenance: provenance.as_ref() };
        let progress = WorkProgress::new(json, "forgetting", before.samples);
        let shelf = CatalogStore(catalog);
        let left = forget(base, &found.rows, &shelf, self.threads(), &shelf, &progress);
        progress.finish();
        let left = left.map_err(|error| match error {
            VersionError::NothingLeft => Failure::failed(format!("nothing would be left of {name}: {error}")),
            error => error.into(),
        })?;
        // The history stays, and others read it: the message counts the rows and names none.
        let gone = before.samples - left.sample_count();
        let message: Message = format!("without {}", plural(gone, "row")).parse()?;
        let note = CommitNote { operation: Operation::FORGET, message, provenance };
        let after = catalog.commit(name, Some(before.version), &left, &note)?;
        Ok(Committed { before: before.version, rows: gone, after })
    }
}
