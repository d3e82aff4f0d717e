//! Whom the ranks wait for.

use std::time::Duration;

use super::{Collective, CollectiveError};

/// How long all other ranks together have waited for each rank so far, see [`Collective::waits`]; the same on every rank.
///
/// # Errors
/// As [`Collective::transfer`].
pub fn waited_for(collective: &mut dyn Collective) -> Result<Vec<Duration>, CollectiveError> {
    let mine: Vec<u64> = collective.waits().iter().map(|wait| wait.as_nanos() as u64).collect();
    let all = collective.all_gather(bytemuck::cast_slice(&mine))?;
    let mut total = vec![Duration::ZERO; mine.len()];
    for (from, message) in all.iter().enumerate() {
        let waits = message.numbers::<u64>().filter(|waits| waits.len() == total.len());
        let waits = waits.ok_or_else(|| CollectiveError::Malformed {
            rank: from as u32,
            what: format!("{} bytes of waits", message.bytes().len()),
        })?;
        for (total, &nanoseconds) in total.iter_mut().zip(waits.iter()) {
            *total = total.saturating_add(Duration::from_nanos(nanoseconds));
        }
    }
    Ok(total)
}

/// The rank that was waited for longest; `None` where there was no wait.
pub fn straggler(waited_for: &[Duration]) -> Option<u32> {
    let longest =
        waited_for.iter().enumerate().max_by_key(|(rank, wait)| (**wait, std::cmp::Reverse(*rank)))?;
    (!longest.1.is_zero()).then_some(longest.0 as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::spawn;

    #[test]
    fn the_longest_wait_names_the_straggler_and_none_nobody() {
        let seconds =
            |all: &[u64]| straggler(&all.iter().copied().map(Duration::from_secs).collect::<Vec<_>>());
        assert_eq!(seconds(&[]), None);
        assert_eq!(seconds(&[0, 0]), None);
        assert_eq!(seconds(&[1, 7, 3]), Some(1));
        assert_eq!(seconds(&[0, 5, 5]), Some(1), "of equals the first");
    }

    #[test]
    fn all_ranks_know_the_same_waits() {
        let all = spawn(3, |mut collective| {
            collective.barrier().unwrap();
            collective.barrier().unwrap();
            waited_for(&mut collective).unwrap()
        });
        assert!(all.iter().all(|waits| *waits == all[0]));
        assert!(all[0].len() == 3 && all[0].iter().any(|wait| !wait.is_zero()));
    }
}
