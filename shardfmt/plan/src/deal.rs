//! Equal shares of a step, as near to home as they can be. Knows whose each sample is by its partition, not why.

/// Which of `virtual_ranks` reads each position of a step, given by the virtual rank that owns it: as many positions each,
/// equal up to one, whatever is owned.
///
/// Every virtual rank reads the first positions of its own that it has `room` for. The surplus, in position order, goes to
/// the virtual ranks that have room left, in index order. So a position changes hands only where its owner has too many, no
/// deal of equal shares moves fewer, and the set that all virtual ranks read is the step's, for any number of them.
///
/// # Panics
/// If an owner is not below `virtual_ranks`.
///
/// ```
/// use shardd_plan::deal;
///
/// // Virtual rank 0 owns three of four positions; the other reads the last of them.
/// assert_eq!(deal(&[0, 0, 0, 1], 2), [0, 0, 1, 1]);
/// ```
pub fn deal(owners: &[u32], virtual_ranks: u32) -> Vec<u32> {
    let mut owned = vec![0; virtual_ranks as usize];
    for owner in owners {
        owned[*owner as usize] += 1;
    }
    let mut room = room(&owned);
    let mut readers = owners.to_vec();
    let mut surplus = Vec::new();
    for (at, owner) in owners.iter().enumerate() {
        match &mut room[*owner as usize] {
            0 => surplus.push(at),
            room => *room -= 1,
        }
    }
    let free = (0..virtual_ranks).flat_map(|v| (0..room[v as usize]).map(move |_| v));
    for (at, v) in surplus.into_iter().zip(free) {
        readers[at] = v;
    }
    readers
}

/// How many positions of a step each virtual rank reads, given how many of them it owns: the sum n divided by their number V,
/// rounded down, and one more for n mod V of them. The one more goes to those that own more than n/V, and then to the others,
/// both in index order.
pub(super) fn room(owned: &[u64]) -> Vec<u64> {
    let (n, of) = (owned.iter().sum::<u64>(), owned.len().max(1) as u64);
    let (least, mut extra) = (n / of, n % of);
    let mut room = vec![least; owned.len()];
    for owns_more in [true, false] {
        for (room, owned) in room.iter_mut().zip(owned) {
            if extra > 0 && (*owned > least) == owns_more {
                *room += 1;
                extra -= 1;
            }
        }
    }
    room
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(readers: &[u32], v: u32) -> usize {
        readers.iter().filter(|reader| **reader == v).count()
    }

    #[test]
    fn what_is_owned_too_often_goes_to_who_has_room() {
        assert_eq!(deal(&[0, 1, 0, 1], 2), [0, 1, 0, 1]);
        assert_eq!(deal(&[1, 1, 1, 0, 1, 2], 3), [1, 1, 0, 0, 2, 2]);
        assert_eq!(deal(&[0, 0, 0, 0, 0], 3), [0, 0, 1, 1, 2]);
        assert_eq!(deal(&[2, 1, 2, 1, 2], 3), [2, 1, 2, 1, 0]);
        assert_eq!(deal(&[], 3), [0; 0]);
    }

    #[test]
    fn who_owns_more_has_room_for_more() {
        assert_eq!(room(&[2, 3, 3]), [2, 3, 3]);
        assert_eq!(room(&[0, 9, 0, 1]), [3, 3, 2, 2]);
        assert_eq!(room(&[1, 0, 1]), [1, 0, 1]);
        assert_eq!(room(&[]), [0; 0]);
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
            for v in 0..virtual_ranks {
                prop_assert!((n / of..=n.div_ceil(of)).contains(&count(&readers, v)));
                let kept: Vec<usize> = (0..n).filter(|at| owners[*at] == v && readers[*at] == v).collect();
                let first: Vec<usize> = (0..n).filter(|at| owners[*at] == v).take(kept.len()).collect();
                prop_assert_eq!(kept, first);
            }
            // No shares that are equal up to one leave more where it is.
            let owned: Vec<usize> = (0..virtual_ranks).map(|v| count(&owners, v)).collect();
            let above = owned.iter().filter(|owned| **owned > n / of).count();
            let stay = owned.iter().map(|owned| (*owned).min(n / of)).sum::<usize>() + above.min(n % of);
            prop_assert_eq!(owners.iter().zip(&readers).filter(|(owner, reader)| owner == reader).count(), stay);
        }
    }
}
