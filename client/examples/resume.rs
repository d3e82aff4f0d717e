//! Reads epochs of a data set in a store, and continues where it was stopped, by a cursor in a file.
//!
//!     shardctl --store ./digits-store ingest client/data/digits/train.parquet --name digits
//!     cargo run --release -p shardd-client --example resume -- ./digits-store digits cursor.json

use std::error::Error;
use std::fs;

use shardd_client::{
    Catalog, Cursor, Loader, LoaderConfig, LoaderSource, LocalCatalog, PlanDocument, PlanOptions, Shape,
    StorePlace,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [store, name, file] = &arguments[..] else { return Err("usage: resume DIR NAME CURSOR".into()) };

    let catalog = LocalCatalog::open(store)?;
    let dataset = catalog.dataset(&name.parse()?)?;
    let manifest = catalog.manifest(dataset.version)?;
    let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
    let plan = PlanDocument::with_defaults(dataset.version, &shape, PlanOptions::default())?;

    let saved = fs::read(file).ok().map(|json| serde_json::from_slice::<Cursor>(&json)).transpose()?;
    let source = LoaderSource::Store(StorePlace::Directory(store.into()));
    let mut config = LoaderConfig { end_epoch: 2, ..LoaderConfig::new(source, plan, 32) };
    if let Some(cursor) = saved {
        println!("from epoch {}, position {}", cursor.epoch, cursor.position);
        // Another plan than that of the cursor is refused: one of a later version of the dataset, for example.
        config = config.resume(&cursor);
    }
    let mut loader = Loader::open(config)?;
    while let Some(step) = loader.next_step()? {
        // Train on step.micro_batches here, and write the cursor with the model's checkpoint.
        fs::write(file, serde_json::to_vec(&step.cursor)?)?;
    }
    println!("the epochs are read");
    Ok(())
}
