//! The laws of canonical rows.

use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use proptest::prelude::*;
use shardd_strategies::record_batch;

use super::*;

fn rows_of(codec: &RowCodec, batch: &RecordBatch) -> Vec<Vec<u8>> {
    let encoder = codec.encoder(batch).expect("the batch fits");
    let row = |row| {
        let mut bytes = Vec::new();
        encoder.encode(row, &mut bytes).expect("rows are small");
        bytes
    };
    (0..batch.num_rows()).map(row).collect()
}

fn decode(codec: &RowCodec, rows: &[Vec<u8>]) -> Result<RecordBatch, RowError> {
    codec.decode(rows.iter().map(Vec::as_slice))
}

proptest! {
    #[test]
    fn rows_come_back_as_they_were(batch in record_batch(20)) {
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        let rows = rows_of(&codec, &batch);
        let back = decode(&codec, &rows).expect("own rows");
        prop_assert_eq!(&back, &batch);
        prop_assert_eq!(rows_of(&codec, &back), rows, "there is one way to write a row");
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours(batch in record_batch(20), at: prop::sample::Index, length: prop::sample::Index) {
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        let rows = rows_of(&codec, &batch);
        let at = at.index(rows.len());
        let length = length.index(rows.len() - at) + 1;
        prop_assert_eq!(rows_of(&codec, &batch.slice(at, length)), &rows[at..at + length]);
        let some: Vec<_> = rows[at..].iter().chain(&rows[..at]).cloned().collect();
        prop_assert_eq!(rows_of(&codec, &decode(&codec, &some).expect("own rows")), some);
    }

    #[test]
    fn a_null_hides_what_lies_beneath(batch in record_batch(8)) {
        // Once through the codec, nothing is left beneath nulls: writing and reading again changes no buffer.
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        let once = decode(&codec, &rows_of(&codec, &batch)).expect("own rows");
        let twice = decode(&codec, &rows_of(&codec, &once)).expect("own rows");
        for (once, twice) in once.columns().iter().zip(twice.columns()) {
            prop_assert!(same_buffers(&once.to_data(), &twice.to_data()));
        }
    }

    #[test]
    fn damaged_rows_are_refused_or_other_rows(batch in record_batch(6), at: prop::sample::Index, to: u8, cut: prop::sample::Index) {
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        let mut rows = rows_of(&codec, &batch);
        let last = rows.len() - 1;
        let cut = cut.index(rows[last].len());
        prop_assert!(decode(&codec, &[rows[last][..cut].to_vec()]).is_err(), "a row cannot end early");
        let longer = [rows[last].as_slice(), &[0]].concat();
        prop_assert!(decode(&codec, &[longer]).is_err(), "nor continue");
        let at = at.index(rows[0].len());
        rows[0][at] = to;
        if let Ok(other) = decode(&codec, &rows) {
            prop_assert_eq!(rows_of(&codec, &other), rows);
        }
    }

    #[test]
    fn garbage_is_refused_or_canonical(batch in record_batch(1), bytes in prop::collection::vec(prop_oneof![0..3u8, any::<u8>()], 0..60)) {
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        if let Ok(batch) = codec.decode([bytes.as_slice()]) {
            prop_assert_eq!(rows_of(&codec, &batch), [bytes]);
        }
    }

    #[test]
    fn rows_are_gathered_from_wherever_they_lie(batch in record_batch(20), picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40)) {
        let codec = RowCodec::new(batch.schema()).expect("a plain schema");
        let encoder = codec.encoder(&batch).expect("the batch fits");
        let picks: Vec<usize> = picks.iter().map(|pick| pick.index(batch.num_rows())).collect();
        let rows = rows_of(&codec, &batch);
        let canonical = Rows::Canonical(picks.iter().map(|row| rows[*row].as_slice()).collect());
        let columns = Rows::Columns(picks.iter().map(|row| (&encoder, *row)).collect());
        let from_rows = codec.gather(&canonical, &Fresh).expect("own rows");
        let from_columns = codec.gather(&columns, &Fresh).expect("own rows");
        for (left, right) in from_rows.columns().iter().zip(from_columns.columns()) {
            prop_assert!(same_buffers(&left.to_data(), &right.to_data()));
        }
        prop_assert_eq!(rows_of(&codec, &from_rows), picks.iter().map(|row| rows[*row].clone()).collect::<Vec<_>>());
        let mut hashed = Vec::new();
        columns.for_each_canonical(|row| hashed.push(row.to_vec())).expect("rows are small");
        prop_assert_eq!(hashed, rows_of(&codec, &from_rows));
        // Another way of copying values gives the same, and is given each of them: what it does not give is missed.
        let copied = std::cell::Cell::new(0);
        let copy = |first: usize, values: &[&[u8]], out: Option<&mut [u8]>| {
            assert_eq!(first + values.len(), picks.len(), "few values make one stretch");
            let values = values.concat();
            copied.set(copied.get() + values.len());
            out.into_iter().for_each(|out| out.copy_from_slice(&values));
            Ok(())
        };
        let from_copies = codec.gather_with(&columns, &Fresh, &copy).expect("own rows");
        for (left, right) in from_copies.columns().iter().zip(from_columns.columns()) {
            prop_assert!(same_buffers(&left.to_data(), &right.to_data()));
        }
        let memory: usize =
            picks.iter().flat_map(|row| encoder.memory_of(*row..row + 1)).map(|bytes| bytes.len()).sum();
        prop_assert_eq!(copied.get(), memory);
        let fails = codec.gather_with(&columns, &Fresh, &|_, _, _| Err(std::io::ErrorKind::TimedOut.into()));
        let asks = encoder.memory_of(0..0).next().is_some();
        prop_assert_eq!(asks, matches!(fails, Err(RowError::Read { .. })));
    }

    #[test]
    fn the_sum_of_digests_ignores_order(digests in prop::collection::vec(any::<[u8; 16]>(), 0..20)) {
        let forward: DigestSum = digests.iter().map(|digest| RowDigest(*digest)).sum();
        let backward: DigestSum = digests.iter().rev().map(|digest| RowDigest(*digest)).sum();
        prop_assert_eq!(forward, backward);
        prop_assert_eq!(forward.to_string().parse::<DigestSum>(), Ok(forward));
    }
}

fn same_buffers(left: &ArrayData, right: &ArrayData) -> bool {
    left.buffers() == right.buffers()
        && left.nulls().map(|nulls| nulls.inner()) == right.nulls().map(|nulls| nulls.inner())
        && left.child_data().iter().zip(right.child_data()).all(|(left, right)| same_buffers(left, right))
}

/// One row of every kind, and the bytes that `docs/FORMAT.md` gives for it.
#[test]
fn rows_are_what_the_format_document_says() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Int64Array::from(vec![3, -1]))),
        ("image", Arc::new(BinaryArray::from(vec![Some(&b"\x89PNG"[..]), None]))),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("tensor", {
            let values = Arc::new(UInt8Array::from(vec![1, 2, 3, 4, 5, 6]));
            let item = Arc::new(Field::new("item", DataType::UInt8, false));
            Arc::new(FixedSizeListArray::new(item, 3, values, None))
        }),
        ("tokens", {
            let rows = vec![Some(vec![Some(7), None, Some(9)]), Some(vec![])];
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
        }),
    ];
    let fields: Vec<_> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns fit");
    let codec = RowCodec::new(batch.schema()).expect("a plain schema");
    let shown: Vec<String> = rows_of(&codec, &batch).iter().map(|row| to_hex(row)).collect();
    assert_eq!(
        shown[0],
        [
            "01 0300000000000000",
            "01 04000000 89504e47",
            "01 01",
            "01 01 010203",
            "01 03000000 02 05 07000000 00000000 09000000",
        ]
        .concat()
        .replace(' ', "")
    );
    assert_eq!(shown[1], "01 ffffffffffffffff 00 00 01 01 040506 01 00000000".replace(' ', ""));
    let digests: Vec<String> =
        rows_of(&codec, &batch).iter().map(|row| RowDigest::of(row).to_string()).collect();
    assert_eq!(digests, ["dbfaa0040884898da77e1791ab63c68f", "6df401b6998adfae77c5bc10b608e65e"]);
}

#[test]
fn dictionaries_views_and_runs_are_made_plain() {
    let texts = StringArray::from(vec![Some("a"), None, Some("a"), Some("b")]);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let runs: RunArray<Int32Type> = vec!["x", "x", "y", "y"].into_iter().collect();
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1)]),
        None,
        None,
        Some(vec![]),
    ]);
    let list_view = DataType::ListView(Arc::new(Field::new_list_field(DataType::Int32, true)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("dictionary", cast(&texts, &dictionary).expect("texts make a dictionary")),
        ("view", cast(&texts, &DataType::Utf8View).expect("texts make views")),
        ("runs", Arc::new(runs)),
        ("list_view", cast(&lists, &list_view).expect("lists make views")),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, true)),
    )
    .expect("columns fit");
    assert!(matches!(RowCodec::new(batch.schema()), Err(RowError::Unsupported { .. })));
    let schema = plain_schema(batch.schema_ref()).expect("all of them have plain values");
    let plain = plain_batch(&batch, &schema).expect("values fit");
    assert_eq!(plain.column(0).as_ref(), &texts as &dyn Array);
    assert_eq!(plain.column(1).as_ref(), &texts as &dyn Array);
    assert_eq!(plain.column(2).as_ref(), &StringArray::from(vec!["x", "x", "y", "y"]) as &dyn Array);
    assert_eq!(plain.column(3).as_ref(), &lists as &dyn Array);
    let codec = RowCodec::new(schema).expect("a plain schema");
    assert_eq!(decode(&codec, &rows_of(&codec, &plain)).expect("own rows"), plain);
}

#[test]
fn what_rows_cannot_hold_is_named() {
    let refused = |data_type: DataType| {
        let schema = Arc::new(Schema::new(vec![Field::new("x", data_type, true)]));
        let plain = plain_schema(&schema).map(|_| ()).expect_err("it cannot be held").to_string();
        assert!(plain.contains("column \"x\""), "{plain}");
    };
    refused(DataType::FixedSizeBinary(0));
    refused(DataType::FixedSizeBinary(-5));
    refused(DataType::Struct(Vec::<Field>::new().into()));
    refused(DataType::Decimal128(99, 0));
    let item = Arc::new(Field::new("item", DataType::Int64, false));
    refused(DataType::FixedSizeList(item.clone(), i32::MAX));
    refused(DataType::FixedSizeList(item, -1));
    let deep =
        (0..40).fold(DataType::Int8, |inner, _| DataType::List(Arc::new(Field::new("item", inner, true))));
    refused(deep);
}

#[test]
fn billions_of_items_are_not_believed() {
    let item = Field::new("item", DataType::Null, true);
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::List(Arc::new(item)), true)]));
    let codec = RowCodec::new(schema).expect("a plain schema");
    let row = [&[1][..], &u32::MAX.to_le_bytes(), &[2, 0]].concat();
    assert!(matches!(codec.decode([row.as_slice()]), Err(RowError::Malformed { .. })));
}

#[test]
fn nulls_take_no_more_memory_than_there_is_room() {
    let wide = DataType::FixedSizeBinary(1000);
    let list = DataType::List(Arc::new(Field::new("item", wide.clone(), true)));
    let pair = DataType::Struct(vec![Field::new("a", wide.clone(), true)].into());
    for (data_type, row) in [(wide, vec![0]), (list, vec![1, 1, 0, 0, 0, 0]), (pair, vec![1, 0])] {
        let shape = Shape::of(&Field::new("x", data_type, true), "x", 0).expect("a plain type");
        let decoded = |mut room| decode::decode_column(&shape, &mut [row.as_slice(); 5], &mut room);
        assert_eq!(decoded(5000).expect("there is room").len(), 5);
        assert!(decoded(4999).expect_err("there is none").contains("more memory"));
    }
}
