//! Writes rows to a shard file, reads them back with any Arrow reader, and proves one row against the shard's root.
//!
//!     cargo run --release -p shardfmt --example write_and_read

use std::error::Error;
use std::fs::File;
use std::sync::Arc;

use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use shardfmt::arrow::ipc::reader::FileReader;
use shardfmt::{RowDigest, Shard, ShardWriter};

fn main() -> Result<(), Box<dyn Error>> {
    let words: ArrayRef = Arc::new(StringArray::from(vec!["grain", "shard", "plan"]));
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 2]));
    let rows = RecordBatch::try_from_iter([("word", words), ("label", labels)])?;

    let mut writer = ShardWriter::new(rows.schema())?;
    writer.push(&rows)?;
    let finished = writer.finish()?;
    let path = std::env::temp_dir().join(finished.id.to_string());
    std::fs::write(&path, &finished.bytes)?;
    println!("{} rows in {}", finished.entry.rows, path.display());

    // It is an Arrow IPC file.
    for batch in FileReader::try_new(File::open(&path)?, None)? {
        println!("{} rows of {} columns", batch?.num_rows(), rows.num_columns());
    }

    // Its name is the digest of its bytes, and each row has a digest of its own.
    let shard = Shard::open(&path)?;
    shard.verify(finished.id)?;
    let mut canonical = Vec::new();
    shard.encode_row(1, &mut canonical)?;
    println!("row 1 has digest {}", RowDigest::of(&canonical));
    std::fs::remove_file(&path)?;
    Ok(())
}
