//! How long this process has seen each lease of a cluster unchanged. Pure: documents and instants in, ages out.
//!
//! Clocks of machines jump, so nothing that a clock of another machine wrote ends a lease here. A renewal changes the
//! stamp of its lease. A lease is over when this process has watched the same stamp for the whole lifetime of the lease,
//! by its own monotonic clock. The watched time leaves out times when the store did not answer: nodes that could not
//! renew then get their full time again. The write that ends a lease names the object that was watched, so a renewal in
//! between makes it fail.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::LeaseId;

/// The leases of the object that was read last.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// How long the object has been watched so far.
    watched: Duration,
    /// When it was looked at last.
    looked: Option<Instant>,
    leases: BTreeMap<LeaseId, Sighting>,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    stamp: u64,
    /// The time watched so far when this stamp was seen first.
    since: Duration,
}

impl Sightings {
    /// The object was read or written now. Of the time since the last look, at most `longest` counts.
    pub(super) fn look(&mut self, at: Instant, longest: Duration) {
        if let Some(before) = self.looked {
            self.watched += at.saturating_duration_since(before).min(longest);
        }
        self.looked = Some(at);
    }

    /// When it was looked at last.
    pub(super) fn looked(&self) -> Option<Instant> {
        self.looked
    }

    /// The leases that it has now, by their stamps; after [`look`](Self::look).
    pub(super) fn see(&mut self, leases: impl Iterator<Item = (LeaseId, u64)>) {
        let since = self.watched;
        let seen = leases.map(|(lease, stamp)| {
            let known = self.leases.get(&lease).filter(|known| known.stamp == stamp);
            (lease, known.copied().unwrap_or(Sighting { stamp, since }))
        });
        self.leases = seen.collect();
    }

    /// Whether the lease has had this stamp for that time.
    pub(super) fn has_been(&self, lease: LeaseId, stamp: u64, lifetime: Duration) -> bool {
        let known = self.leases.get(&lease).filter(|known| known.stamp == stamp);
        known.is_some_and(|known| self.watched.saturating_sub(known.since) >= lifetime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LeaseId = LeaseId(1);
    const LIFETIME: Duration = Duration::from_secs(30);
    const LONGEST: Duration = Duration::from_secs(5);

    #[test]
    fn a_lease_ends_after_its_lifetime_of_looks_and_a_renewal_begins_it_again() {
        let (mut sightings, begun) = (Sightings::default(), Instant::now());
        for second in 0..100 {
            sightings.look(begun + Duration::from_secs(second), LONGEST);
            sightings.see([(LEASE, 7 + u64::from(second >= 20))].into_iter());
            let stamp = 7 + u64::from(second >= 20);
            assert_eq!(sightings.has_been(LEASE, stamp, LIFETIME), second >= 50, "after {second} s");
            assert!(!sightings.has_been(LEASE, 6, LIFETIME), "another stamp was not seen");
        }
    }

    #[test]
    fn time_without_a_look_ends_no_lease() {
        let (mut sightings, begun) = (Sightings::default(), Instant::now());
        sightings.look(begun, LONGEST);
        sightings.see([(LEASE, 7)].into_iter());
        sightings.look(begun + Duration::from_secs(3600), LONGEST);
        assert!(!sightings.has_been(LEASE, 7, LIFETIME));
        for second in 1..=25 {
            sightings.look(begun + Duration::from_secs(3600 + second), LONGEST);
        }
        assert!(sightings.has_been(LEASE, 7, LIFETIME), "5 s of the pause count, and 25 of looks");
    }
}
