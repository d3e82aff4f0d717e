//! Numbers that are unlikely twice, for marks and for waits that processes should not share. Nothing that is read depends on
//! them.

use std::hash::{BuildHasher, RandomState};

/// A number that no other call in any process is likely to get.
pub(crate) fn unlikely_twice() -> u64 {
    RandomState::new().hash_one(0)
}

/// A random number from 0 to 1.
pub(crate) fn share() -> f64 {
    unlikely_twice() as f64 / u64::MAX as f64
}
