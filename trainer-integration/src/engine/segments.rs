//! Numbers of a block by their place in it, in stretches that each have memory of their own: a tensor can take one without a copy, and a rank can
//! keep some of them only. Pure.

use std::ops::Range;

use super::Owners;

/// Stretches in order.
#[derive(Debug, Default)]
pub(super) struct Segments(Vec<(Range<usize>, Vec<f32>)>);

impl Segments {
    /// These stretches of a block, of which `numbers` are all.
    pub(super) fn of(ranges: impl IntoIterator<Item = Range<usize>>, numbers: &[f32]) -> Segments {
        Segments(ranges.into_iter().map(|range| (range.clone(), numbers[range].to_vec())).collect())
    }

    /// Bytes of their memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(range, _)| range.len() * size_of::<f32>()).sum()
    }

    /// In order.
    pub(super) fn stretches(&self) -> impl Iterator<Item = (usize, &[f32])> {
        self.0.iter().map(|(range, numbers)| (range.start, &numbers[..]))
    }

    /// The numbers of ranges, in order, each of which lies in one of the stretches.
    pub(super) fn ranges(&self, ranges: impl Iterator<Item = Range<usize>>) -> Vec<&[f32]> {
        let mut stretches = self.0.iter();
        let mut held = stretches.next();
        let find = |range: Range<usize>| loop {
            let (place, numbers) = held.expect("the ranges lie in the stretches, in order");
            if range.end <= place.end {
                return &numbers[range.start - place.start..range.end - place.start];
            }
            held = stretches.next();
        };
        ranges.map(find).collect()
    }

    /// The same, to be changed.
    pub(super) fn ranges_mut(&mut self, ranges: impl Iterator<Item = Range<usize>>) -> Vec<&mut [f32]> {
        let mut stretches = self.0.iter_mut().map(|(held, numbers)| (held.start, &mut numbers[..]));
        let mut next = stretches.next();
        let find = |range: Range<usize>| loop {
            let (start, numbers) = next.take().expect("the ranges lie in the stretches, in order");
            if range.start >= start + numbers.len() {
                next = stretches.next();
                continue;
            }
            let (_, rest) = numbers.split_at_mut(range.start - start);
            let (found, rest) = rest.split_at_mut(range.len());
            next = Some((range.end, rest));
            return found;
        };
        ranges.map(find).collect()
    }

    /// Takes over what there is of these numbers, which begin at `start` in the block.
    pub(super) fn copy_from(&mut self, start: usize, numbers: &[f32]) {
        for (range, held) in &mut self.0 {
            let (from, to) = (range.start.max(start), range.end.min(start + numbers.len()));
            if from < to {
                held[from - range.start..to - range.start]
                    .copy_from_slice(&numbers[from - start..to - start]);
            }
        }
    }

    /// The memory of each, to be given back as it came: empty meanwhile.
    pub(super) fn lend(&mut self) -> Vec<Vec<f32>> {
        self.0.iter_mut().map(|(_, numbers)| std::mem::take(numbers)).collect()
    }

    /// Takes back the lent memory.
    pub(super) fn give_back(&mut self, memory: Vec<Vec<f32>>) {
        for ((range, place), numbers) in self.0.iter_mut().zip(memory) {
            debug_assert_eq!(range.len(), numbers.len(), "as it came");
            *place = numbers;
        }
    }
}

/// Who owns which numbers of a block, of its trained ones first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    pub(super) owners: Owners,
    pub(super) block: usize,
    pub(super) trained: usize,
    pub(super) all: usize,
}

impl Ownership {
    /// The trained numbers of the owner of a place.
    pub(super) fn trained_of(&self, place: u32) -> Range<usize> {
        self.owners.slice(self.block, self.trained, place)
    }

    /// And of the frozen ones.
    pub(super) fn frozen_of(&self, place: u32) -> Range<usize> {
        let range = self.owners.slice(self.block, self.all - self.trained, place);
        self.trained + range.start..self.trained + range.end
    }

    /// The stretches of memory that hold the numbers from 0 to `end`, cut where the owner changes.
    pub(super) fn cut<'a, T>(
        &self,
        stretches: &[Range<usize>],
        memory: &'a mut [Vec<T>],
        end: usize,
    ) -> Vec<(u32, &'a mut [T])> {
        let places = 0..self.owners.count;
        let owned =
            places.flat_map(|place| [(place, self.trained_of(place)), (place, self.frozen_of(place))]);
        let mut owned: Vec<(u32, Range<usize>)> = owned.filter(|(_, range)| !range.is_empty()).collect();
        owned.sort_unstable_by_key(|(_, range)| range.start);
        let mut pieces = Vec::new();
        for (stretch, numbers) in stretches.iter().zip(memory) {
            let mut rest = &mut numbers[..];
            let mut position = stretch.start;
            for (place, range) in &owned {
                let to = range.end.min(stretch.end).min(end);
                if range.start <= position && position < to {
                    let (piece, after) = rest.split_at_mut(to - position);
                    pieces.push((*place, piece));
                    (rest, position) = (after, to);
                }
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stretch_is_found_by_the_place_of_its_numbers() {
        let all: Vec<f32> = (0u8..10).map(f32::from).collect();
        let mut some = Segments::of([2..4, 6..9], &all);
        assert_eq!(some.bytes(), 5 * 4);
        assert_eq!(some.ranges([3..4, 6..7, 7..9].into_iter()), [&[3.0][..], &[6.0], &[7.0, 8.0]]);
        assert_eq!(some.ranges_mut([3..4, 6..7, 7..9].into_iter()), [&[3.0][..], &[6.0], &[7.0, 8.0]]);
        some.copy_from(3, &[30.0, 40.0, 50.0, 60.0, 70.0]);
        let lent = some.lend();
        assert_eq!(lent, [vec![2.0, 30.0], vec![60.0, 70.0, 8.0]]);
        assert!(some.stretches().all(|(_, numbers)| numbers.is_empty()));
        some.give_back(lent);
        assert_eq!(some.stretches().last(), Some((6, &[60.0, 70.0, 8.0][..])));
    }

    proptest! {
        #[test]
        fn pieces_are_all_numbers_once_each_with_its_owner(
            lengths in prop::collection::vec(0usize..4_000, 1..6), trained in 0usize..6, count in 1u32..6, block in 0usize..4
        ) {
            let trained: usize = lengths.iter().take(trained).sum();
            let all: usize = lengths.iter().sum();
            let ownership = Ownership { owners: Owners { count }, block, trained, all };
            let mut start = 0;
            let stretches: Vec<Range<usize>> = lengths.iter().map(|length| {
                start += length;
                start - length..start
            }).collect();
            let number = |at: usize| at as f32;
            let mut memory: Vec<Vec<f32>> = stretches.iter().map(|range| range.clone().map(number).collect()).collect();
            for end in [trained, all] {
                let mut next = 0;
                for (place, piece) in ownership.cut(&stretches, &mut memory, end) {
                    prop_assert_eq!(piece[0], number(next));
                    let range = next..next + piece.len();
                    next = range.end;
                    let holds = |held: Range<usize>| held.start <= range.start && range.end <= held.end;
                    prop_assert!(holds(ownership.trained_of(place)) || holds(ownership.frozen_of(place)));
                }
                prop_assert_eq!(next, end);
            }
        }
    }
}
