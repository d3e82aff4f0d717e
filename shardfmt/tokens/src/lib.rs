//! Tokens of text: the ids of Hugging Face `tokenizers` and of tiktoken, many times faster.
//!
//! A [`Tokenizer`] is read from a `tokenizer.json` or from a rank file of tiktoken. Byte-level BPE takes the own path: a
//! pre-tokenizer by hand for each known [`Pattern`], a cache of words in each [`Encoder`], and merges from one flat table.
//! All other models (WordPiece, Unigram, BPE of SentencePiece) go to the crate `tokenizers`, so that any `tokenizer.json`
//! works; [`Tokenizer::is_native`] tells which.
//!
//! Ids and offsets are a pure function of the file and the text. They depend neither on the cache nor on threads.
//!
//! ```
//! use shardd_tokens::{Specials, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tokenizer = Tokenizer::from_file("testdata/small.json")?;
//! let mut encoder = tokenizer.encoder();
//! let mut ids = Vec::new();
//! encoder.encode("The first line.\n", &mut ids, Specials::TEXT)?;
//! assert_eq!(tokenizer.decode(&ids)?, b"The first line.\n");
//! # Ok(())
//! # }
//! ```

mod added;
mod cache;
mod classes;
mod encoder;
mod error;
#[cfg(feature = "fallback")]
mod fallback;
mod json;
mod merges;
mod native;
mod normal;
mod ranks;
mod scan;
mod sink;
mod tokenizer;
mod vocabulary;

pub use added::AddedToken;
pub use encoder::Encoder;
pub use error::{DecodeError, EncodeError, FileError};
pub use ranks::{Encoding, Ranks, UnknownEncoding};
pub use scan::Pattern;
pub use tokenizer::{Specials, Tokenizer};
