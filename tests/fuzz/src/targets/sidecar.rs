//! Sidecars: a schema, the requested rows, then a sidecar without the digest at its end, which a fuzzer would
//! not guess.

use arrow::array::RecordBatch;
use shardfmt::Sidecar;

use super::Draw;

/// Most bytes that are fetched, and the largest record batch: a sidecar may name up to 4 GiB of a shard.
const MOST_BYTES: u64 = 1 << 20;

/// Bytes accepted as a sidecar are one: written and read again, it is the same. However wrong its map,
/// planning and decoding a read either fail or give as many rows as were asked for.
pub(crate) fn sidecar(data: &[u8]) -> bool {
    let mut draw = Draw::new(data);
    let schema = draw.schema();
    let (from, count) = (draw.u8().into(), u32::from(draw.u8()));
    let mut bytes = draw.rest().to_vec();
    bytes.extend_from_slice(blake3(&bytes).as_slice());
    let Ok(sidecar) = Sidecar::decode(&bytes) else { return false };
    assert_eq!(sidecar.encode(), bytes);
    let Ok(plan) = sidecar.read_plan(&schema, &[from..from + count, 0..1]) else { return false };
    if plan.bytes() > MOST_BYTES {
        return false;
    }
    let fetched: Vec<Vec<u8>> =
        plan.ranges().iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
    let Ok(batches) = plan.decode(&fetched) else { return false };
    let rows = |batches: &Vec<RecordBatch>| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(batches.iter().map(rows).collect::<Vec<_>>(), [count as usize, 1]);
    true
}

fn blake3(bytes: &[u8]) -> [u8; 32] {
    shardfmt::Digest::of(bytes).0
}
