//! Where every choice of a plan comes from: keys derived from its seed. Does not know the choices.

use std::sync::LazyLock;

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};

/// The BLAKE3 `derive_key` context of plan format 1. A new format gets a new context, hence new choices.
const CONTEXT: &str = "shardd plan 2026 v1";

/// What `derive_key` makes of the context before the material: always the same.
static CONTEXT_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(CONTEXT));

/// The use of a key. Written into the key, so no two uses share one.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Tag {
    /// Which partition gets which range of the manifest (`shards` placement).
    Ranges = 1,
    /// Which slot gets which grain (`random` placement).
    Grains = 2,
    /// In what order a partition gives up its slots (index: partition; epoch: 0 when cyclic).
    Selection = 3,
    /// Where the grains of a chunk go (index: chunk).
    Exchange = 4,
    /// In what order a partition's samples are read (index: partition).
    Samples = 5,
    /// In what order a partition's units of one grain are read (`blocked` order; index: partition).
    Units = 6,
    /// In what order the samples of a block are read (`blocked` order; index: partition, then the block).
    Block = 7,
}

/// 32 secret-looking bytes that decide one permutation.
pub(crate) type Key = [u8; 32];

/// The key for one use: `derive_key(CONTEXT, seed ‖ tag ‖ epoch ‖ index)`, integers little-endian.
pub(crate) fn key(seed: u64, tag: Tag, epoch: u32, index: u32) -> Key {
    *material(seed, tag, epoch, index).finalize().as_bytes()
}

/// Like [`key`], for one block of a partition: the block number (u64, little-endian) follows the rest.
pub(crate) fn block_key(seed: u64, epoch: u32, index: u32, block: u64) -> Key {
    *material(seed, Tag::Block, epoch, index).update(&block.to_le_bytes()).finalize().as_bytes()
}

/// Like [`key`], for one stratum: the number of any but the first (u64, little-endian) follows the rest, so that the first
/// stratum has the keys of a plan without strata.
pub(crate) fn stratum_key(seed: u64, tag: Tag, epoch: u32, index: u32, stratum: usize) -> Key {
    let mut material = material(seed, tag, epoch, index);
    if stratum > 0 {
        material.update(&(stratum as u64).to_le_bytes());
    }
    *material.finalize().as_bytes()
}

fn material(seed: u64, tag: Tag, epoch: u32, index: u32) -> Hasher {
    let mut bytes = [0; 17];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8] = tag as u8;
    bytes[9..13].copy_from_slice(&epoch.to_le_bytes());
    bytes[13..].copy_from_slice(&index.to_le_bytes());
    let mut hasher = Hasher::new_from_context_key(&CONTEXT_KEY);
    hasher.update(&bytes);
    hasher
}

/// Fills `out` with the first words of the key's stream: the extended output of BLAKE3 keyed with it, of no input.
pub(crate) fn stream(key: &Key, out: &mut [u64]) {
    Hasher::new_keyed(key).finalize_xof().fill(bytemuck::cast_slice_mut(out));
    out.iter_mut().for_each(|word| *word = u64::from_le(*word));
}
