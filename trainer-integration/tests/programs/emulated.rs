//! The same weights on other processors, under an emulator: QEMU's user mode, whose processors have other vector instructions.

use std::path::Path;
use std::process::Command;

use image::{Rgb, RgbImage};
use shardd_ingest::IngestConfig;
use shardd_store::catalog::LocalCatalog;
use tempfile::TempDir;

use crate::common::{add, add_as};

const EMULATOR: &str = "qemu-x86_64";

/// Pictures of 8 x 8 pixels in two classes, a number of each, in a directory.
pub(crate) fn pictures_in(directory: &Path, each: u32) {
    for (class, name) in ["dark", "light"].into_iter().enumerate() {
        std::fs::create_dir(directory.join(name)).unwrap();
        for number in 0..each {
            let pixel = |x: u32, y: u32| {
                let value = (x * 31 + y * 17 + number * 7) % 97 + 100 * class as u32;
                Rgb([value, value / 2, 200 - value].map(|channel| channel as u8))
            };
            let picture = RgbImage::from_fn(8, 8, pixel);
            picture.save(directory.join(name).join(format!("{number}.png"))).unwrap();
        }
    }
}

/// Sixteen of them as the dataset `pictures`, and as many sequences of tokens as the dataset `text`.
fn samples() -> TempDir {
    let store = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    pictures_in(folder.path(), 8);
    let catalog = LocalCatalog::open(store.path()).unwrap();
    add(&catalog, "pictures", folder.path());
    let text: String = (0u32..16 * 17).map(|at| char::from(b'a' + (at * at % 89 % 26) as u8)).collect();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, text).unwrap();
    add_as(&catalog, "text", &file, &IngestConfig { sequence_length: Some(17), ..IngestConfig::default() });
    store
}

/// What is trained on a processor: this one, or an emulated one.
fn weights(store: &Path, model: &str, processor: Option<&str>) -> String {
    let program = env!("CARGO_BIN_EXE_shardtrain");
    let mut command = match processor {
        Some(processor) => {
            let mut command = Command::new(EMULATOR);
            command.args(["-cpu", processor, program]);
            command
        }
        None => Command::new(program),
    };
    command.arg("--store").arg(store).args(["--model", model]);
    command.args(match model {
        "gpt" => &["--dataset", "text", "--hidden-size", "16", "--layers", "2", "--heads", "2"][..],
        _ => &["--dataset", "pictures", "--image-size", "8"],
    });
    command.args(["--epochs", "1", "--global-batch-size", "8", "--virtual-ranks", "1", "--lr", "0.05"]);
    let output = command.env("RAYON_NUM_THREADS", "1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let digest = text.lines().find_map(|line| line.strip_prefix("weights blake3 "));
    let error = String::from_utf8_lossy(&output.stderr);
    digest.unwrap_or_else(|| panic!("{model} on {processor:?}: {text}{error}")).to_owned()
}

/// Haswell and EPYC have vectors of 256 bits, and Nehalem has no fused multiply-add. The machine of the test may have vectors of 512
/// bits. ResNet-18 sums over more steps than a chunk has.
#[test]
fn every_processor_trains_the_same_weights() {
    let has_emulator = Command::new(EMULATOR).arg("--version").output().is_ok();
    if !cfg!(target_arch = "x86_64") || !has_emulator {
        println!("skipped: it needs an x86-64 machine with {EMULATOR} (Debian: qemu-user)");
        return;
    }
    let store = samples();
    let all = &["Nehalem", "Haswell", "EPYC"][..];
    for (model, processors) in [("small", all), ("gpt", all), ("resnet18", &all[1..])] {
        let native = weights(store.path(), model, None);
        for processor in processors {
            assert_eq!(weights(store.path(), model, Some(processor)), native, "{model} on {processor}");
        }
    }
}
