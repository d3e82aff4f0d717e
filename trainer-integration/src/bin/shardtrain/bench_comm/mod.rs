//! `shardtrain bench-comm`: how fast ranks talk, by operation, size and algorithm.

mod measure;
mod table;

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use shardd_trainer::collective::sums::{Operation, choose};
use shardd_trainer::collective::tcp::{Rendezvous, TcpOptions, TlsError, connect};
use shardd_trainer::collective::{Collective, Link, threads};
use shardfmt::ByteSize;

use crate::args::UsageError;
use crate::tls::{TlsArgs, ca_of_env};
use measure::{Case, Task, Way, cases, measure};

type Failure = Box<dyn Error>;

/// Measure latency and bandwidth between ranks, by operation, size and algorithm
///
/// Starts all ranks on this machine; across machines, start it once per rank with --rank, --world and --master. Figures
/// are those of rank 0, medians; a size is that of each rank's numbers. Algorithm bandwidth is size by time, bus bandwidth the
/// bytes that a rank has to send at least, by time.
#[derive(Args, Debug)]
pub(crate) struct BenchCommArgs {
    /// Number of ranks
    #[arg(long, default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    world: u32,

    /// Transport of messages
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,

    /// Bytes of f32 that each rank has
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    #[arg(default_value = "256B,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB")]
    sizes: Vec<ByteSize>,

    /// The operations to measure [default: all operations]
    #[arg(long, value_enum, value_name = "NAME,…", value_delimiter = ',')]
    operations: Vec<Task>,

    /// Milliseconds to measure each line
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 400)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Be one rank of a world that is started one by one
    #[arg(long, requires = "master", conflicts_with = "transport")]
    rank: Option<u32>,

    /// Where rank 0 listens for the others
    #[arg(long, value_name = "HOST:PORT", requires = "rank")]
    master: Option<String>,

    /// Seconds to wait for all ranks to appear
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    join_timeout: u64,

    /// Seconds an operation may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,

    #[command(flatten)]
    tls: TlsArgs,

    /// Measure all-reduce once for each number of bytes on a line of standard input, to take turns with another program
    #[arg(long, hide = true)]
    turns: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Ranks are threads that read each other's memory
    Threads,
    /// Ranks are processes that are connected by TCP
    Tcp,
}

/// All of it, as one rank or as the one that starts the others.
pub(crate) fn run(args: &BenchCommArgs) -> Result<(), Failure> {
    if let Some(rank) = args.rank
        && rank >= args.world
    {
        let why = format!("rank {rank} is outside a world of {}; ranks count from 0", args.world);
        return Err(UsageError(why).into());
    }
    match (args.rank, &args.master, args.transport) {
        (Some(rank), Some(master), _) => {
            let mut collective = connect(master, rank, args.world, &args.options()?)?;
            args.attend(&mut collective)
        }
        (_, _, Transport::Threads) => args.in_threads(),
        (_, _, Transport::Tcp) => args.in_processes(),
    }
}

/// The other ranks, killed if this one fails.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            let _ = rank.kill(); // it may have ended
            let _ = rank.wait();
        }
    }
}

impl BenchCommArgs {
    fn options(&self) -> Result<TcpOptions, TlsError> {
        Ok(TcpOptions {
            run: "bench-comm".to_owned(),
            join_timeout: Duration::from_secs(self.join_timeout),
            timeout: Duration::from_secs(self.timeout.max(1)),
            tls: self.tls.open(ca_of_env().as_deref())?,
            ..TcpOptions::default()
        })
    }

    fn in_threads(&self) -> Result<(), Failure> {
        let members = threads::world(self.world, Duration::from_secs(self.timeout.max(1)));
        let outcomes = threads::spawn_on(members, |mut collective| {
            // Errors cross to the main thread as text.
            self.attend(&mut collective).map_err(|error| crate::chain(&*error))
        });
        outcomes.into_iter().collect::<Result<(), String>>().map_err(Failure::from)
    }

    fn in_processes(&self) -> Result<(), Failure> {
        let (rendezvous, options) = (Rendezvous::bind("127.0.0.1:0")?, self.options()?);
        let mut ranks = Ranks(Vec::new());
        for rank in 1..self.world {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("bench-comm").args(["--world", &self.world.to_string(), "--rank", &rank.to_string()]);
            command.args(["--master", rendezvous.address(), "--timeout", &self.timeout.to_string()]);
            command.args(["--time", &self.time.to_string()]);
            for (flag, file) in self.tls.repeated() {
                command.arg(flag).arg(file);
            }
            if self.turns {
                command.arg("--turns");
            }
            let sizes: Vec<String> = self.sizes.iter().map(|size| size.0.to_string()).collect();
            command.args(["--sizes", &sizes.join(",")]);
            if !self.operations.is_empty() {
                let names: Vec<&str> = self.operations.iter().map(|task| task.name()).collect();
                command.args(["--operations", &names.join(",")]);
            }
            ranks.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
        }
        let mut collective = rendezvous.host(self.world, &options)?;
        self.attend(&mut collective)?;
        for mut rank in std::mem::take(&mut ranks.0) {
            rank.wait()?;
        }
        Ok(())
    }

    /// One rank's part; rank 0 prints.
    fn attend(&self, collective: &mut dyn Collective) -> Result<(), Failure> {
        if self.turns {
            return take_turns(collective, Duration::from_millis(self.time));
        }
        let prints = collective.rank() == 0 && !self.json;
        let mut rows = Vec::new();
        let tasks: &[Task] =
            if self.operations.is_empty() { Task::value_variants() } else { &self.operations };
        let mut last = None;
        for case in cases(tasks, &self.sizes, collective.hosts()) {
            let row = measure(collective, case, Duration::from_millis(self.time))?;
            if prints {
                if last != Some(case.task) {
                    table::heading(case.task, collective)?;
                }
                table::line(&row)?;
            }
            last = Some(case.task);
            rows.push(row);
        }
        if prints {
            table::crossovers(&rows, collective)?;
        } else if collective.rank() == 0 {
            let is_encrypted = collective.link() == Link::Network && !self.tls.repeated().is_empty();
            table::json(&rows, collective, is_encrypted)?;
        }
        Ok(())
    }
}

/// Rank 0 reads sizes until there are no more, and the others hear them from it.
fn take_turns(collective: &mut dyn Collective, time: Duration) -> Result<(), Failure> {
    // Of ranks that are threads only one may have it: it is locked.
    let mut lines = (collective.rank() == 0).then(|| std::io::stdin().lines());
    loop {
        let asked = lines.as_mut().and_then(Iterator::next).transpose()?;
        let bytes: u64 = match asked {
            Some(line) => {
                line.trim().parse().map_err(|_| UsageError(format!("{line:?} is not a number of bytes")))?
            }
            None => 0,
        };
        let heard = collective.broadcast(0, &bytes.to_le_bytes())?;
        let bytes = heard.bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if bytes == 0 {
            return Ok(());
        }
        let algorithm = choose(Operation::AllReduce, bytes as usize, collective.link(), collective.hosts());
        let case = Case { task: Task::AllReduce, bytes: bytes as usize, way: Way::Sum(algorithm) };
        let row = measure(collective, case, time)?;
        if collective.rank() == 0 {
            table::turn(&row)?;
        }
    }
}

fn link_name(link: Link) -> &'static str {
    match link {
        Link::Memory => "threads",
        Link::Network => "tcp",
    }
}
