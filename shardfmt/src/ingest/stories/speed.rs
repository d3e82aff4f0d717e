//! How fast each kind of table is read. Measures, so it runs on request only.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};

use super::*;

const ROWS: u32 = 1_000_000;

fn table() -> RecordBatch {
    let text = |row: u32| format!("text {}", row.wrapping_mul(2_654_435_761));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("label", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| i64::from(row % 10))))),
        ("value", Arc::new(Float32Array::from_iter_values((0..ROWS).map(|row| row as f32 / 8.0)))),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(text)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn ipc(table: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &table.schema(), options).unwrap();
    let slices = (0..table.num_rows()).step_by(1 << 16);
    slices.for_each(|from| writer.write(&table.slice(from, (table.num_rows() - from).min(1 << 16))).unwrap());
    writer.into_inner().unwrap()
}

fn npy() -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, 16), }}\n");
    let mut bytes = b"\x93NUMPY\x01\0".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..ROWS * 16).flat_map(|value| (value as f32).to_le_bytes()));
    bytes
}

#[test]
#[ignore = "measures: run with --ignored --nocapture"]
fn ingest_time_of_each_kind_of_table() {
    let table = table();
    let mut csv = arrow::csv::WriterBuilder::new().with_header(true).build(Vec::new());
    csv.write(&table).unwrap();
    let csv = csv.into_inner();
    let mut json = WriterBuilder::new().build::<_, LineDelimited>(Vec::new());
    json.write(&table).unwrap();
    let svm: String =
        (0..ROWS).map(|row| format!("{} 1:{row} 7:0.5 {}:2\n", row % 10, 8 + row % 99)).collect();
    let text = "the quick brown fox jumps over the lazy dog\n".repeat(ROWS as usize);
    let length = |length| IngestConfig { sequence_length: Some(length), ..IngestConfig::default() };
    let tokens = IngestConfig { tokenizer: Some(theirs("tokenizer.json")), ..length(1024) };
    let any = IngestConfig::default;
    let directory = directory(&[]);
    write_parquet(directory.path().join("t.parquet"), &table);
    let parquet = fs::read(directory.path().join("t.parquet")).unwrap();
    let files = [
        ("t.parquet", parquet, any()),
        ("t.arrow", ipc(&table, None), any()),
        ("t.zstd.arrow", ipc(&table, Some(CompressionType::ZSTD)), any()),
        ("t.csv.gz", gzip(&csv), any()),
        ("t.csv", csv, any()),
        ("t.jsonl", json.into_inner(), any()),
        ("t.npy", npy(), any()),
        ("t.svm", svm.into_bytes(), any()),
        ("t.txt", text.clone().into_bytes(), length(1024)),
        ("t-tokens.txt", text.into_bytes(), tokens),
    ];
    for (name, bytes, config) in files {
        let path = directory.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let mut line = format!("{name:<14} {:>6.1} MiB", bytes.len() as f64 / f64::from(1 << 20));
        let mut ids = Vec::new();
        for threads in [1, 2] {
            let start = Instant::now();
            let ingested = run(&path, &config, threads).unwrap();
            let took = start.elapsed().as_secs_f64();
            if threads == 1 {
                line += &format!("  {:>8} samples", ingested.manifest.sample_count());
            }
            line += &format!("  {threads} threads {took:>5.2} s");
            ids.push(ingested.manifest.id());
        }
        assert_eq!(ids[0], ids[1]);
        println!("{line}");
    }
}
