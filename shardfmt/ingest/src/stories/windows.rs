//! Episodes of a robot: samples with the rows around their own.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array};
use arrow::datatypes::{DataType, Field, Float32Type, UInt8Type};

use super::*;

/// Episodes of these lengths as a Parquet file: the state is the number of the frame and its negative.
fn episodes(first: i64, lengths: &[usize]) -> Vec<u8> {
    let rows: Vec<(i64, i64)> = (first..)
        .zip(lengths)
        .flat_map(|(episode, len)| (0..*len as i64).map(move |frame| (episode, frame)))
        .collect();
    let states = rows.iter().flat_map(|(episode, frame)| [(100 * episode + frame) as f32, -*frame as f32]);
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let states = FixedSizeListArray::new(item, 2, Arc::new(Float32Array::from_iter_values(states)), None);
    let number = |of: fn(&(i64, i64)) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    let columns = [
        ("episode_index", number(|row| row.0)),
        ("frame_index", number(|row| row.1)),
        ("state", Arc::new(states) as ArrayRef),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    // Row groups end within episodes.
    for start in (0..batch.num_rows()).step_by(7) {
        writer.write(&batch.slice(start, 7.min(batch.num_rows() - start))).unwrap();
        writer.flush().unwrap();
    }
    writer.into_inner().unwrap()
}

fn of_episodes(rows: &str, edges: Edges) -> IngestConfig {
    let windows = Windows {
        columns: [("state".to_owned(), rows.parse().unwrap())].into(),
        by: Some("episode_index".to_owned()),
        edges,
        ..Windows::default()
    };
    IngestConfig { window: Some(windows), ..sequential() }
}

#[test]
fn a_window_ends_with_its_episode_whatever_files_row_groups_and_threads_there_are() {
    // The second episode of the first file continues in the second file.
    let folder = directory(&[("0.parquet", episodes(0, &[9, 4])), ("1.parquet", episodes(1, &[6, 1, 20]))]);
    let config = of_episodes("-2..2", Edges::Repeat);
    let ingested = run(folder.path(), &config, 1).unwrap();
    assert_eq!(ingested.manifest.sample_count(), 40);
    let (states, pads) = (ingested.column("state"), ingested.column("state_is_pad"));
    let episode = ingested.integers("episode_index");
    let mut start = 0;
    for row in 0..40 {
        if episode[row] != episode[start] {
            start = row;
        }
        let end = row + episode[row..].iter().take_while(|other| **other == episode[row]).count();
        let states = states.as_fixed_size_list().value(row).as_primitive::<Float32Type>().values().to_vec();
        let pads = pads.as_fixed_size_list().value(row).as_primitive::<UInt8Type>().values().to_vec();
        let first = |row: usize| {
            let frame = ingested.integers("frame_index")[row];
            (100 * episode[row] + frame) as f32
        };
        for (place, offset) in (-2..2_i64).enumerate() {
            let wanted = row as i64 + offset;
            let inside = wanted.clamp(start as i64, end as i64 - 1);
            assert_eq!(states[2 * place], first(inside as usize), "row {row}, offset {offset}");
            assert_eq!(pads[place], u8::from(wanted != inside), "row {row}, offset {offset}");
        }
    }
    for threads in [2, 5] {
        let again = run(folder.path(), &config, threads).unwrap();
        assert_eq!(again.manifest.id(), ingested.manifest.id(), "{threads} threads");
    }
    let shuffled = IngestConfig { mix: Mix::Random, ..config };
    let mut rows = run(folder.path(), &shuffled, 2).unwrap().rows();
    let mut expected = ingested.rows();
    rows.sort();
    expected.sort();
    assert_eq!(rows, expected);
}

#[test]
fn whole_windows_are_those_that_fit_in_their_episode() {
    let folder = directory(&[("0.parquet", episodes(0, &[9, 3, 4]))]);
    let ingested = run(folder.path(), &of_episodes("-2..2", Edges::Drop), 2).unwrap();
    // Rows 2 to 7 of the first, none of the second, and row 2 of the third.
    assert_eq!(ingested.integers("frame_index"), [2, 3, 4, 5, 6, 7, 2]);
    assert_eq!(ingested.types().len(), 3);
    let mut config = of_episodes("0..4", Edges::Drop);
    config.window.as_mut().unwrap().stride = std::num::NonZeroU32::new(4);
    let clips = run(folder.path(), &config, 2).unwrap();
    assert_eq!(clips.integers("episode_index"), [0, 0, 2]);
    assert_eq!(clips.integers("frame_index"), [0, 4, 0]);
}
