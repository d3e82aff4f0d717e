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
}

impl Pictures {
    fn new() -> Pictures {
        let store = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        pictures_in(folder.path(), 24);
        let catalog = LocalCatalog::open(store.path()).unwrap();
        let manifest = add(&catalog, "pictures", folder.path());
        let plan = plan_of(&catalog, &manifest).to_string();
        Pictures { store, plan }
    }

    /// The ranks of a training of two virtual ranks and two epochs, of three steps each.
    fn ranks(&self, world: u32, arguments: &[&str]) -> Vec<Rank> {
        let master = free_address();
        let rank = |rank: u32| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
            command.arg("--store").arg(self.store.path()).args(["--plan", &self.plan, "--image-size", "8"]);
            command.args([
                "--virtual-ranks",
                "2",
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
            Rank::spawn(&mut command)
        };
        (0..world).map(rank).collect()
    }

    fn report(&self, rank: u32) -> std::path::PathBuf {
        self.store.path().join(format!("report-{rank}.json"))
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
    for zero in ["0", "1", "2", "3"] {
        let two = pictures.trained(2, &[&on_device[..], &["--zero", zero]].concat());
        assert_eq!(digest(&two), digest(&alone), "stage {zero}");
    }
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
    assert_eq!(digest(&pictures.trained(2, &arguments)), digest(&alone));
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
