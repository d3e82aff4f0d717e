//! The command line: the flags of a training, or a subcommand.

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::args::{Args, settings, told};
use crate::bench_comm::BenchCommArgs;
use crate::export::Export;
use crate::launch::Launch;
use crate::plan::PlanArgs;
use crate::records::{Bisect, Rerun};

/// Train a model on a shardd dataset, as one rank of a run
///
/// Start one process for each rank, with the same flags, by torchrun, `srun` of Slurm or `mpirun`: each finds its rank in the
/// environment. `shardtrain run` starts all ranks of a machine. The weights depend on the data, the plan, the flags and the number of
/// virtual ranks, but not on the number of ranks. Exit codes: 0 trained, 1 failed, 2 usage error, 3 another rank is lost or late.
#[derive(Parser, Debug)]
#[command(name = "shardtrain", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    /// Command to run instead of training as one rank
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    #[command(flatten)]
    pub(crate) args: Args,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(Launch),
    BenchComm(BenchCommArgs),
    Plan(PlanArgs),
    Rerun(Rerun),
    Bisect(Bisect),
    Export(Export),
}

impl Cli {
    /// Parses the command line; exits with a message if it is wrong.
    pub(crate) fn parse_or_exit() -> Cli {
        let matches = Cli::command().get_matches();
        let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if cli.command.is_none()
            && let Err(error) = cli.args.take_place(&matches)
        {
            Cli::command().error(ErrorKind::InvalidValue, error).exit();
        }
        cli.args.told = told(&matches);
        cli.args.settings = settings(&matches);
        cli
    }
}
