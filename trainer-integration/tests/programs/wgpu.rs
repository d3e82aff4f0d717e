//! Trainings on a device of Vulkan, Metal or DirectX 12: here one in software, Mesa's lavapipe, which computes the same bits each time.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use shardd_store::catalog::LocalCatalog;
use shardd_trainer::device::{Adapter, DeviceName};
use tempfile::TempDir;

use crate::common::{add, plan_of};
use crate::emulated::pictures_in;
use crate::rank::{Rank, free_address};

/// Why there is nothing to test, said; or none.
fn is_missing() -> bool {
    let Err(error) = DeviceName::Wgpu(Adapter::Software).open() else { return false };
    println!("skipped: {error}");
    true
}

/// 48 pictures of 8 x 8 pixels in two classes, and a plan of 12 partitions.
struct Pictures {
    store: TempDir,
    plan: String,
    /// The folder of a layer that counts what crosses between host and device.
    layer: Option<TempDir>,
}

impl Pictures {
    fn new() -> Pictures {
        let store = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        pictures_in(folder.path(), 24);
        let catalog = LocalCatalog::open(store.path()).unwrap();
        let manifest = add(&catalog, "pictures", folder.path());
        let plan = plan_of(&catalog, &manifest).to_string();
        Pictures { store, plan, layer: None }
    }

    /// The ranks of a training of four virtual ranks, in epochs of three steps each.
    fn ranks(&self, world: u32, arguments: &[&str]) -> Vec<Rank> {
        let master = free_address();
        let rank = |rank: u32| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
            command.arg("--store").arg(self.store.path()).args(["--plan", &self.plan, "--image-size", "8"]);
            command.args([
                "--virtual-ranks",
                "4",
                "--global-batch-size",
                "16",
                "--lr",
                "0.05",
                "--master",
                &master,
            ]);
            command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]).args(arguments);
            // Mesa complains on standard error without one.
            command.arg("--report").arg(self.report(rank)).env("XDG_RUNTIME_DIR", self.store.path());
            if let Some(layer) = &self.layer {
                command.env("VK_LAYER_PATH", layer.path()).env("VK_INSTANCE_LAYERS", "VK_LAYER_SHARDD_count");
                command.env("SHARDD_COUNT", self.counts(rank));
            }
            Rank::spawn(&mut command)
        };
        (0..world).map(rank).collect()
    }

    fn report(&self, rank: u32) -> std::path::PathBuf {
        self.store.path().join(format!("report-{rank}.json"))
    }

    fn counts(&self, rank: u32) -> std::path::PathBuf {
        self.store.path().join(format!("counts-{rank}.json"))
    }

    /// What rank 0 gives the device in a step, and gets from it: the difference that `epochs` more make.
    fn counts_of_a_step(&self, world: u32, arguments: &[&str], epochs: u64) -> impl Fn(&str) -> f64 + use<> {
        let counts = [1, 1 + epochs].map(|epochs| {
            let epochs = epochs.to_string();
            let report = self.trained(world, &[arguments, &["--epochs", &epochs]].concat());
            (read(&self.counts(0)), report["steps"].as_f64().unwrap())
        });
        move |name| {
            let [(before, first), (after, all)] = &counts;
            (after[name].as_f64().unwrap() - before[name].as_f64().unwrap()) / (all - first)
        }
    }

    /// What rank 0 reports in the end.
    fn trained(&self, world: u32, arguments: &[&str]) -> Value {
        for rank in self.ranks(world, arguments) {
            let (code, said) = rank.end();
            assert_eq!(code, Some(0), "W={world} {arguments:?}: {said}");
        }
        read(&self.report(0))
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn digest(report: &Value) -> &str {
    report["weights_digest"].as_str().expect("a training reports its weights")
}

#[test]
fn a_device_trains_the_same_weights_for_any_number_of_ranks_and_stage() {
    if is_missing() {
        return;
    }
    let pictures = Pictures::new();
    let on_device = ["--device", "wgpu:cpu", "--epochs", "2"];
    let alone = pictures.trained(1, &on_device);
    assert_eq!(digest(&pictures.trained(1, &on_device)), digest(&alone), "from run to run");
    for (world, zero) in [(2, "0"), (4, "0"), (2, "1"), (2, "2"), (4, "2"), (2, "3")] {
        let several = pictures.trained(world, &[&on_device[..], &["--zero", zero]].concat());
        assert_eq!(digest(&several), digest(&alone), "{world} ranks, stage {zero}");
    }
    // Two moments, and a length of the gradient that decides.
    let adam = [&on_device[..], &["--optimizer", "adamw", "--clip-grad-norm", "0.5"]].concat();
    let alone_too = pictures.trained(1, &adam);
    assert_ne!(digest(&alone_too), digest(&alone));
    assert_eq!(digest(&pictures.trained(4, &adam)), digest(&alone_too));
    let on_cpu = pictures.trained(1, &["--epochs", "2"]);
    let losses = |report: &Value| -> Vec<f64> {
        report["loss_per_epoch"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    for (there, here) in losses(&alone).into_iter().zip(losses(&on_cpu)) {
        assert!((there / here - 1.0).abs() < 1e-3, "{there} on the device, {here} on the CPU");
    }
}

#[test]
fn a_training_in_sixteen_bits_is_the_same_for_any_number_of_ranks() {
    if is_missing() {
        return;
    }
    let pictures = Pictures::new();
    let arguments = ["--device", "wgpu:cpu", "--epochs", "1", "--precision", "f16"];
    let alone = pictures.trained(1, &arguments);
    for (world, zero) in [(2, "0"), (2, "1"), (4, "2"), (2, "3")] {
        let several = pictures.trained(world, &[&arguments[..], &["--zero", zero]].concat());
        assert_eq!(digest(&several), digest(&alone), "{world} ranks, stage {zero}");
    }
    let ranks = pictures.ranks(1, &["--device", "wgpu:cpu", "--precision", "bf16"]);
    for (code, said) in ranks.into_iter().map(Rank::end) {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("does not compute in bf16; give --precision f32"), "{said}");
    }
}

#[test]
fn a_killed_training_resumes_and_a_checkpoint_moves_to_the_cpu_and_back() {
    if is_missing() {
        return;
    }
    let pictures = Pictures::new();
    let checkpoints = pictures.store.path().join("checkpoints");
    let kept = ["--checkpoints", checkpoints.to_str().unwrap(), "--checkpoint-every", "1"];
    let on_device = ["--device", "wgpu:cpu"];
    let whole = pictures.trained(1, &[&on_device[..], &["--epochs", "2"]].concat());
    let epochs = |count: &'static str| [&kept[..], &["--epochs", count]].concat();

    // Killed in its fourth step or after it, and continued by two ranks.
    let mut ranks = pictures.ranks(1, &[&on_device[..], &epochs("2"), &["--progress", "-"]].concat());
    let mut lines = ranks[0].lines();
    (0..3).for_each(|_| drop(lines.next().expect("a line for each step").unwrap()));
    ranks[0].signal(Signal::KILL);
    assert_eq!(ranks.remove(0).end().0, None, "killed");
    let rest = pictures.trained(2, &[&on_device[..], &epochs("2")].concat());
    assert_eq!((digest(&rest), rest["resumed_from"].is_null()), (digest(&whole), false));

    // To the CPU and back.
    let here = pictures.trained(1, &epochs("3"));
    assert_eq!((&here["device"], here["resumed_from"].is_null()), (&Value::from("cpu"), false));
    let there = pictures.trained(1, &[&on_device[..], &epochs("4")].concat());
    assert_eq!((there["steps"].as_u64(), there["resumed_from"].is_null()), (Some(12), false));
}

/// The layer of `benches/gpu/count`, built with the compiler and the headers that there are.
fn counting_layer() -> Option<TempDir> {
    const LAYER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/gpu/count");
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcount.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(library);
    let built = compiler.arg(format!("{LAYER}/layer.c")).output();
    match built {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("vulkan/"), "{said}");
            println!("skipped: no headers of Vulkan (on Debian, libvulkan-dev)");
            return None;
        }
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            return None;
        }
    }
    std::fs::copy(format!("{LAYER}/layer.json"), folder.path().join("layer.json")).unwrap();
    Some(folder)
}

#[test]
fn a_step_moves_no_parameters_and_waits_for_the_device_once() {
    if is_missing() {
        return;
    }
    let Some(layer) = counting_layer() else { return };
    let pictures = Pictures { layer: Some(layer), ..Pictures::new() };
    let on_device = ["--device", "wgpu:cpu", "--model", "small"];
    let report = pictures.trained(1, &[&on_device[..], &["--epochs", "1"]].concat());
    let parameters = 4.0 * report["parameters"].as_f64().unwrap();
    let of_step = pictures.counts_of_a_step(1, &on_device, 4);
    // Of 16 pictures and their labels, and where the sums of 10 parameters have their places: it is known after some steps.
    let (up, down) = (of_step("upload_bytes"), of_step("download_bytes"));
    assert!(up < 16.0 * (3.0 * 64.0 + 8.0) + 600.0, "{up} bytes to the device, parameters have {parameters}");
    // The losses of each virtual rank, and of gradients the squares of each block and an exponent for each parameter.
    assert!(down < 200.0, "{down} bytes from the device, parameters have {parameters}");
    assert_eq!(of_step("downloads"), 2.0, "losses and findings, at once");
    let launches = of_step("launches");
    assert!(launches < 4.0 * 120.0, "{launches} launches for four virtual ranks");
    // Sums travel through the host where there are several ranks: as many bytes as they have, once in each direction.
    let of_two = pictures.counts_of_a_step(2, &on_device, 2);
    let (up, down) = (of_two("upload_bytes"), of_two("download_bytes"));
    assert!(
        down > 2.0 * parameters && down < 2.1 * parameters,
        "{down} bytes of sums, parameters have {parameters}"
    );
    assert!(up > parameters && up < 1.2 * parameters, "{up} bytes of means, parameters have {parameters}");
}
