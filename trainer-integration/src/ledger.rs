//! How many bytes of a model's numbers a rank holds: weights, gradients, moments, and parameters that are gathered for a while. Counted where
//! memory is taken and given back, so it is what there is, and not what a formula says.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

/// The use of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Parameters that stay: all of them, or this rank's slices.
    Weights,
    /// Gradients, from when a bucket is begun until its sum is used.
    Gradients,
    /// The optimizer's state.
    Moments,
    /// Parameters in other numbers, or of other ranks, while they are computed with.
    Gathered,
    /// Of a checkpoint: copies until they are written, and read numbers until they are taken over.
    Copies,
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// See [`Kind::Weights`].
    pub weights: usize,
    /// See [`Kind::Gradients`].
    pub gradients: usize,
    /// See [`Kind::Moments`].
    pub moments: usize,
    /// See [`Kind::Gathered`].
    pub gathered: usize,
    /// See [`Kind::Copies`].
    pub copies: usize,
    /// Of all kinds together; at the peak, less than the sum of the peaks if these were at different times.
    pub all: usize,
}

impl Usage {
    /// The larger of each.
    #[must_use]
    pub fn with(self, other: Usage) -> Usage {
        Usage {
            weights: self.weights.max(other.weights),
            gradients: self.gradients.max(other.gradients),
            moments: self.moments.max(other.moments),
            gathered: self.gathered.max(other.gathered),
            copies: self.copies.max(other.copies),
            all: self.all.max(other.all),
        }
    }

    /// With names, without that of all.
    pub fn by_kind(self) -> [(&'static str, usize); 5] {
        let Usage { weights, gradients, moments, gathered, copies, .. } = self;
        [
            ("weights", weights),
            ("gradients", gradients),
            ("moments", moments),
            ("gathered", gathered),
            ("copies", copies),
        ]
    }
}

/// Counts what one rank holds. Clones count together.
#[derive(Clone, Default)]
pub struct Ledger(Arc<[Cell; 6]>);

#[derive(Default)]
struct Cell {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Cell {
    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
    }
}

/// The place of the sum of all kinds.
const ALL: usize = 5;

impl Ledger {
    /// Counts `bytes` bytes as long as the returned value lives.
    pub fn hold(&self, kind: Kind, bytes: usize) -> Held {
        let held = Held { ledger: self.clone(), kind, bytes: 0 };
        held.with(bytes)
    }

    /// The present bytes.
    pub fn now(&self) -> Usage {
        self.usage(|cell| cell.now.load(Ordering::Relaxed))
    }

    /// The most there was since the last [`Ledger::forget`], by kind.
    pub fn most(&self) -> Usage {
        self.usage(|cell| cell.most.load(Ordering::Relaxed))
    }

    /// Starts the search for the maximum again.
    pub fn forget(&self) {
        self.0.iter().for_each(|cell| cell.most.store(cell.now.load(Ordering::Relaxed), Ordering::Relaxed));
    }

    fn usage(&self, of: impl Fn(&Cell) -> usize) -> Usage {
        let [weights, gradients, moments, gathered, copies, all] = self.0.each_ref().map(of);
        Usage { weights, gradients, moments, gathered, copies, all }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.now().fmt(f)
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub struct Held {
    ledger: Ledger,
    kind: Kind,
    bytes: usize,
}

impl Held {
    /// `bytes` bytes instead.
    #[must_use]
    pub fn with(mut self, bytes: usize) -> Held {
        self.set(bytes);
        self
    }

    /// How many are counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` bytes instead, from now on.
    pub fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        for cell in [&self.ledger.0[self.kind as usize], &self.ledger.0[ALL]] {
            cell.now.fetch_sub(before, Ordering::Relaxed);
            cell.add(bytes);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Numbers whose memory is on a ledger, or on none.
#[derive(Debug, Default)]
pub struct Numbers<T> {
    values: Vec<T>,
    held: Option<Held>,
}

impl<T> Numbers<T> {
    /// No numbers yet, in memory for `count`.
    pub fn with_capacity(ledger: &Ledger, kind: Kind, count: usize) -> Numbers<T> {
        Numbers::of(ledger, kind, Vec::with_capacity(count))
    }

    /// These numbers, from now on on the ledger.
    pub fn of(ledger: &Ledger, kind: Kind, values: Vec<T>) -> Numbers<T> {
        let held = Some(ledger.hold(kind, values.capacity() * size_of::<T>()));
        Numbers { values, held }
    }

    /// No numbers yet, in memory for `count`, on the ledger that these are on.
    pub fn another(&self, count: usize) -> Numbers<T> {
        let values = Vec::with_capacity(count);
        let bytes = values.capacity() * size_of::<T>();
        let held = self.held.as_ref().map(|held| held.ledger.hold(held.kind, bytes));
        Numbers { values, held }
    }

    /// The numbers, from now on on no ledger.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// How many numbers there is memory for.
    pub fn capacity(&self) -> usize {
        self.values.capacity()
    }
}

impl<T> From<Vec<T>> for Numbers<T> {
    /// On no ledger.
    fn from(values: Vec<T>) -> Numbers<T> {
        Numbers { values, held: None }
    }
}

impl<T: Clone> Clone for Numbers<T> {
    /// On the same ledger.
    fn clone(&self) -> Numbers<T> {
        let values = self.values.clone();
        let bytes = values.capacity() * size_of::<T>();
        let held = self.held.as_ref().map(|held| held.ledger.hold(held.kind, bytes));
        Numbers { values, held }
    }
}

impl<T: PartialEq> PartialEq for Numbers<T> {
    fn eq(&self, other: &Numbers<T>) -> bool {
        self.values == other.values
    }
}

impl<T> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for Numbers<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

/// Of numbers that may grow: with this dropped, the ledger has what there is then.
#[derive(Debug)]
pub struct Growing<'a, T>(&'a mut Numbers<T>);

impl<T> Numbers<T> {
    /// To add numbers to them.
    pub fn growing(&mut self) -> Growing<'_, T> {
        Growing(self)
    }
}

impl<T> Deref for Growing<'_, T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0.values
    }
}

impl<T> DerefMut for Growing<'_, T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0.values
    }
}

impl<T> Drop for Growing<'_, T> {
    fn drop(&mut self) {
        let bytes = self.0.values.capacity() * size_of::<T>();
        if let Some(held) = &mut self.0.held {
            held.set(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_is_counted_and_the_most_is_remembered() {
        let ledger = Ledger::default();
        let mut one = Numbers::<f32>::with_capacity(&ledger, Kind::Gradients, 100);
        let other = ledger.hold(Kind::Weights, 50);
        assert_eq!(ledger.now(), Usage { gradients: 400, weights: 50, all: 450, ..Usage::default() });
        one.growing().resize(1_000, 0.0);
        let grown = ledger.now().gradients;
        assert!(grown >= 4_000);
        let copy = one.clone();
        assert!(ledger.now().gradients >= grown + 4_000);
        drop((one, copy));
        let other = other.with(70);
        assert_eq!(ledger.now(), Usage { weights: 70, all: 70, ..Usage::default() });
        let one = Numbers::<f32>::with_capacity(&ledger, Kind::Gradients, 10);
        let another = (one.another(20), Numbers::from(vec![1.0f32]).another(5));
        assert_eq!((ledger.now().gradients, another.1.capacity()), (4 * 30, 5));
        drop((one, another));
        assert!(ledger.most().gradients >= 8_000 && ledger.most().all >= 8_050);
        ledger.forget();
        drop(other);
        assert_eq!((ledger.most().all, ledger.now()), (70, Usage::default()));
        assert_eq!(Numbers::from(vec![1.0f32]).into_values(), [1.0]);
        assert_eq!(ledger.now(), Usage::default(), "on no ledger");
    }
}
