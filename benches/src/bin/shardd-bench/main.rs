//! One benchmark of a few seconds beside its yardstick, as a line of JSON: the program that `benches/run` builds and runs,
//! again and again.

mod data;
mod nodes;
mod training;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use shardd_benches::exchange::Play;
use shardd_benches::figures::Sample;
use shardd_benches::pairs::{Pair, Pairs, SLOW};

/// As in `shardctl`, `shardd` and `shardtrain`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures one benchmark.
type Run = fn(&Pairs) -> Result<Pair>;

/// The benchmarks by name. `benches/guard/registry.py` says what each measures beside what.
const BENCHMARKS: [(&str, Run); 18] = [
    ("gather/784", |pairs| data::gather(pairs, 784)),
    ("gather/3072", |pairs| data::gather(pairs, 3072)),
    ("verify/784", data::verify),
    ("loading/epoch", data::loading),
    ("plan/order", data::plan_order),
    ("plan/lookup", data::plan_lookup),
    ("manifest/open", data::manifest_open),
    ("manifest/decode", data::manifest_decode),
    ("ingest/parquet", data::ingest),
    ("resume/table", data::resume),
    ("cache/hit", nodes::cache_hit),
    ("cache/miss", nodes::cache_miss),
    ("cache/open", nodes::cache_open),
    ("exchange/3072", nodes::exchange),
    ("http/listing", nodes::http_listing),
    ("engine/mlp", training::engine),
    ("overlap/buckets", training::overlap),
    ("zero/3", training::zero),
];

/// One benchmark beside its yardstick
#[derive(Parser)]
struct Options {
    /// Benchmark to run [default: print the names of all]
    name: Option<String>,

    /// Milliseconds to measure for
    #[arg(long, default_value_t = 600, value_name = "MS")]
    budget: u64,

    /// Print the directory of the sources that this program was built from
    #[arg(long)]
    source: bool,

    #[command(flatten)]
    play: Play,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.play.play()? {
        return Ok(());
    }
    if options.source {
        println!("{}", env!("CARGO_MANIFEST_DIR"));
        return Ok(());
    }
    let Some(name) = &options.name else {
        BENCHMARKS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let found = BENCHMARKS.iter().find(|(known, _)| known == name);
    let (_, run) = found.with_context(|| format!("no benchmark {name}: without a name, all are listed"))?;
    let slow = std::env::var(SLOW).ok();
    let pairs = Pairs::new(name, Duration::from_millis(options.budget), slow.as_deref())?;
    let Pair { ours, yardstick } = run(&pairs)?;
    print!("{}", Sample { name, ours, yardstick }.line());
    Ok(())
}
