//! The BLAKE3 of a long file, of which parts are read and hashed side by side.
//!
//! BLAKE3 is a tree (O'Connor, Aumasson, Neves and Wilcox-O'Hearn 2020, section 2.1): the halves of an input are hashed
//! by themselves, and two hashes make that of the whole. Knows nothing of the file's contents.

use std::io;

use blake3::Hash;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

/// Bytes that a thread reads and hashes without a look at others: enough that sharing costs nothing.
pub(super) const PART: u64 = 8 << 20;
/// Bytes that are read at a time: they are hashed while they are in the processor's cache.
const PIECE: usize = 512 << 10;

/// The digest of the first `length` bytes, in parts of at most `part` bytes, on the threads of the current rayon pool.
/// `read` reads up to the length of its buffer from an offset on.
///
/// # Errors
/// Those of `read`, and [`io::ErrorKind::UnexpectedEof`] when there are fewer bytes.
pub(super) fn digest(
    read: &(impl Fn(&mut [u8], u64) -> io::Result<usize> + Sync),
    length: u64,
    part: u64,
) -> io::Result<Hash> {
    if length <= part.max(blake3::CHUNK_LEN as u64) {
        return Ok(hashed(read, 0, length)?.finalize());
    }
    let left = left_subtree_len(length);
    let (left, right) =
        rayon::join(|| subtree(read, 0, left, part), || subtree(read, left, length - left, part));
    Ok(merge_subtrees_root(&left?, &right?, Mode::Hash))
}

fn subtree(
    read: &(impl Fn(&mut [u8], u64) -> io::Result<usize> + Sync),
    offset: u64,
    length: u64,
    part: u64,
) -> io::Result<ChainingValue> {
    if length <= part.max(blake3::CHUNK_LEN as u64) {
        return Ok(hashed(read, offset, length)?.finalize_non_root());
    }
    let left = left_subtree_len(length);
    let (left, right) = rayon::join(
        || subtree(read, offset, left, part),
        || subtree(read, offset + left, length - left, part),
    );
    Ok(merge_subtrees_non_root(&left?, &right?, Mode::Hash))
}

/// A hasher of some bytes, one after the other.
fn hashed(
    read: &impl Fn(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    length: u64,
) -> io::Result<blake3::Hasher> {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    let mut buffer = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
    let mut done = 0;
    while done < length {
        let wanted = buffer.len().min(usize::try_from(length - done).unwrap_or(PIECE));
        match read(&mut buffer[..wanted], offset + done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                done += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_make_the_digest_of_the_whole(
            length in prop_oneof![0..5000usize, 0..200_000usize], power in 0..8u32, short in 1..70_000usize,
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
            // Less than was asked for is no end.
            let read = |buffer: &mut [u8], offset: u64| {
                let rest = &bytes[offset as usize..];
                let count = rest.len().min(buffer.len()).min(short);
                buffer[..count].copy_from_slice(&rest[..count]);
                Ok(count)
            };
            let found = digest(&read, length as u64, 1024 << power).unwrap();
            prop_assert_eq!(found, blake3::hash(&bytes));
            let more = digest(&read, length as u64 + 1, 1024 << power);
            prop_assert_eq!(more.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
