//! Reads shuffled epochs of a data set in a store, and prints the samples per second.
//!
//!     shardctl --store ./digits-store ingest client/data/digits/train.parquet --name digits
//!     cargo run --release -p shardd-client --example read_store -- ./digits-store digits

use std::error::Error;
use std::time::Instant;

use shardd_client::{
    Catalog, Loader, LoaderConfig, LoaderSource, LocalCatalog, PlanDocument, PlanOptions, Shape, StorePlace,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, name] = &arguments[..] else { return Err("usage: read_store DIR NAME".into()) };

    let catalog = LocalCatalog::open(store)?;
    let dataset = catalog.dataset(&name.parse()?)?;
    let manifest = catalog.manifest(dataset.version)?;
    let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
    let plan = PlanDocument::with_defaults(dataset.version, &shape, PlanOptions::default())?;

    let source = LoaderSource::Store(StorePlace::Directory(store.into()));
    let mut loader = Loader::open(LoaderConfig { end_epoch: 2, ..LoaderConfig::new(source, plan, 32) })?;
    let (begin, mut samples) = (Instant::now(), 0);
    while let Some(step) = loader.next_step()? {
        samples += step.micro_batches.iter().map(|micro_batch| micro_batch.batch.num_rows()).sum::<usize>();
    }
    println!("{samples} samples, {:.0} per second", samples as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}
