// The data of this crate's documentation examples, which include this file.

/// The directory of a store with a dataset `numbers`, of the numbers from 0 to 299, and a plan for it.
fn numbers() -> Result<(tempfile::TempDir, shardd_client::PlanDocument), Box<dyn std::error::Error>> {
    use shardd_client::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use shardd_client::{Catalog, LocalCatalog, Manifest, PlanDocument, PlanOptions, Shape};

    let numbers: ArrayRef = std::sync::Arc::new(Int64Array::from_iter_values(0..300));
    let rows = RecordBatch::try_from_iter([("n", numbers)])?;
    let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
    writer.push(&rows)?;
    let shard = writer.finish()?;

    let directory = tempfile::tempdir()?;
    let catalog = LocalCatalog::open(directory.path())?;
    catalog.put_shard(&shard)?;
    let manifest = Manifest::new(rows.schema(), vec![shard.entry], serde_json::json!({}));
    let note = shardd_store::catalog::CommitNote::of(shardfmt::Operation::INGEST);
    let dataset = catalog.commit(&"numbers".parse()?, None, &manifest, &note)?;

    let shape = Shape { shard_rows: manifest.shard_rows(), row_bytes: manifest.row_bytes() };
    Ok((directory, PlanDocument::with_defaults(dataset.version, &shape, PlanOptions::default())?))
}
