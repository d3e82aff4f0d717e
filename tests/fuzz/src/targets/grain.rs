//! Grains and their proofs: the shard's rows, the grain asked for, and the grain's bytes.

use shardfmt::grain::{self, Grain};
use shardfmt::{GrainKey, GrainTree, NodeHash, RowDigest, ShardId, SparseGrain};

use super::Draw;

/// Bytes that are laid out as a grain are those that its rows and path are built into. They never lead to the root of
/// another shard; those of a shard of these very rows do, and not when a bit of them differs.
pub(crate) fn grain(data: &[u8]) -> bool {
    let mut draw = Draw::new(data);
    let (shard_rows, rows, index) = (draw.u32(), draw.u32(), draw.u32());
    let bit = draw.u32();
    let bytes = draw.rest();
    let shard = ShardId::of(b"a shard");
    let key = GrainKey { shard, rows, index };
    if let Ok(some) = SparseGrain::parse(bytes) {
        assert!(some.verify(key, shard_rows, NodeHash([0; 32])).is_err());
        let _ = some.row(bit);
    }
    let Ok(found) = Grain::parse(bytes) else { return false };
    assert!(found.verify(key, shard_rows, NodeHash([0; 32])).is_err());
    if found.row_count() == 0 {
        return false;
    }

    let rows: Vec<&[u8]> = found.rows().collect();
    let digests: Vec<RowDigest> = rows.iter().map(|row| RowDigest::of(row)).collect();
    let grain_rows = 1 << (key.rows % 8);
    let tree = GrainTree::new(&digests, grain_rows);
    let index = key.index % tree.grain_count();
    let start = (index * grain_rows) as usize;
    let end = rows.len().min(start + grain_rows as usize);
    let mut built = grain::build(rows[start..end].iter().copied(), &tree.path(index));
    let key = GrainKey { shard, rows: grain_rows, index };
    let check = |bytes: &[u8]| Grain::parse(bytes)?.verify(key, found.row_count(), tree.root());
    check(&built).expect("a grain of its own shard");
    let bit = bit as usize % (built.len() * 8);
    built[bit / 8] ^= 1 << (bit % 8);
    assert!(check(&built).is_err(), "bit {bit} differs");
    true
}
