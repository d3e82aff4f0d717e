//! The samples that ranks received of an epoch, counted by virtual rank. A state keeps the counts, so that
//! any number of ranks that resume from it report the whole epoch and not its rest. Pure.

use std::ops::{AddAssign, Range};

use serde::{Deserialize, Serialize};
use shardfmt::DigestSum;

/// Samples, each counted once, and the sum of their digests.
///
/// ```
/// use shardd_client::loader::Delivered;
/// use shardfmt::{DigestSum, RowDigest};
///
/// let one = Delivered { samples: 1, digest_sum: DigestSum::from(RowDigest::of(b"a canonical row")) };
/// let mut all = Delivered::default();
/// all += one;
/// assert_eq!(all, one);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivered {
    /// How many.
    pub samples: u64,
    /// The sum of their row digests.
    pub digest_sum: DigestSum,
}

impl AddAssign for Delivered {
    fn add_assign(&mut self, more: Self) {
        self.samples = self.samples.saturating_add(more.samples);
        self.digest_sum += more.digest_sum;
    }
}

/// The samples given to all virtual ranks in one epoch, from its beginning on.
///
/// ```
/// use shardd_client::loader::EpochDelivered;
///
/// let mut epoch = EpochDelivered::begin(3, 4);
/// epoch.virtual_ranks[1].samples = 16;
/// assert_eq!(epoch.of(0..2).samples, 16);
/// assert_eq!(epoch.of(2..4).samples, 0);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochDelivered {
    /// The epoch.
    pub epoch: u32,
    /// By virtual rank, all V of them.
    pub virtual_ranks: Vec<Delivered>,
}

impl EpochDelivered {
    /// Nothing yet.
    pub fn begin(epoch: u32, virtual_ranks: u32) -> Self {
        Self { epoch, virtual_ranks: vec![Delivered::default(); virtual_ranks as usize] }
    }

    /// The samples given to some virtual ranks together, without absent ones.
    pub fn of(&self, virtual_ranks: Range<u32>) -> Delivered {
        let mut all = Delivered::default();
        let range = virtual_ranks.start as usize..virtual_ranks.end as usize;
        for one in self.virtual_ranks.get(range).unwrap_or_default() {
            all += *one;
        }
        all
    }
}

/// The samples given of the epoch under way, and of the one before, of which a report may still be on its
/// way. Of an epoch that was not counted from its beginning there is nothing: half a count would be taken for
/// a fault of the reading.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/numbers.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, plan) = numbers()?;
/// # let place = shardd_client::StorePlace::Directory(store.path().into());
/// # let source = shardd_client::LoaderSource::Store(place.clone());
/// use shardd_client::loader::Deliveries;
/// use shardd_client::{Loader, LoaderConfig};
///
/// let mut loader = Loader::open(LoaderConfig::new(source, plan, 32))?;
/// let mut deliveries = Deliveries::default();
/// for _ in 0..2 {
///     let step = loader.next_step()?.ok_or("no step")?;
///     deliveries.add(step.epoch, step.positions().start, Some(&step.delivered()));
/// }
/// assert_eq!(deliveries.of(0).map(|epoch| epoch.of(0..1).samples), Some(64));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Deliveries(Vec<EpochDelivered>);

/// How many epochs are kept.
const KEPT: usize = 2;

impl Deliveries {
    /// Counts the samples that each of V virtual ranks got of a step that begins at `position` of `epoch`;
    /// `None` if one count is missing.
    pub fn add(&mut self, epoch: u32, position: u64, given: Option<&[Delivered]>) {
        let Some(given) = given else {
            self.0.retain(|it| it.epoch != epoch);
            return;
        };
        if position == 0 {
            self.0.retain(|it| it.epoch < epoch);
            self.0.push(EpochDelivered::begin(epoch, u32::try_from(given.len()).unwrap_or(u32::MAX)));
            let surplus = self.0.len().saturating_sub(KEPT);
            self.0.drain(..surplus);
        }
        let Some(so_far) = self.0.iter_mut().find(|it| it.epoch == epoch) else { return };
        for (all, more) in so_far.virtual_ranks.iter_mut().zip(given) {
            *all += *more;
        }
    }

    /// The samples given of an epoch, if it was counted from its beginning.
    pub fn of(&self, epoch: u32) -> Option<&EpochDelivered> {
        self.0.iter().find(|it| it.epoch == epoch)
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these can be counts of `virtual_ranks` virtual ranks: of few epochs, all of this number of
    /// virtual ranks.
    pub fn fits(&self, virtual_ranks: u32) -> bool {
        self.0.len() <= KEPT && self.0.iter().all(|it| it.virtual_ranks.len() == virtual_ranks as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What V virtual ranks are given in each step of an epoch.
    fn steps(count: u32) -> impl Strategy<Value = Vec<Vec<Delivered>>> {
        let delivered = (0u64..9, any::<u128>())
            .prop_map(|(samples, sum)| Delivered { samples, digest_sum: DigestSum(sum) });
        prop::collection::vec(prop::collection::vec(delivered, count as usize), 1..9)
    }

    proptest! {
        #[test]
        fn an_epoch_comes_to_the_same_wherever_it_was_left_and_by_whatever_number_of_ranks(
            steps in (1u32..9).prop_flat_map(steps), left_after in 0usize..9, world in 1u32..9,
        ) {
            let virtual_ranks = steps[0].len() as u32;
            let mut whole = Deliveries::default();
            steps.iter().zip(0..).for_each(|(step, at)| whole.add(3, at, Some(step)));
            let mut first = Deliveries::default();
            let left = left_after.min(steps.len());
            steps.iter().zip(0..).take(left).for_each(|(step, at)| first.add(3, at, Some(step)));
            let text = serde_json::to_string(&first).expect("plain data");
            let mut second: Deliveries = serde_json::from_str(&text).expect("its own");
            steps.iter().zip(0..).skip(left).for_each(|(step, at)| second.add(3, at, Some(step)));
            prop_assert_eq!(&second, &whole);
            prop_assert!(whole.fits(virtual_ranks) && !whole.fits(virtual_ranks + 1));
            let of = |range| whole.of(3).expect("counted from its beginning").of(range);
            let mut ranks = Delivered::default();
            for rank in 0..world {
                ranks += of(rank * virtual_ranks / world..(rank + 1) * virtual_ranks / world);
            }
            prop_assert_eq!(ranks, of(0..virtual_ranks));
        }
    }

    #[test]
    fn what_was_not_counted_from_its_beginning_is_not_counted_at_all() {
        let one = [Delivered { samples: 1, digest_sum: DigestSum(1) }];
        let mut middle = Deliveries::default();
        middle.add(0, 5, Some(&one));
        assert!(middle.is_empty());
        let mut lost = Deliveries::default();
        lost.add(0, 0, Some(&one));
        lost.add(0, 1, None);
        lost.add(0, 2, Some(&one));
        assert!(lost.is_empty());
    }

    #[test]
    fn the_epoch_under_way_and_the_one_before_are_kept() {
        let one = [Delivered { samples: 1, digest_sum: DigestSum(1) }];
        let mut all = Deliveries::default();
        for epoch in 0..4 {
            all.add(epoch, 0, Some(&one));
            all.add(epoch, 1, Some(&one));
        }
        assert_eq!(
            [0, 1, 2, 3].map(|epoch| all.of(epoch).map(|it| it.of(0..1).samples)),
            [None, None, Some(2), Some(2)]
        );
        all.add(2, 0, Some(&one));
        assert_eq!([1, 2, 3].map(|epoch| all.of(epoch).map(|it| it.of(0..1).samples)), [None, Some(1), None]);
    }
}
