//! Room on a disk that is left to what must not fail: the metadata that shares the disk with caches and stores. The
//! decision is pure; what a disk has free is asked of the system.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most that is kept free unless a setting says otherwise.
const MOST: u64 = 1 << 30;
/// Of a smaller disk, one part in this number.
const SHARE: u64 = 20;

/// The space of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that are free for this user.
    pub free: u64,
}

impl Disk {
    /// The disk on which `path` lies.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn of(path: &Path) -> io::Result<Disk> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Disk {
            size: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    /// The bytes kept free on it where no setting says how much: 1 GiB, or a twentieth of a disk below 20
    /// GiB.
    #[must_use]
    pub fn default_reserve(self) -> u64 {
        MOST.min(self.size / SHARE)
    }

    /// How many bytes it can take and still has `reserve` bytes free; `None` if nothing is reserved.
    #[must_use]
    pub fn room(self, reserve: u64) -> Option<u64> {
        (reserve > 0).then(|| self.free.saturating_sub(reserve))
    }
}

/// Bytes that a writer leaves free on the disk it writes to. None until it is set.
#[derive(Debug, Default)]
pub struct Reserve(AtomicU64);

/// In the place of a number of bytes: that which follows from the size of the disk.
const BY_SIZE: u64 = u64::MAX;

impl Reserve {
    /// From now on `bytes` stay free; without a number, [`Disk::default_reserve`] of the disk that is written to.
    pub fn set(&self, bytes: Option<u64>) {
        self.0.store(bytes.map_or(BY_SIZE, |bytes| bytes.min(BY_SIZE - 1)), Relaxed);
    }

    /// Whether `bytes` more may be written below `directory`. A disk of unknown size is written to.
    #[must_use]
    pub fn admits(&self, directory: &Path, bytes: u64) -> bool {
        self.room(directory).is_none_or(|room| bytes <= room)
    }

    /// How many bytes may be written below `directory`; `None` if any number, as without a reserve or on a disk of unknown size.
    #[must_use]
    pub fn room(&self, directory: &Path) -> Option<u64> {
        let reserve = match self.0.load(Relaxed) {
            0 => return None,
            BY_SIZE => None,
            reserve => Some(reserve),
        };
        let disk = Disk::of(directory).ok()?;
        disk.room(reserve.unwrap_or_else(|| disk.default_reserve()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_admitted_leaves_the_reserve_free(size: u64, free: u64, reserve in 1u64..) {
            let disk = Disk { size, free };
            let room = disk.room(reserve).expect("some is reserved");
            prop_assert!(room == 0 || free - room >= reserve);
            prop_assert!(u128::from(room) + u128::from(reserve) >= u128::from(free), "no more is left free");
            prop_assert_eq!(disk.room(0), None);
            prop_assert!(disk.default_reserve() <= size / 20 && disk.default_reserve() <= 1 << 30);
        }
    }

    #[test]
    fn the_disk_of_a_directory_is_known_and_nothing_is_reserved_until_it_is_set() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let disk = Disk::of(directory.path()).expect("a disk");
        assert!(disk.free <= disk.size && disk.size > 0);
        let reserve = Reserve::default();
        assert!(reserve.admits(directory.path(), u64::MAX));
        reserve.set(Some(disk.size));
        assert!(!reserve.admits(directory.path(), 1));
        reserve.set(None);
        let is_left = disk.free.saturating_sub(1) >= disk.default_reserve();
        assert_eq!(reserve.admits(directory.path(), 1), is_left, "the reserve is that of this disk");
    }
}
