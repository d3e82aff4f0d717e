//! BLAKE3 under keys of our own, for one input or for many at once.
//!
//! BLAKE3 cuts its input into chunks of 1024 bytes, and is fast because it hashes up to 16 of them side by
//! side. A row has few chunks, a node of a Merkle tree has one; so [`KeyedHash::of_each`] puts those of
//! different inputs side by side. Knows the tree of BLAKE3 (section 2 of its paper), but not the hashed data.
//!
//! `blake3::platform` is public but undocumented: there is no other way to the crate's SIMD code for inputs that are
//! not of one piece. `Cargo.lock` holds its version, and tests compare the result with the documented interface.

use blake3::platform::Platform;
use blake3::{CHUNK_LEN, IncrementCounter, OUT_LEN, hazmat};

const BLOCK_LEN: usize = 64;
const CHUNK_BLOCKS: usize = CHUNK_LEN / BLOCK_LEN;

/// As many chunks as any machine hashes side by side.
const LANES: usize = 16;

const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const DERIVE_KEY_MATERIAL: u8 = 1 << 6;

/// The value that a chunk or inner node passes to its parent; of the root it is the hash.
type Node = [u8; OUT_LEN];

/// BLAKE3's key derivation mode with one context.
pub(crate) struct KeyedHash {
    hasher: blake3::Hasher,
    platform: Platform,
    key: [u32; 8],
}

impl KeyedHash {
    /// The hash of this context.
    pub(crate) fn new(context: &str) -> Self {
        let key = to_words(&hazmat::hash_derive_key_context(context));
        Self { hasher: blake3::Hasher::new_derive_key(context), platform: Platform::detect(), key }
    }

    /// The hash of one input.
    pub(crate) fn of(&self, input: &[u8]) -> [u8; OUT_LEN] {
        *self.hasher.clone().update(input).finalize().as_bytes()
    }

    /// The hash of each input, several times as fast as one by one where they are small.
    pub(crate) fn of_each(&self, inputs: &[&[u8]]) -> Vec<[u8; OUT_LEN]> {
        let mut hashes = vec![[0; OUT_LEN]; inputs.len()];
        let mut order: Vec<usize> = (0..inputs.len()).collect();
        order.sort_by_key(|index| inner_blocks(inputs[*index]));
        // Inputs of as many chunks have trees of the same shape, which are climbed in step.
        let chunks = |index: usize| inner_blocks(inputs[index]) / CHUNK_BLOCKS + 1;
        for group in order.chunk_by(|a, b| chunks(*a) == chunks(*b)) {
            // The hasher itself puts the chunks of one input side by side: with many that is as good, and nothing is copied.
            let (count, of_each) = (group.len(), chunks(group[0]));
            if of_each >= LANES || self.passes(of_each) * count <= self.passes(count) * of_each {
                group.iter().for_each(|index| hashes[*index] = self.of(inputs[*index]));
                continue;
            }
            let roots = self.roots(&group.iter().map(|index| inputs[*index]).collect::<Vec<_>>());
            for (index, root) in group.iter().zip(roots) {
                hashes[*index] = root;
            }
        }
        hashes
    }

    /// How often blocks go through the processor until `count` inputs of a chunk are hashed: as many side by side as it can, then
    /// half as many, down to four, and the rest one by one.
    fn passes(&self, count: usize) -> usize {
        let (mut passes, mut left, mut width) = (0, count, self.platform.simd_degree());
        while width >= 4 {
            passes += left / width;
            (left, width) = (left % width, width / 2);
        }
        passes + left
    }

    /// The hashes of inputs that have the same number of chunks and are sorted by their number of blocks.
    fn roots(&self, inputs: &[&[u8]]) -> Vec<Node> {
        let last = inner_blocks(inputs[0]) / CHUNK_BLOCKS;
        let from = |chunk: usize| inputs.iter().map(|input| &input[chunk * CHUNK_LEN..]).collect::<Vec<_>>();
        let inner = (0..last).map(|at| self.blocks(CHUNK_BLOCKS, &from(at), at, CHUNK_START, CHUNK_END));
        // For every chunk of the tree, its nodes of all inputs.
        let mut nodes: Vec<Vec<Node>> = inner.collect();
        let ends = from(last);
        let ends = ends.chunk_by(|a, b| inner_blocks(a) == inner_blocks(b));
        nodes.push(ends.flat_map(|ends| self.last_chunks(ends, last)).collect());
        while nodes.len() > 1 {
            let root = if nodes.len() == 2 { ROOT } else { 0 };
            let parents = nodes.chunks(2).map(|pair| match pair {
                [left, right] => self.parents(left, right, root),
                alone => alone[0].clone(),
            });
            nodes = parents.collect();
        }
        nodes.swap_remove(0)
    }

    /// The nodes of last chunks that have the same number of blocks, of which the last may not be full.
    fn last_chunks(&self, chunks: &[&[u8]], at: usize) -> Vec<Node> {
        let inner = inner_blocks(chunks[0]);
        let end = if at == 0 { CHUNK_END | ROOT } else { CHUNK_END };
        if chunks.iter().all(|chunk| chunk.len() == (inner + 1) * BLOCK_LEN) {
            return self.blocks(inner + 1, chunks, at, CHUNK_START, end);
        }
        let (mut nodes, start) = match inner {
            0 => (vec![to_bytes(&self.key); chunks.len()], CHUNK_START),
            _ => (self.blocks(inner, chunks, at, CHUNK_START, 0), 0),
        };
        for (node, chunk) in nodes.iter_mut().zip(chunks) {
            let last = &chunk[inner * BLOCK_LEN..];
            let mut block = [0; BLOCK_LEN];
            block[..last.len()].copy_from_slice(last);
            let mut words = to_words(node);
            let (length, flags) = (last.len() as u8, DERIVE_KEY_MATERIAL | start | end);
            self.platform.compress_in_place(&mut words, &block, length, at as u64, flags);
            *node = to_bytes(&words);
        }
        nodes
    }

    fn parents(&self, left: &[Node], right: &[Node], root: u8) -> Vec<Node> {
        let pairs: Vec<[Node; 2]> = left.iter().zip(right).map(|(left, right)| [*left, *right]).collect();
        let pairs: Vec<&[u8]> = pairs.iter().map(|pair| pair.as_flattened()).collect();
        self.blocks(1, &pairs, 0, PARENT, root)
    }

    /// The key after the first `count` blocks of each input, with flags for the first and for the last block.
    fn blocks(&self, count: usize, inputs: &[&[u8]], chunk: usize, start: u8, end: u8) -> Vec<Node> {
        let of_as_many = match count {
            1 => Self::bytes::<64>,
            2 => Self::bytes::<128>,
            3 => Self::bytes::<192>,
            4 => Self::bytes::<256>,
            5 => Self::bytes::<320>,
            6 => Self::bytes::<384>,
            7 => Self::bytes::<448>,
            8 => Self::bytes::<512>,
            9 => Self::bytes::<576>,
            10 => Self::bytes::<640>,
            11 => Self::bytes::<704>,
            12 => Self::bytes::<768>,
            13 => Self::bytes::<832>,
            14 => Self::bytes::<896>,
            15 => Self::bytes::<960>,
            16 => Self::bytes::<CHUNK_LEN>,
            _ => unreachable!("a chunk has 1 to 16 blocks, not {count}"),
        };
        of_as_many(self, inputs, chunk, start, end)
    }

    fn bytes<const N: usize>(&self, inputs: &[&[u8]], chunk: usize, start: u8, end: u8) -> Vec<Node> {
        let inputs = inputs.iter().map(|input| input.first_chunk::<N>().expect("its blocks were counted"));
        let inputs: Vec<&[u8; N]> = inputs.collect();
        let mut nodes = vec![[0; OUT_LEN]; inputs.len()];
        let (counter, flags, out) = (chunk as u64, DERIVE_KEY_MATERIAL, nodes.as_flattened_mut());
        self.platform.hash_many(&inputs, &self.key, counter, IncrementCounter::No, flags, start, end, out);
        nodes
    }
}

/// How many blocks of an input have a block after them.
fn inner_blocks(input: &[u8]) -> usize {
    input.len().saturating_sub(1) / BLOCK_LEN
}

fn to_words(bytes: &Node) -> [u32; 8] {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

fn to_bytes(words: &[u32; 8]) -> Node {
    let mut bytes = [0; OUT_LEN];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONTEXT: &str = "shardfmt 2026 tests of keyed hashes";

    fn assert_as_documented(inputs: &[&[u8]]) {
        let hashes = KeyedHash::new(CONTEXT).of_each(inputs);
        assert_eq!(hashes.len(), inputs.len());
        for (hash, input) in hashes.iter().zip(inputs) {
            assert_eq!(*hash, blake3::derive_key(CONTEXT, input), "of {} bytes", input.len());
        }
    }

    proptest! {
        #[test]
        fn many_inputs_have_the_hashes_of_each(
            lengths in prop::collection::vec(prop_oneof![0..200usize, 900..1200usize, 0..20_000usize], 0..60), salt: u8,
        ) {
            let inputs: Vec<Vec<u8>> =
                lengths.into_iter().map(|length| (0..length).map(|at| (at * 7) as u8 ^ salt).collect()).collect();
            assert_as_documented(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_number_of_blocks_and_chunks_is_hashed_as_documented() {
        let bytes: Vec<u8> = (0..(LANES + 1) * CHUNK_LEN).map(|at| (at % 251) as u8).collect();
        let borders = (BLOCK_LEN..=bytes.len()).step_by(BLOCK_LEN);
        let inputs: Vec<&[u8]> =
            borders.clone().flat_map(|end| [&bytes[..end], &bytes[..end - 1], &bytes[..end - 63]]).collect();
        assert_as_documented(&inputs);
        // As many of each that all of the lanes are used, and the odd ones.
        for end in borders {
            assert_as_documented(&[&bytes[..end]; 31]);
        }
    }
}
