//! NumPy: files that it wrote, and arrays of any shape.

use npyz::npz::NpzWriter;
use npyz::zip::CompressionMethod;
use npyz::zip::write::FileOptions;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// An `.npy` as NumPy writes it.
fn npy(descr: &str, is_fortran: bool, shape: &[usize], values: &[u8]) -> Vec<u8> {
    let order = if is_fortran { "True" } else { "False" };
    let shape: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values);
    bytes
}

fn npz(arrays: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = NpzWriter::new(Cursor::new(Vec::new()));
    for (name, array) in arrays {
        let options = FileOptions::default().compression_method(method);
        writer.zip_writer().start_file(format!("{name}.npy"), options).unwrap();
        writer.zip_writer().write_all(array).unwrap();
    }
    writer.zip_writer().finish().unwrap().into_inner()
}

fn shape_of(ingested: &Ingested, column: &str) -> Option<Value> {
    let metadata = ingested.metadata(column, "ARROW:extension:metadata")?;
    Some(serde_json::from_str::<Value>(&metadata).unwrap()["shape"].clone())
}

#[test]
fn arrays_that_numpy_saved_keep_their_types() {
    for name in ["plain.npz", "compressed.npz"] {
        let ingested = run(&theirs(name), &sequential(), 2).unwrap();
        let types = [
            ("image", "FixedSizeList(6 x non-null UInt8)"),
            ("label", "Int64"),
            ("big", "Float32"),
            ("half", "Float16"),
            ("flag", "Boolean"),
            ("name", "Utf8"),
            ("raw", "Binary"),
            ("time", "Timestamp(ms)"),
        ];
        assert_eq!(ingested.types(), types.map(|(name, text)| (name.to_owned(), text.to_owned())));
        assert_eq!(shape_of(&ingested, "image"), Some(json!([2, 3])));
        assert_eq!(
            ingested.json()[4],
            json!({
                "image": [24, 25, 26, 27, 28, 29], "label": 4, "big": 2.0, "half": 1.0, "flag": true, "name": "𝄞",
                "raw": "0078", "time": "2020-01-04T00:00:00"
            })
        );
        assert_eq!(ingested.json()[0]["time"], Value::Null);
        assert_eq!(ingested.texts("name"), ["", "a", "bc", "é", "𝄞", "last"]);
    }
    let structured = run(&theirs("structured.npy"), &sequential(), 2).unwrap();
    assert_eq!(shape_of(&structured, "place"), Some(json!([2])));
    assert_eq!(
        structured.json()[3],
        json!({"id": 3, "place": [3.0, -3.0], "text": "abc", "inner": {"a": 3, "b": 1.5}})
    );
    let fortran = run(&theirs("fortran.npy"), &sequential(), 2).unwrap();
    assert_eq!(fortran.json()[1], json!({"data": [6, 7, 8, 9, 10, 11]}));
    assert_eq!(shape_of(&fortran, "data"), Some(json!([3, 2])));
    assert!(refusal(&theirs("complex.npy"), &sequential()).contains("complex numbers"));
    assert!(refusal(&theirs("objects.npy"), &sequential()).contains("Python objects"));
}

#[test]
fn files_of_a_directory_follow_each_other() {
    let file = |from: u8| npy("'|u1'", false, &[2, 2], &[from, from + 1, from + 2, from + 3]);
    let directory = directory(&[("b.npy", file(5)), ("a.npy", file(1)), ("notes.txt", Vec::new())]);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    let rows: Vec<Value> = [[1, 2], [3, 4], [5, 6], [7, 8]].iter().map(|row| json!({"data": row})).collect();
    assert_eq!((ingested.json(), ingested.skipped), (rows, 1));
    fs::write(directory.path().join("c.npy"), npy("'<i8'", false, &[1], &[0; 8])).unwrap();
    let text = refusal(directory.path(), &sequential());
    assert!(
        text.contains("c.npy") && text.contains("unlike a.npy") || text.contains("go into one .npz"),
        "{text}"
    );
    let ingested = run(directory.path(), &skipping(), 2).unwrap();
    assert_eq!((ingested.json().len(), ingested.skipped_names()), (4, vec!["c.npy"]));
}

#[test]
fn what_is_no_array_is_refused_by_name() {
    let good = || npy("'<i2'", false, &[3], &[0; 6]);
    let huge = npy("'<i2'", false, &[1 << 40], &[0; 6]);
    let stored = CompressionMethod::Stored;
    let mut cut_off = npz(&[("x", good())], CompressionMethod::Deflated);
    cut_off.truncate(60);
    let mut changed = npz(&[("x", good())], stored);
    let at = changed.windows(6).position(|six| six == [0; 6]).unwrap();
    changed[at] = 1;
    let other = npy("'<i2'", false, &[2], &[0; 4]);
    let directory = directory(&[
        ("cut.npy", good()[..good().len() - 1].to_vec()),
        ("huge.npy", huge.clone()),
        ("huge.npz", npz(&[("x", huge)], CompressionMethod::Deflated)),
        ("cut.npz", cut_off),
        ("changed.npz", changed),
        ("lengths.npz", npz(&[("x", good()), ("y", other)], stored)),
        ("none.npz", npz(&[], stored)),
        ("empty.npy", npy("'<i2'", false, &[0, 2], &[])),
        ("nothing.npy", Vec::new()),
        ("long.npy", npy("'<f16'", false, &[1], &[0; 16])),
        ("day.npy", npy("'<M8[D]'", false, &[1], &[0; 8])),
        ("text.npy", npy("'<U1'", false, &[1], &[0, 0xd8, 0, 0])),
    ]);
    let refused = |name: &str, words: &str| {
        let text = refusal(&directory.path().join(name), &sequential());
        assert!(text.contains(name) && text.contains(words), "{words:?} not in {text}");
    };
    refused("cut.npy", "not those of a shape (3)");
    refused("huge.npy", "not those of a shape (1099511627776)");
    refused("huge.npz", "x: its");
    refused("cut.npz", "NumPy");
    refused("changed.npz", "checksum");
    refused("lengths.npz", "y has 2 rows, the first array 3");
    refused("none.npz", "no rows");
    refused("empty.npy", "no rows");
    refused("nothing.npy", "too short");
    refused("long.npy", "no type in Arrow");
    refused("day.npy", "times of");
    refused("text.npy", "(rows 0..1: a text of it has a code point that is no character)");
}

#[test]
fn arrays_that_unpack_to_next_to_nothing_but_zeros_are_refused() {
    // Each of them might be right, but not all together.
    let zeros = || npy("'|u1'", false, &[2, 1 << 19], &[0; 1 << 20]);
    let bomb = npz(&["a", "b", "c", "d"].map(|name| (name, zeros())), CompressionMethod::Deflated);
    let few = npz(&["a"].map(|name| (name, zeros())), CompressionMethod::Deflated);
    let directory = directory(&[("bomb.npz", bomb), ("few.npz", few)]);
    let text = refusal(&directory.path().join("bomb.npz"), &sequential());
    assert!(text.contains("bomb.npz") && text.contains("unpacks from"), "{text}");
    assert_eq!(run(&directory.path().join("few.npz"), &sequential(), 1).unwrap().manifest.sample_count(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Rows are the same however the values lie, in a file of their own or in an archive.
    #[test]
    fn rows_do_not_depend_on_the_layout(shape in prop::collection::vec(1..5usize, 1..5), is_big: bool, rows in 1..300usize) {
        let shape: Vec<usize> = std::iter::once(rows).chain(shape).collect();
        let count: usize = shape.iter().product();
        let value = |index: usize| (index as u32).wrapping_mul(2_654_435_761);
        let bytes = |value: u32| if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
        let descr = if is_big { "'>u4'" } else { "'<u4'" };
        let c: Vec<u8> = (0..count).flat_map(|index| bytes(value(index))).collect();
        let mut fortran = vec![0; 4 * count];
        for index in 0..count {
            // The indices of this value, and where the order with the first as the fastest puts it.
            let (mut rest, mut place, mut stride) = (index, 0, count);
            for &size in shape.iter().rev() {
                stride /= size;
                place += rest % size * stride;
                rest /= size;
            }
            fortran[4 * place..4 * place + 4].copy_from_slice(&bytes(value(index)));
        }
        let (c, fortran) = (npy(descr, false, &shape, &c), npy(descr, true, &shape, &fortran));
        let directory = directory(&[
            ("c.npz", npz(&[("data", c.clone())], CompressionMethod::Stored)),
            ("f.npz", npz(&[("data", fortran.clone())], CompressionMethod::Deflated)),
            ("c.npy", c),
            ("f.npy", fortran),
        ]);
        let rows = |name: &str| run(&directory.path().join(name), &sequential(), 2).unwrap().rows();
        let expected = rows("c.npy");
        let expected_json = run(&directory.path().join("c.npy"), &sequential(), 1).unwrap().json();
        prop_assert_eq!(&expected_json[0]["data"][0], &json!(value(0)));
        for name in ["f.npy", "c.npz", "f.npz"] {
            prop_assert_eq!(&rows(name), &expected);
        }
    }
}
