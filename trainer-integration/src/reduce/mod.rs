//! Sums over virtual ranks: whose bits do not depend on how many processes compute them, or faster ones ([`sums`](crate::collective::sums)).
//!
//! [`tree`] fixes the order of every addition; [`exact`] performs it over a
//! [`Collective`](crate::collective::Collective); [`comm`] does so in the background, during the training.
//! [`rounded`] makes the sums in 16 bits, `grouped` sends less of them from machine to machine.

pub mod comm;
pub mod exact;
pub(crate) mod grouped;
pub mod rounded;
pub mod tree;

use serde::{Deserialize, Serialize};

use crate::compress::Compression;
use crate::optim::Optimizer;

pub use comm::{Comm, Pending};
pub use exact::{all_reduce, reduce_scatter};
pub use tree::{Partials, Span, VirtualRanks};

/// How gradients are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// In one fixed tree over the virtual ranks: the same weights to the last bit on any number of ranks.
    #[default]
    Exact,
    /// In any order, and compressed or not: the same but for rounding.
    Fast(Compression),
}

impl Reduction {
    /// Why it does not go with an optimizer.
    pub fn refusal(self, optimizer: Optimizer) -> Option<&'static str> {
        let is_deep = matches!(self, Reduction::Fast(Compression::Dgc(_)));
        (is_deep && !matches!(optimizer, Optimizer::Sgd { .. })).then_some(
            "deep gradient compression adds up the momentum of sgd; choose that optimizer, or topk",
        )
    }
}
