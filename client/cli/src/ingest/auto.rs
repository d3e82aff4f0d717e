//! `--shard-size auto`: a size from the data, the memory, and what the store is measured to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
use shardd_ingest::Resources;
use shardd_store::catalog::Catalog;
use shardfmt::{ByteSize, FinishedShard, ShardWriter};

use crate::failure::Failure;

const MIB: u64 = 1 << 20;
/// The bytes written to the store and read back.
const PROBE_BYTES: usize = 4 << 20;
/// Small reads, of which the middle one counts.
const SMALL_READS: usize = 5;
/// A request may wait this part of the time that its bytes take.
const WAIT_PART: f64 = 1.0 / 19.0;
/// A plan spreads shards over partitions: there should be this many.
const SHARDS_AT_LEAST: u64 = 64;

/// A size and why.
pub(crate) struct Choice {
    pub(crate) size: ByteSize,
    pub(crate) reasons: Vec<String>,
}

/// The measured speed of a store.
#[derive(Clone, Copy)]
struct Store {
    latency: Duration,
    bytes_per_second: f64,
}

/// Measures the store behind the catalog and chooses a size for `data` bytes of rows.
pub(crate) fn choose(catalog: &dyn Catalog, data: u64, resources: &Resources) -> Result<Choice, Failure> {
    Ok(decide(measure(catalog)?, data, resources))
}

fn decide(store: Store, data: u64, resources: &Resources) -> Choice {
    let wait = store.latency.as_secs_f64() * store.bytes_per_second / WAIT_PART;
    let busy = ((wait as u64) / MIB + 1) * MIB;
    let spread = (data / SHARDS_AT_LEAST).max(MIB);
    let fits = (resources.memory.0 / 4 / (resources.threads as u64 + 1)).max(MIB);
    let most = spread.min(fits).min(64 * MIB);
    let size = ByteSize(busy.clamp(MIB, 64 * MIB).min(most));
    let reasons = vec![
        format!(
            "the store answers after {:.1} ms and gives {}/s, so reads of {} wait less than a twentieth of their time",
            store.latency.as_secs_f64() * 1e3,
            ByteSize(store.bytes_per_second as u64),
            ByteSize(busy)
        ),
        format!(
            "{} of data in {SHARDS_AT_LEAST} shards or more: at most {}",
            ByteSize(data),
            ByteSize(spread)
        ),
        format!(
            "{} of memory for {} threads: at most {}",
            resources.memory,
            resources.threads,
            ByteSize(fits)
        ),
    ];
    Choice { size, reasons }
}

/// Writes a throw-away shard, always the same one, and reads it back.
fn measure(catalog: &dyn Catalog) -> Result<Store, Failure> {
    let probe = probe()?;
    catalog.put_shard(&probe)?;
    let mut small: Vec<Duration> = Vec::new();
    for _ in 0..SMALL_READS {
        let started = Instant::now();
        catalog.has_shard(&probe.id)?;
        small.push(started.elapsed() / 2); // it asks for two things
    }
    small.sort();
    let latency = small[SMALL_READS / 2];
    let started = Instant::now();
    catalog.shard(&probe.entry)?;
    let took = started.elapsed().saturating_sub(latency).max(Duration::from_micros(100));
    Ok(Store { latency, bytes_per_second: probe.bytes.len() as f64 / took.as_secs_f64() })
}

/// Bytes that do not compress, in the only form that stores take.
fn probe() -> Result<FinishedShard, Failure> {
    let mut noise = vec![0; PROBE_BYTES];
    blake3::Hasher::new_derive_key("shardd 2026 probe of a store").finalize_xof().fill(&mut noise);
    let column: ArrayRef = Arc::new(BinaryArray::from_iter_values([&noise]));
    let made =
        RecordBatch::try_from_iter([("probe", column)]).map_err(|error| error.to_string()).and_then(|rows| {
            let mut writer = ShardWriter::new(rows.schema()).map_err(|error| error.to_string())?;
            writer.push(&rows).map_err(|error| error.to_string())?;
            writer.finish().map_err(|error| error.to_string())
        });
    made.map_err(Failure::failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(latency_ms: u64, mib_per_second: f64, data: u64) -> u64 {
        let store = Store {
            latency: Duration::from_millis(latency_ms),
            bytes_per_second: mib_per_second * MIB as f64,
        };
        decide(store, data, &Resources::threads(2)).size.0 / MIB
    }

    #[test]
    fn slow_answers_ask_for_large_shards_and_little_data_for_small_ones() {
        assert_eq!(size(0, 1000.0, 1 << 40), 1);
        assert_eq!(size(20, 100.0, 1 << 40), 39);
        assert_eq!(size(100, 1000.0, 1 << 40), 64);
        assert_eq!(size(100, 1000.0, 640 << 20), 10);
        assert_eq!(size(100, 1000.0, 1000), 1);
    }
}
