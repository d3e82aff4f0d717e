use proptest::prelude::*;

use super::*;

/// Takes and puts, with the room of each sequence after a take.
fn run(mut spaces: Spaces, steps: &[(u32, u32)]) -> Vec<Option<(u32, u32)>> {
    let mut opened = 0;
    let mut taken = Vec::new();
    for &(needed, room) in steps {
        let found = spaces.take(needed);
        taken.push(found);
        let sequence = found.map_or(opened, |(_, sequence)| sequence);
        opened += u32::from(found.is_none());
        spaces.put(room, sequence);
    }
    taken
}

proptest! {
    #[test]
    fn buckets_and_trees_take_the_same(length in 1u32..9000, seed in prop::collection::vec((0u32..9000, 0u32..9000), 0..300)) {
        let steps: Vec<_> = seed.into_iter().map(|(needed, room)| (needed % (length + 1), room % (length + 1))).collect();
        prop_assert_eq!(run(Spaces::new(length), &steps), run(Spaces::Tree(BTreeSet::new()), &steps));
    }

    #[test]
    fn a_cleared_space_is_empty(rooms in prop::collection::vec(0u32..5000, 0..100)) {
        let mut spaces = Spaces::new(5000);
        for (sequence, &room) in rooms.iter().enumerate() {
            spaces.put(room, sequence as u32);
        }
        spaces.clear(&rooms);
        prop_assert_eq!(spaces.take(0), None);
    }
}
