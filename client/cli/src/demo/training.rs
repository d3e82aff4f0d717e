//! The demo's trainers: starts them, follows them, kills nodes under them on request, and collects their
//! reports.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;
use shardd_api::protocol::Placement;
use shardd_api::status::NodeStatus;
use shardd_plan::Plan;
use shardfmt::DigestSum;

use super::RUN;
use super::cluster::{Node, POLL_INTERVAL, clean};
use super::data::Datasets;
use super::interrupt::Interrupt;
use super::kill::Planned;
use super::live::{Live, TrainerLine};
use super::measure::{self, Measured};
use super::process::Processes;
use super::report::{DatasetFacts, EpochFacts, OriginFacts, PlanFacts, Report};
use super::tail::Tail;
use crate::failure::Failure;
use crate::ingest::processors;

/// Trainers that are silent for this time are stuck.
const TIMEOUT: Duration = Duration::from_secs(120);

/// All that the trainers need to know.
pub(crate) struct Training<'a> {
    pub(crate) shardtrain: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) nodes: &'a [Node],
    pub(crate) plan: &'a Plan,
    pub(crate) datasets: &'a Datasets,
    pub(crate) ranks: u32,
    pub(crate) virtual_ranks: u32,
    pub(crate) epochs: u32,
    pub(crate) batch_size: u32,
    pub(crate) seed: u64,
    pub(crate) kills: &'a [Planned],
}

/// How training ended.
pub(crate) struct Outcome {
    reports: Vec<RankReport>,
    killed: Vec<String>,
    measured: Measured,
    took: Duration,
}

/// What `shardtrain --report` writes.
#[derive(Debug, Deserialize)]
struct RankReport {
    weights_digest: String,
    test_accuracy: Option<f64>,
    loss_per_epoch: Vec<Option<f64>>,
    samples_per_s: f64,
    audits: Vec<Audit>,
    #[serde(default)]
    wait_s: f64,
}

#[derive(Debug, Deserialize)]
struct Audit {
    epoch: u32,
    samples: u64,
    digest_sum: DigestSum,
}

impl Training<'_> {
    /// Runs the trainers to their end.
    pub(crate) fn run(&self, processes: &mut Processes, live: &mut Live) -> Result<Outcome, Failure> {
        let started = Instant::now();
        let master = free_port()?;
        for rank in 0..self.ranks {
            processes.start(&trainer(rank), self.command(rank, master))?;
        }
        let followed = self.follow(processes, live)?;
        let took = started.elapsed();
        let reports = (0..self.ranks).map(|rank| self.read_report(rank)).collect::<Result<Vec<_>, _>>()?;
        let Followed { killed, last_status, placement } = followed;
        let measured = Measured::read(self.nodes, &last_status, self.plan, placement.as_ref(), self.epochs)?;
        Ok(Outcome { reports, killed, measured, took })
    }

    /// Watches until all trainers are done, and kills nodes on the way.
    fn follow(&self, processes: &mut Processes, live: &mut Live) -> Result<Followed, Failure> {
        let mut tails: Vec<Tail> = (0..self.ranks).map(|rank| Tail::new(self.progress_file(rank))).collect();
        let mut latest: Vec<Option<TrainerLine>> = vec![None; tails.len()];
        let mut pending = self.kills.iter().peekable();
        let mut followed = Followed::default();
        let mut heard = Instant::now();
        live.training(self.epochs, self.steps_per_epoch());
        live.doing("trainers are starting");
        while !(0..self.ranks).all(|rank| processes.is_done(&trainer(rank))) {
            self.interrupt.check()?;
            processes.check(|name| name.starts_with("trainer"))?;
            for (rank, (tail, latest)) in tails.iter_mut().zip(&mut latest).enumerate() {
                for line in tail.lines::<TrainerLine>() {
                    (*latest, heard) = (Some(line), Instant::now());
                    if rank == 0 && line.step + 1 == self.steps_per_epoch() {
                        live.epoch_done(line);
                    }
                }
            }
            if let Some(slowest) = slowest(&latest) {
                live.step(slowest);
                if followed.placement.is_none() {
                    followed.placement = measure::placement(&self.nodes[0].url)?;
                }
                while let Some(kill) = pending.next_if(|kill| kill.epoch <= self.progress(slowest)) {
                    self.kill(kill, slowest, processes, &mut followed)?;
                    live.say(&format!(
                        "killed {} with SIGKILL",
                        followed.killed.last().expect("just killed")
                    ));
                }
            }
            if heard.elapsed() > TIMEOUT {
                let words = processes.last_words(&trainer(0));
                return Err(Failure::failed(format!("no trainer moved for {TIMEOUT:?}; trainer-0: {words}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        processes.check(|name| name.starts_with("trainer"))?;
        match pending.next() {
            Some(kill) => Err(Failure::failed(format!(
                "training was over before epoch {} came for --kill: choose an earlier moment",
                kill.epoch
            ))),
            None => Ok(followed),
        }
    }

    fn kill(
        &self,
        kill: &Planned,
        at: TrainerLine,
        processes: &mut Processes,
        followed: &mut Followed,
    ) -> Result<(), Failure> {
        let node = &self.nodes[kill.node as usize - 1];
        if followed.last_status.contains_key(&node.name) {
            return Ok(());
        }
        followed.last_status.insert(node.name.clone(), measure::status(&node.url)?);
        processes.kill(&node.name)?;
        let steps = self.steps_per_epoch();
        followed.killed.push(format!(
            "{} in epoch {} after step {} of {steps}",
            node.name,
            at.epoch + 1,
            at.step + 1
        ));
        Ok(())
    }

    fn command(&self, rank: u32, master: u16) -> Command {
        let mut command = clean(self.shardtrain);
        command.arg("--server").arg(self.servers(rank).join(","));
        command.args(["--plan", &self.plan.id().to_string(), "--run", RUN]);
        command.args(["--test-dataset", self.datasets.test_name.as_ref()]);
        command.args(["--rank", &rank.to_string(), "--world", &self.ranks.to_string()]);
        command.args(["--virtual-ranks", &self.virtual_ranks.to_string()]);
        command.args(["--master", &format!("127.0.0.1:{master}")]);
        command.args(["--epochs", &self.epochs.to_string(), "--batch-size", &self.batch_size.to_string()]);
        command.args(["--seed", &self.seed.to_string()]);
        if let Some(largest) = self.datasets.input_max {
            command.args(["--input-max", &largest.to_string()]);
        }
        command.arg("--report").arg(self.report_file(rank));
        command.arg("--progress").arg(self.progress_file(rank));
        // The trainers share this machine: together they should not want more threads than it has processors.
        let threads = (processors() / self.ranks as usize).max(1);
        command.env("RAYON_NUM_THREADS", threads.to_string());
        command
    }

    /// All nodes, the rank's own first: rank r of W reads at node floor(r nodes / W).
    fn servers(&self, rank: u32) -> Vec<String> {
        let own = rank as usize * self.nodes.len() / self.ranks as usize;
        let (before, from_own) = self.nodes.split_at(own);
        from_own.iter().chain(before).map(|node| node.url.clone()).collect()
    }

    fn steps_per_epoch(&self) -> u64 {
        self.plan.sample_count().div_ceil(u64::from(self.virtual_ranks) * u64::from(self.batch_size))
    }

    /// Epochs since the start.
    fn progress(&self, line: TrainerLine) -> f64 {
        f64::from(line.epoch) + (line.step + 1) as f64 / self.steps_per_epoch().max(1) as f64
    }

    fn progress_file(&self, rank: u32) -> PathBuf {
        self.home.join(format!("{}.progress", trainer(rank)))
    }

    fn report_file(&self, rank: u32) -> PathBuf {
        self.home.join(format!("{}.json", trainer(rank)))
    }

    fn read_report(&self, rank: u32) -> Result<RankReport, Failure> {
        let path = self.report_file(rank);
        let odd =
            |reason: String| Failure::failed(format!("{} left no good report: {reason}", trainer(rank)));
        let bytes = fs::read(&path).map_err(|error| odd(error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|error| odd(error.to_string()))
    }

    /// Everything found out, put together.
    pub(crate) fn report(&self, outcome: &Outcome, total: Duration) -> Result<Report, Failure> {
        let first = outcome.reports.first().expect("at least one rank, checked with the arguments");
        if let Some(rank) =
            outcome.reports.iter().position(|report| report.weights_digest != first.weights_digest)
        {
            return Err(Failure::failed(format!(
                "trainer-{rank} ended with other weights than trainer-0: {} and {}",
                outcome.reports[rank].weights_digest, first.weights_digest
            )));
        }
        let manifest = &self.datasets.train.manifest;
        let document = self.plan.document();
        let origin_bytes = outcome.measured.origin_bytes;
        Ok(Report {
            dataset: DatasetFacts {
                name: self.datasets.train_name.to_string(),
                version: self.datasets.train.version.to_string(),
                samples: manifest.sample_count(),
                test_samples: self.datasets.test.manifest.sample_count(),
                shards: manifest.shards.len() as u64,
                bytes: manifest.bytes(),
            },
            plan: PlanFacts {
                id: self.plan.id().to_string(),
                q: document.schedule.to_string(),
                partitions: document.partitions,
                grain_rows: document.grain_rows,
            },
            nodes: self.nodes.len() as u32,
            ranks: self.ranks,
            virtual_ranks: self.virtual_ranks,
            killed: outcome.killed.clone(),
            test_accuracy: first.test_accuracy,
            weights_digest: first.weights_digest.clone(),
            samples_per_s: first.samples_per_s,
            loader_wait_s: outcome.reports.iter().map(|report| report.wait_s).fold(0.0, f64::max),
            epochs: self.epoch_facts(outcome, first),
            moved: outcome.measured.moved.clone(),
            origin: OriginFacts {
                bytes_read: origin_bytes,
                per_dataset: origin_bytes as f64 / manifest.bytes().max(1) as f64,
            },
            exchange: outcome.measured.exchange.clone(),
            node_status: outcome.measured.nodes.clone(),
            training_s: outcome.took.as_secs_f64(),
            total_s: total.as_secs_f64(),
        })
    }

    /// Adds up what the ranks read in each epoch and compares it with the manifest.
    fn epoch_facts(&self, outcome: &Outcome, first: &RankReport) -> Vec<EpochFacts> {
        let manifest = &self.datasets.train.manifest;
        let of_epoch = |epoch: u32| {
            let audits =
                outcome.reports.iter().flat_map(|report| &report.audits).filter(move |a| a.epoch == epoch);
            audits.fold((0, DigestSum::default()), |(samples, sum), audit| {
                (samples + audit.samples, sum + audit.digest_sum)
            })
        };
        (0..self.epochs)
            .map(|epoch| {
                let (samples, digest_sum) = of_epoch(epoch);
                EpochFacts {
                    epoch,
                    loss: first.loss_per_epoch.get(epoch as usize).copied().flatten().unwrap_or(f64::NAN),
                    samples,
                    digest_sum: digest_sum.to_string(),
                    exactly_once: samples == manifest.sample_count() && digest_sum == manifest.digest_sum(),
                }
            })
            .collect()
    }
}

/// The observations of the training.
#[derive(Default)]
struct Followed {
    /// The nodes killed, and when.
    killed: Vec<String>,
    /// Their counters just before.
    last_status: BTreeMap<String, NodeStatus>,
    /// Who hosted what at the start.
    placement: Option<Placement>,
}

fn trainer(rank: u32) -> String {
    format!("trainer-{rank}")
}

/// The line of the rank that is least far; nothing before all have begun.
fn slowest(latest: &[Option<TrainerLine>]) -> Option<TrainerLine> {
    let all: Option<Vec<TrainerLine>> = latest.iter().copied().collect();
    all?.into_iter().min_by_key(|line| (line.epoch, line.step))
}

/// A free port of loopback. Rank 0 takes it a moment later; should another process be faster, rank 0
/// says so and the demo ends with its words.
fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_that_of_the_slowest_rank_once_all_have_begun() {
        let line = |epoch, step| Some(TrainerLine { epoch, step, loss: None, samples_per_s: None });
        assert!(slowest(&[line(1, 2), None]).is_none());
        let found = slowest(&[line(1, 2), line(0, 9), line(1, 0)]).unwrap();
        assert_eq!((found.epoch, found.step), (0, 9));
    }
}
