//! Sums over virtual ranks whose bits do not depend on how many processes compute them.
//!
//! [`tree`] fixes the order of every addition; [`exact`] performs it over a [`Collective`](crate::collective::Collective);
//! [`comm`] does so in the background, so that training goes on meanwhile.

pub mod comm;
pub mod exact;
pub mod tree;

pub use comm::{Comm, Pending};
pub use exact::all_reduce;
pub use tree::{Partials, Span, VirtualRanks};
