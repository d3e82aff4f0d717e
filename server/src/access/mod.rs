//! Who may ask what over HTTP. A bearer shows a token; what the token allows is kept beside its digest in the metastore, so
//! that who reads the metastore, or a backup of it, cannot use any.
//!
//! [`token`](self) is what a token is and says, [`need`](Need) what a request needs, [`Tokens`] which tokens there are,
//! [`Mark`], [`owner`] and [`private`] are what the data directory has to do with them. Knows nothing of sockets and answers.

mod mark;
mod need;
pub mod owner;
pub mod private;
mod token;
mod tokens;

pub use mark::Mark;
pub use need::Need;
pub use token::{BadToken, Denied, Role, Scope, Token, TokenId, TokenRecord};
pub use tokens::{Grant, Tokens};
