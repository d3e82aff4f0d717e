//! Turns begin once the order is known, and rows of many sizes stay within their memory.

use std::collections::VecDeque;

use shardd_plan::Permutation;
use tempfile::TempDir;

use super::workers::tests::{ROW, directory, shard};
use super::*;

const SHARDS: u32 = 6;
const ROWS: u32 = 700;

fn direct(dir: &TempDir, memory: u64, way: Way) -> (Direct, Vec<Arc<Shard>>) {
    let shards: Vec<_> = (0..SHARDS).map(|number| shard(dir, number, ROWS)).collect();
    let bytes = shards.iter().map(|shard| shard.bytes().len() as u64).sum();
    let rows = u64::from(SHARDS * ROWS);
    let totals = Totals { bytes, row_bytes: ROW, rows, shards: shards.len() };
    let mut direct = Direct::new(totals, memory, Some(way), CancellationToken::new()).expect("threads");
    (0u32..).zip(&shards).for_each(|(number, shard)| direct.add(number, shard));
    (direct, shards)
}

/// All rows in a random order, in windows.
fn windows(of: usize) -> Vec<Vec<Key>> {
    let order = Permutation::new(&[3; 32], u64::from(SHARDS * ROWS));
    let rows = (0..u64::from(SHARDS * ROWS)).map(|turn| order.apply(turn) as u32);
    let rows: Vec<Key> = rows.map(|row| (row % SHARDS, row / SHARDS)).collect();
    rows.chunks(of).map(<[Key]>::to_vec).collect()
}

#[test]
fn turns_wait_until_the_order_is_known_up_to_the_horizon() {
    let dir = directory();
    let (mut direct, _shards) = direct(&dir, 16 << 20, Way::Sweeps { window: 1000 });
    let windows = windows(20);
    direct.prepare(windows[0].iter().copied()).expect("prepares");
    let (horizon, before) = (direct.horizon(), direct.bytes());
    let count = windows[1..].iter().scan(0, |sum, window| {
        *sum += window.len() as u64;
        Some(*sum)
    });
    let last = 2 + count.take_while(|sum| *sum < horizon + 20).count();
    assert!(last > 2 && last < windows.len());
    for window in &windows[1..last] {
        direct.expect(window.iter().copied());
        assert_eq!(direct.bytes(), before, "a turn would pick the rows known so far alone");
    }
    direct.prepare(windows[1].iter().copied()).expect("prepares");
    assert!(direct.bytes() > before, "now a turn picks all its rows");
}

#[test]
fn rows_of_many_sizes_stay_within_their_memory_and_use_it() {
    let dir = directory();
    let memory = 4 << 20;
    let (mut direct, shards) = direct(&dir, memory, Way::Sweeps { window: memory / ROW * 3 / 2 });
    let windows = windows(20);
    // What a reader waits for is read in any case: with its pages and another.
    let waited_for = 20 * (ROW + (12 << 10));
    let (mut most, mut announced, mut ahead) = (0, 1, VecDeque::new());
    for (at, window) in windows.iter().enumerate() {
        let horizon = direct.horizon();
        ahead.pop_front();
        let wanted = horizon + window.len() as u64;
        while at > 0 && announced < windows.len() && ahead.iter().sum::<u64>() < wanted {
            direct.expect(windows[announced].iter().copied());
            ahead.push_back(windows[announced].len() as u64);
            announced += 1;
        }
        let own = direct.prepare(window.iter().copied()).expect("prepares");
        for key in window {
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            let (encoder, row) = place(&own, key).expect("it was made ready");
            encoder.encode(row, &mut found).expect("a row");
            shards[key.0 as usize].encode_row(key.1, &mut expected).expect("a row");
            assert!(found == expected, "{key:?}");
        }
        most = most.max(direct.bytes());
    }
    assert!(most <= memory + waited_for, "{most} of {memory} and {waited_for}");
    assert!(most >= memory / 4, "it is used: {most} of {memory}");
}

#[test]
fn rows_in_another_order_than_announced_are_no_error() {
    let dir = directory();
    let (mut direct, _shards) = direct(&dir, 4 << 20, Way::Rows);
    direct.expect([(0, 1), (0, 2)].into_iter());
    let own = direct.prepare([(0, 2), (0, 1)].into_iter()).expect("prepares");
    assert!(direct.is_out_of_order, "it was logged");
    assert!(place(&own, &(0, 2)).is_some(), "it is ready, too");
    let own = direct.prepare([(0, 3)].into_iter()).expect("prepares");
    assert!(place(&own, &(0, 3)).is_some());
}
