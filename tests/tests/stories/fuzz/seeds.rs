//! Seeds: small inputs that every target accepts, made of the golden files and of rows of many types.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::json::ReaderBuilder;
use serde_json::{Value, json};
use shardd_plan::Strata;
use shardfmt::{Commit, Manifest, Message, Operation, RowCodec, ShardWriter, VersionId};

use super::targets::Draw;

/// A schema as drawn from bytes, and rows of it.
const TABLES: &[(&str, &[u8], &str)] = &[
    ("numbers", &[3, 4, 0x88, 0x81, 2], r#"{"c0":1,"c1":2.5,"c2":true,"c3":-3} {"c0":-7,"c3":4}"#),
    ("texts", &[2, 21, 0x97, 22], r#"{"c0":"","c1":"é","c2":"00ff"} {"c0":"ab","c2":""}"#),
    (
        "lists",
        &[2, 24, 2, 0x99, 0x95, 26, 2, 3],
        r#"{"c0":[1,2,3],"c1":["a",null],"c2":[1,2,3]} {"c0":[],"c2":[4,5,6]}"#,
    ),
    (
        "nested",
        &[1, 0x9b, 1, 24, 27, 0, 21, 0x84, 28, 0x88],
        r#"{"c0":{"f0":[{"f0":"x"}],"f1":9},"c1":{"k":1.5,"l":null}} {"c1":{}}"#,
    ),
    (
        "times",
        &[3, 9, 0x8d, 0x91, 0],
        r#"{"c0":"2024-02-29","c1":"2024-02-29T01:02:03Z","c2":"12.345"} {"c0":"1969-12-31"}"#,
    ),
    ("nulls", &[1, 0, 0x81], r#"{} {"c1":false} {} {} {} {} {} {} {"c1":true}"#),
];

/// Target, name and bytes of every seed.
pub(crate) fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let key = [0, 0, 0, 21, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 99];
    let mut seeds = vec![
        ("archive", "folders", archive(&["a/1.bmp", "b/2.bmp", "a/3.bmp", "README.md"])),
        ("archive", "side-by-side", archive(&["1.bmp", "2.bmp"])),
        ("commit", "first", commit().to_bytes()),
        ("csv", "types", b"a,b,c,d\n1,2.5,x,true\n-3,,\"y, \"\"z\"\"\",false\n".to_vec()),
        ("csv", "dates", b"t,u\r\n2024-02-29,2024-02-29T01:02:03Z\r\n1969-12-31,\r\n".to_vec()),
        ("shard", "golden", golden("golden.arrow")),
        ("shard", "lz4", golden("golden.lz4.arrow")),
        ("shard", "zstd", golden("golden.zstd.arrow")),
        ("manifest", "golden", golden("golden.manifest.arrow")),
        ("grain", "golden", [&key, &golden("golden.grain")[..]].concat()),
        ("strata", "labels", strata(&["cat", "dog", "é"], 40)),
        ("strata", "many", strata(&["x"; 300], 301)),
        ("strata", "none", strata(&[""], 0)),
        ("text", "present", b"digits".to_vec()),
        ("text", "tag", b"digits@v1.0".to_vec()),
        ("text", "id", b"digits@3fa9c2".to_vec()),
        ("text", "back", b"digits@~2".to_vec()),
        ("text", "shares", b"1,0.1,0.25".to_vec()),
        ("text", "size", b"2.5MiB".to_vec()),
        ("tree", "golden", golden("golden.indexed.tree")),
    ]
    .into_iter()
    .map(|(target, name, bytes)| (target, name.to_owned(), bytes))
    .collect::<Vec<_>>();
    for (index, document) in plans().into_iter().enumerate() {
        seeds.push(("plan", format!("golden-{index}"), document));
    }
    for (name, drawn, rows) in TABLES {
        let rows = table(drawn, rows);
        let mut writer = ShardWriter::new(rows.schema()).expect("a plain schema");
        writer.push(&rows).expect("the rows fit");
        let shard = writer.finish().expect("there are rows");
        let sidecar = shard.sidecar.encode();
        let asked = [0, 1];
        let manifest = Manifest::new(
            rows.schema(),
            vec![shard.entry.clone()],
            json!({ "mix": "sequential", "seed": 7 }),
        );
        seeds.push(("manifest", (*name).to_owned(), manifest.encode()));
        seeds.push(("shard", (*name).to_owned(), shard.bytes.to_vec()));
        seeds.push((
            "sidecar",
            (*name).to_owned(),
            [drawn, &asked[..], &sidecar[..sidecar.len() - 32]].concat(),
        ));
        seeds.push(("row", (*name).to_owned(), [drawn, &canonical(&rows)[..]].concat()));
    }
    seeds
}

fn table(drawn: &[u8], rows: &str) -> RecordBatch {
    let schema = Draw::new(drawn).schema();
    let reader = ReaderBuilder::new(schema).build(Cursor::new(rows)).expect("a schema that JSON has");
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().expect("rows of the schema");
    batches.into_iter().next().expect("there are rows")
}

/// As the target `row` reads them.
fn canonical(rows: &RecordBatch) -> Vec<u8> {
    let codec = RowCodec::new(rows.schema()).expect("a plain schema");
    let mut bytes = vec![rows.num_rows() as u8];
    for row in 0..rows.num_rows() {
        let mut canonical = Vec::new();
        codec.encode(rows, row, &mut canonical).expect("a small row");
        bytes.push(u8::try_from(canonical.len()).expect("a small row"));
        bytes.extend(canonical);
    }
    bytes
}

/// A tar with a picture of one pixel under each name that ends so.
fn archive(names: &[&str]) -> Vec<u8> {
    let pixel = [
        &b"BM"[..],
        &[58, 0, 0, 0, 0, 0, 0, 0, 54, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 24, 0],
        &[0; 24],
        &[255, 128, 0, 0],
    ]
    .concat();
    let mut tar = tar::Builder::new(Vec::new());
    for name in names {
        let bytes = if name.ends_with(".bmp") { &pixel[..] } else { b"read me" };
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes).expect("memory takes everything");
    }
    tar.into_inner().expect("memory takes everything")
}

fn strata(names: &[&str], samples: u16) -> Vec<u8> {
    let of_sample: Vec<u16> = (0..samples).map(|sample| sample % names.len() as u16).collect();
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    Strata::new("label", names, &of_sample).expect("each is in one").encode()
}

fn commit() -> Commit {
    Commit {
        format: 2,
        dataset: "digits".parse().expect("a name"),
        version: VersionId::of(b"a manifest"),
        provenance: Some(shardfmt::Digest::of(b"a provenance")),
        parent: None,
        number: 1,
        time: 1_700_000_000,
        operation: Operation::RESHARD,
        message: "smaller shards".parse::<Message>().expect("a message"),
        samples: 1437,
        bytes: 114_960,
        shards: 1,
    }
}

/// The documents of the golden plans.
fn plans() -> Vec<Vec<u8>> {
    let golden: Value = serde_json::from_slice(&golden("plan-golden.json")).expect("golden plans are JSON");
    let mut found = Vec::new();
    documents(&golden, &mut found);
    found.dedup();
    found.truncate(8);
    found
}

fn documents(value: &Value, found: &mut Vec<Vec<u8>>) {
    match value {
        Value::Object(fields) if fields.contains_key("grain_rows") && fields.contains_key("format") => {
            found.push(value.to_string().into_bytes());
        }
        Value::Object(fields) => fields.values().for_each(|value| documents(value, found)),
        Value::Array(values) => values.iter().for_each(|value| documents(value, found)),
        _ => {}
    }
}

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shardfmt/testdata").join(name);
    fs::read(path).expect("a golden file")
}
