//! Archives whose members belong together by key.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float32Type, Int16Type};
use proptest::prelude::*;
use shardfmt::manifest::Manifest;
use shardfmt::member::{Members, SCHEMA_MEMBER};

use super::*;

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a/0.jpg", picture(ImageFormat::Jpeg, 1)),
        ("a/0.cls", b"5\n".to_vec()),
        ("a/0.txt", "a cät".into()),
        ("a/0.json", br#"{"w": 6}"#.to_vec()),
        ("a/0.flac", vec![0, 1, 2]),
        ("a/0.mask.png", png(1)),
        ("b/1.jpg", picture(ImageFormat::Jpeg, 2)),
        ("b/1.cls", b"-3".to_vec()),
        ("b/1.txt", "a dog".into()),
        ("b/1.json", b"[]".to_vec()),
        ("b/1.flac", vec![]),
        ("b/1.mask.png", png(2)),
    ]
}

fn keyed() -> IngestConfig {
    IngestConfig { format: Some(Kind::WebDataset), ..sequential() }
}

fn ingested(members: &[(&str, Vec<u8>)], config: &IngestConfig) -> Result<Ingested, IngestError> {
    let (_directory, path) = one_file("data.tar", &tar(members));
    run(&path, config, 2)
}

fn refused(members: &[(&str, Vec<u8>)], config: &IngestConfig) -> String {
    let (_directory, path) = one_file("data.tar", &tar(members));
    refusal(&path, config)
}

fn columns(manifest: &Manifest) -> Vec<String> {
    manifest.schema.fields().iter().map(|field| field.name().clone()).collect()
}

/// A NumPy file.
fn npy(descr: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let length = u16::try_from(text.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes(), values].concat()
}

#[test]
fn members_of_a_key_are_a_sample_with_a_column_for_each_ending() {
    let (_directory, path) = one_file("data.tar", &tar(&samples()));
    let source = Source::open(&path, &sequential()).unwrap();
    assert_eq!((source.kind(), source.sample_count()), (Kind::WebDataset, Some(2)));
    let ingested = run_source(source, &sequential(), 2).unwrap();
    assert_eq!(columns(&ingested.manifest), ["key", "image", "label", "text", "json", "flac", "mask"]);
    assert_eq!(ingested.texts("key"), ["a/0", "b/1"]);
    assert_eq!(ingested.binaries("image"), [1, 2].map(|shade| picture(ImageFormat::Jpeg, shade)));
    assert_eq!(ingested.integers("label"), [5, -3]);
    assert_eq!(ingested.texts("text"), ["a cät", "a dog"]);
    assert_eq!(ingested.texts("json"), [r#"{"w": 6}"#, "[]"]);
    assert_eq!(ingested.binaries("flac"), [vec![0, 1, 2], vec![]]);
    assert_eq!(ingested.binaries("mask"), [png(1), png(2)]);
    assert!(ingested.manifest.schema.fields().iter().all(|field| !field.is_nullable()));
    let labels = ingested.manifest.shards[0].labels.clone().unwrap();
    assert_eq!(labels, [("-3", 1), ("5", 1)].map(|(label, count)| (label.into(), count)).into());
}

#[test]
fn archives_follow_each_other_and_may_use_a_key_again() {
    let shard = |shade: u8| tar(&[("0.cls", vec![b'0' + shade]), ("0.png", png(shade))]);
    let directory = directory(&[
        ("s-1.tar", shard(1)),
        ("s-0.tar.gz", gzip(&shard(0))),
        ("s-2.tar.zst", zstd(&shard(2))),
    ]);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), [0, 1, 2]);
    assert_eq!(ingested.texts("key"), ["0", "0", "0"]);
    assert_eq!(columns(&ingested.manifest), ["key", "label", "image"]);
    assert_eq!(ingested.provenance.inputs.len(), 3);
}

#[test]
fn a_folder_of_the_archive_can_be_taken_alone() {
    let config = under("b");
    let ingested = ingested(&samples(), &config).unwrap();
    assert_eq!(ingested.texts("key"), ["b/1"]);
}

#[test]
fn images_alone_are_labelled_by_folder_whatever_dots_their_names_have() {
    let images = [
        ("cat/frame.1.png", png(1)),
        ("cat/frame.2.png", png(2)),
        ("dog/frame.1.png", png(3)),
        ("notes.txt", b"x".to_vec()),
    ];
    let plain = ingested(&images, &sequential()).unwrap();
    assert_eq!(columns(&plain.manifest), ["image", "label", "path"]);
    assert_eq!(plain.integers("label"), [0, 0, 1]);
    // An image and its caption belong together; unless one says that they do not.
    let captioned = [("cat/1.png", png(1)), ("cat/1.txt", b"x".to_vec())];
    assert_eq!(columns(&ingested(&captioned, &sequential()).unwrap().manifest), ["key", "image", "text"]);
    let config = IngestConfig { format: Some(Kind::Archive), ..sequential() };
    assert_eq!(columns(&ingested(&captioned, &config).unwrap().manifest), ["image", "label", "path"]);
    let pairs = [("1.in.png", png(1)), ("1.out.png", png(2)), ("2.in.png", png(3)), ("2.out.png", png(4))];
    assert_eq!(columns(&ingested(&pairs, &keyed()).unwrap().manifest), ["key", "in", "out"]);
}

#[test]
fn endings_share_a_column_unless_they_get_in_each_others_way() {
    let png_and_jpg = [
        ("1.cls", b"1".to_vec()),
        ("1.png", png(1)),
        ("2.cls", b"1".to_vec()),
        ("2.jpg", picture(ImageFormat::Jpeg, 1)),
    ];
    assert_eq!(columns(&ingested(&png_and_jpg, &sequential()).unwrap().manifest), ["key", "label", "image"]);
    let both = [
        ("1.png", png(1)),
        ("1.jpg", picture(ImageFormat::Jpeg, 1)),
        ("1.seg.png", png(2)),
        ("1.seg.json", b"0".to_vec()),
    ];
    assert_eq!(
        columns(&ingested(&both, &sequential()).unwrap().manifest),
        ["key", "png", "jpg", "seg.png", "seg.json"]
    );
    assert!(refused(&[("1.key.txt", vec![]), ("1.cls", b"0".to_vec())], &sequential()).contains("same name"));
    let config = IngestConfig { types: [("id".to_owned(), "Utf8".to_owned())].into(), ..sequential() };
    let ids = [("1.id", b"n02-7".to_vec()), ("1.txt", b"x".to_vec())];
    assert_eq!(ingested(&ids, &config).unwrap().texts("id"), ["n02-7"]);
    assert!(refused(&ids, &sequential()).contains("\"1.id\" is no integer"));
    let config = IngestConfig { types: [("no".to_owned(), "Utf8".to_owned())].into(), ..sequential() };
    assert!(refused(&ids, &config).contains("no column \"no\""));
    assert!(refused(&[("a/1.png", png(1))], &config).contains("means nothing for images"));
}

#[test]
fn arrays_become_tensors_or_lists_or_stay_files() {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let shorts = |values: &[i16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let members = [
        ("1.x.npy", npy("<f4", "2, 1", &floats(&[1.0, 2.0]))),
        ("1.tokens.npy", npy("<i2", "3,", &shorts(&[1, 2, 3]))),
        ("1.odd.npy", npy("<i2", "1, 1", &shorts(&[7]))),
        ("2.x.npy", npy("<f4", "2, 1", &floats(&[3.0, 4.0]))),
        ("2.tokens.npy", npy("<i2", "0,", &[])),
        ("2.odd.npy", npy(">i2", "1, 1", &shorts(&[7]))),
    ];
    let ingested = ingested(&members, &keyed()).unwrap();
    assert_eq!(ingested.metadata("x", "ARROW:extension:metadata").as_deref(), Some(r#"{"shape":[2,1]}"#));
    let x = ingested.column("x");
    assert_eq!(x.as_fixed_size_list().values().as_primitive::<Float32Type>().values(), &[1.0, 2.0, 3.0, 4.0]);
    let tokens = ingested.column("tokens");
    let lists: Vec<Vec<i16>> = tokens
        .as_list::<i32>()
        .iter()
        .map(|list| list.unwrap().as_primitive::<Int16Type>().values().to_vec())
        .collect();
    assert_eq!(lists, [vec![1, 2, 3], vec![]]);
    assert_eq!(ingested.binaries("odd"), [members[2].1.clone(), members[5].1.clone()]);
    let cut = [("1.cls", b"1".to_vec()), ("1.x.npy", npy("<f4", "2, 1", &floats(&[1.0])))];
    assert!(refused(&cut, &sequential()).contains("\"1.x.npy\" has 4 bytes of values"));
    let none = [("1.cls", b"1".to_vec()), ("1.x.npy", b"no array".to_vec())];
    assert!(refused(&none, &sequential()).contains("\"1.x.npy\" is no NumPy array"));
}

#[test]
fn arrays_with_endless_brackets_in_their_headers_are_refused_at_once() {
    for (open, reason) in [("(", "brackets too deep"), ("[(", "brackets too deep"), ("{", "dictionary in a")]
    {
        let members =
            [("1.cls", b"1".to_vec()), ("1.x.npy", npy(&format!("', {}", open.repeat(900)), "1,", &[0]))];
        let text = refused(&members, &sequential());
        assert!(text.contains("\"1.x.npy\" is no NumPy array") && text.contains(reason), "{text}");
        let skipped = ingested(&members, &skipping());
        assert!(
            matches!(skipped, Err(IngestError::NoSamples { .. })),
            "{:?}",
            skipped.map(|done| done.left_out())
        );
    }
}

#[test]
fn a_sample_that_lacks_a_member_is_said_skipped_or_has_a_null() {
    let mut members = samples();
    members.extend([
        ("c/2.jpg", picture(ImageFormat::Jpeg, 3)),
        ("c/2.cls", b"9".to_vec()),
        ("c/2.more", vec![1]),
    ]);
    let text = refused(&members, &sequential());
    assert!(text.contains("1 of 3 samples have no \"text\", the first of them \"c/2\""), "{text}");
    let skipped = ingested(&members, &skipping());
    // No sample has all of them.
    assert!(
        matches!(skipped, Err(IngestError::NoSamples { .. })),
        "{:?}",
        skipped.map(|done| done.left_out())
    );
    members.pop();
    let skipped = ingested(&members, &skipping()).unwrap();
    assert_eq!(
        (skipped.texts("key"), skipped.left_out()),
        (vec!["a/0".to_owned(), "b/1".into()], vec!["c/2".to_owned()])
    );
    let config = IngestConfig { columns: Some(vec!["image".to_owned(), "label".to_owned()]), ..sequential() };
    assert_eq!(ingested(&members, &config).unwrap().integers("label"), [5, -3, 9]);
    let config = IngestConfig { columns: Some(vec!["lable".to_owned()]), ..sequential() };
    assert!(refused(&members, &config).contains("its columns are key, image, label, text"));
    let config = IngestConfig { allow_missing: true, ..sequential() };
    let ingested = ingested(&members, &config).unwrap();
    assert_eq!(ingested.integers("label"), [5, -3, 9]);
    let text = ingested.column("text");
    assert_eq!((text.null_count(), text.is_null(2)), (1, true));
    let is_nullable = |name: &str| ingested.manifest.schema.field_with_name(name).unwrap().is_nullable();
    assert!(is_nullable("text") && is_nullable("mask") && !is_nullable("image") && !is_nullable("key"));
}

#[test]
fn a_key_that_comes_again_is_refused_with_both_places() {
    let mut members = samples();
    members.push(("a/0.late", vec![1]));
    let text = refused(&members, &sequential());
    assert!(text.contains("\"a/0.late\" is of sample \"a/0\""), "{text}");
    let skipped = ingested(&members, &IngestConfig { allow_missing: true, ..skipping() }).unwrap();
    assert_eq!(skipped.texts("key"), ["a/0", "b/1"]);
    assert_eq!(skipped.left_out(), ["a/0"]);
    let twice = [("1.cls", b"1".to_vec()), ("1.cls", b"2".to_vec()), ("1.txt", vec![])];
    assert!(refused(&twice, &sequential()).contains("\"1.cls\" is there twice"));
}

#[test]
fn labels_that_lie_apart_from_their_images_are_not_lost() {
    // As `find` lists them, or as two loops wrote them: no sample has its members side by side.
    let images = [("a.png", png(1)), ("b.png", png(2))];
    let labels = [("a.cls", b"1".to_vec()), ("b.cls", b"2".to_vec())];
    for members in [[images.clone(), labels.clone()].concat(), [labels.clone(), images.clone()].concat()] {
        let text = refused(&members, &sequential());
        assert!(text.contains("is of sample \"a\", whose other members lie further up"), "{text}");
        assert!(text.contains("tar --sort=name"), "{text}");
        let lacking = ingested(&members, &skipping());
        assert!(matches!(lacking, Err(IngestError::NoSamples { .. })), "no sample is whole");
        let config = IngestConfig { allow_missing: true, ..skipping() };
        assert_eq!(ingested(&members, &config).unwrap().left_out(), ["a", "b"]);
        // The setting decides that these are images alone.
        let config = IngestConfig { format: Some(Kind::Archive), ..sequential() };
        assert_eq!(ingested(&members, &config).unwrap().manifest.sample_count(), 2);
    }
    // Images of one name and several endings are images, wherever they lie.
    let frames = [("a.1.png", png(1)), ("b.1.png", png(2)), ("a.2.png", png(3))];
    assert_eq!(columns(&ingested(&frames, &sequential()).unwrap().manifest), ["image", "path"]);
}

#[test]
fn what_is_wrong_with_a_member_is_said_with_its_name() {
    for (name, bytes, reason) in [
        ("1.cls", b"one".to_vec(), "is no integer"),
        ("1.txt", vec![0xff], "is not UTF-8"),
        ("1.json", b"{".to_vec(), "is no JSON"),
        ("1.png", b"no image".to_vec(), "cannot be decoded"),
    ] {
        let members = [("0.x", vec![]), (name, bytes), ("1.x", vec![])];
        let config = IngestConfig { allow_missing: true, ..sequential() };
        let text = refused(&members, &config);
        assert!(text.contains(name) && text.contains(reason), "{text}");
        let skipped = ingested(&members, &IngestConfig { allow_missing: true, ..skipping() }).unwrap();
        assert_eq!((skipped.texts("key"), skipped.left_out()), (vec!["0".to_owned()], vec!["1".to_owned()]));
    }
}

#[test]
fn a_sample_that_is_larger_than_a_row_may_be_is_refused_before_it_is_held() {
    let third = || vec![7; 3 << 19];
    let members = [
        ("1.a", vec![1]),
        ("1.b", vec![1]),
        ("1.c", vec![1]),
        ("2.a", third()),
        ("2.b", third()),
        ("2.c", third()),
        ("3.a", vec![3]),
        ("3.b", vec![3]),
        ("3.c", vec![3]),
    ];
    let text = refused(&members, &keyed());
    assert!(text.contains("\"2.c\" makes a sample of more than 4194304 bytes"), "{text}");
    let skipped = ingested(&members, &IngestConfig { format: Some(Kind::WebDataset), ..skipping() }).unwrap();
    assert_eq!(
        (skipped.texts("key"), skipped.left_out()),
        (vec!["1".into(), "3".into()], vec!["2.c".into()])
    );
}

/// The archives that an export writes.
fn exported(schema: &arrow::datatypes::SchemaRef, rows: &[Vec<u8>], per_tar: usize) -> Vec<Vec<u8>> {
    let message = shardfmt::manifest::schema_message(schema);
    let members = Members::new(schema.clone()).unwrap();
    let tars = rows.chunks(per_tar).enumerate().map(|(index, rows)| {
        let mut entries = vec![(SCHEMA_MEMBER.to_owned(), message.clone())];
        for (row, bytes) in rows.iter().enumerate() {
            let key = format!("{:06}", index * per_tar + row);
            let written = members.write(bytes).unwrap();
            entries.extend(
                written.into_iter().map(|member| (format!("{key}.{}", member.suffix), member.content)),
            );
        }
        tar(&borrowed(&entries))
    });
    tars.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn an_export_comes_back_to_the_bit(batch in shardd_strategies::record_batch(12), per_tar in 1..8usize) {
        let codec = RowCodec::new(batch.schema()).unwrap();
        let rows = canonical_rows(&codec, &batch);
        let tars = exported(&batch.schema(), &rows, per_tar);
        let names: Vec<String> = (0..tars.len()).map(|index| format!("samples-{index:06}.tar")).collect();
        let files: Vec<(&str, Vec<u8>)> = names.iter().map(String::as_str).zip(tars).collect();
        let directory = directory(&files);
        let ingested = run(directory.path(), &sequential(), 2).unwrap();
        prop_assert_eq!(&ingested.manifest.schema.fields, &batch.schema_ref().fields);
        prop_assert_eq!(ingested.rows(), rows);
    }
}

#[test]
fn archives_with_other_schemas_of_their_own_are_refused() {
    let batch = |name: &str| {
        let column: arrow::array::ArrayRef = std::sync::Arc::new(arrow::array::Int32Array::from(vec![1, 2]));
        RecordBatch::try_from_iter([(name, column)]).unwrap()
    };
    let export = |name: &str| {
        let batch = batch(name);
        exported(&batch.schema(), &canonical_rows(&RowCodec::new(batch.schema()).unwrap(), &batch), 2)
            .remove(0)
    };
    for other in [export("b"), tar(&[("0.a.cls", b"1".to_vec()), ("0.b.cls", b"1".to_vec())])] {
        let directory = directory(&[("1.tar", export("a")), ("2.tar", other)]);
        let text = refusal(directory.path(), &sequential());
        assert!(text.contains("2.tar") && text.contains("another schema"), "{text}");
        let skipped = run(directory.path(), &skipping(), 1).unwrap();
        assert_eq!((skipped.manifest.sample_count(), skipped.left_out()), (2, vec!["2.tar".to_owned()]));
    }
    let broken = tar(&[(SCHEMA_MEMBER, vec![0xff; 40]), ("0.a.cls", b"1".to_vec())]);
    let (_directory, path) = one_file("data.tar", &broken);
    assert!(refusal(&path, &sequential()).contains(SCHEMA_MEMBER));
    let schema = shardfmt::manifest::schema_message(&batch("a").schema());
    let misfit = tar(&[(SCHEMA_MEMBER, schema), ("0.a.cls", b"1".to_vec()), ("1.a.txt", b"1".to_vec())]);
    let (_directory, path) = one_file("data.tar", &misfit);
    assert!(refusal(&path, &sequential()).contains("\"1.a.txt\" has a type that column"));
    assert_eq!(run(&path, &skipping(), 1).unwrap().left_out(), ["1"]);
}
