//! Transforms of images: the same weights for any number of processes, after a resume, and on other processors.

use std::path::Path;
use std::process::{Command, Output};

use image::{Rgb, RgbImage};
use shardd_store::catalog::LocalCatalog;
use tempfile::TempDir;

use crate::common::{add, plan_of};
use crate::rank::{Rank, free_address};

/// Operations of every kind: integers, floats, functions such as the sine, the decoder's vectors, and mixed batches.
const TRAIN: &str = r#"{"transforms": [
    {"type": "RandomResizedCrop", "size": 8, "scale": [0.3, 1]},
    {"type": "RandomHorizontalFlip"},
    {"type": "RandomRotation", "degrees": 20, "interpolation": "bilinear"},
    {"type": "ColorJitter", "brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1},
    {"type": "GaussianBlur", "kernel_size": 3},
    {"type": "RandAugment"},
    {"type": "ToDtype", "dtype": "float32", "scale": true},
    {"type": "Normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    {"type": "RandomErasing", "value": "random"}
], "batch": {"transforms": [
    {"type": "RandomChoice", "transforms": [{"type": "MixUp", "alpha": 0.4}, {"type": "CutMix"}]}
]}}"#;

const TEST: &str =
    r#"[{"type": "Resize", "size": [8, 8]}, {"type": "ToDtype", "dtype": "float32", "scale": true}]"#;

/// JPEGs of 20 x 14 pixels in two classes, 24 of each, as the dataset `pictures` with a plan.
fn samples() -> TempDir {
    let (store, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (class, name) in ["dark", "light"].into_iter().enumerate() {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        for number in 0..24 {
            let pixel = |x: u32, y: u32| {
                let value = (x * 31 + y * 17 + number * 7) % 97 + 100 * class as u32;
                Rgb([value, value / 2, 200 - value].map(|channel| channel as u8))
            };
            let picture = RgbImage::from_fn(20, 14, pixel);
            picture.save(folder.path().join(name).join(format!("{number}.jpg"))).unwrap();
        }
    }
    let catalog = LocalCatalog::open(store.path()).unwrap();
    plan_of(&catalog, &add(&catalog, "pictures", folder.path()));
    store
}

/// A training, but for the program's name.
fn arguments(command: &mut Command, store: &Path, epochs: u32) {
    command.arg("--store").arg(store).args(["--dataset", "pictures", "--transforms", TRAIN, "--lr", "0.05"]);
    command.args(["--global-batch-size", "16", "--virtual-ranks", "4", "--epochs", &epochs.to_string()]);
    command.env("RAYON_NUM_THREADS", "1");
}

fn training(store: &Path, epochs: u32) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    arguments(&mut command, store, epochs);
    command
}

fn digest(output: &Output) -> String {
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let digest = text.lines().find_map(|line| line.strip_prefix("weights blake3 "));
    digest.unwrap_or_else(|| panic!("{text}{error}")).to_owned()
}

#[test]
fn weights_do_not_depend_on_the_number_of_processes_or_on_a_resume() {
    let store = samples();
    let expected = digest(&training(store.path(), 2).output().unwrap());
    for world in [2, 3] {
        let master = free_address();
        let report = |rank: u32| store.path().join(format!("report-{rank}-of-{world}.json"));
        let ranks: Vec<Rank> = (0..world)
            .map(|rank| {
                let mut command = training(store.path(), 2);
                command.args([
                    "--master",
                    &master,
                    "--rank",
                    &rank.to_string(),
                    "--world",
                    &world.to_string(),
                ]);
                Rank::spawn(command.arg("--report").arg(report(rank)))
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report(0)).unwrap()).unwrap();
        assert_eq!(report["weights_digest"], *expected, "of {world} processes");
    }
    let kept = |epochs| {
        let mut command = training(store.path(), epochs);
        command.args(["--run", "kept", "--checkpoints"]).arg(store.path().join("checkpoints"));
        command
    };
    assert_ne!(digest(&kept(1).output().unwrap()), expected);
    assert_eq!(digest(&kept(2).output().unwrap()), expected);
    let refused = kept(3).args(["--transforms", TEST]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && error.contains("transforms"), "{error}");
}

#[test]
fn other_processors_make_the_same_pixels() {
    if Command::new("qemu-x86_64").arg("--version").output().is_err() {
        eprintln!("skipped: no qemu-x86_64 (Debian: qemu-user)");
        return;
    }
    let store = samples();
    let expected = digest(&training(store.path(), 1).output().unwrap());
    for processor in ["Nehalem", "Haswell"] {
        let mut command = Command::new("qemu-x86_64");
        command.args(["-cpu", processor, env!("CARGO_BIN_EXE_shardtrain")]);
        arguments(&mut command, store.path(), 1);
        assert_eq!(digest(&command.output().unwrap()), expected, "{processor}");
    }
}

#[test]
fn mistakes_are_named_before_the_first_step() {
    let store = samples();
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        let output = command
            .arg("--store")
            .arg(store.path())
            .args(["--dataset", "pictures"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = refused(&["--transforms", "missing.json"]);
    assert!(error.contains("missing.json") && error.contains("No such file"), "{error}");
    let error = refused(&["--transforms", r#"[{"type": "RandomCorp", "size": 8}]"#]);
    assert!(error.contains("there is no operation RandomCorp; the nearest is RandomCrop"), "{error}");
    let error = refused(&["--transforms", r#"[{"type": "RandomHorizontalFlip"}]"#]);
    assert!(error.contains("pictures of various sizes"), "{error}");
    let error = refused(&["--transforms", TRAIN, "--test-dataset", "pictures"]);
    assert!(error.contains("give --test-transforms"), "{error}");
    let error = refused(&[
        "--transforms",
        r#"[{"type": "Resize", "size": [8, 8]}, {"type": "ToDtype", "dtype": "bfloat16"}]"#,
    ]);
    assert!(error.contains("end the transforms with ToDtype"), "{error}");
    let error = refused(&["--transforms", TRAIN, "--image-size", "16"]);
    assert!(error.contains("--image-size") && error.contains("cannot be used with"), "{error}");
    for columns in [r#"{"columns": {}}"#, r#"{"columns": {}, "samples": {"transforms": []}}"#] {
        let error = refused(&["--transforms", columns]);
        assert!(error.contains("leave \"columns\" out of the transforms"), "{error}");
    }
    let error = refused(&["--transforms", TRAIN, "--augment"]);
    assert!(error.contains("cannot be used with '--augment'"), "{error}");
}

#[test]
fn the_layout_of_a_chain_is_that_of_the_model() {
    let store = samples();
    let of = |chain: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.arg("--store").arg(store.path()).args(["--dataset", "pictures", "--transforms", chain]);
        command.args(["--test-dataset", "pictures", "--test-transforms", chain]);
        command.args(["--global-batch-size", "16", "--virtual-ranks", "2", "--epochs", "1"]);
        digest(&command.env("RAYON_NUM_THREADS", "1").output().unwrap())
    };
    let chain = |layout: &str| {
        format!(r#"{{"transforms": [{{"type": "CenterCrop", "size": [8, 12]}}], "layout": "{layout}"}}"#)
    };
    assert_eq!(of(&chain("HWC")), of(&chain("CHW")));
}
