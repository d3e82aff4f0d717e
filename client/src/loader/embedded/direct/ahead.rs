//! The rows that will be read, in their order, and how far each has come. Pure: rows in, places out.
//!
//! A row is known by its place in the order, so that finding it takes no search: orders have millions of them.

use std::collections::VecDeque;

/// A row by its shard's number and its own there.
pub(super) type Key = (u32, u32);

/// The rows from the first on that was not taken.
#[derive(Debug)]
pub(super) struct Ahead<T> {
    taken: u64,
    rows: VecDeque<(Key, Place<T>)>,
}

#[derive(Debug)]
enum Place<T> {
    NotAskedFor,
    Coming,
    Here(T),
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { taken: 0, rows: VecDeque::new() }
    }
}

impl<T> Ahead<T> {
    /// How many rows were taken: the place of the first that was not.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// How many rows were announced or taken: the place of the next that will be.
    pub(super) fn known(&self) -> u64 {
        self.taken + self.rows.len() as u64
    }

    /// A row will be taken, after all that were announced before. Gives its place.
    pub(super) fn announce(&mut self, key: Key) -> u64 {
        self.rows.push_back((key, Place::NotAskedFor));
        self.known() - 1
    }

    /// The row at a place that was announced and not taken.
    pub(super) fn key(&self, seq: u64) -> Option<Key> {
        self.index(seq).map(|index| self.rows[index].0)
    }

    /// Notes that a row is on its way; whether it was not before, and is not here, nor taken.
    pub(super) fn ask(&mut self, seq: u64) -> bool {
        let Some((_, place)) = self.index(seq).map(|index| &mut self.rows[index]) else { return false };
        let is_new = matches!(place, Place::NotAskedFor);
        if is_new {
            *place = Place::Coming;
        }
        is_new
    }

    /// A row that was asked for came. It is dropped if no reader waits for it any more.
    pub(super) fn came(&mut self, seq: u64, with: T) {
        if let Some(index) = self.index(seq)
            && let place @ Place::Coming = &mut self.rows[index].1
        {
            *place = Place::Here(with);
        }
    }

    pub(super) fn is_here(&self, seq: u64) -> bool {
        self.index(seq).is_some_and(|index| matches!(self.rows[index].1, Place::Here(_)))
    }

    pub(super) fn is_asked_for(&self, seq: u64) -> bool {
        self.index(seq).is_some_and(|index| !matches!(self.rows[index].1, Place::NotAskedFor))
    }

    /// Takes the next `count` rows, or as many as are known: what came of each.
    pub(super) fn take(&mut self, count: u64) -> impl Iterator<Item = (Key, Option<T>)> {
        let count = count.min(self.rows.len() as u64);
        self.taken += count;
        self.rows.drain(..count as usize).map(|(key, place)| match place {
            Place::Here(with) => (key, Some(with)),
            Place::NotAskedFor | Place::Coming => (key, None),
        })
    }

    /// Forgets what came of all rows, and that any were asked for.
    pub(super) fn forget(&mut self) {
        self.rows.iter_mut().for_each(|(_, place)| *place = Place::NotAskedFor);
    }

    fn index(&self, seq: u64) -> Option<usize> {
        let index = usize::try_from(seq.checked_sub(self.taken)?).ok()?;
        (index < self.rows.len()).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A row is taken with the result of its reading, if it was asked for and not taken by then; each is asked for once.
        #[test]
        fn each_row_is_taken_in_its_turn_with_what_came_of_it(
            events in prop::collection::vec((0u8..4, 0u64..60), 0..400),
        ) {
            let mut ahead = Ahead::default();
            let (mut keys, mut asked, mut came, mut taken) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), 0u64);
            for (event, number) in events {
                match event {
                    0 => {
                        let key = (number as u32, keys.len() as u32);
                        prop_assert_eq!(ahead.announce(key), keys.len() as u64);
                        keys.push(key);
                    }
                    1 => {
                        let is_new = number >= taken && number < keys.len() as u64 && !asked.contains_key(&number);
                        prop_assert_eq!(ahead.ask(number), is_new);
                        if is_new {
                            asked.insert(number, ());
                        }
                    }
                    2 => {
                        ahead.came(number, number * 3);
                        if number >= taken && asked.contains_key(&number) {
                            came.entry(number).or_insert(number * 3);
                        }
                    }
                    _ => {
                        let count = (number % 5).min(keys.len() as u64 - taken);
                        let expected: Vec<_> =
                            (taken..taken + count).map(|seq| (keys[seq as usize], came.get(&seq).copied())).collect();
                        prop_assert_eq!(ahead.take(number % 5).collect::<Vec<_>>(), expected);
                        taken += count;
                    }
                }
                prop_assert_eq!((ahead.taken(), ahead.known()), (taken, keys.len() as u64));
                for seq in 0..=keys.len() as u64 {
                    let is_there = seq >= taken && seq < keys.len() as u64;
                    prop_assert_eq!(ahead.key(seq), is_there.then(|| keys[seq as usize]));
                    prop_assert_eq!(ahead.is_here(seq), is_there && came.contains_key(&seq));
                    prop_assert_eq!(ahead.is_asked_for(seq), is_there && asked.contains_key(&seq));
                }
            }
        }
    }
}
