//! Sums over virtual ranks: whose bits do not depend on how many processes compute them, or faster ones ([`sums`](crate::collective::sums)).
//!
//! [`fixed`] adds up gradients in whole numbers, so that their order does not matter. [`tree`] fixes the order of every
//! addition of other numbers, and of gradients in 16 bits ([`rounded`]); [`exact`] performs it over a
//! [`Collective`](crate::collective::Collective), and `grouped` sends less of it from machine to machine. [`comm`] does all of it in the
//! background, during the training.

pub mod comm;
pub mod exact;
pub mod fixed;
pub(crate) mod grouped;
pub mod rounded;
pub mod tree;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::collective::sums::Algorithm;
use crate::compress::Compression;
use crate::optim::Optimizer;

pub use comm::{Comm, Pending};
pub use exact::{all_reduce, reduce_scatter};
pub use tree::{Partials, Span, VirtualRanks};

/// How gradients are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduction {
    /// In whole numbers, or, in 16 bits, in one fixed tree over the virtual ranks: the same weights to the last bit on any number of ranks.
    #[default]
    Exact,
    /// In any order, and compressed or not: the same but for rounding.
    Fast(Compression),
}

/// The all-reduce algorithm of uncompressed gradients with [`Reduction::Fast`]. The last bits of sums depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllReduce {
    /// By the table that was measured on one machine ([`CROSSOVERS`](crate::collective::sums::CROSSOVERS)).
    #[default]
    BuiltIn,
    /// By a table that the ranks measure at the start ([`tune`](crate::collective::sums::tune)).
    Auto {
        /// Rank 0's directory for measurements; `None` measures at each start.
        cache: Option<PathBuf>,
    },
    /// This one for any number of bytes.
    Only(Algorithm),
}

impl AllReduce {
    /// The name of the choice, which is the same on all ranks.
    pub fn name(&self) -> &'static str {
        match self {
            AllReduce::BuiltIn => "built-in",
            AllReduce::Auto { .. } => "auto",
            AllReduce::Only(algorithm) => algorithm.name(),
        }
    }
}

impl Reduction {
    /// Why it does not go with an optimizer.
    pub fn refusal(self, optimizer: Optimizer) -> Option<&'static str> {
        let Reduction::Fast(Compression::Dgc(_)) = self else { return None };
        match optimizer {
            Optimizer::Sgd { momentum, .. } if (0.0..1.0).contains(&momentum) => None,
            Optimizer::Sgd { .. } => Some("deep gradient compression needs a momentum from 0 to below 1"),
            _ => {
                Some("deep gradient compression adds up the momentum of sgd; choose that optimizer, or topk")
            }
        }
    }
}
