//! What the system says of this process and its machine (Linux; elsewhere nothing): for metrics and series.

use procfs::process::{LimitValue, Process};
use procfs::{Current, ProcResult};
use shardd_api::machine::PressureShares;

/// This process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ProcessUsage {
    /// When it started, in seconds since 1970.
    pub start_s: f64,
    /// CPU time in user and system mode, in seconds.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Virtual memory in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The most that it may open; `None` if there is no limit.
    pub max_files: Option<u64>,
    /// Its threads.
    pub threads: u64,
}

impl ProcessUsage {
    /// As of now; `None` where the system does not say.
    #[must_use]
    pub(crate) fn now() -> Option<ProcessUsage> {
        Self::read().ok()
    }

    fn read() -> ProcResult<ProcessUsage> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second() as f64;
        let limit = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(files) => Some(files),
            LimitValue::Unlimited => None,
        };
        Ok(ProcessUsage {
            start_s: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
            cpu_s: (stat.utime + stat.stime) as f64 / ticks,
            resident_bytes: stat.rss * procfs::page_size(),
            virtual_bytes: stat.vsize,
            open_files: process.fd_count()? as u64,
            max_files: limit,
            threads: u64::try_from(stat.num_threads).unwrap_or(0),
        })
    }
}

/// Seconds since the start of the machine in which some task waited for a resource (PSI).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pressure {
    /// For a processor.
    pub cpu_s: f64,
    /// For storage.
    pub io_s: f64,
    /// For memory.
    pub memory_s: f64,
}

impl Pressure {
    /// As of now; `None` where the kernel does not count it.
    #[must_use]
    pub(crate) fn now() -> Option<Pressure> {
        let seconds = |micros: u64| micros as f64 / 1e6;
        Some(Pressure {
            cpu_s: seconds(procfs::CpuPressure::current().ok()?.some.total),
            io_s: seconds(procfs::IoPressure::current().ok()?.some.total),
            memory_s: seconds(procfs::MemoryPressure::current().ok()?.some.total),
        })
    }
}

/// The parts of the last minute in which some task of the machine waited; `None` where the kernel does not count.
#[must_use]
pub(crate) fn pressure_shares() -> Option<PressureShares> {
    let share = |percent: f32| f64::from(percent) / 100.0;
    Some(PressureShares {
        cpu: share(procfs::CpuPressure::current().ok()?.some.avg60),
        io: share(procfs::IoPressure::current().ok()?.some.avg60),
        memory: share(procfs::MemoryPressure::current().ok()?.some.avg60),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_that_works_uses_time_and_one_that_holds_memory_has_it() {
        let before = ProcessUsage::now().expect("Linux says");
        let held = vec![1u8; 64 << 20];
        let begun = std::time::Instant::now();
        let mut sum = 0u64;
        while begun.elapsed() < Duration::from_millis(60) {
            sum += held.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>();
        }
        let file = std::fs::File::open("/proc/self/stat").expect("it is there");
        let after = ProcessUsage::now().expect("Linux says");
        assert!(sum > 0 && after.cpu_s > before.cpu_s, "{before:?} {after:?}");
        assert!(after.resident_bytes >= 64 << 20 && after.virtual_bytes >= after.resident_bytes, "{after:?}");
        assert!(after.open_files >= 4 && after.threads >= 2, "{after:?}");
        drop((held, file));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
        assert!(after.start_s <= now + 1.0 && now - after.start_s < 86_400.0, "{} {now}", after.start_s);
    }

    #[test]
    fn pressure_only_grows() {
        let Some(before) = Pressure::now() else {
            return eprintln!("skipped: this kernel counts no pressure");
        };
        let after = Pressure::now().expect("it did before");
        assert!(
            after.cpu_s >= before.cpu_s && after.io_s >= before.io_s && after.memory_s >= before.memory_s
        );
    }
}
