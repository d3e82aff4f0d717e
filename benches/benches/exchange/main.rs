//! The exchange between two processes over loopback, beside a plain loop of the same steps.
//!
//! `cargo bench -p shardd-benches --bench exchange` prints the table; with `-- --link` the one of what training on a slow link
//! feels of it. Every process is this program again, with a part to
//! play; they talk to the one that started them in lines.

mod data;
mod link;
mod node;
mod plain;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use data::Set;

/// The exchange beside a plain loop
#[derive(Parser)]
struct Options {
    /// Bytes of samples in all; half of them move
    #[arg(long, default_value_t = 256 << 20)]
    bytes: u64,

    /// How often each is measured; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Only samples of this number of bytes
    #[arg(long)]
    only: Option<usize>,

    /// Another build of this bench, whose nodes are to be measured instead
    #[arg(long)]
    nodes: Option<PathBuf>,

    /// Measure what the exchange costs training on a slow link instead
    #[arg(long)]
    link: bool,

    /// The part of a process that this program starts
    #[arg(long, hide = true, requires_all = ["home", "number"])]
    part: Option<Part>,

    /// The directory of the pair that the process is of
    #[arg(long, hide = true)]
    home: Option<PathBuf>,

    /// Which of the two it is
    #[arg(long, hide = true)]
    number: Option<usize>,

    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A node.
    Node,
    /// One end of the plain loop.
    Plain,
}

/// The work of a pair of processes.
#[derive(Clone, Copy, Debug)]
struct Figures {
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let (Some(part), Some(home), Some(number)) = (options.part, &options.home, options.number) {
        let runtime = tokio::runtime::Runtime::new()?;
        return match part {
            Part::Node => runtime.block_on(node::play(home, number)),
            Part::Plain => runtime.block_on(plain::play(home, number)),
        };
    }
    if options.link {
        return tokio::runtime::Runtime::new()?.block_on(link::measure(options.rounds));
    }
    println!(
        "{:>10} {:>8} {:>6} {:>12} {:>12} {:>6} {:>12} {:>12}",
        "sample", "grain", "MB", "plain MB/s", "shardd MB/s", "ratio", "plain cpu/GB", "shardd cpu/GB"
    );
    let own = std::env::current_exe()?;
    let nodes = options.nodes.as_ref().unwrap_or(&own);
    let sizes = [784, 3 << 10, 150_000];
    for sample in sizes.into_iter().filter(|size| options.only.is_none_or(|only| only == *size)) {
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        let mut grain_bytes = 0;
        // In turns, so that what else the machine does falls on both.
        for _ in 0..options.rounds {
            let home = tempfile::tempdir()?;
            let set = Set::make(home.path(), sample, options.bytes)?;
            grain_bytes = set.grain_bytes;
            plain.push(pair(&own, home.path(), Part::Plain)?);
            ours.push(pair(nodes, home.path(), Part::Node)?);
        }
        let (plain, ours) = (median(plain), median(ours));
        let speed = |of: &Figures| of.bytes as f64 / 1e6 / of.seconds;
        let cost = |of: &Figures| of.cpu_seconds / (of.bytes as f64 / 1e9);
        println!(
            "{sample:>10} {grain_bytes:>8} {:>6.0} {:>12.0} {:>12.0} {:>6.2} {:>12.2} {:>12.2}",
            ours.bytes as f64 / 1e6,
            speed(&plain),
            speed(&ours),
            speed(&ours) / speed(&plain),
            cost(&plain),
            cost(&ours),
        );
    }
    Ok(())
}

/// The figures of the round whose speed is in the middle.
fn median(mut rounds: Vec<Figures>) -> Figures {
    let speed = |of: &Figures| of.bytes as f64 / of.seconds;
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    rounds[rounds.len() / 2]
}

/// Lets two processes play their part to the end.
fn pair(program: &Path, home: &Path, part: Part) -> Result<Figures> {
    let (mut a, mut b) = (Process::start(program, home, part, 0)?, Process::start(program, home, part, 1)?);
    let (of_a, of_b): (SocketAddr, SocketAddr) = (a.hear()?.parse()?, b.hear()?.parse()?);
    a.say(&of_b.to_string())?;
    b.say(&of_a.to_string())?;
    for process in [&mut a, &mut b] {
        ensure!(process.hear()? == "ready", "a process is not ready");
    }
    let began = Instant::now();
    a.say("go")?;
    b.say("go")?;
    let mut figures = Figures { bytes: 0, seconds: 0.0, cpu_seconds: 0.0 };
    for process in [&mut a, &mut b] {
        let heard = process.hear()?;
        let (bytes, cpu_seconds) = heard.split_once(' ').context("two figures")?;
        figures.bytes += bytes.parse::<u64>()?;
        figures.cpu_seconds += cpu_seconds.parse::<f64>()?;
        figures.seconds = began.elapsed().as_secs_f64();
    }
    a.end()?;
    b.end()?;
    Ok(figures)
}

/// A process that plays a part.
struct Process {
    child: Child,
    tell: Option<ChildStdin>,
    heard: BufReader<ChildStdout>,
}

impl Process {
    fn start(program: &Path, home: &Path, part: Part, number: usize) -> Result<Process> {
        let mut command = Command::new(program);
        let part = part.to_possible_value().context("every part has a name")?;
        command.args(["--part", part.get_name(), "--number", &number.to_string(), "--home"]).arg(home);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let heard = BufReader::new(child.stdout.take().context("it was asked for")?);
        Ok(Process { tell: child.stdin.take(), child, heard })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.tell.as_mut().context("it was asked for")?, "{line}")?)
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.heard.read_line(&mut line)? > 0, "a process ended without a word");
        Ok(line.trim_end().to_owned())
    }

    fn end(mut self) -> Result<()> {
        drop(self.tell.take());
        ensure!(self.child.wait()?.success(), "a process failed");
        Ok(())
    }
}

/// The next command to the process.
fn told() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
