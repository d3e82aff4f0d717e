//! Pure rules that derive one version of a dataset from another: filter, select, split, deduplicate, sample.
//!
//! A rule gets record batches in row order and decides which rows stay, and how often. It does no I/O, starts
//! no thread, and gives the same result on each machine: decisions are made in integers or by single
//! operations of IEEE 754, and chance is a hash of a seed and a row. Most functions look at one record batch
//! at a time, and all types are `Send` and `Sync`.
//!
//! | rule | types | looks at |
//! |---|---|---|
//! | filter | [`expr::Predicate`] | a record batch |
//! | select | [`projection::Projection`] | a record batch |
//! | split | [`split::Split`], by a [`key::Key`] | a record batch; the whole version for exact strata |
//! | dedup | [`dedup::Exact`], [`dedup::MinHasher`] and [`dedup::Clusters`] | rows in order; signatures one by one |
//! | sample | [`sample::Sample`] and the functions beside it | the whole version; Bernoulli a record batch |
//!
//! A [`rule::Rule`] is such a rule as a document, and a [`rule::Derivation`] records the rules of a version.

pub mod decimal;
pub mod dedup;
pub mod expr;
pub mod key;
pub mod projection;
pub mod rule;
pub mod sample;
pub mod split;
