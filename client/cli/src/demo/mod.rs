//! `shardctl demo`: the main job from end to end, with real nodes and real trainers, on this machine.
//!
//! Ingests a data set, starts nodes, makes a plan, trains on several processes while samples are exchanged, reports, and
//! leaves nothing behind. This file orders the steps; each step has a file of its own.

mod binaries;
mod cluster;
mod data;
mod interrupt;
mod kill;
mod live;
mod measure;
mod process;
mod report;
mod tail;
mod training;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use shardd_plan::{PlanOptions, Schedule, Shape};
use shardd_store::connect::Connect;

use crate::failure::Failure;
use crate::human::plural;
use crate::output;
use crate::partition::make_plan;
use binaries::Binaries;
use cluster::Ground;
use data::Datasets;
use interrupt::Interrupt;
use kill::{Kill, Planned};
use live::Live;
use process::Processes;
use report::Report;
use training::Training;

/// Name of the demo's run.
const RUN: &str = "demo";

/// Virtual ranks: fixed, so that the trained weights are the same for any number of trainers up to it.
const VIRTUAL_RANKS: u32 = 4;

/// Partitions of the plan.
const PARTITIONS: u32 = 16;

/// Nodes beyond this would be a test of the machine's patience.
const MOST_NODES: u32 = 16;

/// How long the processes may take to stop when asked.
const GRACE: Duration = Duration::from_secs(5);

/// Ingest, exchange, train and report: the whole of shardd on this machine, in under a minute
#[derive(Args)]
pub(crate) struct Demo {
    /// Share of the samples exchanged after each epoch, or a list of shares such as 1,0.01
    #[arg(long, default_value = "0.1")]
    q: Schedule,

    /// Nodes to start
    #[arg(long, default_value_t = 4)]
    nodes: u32,

    /// Trainers to start, at most 4
    #[arg(long, default_value_t = 4)]
    ranks: u32,

    /// Epochs to train
    #[arg(long, default_value_t = 20)]
    epochs: u32,

    /// Samples per step and virtual rank
    #[arg(long, default_value_t = 16)]
    batch_size: u32,

    /// Train on this input instead of the handwritten digits: a Parquet file, or a directory or tar of images
    /// by class. Folders `train` and `test` in it are the two sets; else a fifth is the test set
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,

    /// Kill a node (SIGKILL) during the training: its name (n2, 2, first) and the time (@EPOCH, such as
    /// @3.5); both may be left out, and the option may be repeated
    #[arg(
        long,
        value_name = "NODE@EPOCH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        action = clap::ArgAction::Append
    )]
    kill: Vec<Kill>,

    /// Seed of the plan and of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Keep the directory with all files of the nodes and trainers
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if connect.is_chosen() {
            return Err(Failure::usage(
                "the demo starts nodes of its own: leave --server, --store and --context out",
            ));
        }
        let kills = self.check()?;
        let binaries = binaries::find_or_build()?;
        let started = Instant::now();
        let interrupt = Interrupt::listen()?;
        let home = tempfile::Builder::new().prefix("shardd-demo-").tempdir()?;
        let mut live = Live::new(json);
        let result = self.play(&kills, &binaries, home.path(), &interrupt, &mut live, started);
        live.finish();
        let kept = self.keep.then(|| home.keep());
        if let Some(kept) = &kept {
            output::note(json, &format!("everything is kept in {}", kept.display()));
        }
        let report = result?;
        if json {
            output::json(&report);
        } else {
            output::print(&format!("\n{}", report.render()));
        }
        if binaries.are_quickly_compiled() {
            output::note(
                json,
                "these programs were compiled for a quick start: those of `cargo build --release --bins` \
                 are several times faster",
            );
        }
        match report.is_exactly_once() {
            true => Ok(()),
            false => {
                Err(Failure::failed("an epoch did not deliver every sample exactly once; see the report"))
            }
        }
    }

    /// Everything that can be refused before anything is started.
    fn check(&self) -> Result<Vec<Planned>, Failure> {
        if self.nodes == 0 || self.nodes > MOST_NODES {
            return Err(Failure::usage(format!("--nodes {}: use 1 to {MOST_NODES}", self.nodes)));
        }
        if self.ranks == 0 || self.ranks > VIRTUAL_RANKS {
            let ranks = self.ranks;
            return Err(Failure::usage(format!(
                "--ranks {ranks}: the demo has {VIRTUAL_RANKS} virtual ranks, so use 1, 2, 3 or {VIRTUAL_RANKS}"
            )));
        }
        if self.epochs == 0 || self.batch_size == 0 {
            return Err(Failure::usage("--epochs and --batch-size must be at least 1"));
        }
        kill::plan_all(&self.kill, self.nodes, self.epochs).map_err(|error| Failure::usage(error.to_string()))
    }

    fn play(
        &self,
        kills: &[Planned],
        binaries: &Binaries,
        home: &Path,
        interrupt: &Interrupt,
        live: &mut Live,
        started: Instant,
    ) -> Result<Report, Failure> {
        let mut processes = Processes::new(&home.join("logs"))?;
        live.doing("starting nodes");
        let ground = Ground { shardd: &binaries.shardd, home, interrupt };
        let nodes = ground.start_nodes(&mut processes, self.nodes)?;
        live.say(&format!("{} up on loopback, mutual TLS between them", plural(nodes.len() as u64, "node")));

        live.doing("ingesting");
        let datasets = Datasets::ingest(self.data.as_deref(), home, &nodes[0].url)?;
        live.say(&datasets.describe());

        let with_partitions = |partitions: u32| PlanOptions {
            q: self.q.clone(),
            seed: self.seed,
            partitions: Some(partitions),
            ..PlanOptions::default()
        };
        // A data set of a few samples cannot fill 16 partitions; it must fill one for each virtual rank.
        let manifest = &datasets.train.manifest;
        let (version, row_bytes) = (manifest.id(), manifest.row_bytes());
        let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes };
        let plan = make_plan(version, &shape, with_partitions(PARTITIONS))
            .or_else(|_| make_plan(version, &shape, with_partitions(VIRTUAL_RANKS)))?;
        datasets.catalog().put_plan(plan.document())?;
        live.say(&format!(
            "plan {}: Q = {}, {} partitions",
            plan.id().short(),
            self.q,
            plan.document().partitions
        ));

        let training = Training {
            shardtrain: &binaries.shardtrain,
            home,
            interrupt,
            nodes: &nodes,
            plan: &plan,
            datasets: &datasets,
            ranks: self.ranks,
            virtual_ranks: VIRTUAL_RANKS,
            epochs: self.epochs,
            batch_size: self.batch_size,
            seed: self.seed,
            kills,
        };
        let outcome = training.run(&mut processes, live)?;
        live.doing("stopping nodes");
        let late = processes.stop(GRACE);
        if !late.is_empty() {
            return Err(Failure::failed(format!(
                "{} did not stop within {GRACE:?} and had to be killed",
                late.join(", ")
            )));
        }
        training.report(&outcome, started.elapsed())
    }
}
