//! `shardtrain` and the trainer's library as programs use them.

mod bench_comm;
mod certificates;
mod checkpoints;
mod common;
mod dataloader;
mod devices;
mod digits;
mod elastic;
mod emulated;
mod encrypted;
mod launch;
mod launcher;
mod machines;
mod outputs;
mod own_model;
mod packed;
mod plan;
mod processes;
mod rank;
mod records;
mod sparse;
mod transforms;
mod wgpu;
