//! Rows that are read past the page cache are those of the page cache, in the same order, within their memory.

use std::fs::{self, File};

use arrow::array::{ArrayRef, BinaryBuilder, FixedSizeBinaryBuilder, FixedSizeListBuilder, Int64Array};
use arrow::array::{RecordBatch, UInt16Builder};
use proptest::prelude::*;
use shardd_plan::Permutation;
use shardfmt::ShardWriter;
use shardfmt::shard::FinishedShard;
use tempfile::TempDir;

use super::*;

/// A store of some shards in a directory.
pub(super) struct Directory {
    pub(super) dir: TempDir,
    pub(super) shards: Vec<FinishedShard>,
    pub(super) stored: Stored,
}

/// Rows of numbers, which may be missing, bytes of one size, bytes of many sizes, with missing ones and without, and lists of
/// numbers.
fn shard(number: usize, rows: usize, width: usize) -> FinishedShard {
    let numbers = (0..rows).map(|row| (row % 7 != 3).then_some((number * 100_003 + row) as i64));
    let mut fixed = FixedSizeBinaryBuilder::new(width as i32);
    let (mut varied, mut sized) = (BinaryBuilder::new(), BinaryBuilder::new());
    let mut lists = FixedSizeListBuilder::new(UInt16Builder::new(), width as i32 / 2 + 1);
    for row in 0..rows {
        let byte = |at: usize| (number * 31 + row * 7 + at * 13) as u8;
        fixed.append_value((0..width).map(byte).collect::<Vec<u8>>()).expect("of that width");
        match row % 5 {
            4 => varied.append_null(),
            _ => varied.append_value((0..row * 37_003 % (2 * width)).map(byte).collect::<Vec<u8>>()),
        }
        sized.append_value((0..row * 41_011 % (2 * width)).map(byte).collect::<Vec<u8>>());
        (0..width / 2 + 1).for_each(|at| lists.values().append_value(u16::from(byte(at)) * 3));
        lists.append(true);
    }
    let batch = RecordBatch::try_from_iter([
        ("number", Arc::new(Int64Array::from_iter(numbers)) as ArrayRef),
        ("fixed", Arc::new(fixed.finish())),
        ("varied", Arc::new(varied.finish())),
        ("sized", Arc::new(sized.finish())),
        ("list", Arc::new(lists.finish())),
    ]);
    let batch = batch.expect("as many of each");
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

pub(super) fn directory(rows: &[usize], width: usize) -> Directory {
    // Where pages can be dropped, which they cannot be of files in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory on the disk");
    let origin = Origin::open_dir(&dir.path().join("store")).expect("opens");
    let shards: Vec<FinishedShard> =
        rows.iter().enumerate().map(|(number, rows)| shard(number, *rows, width)).collect();
    let runtime = Runtime::new().expect("starts");
    for shard in &shards {
        runtime.block_on(origin.put_shard(shard)).expect("puts");
    }
    let schema = Shard::from_bytes(shards[0].bytes.clone()).expect("own shard").schema().clone();
    let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
    let manifest = Arc::new(Manifest::new(schema, entries, serde_json::json!({})));
    Directory { dir, shards, stored: Stored { origin: Arc::new(origin), manifest } }
}

impl Directory {
    /// Read by the page cache, or past it.
    fn files(&self, past: Option<(u64, Option<Way>)>) -> ShardFiles {
        let cache = Arc::new(SharedCache::open(self.dir.path().join("cache"), None).expect("opens"));
        let stop = CancellationToken::new();
        let mut files =
            ShardFiles::new(vec![self.stored.clone()], cache, Arc::default(), stop, 0).expect("opens");
        files.leaves_resident = false;
        match past {
            Some((memory, way)) => {
                let totals = files.totals();
                files.with_memory(totals, memory, way).expect("starts")
            }
            None => files,
        }
    }

    /// Checks all shards, so that they are opened at once.
    pub(super) fn verify(&self) {
        let files = self.files(None);
        for shard in &self.shards {
            files.bringer.verify(shard.id, &self.path(shard), true).expect("is right");
        }
    }

    pub(super) fn path(&self, shard: &FinishedShard) -> PathBuf {
        self.stored.origin.local_path(&shard.id).expect("a directory")
    }

    /// The rows of some epochs, each in another order, in windows.
    pub(super) fn windows(&self, seed: u8, epochs: u32, of: usize) -> Vec<(u32, Vec<(u32, u32)>)> {
        let shards = (0u32..).zip(&self.shards);
        let all: Vec<(u32, u32)> =
            shards.flat_map(|(number, shard)| (0..shard.entry.rows).map(move |row| (number, row))).collect();
        let mut windows = Vec::new();
        for epoch in 0..epochs {
            let order = Permutation::new(&[seed ^ epoch as u8; 32], all.len() as u64);
            let rows: Vec<_> = (0..all.len()).map(|turn| all[order.apply(turn as u64) as usize]).collect();
            windows.extend(rows.chunks(of).map(|window| (epoch, window.to_vec())));
        }
        windows
    }
}

fn canonical((encoder, row): (&RowEncoder, usize)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoder.encode(row, &mut bytes).expect("a row");
    bytes
}

/// Reads all windows, as a loader does: rows are announced up to the horizon. Gives each row, and the most memory that rows took.
fn read(mut files: ShardFiles, windows: &[(u32, Vec<(u32, u32)>)]) -> Result<(Vec<Vec<u8>>, u64), LoadError> {
    let (mut found, mut most, mut announced) = (Vec::new(), 0, 1);
    for (at, (epoch, window)) in windows.iter().enumerate() {
        let horizon = files.horizon();
        let ahead =
            |to: usize| windows[at + 1..to].iter().map(|(_, window)| window.len() as u64).sum::<u64>();
        announced = announced.max(at + 1);
        while at > 0 && announced < windows.len() && ahead(announced) < horizon {
            let (epoch, next) = &windows[announced];
            files.expect(*epoch, next.iter().copied());
            announced += 1;
        }
        let open = files.prepare(*epoch, window.iter().copied())?;
        found.extend(window.iter().map(|(shard, row)| canonical(open.place(*shard, *row))));
        most = most.max(files.direct.as_ref().map_or(0, Direct::bytes));
    }
    Ok((found, most))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn rows_and_their_order_are_the_same_whichever_way_they_are_read(
        rows in prop::collection::vec(1usize..400, 1..5), width in prop_oneof![1usize..40, 2500usize..6000],
        seed in any::<u8>(), of in 1usize..90, kilobytes in 0u64..4000, window in 1u64..600, is_checked in any::<bool>(),
    ) {
        let directory = directory(&rows, width);
        if is_checked {
            directory.verify();
        }
        let windows = directory.windows(seed, 2, of);
        let (expected, _) = read(directory.files(None), &windows).expect("reads");
        let memory = kilobytes << 10;
        for way in [None, Some(Way::Rows), Some(Way::Sweeps { window })] {
            let files = directory.files(Some((memory, way)));
            let (found, _) = read(files, &windows).expect("reads");
            prop_assert!(found == expected, "{way:?}");
        }
    }
}

#[test]
fn rows_that_are_kept_stay_within_their_memory() {
    let directory = directory(&[700; 6], 3000);
    directory.verify();
    let windows = directory.windows(5, 2, 20);
    let row = directory.stored.manifest.row_bytes() / directory.stored.manifest.sample_count();
    // What a reader waits for is read in any case: a window, and for each of three columns its pages and another.
    let waited_for = 20 * (row + 3 * (12 << 10));
    for memory in [0, 4 << 20, 16 << 20] {
        for way in [Way::Rows, Way::Sweeps { window: memory / row * 2 }] {
            let (found, most) = read(directory.files(Some((memory, Some(way)))), &windows).expect("reads");
            assert_eq!(found.len(), 2 * 6 * 700);
            assert!(most <= memory + waited_for, "{most} of {memory} and {waited_for}, {way:?}");
            assert!(memory == 0 || most >= memory / 8, "{way:?} uses it: {most} of {memory}");
        }
    }
}

#[test]
fn a_file_that_was_cut_off_meanwhile_is_an_error_that_names_it() {
    for way in [Way::Rows, Way::Sweeps { window: 200 }] {
        let directory = directory(&[300, 300], 5000);
        directory.verify();
        let windows = directory.windows(9, 1, 30);
        let mut files = directory.files(Some((16 << 20, Some(way))));
        files.prepare(0, windows[0].1.iter().copied()).expect("prepares");
        let path = directory.path(&directory.shards[1]);
        let file = File::options().write(true).open(&path).expect("opens");
        file.set_len(fs::metadata(&path).expect("is there").len() / 4).expect("is cut off");
        let error = windows[1..].iter().find_map(|(epoch, window)| {
            files.expect(*epoch, window.iter().copied());
            files.prepare(*epoch, window.iter().copied()).err()
        });
        let error = error.expect("its rows are not there");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
        assert!(text.contains(&path.display().to_string()) && text.contains("cut off"), "{text}");
    }
}

#[test]
fn closing_a_loader_ends_reading_ahead() {
    let directory = directory(&[400; 3], 4000);
    directory.verify();
    let windows = directory.windows(1, 1, 50);
    for way in [Way::Rows, Way::Sweeps { window: 300 }] {
        let mut files = directory.files(Some((16 << 20, Some(way))));
        windows.iter().for_each(|(epoch, window)| files.expect(*epoch, window.iter().copied()));
        files.prepare(0, windows[0].1.iter().copied()).expect("prepares");
        files.bringer.stop.cancel();
        let (later, all) = (&windows[windows.len() - 1], windows[1..].iter().map(|(_, window)| window));
        let stopped = files.prepare(later.0, all.flatten().copied());
        assert!(stopped.is_ok() || matches!(stopped, Err(LoadError::Stopped)));
        drop(files); // returns
    }
}

#[test]
fn a_row_that_is_not_there_is_an_error_and_no_endless_wait() {
    let shard = Arc::new(Shard::from_bytes(shard(0, 50, 64).bytes).expect("own shard"));
    let totals = Totals { bytes: 1 << 20, row_bytes: 64, rows: 51, shards: 1 };
    let mut direct =
        Direct::new(totals, 1 << 20, Some(Way::Rows), CancellationToken::new()).expect("threads");
    direct.add(0, &shard);
    assert!(direct.prepare([(0, 49)].into_iter()).is_ok());
    let error = direct.prepare([(0, 50)].into_iter()).expect_err("the shard has 50 rows");
    assert!(format!("{error:?}").contains("panicked"), "{error:?}");
}
