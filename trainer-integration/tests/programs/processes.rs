//! `shardtrain` as processes: what a launcher sees.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use shardd_store::catalog::{Catalog, LocalCatalog};
use shardd_trainer::weights::Weights;

use crate::common::DigitsStore;
use crate::rank::{Rank, free_address};

fn shardtrain(store: &DigitsStore) -> Command {
    let mut command = by_default(store);
    command.args(["--virtual-ranks", "4"]);
    command
}

fn by_default(store: &DigitsStore) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.arg("--store").arg(store.path()).args(["--test-dataset", "digits-test"]);
    command
}

fn report_file(store: &DigitsStore, rank: u32, world: u32) -> PathBuf {
    store.path().join(format!("report-{rank}-of-{world}.json"))
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn processes_report_the_same_weights_for_every_world_size() {
    let store = DigitsStore::new();
    let saved = store.path().join("digits.safetensors");
    let mut digests = Vec::new();
    for world in [1, 2, 4] {
        let master = free_address();
        let ranks: Vec<Rank> = (0..world)
            .map(|rank| {
                let mut command = shardtrain(&store);
                command.args(["--plan", &store.plan.to_string(), "--epochs", "2"]);
                command.args(["--master", &master]).arg("--report").arg(report_file(&store, rank, world));
                // Half by flags, half by environment.
                if rank == 0 {
                    command.args(["--rank", "0", "--world", &world.to_string()]).arg("--save").arg(&saved);
                } else {
                    command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
                }
                Rank::spawn(&mut command)
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        let reports: Vec<Value> =
            (0..world).map(|rank| read_json(&report_file(&store, rank, world))).collect();
        let samples: u64 =
            reports.iter().map(|report| report["audits"][1]["samples"].as_u64().unwrap()).sum();
        assert_eq!(samples, store.manifest.sample_count(), "every sample once in epoch 1");
        for report in reports {
            assert_eq!(report["test_samples"], 360);
            assert_eq!(report["waited_for_s"].as_array().unwrap().len(), world as usize);
            assert_eq!(report["straggler"].is_null(), world == 1, "{report}");
            assert!(report["test_accuracy"].as_f64().unwrap() > 0.8, "{report}");
            digests.push(report["weights_digest"].as_str().unwrap().to_owned());
        }
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let weights = Weights::from_safetensors(&std::fs::read(&saved).unwrap()).unwrap();
    assert_eq!(weights.digest().to_string(), digests[0], "the file holds what the digest says");
}

#[test]
fn weights_do_not_depend_on_the_number_of_processes_where_nothing_is_said_of_shares() {
    let store = DigitsStore::new();
    let plan = store.plan.to_string();
    let mut found = Vec::new();
    for world in [1, 2, 3, 4, 6] {
        let master = free_address();
        let ranks: Vec<Rank> = (0..world)
            .map(|rank| {
                let mut command = by_default(&store);
                command.args([
                    "--plan",
                    &plan,
                    "--epochs",
                    "1",
                    "--master",
                    &master,
                    "--rank",
                    &rank.to_string(),
                ]);
                command
                    .args(["--world", &world.to_string()])
                    .arg("--report")
                    .arg(report_file(&store, rank, world));
                Rank::spawn(&mut command)
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        let report = read_json(&report_file(&store, 0, world));
        found.push(["weights_digest", "steps", "virtual_ranks"].map(|name| report[name].to_string()));
    }
    // Steps of 64 samples in 6 of the 12 partitions' divisors.
    assert_eq!(found[0][1..], ["23", "6"]);
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    let (code, said) = Rank::spawn(by_default(&store).args(["--plan", &plan, "--world", "8"])).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("8 ranks cannot share 6 virtual ranks"), "{said}");
    assert!(said.contains("--global-batch-size 192"), "{said}");
}

#[test]
fn processes_in_sixteen_bits_train_the_same_weights_and_tell_the_scale_and_their_groups() {
    let store = DigitsStore::new();
    let mut found = Vec::new();
    for (world, arguments) in [(1, &[][..]), (4, &["--zero", "2", "--zero-group", "2"])] {
        let master = free_address();
        let progress = |rank: u32| store.path().join(format!("progress-{rank}-of-{world}"));
        let ranks: Vec<Rank> = (0..world)
            .map(|rank| {
                let mut command = shardtrain(&store);
                command.args(["--plan", &store.plan.to_string(), "--epochs", "1"]);
                command.args(["--precision", "f16", "--reduce-dtype", "bf16"]).args(arguments);
                command.args(["--master", &master, "--rank", &rank.to_string()]);
                command.args(["--world", &world.to_string()]).arg("--progress").arg(progress(rank));
                command.arg("--report").arg(report_file(&store, rank, world));
                Rank::spawn(&mut command)
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        for rank in 0..world {
            let report = read_json(&report_file(&store, rank, world));
            let groups = json!({"ranks": [[0, 1], [2, 3]], "are_inside_machines": true});
            assert_eq!(report["groups"], if world == 1 { Value::Null } else { groups });
            assert_eq!((&report["precision"], &report["reduce_dtype"]), (&json!("f16"), &json!("bf16")));
            assert_eq!(report["skipped_steps"], report["overflows"]);
            let lines = std::fs::read_to_string(progress(rank)).unwrap();
            let steps: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(steps[0]["loss_scale"], 65_536.0);
            let is_inside = steps[0].get("groups_inside_machines").cloned();
            assert_eq!(is_inside, (world > 1).then_some(Value::Bool(true)));
            let skipped = steps.iter().filter(|step| step["is_skipped"] == true).count();
            assert_eq!(report["overflows"], skipped);
            found.push(["weights_digest", "overflows", "loss_scale"].map(|name| report[name].clone()));
        }
    }
    assert!(found.iter().all(|rank| *rank == found[0]), "{found:?}");
}

#[test]
fn processes_that_keep_slices_train_the_same_weights() {
    let store = DigitsStore::new();
    let mut digests = Vec::new();
    let mut most = Vec::new();
    for zero in 0..4u32 {
        let master = free_address();
        let saved = store.path().join(format!("zero-{zero}.safetensors"));
        let ranks: Vec<Rank> = (0..3)
            .map(|rank| {
                let mut command = shardtrain(&store);
                command.args(["--plan", &store.plan.to_string(), "--epochs", "1", "--optimizer", "adamw"]);
                command.args([
                    "--lr",
                    "0.01",
                    "--dropout",
                    "0.2",
                    "--clip-grad-norm",
                    "1",
                    "--zero",
                    &zero.to_string(),
                ]);
                command.args(["--master", &master, "--rank", &rank.to_string(), "--world", "3"]);
                command.arg("--report").arg(report_file(&store, rank, zero)).arg("--save").arg(&saved);
                Rank::spawn(&mut command)
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        let reports: Vec<Value> = (0..3).map(|rank| read_json(&report_file(&store, rank, zero))).collect();
        for report in &reports {
            assert_eq!(report["zero"], zero);
            let groups = json!({"ranks": [[0, 1, 2]], "are_inside_machines": true});
            assert_eq!(report["groups"], if zero == 0 { Value::Null } else { groups });
            digests.push(report["weights_digest"].as_str().unwrap().to_owned());
        }
        let held = |report: &Value| report["memory"]["moments"].as_u64().unwrap();
        most.push(reports.iter().map(held).max().unwrap());
        let weights = Weights::from_safetensors(&std::fs::read(&saved).unwrap()).unwrap();
        assert_eq!(weights.digest().to_string(), digests[0], "the file holds what the digest says");
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    assert!(most[1..].iter().all(|slices| 2 * slices < most[0]), "{most:?}");
    for (flags, said) in [
        (&["--zero", "4"][..], "stage \"4\" of ZeRO"),
        (&["--zero", "1", "--reduce", "fast", "--compress", "int8"], "compressed gradients"),
        (&["--zero-group", "2"], "--zero-group needs --zero"),
        (&["--all-reduce", "ring"], "--all-reduce needs --reduce fast"),
        (&["--reduce", "fast", "--all-reduce", "star"], "direct, ring, doubling, two-tree"),
        (&["--reduce", "fast", "--all-reduce", "ring", "--compress", "int8"], "leave --all-reduce or"),
        (&["--reduce", "fast", "--all-reduce", "ring", "--zero", "1"], "leave one of the two out"),
        (&["--loss-scale", "1024"], "give --precision f16"),
        (&["--loss-scale", "1000", "--precision", "f16"], "no power of two"),
        (&["--zero", "2", "--zero-group", "3"], "1 ranks cannot form groups of 3; give one of 1"),
    ] {
        let mut command = shardtrain(&store);
        let (code, error) = Rank::spawn(command.args(["--dataset", "digits"]).args(flags)).end();
        assert!(code == Some(2) && error.contains(said), "{error}");
    }
}

#[test]
fn all_reduce_is_by_the_algorithm_that_is_named_or_the_fastest_that_was_measured_once() {
    let store = DigitsStore::new();
    let cache = tempfile::tempdir().unwrap();
    let reported = |arguments: &[&str]| {
        let master = free_address();
        let ranks: Vec<Rank> = (0..2)
            .map(|rank| {
                let mut command = shardtrain(&store);
                command.args(["--plan", &store.plan.to_string(), "--epochs", "1", "--reduce", "fast"]);
                command.args(["--master", &master, "--rank", &rank.to_string(), "--world", "2"]);
                command.args(arguments).arg("--report").arg(report_file(&store, rank, 2));
                Rank::spawn(command.env("SHARDD_CACHE_DIR", cache.path()))
            })
            .collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
        let reports = [0, 1].map(|rank| read_json(&report_file(&store, rank, 2)));
        assert_eq!(reports[0]["weights_digest"], reports[1]["weights_digest"]);
        reports[0]["all_reduce"].as_str().unwrap().to_owned()
    };
    for name in ["ring", "two-tree", "compensated"] {
        assert_eq!(reported(&["--all-reduce", name]), name);
    }
    assert!(reported(&[]).contains("(measured in "));
    assert!(reported(&["--all-reduce", "auto"]).ends_with("(measured at an earlier start)"));
}

#[test]
fn a_killed_rank_ends_the_others_with_its_name() {
    let store = DigitsStore::new();
    let master = free_address();
    let launch = |rank: u32| {
        let mut command = shardtrain(&store);
        command.args(["--dataset", "digits", "--epochs", "100000", "--master", &master, "--progress", "-"]);
        command.args(["--rank", &rank.to_string(), "--world", "3"]);
        Rank::spawn(&mut command)
    };
    let mut ranks: Vec<Rank> = (0..3).map(launch).collect();
    // All pipes are read, or a full one would stop its rank.
    let mut lines: Vec<_> = ranks.iter_mut().map(Rank::lines).collect();
    let first = lines[2].next().expect("rank 2 trains").unwrap();
    let progress: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&progress["rank"], &progress["epoch"], &progress["step"]), (&2.into(), &0.into(), &0.into()));
    let killed = ranks.pop().unwrap();
    std::thread::scope(|scope| {
        for lines in lines {
            scope.spawn(move || lines.for_each(drop));
        }
        killed.signal(Signal::KILL);
        for rank in ranks {
            let (code, said) = rank.end();
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains("rank 2 is gone") || said.contains("rank 2 stopped"), "{said}");
            assert_eq!(said.lines().count(), 1, "one line: {said}");
        }
    });
}

#[test]
fn a_reader_that_goes_away_ends_no_training_and_is_no_failure() {
    let store = DigitsStore::new();
    for more in [&[][..], &["--progress", "-"]] {
        let mut command = shardtrain(&store);
        command.args(["--dataset", "digits", "--epochs", "1"]).args(more).arg("--report");
        let report = report_file(&store, 0, more.len() as u32);
        let mut rank = Rank::spawn(command.arg(&report));
        drop(rank.lines());
        let (code, said) = rank.end();
        assert!(code == Some(0) && said.lines().count() <= 1 && !said.contains("panic"), "{code:?}: {said}");
        assert!(read_json(&report)["steps"].as_u64() > Some(0));
    }
}

#[test]
fn test_data_that_cannot_be_used_costs_no_weights() {
    let store = DigitsStore::new();
    let shards = store.path().join("store");
    let catalog = LocalCatalog::open(store.path()).unwrap();
    let version = catalog.resolve(&"digits-test".parse().unwrap()).unwrap().version;
    let name = format!("{}.arrow", catalog.manifest(version).unwrap().shards[0].id);
    drop(catalog);
    let shard = files_below(&shards).into_iter().find(|file| file.ends_with(&name)).unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let saved = store.path().join("saved.safetensors");
    let mut command = shardtrain(&store);
    command.args(["--dataset", "digits", "--epochs", "1", "--save"]).arg(&saved);
    let (code, said) = Rank::spawn(&mut command).end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("trained, but not evaluated"), "{said}");
    Weights::from_safetensors(&std::fs::read(&saved).unwrap()).expect("they are whole");
}

#[test]
fn a_trace_that_cannot_be_written_costs_no_weights() {
    let store = DigitsStore::new();
    let (saved, folder) = (store.path().join("saved.safetensors"), store.path().join("traces"));
    std::fs::create_dir(&folder).unwrap();
    let trace = folder.join("trace.json");
    let mut command = shardtrain(&store);
    // More lines than a pipe holds, so that the training waits for this test.
    command.args(["--dataset", "digits", "--epochs", "60", "--progress", "-", "--save"]).arg(&saved);
    let mut rank = Rank::spawn(command.arg("--trace").arg(&trace));
    let mut lines = rank.lines();
    lines.next().expect("a step").unwrap();
    std::fs::remove_dir(&folder).unwrap();
    lines.for_each(drop);
    let (code, said) = rank.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("cannot write {}", trace.display())), "{said}");
    Weights::from_safetensors(&std::fs::read(&saved).unwrap()).expect("they are whole");
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[test]
fn mistakes_are_explained_in_one_line() {
    let store = DigitsStore::new();
    let plan = store.plan.to_string();
    let refused = |arguments: &[&str]| {
        let (code, said) = Rank::spawn(shardtrain(&store).args(arguments)).end();
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        (code, said)
    };
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--dataset", "nothing"], 1, "nothing"),
        (&["--plan", "feed"], 1, "there is no plan feed: there is "),
        (&["--plan", &plan, "--rank", "3", "--world", "2"], 2, "ranks count from 0"),
        (&["--plan", &plan, "--world", "5"], 2, "4"),
        (&["--plan", &plan, "--classes", "7"], 1, "not one of the 7 classes"),
        (&["--plan", &plan, "--device", "cuda:0"], 2, "CUDA"),
        (&["--plan", &plan, "--optimizer", "adam", "--momentum", "0.5"], 2, "--optimizer sgd"),
        (&["--plan", &plan, "--step-factor", "0.5"], 2, "--schedule step"),
        (
            &[
                "--plan",
                &plan,
                "--world",
                "2",
                "--rank",
                "1",
                "--join-timeout",
                "1",
                "--master",
                "127.0.0.1:9",
            ],
            3,
            "127.0.0.1:9",
        ),
    ];
    for (arguments, expected, part) in cases {
        let (code, said) = refused(arguments);
        assert_eq!(code, Some(expected), "{said}");
        assert!(said.contains(part), "{part:?} missing: {said}");
    }
}
