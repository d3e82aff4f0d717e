//! Shards, as they are.

use shardfmt::{RowDigest, Shard, ShardWriter, Sidecar};

/// How many rows are looked at. Nulls take no bytes, so a kilobyte can have four billion rows.
const MOST_ROWS: u32 = 1 << 12;

/// Bytes accepted as a shard have rows that can be written, and a shard written of them has the same rows:
/// read whole, and read by range with its sidecar.
pub(crate) fn shard(data: &[u8]) -> bool {
    let Ok(shard) = Shard::from_bytes(data.to_vec()) else { return false };
    let rows = shard.rows().min(MOST_ROWS);
    // One without any column of values is read, but not written.
    let Ok(mut writer) = ShardWriter::new(shard.schema().clone()) else { return false };
    let mut canonical = Vec::new();
    for row in 0..rows {
        canonical.clear();
        shard.encode_row(row, &mut canonical).expect("no row is larger than the input");
        let batch = shard.codec().decode([canonical.as_slice()]).expect("a row that was written");
        let mut again = Vec::new();
        shard.codec().encode(&batch, 0, &mut again).expect("a row that was read");
        assert_eq!(again, canonical);
        writer.push_row(&canonical).expect("a canonical row");
    }
    if rows == 0 {
        return false;
    }

    let finished = writer.finish().expect("rows of this schema");
    let again = Shard::from_bytes(finished.bytes).expect("a shard that was written");
    again.verify(finished.id).expect("its id");
    assert_eq!(again.rows(), rows);
    let digests = again.row_digests().expect("rows that were written");
    assert_eq!(digests, finished.sidecar.rows);
    for (row, digest) in digests.iter().enumerate() {
        canonical.clear();
        shard.encode_row(row as u32, &mut canonical).expect("as before");
        assert_eq!(RowDigest::of(&canonical), *digest);
    }

    let sidecar = Sidecar::decode(&finished.sidecar.encode()).expect("a sidecar that was written");
    assert_eq!(sidecar, finished.sidecar);
    let asked = rows / 3..rows - rows / 4;
    let plan = sidecar.read_plan(again.schema(), std::slice::from_ref(&asked)).expect("rows of the shard");
    let part = |range: &std::ops::Range<u64>| &again.bytes()[range.start as usize..range.end as usize];
    let fetched: Vec<&[u8]> = plan.ranges().iter().map(part).collect();
    let mut row = asked.start;
    for batch in plan.decode(&fetched).expect("the bytes asked for").concat() {
        let encoder = again.codec().encoder(&batch).expect("of this schema");
        for index in 0..batch.num_rows() {
            canonical.clear();
            encoder.encode(index, &mut canonical).expect("a row that was read");
            assert_eq!(RowDigest::of(&canonical), digests[row as usize]);
            row += 1;
        }
    }
    assert_eq!(row, asked.end);
    true
}
