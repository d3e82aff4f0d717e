//! Rows are the stored ones, whether the memory holds all of them or none, and whether their shards have been
//! checked or not.

use std::collections::BTreeSet;
use std::fs;

use shardd_plan::Permutation;
use shardd_store::origin::conformance::{manifest, shard};
use shardfmt::shard::FinishedShard;
use tempfile::TempDir;

use super::*;
use crate::loader::embedded::room;

const ROWS: u32 = 997;

struct Directory {
    dir: TempDir,
    shard: FinishedShard,
    stored: Stored,
}

/// A store of one shard in a directory.
fn directory() -> Directory {
    let dir = TempDir::new().expect("a temporary directory");
    let origin = Origin::open_dir(&dir.path().join("store")).expect("opens");
    let shard = shard(ROWS.into());
    let manifest = Arc::new(manifest(&shard));
    let runtime = Runtime::new().expect("starts");
    runtime.block_on(origin.put_shard(&shard)).expect("puts");
    Directory { dir, shard, stored: Stored { origin: Arc::new(origin), manifest } }
}

impl Directory {
    fn cache(&self) -> Arc<SharedCache> {
        Arc::new(SharedCache::open(self.dir.path().join("cache"), None).expect("opens"))
    }

    fn files(&self, room: u64, unit: u32) -> ShardFiles {
        let files = ShardFiles::new(
            vec![self.stored.clone()],
            self.cache(),
            Arc::default(),
            CancellationToken::new(),
            room,
        );
        files.expect("opens").in_units([Unit { rows: unit, stay: 0 }])
    }

    fn path(&self) -> PathBuf {
        self.stored.origin.local_path(&self.shard.id).expect("a directory")
    }

    fn is_verified(&self) -> bool {
        self.cache().is_verified(self.shard.id, &self.path())
    }
}

/// The rows of two epochs, each in another order, in windows.
fn windows(seed: u8) -> Vec<(u32, Vec<(u32, u32)>)> {
    let mut windows = Vec::new();
    for epoch in 0..2 {
        let order = Permutation::new(&[seed + epoch as u8; 32], ROWS.into());
        let rows: Vec<(u32, u32)> = (0..ROWS).map(|turn| (0, order.apply(turn.into()) as u32)).collect();
        windows.extend(rows.chunks(61).map(|window| (epoch, window.to_vec())));
    }
    windows
}

fn canonical((encoder, row): (&RowEncoder, usize)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoder.encode(row, &mut bytes).expect("a row");
    bytes
}

#[test]
fn rows_are_those_that_were_stored_whatever_the_memory_holds() {
    let directory = directory();
    let reference = Shard::from_bytes(directory.shard.bytes.clone()).expect("a shard");
    for (room, unit) in [(0, 1), (0, 16), (4096, 16), (u64::MAX, 1), (u64::MAX, 16), (room(), 1)] {
        let mut files = directory.files(room, unit);
        assert_eq!(files.horizon() > 0, room <= 4096, "what finds no room is read ahead");
        let windows = windows(unit as u8);
        for (at, (epoch, window)) in windows.iter().enumerate() {
            if let Some((epoch, next)) = windows.get(at + 1) {
                files.expect(*epoch, next.iter().copied());
            }
            let open = files.prepare(*epoch, window.iter().copied()).expect("prepares");
            for (shard, row) in window {
                assert_eq!(canonical(open.place(*shard, *row)), canonical(reference.place(*row)));
            }
        }
    }
    assert!(directory.is_verified());
}

#[test]
fn first_rows_of_a_shard_that_was_never_checked_are_checked_alone_and_the_shard_meanwhile() {
    let directory = directory();
    let mut files = directory.files(0, 1);
    let wanted = [(0, 5), (0, 700)];
    let open = files.prepare(0, wanted.iter().copied()).expect("prepares");
    assert!(!files.open.has(0), "rows alone were read");
    let reference = Shard::from_bytes(directory.shard.bytes.clone()).expect("a shard");
    for (shard, row) in wanted {
        assert_eq!(canonical(open.place(shard, row)), canonical(reference.place(row)));
    }
    let coming = files.coming.as_mut().and_then(|coming| coming.remove(&0)).expect("it is being checked");
    files.runtime.block_on(coming).expect("does not panic");
    assert!(directory.is_verified());
    files.prepare(0, wanted.iter().copied()).expect("prepares");
    assert!(files.open.has(0));
}

#[test]
fn of_a_damaged_shard_rows_that_are_not_are_given_and_others_never() {
    let directory = directory();
    let path = directory.path();
    let mut bytes = fs::read(&path).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).expect("writes");
    let reference = Shard::from_bytes(directory.shard.bytes.clone()).expect("a shard");
    let (mut given, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for row in (0..ROWS).step_by(7).chain((0..ROWS).filter(|row| row.abs_diff(ROWS / 2) < 60)) {
        match directory.files(0, 1).prepare(0, [(0, row)].into_iter()) {
            Ok(open) => {
                assert_eq!(canonical(open.place(0, row)), canonical(reference.place(row)));
                given.insert(row);
            }
            Err(error) => {
                assert!(error.to_string().contains("corrupt"), "{error}");
                refused.insert(row);
            }
        }
    }
    assert!(refused.len() == 1 && given.len() > 100, "{refused:?}");
    assert!(!directory.is_verified());
    let error = directory.files(u64::MAX, 1).prepare(0, [(0, 1)].into_iter()).err().expect("is read whole");
    assert!(error.to_string().contains("corrupt"), "{error}");
}
