//! Record batches that a program gives, without any file.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::ipc::writer::StreamWriter;

use super::*;

fn batch(rows: std::ops::Range<i64>) -> RecordBatch {
    let texts = rows.clone().map(|row| Some(format!("text {row}")));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", Arc::new(Int64Array::from_iter_values(rows))),
        ("text", Arc::new(texts.collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn batches() -> Vec<RecordBatch> {
    vec![batch(0..10), batch(10..10), batch(10..20_000), batch(20_000..20_007)]
}

fn of(batches: Vec<io::Result<RecordBatch>>) -> Source {
    Source::of_batches("rows", batch(0..0).schema(), batches.into_iter(), &IngestConfig::default()).unwrap()
}

fn read(
    source: Source,
    config: &IngestConfig,
    resources: &Resources,
) -> Result<crate::Ingested, IngestError> {
    let read = Ingest::read(source, config, &[], resources, &NoProgress)?;
    Ok(read.write(None, &Kept::default(), &NoProgress)?.finish().remove(0))
}

#[test]
fn batches_make_the_shards_that_a_file_of_them_makes() {
    let config = IngestConfig::default();
    let given = of(batches().into_iter().map(Ok).collect());
    let given = read(given, &config, &Resources::threads(2)).unwrap();

    let mut stream = StreamWriter::try_new(Vec::new(), &batch(0..0).schema()).unwrap();
    batches().iter().for_each(|batch| stream.write(batch).unwrap());
    let file = Inputs::in_memory("rows", stream.into_inner().unwrap());
    let file = read(Source::new(file, &config).unwrap(), &config, &Resources::threads(1)).unwrap();
    assert_eq!(given.manifest, file.manifest);
    assert_eq!(given.provenance.inputs, file.provenance.inputs, "the digest is that of the stream");
}

#[test]
fn a_program_that_fails_makes_no_version() {
    let broken = vec![Ok(batch(0..10)), Err(io::Error::other("the generator raised"))];
    let error = read(of(broken), &IngestConfig::default(), &Resources::threads(1)).unwrap_err();
    assert!(matches!(error, IngestError::Read { .. }), "{error}");

    let other = RecordBatch::try_from_iter([("number", batch(0..2).column(0).clone())]).unwrap();
    let error = read(of(vec![Ok(batch(0..10)), Ok(other)]), &IngestConfig::default(), &Resources::threads(1));
    assert!(error.unwrap_err().to_string().contains("record batch 1 has other columns than the first"));
}

#[test]
fn rows_that_exceed_memory_are_kept_on_disk() {
    let text = |row: i64| Some(format!("{row:07}").repeat(1000));
    let large = move |rows: std::ops::Range<i64>| {
        let texts = rows.clone().map(text).collect::<StringArray>();
        let columns: Vec<(&str, ArrayRef)> =
            vec![("number", Arc::new(Int64Array::from_iter_values(rows))), ("text", Arc::new(texts))];
        Ok(RecordBatch::try_from_iter(columns).unwrap())
    };
    let many = (0..40).map(move |n| large(n * 400..(n + 1) * 400));
    let source = Source::of_batches("rows", batch(0..0).schema(), many, &IngestConfig::default()).unwrap();
    let little = Resources { memory: Resources::LEAST_MEMORY, ..Resources::threads(1) };
    let version = read(source, &IngestConfig::default(), &little).unwrap();
    assert_eq!(version.manifest.sample_count(), 16_000);
}
