//! The one real image data set at hand: CIFAR-10 as JPEG in a `.tar.gz`. Skipped where it is not.

use std::env;
use std::time::Instant;

use super::*;

fn cifar() -> Option<PathBuf> {
    let shared = env::var_os("SHARDD_SHARED").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let path = shared.unwrap_or_else(beside).join("data/cifar10-jpeg.tar.gz");
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there (SHARDD_SHARED names the directory)", path.display());
    None
}

const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

#[test]
fn the_test_split_has_10_000_images_with_the_right_labels() {
    let Some(path) = cifar() else { return };
    let config = IngestConfig { under: Some("test".to_owned()), ..IngestConfig::default() };
    let ingested = run(&path, &config, 2).unwrap();
    assert_eq!(ingested.manifest.sample_count(), 10_000);
    assert_eq!(ingested.manifest.class_names().unwrap(), CLASSES);
    let mut per_class = [0; 10];
    for (label, path) in ingested.integers("label").into_iter().zip(ingested.texts("path")) {
        assert_eq!(path.split('/').nth(1), Some(CLASSES[label as usize]), "{path}");
        per_class[label as usize] += 1;
    }
    assert_eq!(per_class, [1000; 10]);
}

#[test]
#[ignore = "measures: run with --ignored --nocapture"]
fn ingest_time_of_the_train_split() {
    let Some(path) = cifar() else { return };
    let config = IngestConfig { under: Some("train".to_owned()), ..IngestConfig::default() };
    let mut ids = Vec::new();
    for threads in [1, 2] {
        let start = Instant::now();
        let source = Source::open(&path, &config).unwrap();
        let opened = start.elapsed();
        let manifest = ingest(source, &config, &Resources::threads(threads), &Kept::default(), &NoProgress)
            .unwrap()
            .manifest;
        let (samples, shards) = (manifest.sample_count(), manifest.shards.len());
        println!(
            "{samples} images, {shards} shards, {threads} threads: {:.2?} (listing {opened:.2?})",
            start.elapsed()
        );
        ids.push(manifest.id());
    }
    assert_eq!(ids[0], ids[1]);
}
