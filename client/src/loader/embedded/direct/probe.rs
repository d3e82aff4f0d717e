//! Measures what a disk gives, in a moment.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::blocks::{Blocks, PAGE};
use super::sweeps::stride;
use super::way::Disk;
use crate::loader::direct_file::DirectFile;

/// How often each is measured at most. The best counts: others may use the disk and the processors just then.
const ROUNDS: usize = 3;

/// Each measurement ends after this time, whatever was read by then.
const LONGEST: Duration = Duration::from_millis(40);

/// How much is read one after the other at most, in which pieces, and how many at once.
const SEQUENTIAL: u64 = 48 << 20;
const PIECE: u64 = 4 << 20;
const PIECES_AT_ONCE: usize = 3;

/// How many rows are read here and there at most.
const ROWS: u64 = 2048;

/// What the disk that has these files gives, with `at_once` rows asked for at a time; `None` if it cannot be measured: there
/// are too few bytes, or they cannot be read. It is measured again unless that is enough.
pub(super) fn measure(
    files: &[DirectFile],
    row_bytes: u64,
    at_once: usize,
    is_enough: impl Fn(&Disk) -> bool,
) -> Option<Disk> {
    let sizes: Vec<u64> = files.iter().map(|file| file.bytes().ok()).collect::<Option<_>>()?;
    let rows: u64 = sizes.iter().map(|size| size / row_bytes).sum();
    if rows == 0 {
        return None;
    }
    // Far from each other, each once.
    let stride = stride(rows);
    let scattered: Vec<_> =
        (0..rows.min(ROWS)).filter_map(|turn| place(&sizes, row_bytes, turn * stride % rows)).collect();
    let pieces: Vec<_> = (0..SEQUENTIAL / PIECE).map_while(|piece| place(&sizes, PIECE, piece)).collect();
    let blocks = |bytes: u64, at_once: usize| Blocks::new(bytes, u64::MAX, bytes * at_once as u64);
    let of_rows = blocks((row_bytes + 2 * PAGE).next_multiple_of(PAGE), at_once);
    let of_pieces = blocks(PIECE, PIECES_AT_ONCE);
    let mut best = Disk { sequential: 0.0, random: 0.0 };
    for _ in 0..ROUNDS {
        let random = rate(files, &scattered, row_bytes, at_once, &of_rows)?;
        // Of small files all is one piece, and at least as fast as rows.
        let sequential = rate(files, &pieces, PIECE, PIECES_AT_ONCE, &of_pieces).unwrap_or(random);
        best = Disk { sequential: best.sequential.max(sequential), random: best.random.max(random) };
        if is_enough(&best) {
            break;
        }
    }
    Some(best)
}

/// The file and the first byte of a piece, of those that lie one behind the other in files of these sizes.
fn place(sizes: &[u64], bytes: u64, mut number: u64) -> Option<(usize, u64)> {
    for (file, size) in sizes.iter().enumerate() {
        match number.checked_sub(size / bytes) {
            None => return Some((file, number * bytes)),
            Some(behind) => number = behind,
        }
    }
    None
}

/// Bytes a second, of pieces read by some threads.
fn rate(
    files: &[DirectFile],
    places: &[(usize, u64)],
    bytes: u64,
    at_once: usize,
    memory: &Blocks,
) -> Option<f64> {
    let (next, done, began) = (AtomicUsize::new(0), AtomicU64::new(0), Instant::now());
    let read = |file: usize, at: u64| files[file].read(at..at + bytes, &memory.take()?);
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(places.len()) {
            // One thread fewer measures a little less.
            let _ = std::thread::Builder::new().name("shardd-probe".into()).spawn_scoped(scope, || {
                while began.elapsed() < LONGEST
                    && let Some((file, at)) = places.get(next.fetch_add(1, Relaxed))
                    && read(*file, *at).is_ok()
                {
                    done.fetch_add(bytes, Relaxed);
                }
            });
        }
    });
    let done = done.load(Relaxed);
    (done > 0).then(|| done as f64 / began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_one_behind_the_other_and_not_beyond_the_end() {
        let found: Vec<_> = (0..5).map(|number| place(&[25, 9, 30], 10, number)).collect();
        assert_eq!(found, [Some((0, 0)), Some((0, 10)), Some((2, 0)), Some((2, 10)), Some((2, 20))]);
        assert_eq!(place(&[25, 9, 30], 10, 5), None);
    }
}
