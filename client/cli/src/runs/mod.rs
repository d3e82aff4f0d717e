//! `shardctl runs`: trainings, whether nodes know them or records and checkpoints in a store tell of them. Listed, shown, compared, removed.

mod expire;
mod list;
pub(crate) mod records;
mod remove;
mod summary;
mod trace;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use shardd_api::protocol::RunId;
use shardd_store::catalog::{Catalog, LocalCatalog, StorePlace};
use shardd_store::connect::{Connect, Target};

use crate::failure::Failure;
use records::Place;

/// List runs, show or remove one, or find where two of them differ
#[derive(Args)]
pub(crate) struct Runs {
    /// Directory or bucket of the records: that of `shardtrain --record` or `--checkpoints`. `diff` and `summary` need it
    /// where nodes are in use [default: the nodes or the store in use]
    #[arg(long, global = true, value_name = "DIR|URL")]
    record: Option<PathBuf>,

    #[command(subcommand)]
    command: RunsCommand,
}

#[derive(Subcommand)]
enum RunsCommand {
    /// List the runs: those in training, those that are over, and their objects
    Ls {
        /// This run only
        run: Option<RunId>,
    },
    /// Show a run, or one of its records
    Show {
        /// The name of a run, or the id of a record or the beginning of it
        #[arg(value_name = "RUN|RECORD")]
        id: String,

        /// The outcome of each step of the record, a line for each
        #[arg(long)]
        steps: bool,
    },
    /// Show the settings in which two trainings differ, and the first step that does; exits like `diff`
    Diff {
        /// A record: its id or the beginning of it, or the name of a run that has only one
        a: String,

        /// Another one
        b: String,
    },
    /// Summarise the content that a model was trained on: datasets, samples read, sources and licences
    Summary(summary::Summary),
    /// Save what the nodes of a run did, and how its ranks read and waited, for Perfetto
    Trace(trace::Trace),
    /// Remove a run with its cursor, audits and records; you can then remove its plan
    Rm(remove::Remove),
    /// Remove runs that are over, the oldest first; shows them unless you give --delete
    Expire(expire::Expire),
}

impl Runs {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let place = || Place::open(connect, self.record.as_deref());
        let catalog = || self.catalog(connect);
        match &self.command {
            RunsCommand::Ls { run } => list::list(&*catalog()?, run.as_ref(), json),
            RunsCommand::Show { id, steps } => list::show(&*catalog()?, place, id, *steps, json),
            // An error is no difference.
            RunsCommand::Diff { a, b } => match place().and_then(|place| place.diff(a, b, json)) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failure::Differs),
                Err(failure) => Err(Failure::usage(failure.to_string())),
            },
            RunsCommand::Summary(summary) => summary.run(connect, place, json),
            RunsCommand::Trace(trace) => trace.run(connect, json),
            RunsCommand::Rm(remove) => remove.run(&*catalog()?, json),
            RunsCommand::Expire(expire) => expire.run(&*catalog()?, json),
        }
    }

    /// Where the runs are: nodes or a store, or a place where only trainings left something.
    fn catalog(&self, connect: &Connect) -> Result<Box<dyn Catalog>, Failure> {
        let place = match (&self.record, connect.target()) {
            (Some(_), _) => connect.place_of_records(self.record.as_deref())?,
            (None, Err(failure)) => return Err(failure.into()),
            (None, Ok(Target::Servers(_))) => return Ok(connect.catalog()?),
            (None, Ok(Target::Store(place))) => match LocalCatalog::find(&place)? {
                Some(catalog) => return Ok(Box::new(catalog)),
                None => place,
            },
        };
        match &place {
            StorePlace::Directory(directory) if !directory.is_dir() => {
                let directory = directory.display();
                Err(Failure::failed(format!(
                    "there is no directory {directory}: name that of the records with --record"
                )))
            }
            place => Ok(Box::new(LocalCatalog::of_trainings(place)?)),
        }
    }
}
