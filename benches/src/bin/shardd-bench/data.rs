//! Samples on one machine: gathering and verifying them, their order, manifests, ingest, and loaders.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use arrow::array::{ArrayRef, FixedSizeBinaryArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use shardd_benches::pairs::{Pair, Pairs};
use shardd_benches::versions::images;
use shardd_benches::{noise, picks};
use shardd_client::loader::{CacheChoice, Loader, LoaderConfig, LoaderSource};
use shardd_client::shared_cache::SlotTables;
use shardd_ingest::{IngestConfig, NoProgress, Resources, Source};
use shardd_plan::{Epoch, Plan, PlanDocument, PlanOptions, Shape, SlotTable};
use shardd_store::catalog::{Catalog, CatalogStore, CommitNote, LocalCatalog};
use shardfmt::grain::{self, Grain};
use shardfmt::manifest::{LocalManifest, tree_of};
use shardfmt::{
    GrainKey, GrainTree, Manifest, ManifestFile, Operation, RowCodec, RowDigest, ShardId, ShardWriter,
    VersionId,
};

/// More than the caches of most processors hold.
const LARGE: usize = 64 << 20;
const BATCH: usize = 256;

/// Samples of `bytes` bytes without a pattern, each with its number.
fn samples(count: usize, bytes: usize) -> Result<RecordBatch> {
    let width = i32::try_from(bytes)?;
    let fields = [
        Field::new("sample", DataType::FixedSizeBinary(width), false),
        Field::new("label", DataType::Int64, false),
    ];
    let values: ArrayRef = Arc::new(FixedSizeBinaryArray::try_new(width, noise(count * bytes).into(), None)?);
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count as i64));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), vec![values, labels])?)
}

/// Batches of random rows, beside copies of the same rows into a buffer that stays, as `np.take(…, out=…)` makes them.
pub(crate) fn gather(pairs: &Pairs, bytes: usize) -> Result<Pair> {
    let count = LARGE / bytes;
    let rows = samples(count, bytes)?;
    let codec = RowCodec::new(rows.schema())?;
    let encoder = codec.encoder(&rows)?;
    let mut canonical = vec![];
    for row in 0..count {
        encoder.encode(row, &mut canonical)?;
    }
    let row_bytes = canonical.len() / count;
    let row = |number: usize| &canonical[number * row_bytes..(number + 1) * row_bytes];
    let chosen = picks(BATCH * 256, count);
    let (mut own_batches, mut other_batches) = (chosen.chunks(BATCH).cycle(), chosen.chunks(BATCH).cycle());
    let mut out = vec![0; BATCH * row_bytes];
    let gathered =
        || codec.decode(own_batches.next().expect("endless").iter().map(|n| row(*n))).expect("our rows");
    Ok(pairs.measure(gathered, || {
        let numbers = other_batches.next().expect("endless");
        out.chunks_exact_mut(row_bytes).zip(numbers).for_each(|(into, n)| into.copy_from_slice(row(*n)));
        black_box(&out)[0]
    }))
}

/// The check of a grain on its arrival, beside a digest of each of its rows.
pub(crate) fn verify(pairs: &Pairs) -> Result<Pair> {
    let (shard_rows, grain_rows) = (1024_u32, 16_u32);
    let bytes = noise(shard_rows as usize * 800);
    let rows: Vec<&[u8]> = bytes.chunks(800).collect();
    let digests: Vec<RowDigest> = rows.iter().map(|row| RowDigest::of(row)).collect();
    let tree = GrainTree::new(&digests, grain_rows);
    let own = &rows[..grain_rows as usize];
    let grain = grain::build(own.iter().copied(), &tree.path(0));
    let key = GrainKey { shard: ShardId::of(b"a shard"), rows: grain_rows, index: 0 };
    let verified = || {
        let grain = Grain::parse(black_box(&grain)).expect("well formed");
        grain.verify(key, shard_rows, tree.root()).expect("true");
    };
    Ok(pairs.measure(verified, || own.iter().for_each(|row| _ = black_box(blake3::hash(black_box(row))))))
}

/// A plan over shards of the same number of rows.
fn plan(shards: usize, shard_rows: u32, options: PlanOptions) -> Result<Plan> {
    let rows = vec![shard_rows; shards];
    let row_bytes = shards as u64 * u64::from(shard_rows) * 110_000;
    let shape = Shape { shard_rows: rows, row_bytes };
    let document = PlanDocument::with_defaults(VersionId::of(b"a version"), &shape, options)?;
    Ok(Plan::new(document, &shape.shard_rows)?)
}

/// The order of an epoch after the first, beside a shuffle of as many numbers (Fisher and Yates).
pub(crate) fn plan_order(pairs: &Pairs) -> Result<Pair> {
    let plan = plan(100, 1000, PlanOptions { grain_rows: Some(1), ..PlanOptions::default() })?;
    let mut numbers: Vec<u64> = (0..plan.sample_count()).collect();
    let mut state = 1_u64;
    let ordered = || {
        let mut table = SlotTable::initial(&plan);
        table.advance(&plan);
        table
    };
    Ok(pairs.measure(ordered, || {
        for last in (1..numbers.len()).rev() {
            // Of Knuth's generator MMIX.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            numbers.swap(last, ((u128::from(state) * (last as u128 + 1)) >> 64) as usize);
        }
        black_box(&numbers)[0]
    }))
}

/// The sample at a position of epoch 5 without a table, beside ten digests of 64 bytes.
pub(crate) fn plan_lookup(pairs: &Pairs) -> Result<Pair> {
    let plan = plan(3000, 427, PlanOptions::default())?;
    let (mut position, block) = (0, noise(64));
    let found = || {
        position = (position + 7919) % plan.sample_count();
        plan.sample_at(Epoch(5), position)
    };
    Ok(pairs.measure(found, || (0..10).for_each(|_| _ = black_box(blake3::hash(black_box(&block))))))
}

const SHARDS: u64 = 20_000;

/// From opening a manifest to the shard of a sample and the order's inputs, beside reading all of its bytes.
pub(crate) fn manifest_open(pairs: &Pairs) -> Result<Pair> {
    let dir = tempfile::tempdir()?;
    let local = LocalManifest { file: dir.path().join("m.arrow"), tree: dir.path().join("m.tree") };
    let bytes = images(SHARDS).encode();
    fs::write(&local.file, &bytes)?;
    fs::write(&local.tree, tree_of(&bytes).context("a long manifest has a tree")?)?;
    let id = VersionId::of(&bytes);
    let found = || {
        let file = ManifestFile::open(id, local.clone()).expect("our manifest");
        (file.find_sample(5_000_000).expect("a sample"), file.shard_rows().expect("rows"))
    };
    Ok(pairs.measure(found, || fs::read(&local.file).expect("it is there")))
}

/// A whole manifest from its bytes, beside the digest of these.
pub(crate) fn manifest_decode(pairs: &Pairs) -> Result<Pair> {
    let bytes = images(SHARDS / 10).encode();
    Ok(pairs.measure(|| Manifest::decode(&bytes).expect("our manifest"), || blake3::hash(black_box(&bytes))))
}

/// Puts shards of samples into a store in this directory; the document of a plan of them.
fn stored(dir: &Path, shards: usize, shard_rows: usize, bytes: usize) -> Result<PlanDocument> {
    let store = LocalCatalog::open(dir)?;
    let rows = samples(shards * shard_rows, bytes)?;
    let mut entries = vec![];
    for shard in 0..shards {
        let mut writer = ShardWriter::new(rows.schema())?;
        writer.push(&rows.slice(shard * shard_rows, shard_rows))?;
        let shard = writer.finish()?;
        store.put_shard(&shard)?;
        entries.push(shard.entry);
    }
    let manifest = Manifest::new(rows.schema(), entries, serde_json::json!({}));
    store.commit(&"samples".parse()?, None, &manifest, &CommitNote::of(Operation::INGEST))?;
    let shape = Shape { shard_rows: vec![shard_rows as u32; shards], row_bytes: manifest.row_bytes() };
    Ok(PlanDocument::with_defaults(manifest.id(), &shape, PlanOptions::default())?)
}

/// An epoch through a loader that is opened for it, beside copies of as many random rows in batches.
pub(crate) fn loading(pairs: &Pairs) -> Result<Pair> {
    const BYTES: usize = 3072;
    let (shards, shard_rows) = (8, 2048);
    let dir = tempfile::tempdir()?;
    let document = stored(dir.path(), shards, shard_rows, BYTES)?;
    let count = shards * shard_rows;
    let (rows, chosen) = (noise(count * BYTES), picks(count, count));
    let mut epoch = 0;
    let loaded = || {
        let source = LoaderSource::Store(dir.path().to_owned().into());
        let config = LoaderConfig {
            start: (epoch % 8, 0),
            end_epoch: epoch % 8 + 1,
            cache: CacheChoice { dir: Some(dir.path().join("tables")), limit: None },
            ..LoaderConfig::new(source, document.clone(), BATCH as u32)
        };
        epoch += 1;
        let mut loader = Loader::open(config).expect("a store");
        let mut samples = 0;
        while let Some(step) = loader.next_step().expect("reads") {
            samples += step.micro_batches.iter().map(|part| part.batch.num_rows()).sum::<usize>();
        }
        assert_eq!(samples, count, "an epoch has every sample once");
    };
    Ok(pairs.measure(loaded, || {
        for numbers in chosen.chunks(BATCH) {
            let mut out = Vec::with_capacity(BATCH * BYTES);
            numbers.iter().for_each(|n| out.extend_from_slice(&rows[n * BYTES..(n + 1) * BYTES]));
            black_box(out);
        }
    }))
}

/// Ingest of 8 MB of Parquet on one thread, beside a loop that reads the same file, hashes it and writes it.
pub(crate) fn ingest(pairs: &Pairs) -> Result<Pair> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("samples.parquet");
    let rows = samples((8 << 20) / 3072, 3072)?;
    let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).build();
    let mut writer = ArrowWriter::try_new(File::create(&path)?, rows.schema(), Some(properties))?;
    writer.write(&rows)?;
    writer.close()?;
    let (store, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let ingested = || {
        let config = IngestConfig::default();
        let source = Source::open(&path, &config).expect("a Parquet file");
        let catalog = LocalCatalog::open(&store).expect("a directory");
        let sink = CatalogStore(&catalog);
        let resources = Resources::threads(1);
        let made = shardd_ingest::ingest(source, &config, &resources, &sink, &NoProgress).expect("our rows");
        assert_eq!(made.manifest.sample_count(), rows.num_rows() as u64, "all rows become samples");
        fs::remove_dir_all(&store).expect("it was made here");
    };
    let copied = || {
        let (mut from, mut to) = (File::open(&path).expect("our file"), File::create(&copy).expect("space"));
        let (mut hasher, mut part) = (blake3::Hasher::new(), vec![0; 1 << 20]);
        loop {
            let read = from.read(&mut part).expect("our file");
            if read == 0 {
                break;
            }
            hasher.update(&part[..read]);
            to.write_all(&part[..read]).expect("space");
        }
        to.sync_all().expect("space");
        fs::remove_file(&copy).expect("it was made here");
        hasher.finalize()
    };
    Ok(pairs.measure(ingested, copied))
}

/// From opening a loader in the middle of an epoch of 10⁷ samples to its first step, with the slot table kept on the
/// machine, beside reading a file as large as that table.
pub(crate) fn resume(pairs: &Pairs) -> Result<Pair> {
    const ROWS: u32 = 20_000;
    const SHARDS: usize = 500;
    const EPOCH: u32 = 1;
    let dir = tempfile::tempdir()?;
    let store = LocalCatalog::open(dir.path())?;
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..i64::from(ROWS)));
    let mut writer = ShardWriter::new(Arc::clone(&schema))?;
    writer.push(&RecordBatch::try_new(Arc::clone(&schema), vec![numbers])?)?;
    let shard = writer.finish()?;
    store.put_shard(&shard)?;
    // A manifest may have a shard many times.
    let manifest = Manifest::new(schema, vec![shard.entry; SHARDS], serde_json::json!({}));
    store.commit(&"rows".parse()?, None, &manifest, &CommitNote::of(Operation::INGEST))?;
    let shape = Shape { shard_rows: vec![ROWS; SHARDS], row_bytes: manifest.row_bytes() };
    let options = PlanOptions { partitions: Some(4096), grain_rows: Some(4), ..PlanOptions::default() };
    let document = PlanDocument::with_defaults(manifest.id(), &shape, options)?;
    store.put_plan(&document)?;
    let plan = Plan::new(document.clone(), &shape.shard_rows)?;
    let kept = dir.path().join("tables");
    let table = SlotTable::at(&plan, Epoch(EPOCH));
    let turn = SlotTables::open(&kept)?.begin(plan.id(), Epoch(EPOCH))?;
    ensure!(turn.context("no other process makes the table")?.put(&plan, &table)?, "no room for the table");
    let as_large = dir.path().join("as-large");
    fs::write(&as_large, vec![1; usize::try_from(table.written_bytes(&plan))?])?;
    let resumed = || {
        let source = LoaderSource::Store(dir.path().to_owned().into());
        let config = LoaderConfig {
            start: (EPOCH, plan.sample_count() / 2),
            end_epoch: EPOCH + 1,
            cache: CacheChoice { dir: Some(kept.clone()), limit: None },
            ..LoaderConfig::new(source, document.clone().id(), 256)
        };
        let mut loader = Loader::open(config).expect("a store");
        loader.next_step().expect("reads").expect("half an epoch is left")
    };
    Ok(pairs.measure(resumed, || fs::read(&as_large).expect("our file")))
}
