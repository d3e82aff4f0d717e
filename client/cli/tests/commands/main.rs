//! `shardctl` as people and scripts use it.

mod desk;
mod operations;
mod read_only;
mod records;
mod shardctl;
mod summary;
mod versions;
