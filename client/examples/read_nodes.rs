//! Reads a rank's share of an epoch from nodes, and prints the positions of its samples.
//!
//!     shardd serve &
//!     shardctl ingest client/data/digits/train.parquet --name digits
//!     shardctl partition digits --q 0.1
//!     cargo run --release -p shardd-client --example read_nodes -- http://127.0.0.1:7700 PLAN 0 1

use std::error::Error;

use shardd_client::{BatchSize, Credentials, Loader, LoaderConfig, LoaderSource, PlanId};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [servers, plan, rank, world] = &arguments[..] else {
        return Err("usage: read_nodes URL[,URL…] PLAN RANK WORLD".into());
    };
    let plan: PlanId = plan.parse()?;
    let source = LoaderSource::Nodes {
        servers: servers.split(',').map(str::to_owned).collect(),
        run: "example".parse()?,
        credentials: Credentials::of_env()?,
    };
    // All ranks use the same number of virtual ranks; it divides the plan's partitions.
    let config = LoaderConfig {
        rank: rank.parse()?,
        world: world.parse()?,
        virtual_ranks: Some(8),
        end_epoch: 1,
        ..LoaderConfig::new(source, plan, BatchSize::Global(64))
    };
    let mut loader = Loader::open(config)?;
    while let Some(step) = loader.next_step()? {
        for micro_batch in &step.micro_batches {
            println!("step {}: samples at positions {:?}", step.step, micro_batch.positions);
        }
    }
    Ok(())
}
