//! `shardctl`: the command line of shardd, for people (tables, progress bars) and for scripts (`--json`, exit codes).
//!
//! One small file per command. Exit codes are in `cli.rs`.

mod addresses;
mod append;
mod ask;
mod audit;
mod balancer;
mod certs;
mod checkpoints;
mod cli;
mod completions;
mod context;
mod cost;
mod demo;
mod derive;
mod diff;
mod doctor;
mod drain;
mod events;
mod evict;
mod exchange;
mod explain;
mod export;
mod failure;
mod forget;
mod gc;
mod head;
mod holders;
mod human;
mod imagined;
mod info;
mod ingest;
mod log;
mod ls;
mod man;
mod metastore;
mod nodes;
mod output;
mod partition;
mod plain;
mod plan;
mod progress;
mod promote;
mod prune;
mod read;
mod rebalance;
mod recommend_q;
mod recover;
mod replay;
mod reshard;
mod restore;
mod rm;
mod runs;
mod signals;
mod simulate;
mod status;
mod strata;
mod table;
mod tag;
mod token;
mod top;
mod values;
mod verify;
mod warm;
mod work;

use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::ErrorKind;
use mimalloc::MiMalloc;

use cli::{Cli, Command, subcommands};
use failure::{Failure, usage_line};

/// Large buffers come and go by the gigabyte: from the system's allocator each is fresh pages, which cost more than all
/// computing. This one takes huge pages, keeps them for a second, and uses them again.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    shardd_store::tls::use_ring();
    let cli = match Cli::parse_arguments() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    let json = cli.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Differs) {
                output::error(json, &failure.to_string(), failure.exit_code());
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { connect, json, command } = cli;
    match command {
        Command::Ingest(command) => command.run(&connect, json),
        Command::Ls(command) => command.run(&connect, json),
        Command::Info(command) => command.run(&connect, json),
        Command::Head(command) => command.run(&connect, json),
        Command::Log(command) => command.run(&connect, json),
        Command::Diff(command) => command.run(&connect, json),
        Command::Append(command) => command.run(&connect, json),
        Command::Reshard(command) => command.run(&connect, json),
        Command::Derive(command) => command.run(&connect, json),
        Command::Export(command) => command.run(&connect, json),
        Command::Tag(command) => command.run(&connect, json),
        Command::Restore(command) => command.run(&connect, json),
        Command::Rm(command) => command.run(&connect, json),
        Command::Prune(command) => command.run(&connect, json),
        Command::Forget(command) => command.run(&connect, json),
        Command::Gc(command) => command.run(&connect, json),
        Command::Recover(command) => command.run(&connect, json),
        Command::Partition(command) => command.run(&connect, json),
        Command::Plan(command) => command.run(&connect, json),
        Command::Simulate(command) => command.run(json),
        Command::Cost(command) => command.run(&connect, json),
        Command::Status(command) => command.run(&connect, json),
        Command::Top(command) => command.run(&connect, json),
        Command::Events(command) => command.run(&connect, json),
        Command::Doctor(command) => command.run(&connect, json),
        Command::Drain(command) => command.run(&connect, json),
        Command::Join(command) => command.run(&connect, json),
        Command::Leave(command) => command.run(&connect, json),
        Command::Promote(command) => command.run(&connect, json),
        Command::Metastore(command) => command.run(&connect, json),
        Command::Rebalance(command) => command.run(&connect, json),
        Command::Warm(command) => command.run(&connect, json),
        Command::Evict(command) => command.run(&connect, json),
        Command::Balancer(command) => command.run(&connect, json),
        Command::Exchange(command) => command.run(&connect, json),
        Command::Explain(command) => command.run(&connect, json),
        Command::Token(command) => command.run(&connect, json),
        Command::Certs(command) => command.run(&connect, json),
        Command::Verify(command) => command.run(&connect, json),
        Command::Read(command) => command.run(&connect, json),
        Command::Replay(command) => command.run(&connect, json),
        Command::Audit(command) => command.run(&connect, json),
        Command::Runs(command) => command.run(&connect, json),
        Command::Demo(command) => command.run(&connect, json),
        Command::Context(command) => command.run(&connect, json),
        Command::Completions(command) => {
            command.run(Cli::command(), json);
            Ok(())
        }
        Command::Man(command) => command.run(Cli::command(), json),
    }
}

/// Help and version go to standard output and are no failure; everything else is one line and exit code 2.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(&error.render().ansi().to_string());
        return ExitCode::SUCCESS;
    }
    // An invalid command line also chooses the form of its answer.
    let json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let no_command = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if no_command && !json {
        anstream::eprint!("{}", error.render().ansi());
        return ExitCode::from(2);
    }
    let words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let help = format!("shardctl {}--help", subcommands(words));
    let said = match no_command {
        true => format!("a subcommand is missing; see `{help}`"),
        false => usage_line(&error.render().to_string(), &help),
    };
    output::error(json, &said, 2);
    ExitCode::from(2)
}
