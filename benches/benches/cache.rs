//! How long a cache takes to open with the index of 10^8 samples, in grains of 16: after an orderly stop, and after one that was
//! not. `cargo bench -p shardd-benches --bench cache` prints one table; it takes some minutes, and 2 GB in TMPDIR.
//!
//! Grains are 8 bytes long here: what opening reads of a grain is where it lies, so their bytes would only fill the disk.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use shardd_engine::cache::{Cache, CacheConfig, Class};
use shardfmt::{ByteSize, GrainKey, ShardId};
use tempfile::TempDir;

const SAMPLES: u64 = 100_000_000;
const ROWS: u32 = 16;
/// As many as shards of 64 MiB have of 16 KiB.
const GRAINS_OF_SHARD: u64 = 4096;
/// Epochs after which grains leave, so that many classes share the segments.
const EPOCHS: u64 = 90;
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    let grains = SAMPLES / u64::from(ROWS);
    let dir = TempDir::new()?;
    let (took, _) = timed(|| fill(dir.path(), grains))?;
    println!("{grains} grains put in {took:.1} s");
    println!(
        "{:<44} {:>10} {:>10} {:>10}",
        "opening the cache of 10^8 samples", "took", "processor", "wanted"
    );
    let mut orderly = Vec::new();
    for _ in 0..ROUNDS {
        let (times, cache) = timed(|| opened(dir.path(), grains))?;
        orderly.push((times, cache.1));
        let (closing, _) = timed(|| Ok(cache.0.close()?))?;
        println!("  (closing took {closing:.2} s)");
    }
    orderly.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (took, cpu) = orderly[ROUNDS / 2];
    println!("{:<44} {took:>8.2} s {cpu:>8.2} s {:>10}", "after an orderly stop, the middle one of 5", "1 s");
    fs::remove_file(dir.path().join("clean"))?;
    let (took, cache) = timed(|| opened(dir.path(), grains))?;
    println!("{:<44} {took:>8.2} s {:>8.2} s", "after a stop that was not", cache.1);
    Ok(())
}

/// Opens the cache: with the processor time that it took.
fn opened(dir: &Path, grains: u64) -> Result<(Cache, f64)> {
    let began = processor();
    let cache = open(dir)?;
    let took = processor() - began;
    ensure!(cache.len() as u64 == grains, "{} grains are there", cache.len());
    let key = GrainKey { shard: shard(7), rows: ROWS, index: 5 };
    ensure!(cache.get(&key).is_some(), "a grain that was put is not found");
    Ok((cache, took))
}

fn open(dir: &Path) -> Result<Cache> {
    Ok(Cache::open(dir, CacheConfig { limit: ByteSize(4 << 30) })?)
}

/// In the order in which an exchange brings them: none at all.
fn fill(dir: &Path, grains: u64) -> Result<()> {
    let cache = open(dir)?;
    let shards: Vec<ShardId> = (0..grains.div_ceil(GRAINS_OF_SHARD)).map(shard).collect();
    for n in 0..grains {
        let grain = n * 2_654_435_761 % grains;
        let key = GrainKey {
            shard: shards[(grain / GRAINS_OF_SHARD) as usize],
            rows: ROWS,
            index: (grain % GRAINS_OF_SHARD) as u32,
        };
        let class = Class::until("bench", (grain % EPOCHS) as u32);
        cache.put(key, &class, &grain.to_le_bytes())?;
    }
    Ok(cache.close()?)
}

fn shard(number: u64) -> ShardId {
    ShardId::of(&number.to_le_bytes())
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let began = Instant::now();
    let done = work()?;
    Ok((began.elapsed().as_secs_f64(), done))
}

/// Seconds that a processor has worked for this thread, as Linux says.
fn processor() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) as f64 / 1e9
}
