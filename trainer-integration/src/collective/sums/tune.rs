//! A short benchmark of the algorithms on the actual ranks, before a training: all ranks take part and get the same table. Rank 0
//! keeps the measurements on disk, by topology, so that the next start with the same one does not measure.

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardfmt::Digest;
use tracing::warn;

use super::table::{Measurement, TuningTable};
use super::{Algorithm, all_reduce_by};
use crate::collective::{Collective, CollectiveError, Link};

/// The measured sizes, with the number of repetitions between two readings of the clock.
const SIZES: [(usize, u32); 4] = [(4 << 10, 8), (64 << 10, 4), (1 << 20, 2), (8 << 20, 1)];
/// The readings of each algorithm and size, of which the median counts.
const READINGS: usize = 5;
/// Once all this has taken this time, further sizes are read once.
const BUDGET: Duration = Duration::from_secs(1);
/// The format of the file.
const FORMAT: u32 = 1;
/// More bytes than a file of measurements has.
const MOST_BYTES: u64 = 64 << 10;

/// The algorithms of a group's all-reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// The algorithm by bytes.
    pub table: TuningTable,
    /// Where the table is from.
    pub by: TunedBy,
}

/// Where a table is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunedBy {
    /// The user.
    Choice,
    /// Measurements of this start, which took this many milliseconds.
    Measurement(u64),
    /// Measurements of an earlier start, on disk.
    Cache,
    /// The record of the training that is repeated.
    Record,
    /// The checkpoint from which the training resumes.
    Checkpoint,
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        match self.by {
            TunedBy::Choice => Ok(()),
            TunedBy::Measurement(millis) => write!(f, " (measured in {:.1} s)", millis as f64 / 1e3),
            TunedBy::Cache => f.write_str(" (measured at an earlier start)"),
            TunedBy::Record => f.write_str(" (as recorded)"),
            TunedBy::Checkpoint => f.write_str(" (as before the checkpoint)"),
        }
    }
}

/// The ranks and their connections, on which the speed of the algorithms depends: measurements of one topology are of no use for
/// another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    /// Of this program.
    version: String,
    /// `memory` or `network`.
    link: String,
    /// By rank the host, numbered in the order in which they appear.
    hosts: Vec<u32>,
}

impl Topology {
    fn of(collective: &dyn Collective) -> Topology {
        let all = collective.hosts();
        let mut seen: Vec<u32> = Vec::new();
        let number = |host: &u32| {
            let known = seen.iter().position(|other| other == host);
            known.unwrap_or_else(|| {
                seen.push(*host);
                seen.len() - 1
            }) as u32
        };
        let hosts = all.iter().map(number).collect();
        let link = match collective.link() {
            Link::Memory => "memory",
            Link::Network => "network",
        };
        Topology { version: env!("CARGO_PKG_VERSION").to_owned(), link: link.to_owned(), hosts }
    }

    fn file(&self, directory: &Path) -> PathBuf {
        let digest = Digest::of(&serde_json::to_vec(self).expect("text and numbers serialize"));
        directory.join(format!("all-reduce-{}.json", digest.short()))
    }
}

/// The file of a topology.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    topology: Topology,
    measurements: Vec<Measurement>,
}

/// The table of these ranks, the same on all of them: from the measurements in rank 0's `directory`, or from new ones, which are
/// then kept there. All ranks call this together; the directory of the others is not used. A directory that cannot be read or
/// written costs a measurement at each start, and a warning.
///
/// # Errors
/// As [`Collective::transfer`].
pub fn tune(collective: &mut dyn Collective, directory: Option<&Path>) -> Result<Tuned, CollectiveError> {
    let topology = Topology::of(collective);
    let directory = directory.filter(|_| collective.rank() == 0);
    let kept = directory.and_then(|directory| read(&topology, directory)).unwrap_or_default();
    let heard = collective.broadcast(0, &serde_json::to_vec(&kept).expect("numbers serialize"))?;
    let kept: Vec<Measurement> = serde_json::from_slice(heard.bytes())
        .map_err(|error| CollectiveError::Malformed { rank: 0, what: error.to_string() })?;
    if !kept.is_empty() {
        return Ok(Tuned { table: TuningTable::of_measurements(&kept), by: TunedBy::Cache });
    }
    let began = Instant::now();
    let measurements = measure(collective)?;
    if let Some(directory) = directory
        && let Err(error) = write(&topology, directory, &measurements)
    {
        let directory = directory.display().to_string();
        warn!(directory, %error, "the measurements of all-reduce cannot be kept; the next start measures again");
    }
    let millis = began.elapsed().as_millis() as u64;
    Ok(Tuned { table: TuningTable::of_measurements(&measurements), by: TunedBy::Measurement(millis) })
}

/// The times of all algorithms that may be the fastest. Of each time the longest of all ranks counts, on all ranks.
fn measure(collective: &mut dyn Collective) -> Result<Vec<Measurement>, CollectiveError> {
    let may_be_fastest = |algorithm: &Algorithm| algorithm.may_be_fastest(collective.hosts());
    let algorithms: Vec<Algorithm> = Algorithm::ALL.into_iter().filter(may_be_fastest).collect();
    let mut measurements = Vec::new();
    let (began, mut spent) = (Instant::now(), 0);
    for (bytes, repetitions) in SIZES {
        let mut numbers = vec![1.0f32; bytes / size_of::<f32>()];
        let readings = if u128::from(spent) > BUDGET.as_nanos() { 1 } else { READINGS };
        let mut times = vec![Vec::with_capacity(readings); algorithms.len()];
        // In turns: what slows one of them down for a while slows the others down as well.
        for _ in 0..readings {
            for (&algorithm, times) in algorithms.iter().zip(&mut times) {
                // Memory is there, and connections are awake.
                all_reduce_by(algorithm, collective, &mut numbers)?;
                collective.barrier()?;
                let started = Instant::now();
                for _ in 0..repetitions {
                    all_reduce_by(algorithm, collective, &mut numbers)?;
                }
                times.push((started.elapsed() / repetitions).as_nanos() as u64);
                // Sums of sums would be infinite at last.
                numbers.fill(1.0);
            }
        }
        let median = |times: &mut Vec<u64>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let mut mine: Vec<u64> = times.iter_mut().map(median).collect();
        mine.push(began.elapsed().as_nanos() as u64);
        let agreed = longest(collective, &mine)?;
        let rows = algorithms.iter().zip(&agreed);
        measurements.extend(rows.map(|(&algorithm, &nanos)| Measurement {
            algorithm,
            bytes: bytes as u64,
            nanos,
        }));
        spent = agreed[algorithms.len()];
    }
    Ok(measurements)
}

/// Of each number the largest of all ranks, on all ranks.
fn longest(collective: &mut dyn Collective, mine: &[u64]) -> Result<Vec<u64>, CollectiveError> {
    let all = collective.all_gather(bytemuck::cast_slice(mine))?;
    let mut longest = vec![0; mine.len()];
    for (rank, message) in (0..).zip(&all) {
        let theirs = message.numbers::<u64>().filter(|theirs| theirs.len() == mine.len());
        let theirs = theirs.ok_or_else(|| {
            let what = format!("{} bytes for {} times", message.bytes().len(), mine.len());
            CollectiveError::Malformed { rank, what }
        })?;
        longest.iter_mut().zip(theirs.iter()).for_each(|(longest, time)| *longest = (*longest).max(*time));
    }
    Ok(longest)
}

/// The measurements on disk, if they are there and of this topology and format.
fn read(topology: &Topology, directory: &Path) -> Option<Vec<Measurement>> {
    let mut bytes = Vec::new();
    fs::File::open(topology.file(directory)).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.format == FORMAT && kept.topology == *topology).then_some(kept.measurements)
}

/// Replaces the file at once: a reader finds the old one or the new one.
fn write(topology: &Topology, directory: &Path, measurements: &[Measurement]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let kept = Kept { format: FORMAT, topology: topology.clone(), measurements: measurements.to_vec() };
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&serde_json::to_vec_pretty(&kept)?)?;
    file.persist(topology.file(directory))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::DEFAULT_TIMEOUT;
    use crate::collective::threads::{spawn_on, world_on};

    fn tuned(hosts: &[u32], directory: Option<&Path>) -> Vec<Tuned> {
        spawn_on(world_on(hosts, DEFAULT_TIMEOUT), |mut collective| tune(&mut collective, directory).unwrap())
    }

    #[test]
    fn all_ranks_measure_once_and_have_the_same_table_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let first = tuned(&[0; 3], Some(directory.path()));
        assert!(first.iter().all(|rank| matches!(rank.by, TunedBy::Measurement(_))), "{first:?}");
        assert!(first.iter().all(|rank| rank.table == first[0].table), "{first:?}");
        let second = tuned(&[7; 3], Some(directory.path()));
        assert!(second.iter().all(|rank| rank.by == TunedBy::Cache && rank.table == first[0].table));
        // Other ranks on other hosts are another topology.
        for hosts in [&[0; 2][..], &[0, 0, 1]] {
            let other = tuned(hosts, Some(directory.path()));
            assert!(matches!(other[0].by, TunedBy::Measurement(_)), "{hosts:?}: {other:?}");
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_of_another_format_is_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = [0; 2];
        tuned(&hosts, Some(directory.path()));
        let path = fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read_to_string(&path).unwrap();
        for bad in [&whole[..whole.len() / 2], "", &whole.replace("\"format\": 1", "\"format\": 2")] {
            fs::write(&path, bad).unwrap();
            assert!(matches!(tuned(&hosts, Some(directory.path()))[0].by, TunedBy::Measurement(_)));
            assert_eq!(tuned(&hosts, Some(directory.path()))[1].by, TunedBy::Cache);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_costs_no_more_than_a_measurement() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ranks = tuned(&[0; 2], Some(&file.path().join("below")));
        assert!(matches!(ranks[0].by, TunedBy::Measurement(_)));
    }
}
