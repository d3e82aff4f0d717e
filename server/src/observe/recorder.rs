//! Takes the values of this node every few seconds, and keeps those of the last hour.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardd_api::duration::now;
use shardd_api::exchange::EpochExchange;
use shardd_api::loop_time::Stage;
use shardd_api::machine::{Directory, DiskStatus, Forecast, MachineStatus, PressureShares, reaches_zero};
use shardd_api::node::NodeId;
use shardd_api::series::NodeSeries;
use shardd_api::status::NodeStatus;
use shardd_certificates::CertificateInfo;
use shardd_engine::engine::Engine;
use shardd_store::reserve::Disk;
use tokio::time::{MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::series::{EVERY, History, KEPT, Rates, SeriesKey};
use super::usage::{Pressure, ProcessUsage};
use crate::identity::Identity;

/// How many measurements of a disk its forecast goes by: ten minutes.
const DISK_POINTS: usize = 120;
/// The most ranks that have series of their own.
const MOST_RANKS: usize = 64;

/// A disk that is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedDisk {
    directory: Directory,
    path: PathBuf,
    /// The number of its device, if the system gives one.
    device: Option<u64>,
}

impl WatchedDisk {
    /// The disk on which a directory is.
    pub(crate) fn of(directory: Directory, path: PathBuf) -> WatchedDisk {
        let device = std::fs::metadata(&path).ok().map(|found| found.dev());
        WatchedDisk { directory, path, device }
    }
}

/// The values of this node, now and over the last hour.
pub(crate) struct Recorder {
    engine: Arc<Engine>,
    disks: Vec<WatchedDisk>,
    identity: Option<Arc<Identity>>,
    started: Instant,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    history: History,
    rates: Rates,
    taken: Option<Instant>,
    end: u64,
    machine: MachineStatus,
    free: BTreeMap<Directory, FreeSpace>,
}

/// The space of a disk that data other than the cache leave, over the last minutes. The cache comes and goes within its limit: its
/// own rise says nothing of when a disk is full.
#[derive(Default)]
struct FreeSpace {
    /// Seconds since the start, and bytes.
    measured: VecDeque<(f64, f64)>,
}

impl FreeSpace {
    /// Bytes that were free at a time, and those that the cache had on this disk.
    fn measure(&mut self, at: f64, free: u64, of_cache: u64) {
        self.measured.push_back((at, (free + of_cache) as f64));
        if self.measured.len() > DISK_POINTS {
            self.measured.pop_front();
        }
    }

    /// When the disk is full, with the cache as large as it is now.
    fn ends(&self, of_cache: u64) -> Option<Forecast> {
        let left: Vec<(f64, f64)> =
            self.measured.iter().map(|(at, bytes)| (*at, bytes - of_cache as f64)).collect();
        reaches_zero(&left)
    }
}

impl Recorder {
    pub(crate) fn new(
        engine: Arc<Engine>,
        disks: Vec<WatchedDisk>,
        identity: Option<Arc<Identity>>,
    ) -> Recorder {
        let recorder =
            Recorder { engine, disks, identity, started: Instant::now(), recorded: Mutex::default() };
        recorder.record();
        recorder
    }

    /// Records until `stop`.
    pub(crate) async fn record_until(self: Arc<Self>, stop: CancellationToken) {
        let recording = async {
            let mut turns = interval_at(tokio::time::Instant::now() + EVERY, EVERY);
            turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                turns.tick().await;
                let recorder = Arc::clone(&self);
                // It asks the system for disks and files, which may take long.
                let _ = tokio::task::spawn_blocking(move || recorder.record()).await;
            }
        };
        stop.run_until_cancelled(recording).await;
    }

    /// The machine, as it was a few seconds ago.
    pub(crate) fn machine(&self) -> MachineStatus {
        self.recorded.lock().expect("no panic while held").machine.clone()
    }

    /// The series whose names begin with one of these, in at most `points` points over the last hour.
    pub(crate) fn series(&self, node: NodeId, names: &[String], points: usize) -> NodeSeries {
        let recorded = self.recorded.lock().expect("no panic while held");
        let points = points.clamp(1, KEPT);
        let per_point = KEPT.div_ceil(points);
        NodeSeries {
            node,
            every_s: EVERY.as_secs_f64() * per_point as f64,
            end: recorded.end,
            series: recorded.history.series(names, points, per_point),
        }
    }

    fn record(&self) {
        let status = self.engine.status();
        let (usage, pressure) = (ProcessUsage::now(), Pressure::now());
        let disks: Vec<(WatchedDisk, Disk)> =
            self.disks.iter().filter_map(|disk| Some((disk.clone(), Disk::of(&disk.path).ok()?))).collect();
        let at = Instant::now();
        let mut recorded = self.recorded.lock().expect("no panic while held");
        let over =
            recorded.taken.replace(at).map_or(Duration::ZERO, |before| at.saturating_duration_since(before));
        recorded.end = now();
        let mut point = Point { values: Vec::new(), rates: std::mem::take(&mut recorded.rates), over };
        of_engine(&status, &mut point);
        of_ranks(&status, &mut point);
        let machine = of_process(usage, pressure, &mut point);
        let mut statuses = Vec::with_capacity(disks.len());
        for (disk, space) in disks {
            let label = vec![("directory", disk.directory.name().to_owned())];
            point.now("disk_free_bytes", label, space.free as f64);
            let of_cache = self.cache_bytes_on(&disk, &status);
            let free = recorded.free.entry(disk.directory).or_default();
            free.measure(at.duration_since(self.started).as_secs_f64(), space.free, of_cache);
            statuses.push(DiskStatus {
                directory: disk.directory,
                path: disk.path.display().to_string(),
                size_bytes: space.size,
                free_bytes: space.free,
                full: free.ends(of_cache),
            });
        }
        recorded.rates = point.rates;
        recorded.history.push(point.values);
        let certificate = self.identity.as_ref().map(|identity| identity.info());
        recorded.machine = MachineStatus {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            disks: statuses,
            certificate_ends: certificate.as_ref().map(|certificate| certificate.not_after),
            certificate_issued: certificate.as_ref().map(CertificateInfo::issued),
            ..machine
        };
    }

    /// The bytes of the cache that lie on a disk.
    fn cache_bytes_on(&self, disk: &WatchedDisk, status: &NodeStatus) -> u64 {
        let cache = self.disks.iter().find(|disk| disk.directory == Directory::Cache);
        let is_shared = cache.is_some_and(|cache| cache.device.is_some() && cache.device == disk.device);
        if is_shared { status.cache_used_bytes } else { 0 }
    }
}

/// The values of one moment.
struct Point {
    values: Vec<(SeriesKey, f64)>,
    rates: Rates,
    over: Duration,
}

impl Point {
    fn now(&mut self, name: &'static str, labels: Vec<(&'static str, String)>, value: f64) {
        self.values.push((SeriesKey { name, labels }, value));
    }

    /// A counter, as a rate; which that is, if it is known.
    fn total(&mut self, name: &'static str, labels: Vec<(&'static str, String)>, count: f64) -> Option<f64> {
        let key = SeriesKey { name, labels };
        let rate = self.rates.per_second(&key, count, self.over)?;
        self.values.push((key, rate));
        Some(rate)
    }
}

fn of_engine(status: &NodeStatus, point: &mut Point) {
    let counters = &status.counters;
    point.now("cache_used_bytes", vec![], status.cache_used_bytes as f64);
    point.now("cache_limit_bytes", vec![], status.cache_limit_bytes as f64);
    point.now("attached_ranks", vec![], status.own_ranks() as f64);
    let disk = status.measured.disk;
    for (name, micros) in [("disk_read_seconds", disk.read_micros), ("disk_sync_seconds", disk.sync_micros)] {
        if let Some(micros) = micros {
            point.now(name, vec![], micros as f64 / 1e6);
        }
    }
    let exchanged = |count: fn(&EpochExchange) -> u64| {
        counters.exchange.iter().map(|epoch| count(&epoch.counts)).sum::<u64>()
    };
    let from = |source: &str| vec![("from", source.to_owned())];
    let location = |place: &str| vec![("location", place.to_owned())];
    let totals = [
        ("origin_read_bytes_per_second", vec![], status.origin_bytes as f64),
        ("miss_bytes_per_second", from("peer"), counters.miss_bytes_from_peers as f64),
        ("miss_bytes_per_second", from("origin"), counters.miss_bytes_from_origin as f64),
        ("served_bytes_per_second", vec![], counters.served_bytes as f64),
        ("exchange_sent_bytes_per_second", vec![], exchanged(|counts| counts.sent_bytes) as f64),
        ("exchange_received_bytes_per_second", vec![], exchanged(|counts| counts.received_bytes) as f64),
        ("exchange_stalled_share", vec![], counters.stalled_s),
        ("corrupt_grains_per_second", location("disk"), counters.corrupt_on_disk as f64),
        ("corrupt_grains_per_second", location("peer"), counters.corrupt_from_peers as f64),
    ];
    for (name, labels, count) in totals {
        let _ = point.total(name, labels, count);
    }
}

fn of_ranks(status: &NodeStatus, point: &mut Point) {
    for reader in status.readers.iter().take(MOST_RANKS) {
        let Some(recent) = &reader.recent else { continue };
        let labels = || vec![("run", reader.run.to_string()), ("rank", reader.rank.to_string())];
        point.now("rank_samples_per_second", labels(), recent.samples_per_second);
        point.now("rank_compute_share", labels(), recent.compute_share);
        for stage in Stage::ALL {
            let share = recent.wait_shares.get(&stage).copied().unwrap_or(0.0);
            let labels = labels().into_iter().chain([("stage", stage.name().to_owned())]).collect();
            point.now("rank_wait_share", labels, share);
        }
    }
}

fn of_process(usage: Option<ProcessUsage>, pressure: Option<Pressure>, point: &mut Point) -> MachineStatus {
    let mut machine = MachineStatus::default();
    if let Some(usage) = usage {
        machine.processors = point.total("process_processors", vec![], usage.cpu_s).unwrap_or(0.0);
        machine.resident_bytes = usage.resident_bytes;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds since 1970")]
        {
            machine.start = usage.start_s as u64;
        }
        point.now("process_resident_bytes", vec![], usage.resident_bytes as f64);
    }
    machine.pressure = pressure.map(|pressure| {
        let mut share = |resource: &str, seconds: f64| {
            let label = vec![("resource", resource.to_owned())];
            point.total("pressure_share", label, seconds).unwrap_or(0.0).min(1.0)
        };
        PressureShares {
            cpu: share("cpu", pressure.cpu_s),
            io: share("io", pressure.io_s),
            memory: share("memory", pressure.memory_s),
        }
    });
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_cache_that_fills_does_not_forecast_a_full_disk_and_other_data_do() {
        let (mut of_cache, mut of_others) = (FreeSpace::default(), FreeSpace::default());
        for n in 0..60 {
            let at = 5.0 * n as f64;
            of_cache.measure(at, 100 * GIB - n * GIB, n * GIB);
            // Others take 1 GiB in 5 s, and the cache the same.
            of_others.measure(at, 200 * GIB - 2 * n * GIB, n * GIB);
        }
        assert_eq!(of_cache.ends(59 * GIB), None);
        let full = of_others.ends(59 * GIB).expect("others fill it");
        assert!((full.in_s - 5.0 * 82.0).abs() < 1.0, "82 GiB are free: {full:?}");
    }

    #[test]
    fn a_disk_is_looked_at_for_ten_minutes() {
        let mut free = FreeSpace::default();
        for n in 0..10 * DISK_POINTS as u64 {
            free.measure(n as f64, GIB, 0);
        }
        assert_eq!(free.measured.len(), DISK_POINTS);
    }
}
