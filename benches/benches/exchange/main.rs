//! The exchange between two processes over loopback, beside a plain loop of the same steps.
//!
//! `cargo bench -p shardd-benches --bench exchange` prints the table; with `-- --link` the one of what training on a slow link
//! feels of it.

mod link;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use shardd_benches::exchange::data::Set;
use shardd_benches::exchange::{Figures, Part, Play, pair};
use shardd_benches::figures;

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

    #[command(flatten)]
    play: Play,

    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.play.play()? {
        return Ok(());
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
            if let (Some(plain), Some(ours)) = (plain.last(), ours.last()) {
                let speed = |of: &Figures| of.bytes as f64 / 1e6 / of.seconds;
                figures::report(&format!("exchange/{sample}"), speed(ours), speed(plain));
            }
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
