use arrow::array::{AsArray, Float32Array, Int32Array, Int64Array, ListArray};
use arrow::datatypes::{Float32Type, Int32Type, Int64Type, UInt8Type};
use proptest::prelude::*;

use super::*;
use crate::{Ingest, IngestConfig, NoProgress, Offsets, OnError, Resources, Source};

/// Rows of an input: sequence, number, and two numbers of it.
fn rows(sequences: &[i32]) -> RecordBatch {
    let numbers = 0..sequences.len() as i64;
    let pair = numbers.clone().flat_map(|number| [number as f32, -(number as f32)]);
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let pairs = FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from_iter_values(pair)), None);
    RecordBatch::try_from_iter([
        ("sequence", Arc::new(Int32Array::from(sequences.to_vec())) as ArrayRef),
        ("number", Arc::new(Int64Array::from_iter_values(numbers))),
        ("pair", Arc::new(pairs)),
    ])
    .expect("columns of one length")
}

/// What a window has, row by row, found without any state.
fn expected(sequences: &[i32], windows: &Windows) -> Vec<(i64, Vec<(i64, u8)>)> {
    let offsets = windows.columns["number"].rows();
    let other = windows.columns.get("pair").map_or(&[][..], Offsets::rows);
    let mut samples = Vec::new();
    let mut start = 0;
    while start < sequences.len() {
        let same = |row: &&i32| windows.by.is_none() || **row == sequences[start];
        let end = start + sequences[start..].iter().take_while(same).count();
        let stride = windows.stride.map_or(1, |stride| stride.get() as usize);
        for own in (start..end).step_by(stride) {
            let row = |offset: &i32| own as i64 + i64::from(*offset);
            let inside = |row: i64| (start as i64..end as i64).contains(&row);
            let is_whole = offsets.iter().chain(other).all(|offset| inside(row(offset)));
            if windows.edges == Edges::Drop && !is_whole {
                continue;
            }
            let padded = |offset: &i32| {
                let row = row(offset);
                (row.clamp(start as i64, end as i64 - 1), u8::from(!inside(row)))
            };
            samples.push((own as i64, offsets.iter().map(padded).collect()));
        }
        start = end;
    }
    samples
}

/// What the source gives of batches.
fn read(batches: Vec<RecordBatch>, windows: &Windows) -> Result<Vec<RecordBatch>, IngestError> {
    let schema = batches[0].schema();
    let config = IngestConfig { window: Some(windows.clone()), ..IngestConfig::default() };
    let source = Source::of_batches("rows", schema, batches.into_iter().map(Ok), &config).expect("fits");
    let mut samples = Vec::new();
    let mut keep = |piece: Piece<'_>| {
        let (batch, faults) = piece.read(OnError::Fail)?;
        assert!(faults.skipped.is_empty());
        samples.extend(batch);
        Ok(())
    };
    let largest_row = crate::LargestRow::ANY;
    source.format.pieces(&mut Feed { push: &mut keep, on_error: OnError::Fail, largest_row })?;
    Ok(samples)
}

fn found(samples: &[RecordBatch], edges: Edges) -> Vec<(i64, Vec<(i64, u8)>)> {
    let mut found = Vec::new();
    for batch in samples {
        let column = |name: &str| batch.column_by_name(name).expect("a column");
        let (numbers, own) =
            (column("number").as_fixed_size_list(), column("own").as_primitive::<Int64Type>());
        for row in 0..batch.num_rows() {
            let rows = numbers.value(row).as_primitive::<Int64Type>().values().to_vec();
            let pads = match edges {
                Edges::Repeat => {
                    let pads = column("number_is_pad").as_fixed_size_list().value(row);
                    pads.as_primitive::<UInt8Type>().values().to_vec()
                }
                Edges::Drop => vec![0; rows.len()],
            };
            found.push((own.value(row), rows.into_iter().zip(pads).collect()));
        }
    }
    found
}

fn windows() -> impl Strategy<Value = Windows> {
    let offsets = prop_oneof![
        (-6..3_i32, 1..7_i32).prop_map(|(start, len)| (start..start + len).collect::<Vec<i32>>()),
        prop::collection::vec(-5..6_i32, 1..5),
    ];
    let offsets = offsets.prop_map(|rows| Offsets::try_from(rows).expect("some rows"));
    let by = prop_oneof![3 => Just(Some("sequence".to_owned())), 1 => Just(None)];
    let edges = prop_oneof![Just(Edges::Repeat), Just(Edges::Drop)];
    (offsets.clone(), prop::option::of(offsets), by, prop::option::of(1..4_u32), edges).prop_map(
        |(number, pair, by, stride, edges)| {
            let columns = [("number".to_owned(), number)].into_iter();
            let columns = columns.chain(pair.map(|offsets| ("pair".to_owned(), offsets))).collect();
            Windows { columns, by, stride: stride.and_then(std::num::NonZeroU32::new), edges }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn windows_are_those_of_whole_sequences_wherever_batches_end(
        windows in windows(),
        lengths in prop::collection::vec(1..9_usize, 1..8),
        cuts in prop::collection::vec(1..7_usize, 1..6),
    ) {
        let sequences: Vec<i32> = (0..).zip(&lengths).flat_map(|(sequence, len)| vec![sequence; *len]).collect();
        let all = rows(&sequences);
        let own = ("own", Arc::clone(all.column(1)));
        let columns = all.schema().fields().iter().map(|field| field.name().clone()).zip(all.columns().iter().cloned()).collect::<Vec<_>>();
        let all = RecordBatch::try_from_iter(columns.iter().map(|(name, values)| (name.as_str(), Arc::clone(values))).chain([own])).unwrap();
        let mut batches = Vec::new();
        let mut start = 0;
        for cut in cuts.iter().cycle() {
            let end = (start + cut).min(all.num_rows());
            batches.push(all.slice(start, end - start));
            start = end;
            if start == all.num_rows() {
                break;
            }
        }
        let (samples, expected) = (read(batches, &windows), expected(&sequences, &windows));
        if expected.is_empty() {
            let error = samples.expect_err("no window").to_string();
            prop_assert!(error.contains("lies whole in a sequence"), "{error}");
            return Ok(());
        }
        let samples = samples.expect("reads");
        prop_assert_eq!(found(&samples, windows.edges), expected);
        if let Some(offsets) = windows.columns.get("pair") {
            for batch in &samples {
                let pairs = batch.column_by_name("pair").unwrap();
                prop_assert_eq!(pairs.as_fixed_size_list().value_length() as usize, 2 * offsets.rows().len());
            }
        }
    }
}

#[test]
fn a_window_is_a_tensor_with_its_rows_in_front() {
    let windows = Windows {
        columns: [("pair".to_owned(), "-1..2".parse().unwrap())].into(),
        by: Some("sequence".to_owned()),
        ..Windows::default()
    };
    let [samples] = &read(vec![rows(&[7, 7, 8])], &windows).expect("reads")[..] else { panic!("one piece") };
    let schema = samples.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["sequence", "number", "pair", "pair_is_pad"]);
    assert_eq!(tensor_shape(schema.field(2)), Some(vec![3, 2]));
    assert_eq!(tensor_shape(schema.field(3)), Some(vec![3]));
    let pair = |row: usize| {
        samples.column(2).as_fixed_size_list().value(row).as_primitive::<Float32Type>().values().to_vec()
    };
    assert_eq!(pair(0), [0.0, 0.0, 0.0, 0.0, 1.0, -1.0]);
    assert_eq!(pair(1), [0.0, 0.0, 1.0, -1.0, 1.0, -1.0]);
    assert_eq!(pair(2), [2.0, -2.0, 2.0, -2.0, 2.0, -2.0]);
    assert_eq!(samples.column(0).as_primitive::<Int32Type>().values()[..], [7, 7, 8]);
}

#[test]
fn samples_with_large_values_beside_a_window_are_listed_in_pieces_that_memory_holds() {
    let rows = rows(&[1; 64]);
    let picture = vec![7_u8; 1 << 19];
    let pictures: ArrayRef = Arc::new(arrow::array::BinaryArray::from_iter_values(vec![picture; 64]));
    let columns = [("number", Arc::clone(rows.column(1))), ("picture", pictures)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let columns = [("number".to_owned(), "-1..2".parse().unwrap())].into();
    let samples = read(vec![batch], &Windows { columns, ..Windows::default() }).expect("reads");
    assert_eq!(samples.iter().map(RecordBatch::num_rows).sum::<usize>(), 64);
    assert!(
        samples.iter().all(|piece| piece.num_rows() <= 16),
        "{:?}",
        samples.iter().map(RecordBatch::num_rows).collect::<Vec<_>>()
    );
}

#[test]
fn what_has_no_windows_is_refused_with_the_way_out() {
    let open = |batch: &RecordBatch, column: &str, by: Option<&str>| {
        let windows = Windows {
            columns: [(column.to_owned(), "0..2".parse().unwrap())].into(),
            by: by.map(str::to_owned),
            ..Windows::default()
        };
        let config = IngestConfig { window: Some(windows), ..IngestConfig::default() };
        let batches = vec![Ok(batch.clone())];
        let source = Source::of_batches("rows", batch.schema(), batches.into_iter(), &config)?;
        let resources = Resources::threads(2);
        Ingest::read(source, &config, &[], &resources, &NoProgress).map(drop)
    };
    let error = |result: Result<(), IngestError>| result.expect_err("refused").to_string();
    let own = rows(&[1, 1]);
    assert!(open(&own, "number", Some("sequence")).is_ok());
    assert!(error(open(&own, "numbers", None)).contains("number"));
    assert!(error(open(&own, "number", Some("episode"))).contains("episode"));

    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), Some(vec![])]));
    let texts: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a", "b"]));
    let by_lists = RecordBatch::try_from_iter([
        ("v", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef),
        ("l", Arc::clone(&lists)),
    ]);
    assert!(
        error(open(&by_lists.unwrap(), "v", Some("l")))
            .contains("a sequence ends where a number or a text changes")
    );
    for (values, words) in [
        (lists, "pyarrow.list_(pyarrow.float32(), 7)"),
        (texts, "windows are of numbers, or of lists of numbers of one length"),
    ] {
        let batch = RecordBatch::try_from_iter([("v", values)]).unwrap();
        let error = error(open(&batch, "v", None));
        assert!(error.contains(words), "{error}");
    }
    let nulls: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let batch = RecordBatch::try_from_iter([("v", nulls)]).unwrap();
    assert!(error(open(&batch, "v", None)).contains("column \"v\" has a null"));
    let pads: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("v", Arc::clone(&pads)), ("v_is_pad", pads)]).unwrap();
    assert!(error(open(&batch, "v", None)).contains("\"v_is_pad\""));
    let drop = Windows {
        columns: [("number".to_owned(), "-1..2".parse().unwrap())].into(),
        edges: Edges::Drop,
        ..Windows::default()
    };
    let config = IngestConfig { window: Some(drop), ..IngestConfig::default() };
    let source = Source::of_batches("rows", own.schema(), [Ok(own)].into_iter(), &config).unwrap();
    let resources = Resources::threads(2);
    let short = Ingest::read(source, &config, &[], &resources, &NoProgress).map(|_| ());
    assert!(error(short).contains("no window of 3 rows lies whole"));
    for text in ["", "1..1", "0..=3", "3..1", "a", "1,,2", "0..70000", "0..99999999999", "2000000"] {
        assert!(text.parse::<Offsets>().is_err(), "{text}");
    }
}
