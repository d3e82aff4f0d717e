//! Versions that grow.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};

use super::*;
use crate::{Amount, Table};

struct Desk {
    directory: tempfile::TempDir,
    memory: Memory,
}

impl Desk {
    fn new() -> Desk {
        Desk { directory: tempfile::tempdir().expect("a temporary directory"), memory: Memory::default() }
    }

    fn file(&self, name: &str, batch: &RecordBatch) -> PathBuf {
        let path = self.directory.path().join(name);
        write_parquet(&path, batch);
        path
    }

    fn append(
        &self,
        to: &Ingested,
        path: &Path,
        again: bool,
        threads: usize,
    ) -> Result<Ingested, AppendError> {
        let open = |config: &IngestConfig| Source::open(path, config);
        let (source, config) = open_to_append(to.base(), appending(to.base()), open).expect("a source");
        append(to.base(), source, config, again, &Resources::threads(threads), &self.memory, &NoProgress)
    }
}

#[test]
fn appended_samples_follow_those_that_were_there() {
    let desk = Desk::new();
    let (first, second) = (desk.file("a.parquet", &table(0..300)), desk.file("b.parquet", &table(300..400)));
    let old = made(&first, &config(Mix::Random, 2000), &desk.memory);
    let puts = desk.memory.puts();
    let new = desk.append(&old, &second, false, 2).expect("the same columns");
    assert_eq!(new.manifest.shards[..old.manifest.shards.len()], old.manifest.shards, "old shards stay");
    assert_eq!(
        desk.memory.puts() - puts,
        new.manifest.shards.len() - old.manifest.shards.len(),
        "and only new ones are written"
    );
    assert!(new.manifest.shards.len() > old.manifest.shards.len() + 2, "of the size of the old");
    assert_eq!(
        new.provenance.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(),
        ["a.parquet", "b.parquet"]
    );
    let found = diff(old.base(), new.base(), &desk.memory, &NoProgress).expect("intact");
    assert_eq!(found.samples, Change { kept: 300, added: 100, removed: 0 });
    assert_eq!((found.shards.removed, found.inputs.map(|inputs| inputs.added)), (0, Some(1)));
    let mut appended = rows(&new.manifest, &desk.memory).split_off(300);
    assert_ne!(appended, rows_of(&table(300..400)), "they are mixed");
    appended.sort();
    let mut expected = rows_of(&table(300..400));
    expected.sort();
    assert_eq!(appended, expected);

    let again = desk.append(&old, &second, false, 1).expect("once more");
    assert_eq!(again.manifest.id(), new.manifest.id(), "the same base and input, on any number of threads");
    let third = desk.file("c.parquet", &table(400..450));
    let further = desk.append(&new, &third, false, 2).expect("the same columns");
    let seeds = [&old, &new, &further].map(|version| settings_of(version).seed);
    assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2], "{seeds:?}");
    assert_eq!(settings_of(&further).shard_size, Some(ByteSize(2000)));
}

#[test]
fn what_is_there_already_is_refused_unless_it_is_wanted_twice() {
    let desk = Desk::new();
    let (first, second) = (desk.file("a.parquet", &table(0..30)), desk.file("b.parquet", &table(30..40)));
    let old = made(&first, &config(Mix::Sequential, 1000), &desk.memory);
    let copy = desk.directory.path().join("copy.parquet");
    std::fs::copy(&first, &copy).expect("room");
    let refused = refuse_file(old.base(), &copy, None).expect_err("it is in the version");
    assert!(matches!(&refused, AppendError::Known { there, .. } if there.contains("a.parquet")), "{refused}");
    assert!(refused.to_string().contains("--again"), "{refused}");
    assert!(refuse_file(old.base(), &second, None).is_ok());
    assert!(refuse_file(old.base(), desk.directory.path(), None).is_ok(), "nothing is known of a folder yet");
    let folder = desk.directory.path().join("folder");
    std::fs::create_dir(&folder).expect("room");
    std::fs::rename(&copy, folder.join("x.parquet")).expect("room");
    assert!(matches!(desk.append(&old, &folder, false, 2), Err(AppendError::Known { .. })));
    let twice = desk.append(&old, &folder, true, 2).expect("it is wanted");
    assert_eq!(twice.manifest.sample_count(), 60);
    let found = diff(old.base(), twice.base(), &desk.memory, &NoProgress).expect("intact");
    assert_eq!(found.samples, Change { kept: 30, added: 30, removed: 0 });
}

#[test]
fn other_columns_are_refused_with_the_difference() {
    let desk = Desk::new();
    let old = made(&desk.file("a.parquet", &table(0..30)), &config(Mix::Random, 1000), &desk.memory);
    let other = table(0..5).project(&[0, 1]).expect("its columns");
    let refused =
        desk.append(&old, &desk.file("b.parquet", &other), false, 2).expect_err("a column is missing");
    assert!(refused.to_string().contains("b.parquet: column \"blob\" (Binary) is missing"), "{refused}");
    let columns = table(0..5).columns().to_vec();
    let label = arrow::compute::cast(&columns[0], &DataType::Int32).expect("small numbers");
    let fields = vec![
        Field::new("label", DataType::Int32, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("blob", DataType::Binary, false),
    ];
    let narrow = RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        vec![label, columns[1].clone(), columns[2].clone()],
    );
    let path = desk.file("c.parquet", &narrow.expect("it fits"));
    let refused = desk.append(&old, &path, false, 2).expect_err("another type");
    assert!(refused.to_string().contains("column \"label\" is Int32 instead of Int64"), "{refused}");
}

#[test]
fn columns_keep_their_promise_never_to_be_null() {
    let desk = Desk::new();
    let old = made(&desk.file("a.parquet", &table(0..30)), &config(Mix::Sequential, 1000), &desk.memory);
    // `label` may be null in this file, and `text` may not.
    let with = |labels: arrow::array::Int64Array, texts: Vec<&str>| {
        let (labels, texts) = (Arc::new(labels), Arc::new(arrow::array::StringArray::from(texts)));
        let fields = vec![
            Field::new("label", DataType::Int64, true),
            Field::new("text", DataType::Utf8, false),
            Field::new("blob", DataType::Binary, false),
        ];
        let blob = table(0..2).column(2).clone();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![labels, texts, blob]).expect("it fits")
    };
    let full = with(vec![7, 8].into(), vec!["a", "b"]);
    let new = desk.append(&old, &desk.file("full.parquet", &full), false, 2).expect("nothing is null");
    assert_eq!(new.manifest.schema, old.manifest.schema);
    let added = new.manifest.shards.last().expect("a new shard");
    let shard = read_shard(&desk.memory, added).expect("put");
    assert_eq!(
        shard.schema().fields(),
        old.manifest.schema.fields(),
        "every shard has the columns of the version"
    );
    assert_eq!(rows(&new.manifest, &desk.memory)[30..], rows_of(&full));
    let gap = with(vec![Some(7), None].into(), vec!["a", "b"]);
    let refused = desk.append(&old, &desk.file("gap.parquet", &gap), false, 2).expect_err("a null");
    let said = refused.to_string();
    assert!(
        said.contains("gap.parquet") && said.contains("\"label\"") && said.contains("never null"),
        "{said}"
    );
}

/// The version with the rows after its own, as workers of an engine append them: in parts, the last part first.
fn append_parts(to: &Ingested, rows: &RecordBatch, desk: &Desk) -> Result<Ingested, AppendError> {
    let table = Table::appending("the table", rows.schema(), to.base(), None)?;
    let mut all = Amount::default();
    let mut dealt: BTreeMap<u32, Vec<RecordBatch>> = BTreeMap::new();
    for row in (0..rows.num_rows()).rev() {
        all += table.measure(&rows.slice(row, 1))?;
    }
    let shards = all.shards(table.config());
    for row in (0..rows.num_rows()).rev() {
        let row = rows.slice(row, 1);
        dealt.entry(table.deal(&row, shards)?[0]).or_default().push(row);
    }
    let mut entries = Vec::new();
    for parts in dealt.values() {
        let (index, shard) = table.shard(parts, shards)?.expect("it has rows");
        entries.push((index, shard.entry.clone()));
        desk.memory.put_shard(shard).expect("memory has room");
    }
    Ok(table.appended(to.base(), all, entries)?)
}

#[test]
fn rows_that_an_engine_appends_make_the_version_that_an_append_of_their_file_makes() {
    let desk = Desk::new();
    let (first, second) = (desk.file("a.parquet", &table(0..300)), table(250..400));
    let old = made(&first, &config(Mix::Hash, 2000), &desk.memory);
    let expected = desk.append(&old, &desk.file("b.parquet", &second), false, 2).expect("the same columns");
    let new = append_parts(&old, &second, &desk).expect("the same columns");
    assert!(new.manifest.shards.len() > old.manifest.shards.len() + 2);
    assert_eq!(new.manifest, expected.manifest);
    assert_eq!(settings_of(&new), settings_of(&expected));
    assert_eq!(new.provenance.inputs, old.provenance.inputs, "an engine names no inputs");
    // Further rows follow these, in a column that may be null here and has no nulls.
    let third = table(400..450);
    let nullable = |field: &Arc<Field>| Field::clone(field).with_nullable(true);
    let fields: Vec<Field> = third.schema().fields().iter().map(nullable).collect();
    let schema = Arc::new(Schema::new(fields));
    let third = RecordBatch::try_new(schema, third.columns().to_vec()).expect("it fits");
    let expected = desk.append(&expected, &desk.file("c.parquet", &third), false, 2).expect("no nulls");
    let further = append_parts(&new, &third, &desk).expect("no nulls");
    assert_eq!(further.manifest, expected.manifest);

    let label = arrow::array::Int64Array::from(vec![None, Some(1)]);
    let mut columns = third.slice(0, 2).columns().to_vec();
    columns[0] = Arc::new(label);
    let gap = RecordBatch::try_new(third.schema(), columns).expect("it fits");
    let refused = append_parts(&old, &gap, &desk).expect_err("a null").to_string();
    assert!(refused.contains("\"label\" has nulls"), "{refused}");
    let narrow = second.project(&[0, 1]).expect("its columns");
    let refused = append_parts(&old, &narrow, &desk).expect_err("a column is missing").to_string();
    assert!(refused.contains("\"blob\" (Binary) is missing"), "{refused}");
    let random = made(&first, &config(Mix::Random, 2000), &desk.memory);
    let refused = append_parts(&random, &second, &desk).expect_err("rows have no numbers").to_string();
    assert!(refused.contains("come in no order") && refused.contains("shardctl append"), "{refused}");
}

#[test]
fn shards_that_are_equal_are_listed_as_often_as_they_occur() {
    let desk = Desk::new();
    let old = made(&desk.file("a.parquet", &table(0..30)), &config(Mix::Sequential, 60), &desk.memory);
    let first = table(1..2);
    let fields: Vec<Field> = first.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    let never_null = fields.into_iter().map(|field| field.with_nullable(false)).collect::<Vec<_>>();
    let schema = Arc::new(Schema::new(never_null));
    let same = RecordBatch::try_new(schema.clone(), first.columns().to_vec()).expect("it has no nulls");
    let twice = arrow::compute::concat_batches(&schema, [&same, &same]).expect("one schema");
    let new = desk.append(&old, &desk.file("b.parquet", &twice), false, 2).expect("nothing is null");
    let [.., one, other] = &new.manifest.shards[..] else { panic!("shards of a row each") };
    assert_eq!((one.rows, one), (1, other));
    assert_eq!(rows(&new.manifest, &desk.memory)[30..], rows_of(&twice));
}

#[test]
fn tokens_are_appended_with_the_tokenizer_that_made_those_that_are_there() {
    let desk = Desk::new();
    let file = |name: &str, text: &[u8]| {
        let path = desk.directory.path().join(name);
        std::fs::write(&path, text).expect("room");
        path
    };
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/sources/tokenizer.json");
    let json = std::fs::read(&theirs).expect("a tokenizer");
    let (moved, other) = (file("moved.json", &json), file("tokenizer.json", &[&json[..], b"\n"].concat()));
    let (first, second) = (file("a.txt", b"one and two"), file("b.txt", b"two and three"));
    let tokens = IngestConfig { tokenizer: Some(theirs), ..config(Mix::Sequential, 1000) };
    let old = made(&first, &tokens, &desk.memory);
    let append = |path: &Path, tokenizer: &Path| {
        let config = IngestConfig { tokenizer: Some(tokenizer.to_owned()), ..appending(old.base()) };
        let source = Source::open(path, &config).expect("a text");
        append(old.base(), source, config, false, &Resources::threads(1), &desk.memory, &NoProgress)
    };
    let new = append(&second, &moved).expect("the same tokenizer, wherever it lies");
    let names: Vec<&str> = new.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["a.txt", "tokenizer.json", "b.txt"]);
    assert!(matches!(append(&first, &moved), Err(AppendError::Known { .. })));
    let refused = append(&second, &other).expect_err("another, though of the name on record");
    assert!(matches!(refused, AppendError::Tokenizer { .. }), "{refused}");
    assert!(refused.to_string().contains("give the tokenizer.json"), "{refused}");
}

#[test]
fn what_is_appended_is_compressed_as_the_dataset_is() {
    let desk = Desk::new();
    let compression = "zstd".parse().expect("a compression");
    let zstd = IngestConfig { compression, ..config(Mix::Random, 2000) };
    let old = made(&desk.file("a.parquet", &table(0..100)), &zstd, &desk.memory);
    let new =
        desk.append(&old, &desk.file("b.parquet", &table(100..150)), false, 2).expect("the same columns");
    assert_eq!(settings_of(&new).compression, compression);
    let plain = made(&desk.file("c.parquet", &table(100..150)), &config(Mix::Random, 2000), &desk.memory);
    let bytes = |shards: &[ShardEntry]| shards.iter().map(|shard| shard.bytes).sum::<u64>();
    assert!(bytes(&new.manifest.shards[old.manifest.shards.len()..]) < bytes(&plain.manifest.shards));
}

#[test]
fn another_folder_of_the_same_archive_is_something_else() {
    let desk = Desk::new();
    let path = desk.directory.path().join("all.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&path).expect("a file"));
    for (name, text) in
        [("train/1.txt", "one"), ("train/1.cls", "1"), ("test/2.txt", "two"), ("test/2.cls", "2")]
    {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, name, text.as_bytes()).expect("written");
    }
    tar.into_inner().expect("written");
    let under = |folder: &str, config| IngestConfig { under: Some(folder.to_owned()), ..config };
    let old = made(&path, &under("train", config(Mix::Sequential, 2000)), &desk.memory);
    let append = |to: &Ingested, folder: &str| {
        let config = under(folder, appending(to.base()));
        refuse_file(to.base(), &path, Some(folder))?;
        let source = Source::open(&path, &config).expect("a source");
        append(to.base(), source, config, false, &Resources::threads(1), &desk.memory, &NoProgress)
    };
    assert!(matches!(append(&old, "train/"), Err(AppendError::Known { .. })));
    let new = append(&old, "test").expect("other samples");
    assert_eq!(new.manifest.sample_count(), 2);
    let twice = append(&new, "test").expect_err("its samples are there").to_string();
    assert!(twice.contains("--again"), "{twice}");
}
