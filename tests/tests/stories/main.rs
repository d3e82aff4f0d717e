//! Stories of users and failures, with real nodes, stores and trainings on loopback: one program, so that it
//! is linked once.

mod access;
mod audits;
mod certificates;
mod cifar;
mod compat;
mod deaths;
mod demo;
mod drains;
mod elastic;
mod etcd;
mod failures;
mod first_node;
mod forget;
mod frozen;
mod fuzz;
mod golden;
mod http;
mod ingest;
mod inputs;
mod machines;
mod metadata;
mod mixtures;
mod operator;
mod plans;
mod readme;
mod replay;
mod shardctl;
mod sled;
mod sources;
mod status;
mod stores;
mod tidy;
mod training;
mod transport;
mod versions;
