//! Stories of users and failures, with real nodes, stores and trainings on loopback: one program, so that it
//! is linked once.

mod access;
mod audits;
mod certificates;
mod cifar;
mod compat;
mod deaths;
mod demo;
mod doctor;
mod drains;
mod elastic;
mod etcd;
mod failures;
mod first_node;
mod first_steps;
mod forget;
mod frozen;
mod fuzz;
mod golden;
mod help;
mod hierarchy;
mod http;
mod ingest;
mod inputs;
mod machines;
mod metadata;
mod metrics;
mod mixtures;
mod observe;
mod operator;
mod plans;
mod readme;
mod replay;
mod shardctl;
mod sled;
mod sources;
mod status;
mod stores;
mod stragglers;
mod tidy;
mod top;
#[cfg(feature = "otlp")]
mod traces;
mod training;
mod transport;
mod versions;
