//! Mixtures: the samples of several plans in one order. Law 10 of `docs/PLAN.md`, which describes it to the bit.
//!
//! A mixture is a closed-form interleave: a global position, counted over all epochs from 0, is one source's
//! next, and a source's positions are those of its plan, epoch after epoch. Each source continues at its
//! position when an epoch of the mixture ends, so it is read without repeats or gaps in its own epochs,
//! independently of the mixture's. Its proportions may change at given positions (phases). Nothing but the [`MixtureDocument`] decides the interleave: no seed, rank,
//! time or batch size.
//!
//! A step is a stretch of positions, hence of each source a stretch of its own order. A sample's owner is the virtual rank
//! that owns its partition in its plan, so that placement and exchange work as for one plan; since the stretches of several
//! sources seldom fill the owners' shares equally, [`deal`](fn@super::deal) passes on what an owner has too many of. So every
//! virtual rank reads as much as every other, and the set that all of them read does not depend on how many they are.

mod document;
mod interleave;
mod phases;

#[cfg(test)]
mod laws;

use std::ops::Range;

use super::{Epoch, Plan, VirtualRank, deal};
use crate::digest::MixtureId;

pub use document::{
    Decimal, MIXTURE_FORMAT, MixtureDocument, MixtureError, MixturePhase, MixtureSource, Take,
};
use phases::{PhasedTurns, Phases};

/// A source of a mixture, by its place in the document.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::PlanId;
/// # use shardd_plan::{Mixture, MixtureDocument, MixtureSource, Take};
/// # let source = |name: &str, samples, parts| MixtureSource {
/// #     plan: PlanId::of(name.as_bytes()),
/// #     samples,
/// #     take: Take::Proportion(parts),
/// # };
/// # let sources = vec![source("speech", 1000, "0.75".parse()?), source("music", 500, "0.25".parse()?)];
/// # let mixture = Mixture::new(MixtureDocument::new(sources, Some(400))?)?;
/// use shardd_plan::SourceNo;
///
/// // Sample 99 of the second source, the last that the first epoch reads of it.
/// let position = mixture.position_of(SourceNo(1), 99).ok_or("no such position")?;
/// assert_eq!(mixture.at(position).source, SourceNo(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceNo(pub u32);

/// A mixture document, ready to be asked. Holds some tens of bytes per source and phase.
///
/// Methods panic for a source that it does not have.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::digest::PlanId;
/// use shardd_plan::{Mixture, MixtureDocument, MixtureSource, Take};
///
/// let source = |name: &str, samples, parts| MixtureSource {
///     plan: PlanId::of(name.as_bytes()),
///     samples,
///     take: Take::Proportion(parts),
/// };
/// let sources = vec![source("speech", 1000, "0.75".parse()?), source("music", 500, "0.25".parse()?)];
/// let mixture = Mixture::new(MixtureDocument::new(sources, Some(400))?)?;
/// assert_eq!(mixture.before(400), [300, 100]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mixture {
    id: MixtureId,
    document: MixtureDocument,
    turns: Phases,
}

/// One position of a mixture.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::PlanId;
/// # use shardd_plan::{Mixture, MixtureDocument, MixtureSource, Take};
/// # let source = |name: &str, samples, parts| MixtureSource {
/// #     plan: PlanId::of(name.as_bytes()),
/// #     samples,
/// #     take: Take::Proportion(parts),
/// # };
/// # let sources = vec![source("speech", 1000, "0.75".parse()?), source("music", 500, "0.25".parse()?)];
/// # let mixture = Mixture::new(MixtureDocument::new(sources, Some(400))?)?;
/// let read = mixture.at(7);
/// assert_eq!(mixture.position_of(read.source, read.nth), Some(7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MixtureRead {
    /// The position, counted over all epochs of the mixture.
    pub position: u64,
    /// Which source is read.
    pub source: SourceNo,
    /// How many of its samples were read before, in all its epochs.
    pub nth: u64,
}

impl Mixture {
    /// Applies `document`.
    ///
    /// # Errors
    /// [`MixtureError`] if it is out of range.
    pub fn new(document: MixtureDocument) -> Result<Self, MixtureError> {
        document.check()?;
        let mut turns = Phases::new(&document.weights()?);
        for phase in &document.phases {
            turns = turns.then(phase.from, &phase.weights()?);
        }
        Ok(Mixture { id: document.id(), turns, document })
    }

    /// The digest that names the mixture.
    pub fn id(&self) -> MixtureId {
        self.id
    }

    /// The document of the mixture.
    pub fn document(&self) -> &MixtureDocument {
        &self.document
    }

    /// Samples of an epoch.
    pub fn epoch_size(&self) -> u64 {
        self.document.epoch_size
    }

    /// The position, counted over all epochs, of one in an epoch; its end is the beginning of the next.
    ///
    /// # Errors
    /// [`MixtureError::Outside`] if the epoch has no such position, or is past the last that 64 bits can count to.
    pub fn position(&self, epoch: Epoch, position: u64) -> Result<u64, MixtureError> {
        let epoch_size = self.epoch_size();
        let start = u64::from(epoch.0).checked_mul(epoch_size).filter(|_| position <= epoch_size);
        let outside = MixtureError::Outside { epoch: epoch.0, position, epoch_size };
        start.and_then(|start| start.checked_add(position)).ok_or(outside)
    }

    /// The sample read at a position. O(log(1/share) + log(phases)) of the source found.
    pub fn at(&self, position: u64) -> MixtureRead {
        read(position, self.turns.at(position))
    }

    /// At which position sample `nth` of a source is read; `None` past the last that 64 bits can count to, or if the last phase
    /// reads no more of the source.
    pub fn position_of(&self, source: SourceNo, nth: u64) -> Option<u64> {
        self.turns.turn(self.known(source), nth)
    }

    /// How many samples of each source are read before a position.
    pub fn before(&self, position: u64) -> Vec<u64> {
        self.turns.before(position)
    }

    /// The stretch of each source's order, counted over its epochs, that a stretch of positions reads.
    pub fn stretches(&self, positions: &Range<u64>) -> Vec<Range<u64>> {
        let ends = self.before(positions.end.max(positions.start));
        self.before(positions.start).into_iter().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// The samples read from a position on, one after the other; faster than asking for each.
    pub fn walk(&self, position: u64) -> Walk<'_> {
        Walk { position, turns: self.turns.walk(position) }
    }

    /// Where in its plan a source's sample `nth` is: the epoch and the position there. A plan's orders begin again when its
    /// epochs cannot be counted any further, after 2^32 of them.
    pub fn in_plan(&self, source: SourceNo, nth: u64) -> (Epoch, u64) {
        let samples = self.document.sources[self.known(source)].samples;
        (Epoch((nth / samples) as u32), nth % samples)
    }

    /// Whether these are the plans of the sources, one for each, in the document's order.
    ///
    /// # Errors
    /// [`MixtureError::Plans`] or [`MixtureError::OtherPlan`] if not.
    pub fn check_plans(&self, plans: &[&Plan]) -> Result<(), MixtureError> {
        let sources = &self.document.sources;
        if plans.len() != sources.len() {
            return Err(MixtureError::Plans { sources: sources.len(), plans: plans.len() });
        }
        for (source_no, (source, plan)) in sources.iter().zip(plans).enumerate() {
            if plan.id() != source.plan || plan.sample_count() != source.samples {
                return Err(MixtureError::OtherPlan {
                    source_no,
                    plan: source.plan.short(),
                    samples: source.samples,
                    found: plan.id().short(),
                    found_samples: plan.sample_count(),
                });
            }
        }
        Ok(())
    }

    /// The reads of a step, by position, and which of `virtual_ranks` reads it: as many positions each, equal
    /// up to one. The plans are those of [`check_plans`](Self::check_plans); V need not divide their
    /// partitions. O(positions).
    ///
    /// # Panics
    /// If there are fewer plans than sources, or no virtual ranks.
    pub fn step(
        &self,
        plans: &[&Plan],
        positions: Range<u64>,
        virtual_ranks: u32,
    ) -> Vec<(VirtualRank, MixtureRead)> {
        let len = positions.end.saturating_sub(positions.start);
        let reads: Vec<MixtureRead> =
            (0..len).zip(self.walk(positions.start)).map(|(_, read)| read).collect();
        let owner = |read: &MixtureRead| {
            let plan = plans[read.source.0 as usize];
            let (partition, _) = plan.at_position(self.in_plan(read.source, read.nth).1);
            plan.virtual_rank_of(partition, virtual_ranks).0
        };
        let owners: Vec<u32> = reads.iter().map(owner).collect();
        deal(&owners, virtual_ranks).into_iter().map(VirtualRank).zip(reads).collect()
    }

    fn known(&self, source: SourceNo) -> usize {
        let sources = self.document.sources.len();
        assert!((source.0 as usize) < sources, "no source {} of {sources}", source.0);
        source.0 as usize
    }
}

fn read(position: u64, (source, nth): (usize, u64)) -> MixtureRead {
    MixtureRead { position, source: SourceNo(source as u32), nth }
}

/// The reads of a mixture from some position on.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::PlanId;
/// # use shardd_plan::{Mixture, MixtureDocument, MixtureSource, Take};
/// # let source = |name: &str, samples, parts| MixtureSource {
/// #     plan: PlanId::of(name.as_bytes()),
/// #     samples,
/// #     take: Take::Proportion(parts),
/// # };
/// # let sources = vec![source("speech", 1000, "0.75".parse()?), source("music", 500, "0.25".parse()?)];
/// # let mixture = Mixture::new(MixtureDocument::new(sources, Some(400))?)?;
/// let positions: Vec<u64> = mixture.walk(398).take(3).map(|read| read.position).collect();
/// assert_eq!(positions, [398, 399, 400]);
/// assert_eq!(mixture.walk(398).next(), Some(mixture.at(398)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    position: u64,
    turns: PhasedTurns<'a>,
}

impl Iterator for Walk<'_> {
    type Item = MixtureRead;

    /// `None` at the last position that 64 bits can count to.
    fn next(&mut self) -> Option<MixtureRead> {
        let position = self.position;
        self.position = position.checked_add(1)?;
        self.turns.next().map(|turn| read(position, turn))
    }
}
