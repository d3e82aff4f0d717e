//! `shardtrain` and the trainer's library as programs use them.

mod bench_comm;
mod checkpoints;
mod common;
mod dataloader;
mod devices;
mod digits;
mod elastic;
mod launch;
mod launcher;
mod own_model;
mod plan;
mod processes;
mod rank;
mod records;
mod sparse;
