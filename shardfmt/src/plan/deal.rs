//! Equal shares of a step, as near to home as they can be. Knows whose each sample is by its partition, not why.

/// Who of `virtual_ranks` reads each position of a step, given by the virtual rank that owns it: as many positions each,
/// equal up to one, whatever is owned.
///
/// Every virtual rank reads the first of its own that its share has room for. What is left, in order, goes to the virtual
/// ranks that have room left, in order. So a position changes hands only where the owner has too many, and the set that all
/// of them read is the step's, for any number of them. A plan's own order needs this only where its rounds run out; a
/// mixture, or a step of two epochs, wherever stretches meet.
///
/// Share v of n positions is those from vn/V to below (v+1)n/V, rounded down, in number.
///
/// # Panics
/// If an owner is not below `virtual_ranks`.
pub fn deal(owners: &[u32], virtual_ranks: u32) -> Vec<u32> {
    let bound = |v: u64| v * owners.len() as u64 / u64::from(virtual_ranks);
    let mut room: Vec<u64> = (0..u64::from(virtual_ranks)).map(|v| bound(v + 1) - bound(v)).collect();
    let mut readers = owners.to_vec();
    let mut left = Vec::new();
    for (at, owner) in owners.iter().enumerate() {
        match &mut room[*owner as usize] {
            0 => left.push(at),
            room => *room -= 1,
        }
    }
    let free = (0..virtual_ranks).flat_map(|v| (0..room[v as usize]).map(move |_| v));
    for (at, v) in left.into_iter().zip(free) {
        readers[at] = v;
    }
    readers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(readers: &[u32], v: u32) -> usize {
        readers.iter().filter(|reader| **reader == v).count()
    }

    #[test]
    fn what_is_owned_too_often_goes_to_who_has_room() {
        assert_eq!(deal(&[0, 1, 0, 1], 2), [0, 1, 0, 1]);
        assert_eq!(deal(&[1, 1, 1, 0, 1, 2], 3), [1, 1, 0, 0, 2, 2]);
        assert_eq!(deal(&[], 3), [0; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

        #[test]
        fn shares_are_equal_and_no_more_changes_hands_than_must(
            owners in prop::collection::vec(0..8u32, 0..100), virtual_ranks in 1..9u32,
        ) {
            let owners: Vec<u32> = owners.into_iter().map(|owner| owner % virtual_ranks).collect();
            let readers = deal(&owners, virtual_ranks);
            let (n, of) = (owners.len(), virtual_ranks as usize);
            let mut too_many = 0;
            for v in 0..virtual_ranks {
                let share = (v as usize + 1) * n / of - v as usize * n / of;
                prop_assert_eq!(count(&readers, v), share);
                prop_assert!((n / of..=n.div_ceil(of)).contains(&share));
                too_many += count(&owners, v).saturating_sub(share);
            }
            prop_assert_eq!(owners.iter().zip(&readers).filter(|(owner, reader)| owner != reader).count(), too_many);
        }
    }
}
