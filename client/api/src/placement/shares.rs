//! The number of partitions for each node: the same number, within its room.

/// How many partitions nodes may still be given. Every node may be given its base; some one more, as long as there are extras.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    base: Vec<usize>,
    may_have_more: Vec<bool>,
    extras: usize,
    given: Vec<usize>,
}

impl Shares {
    /// Of `partitions`, to nodes that each have room for a number of them. Where there is too little room
    /// altogether, each is given more than fits in proportion to what fits: what its cache cannot hold will
    /// be missed, wherever it is hosted.
    pub(super) fn of(partitions: usize, rooms: &[usize]) -> Self {
        // A room beyond all partitions is no more room.
        let rooms: Vec<usize> = rooms.iter().map(|room| (*room).min(partitions)).collect();
        let total: usize = rooms.iter().sum();
        let base: Vec<usize> = if total >= partitions {
            let level = level(partitions, &rooms);
            rooms.iter().map(|room| (*room).min(level)).collect()
        } else {
            let part = |room: &usize| match total {
                0 => partitions / rooms.len(),
                _ => (*room as u128 * partitions as u128 / total as u128) as usize,
            };
            rooms.iter().map(part).collect()
        };
        let fits = total >= partitions;
        let may_have_more = rooms.iter().zip(&base).map(|(room, base)| !fits || room > base).collect();
        let extras = partitions - base.iter().sum::<usize>();
        Self { given: vec![0; base.len()], base, may_have_more, extras }
    }

    /// Gives a node one partition more, if it may have it.
    pub(super) fn give(&mut self, node: usize) -> bool {
        let takes_extra = self.given[node] == self.base[node] && self.may_have_more[node] && self.extras > 0;
        if takes_extra {
            self.extras -= 1;
        }
        let gives = takes_extra || self.given[node] < self.base[node];
        self.given[node] += usize::from(gives);
        gives
    }

    /// Whether a node hosts its share when it hosts `count`, without needing an extra.
    pub(super) fn is_within_base(&self, node: usize, count: usize) -> bool {
        count <= self.base[node]
    }
}

/// The highest level to which all rooms can be filled alike without giving out more than `partitions`.
fn level(partitions: usize, rooms: &[usize]) -> usize {
    let filled = |level: usize| rooms.iter().map(|room| (*room).min(level)).sum::<usize>();
    let (mut fits, mut too_high) = (0, partitions + 1);
    while too_high - fits > 1 {
        let middle = fits.midpoint(too_high);
        match filled(middle) <= partitions {
            true => fits = middle,
            false => too_high = middle,
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The share of each when nodes take partitions in turn.
    fn all_given(partitions: usize, rooms: &[usize]) -> Vec<usize> {
        let mut shares = Shares::of(partitions, rooms);
        for node in 0..rooms.len() {
            while shares.give(node) {}
        }
        shares.given
    }

    #[test]
    fn room_is_a_limit_only_while_there_is_enough_of_it() {
        assert_eq!(all_given(10, &[100, 100, 100]), [4, 3, 3]);
        assert_eq!(all_given(10, &[100, 2, 100]), [4, 2, 4]);
        assert_eq!(all_given(10, &[1, 2, 100]), [1, 2, 7]);
        assert_eq!(
            all_given(10, &[1, 2, 2]),
            [2, 4, 4],
            "too little room: as much more than fits for everybody"
        );
        assert_eq!(all_given(5, &[0, 0]), [3, 2]);
    }

    proptest! {
        #[test]
        fn all_are_given_out_and_as_evenly_as_there_is_room(
            partitions in 1usize..200,
            rooms in prop::collection::vec(0usize..60, 1..12),
        ) {
            let given = all_given(partitions, &rooms);
            prop_assert_eq!(given.iter().sum::<usize>(), partitions);
            if rooms.iter().sum::<usize>() >= partitions {
                prop_assert!(given.iter().zip(&rooms).all(|(given, room)| given <= room));
                let most = given.iter().max().expect("there is a node");
                for (given, room) in given.iter().zip(&rooms) {
                    prop_assert!(given + 1 >= *most || given == room, "one with room has two fewer than another");
                }
            }
        }
    }
}
