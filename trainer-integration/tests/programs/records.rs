//! Run records of `shardtrain` as processes: written through kills, trained again, and compared.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use shardd_plan::{Epoch, Plan};
use shardd_store::catalog::{Catalog, LocalCatalog, StorePlace};
use shardd_store::record::{Ending, Record, RecordError, largest_first};
use shardd_trainer::checkpoint::CheckpointStore;

use crate::common::DigitsStore;
use crate::rank::{Rank, free_address};

/// The output of a process, on both streams, and its exit code.
struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

/// Ranks of one command with these arguments.
fn start(world: u32, arguments: &[&str]) -> Vec<Rank> {
    let master = free_address();
    let rank = |rank: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.args(arguments).args(["--master", &master]);
        command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
        Rank::spawn(&mut command)
    };
    (0..world).map(rank).collect()
}

/// Lets them run to their end, or kills the last one when it has trained a number of steps: the output of
/// each.
fn end(mut ranks: Vec<Rank>, killed_after: Option<usize>) -> Vec<Said> {
    std::thread::scope(|scope| {
        let mut outs: Vec<_> = ranks.iter_mut().map(Rank::lines).collect();
        let watched = outs.pop().unwrap();
        let read = |lines: &mut dyn Iterator<Item = std::io::Result<String>>| -> String {
            lines.map_while(Result::ok).map(|line| line + "\n").collect()
        };
        let mut outs: Vec<_> =
            outs.into_iter().map(|mut lines| scope.spawn(move || read(&mut lines))).collect();
        let mut watched = watched.into_iter();
        if let Some(steps) = killed_after {
            let seen = watched.by_ref().take(steps).count();
            assert_eq!(seen, steps, "it trains so far");
            ranks.last().unwrap().signal(Signal::KILL);
        }
        outs.push(scope.spawn(move || read(&mut watched)));
        let ends: Vec<_> = ranks.into_iter().map(Rank::end).collect();
        let outs: Vec<String> = outs.into_iter().map(|out| out.join().unwrap()).collect();
        ends.into_iter().zip(outs).map(|((code, error), out)| Said { code, out, error }).collect()
    })
}

/// What rank 0 says of a command that all ranks end well.
fn done(world: u32, arguments: &[&str]) -> String {
    let mut said = end(start(world, arguments), None);
    for Said { code, error, .. } in &said {
        assert_eq!((*code, &error[..]), (Some(0), ""), "{arguments:?}");
    }
    said.remove(0).out
}

/// What one rank alone says of a command that ends with this code.
fn ends_with(code: i32, arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    let output = command.args(arguments).env("RAYON_NUM_THREADS", "1").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let said = Said { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) };
    assert_eq!(said.code, Some(code), "{arguments:?}: {}{}", said.out, said.error);
    said
}

/// The only record of a run.
fn record(place: &Path, run: &str) -> Record {
    let shelf =
        CheckpointStore::open(&StorePlace::Directory(place.to_owned()), &run.parse().unwrap()).unwrap();
    let records = shelf.records();
    let read = async {
        let listed = records.find(run).await?;
        records.read(&listed).await
    };
    shelf.handle().block_on(read).map_err(|error: RecordError| error.to_string()).unwrap()
}

/// A store, a place for records, and the arguments of a training.
struct Lab {
    store: DigitsStore,
    kept: PathBuf,
}

impl Lab {
    fn new() -> Lab {
        let store = DigitsStore::new();
        let kept = store.path().join("kept");
        Lab { store, kept }
    }

    fn kept(&self) -> &str {
        self.kept.to_str().unwrap()
    }

    fn store(&self) -> &str {
        self.store.path().to_str().unwrap()
    }

    /// The arguments of a training of 4 virtual ranks.
    fn training<'a>(&'a self, run: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let usual = ["--store", self.store(), "--dataset", "digits", "--epochs", "2", "--dropout", "0.1"];
        [&usual[..], &["--virtual-ranks", "4", "--run", run], more].concat()
    }

    fn bisect(&self, code: i32, a: &str, b: &str) -> String {
        ends_with(code, &["bisect", a, b, "--record", self.kept()]).out
    }
}

#[test]
fn a_record_names_the_dataset_of_a_plan() {
    let lab = Lab::new();
    done(1, &lab.training("named", &["--record", lab.kept()]));
    let named = record(&lab.kept, "named").data;
    let plan = named.plan.to_string();
    let by_plan = [
        "--store",
        lab.store(),
        "--plan",
        &plan,
        "--epochs",
        "1",
        "--run",
        "planned",
        "--record",
        lab.kept(),
    ];
    done(1, &by_plan);
    assert_eq!(named.dataset.as_deref(), Some("digits"));
    assert_eq!(record(&lab.kept, "planned").data, named);
}

#[test]
fn a_training_that_loses_ranks_has_the_record_of_one_that_nothing_happened_to_and_can_be_had_again() {
    let lab = Lab::new();
    done(3, &lab.training("whole", &["--record", lab.kept()]));
    let kept = ["--record", "--checkpoints", lab.kept(), "--checkpoint-every", "3", "--progress", "-"];
    let arguments = lab.training("parts", &kept);
    for (world, steps) in [(4, 20), (3, 9), (2, 14)] {
        let ends = end(start(world, &arguments), Some(steps));
        let record = record(&lab.kept, "parts");
        println!("{world} ranks: {:?}, {} steps, {}", ends[0].code, record.steps.end, record.ending);
        assert_eq!((ends[0].code, ends.last().unwrap().code), (Some(3), None), "{}", ends[0].error);
        assert!(matches!(record.ending, Ending::Failed { .. }), "{}", record.ending);
    }
    done(1, &arguments);

    let (whole, parts) = (record(&lab.kept, "whole"), record(&lab.kept, "parts"));
    assert_eq!((&parts.steps, parts.weights), (&whole.steps, whole.weights));
    assert_eq!(parts.ending, Ending::Trained);
    let worlds: Vec<u32> = parts.launches.iter().map(|launch| launch.world).collect();
    // One that was killed before its first checkpoint has no part in it.
    assert!(worlds.len() >= 2 && worlds.last() == Some(&1), "{worlds:?}");
    assert!(parts.launches.is_sorted_by_key(|launch| launch.first_step));
    let data = &parts.data;
    assert_eq!((data.dataset.as_deref(), data.plan), (Some("digits"), lab.store.plan));
    assert_eq!(data.samples, lab.store.manifest.sample_count());
    let steps = whole.steps.end;
    let same = format!("steps 0 to {} are the same to the last bit\n", steps - 1);
    assert_eq!(lab.bisect(0, "whole", "parts"), same);

    let rerun = |id: &str| -> Vec<String> {
        ["rerun", id, "--record", lab.kept(), "--store", lab.store()].map(str::to_owned).into()
    };
    for world in [1, 2] {
        let arguments = rerun("parts");
        let said = done(world, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(
            said.starts_with(&format!("{steps} steps are the same to the last bit, and the weights")),
            "{said}"
        );
    }
}

#[test]
fn where_two_trainings_part_is_named() {
    let lab = Lab::new();
    let train =
        |run: &str, more: &[&str]| done(1, &lab.training(run, &[&["--record", lab.kept()], more].concat()));
    train("plain", &[]);
    train("linear", &["--schedule", "linear"]);
    train("seed", &["--seed", "7"]);
    train("clip", &["--clip-grad-norm", "0.5", "--record-every", "5"]);

    let said = lab.bisect(1, "plain", "linear");
    let per_epoch = record(&lab.kept, "plain").steps.end / 2;
    // Both warm up for an epoch.
    let first = format!(
        "step {} (epoch 1) is the first that differs: the same gradient and another learning rate",
        per_epoch + 1
    );
    assert!(
        said.starts_with(&first) && said.contains(r#"schedule: {"name":"cosine"} and {"name":"linear"}"#),
        "{said}"
    );
    let said = lab.bisect(1, "plain", "seed");
    assert!(said.starts_with("they begin with other weights"), "{said}");
    assert!(
        said.contains(
            "step 0 (epoch 0) is the first that differs, in virtual ranks 0, 1, 2, 3: the same samples"
        ),
        "{said}"
    );
    let said = lab.bisect(1, "plain", "clip");
    assert!(said.starts_with("step ") && said.contains("clipping: null and 0.5"), "{said}");
    let json = ends_with(1, &["bisect", "plain", "linear", "--record", lab.kept(), "--json"]).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["same"], &json["difference"]["first"]["what"]), (&false.into(), &"rate".into()));
}

#[test]
fn the_losses_of_a_step_are_those_of_its_samples() {
    let lab = Lab::new();
    let progress = done(1, &lab.training("plain", &["--record", lab.kept(), "--progress", "-"]));
    let line = |step: usize| -> Value { serde_json::from_str(progress.lines().nth(step).unwrap()).unwrap() };
    let record = record(&lab.kept, "plain");
    let (size, per_epoch) = (record.global_batch_size().unwrap(), record.steps_per_epoch().unwrap());
    let plan = LocalCatalog::open(lab.store.path()).unwrap().plan(record.data.plan).unwrap();
    let plan = Plan::new(plan, &lab.store.manifest.shard_rows()).unwrap();

    let rerun = ["rerun", "plain", "--record", lab.kept(), "--store", lab.store()];
    let of_step = |step: &str, more: &[&str]| {
        ends_with(0, &[&rerun[..], &["--sample-losses", step], more].concat()).out
    };
    // One in the middle of the second epoch, and the short last one.
    for step in [per_epoch + 2, 2 * per_epoch - 1] {
        let page: Value = serde_json::from_str(&of_step(&step.to_string(), &["--json"])).unwrap();
        assert_eq!((&page["step"], &page["epoch"]), (&step.into(), &1.into()));
        let samples = page["samples"].as_array().unwrap();
        let begins = (step - per_epoch) * size;
        let mut expected: Vec<(u64, u64)> = (begins..(begins + size).min(record.data.samples))
            .map(|position| (position, plan.sample_at(Epoch(1), position).0))
            .collect();
        let number = |sample: &Value, name: &str| sample[name].as_u64().unwrap();
        let mut found: Vec<(u64, u64)> =
            samples.iter().map(|sample| (number(sample, "position"), number(sample, "sample"))).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        let losses: Vec<f64> = samples.iter().map(|sample| sample["loss"].as_f64().unwrap()).collect();
        assert!(losses.is_sorted_by(|one, next| one >= next), "the largest comes first: {losses:?}");
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let trained = line(step as usize)["loss"].as_f64().unwrap();
        assert!((mean - trained).abs() < 1e-9, "step {step}: {mean}, and {trained} in the training");
    }
    // With checkpoints it begins at the last one before the step, and finds the same.
    let kept =
        ["--record", "--checkpoints", lab.kept(), "--checkpoint-every", "3", "--keep-checkpoints", "99"];
    done(1, &lab.training("stored", &kept));
    let (step, steps) = ((per_epoch + 2).to_string(), lab.kept.join("steps"));
    let stored = ["rerun", "stored", "--record", lab.kept(), "--store", lab.store(), "--json"];
    let more = ["--sample-losses", &step, "--progress", steps.to_str().unwrap()];
    assert_eq!(ends_with(0, &[&stored[..], &more].concat()).out, of_step(&step, &["--json"]));
    let trained = std::fs::read_to_string(&steps).unwrap().lines().count() as u64;
    assert_eq!(trained, (per_epoch + 2) % 3 + 1, "no step before the checkpoint");

    // Saved ones are the same, twice are once, and they are those of the record.
    let records =
        CheckpointStore::open(&StorePlace::Directory(lab.kept.clone()), &"it".parse().unwrap()).unwrap();
    let (shelf, id) = (records.records(), record.id());
    let row = records.handle().block_on(shelf.step(&record, per_epoch + 2)).unwrap().unwrap();
    let saved = || records.handle().block_on(shelf.losses(&record, &row)).unwrap();
    assert_eq!(saved(), None);
    for _ in 0..2 {
        let Said { out, error, .. } =
            ends_with(0, &[&rerun[..], &["--sample-losses", &step, "--json", "--save"]].concat());
        assert_eq!(out, of_step(&step, &["--json"]));
        assert!(error.contains(&format!("saved beside record {}", id.short())), "{error}");
    }
    let mut rows = saved().expect("they are saved");
    rows.sort_by(largest_first);
    let printed: Value = serde_json::from_str(&of_step(&step, &["--json"])).unwrap();
    let printed = printed["samples"].as_array().unwrap();
    assert_eq!(rows.len(), printed.len());
    for (row, printed) in rows.iter().zip(printed) {
        assert_eq!((&printed["sample"], &printed["position"]), (&row.sample.into(), &row.position.into()));
        assert!((row.loss - printed["loss"].as_f64().unwrap()).abs() < 1e-12, "{row:?} and {printed}");
    }
    let saved_files = || -> Vec<PathBuf> {
        let entries = |path: PathBuf| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries(lab.kept.join(format!("runs/plain/losses/{step}"))).flat_map(entries).collect()
    };
    assert_eq!(saved_files().len(), 1);

    // The next record of the training has them, and another save says so.
    let mut next = record.clone();
    next.launches[0].until += 1;
    let next = records.handle().block_on(async {
        let next = shelf.publish(&next).await?;
        shelf.remove(id, &record).await?;
        Ok::<_, RecordError>(next)
    });
    let next = next.unwrap();
    assert_eq!(saved_files().len(), 1);
    let Said { error, .. } = ends_with(0, &[&rerun[..], &["--sample-losses", &step, "--save"]].concat());
    assert!(error.contains(&format!("saved beside record {}", next.short())), "{error}");
    assert_eq!(saved_files().len(), 1);

    let page = of_step("0", &[]);
    assert!(page.starts_with(&format!("step 0, epoch 0: {size} samples, mean loss ")), "{page}");

    let refused = |more: &[&str], said: &str| {
        let Said { error, .. } = ends_with(2, &[&rerun[..], more].concat());
        assert!(error.contains(said), "{said:?} is missing: {error}");
    };
    let end = record.steps.end.to_string();
    refused(&["--sample-losses", &end], &format!("has steps 0 to {}", record.steps.end - 1));
    refused(&["--sample-losses", "1", "--world", "2"], "needs one rank");
    refused(&["--json"], "--sample-losses");
    refused(&["--save"], "--sample-losses");
}

#[test]
fn what_cannot_be_trained_again_is_said_with_what_is_missing() {
    let lab = Lab::new();
    done(1, &lab.training("it", &["--record", lab.kept()]));
    let empty = lab.store.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let refused = |arguments: &[&str], said: &str| {
        let Said { error, .. } = ends_with(2, arguments);
        assert!(error.contains(said), "{said:?} is missing: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    let (store, kept) = (lab.store(), lab.kept());
    let elsewhere = empty.to_str().unwrap();
    refused(&["rerun", "it", "--record", kept, "--store", elsewhere], "of digits, which cannot be read here");
    refused(&["rerun", "other", "--record", kept, "--store", store], "there is no record other");
    refused(&["rerun", "it", "--record", "/no/such/place", "--store", store], "there is no directory");
    refused(&["bisect", "it", "other", "--record", kept], "there is no record other");
    refused(&lab.training("it", &["--record"]), "--record DIR");

    let steps = lab.kept.join("runs/it/steps");
    let part = std::fs::read_dir(&steps).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&part).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&part, damaged).unwrap();
    refused(&["rerun", "it", "--record", kept, "--store", store], "corrupt");
    std::fs::write(&part, whole).unwrap();

    // A record that differs from its replay is found out.
    let shelf =
        CheckpointStore::open(&StorePlace::Directory(lab.kept.clone()), &"it".parse().unwrap()).unwrap();
    let told = record(&lab.kept, "it");
    let forged = Record { run: "forged".parse().unwrap(), arguments: vec!["--epochs=2".to_owned()], ..told };
    let records = shelf.records();
    let put = async {
        records.put_part(&forged.run, std::fs::read(&part).unwrap().into()).await?;
        records.publish(&forged).await
    };
    shelf.handle().block_on(put).unwrap();
    let Said { error, .. } = ends_with(1, &["rerun", "forged", "--record", kept, "--store", store]);
    assert!(error.contains("not the training of record") && error.contains("dropout"), "{error}");
}
