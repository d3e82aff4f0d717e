//! Memory of the last step, for the next one: a system would first have to clear new memory.

use super::Zero;
use crate::ledger::{Held, Kind, Ledger, Numbers};

/// Memory that nobody uses.
#[derive(Debug)]
pub(super) struct Spare {
    ledger: Ledger,
    zero: Zero,
    /// Of gradients: by bucket, or, where buckets do not outlive their sums, of any two.
    gradients: Vec<Numbers<f32>>,
    gathered: Pool,
}

/// Buckets whose gradients exist at once where they do not outlive their sums: one is filled while another is added up.
const BUCKETS_AT_ONCE: usize = 2;

impl Spare {
    /// For blocks of so many numbers.
    pub(super) fn new(zero: Zero, ledger: &Ledger, blocks: impl Iterator<Item = usize>) -> Spare {
        let largest = blocks.max().unwrap_or(0);
        let gathered = Pool::new(ledger, 2 * largest * size_of::<f32>());
        Spare { ledger: ledger.clone(), zero, gradients: Vec::new(), gathered }
    }

    /// Room for the gradients of a bucket, of so many numbers.
    pub(super) fn gradients(&mut self, bucket: usize, length: usize) -> Numbers<f32> {
        let found = match self.zero {
            Zero::Nothing | Zero::Moments => self.gradients.get_mut(bucket).map(std::mem::take),
            Zero::Gradients | Zero::Parameters => {
                let fits = |room: &Numbers<f32>| room.capacity() >= length;
                let place = self.gradients.iter().position(fits).or(self.gradients.len().checked_sub(1));
                place.map(|place| self.gradients.swap_remove(place))
            }
        };
        match found {
            Some(mut room) if room.capacity() >= length => {
                room.growing().clear();
                room
            }
            found => {
                drop(found);
                Numbers::with_capacity(&self.ledger, Kind::Gradients, length)
            }
        }
    }

    /// Keeps the memory of a bucket whose sums are elsewhere.
    pub(super) fn keep_gradient(&mut self, room: Numbers<f32>) {
        if self.gradients.len() < BUCKETS_AT_ONCE {
            self.gradients.push(room);
        }
    }

    /// Keeps the memory of all buckets, if it is that of whole ones.
    pub(super) fn keep_gradients(&mut self, gradients: Vec<Numbers<f32>>) {
        if self.zero <= Zero::Moments {
            self.gradients = gradients;
        }
    }

    /// Buckets have other sizes from now on.
    pub(super) fn forget_gradients(&mut self) {
        self.gradients.clear();
    }

    /// Memory for the gathered parameters of a block, of so many numbers each.
    pub(super) fn gathered(&mut self, lengths: impl Iterator<Item = usize>) -> Vec<Vec<f32>> {
        lengths.map(|length| self.gathered.take(length)).collect()
    }

    /// Takes it back.
    pub(super) fn keep_gathered(&mut self, memory: Vec<Vec<f32>>) {
        memory.into_iter().for_each(|numbers| self.gathered.keep(numbers));
    }

    /// What was taken does not come back.
    pub(super) fn lose_gathered(&mut self, lengths: impl Iterator<Item = usize>) {
        self.gathered.lose(lengths.sum::<usize>() * size_of::<f32>());
    }
}

/// Memory by its length. In use and not, it is no more than so many bytes, unless more is in use.
#[derive(Debug)]
struct Pool {
    most: usize,
    /// Bytes, in use and not.
    bytes: usize,
    /// The one that was kept last is at the end.
    free: Vec<Vec<f32>>,
    held: Held,
}

impl Pool {
    fn new(ledger: &Ledger, most: usize) -> Pool {
        Pool { most, bytes: 0, free: Vec::new(), held: ledger.hold(Kind::Gathered, 0) }
    }

    /// Memory of this length, with any numbers in it.
    fn take(&mut self, length: usize) -> Vec<f32> {
        if let Some(place) = self.free.iter().rposition(|numbers| numbers.len() == length) {
            return self.free.remove(place);
        }
        let bytes = length * size_of::<f32>();
        while self.bytes + bytes > self.most && !self.free.is_empty() {
            let gone = self.free.remove(0);
            self.count(self.bytes - size_of_val(&gone[..]));
        }
        self.count(self.bytes + bytes);
        vec![0.0; length]
    }

    fn keep(&mut self, numbers: Vec<f32>) {
        self.free.push(numbers);
    }

    fn lose(&mut self, bytes: usize) {
        self.count(self.bytes - bytes);
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.held.set(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_there_is_never_much_of_it() {
        let ledger = Ledger::default();
        let mut pool = Pool::new(&ledger, 4 * 100);
        let (one, other) = (pool.take(40), pool.take(40));
        let address = one.as_ptr();
        pool.keep(other);
        pool.keep(one);
        let again = pool.take(40);
        assert_eq!(again.as_ptr(), address, "the one whose pages are warm");
        pool.lose(4 * 40);
        assert_eq!(ledger.now().gathered, 4 * 40);
        drop(pool.take(60));
        assert_eq!(ledger.now().gathered, 4 * 100, "both fit");
        drop(pool.take(30));
        assert_eq!(ledger.now().gathered, 4 * 90, "what was free went away for it");
        drop(pool.take(70));
        assert_eq!(ledger.now().gathered, 4 * 160, "what is needed is there");
    }

    #[test]
    fn gradients_have_the_memory_of_the_last_step() {
        for (zero, kept) in [(Zero::Moments, 3), (Zero::Parameters, 2)] {
            let ledger = Ledger::default();
            let mut spare = Spare::new(zero, &ledger, [10].into_iter());
            let rooms: Vec<Numbers<f32>> = (0..3).map(|bucket| spare.gradients(bucket, 100)).collect();
            match zero {
                Zero::Moments => spare.keep_gradients(rooms),
                _ => rooms.into_iter().for_each(|room| spare.keep_gradient(room)),
            }
            assert_eq!(ledger.now().gradients, kept * 400, "{zero:?}");
            let again = spare.gradients(1, 100);
            assert_eq!(ledger.now().gradients, kept * 400);
            let more = spare.gradients(2, 200);
            assert!(ledger.now().gradients > kept * 400 && more.capacity() >= 200 && again.is_empty());
            spare.forget_gradients();
        }
    }
}
