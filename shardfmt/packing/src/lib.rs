//! Packs documents into sequences of one length, deals sequences to ranks of equal cost, and renders chat templates.
//!
//! [`Packing`] is a document that describes the packing. [`Packing::pack`] packs a list of lengths, and [`Packer`] does the
//! same for a stream of lengths with bounded memory. Neither sees a token: the result names documents, starts and lengths
//! ([`Packed`]). [`balance`] deals the sequences of a step to micro-batches, and [`flatten`] makes the keys that attention
//! without padding needs. With the feature `chat`, `chat::Template` renders conversations as Hugging Face's transformers
//! does. All functions are pure: equal input makes equal output on every machine.
//!
//! ```
//! use shardd_packing::{Packing, Padding, flatten};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let packing: Packing = serde_json::from_str(r#"{"length": 8, "strategy": "best_fit_decreasing"}"#)?;
//! let (packed, stats) = packing.pack(&[5, 6, 3, 2])?;
//! let documents: Vec<Vec<u64>> =
//!     packed.iter().map(|pieces| pieces.iter().map(|piece| piece.document).collect()).collect();
//! assert_eq!(documents, [[0, 2], [1, 3]]);
//! assert_eq!(stats.padding_share(), 0.0);
//!
//! let batch = flatten(packed.iter(), Padding::Exclude)?;
//! assert_eq!(batch.cu_seq_lens, [0, 5, 8, 14, 16]);
//! assert_eq!(batch.max_length, 6);
//! # Ok(())
//! # }
//! ```

mod balance;
#[cfg(feature = "chat")]
pub mod chat;
mod flat;
mod pack;
mod packed;
mod packer;

pub use balance::{CostModel, balance, imbalance};
pub use flat::{FlatBatch, FlatError, PADDING_DOCUMENT, Padding, flatten};
pub use pack::{Long, PackError, Packing, Strategy};
pub use packed::{Packed, Piece, Stats};
pub use packer::Packer;
