//! The laws of shards and sidecars.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::reader::FileReader;
use proptest::prelude::*;
use shardd_strategies::{another, record_batch};

use super::*;
use crate::grain::{Grain, GrainKey};
use crate::manifest::{Labels, ShardEntry};

fn finished(batches: &[RecordBatch]) -> FinishedShard {
    compressed(batches, Compression::None)
}

fn compressed(batches: &[RecordBatch], compression: Compression) -> FinishedShard {
    let schema = batches[0].schema();
    let mut writer = ShardWriter::with_compression(schema, compression).expect("a plain schema");
    for batch in batches {
        writer.push(batch).expect("the batch fits");
    }
    writer.finish().expect("there are rows")
}

fn any_compression() -> impl Strategy<Value = Compression> {
    let level = |level| Compression::Zstd(ZstdLevel::new(level).expect("there is such a level"));
    prop::sample::select(vec![Compression::None, Compression::Lz4, level(1), level(3), level(19)])
}

/// Several record batches worth of rows: texts, tensors and labels.
fn large(rows: usize) -> RecordBatch {
    let bytes: Vec<u8> = (0..rows * 300).map(|at| (at * 7 + at / 300) as u8).collect();
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tensors = FixedSizeListArray::new(item, 300, Arc::new(UInt8Array::from(bytes)), None);
    let texts = StringArray::from_iter((0..rows).map(|row| (row % 5 > 0).then(|| "é".repeat(row % 200))));
    let flags = BooleanArray::from_iter((0..rows).map(|row| (row % 3 > 0).then_some(row % 2 == 0)));
    let labels = Int64Array::from_iter_values((0..rows).map(|row| (row % 10) as i64));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("tensor", Arc::new(tensors)),
        ("text", Arc::new(texts)),
        ("flag", Arc::new(flags)),
        ("label", Arc::new(labels)),
    ];
    RecordBatch::try_from_iter(columns).expect("columns fit")
}

fn concatenated(batches: &[RecordBatch]) -> RecordBatch {
    arrow::compute::concat_batches(batches[0].schema_ref(), batches).expect("one schema")
}

fn fetch(file: &[u8], plan: &RangePlan) -> Vec<Vec<u8>> {
    plan.ranges().iter().map(|range| file[range.start as usize..range.end as usize].to_vec()).collect()
}

proptest! {
    #[test]
    fn the_same_rows_make_the_same_shard_however_they_are_cut(
        batch in record_batch(30), seed: u64, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4), compression in any_compression(),
    ) {
        let batches = [batch.clone(), another(&batch, 11, seed)];
        let whole = concatenated(&batches);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.num_rows())).collect();
        cuts.extend([0, whole.num_rows()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|pair| whole.slice(pair[0], pair[1] - pair[0])).collect();
        let (one, other) = (compressed(&batches, compression), compressed(&pieces, compression));
        prop_assert_eq!(&one.bytes, &other.bytes);
        prop_assert_eq!(one.sidecar, other.sidecar);
        prop_assert_eq!(one.entry, other.entry);
    }

    #[test]
    fn compression_changes_the_file_and_nothing_else(batch in record_batch(30), compression in any_compression()) {
        let (plain, packed) = (finished(std::slice::from_ref(&batch)), compressed(&[batch], compression));
        prop_assert_eq!(&packed.sidecar.rows, &plain.sidecar.rows);
        let file = |entry: ShardEntry| ShardEntry { id: plain.id, bytes: 0, ..entry };
        prop_assert_eq!(packed.id == plain.id, compression == Compression::None);
        prop_assert_eq!(file(packed.entry), file(plain.entry));
    }

    #[test]
    fn shards_are_read_as_they_were_written(batch in record_batch(30), compression in any_compression()) {
        let shard = compressed(std::slice::from_ref(&batch), compression);
        let read = Shard::from_bytes(shard.bytes.clone()).expect("own shard");
        prop_assert!(read.verify(shard.id).is_ok());
        prop_assert_eq!(concatenated(read.record_batches()), batch.clone());
        prop_assert_eq!(&read.row_digests().expect("own rows"), &shard.sidecar.rows);
        prop_assert_eq!(shard.sidecar.root(), shard.entry.root);
        prop_assert_eq!(read.rows(), shard.entry.rows);
        // Any Arrow reader reads the same.
        let foreign = FileReader::try_new(std::io::Cursor::new(&shard.bytes), None).expect("an Arrow file");
        let foreign: Vec<_> = foreign.map(|batch| batch.expect("own batch")).collect();
        prop_assert_eq!(concatenated(&foreign), batch);
    }

    #[test]
    fn every_grain_of_a_shard_is_verified_against_its_entry(batch in record_batch(40), power in 0..6u32, compression in any_compression()) {
        let shard = compressed(&[batch], compression);
        let read = Shard::from_bytes(shard.bytes).expect("own shard");
        let tree = GrainTree::new(&shard.sidecar.rows, 1 << power);
        for index in 0..tree.grain_count() {
            let bytes = read.grain_in(&tree, index).expect("small rows");
            let key = GrainKey { shard: shard.id, rows: 1 << power, index };
            let grain = Grain::parse(&bytes).expect("own grain");
            prop_assert_eq!(grain.verify(key, shard.entry.rows, shard.entry.root), Ok(()));
        }
        prop_assert_eq!(read.grain(&shard.sidecar.rows, 1 << power, 0).expect("small rows"), read.grain_in(&tree, 0).expect("small rows"));
    }

    #[test]
    fn rows_read_by_range_are_the_rows(batch in record_batch(60), wanted in prop::collection::vec(any::<(u32, u32)>(), 0..4), compression in any_compression()) {
        let shard = compressed(std::slice::from_ref(&batch), compression);
        let rows = shard.entry.rows;
        let wanted: Vec<_> = wanted.into_iter().map(|(a, b)| (a % (rows + 1), b % (rows + 1))).map(|(a, b)| a.min(b)..a.max(b)).collect();
        let plan = shard.sidecar.read_plan(&batch.schema(), &wanted).expect("rows of the shard");
        prop_assert!(plan.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        let read = plan.decode(&fetch(&shard.bytes, &plan)).expect("own bytes");
        let expected: Vec<_> = wanted.iter().map(|range| batch.slice(range.start as usize, range.len())).collect();
        let empty = RecordBatch::new_empty(batch.schema());
        let joined = |batches: Vec<RecordBatch>| concatenated(&[vec![empty.clone()], batches].concat());
        prop_assert_eq!(read.into_iter().map(joined).collect::<Vec<_>>(), expected.into_iter().map(|rows| joined(vec![rows])).collect::<Vec<_>>());
    }

    #[test]
    fn sidecars_come_back_as_they_were(batch in record_batch(30), at: prop::sample::Index, bit in 0..8u32, compression in any_compression()) {
        let sidecar = compressed(&[batch], compression).sidecar;
        let mut bytes = sidecar.encode();
        prop_assert_eq!(&Sidecar::decode(&bytes).expect("own sidecar"), &sidecar);
        let at = at.index(bytes.len());
        prop_assert!(Sidecar::decode(&bytes[..at]).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(Sidecar::decode(&bytes).is_err(), "any flipped bit is noticed");
    }

    #[test]
    fn damaged_shards_give_errors_that_name_them(
        batch in record_batch(20), at: prop::sample::Index, to: u8, cut: prop::sample::Index, compression in any_compression(),
    ) {
        let shard = compressed(&[batch], compression);
        let mut bytes = shard.bytes.to_vec();
        let cut = bytes[..cut.index(bytes.len())].to_vec();
        let name = Digest::of(&cut).short();
        let error = Shard::from_bytes(cut).expect_err("it is cut off").to_string();
        prop_assert!(error.contains(&name), "{}", error);
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        if let Ok(other) = Shard::from_bytes(bytes) {
            prop_assert!(other.verify(shard.id).is_err());
            prop_assert!(other.row_digests().is_ok());
        }
    }

    #[test]
    fn a_sidecar_that_lies_does_not_cause_a_panic(batch in record_batch(20), at: prop::sample::Index, to: u8, compression in any_compression()) {
        let shard = compressed(std::slice::from_ref(&batch), compression);
        let mut content = shard.sidecar.encode();
        content.truncate(content.len() - 32);
        let at = at.index(content.len());
        content[at] = to;
        let digest = blake3::hash(&content);
        content.extend_from_slice(digest.as_bytes());
        let Ok(sidecar) = Sidecar::decode(&content) else { return Ok(()) };
        let everything = 0..sidecar.rows.len() as u32;
        let Ok(plan) = sidecar.read_plan(&batch.schema(), &[everything]) else { return Ok(()) };
        let length = plan.ranges().last().map_or(0, |range| range.end);
        prop_assume!(length < 1 << 24);
        let mut file = shard.bytes.to_vec();
        file.resize(file.len().max(length as usize), 0);
        let _ = plan.decode(&fetch(&file, &plan));
    }

    #[test]
    fn garbage_is_no_shard(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Sidecar::decode(&bytes).is_err());
        let framed = [b"ARROW1\0\0", bytes.as_slice(), b"ARROW1"].concat();
        prop_assert!(Shard::from_bytes(bytes).is_err());
        prop_assert!(Shard::from_bytes(framed).is_err());
    }
}

#[test]
fn a_grain_costs_its_own_bytes_and_little_more() {
    let batch = large(20_000);
    let shard = finished(std::slice::from_ref(&batch));
    let read = Shard::from_bytes(shard.bytes.clone()).expect("own shard");
    assert!(read.record_batches().len() >= 6, "{} record batches", read.record_batches().len());
    let sizes = read.record_batches().iter().map(RecordBatch::num_rows);
    assert!(sizes.clone().max() < Some(4000), "{:?}", sizes.collect::<Vec<_>>());
    let range = 12_345..12_361;
    let plan =
        shard.sidecar.read_plan(read.schema(), std::slice::from_ref(&range)).expect("rows of the shard");
    assert!(plan.bytes() < 20_000, "{} bytes in {:?}", plan.bytes(), plan.ranges());
    let rows = plan.decode(&fetch(&shard.bytes, &plan)).expect("own bytes");
    assert_eq!(concatenated(&rows[0]), batch.slice(12_345, 16));
    // Across record batches, backwards and twice.
    let wanted = [19_000..20_000, 0..9_000, 5..5, 0..9_000];
    let plan = shard.sidecar.read_plan(read.schema(), &wanted).expect("rows of the shard");
    let rows = plan.decode(&fetch(&shard.bytes, &plan)).expect("own bytes");
    for (range, rows) in wanted.into_iter().zip(rows) {
        let expected = batch.slice(range.start as usize, range.len());
        assert_eq!(concatenated(&[&[batch.slice(0, 0)], rows.as_slice()].concat()), expected);
    }
    let error = plan.decode(&[Vec::new()]).expect_err("nothing was fetched").to_string();
    assert!(error.contains(&shard.id.short()), "{error}");
    let beyond = shard.sidecar.read_plan(read.schema(), std::slice::from_ref(&(19_999..20_001)));
    assert!(matches!(beyond, Err(ShardError::NoSuchRows { .. })));
}

#[test]
fn a_grain_of_a_compressed_shard_costs_its_record_batch() {
    let batch = large(20_000);
    for compression in [Compression::Lz4, Compression::Zstd(ZstdLevel::default())] {
        let shard = compressed(std::slice::from_ref(&batch), compression);
        assert!(shard.bytes.len() < finished(std::slice::from_ref(&batch)).bytes.len() / 4, "{compression}");
        assert!(shard.sidecar.encode().len() < 20_000 * 16 + 10_000, "no offsets, no bitmaps");
        let range = 12_345..12_361;
        let plan = shard.sidecar.read_plan(&batch.schema(), std::slice::from_ref(&range)).expect("its rows");
        let bodies: Vec<u64> = shard.sidecar.blocks.iter().map(|block| block.body_bytes).collect();
        assert_eq!(plan.ranges().len(), 1, "{:?}", plan.ranges());
        assert!(bodies.contains(&plan.bytes()), "{} of {bodies:?}", plan.bytes());
        let rows = plan.decode(&fetch(&shard.bytes, &plan)).expect("own bytes");
        assert_eq!(concatenated(&rows[0]), batch.slice(12_345, 16));
        // Fetched bytes are not trusted either.
        let zeros: Vec<Vec<u8>> =
            fetch(&shard.bytes, &plan).iter().map(|bytes| vec![0; bytes.len()]).collect();
        assert!(matches!(plan.decode(&zeros), Err(ShardError::Corrupt { .. })));
    }
}

#[test]
fn a_few_bytes_that_claim_to_be_gigabytes_are_refused_before_they_are_decompressed() {
    let digits: String =
        (0..400_000u64).map(|at| char::from(b'0' + (at * at % 1009 * 31 % 10) as u8)).collect();
    let texts = StringArray::from(vec![digits.as_str()]);
    let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).expect("one column");
    for compression in [Compression::Lz4, Compression::Zstd(ZstdLevel::default())] {
        let bytes = compressed(std::slice::from_ref(&batch), compression).bytes;
        let length = 400_000u64.to_le_bytes();
        let at = bytes.windows(8).rposition(|window| window == length).expect("the length of the texts");
        let claiming = |claim: i64| {
            let mut bytes = bytes.to_vec();
            bytes[at..at + 8].copy_from_slice(&claim.to_le_bytes());
            Shard::from_bytes(bytes).map(|_| ()).expect_err("it lies").to_string()
        };
        for claim in [-2, i64::MIN, i64::MAX, 1 << 45] {
            assert!(claiming(claim).contains(&format!("cannot become {claim}")), "{}", claiming(claim));
        }
        for claim in [399_999, 400_001] {
            assert!(claiming(claim).contains("is corrupt: record batch 0"), "{}", claiming(claim));
        }
    }
}

#[test]
fn record_batches_that_are_too_much_together_are_refused() {
    // Each of them could be true: zeros can be packed that well.
    let bytes = compressed(&[large(20_000)], Compression::Zstd(ZstdLevel::default())).bytes;
    let file = IpcFile::parse(&bytes).expect("own file");
    let mut unpacked = MAX_SHARD_BYTES - (2 << 20);
    let results: Vec<_> = file
        .blocks
        .iter()
        .map(|block| {
            let (metadata, body) = (&bytes[block.metadata.clone()], &bytes[block.body.clone()]);
            ipc::check_block(&file.schema, metadata, body, &mut unpacked).map(|_| ())
        })
        .collect();
    assert_eq!(results[0], Ok(()));
    let error = results.into_iter().find_map(Result::err).expect("six of a MiB are more than two");
    assert!(error.contains("4294967295"), "{error}");
}

/// The last place of some bytes.
fn place_of(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).rposition(|window| window == wanted).expect("they are there")
}

#[test]
fn a_record_batch_is_not_listed_twice() {
    let shard = finished(&[large(20_000)]).bytes;
    let file = IpcFile::parse(&shard).expect("own file");
    let [first, second] = [0, 1].map(|block| file.blocks[block].metadata.start);
    // The list of blocks, in the footer: where each begins, then two lengths, 8 bytes each.
    let at = place_of(&shard, &second.to_le_bytes());
    let mut bytes = shard.to_vec();
    bytes.copy_within(at - 24..at, at);
    assert_eq!(bytes[at..at + 8], first.to_le_bytes());
    let error = Shard::from_bytes(bytes).map(|_| ()).expect_err("it is there twice").to_string();
    assert!(error.contains("record batch 1 lies before the end of another"), "{error}");
}

#[test]
fn columns_do_not_share_their_bytes() {
    let column = |from: i64| Arc::new(Int64Array::from_iter_values(from..from + 100)) as ArrayRef;
    let columns = [("a", column(0)), ("b", column(0)), ("c", column(7))];
    for compression in [Compression::None, Compression::Lz4] {
        let batch = RecordBatch::try_from_iter(columns.clone()).expect("columns of one length");
        let bytes = compressed(&[batch], compression).bytes;
        let file = IpcFile::parse(&bytes).expect("own file");
        let metadata = &bytes[file.blocks[0].metadata.clone()];
        let message = ipc::parse_message(metadata).expect("own message");
        let places: Vec<[[u8; 8]; 2]> = message
            .buffers()
            .into_iter()
            .flatten()
            .filter(|buffer| buffer.length() > 0)
            .map(|buffer| [buffer.offset().to_le_bytes(), buffer.length().to_le_bytes()])
            .collect();
        let [first, second, _] = &places[..] else { panic!("values of three columns") };
        let at = file.blocks[0].metadata.start + place_of(metadata, second.as_flattened());
        let mut bytes = bytes.to_vec();
        bytes[at..at + 16].copy_from_slice(first.as_flattened());
        let error = Shard::from_bytes(bytes).map(|_| ()).expect_err("they are the same bytes").to_string();
        assert!(error.contains("\"b\": a buffer begins before the end of another"), "{error}");
    }
}

#[test]
fn rows_pushed_together_make_the_same_shard_as_one_by_one() {
    let batch = large(9_000);
    let codec = RowCodec::new(batch.schema()).expect("a plain schema");
    let rows: Vec<Vec<u8>> = (0..batch.num_rows())
        .map(|row| {
            let mut bytes = Vec::new();
            codec.encode(&batch, row, &mut bytes).expect("a small row");
            bytes
        })
        .collect();
    let mut writer = ShardWriter::new(batch.schema()).expect("a plain schema");
    let mut expected = 0;
    for (index, rows) in rows.chunks(2_500).enumerate() {
        match index {
            1 => rows.iter().for_each(|row| writer.push_row(row).expect("a row")),
            _ => writer.push_rows(rows.iter().map(Vec::as_slice)).expect("rows"),
        }
        expected += rows.len();
        assert_eq!(writer.rows() as usize, expected);
    }
    let shard = writer.finish().expect("there are rows");
    let whole = finished(&[batch]);
    assert_eq!(shard.id, ShardId::of(&shard.bytes));
    assert_eq!((shard.id, shard.entry, shard.sidecar), (whole.id, whole.entry, whole.sidecar));
}

#[test]
fn buffers_lie_on_64_byte_boundaries_of_a_map() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("shard.arrow");
    let shard = finished(&[large(5000)]);
    std::fs::write(&path, &shard.bytes).expect("the disk has room");
    let read = Shard::open(&path).expect("own shard");
    read.verify(shard.id).expect("own bytes");
    let mapped = read.bytes().as_ptr_range();
    for batch in read.record_batches() {
        for column in batch.columns() {
            for buffer in column.to_data().buffers() {
                assert!(mapped.contains(&buffer.as_ptr()), "read in place");
                assert_eq!((buffer.as_ptr() as usize - mapped.start as usize) % 64, 0);
            }
        }
    }
    let missing = Shard::open(&folder.path().join("none.arrow")).expect_err("there is none").to_string();
    assert!(missing.contains("none.arrow"), "{missing}");
    std::fs::write(&path, b"").expect("the disk has room");
    assert!(matches!(Shard::open(&path), Err(ShardError::Corrupt { .. })));
}

#[test]
fn labels_are_counted() {
    let labels = |column: ArrayRef| {
        let batch = RecordBatch::try_from_iter_with_nullable([("label", column, true)]).expect("one column");
        finished(&[batch]).entry.labels
    };
    let counts = |pairs: &[(&str, u64)]| {
        Some(pairs.iter().map(|(label, n)| ((*label).into(), *n)).collect::<Labels>())
    };
    assert_eq!(
        labels(Arc::new(Int64Array::from(vec![Some(3), None, Some(-1), Some(3)]))),
        counts(&[("-1", 1), ("3", 2)])
    );
    assert_eq!(
        labels(Arc::new(StringArray::from(vec!["cat", "dog", "cat"]))),
        counts(&[("cat", 2), ("dog", 1)])
    );
    assert_eq!(labels(Arc::new(Float32Array::from(vec![1.5]))), None);
    assert_eq!(labels(Arc::new(UInt32Array::from_iter_values(0..5000))), None, "too many to be classes");
}

#[test]
fn null_tensors_do_not_make_huge_record_batches() {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let nulls = FixedSizeListArray::new_null(item, 10_000, 200);
    let batch = RecordBatch::try_from_iter_with_nullable([("x", Arc::new(nulls) as ArrayRef, true)])
        .expect("one column");
    let shard = finished(&[batch]);
    let read = Shard::from_bytes(shard.bytes).expect("own shard");
    assert!(read.record_batches().iter().all(|batch| batch.num_rows() <= 27), "of 40 kB each");
}

#[test]
fn foreign_arrow_files_are_refused_with_a_way_out() {
    let dictionary: DictionaryArray<Int32Type> = vec!["a", "b"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("x", Arc::new(dictionary) as ArrayRef)]).expect("one column");
    let mut file =
        arrow::ipc::writer::FileWriter::try_new(Vec::new(), batch.schema_ref()).expect("in memory");
    file.write(&batch).and_then(|()| file.finish()).expect("in memory");
    let error = Shard::from_bytes(file.into_inner().expect("in memory")).expect_err("it has a dictionary");
    assert!(error.to_string().contains("dictionaries"), "{error}");
    // Written as a shard it is made plain.
    let shard = finished(&[batch]);
    let read = Shard::from_bytes(shard.bytes).expect("own shard");
    assert_eq!(*read.schema().field(0).data_type(), DataType::Utf8);
}

#[test]
fn a_shard_has_rows_and_columns() {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int8, false)]));
    assert!(matches!(
        ShardWriter::new(schema.clone()).expect("a plain schema").finish(),
        Err(ShardError::Empty)
    ));
    assert!(ShardWriter::new(Arc::new(Schema::empty())).is_err());
    let mut writer = ShardWriter::new(schema).expect("a plain schema");
    let other = RecordBatch::try_from_iter([("y", Arc::new(Int8Array::from(vec![1])) as ArrayRef)])
        .expect("one column");
    assert!(writer.push(&other).is_err(), "a column of another name");
    writer.push_row(&[1, 5]).expect("a row");
    writer.push_row(&[0]).expect("returned later");
    assert!(matches!(writer.finish(), Err(ShardError::Row { .. })), "a null where none may be");
}

#[test]
fn the_memory_of_rows_is_where_their_values_lie_across_record_batches() {
    let rows = large(20_000);
    let shard = Shard::from_bytes(finished(std::slice::from_ref(&rows)).bytes).expect("a shard");
    assert!(shard.record_batches().len() > 1, "several");
    let tensors = rows.column(0).as_fixed_size_list().values().as_primitive::<arrow::datatypes::UInt8Type>();
    let labels = rows.column(3).as_primitive::<arrow::datatypes::Int64Type>();
    for (start, end) in [(0, 1), (0, 20_000), (13, 14), (5_000, 17_001), (19_999, 20_000), (7, 7)] {
        // Of each record batch: tensors, texts and labels; booleans have no bytes of their own.
        let parts: Vec<&[u8]> = shard.memory_of(start..end).collect();
        assert_eq!(parts.len() % 3, 0);
        let column = |at: usize| parts.iter().skip(at).step_by(3).copied().collect::<Vec<_>>().concat();
        let (start, end) = (start as usize, end as usize);
        assert_eq!(column(0), &tensors.values()[start * 300..end * 300]);
        let texts = rows.column(1).as_string::<i32>();
        let expected: String =
            (start..end).map(|row| if texts.is_null(row) { "" } else { texts.value(row) }).collect();
        assert_eq!(column(1), expected.as_bytes());
        let expected: Vec<u8> =
            labels.values()[start..end].iter().flat_map(|label| label.to_le_bytes()).collect();
        assert_eq!(column(2), expected);
    }
}
