//! The exchange between two processes over loopback, and a plain loop of the same steps. Every process is the program that
//! measures, started again with a [`Part`]; it talks to the one that started it in lines.

pub mod data;
pub mod node;
mod plain;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

/// What one of two processes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A node.
    Node,
    /// One end of the plain loop.
    Plain,
}

/// The flags by which a program starts itself again with a part.
#[derive(Args, Clone, Debug)]
pub struct Play {
    /// The part of a process that this program starts
    #[arg(long, hide = true, requires_all = ["home", "number"])]
    part: Option<Part>,

    /// The directory of the pair that the process belongs to
    #[arg(long, hide = true)]
    home: Option<PathBuf>,

    /// Which of the two it is
    #[arg(long, hide = true)]
    number: Option<usize>,
}

impl Play {
    /// Plays the part to its end, if these flags have one; whether they have.
    ///
    /// # Errors
    /// When the other process is gone, or the disk is full.
    pub fn play(&self) -> Result<bool> {
        let (Some(part), Some(home), Some(number)) = (self.part, &self.home, self.number) else {
            return Ok(false);
        };
        let runtime = tokio::runtime::Runtime::new()?;
        match part {
            Part::Node => runtime.block_on(node::play(home, number))?,
            Part::Plain => runtime.block_on(plain::play(home, number))?,
        }
        Ok(true)
    }
}

/// The work of a pair of processes.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Bytes that both received.
    pub bytes: u64,
    /// From the signal to begin until both were done.
    pub seconds: f64,
    /// Seconds that processors worked for both.
    pub cpu_seconds: f64,
}

/// Lets two processes of `program` play their part to the end, over the data made in `home`.
///
/// # Errors
/// When one of them fails; its standard error goes where this process's goes.
pub fn pair(program: &Path, home: &Path, part: Part) -> Result<Figures> {
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
fn command() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
