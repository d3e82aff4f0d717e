//! `shardctl`: the command line of shardd, for people (tables, progress bars) and for scripts (`--json`, exit codes).
//!
//! One small file per command. Exit codes: 0 done, 1 failed, 2 asked wrongly or ambiguously; of `diff`,
//! 0 the same, 1 different, 2 not compared.

mod append;
mod connect;
mod demo;
mod diff;
mod export;
mod failure;
mod gc;
mod human;
mod info;
mod ingest;
mod log;
mod ls;
mod output;
mod partition;
mod plan;
mod progress;
mod read;
mod reshard;
mod restore;
mod rm;
mod signals;
mod status;
mod table;
mod tag;
mod verify;
mod work;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use connect::Connect;
use failure::{Failure, usage_line};
use mimalloc::MiMalloc;

/// Large buffers come and go by the gigabyte: from the system's allocator each is fresh pages, which cost more than all
/// computing. This one takes huge pages, keeps them for a second, and uses them again.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Datasets, plans and nodes of shardd
#[derive(Parser)]
#[command(name = "shardctl", version, about, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    connect: Connect,

    /// Print JSON instead of tables: one value, or one line per step of long work
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ingest(ingest::Ingest),
    Ls(ls::Ls),
    Info(info::Info),
    Log(log::Log),
    Diff(diff::Diff),
    Append(append::Append),
    Reshard(reshard::Reshard),
    Export(export::Export),
    Tag(tag::Tag),
    Restore(restore::Restore),
    Rm(rm::Rm),
    Gc(gc::Gc),
    Partition(partition::Partition),
    Plan(plan::Plan),
    Status(status::Status),
    Verify(verify::Verify),
    Read(read::Read),
    Demo(demo::Demo),
}

fn main() -> ExitCode {
    shardd_client::tls::use_ring();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Differs) {
                eprintln!("error: {failure}");
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
        Command::Log(command) => command.run(&connect, json),
        Command::Diff(command) => command.run(&connect, json),
        Command::Append(command) => command.run(&connect, json),
        Command::Reshard(command) => command.run(&connect, json),
        Command::Export(command) => command.run(&connect, json),
        Command::Tag(command) => command.run(&connect, json),
        Command::Restore(command) => command.run(&connect, json),
        Command::Rm(command) => command.run(&connect, json),
        Command::Gc(command) => command.run(&connect, json),
        Command::Partition(command) => command.run(&connect, json),
        Command::Plan(command) => command.run(&connect, json),
        Command::Status(command) => command.run(&connect, json),
        Command::Verify(command) => command.run(&connect, json),
        Command::Read(command) => command.run(&connect, json),
        Command::Demo(command) => command.run(&connect, json),
    }
}

/// Help and version go to standard output and are no failure; everything else is one line and exit code 2.
fn explain(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::print(&error.render().to_string());
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{}", error.render());
        return ExitCode::from(2);
    }
    let is_command = |word: &String| Cli::command().find_subcommand(word).is_some();
    let command = std::env::args().skip(1).find(is_command);
    let help = format!("shardctl {}--help", command.map(|word| word + " ").unwrap_or_default());
    eprintln!("error: {}", usage_line(&error.render().to_string(), &help));
    ExitCode::from(2)
}
