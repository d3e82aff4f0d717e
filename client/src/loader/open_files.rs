//! How many files of shards a part of the loader keeps open.

use rustix::process::{Resource, getrlimit};

/// At most, and which part of those that the process may have open: systems may allow 1,024.
const MOST: u64 = 256;
const PART: u64 = 8;

/// For a process that may have `limit` files open; `None` if any number.
pub(crate) fn most_open(limit: Option<u64>) -> usize {
    limit.map_or(MOST, |limit| (limit / PART).clamp(1, MOST)) as usize
}

/// For this process, by its present limit.
pub(crate) fn most_open_here() -> usize {
    most_open(getrlimit(Resource::Nofile).current)
}
