// The data of this crate's documentation examples, which include this file.

/// A shard of the numbers from 0 to 299, and the manifest of a version with this shard alone.
fn numbers() -> Result<(shardfmt::FinishedShard, shardfmt::Manifest), Box<dyn std::error::Error>> {
    use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};

    let numbers: ArrayRef = std::sync::Arc::new(Int64Array::from_iter_values(0..300));
    let rows = RecordBatch::try_from_iter([("n", numbers)])?;
    let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
    writer.push(&rows)?;
    let shard = writer.finish()?;
    let entries = vec![shard.entry.clone()];
    let manifest = shardfmt::Manifest::new(rows.schema(), entries, serde_json::json!({}));
    Ok((shard, manifest))
}
