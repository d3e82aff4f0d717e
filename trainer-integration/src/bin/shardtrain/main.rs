//! `shardtrain`: one rank of a training run. Start it once per rank with the same settings, or once alone; or have `shardtrain run` start
//! them.
//!
//! Exit codes: 0 trained, 1 failed, 2 usage error, 3 another rank is lost or late (start the run again); of
//! `rerun` and `bisect` 0 the same, 1 different, 2 not compared.

mod args;
mod bench_comm;
mod cli;
mod expected;
mod export;
mod launch;
mod log_to;
mod output;
mod plan;
mod records;
mod session;
mod status;
mod step_losses;
mod tls;
mod train_job;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use mimalloc::MiMalloc;
use shardd_store::connect::ConnectError;
use shardd_telemetry::Service;
use shardd_trainer::checkpoint::CheckpointError;
use shardd_trainer::collective::CollectiveError;
use shardd_trainer::collective::nccl::NcclError;
use shardd_trainer::collective::tcp::{JoinError, MeetError, TlsError};
use shardd_trainer::device::DeviceError;
use shardd_trainer::error::TrainError;
use shardd_trainer::launch_env::OTHERS_ARE_GONE;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;

use args::UsageError;
use cli::{Cli, Command};
use log_to::LogError;

/// Every layer's tensors come and go in every step. The system's allocator gives their pages back each time and gets fresh
/// ones, which took a sixth of the processor time of training a small model; this one keeps them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let Cli { command, mut args } = Cli::parse_or_exit();
    let warnings = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let warnings = warnings.with_ansi(std::io::stderr().is_terminal()).with_filter(LevelFilter::WARN);
    // The rank of a process that trains: of the other commands, none sends much.
    let instance = command.is_none().then(|| format!("rank-{}", args.rank));
    let service = Service { name: "shardtrain", version: env!("CARGO_PKG_VERSION"), instance };
    // Dropped at the end: it sends the last spans.
    let _exporting = match shardd_telemetry::init(warnings, &service) {
        Ok(exporting) => exporting,
        Err(error) => {
            eprintln!("shardtrain: {error}");
            return ExitCode::from(2);
        }
    };
    let is_without_data = matches!(command, Some(Command::Run(_) | Command::Plan(_) | Command::BenchComm(_)));
    if is_without_data && args.connect.is_given() {
        let reason =
            "the flags under Connection belong to the ranks: for `shardtrain run`, give them after --";
        eprintln!("shardtrain: {reason}; `plan` and `bench-comm` read no data");
        return ExitCode::from(2);
    }
    let (outcome, who) = match &command {
        None => {
            let outcome = session::run(&mut args);
            (outcome, format!("rank {}: ", args.rank))
        }
        Some(Command::Run(launch)) => (launch::run(launch), String::new()),
        Some(Command::Rerun(rerun)) => (records::rerun(rerun, &args), format!("rank {}: ", rerun.rank())),
        Some(Command::Bisect(bisect)) => (records::bisect(bisect, &args), "bisect: ".to_owned()),
        Some(Command::Export(export)) => (export::run(export, &args).map(|()| 0), "export: ".to_owned()),
        Some(Command::Plan(args)) => (plan::run(args), "plan: ".to_owned()),
        Some(Command::BenchComm(args)) => (bench_comm::run(args).map(|()| 0), "bench-comm: ".to_owned()),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("shardtrain: {who}{}", chain(&*error));
            let is_comparison = matches!(command, Some(Command::Rerun(_) | Command::Bisect(_)));
            ExitCode::from(match code(&*error) {
                1 if is_comparison && !differs(&*error) => 2,
                code => code,
            })
        }
    }
}

fn code(error: &(dyn Error + 'static)) -> u8 {
    if error.is::<UsageError>() || error.is::<DeviceError>() || error.is::<TlsError>() {
        return 2;
    }
    if let Some(LogError::Refused { .. }) = error.downcast_ref() {
        return 2;
    }
    if let Some(MeetError::Refused { .. } | MeetError::Untrusted { .. }) = error.downcast_ref() {
        return 2;
    }
    if error.downcast_ref::<ConnectError>().is_some_and(ConnectError::is_usage) {
        return 2;
    }
    match error.downcast_ref() {
        Some(CheckpointError::Collective(_)) => return OTHERS_ARE_GONE,
        Some(CheckpointError::HasBegun { .. } | CheckpointError::NoSuch { .. }) => return 2,
        _ => {}
    }
    match (error.downcast_ref(), error.downcast_ref()) {
        (
            Some(TrainError::TooManyRanks { .. } | TrainError::Checkpoint(CheckpointError::Settings { .. })),
            _,
        ) => 2,
        (Some(TrainError::Device(_) | TrainError::Groups(_)), _) => 2,
        (Some(TrainError::Nccl(error)), _) if error.is_usage() => 2,
        (Some(TrainError::Nccl(NcclError::Late { .. })), _) => OTHERS_ARE_GONE,
        (Some(TrainError::Collective(_)), _) => OTHERS_ARE_GONE,
        _ if is_unevaluated_without_others(error) => OTHERS_ARE_GONE,
        _ if error.is::<CollectiveError>() => OTHERS_ARE_GONE,
        (_, Some(JoinError::Untrusted { .. } | JoinError::Certificates(_))) => 2,
        (
            _,
            Some(
                JoinError::NoMaster { .. }
                | JoinError::NoRendezvous { .. }
                | JoinError::Missing { .. }
                | JoinError::GivenUp
                | JoinError::Peer { .. },
            ),
        ) => OTHERS_ARE_GONE,
        _ => 1,
    }
}

/// Whether a training is not the one it was compared with: what else keeps it from being compared is another thing.
fn differs(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(TrainError::Rerun(_)))
}

fn is_unevaluated_without_others(error: &(dyn Error + 'static)) -> bool {
    let unevaluated = error.downcast_ref::<session::Unevaluated>();
    unevaluated.is_some_and(|error| matches!(*error.0, TrainError::Collective(_)))
}

/// An error and its causes in one line; a cause that its effect already quotes is left out.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}
