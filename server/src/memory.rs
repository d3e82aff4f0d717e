//! Returns memory to the system after load. glibc keeps freed memory in its arenas: a node that has streamed
//! to a few clients holds several times its need, for good. By default there are eight arenas for each
//! processor, and each keeps what lies below its last live allocation; so there are few, and they are
//! trimmed.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The growth of the process since the last trim from which another one pays, in bytes.
const WORTH_IT: u64 = 16 << 20;

/// The growth between two looks that means load, in bytes. An idle node gains and loses some pages in each second.
const LOAD: u64 = 1 << 20;

/// Decides when to trim. Pure: amounts of memory in, decisions out.
#[derive(Debug, Default)]
struct Trimming {
    after_last_trim: u64,
    at_last_look: u64,
}

impl Trimming {
    /// Whether to trim a process that has `now` bytes: it has gained some since the last trim, and gains no more.
    fn is_due(&mut self, now: u64) -> bool {
        let is_growing = now >= self.at_last_look + LOAD;
        self.at_last_look = now;
        self.after_last_trim = self.after_last_trim.min(now);
        !is_growing && now >= self.after_last_trim + WORTH_IT
    }

    fn trimmed(&mut self, now: u64) {
        (self.after_last_trim, self.at_last_look) = (now, now);
    }
}

/// Sets how many arenas the allocator may have: one for each processor. Call it before there are other threads. The environment
/// (`MALLOC_ARENA_MAX`, `GLIBC_TUNABLES`) wins over it.
pub fn limit_arenas() {
    let is_set = |name| std::env::var_os(name).is_some();
    if !is_set("MALLOC_ARENA_MAX") && !is_set("GLIBC_TUNABLES") {
        set_arenas(available_parallelism().map_or(1, NonZeroUsize::get));
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set_arenas(most: usize) {
    let most = libc::c_int::try_from(most).unwrap_or(libc::c_int::MAX);
    // SAFETY: `mallopt` takes glibc's own locks and only notes a limit.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, most) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn set_arenas(_: usize) {}

/// Trims the allocator's arenas whenever load has passed, until `stop`.
pub(crate) async fn trim_after_load(stop: CancellationToken) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trimming = Trimming::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Some(now) = anonymous_bytes() else { return };
        if trimming.is_due(now) {
            let trimmed = tokio::task::spawn_blocking(trim).await;
            let after = anonymous_bytes().unwrap_or(now);
            trimming.trimmed(after);
            debug!(now, after, ?trimmed, "memory is trimmed");
        }
    }
}

/// The process's memory without files. `None` where the system does not say.
fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    // SAFETY: `malloc_trim` takes glibc's own locks, may be called by any thread at any time, and frees nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_trimmed_once_when_load_has_passed_and_not_while_it_grows() {
        let mut trimming = Trimming::default();
        let mut trims = Vec::new();
        for (look, mib) in [30, 30, 100, 200, 200, 40, 41, 41, 90, 90].into_iter().enumerate() {
            if trimming.is_due(mib << 20) {
                trims.push(look);
                trimming.trimmed(35 << 20);
            }
        }
        // 30 MiB is what a start leaves, 200 and 90 what two loads leave.
        assert_eq!(trims, [1, 4, 9]);
    }

    #[test]
    fn pages_that_an_idle_node_gains_do_not_put_trimming_off() {
        let mut trimming = Trimming::default();
        // KiB, as measured five seconds apart after four streams.
        let looks = [40_932, 122_808, 122_844, 122_900, 122_912, 122_936, 122_944];
        let trims = looks.map(|kib| trimming.is_due(kib << 10));
        assert_eq!(trims.iter().position(|is_due| *is_due), Some(2), "{trims:?}");
    }

    #[test]
    fn the_system_says_what_a_process_has() {
        if cfg!(target_os = "linux") {
            assert!(anonymous_bytes().expect("Linux says so") > 1 << 16);
        }
    }
}
