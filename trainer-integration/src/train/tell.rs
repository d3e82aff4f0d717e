//! What each virtual rank was given of a step becomes known to all ranks while they compute it: any of them may be the last that is
//! left, and a checkpoint has to say it of all.

use shardd_client::loader::Delivered;
use shardfmt::DigestSum;

use crate::collective::{CollectiveError, Message};
use crate::reduce::{Comm, Pending, VirtualRanks};
use crate::source::Step;

/// Of one virtual rank: a count, and a sum of 16 bytes.
const BYTES: usize = 24;

/// A message on its way.
pub(super) struct DeliveredEverywhere {
    ranks: VirtualRanks,
    messages: Pending<Vec<Message>>,
}

/// Tells all ranks what this one's virtual ranks are given of a step. All call it together, before the step's
/// own operations, so that the facts of a step are known once the step is.
pub(super) fn tell(comm: &Comm, ranks: VirtualRanks, step: &Step) -> DeliveredEverywhere {
    let bytes = to_bytes(&step.delivered);
    DeliveredEverywhere { ranks, messages: comm.submit(move |collective| collective.all_gather(&bytes)) }
}

impl DeliveredEverywhere {
    /// By virtual rank; `None` if a rank does not count.
    ///
    /// # Errors
    /// When another rank is gone or late, or says what cannot be.
    pub(super) fn heard(self) -> Result<Option<Vec<Delivered>>, CollectiveError> {
        let mut all = Vec::with_capacity(self.ranks.count as usize);
        for (rank, message) in (0..).zip(&self.messages.wait()?) {
            let bytes = message.bytes();
            if bytes.is_empty() {
                return Ok(None);
            }
            if bytes.len() != BYTES * self.ranks.of(rank).len() {
                let what = format!("{} bytes of what its virtual ranks were given", bytes.len());
                return Err(CollectiveError::Malformed { rank, what });
            }
            all.extend(bytes.chunks_exact(BYTES).map(of_bytes));
        }
        Ok(Some(all))
    }
}

fn to_bytes(delivered: &[Delivered]) -> Vec<u8> {
    let one = |one: &Delivered| [&one.samples.to_le_bytes()[..], &one.digest_sum.0.to_le_bytes()].concat();
    delivered.iter().flat_map(one).collect()
}

fn of_bytes(bytes: &[u8]) -> Delivered {
    let (samples, sum) = bytes.split_at(size_of::<u64>());
    Delivered {
        samples: u64::from_le_bytes(samples.try_into().expect("cut to be one")),
        digest_sum: DigestSum(u128::from_le_bytes(sum.try_into().expect("cut to be one"))),
    }
}
