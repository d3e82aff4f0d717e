//! `shardtrain run`: starts the ranks of a training on this machine, and again those that are left when some have died.
//!
//! A rank whose collective fails ends by itself, with exit code 3; the launcher waits for all to end, and
//! starts as many as are left, which resume from the newest checkpoint. What becomes of a launch is decided
//! in `restart_policy.rs`; here are processes and signals.

mod elastic;
mod machines;
mod membership;
mod restart_policy;

use std::error::Error;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use shardd_client::launcher;
use shardd_trainer::checkpoint::Resume;
use shardd_trainer::collective::tcp::MOST_LOCAL_RANKS;
use shardd_trainer::launch_env::{LAUNCHER, variable};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{Args, UsageError};
use crate::log_to::RESTARTS;
use machines::{Machines, Share};
use restart_policy::{End, Rules, Verdict};

/// Start the ranks of a training on this machine, and restart them after failures
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Launch {
    #[command(flatten)]
    given: GivenPlace,

    /// This machine and its ranks.
    #[arg(skip)]
    place: MachinePlace,

    /// Fail when fewer ranks than this remain
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    min_ranks: u32,

    /// Maximum number of restarts
    #[arg(long, value_name = "TIMES", default_value_t = 3)]
    max_restarts: u32,

    /// Seconds that the other ranks have to exit after a failure before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    grace: u64,

    /// In-process restart: surviving ranks continue as a smaller group without new processes
    #[arg(long, conflicts_with = "program")]
    elastic: bool,

    /// Seconds until a failed rank is respawned with --elastic; it rejoins at a step boundary
    #[arg(long, value_name = "SECONDS", requires = "elastic")]
    respawn_after: Option<u64>,

    /// Program to start instead of shardtrain; it finds its rank with shardd_trainer::LaunchEnv
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Arguments for every rank. {rank} in --report and --progress is replaced by the rank; without it only rank 0 writes them.
    /// A --program receives all arguments unchanged, except for {rank}
    #[arg(last = true, required_unless_present = "program", value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

/// The place of a machine on the command line.
#[derive(clap::Args, Clone, Debug)]
struct GivenPlace {
    /// Number of ranks to start on this machine [default: PET_NPROC_PER_NODE, which Kubeflow Trainer sets]
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_LOCAL_RANKS)))]
    nproc: Option<u32>,

    /// Number of machines. Run the same command on each, with its own --node and any --nproc; a failed rank restarts on
    /// its machine [default: that of a Slurm step or of Kubeflow Trainer, else 1]
    #[arg(long, value_name = "COUNT", visible_alias = "nnodes")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=8_192))]
    nodes: Option<u32>,

    /// Number of this machine, from 0; rank 0 runs on machine 0 [default: that of a Slurm step or of Kubeflow Trainer, else 0]
    #[arg(long, value_name = "NUMBER", visible_alias = "node-rank")]
    node: Option<u32>,
}

/// A machine, and the ranks to start on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MachinePlace {
    number: u32,
    machines: u32,
    ranks: u32,
    /// Where rank 0 listens, by the environment.
    master: Option<String>,
}

impl MachinePlace {
    /// By the command line, and for what it leaves open by the environment.
    fn of(given: &GivenPlace, variable: impl Fn(&str) -> Option<String>) -> Result<MachinePlace, UsageError> {
        // Whoever names the machine knows better than a step of Slurm with several tasks on it.
        let is_given = given.nodes.is_some() && given.node.is_some();
        let found = if is_given { Ok(None) } else { launcher::machine(&variable) };
        let found = found.map_err(|error| UsageError(error.to_string()))?;
        let of_found = |of: fn(&launcher::Machine) -> u32| found.as_ref().map(of);
        let machines = given.nodes.or_else(|| of_found(|found| found.machines)).unwrap_or(1);
        let number = given.node.or_else(|| of_found(|found| found.number)).unwrap_or(0);
        let Some(ranks) = given.nproc.or_else(|| found.as_ref()?.ranks) else {
            return Err(UsageError(
                "give the number of ranks to start on this machine: --nproc COUNT".to_owned(),
            ));
        };
        if number >= machines {
            return Err(UsageError(format!("node {number} is outside of {machines}; they count from 0")));
        }
        Ok(MachinePlace { number, machines, ranks, master: found.and_then(|found| found.master) })
    }
}

impl Launch {
    fn grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }
}

/// The orders to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    GoOn,
    Stop,
    End,
}

type Failure = Box<dyn Error>;

/// Runs a training to its end: the exit code.
pub(crate) fn run(launch: &Launch) -> Result<u8, Failure> {
    let launch = &Launch { place: MachinePlace::of(&launch.given, variable)?, ..launch.clone() };
    let settings = match &launch.program {
        Some(program) => RankSettings::program(program, launch)?,
        None => RankSettings::training(launch)?,
    };
    if launch.elastic && settings.resumes_at_step {
        let complaint = "--elastic resumes from the newest checkpoint whenever a rank has died: go back \
            with --resume STEP without it first";
        return Err(UsageError(complaint.to_owned()).into());
    }
    if launch.elastic && launch.place.machines > 1 {
        let complaint = "--elastic is for the ranks of one machine; leave it out, and every launcher \
            restarts its ranks when one has died";
        return Err(UsageError(complaint.to_owned()).into());
    }
    // All of it on this thread: ranks end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if launch.elastic {
        return runtime.block_on(elastic::supervise(launch, &settings));
    }
    runtime.block_on(supervise(launch, &settings))
}

/// Settings that the launcher derives for its ranks.
struct RankSettings {
    /// The rendezvous address that ranks receive, if the launcher chooses it.
    master: Option<String>,
    /// How its launcher meets those of other machines, if there are any.
    machines: Option<Machines>,
    /// Which files of a training are for each rank's own.
    report_is_for_all: bool,
    progress_is_for_all: bool,
    /// Where restarted ranks resume, for the log.
    goes_on: &'static str,
    /// The number of ranks is a multiple of this.
    multiple: u32,
    /// Whether they resume from the checkpoint of a given step.
    resumes_at_step: bool,
    /// The exit code of the launcher when all have stopped as they were asked to.
    stopped_code: u8,
}

impl RankSettings {
    /// This program, for a training.
    fn training(launch: &Launch) -> Result<RankSettings, Failure> {
        if launch.arguments.first().is_some_and(|first| !first.starts_with('-')) {
            return Err(UsageError("give the arguments of a training after --".to_owned()).into());
        }
        let name = "shardtrain".to_owned();
        let args = Args::try_parse_from(std::iter::once(&name).chain(&launch.arguments));
        let args = args.unwrap_or_else(|error| error.exit());
        args.check()?;
        let mut master = args.given_master();
        let mut machines = match launch.place.machines {
            1 => None,
            _ => Machines::of_training(&args, master.as_deref(), launch.grace())?,
        };
        if launch.place.machines > 1 && machines.is_none() && launch.place.master.is_some() {
            master.clone_from(&launch.place.master);
            machines = Machines::of_training(&args, master.as_deref(), launch.grace())?;
        }
        if launch.place.machines > 1 && machines.is_none() {
            let complaint =
                "ranks on several machines need an address of the first: --master HOST:PORT after --";
            return Err(UsageError(complaint.to_owned()).into());
        }
        let is_for_all = |path: &Option<PathBuf>| {
            path.as_ref().is_some_and(|path| path.to_string_lossy().contains("{rank}"))
        };
        Ok(RankSettings {
            master,
            machines,
            report_is_for_all: is_for_all(&args.report),
            progress_is_for_all: is_for_all(&args.progress),
            multiple: args.zero_group.map_or(1, std::num::NonZeroU32::get),
            resumes_at_step: matches!(args.resume, Resume::Step(_)),
            stopped_code: args.stopped_exit_code,
            goes_on: match args.checkpoints {
                Some(_) => " from the newest checkpoint",
                None => " from the beginning (there is no --checkpoints)",
            },
        })
    }

    /// Another one.
    fn program(program: &Path, launch: &Launch) -> Result<RankSettings, Failure> {
        let of_several = launch.place.master.clone().filter(|_| launch.place.machines > 1);
        let master = launcher::master(variable).or(of_several);
        if launch.place.machines > 1 && master.is_none() {
            let complaint =
                "ranks on several machines need an address of the first: set MASTER_ADDR and MASTER_PORT";
            return Err(UsageError(complaint.to_owned()).into());
        }
        if !program.is_file() {
            return Err(UsageError(format!("{} is no program", program.display())).into());
        }
        let machines = master.as_deref().filter(|_| launch.place.machines > 1);
        let machines = machines.map(|master| Machines::of_program(master, launch.grace()));
        Ok(RankSettings {
            master,
            machines,
            report_is_for_all: true,
            progress_is_for_all: true,
            goes_on: "",
            multiple: 1,
            resumes_at_step: false,
            stopped_code: 0,
        })
    }
}

async fn supervise(launch: &Launch, settings: &RankSettings) -> Result<u8, Failure> {
    let keeps_world = launch.place.machines > 1;
    // With other machines, the number of all ranks is known when their launchers have met.
    let min_ranks = if keeps_world { 0 } else { launch.min_ranks };
    let rules = Rules { min_ranks, max_restarts: launch.max_restarts, keeps_world };
    let mut signals = Signals::new()?;
    let (mut ranks, mut restarts) = (launch.place.ranks, 0);
    loop {
        let share = match &settings.machines {
            None => Some(Share { first: 0, world: ranks }),
            Some(machines) => machines.meet(launch, ranks, restarts > 0, &mut signals).await?,
        };
        let Some(share) = share else { return Ok(signals.end()) };
        if keeps_world && share.world < launch.min_ranks {
            let (world, min_ranks) = (share.world, launch.min_ranks);
            eprintln!(
                "shardtrain: all machines together have {world} ranks, and --min-ranks asks for {min_ranks}"
            );
            return Ok(1);
        }
        let round = Round { launch, ranks, share, restarts };
        let ends = round.run(settings, &mut signals).await?;
        match rules.judge(share.first, &ends, restarts, signals.stopped.is_some()) {
            Verdict::Done => return Ok(signals.done(settings)),
            Verdict::Ended => return Ok(signals.end()),
            Verdict::Over { code, cause } => {
                eprintln!("shardtrain: {cause}");
                return Ok(u8::try_from(code).unwrap_or(1));
            }
            Verdict::Again { ranks: left, cause } => {
                restarts += 1;
                let world = share.world - round.ranks + left;
                let continuing = continuing(left, world, launch.place.machines);
                eprintln!("shardtrain: {cause}; continuing with {continuing}{}", settings.goes_on);
                ranks = left;
            }
        }
    }
}

/// The ranks of a launcher, by number.
fn numbers(first: u32, last: u32) -> String {
    match first == last {
        true => format!("rank {first}"),
        false => format!("ranks {first} to {last}"),
    }
}

/// The ranks that continue: those of this machine, and of all where there are several.
fn continuing(here: u32, world: u32, machines: u32) -> String {
    let ranks = |count: u32| if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") };
    match machines {
        1 => ranks(here),
        _ => format!("{}, {here} of them on this machine", ranks(world)),
    }
}

/// The signals that a launcher is sent.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// The first that was sent.
    stopped: Option<i32>,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Signals { terminate, interrupt, stopped: None })
    }

    /// The exit code when all ranks have ended well: trained, or stopped with a checkpoint.
    fn done(&self, settings: &RankSettings) -> u8 {
        if self.stopped.is_some() { settings.stopped_code } else { 0 }
    }

    /// Ends as the first signal asks: the exit code.
    fn end(&self) -> u8 {
        eprintln!("shardtrain: ended as requested; the steps after the last checkpoint are lost");
        128 + self.stopped.and_then(|signal| u8::try_from(signal).ok()).unwrap_or(0)
    }

    /// The meaning of the next one.
    async fn next(&mut self) -> Order {
        let number = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        };
        if self.stopped.is_some() {
            return Order::End;
        }
        self.stopped = Some(number);
        Order::Stop
    }
}

/// One world, from its first process to its last.
struct Round<'a> {
    launch: &'a Launch,
    /// On this machine.
    ranks: u32,
    share: Share,
    /// The number of rounds before.
    restarts: u32,
}

impl Round<'_> {
    async fn run(&self, settings: &RankSettings, signals: &mut Signals) -> Result<Vec<End>, Failure> {
        let master = match &settings.master {
            Some(master) => Some(master.clone()),
            // Ranks of several machines meet through the nodes they read from.
            None if self.launch.place.machines > 1 => None,
            None => Some(free_address()?),
        };
        let (order, orders) = watch::channel(Order::GoOn);
        let mut ranks = JoinSet::new();
        let mut pids = Vec::new();
        for local in 0..self.ranks {
            let child = self.command(local, master.as_deref(), settings)?.spawn()?;
            pids.extend(child.id().map(|pid| pid.to_string()));
            ranks.spawn(tend(local, child, orders.clone()));
        }
        let Share { first, world } = self.share;
        let (last, pids) = (first + self.ranks - 1, pids.join(" "));
        eprintln!(
            "shardtrain: {} of {world} at {}, processes {pids}",
            numbers(first, last),
            master.as_deref().unwrap_or("where the servers say")
        );
        let mut ends = vec![End::Killed; self.ranks as usize];
        let mut patience = None;
        while !ranks.is_empty() {
            let limit = patience;
            tokio::select! {
                Some(ended) = ranks.join_next() => {
                    let (local, end): (u32, io::Result<End>) = ended?;
                    ends[local as usize] = end?;
                    if ends[local as usize] != End::Code(0) && patience.is_none() {
                        patience = Some(tokio::time::Instant::now() + self.launch.grace());
                    }
                }
                asked = signals.next() => {
                    order.send_replace(asked);
                }
                () = async { tokio::time::sleep_until(limit.expect("there is one")).await }, if limit.is_some() => {
                    order.send_replace(Order::End);
                    patience = None;
                }
            }
        }
        Ok(ends)
    }

    /// A rank, as torchrun would start it. It is in a group of its own, so that Ctrl-C reaches the launcher alone.
    fn command(&self, local: u32, master: Option<&str>, settings: &RankSettings) -> io::Result<Command> {
        let rank = self.share.first + local;
        let launcher = std::process::id().to_string();
        let mut command = match &self.launch.program {
            Some(program) => {
                let mut command = Command::new(program);
                let number = rank.to_string();
                command.args(self.launch.arguments.iter().map(|it| it.replace("{rank}", &number)));
                command.env(LAUNCHER, launcher);
                command
            }
            None => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(self.arguments(rank, settings)).args(["--launched-by", &launcher]);
                command
            }
        };
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.share.world.to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("LOCAL_WORLD_SIZE", self.ranks.to_string()),
            ("GROUP_RANK", self.launch.place.number.to_string()),
            (RESTARTS, self.restarts.to_string()),
        ];
        if let Some((host, port)) = master.and_then(|master| master.rsplit_once(':')) {
            command.env("MASTER_ADDR", host).env("MASTER_PORT", port);
        }
        command.envs(variables).stdin(std::process::Stdio::null()).process_group(0).kill_on_drop(true);
        Ok(command)
    }

    /// The rank's arguments: files that all would write to are rank 0's.
    fn arguments(&self, rank: u32, settings: &RankSettings) -> Vec<String> {
        let mut arguments = Vec::with_capacity(self.launch.arguments.len());
        let mut left = self.launch.arguments.iter();
        while let Some(argument) = left.next() {
            let (name, value) =
                argument.split_once('=').map_or((&argument[..], None), |(name, value)| (name, Some(value)));
            let is_kept = match name {
                "--report" => rank == 0 || settings.report_is_for_all,
                "--progress" => rank == 0 || settings.progress_is_for_all,
                _ => {
                    arguments.push(argument.clone());
                    continue;
                }
            };
            let value = value.map(str::to_owned).or_else(|| left.next().cloned()).unwrap_or_default();
            if is_kept {
                arguments.push(format!("{name}={}", value.replace("{rank}", &rank.to_string())));
            }
        }
        arguments
    }
}

/// Waits for a rank, and passes orders on to it.
async fn tend(local: u32, mut child: Child, mut orders: watch::Receiver<Order>) -> (u32, io::Result<End>) {
    let mut is_killed = false;
    loop {
        tokio::select! {
            ended = child.wait() => return (local, ended.map(|status| end(status, is_killed))),
            Ok(()) = orders.changed() => match *orders.borrow_and_update() {
                Order::GoOn => {}
                Order::Stop => {
                    // It has an id until it has been waited for, which is here alone.
                    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
                    if let Some(pid) = pid
                        && let Err(error) = kill_process(pid, Signal::TERM)
                    {
                        return (local, Err(error.into()));
                    }
                }
                Order::End => {
                    is_killed = true;
                    if let Err(error) = child.start_kill() {
                        return (local, Err(error));
                    }
                }
            },
        }
    }
}

fn end(status: ExitStatus, is_killed: bool) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Code(code),
        (None, Some(signal)) if !(is_killed && signal == Signal::KILL.as_raw()) => End::Signal(signal),
        (None, _) => End::Killed,
    }
}

/// An address of this machine that is free.
fn free_address() -> io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_comes_before_the_environment() {
        let given = |nproc, nodes, node| GivenPlace { nproc, nodes, node };
        let slurm = |tasks: &'static str| {
            move |name: &str| {
                let value = match name {
                    "SLURM_STEP_NUM_NODES" => "3",
                    "SLURM_STEP_NUM_TASKS" => tasks,
                    "SLURM_NODEID" => "2",
                    "SLURM_STEP_NODELIST" => "n[4-6]",
                    _ => return None,
                };
                Some(value.to_owned())
            }
        };
        let place = MachinePlace::of(&given(Some(2), None, None), slurm("3")).unwrap();
        let expected = MachinePlace { number: 2, machines: 3, ranks: 2, master: Some("n4:29500".to_owned()) };
        assert_eq!(place, expected);
        let place = MachinePlace::of(&given(Some(2), Some(4), Some(1)), slurm("6")).unwrap();
        assert_eq!(place, MachinePlace { number: 1, machines: 4, ranks: 2, master: None });
        let refusal = |given, tasks| MachinePlace::of(&given, slurm(tasks)).unwrap_err().0;
        assert!(refusal(given(None, None, None), "3").contains("--nproc"));
        assert!(refusal(given(Some(2), Some(2), None), "3").contains("node 2 is outside of 2"));
        assert!(refusal(given(Some(2), None, None), "6").contains("6 tasks on 3 machines"));
    }

    #[test]
    fn ranks_are_counted_over_all_machines() {
        assert_eq!((numbers(0, 0), numbers(2, 3)), ("rank 0".to_owned(), "ranks 2 to 3".to_owned()));
        assert_eq!((continuing(1, 1, 1), continuing(2, 2, 1)), ("1 rank".to_owned(), "2 ranks".to_owned()));
        assert_eq!(continuing(2, 6, 3), "6 ranks, 2 of them on this machine");
    }
}
