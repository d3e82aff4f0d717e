//! Checkpoints of `shardtrain` as processes: killed at any moment, it resumes as if nothing had happened.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::DigitsStore;
use crate::rank::{Rank, free_address};

/// Ranks of one training with these further arguments, each of which writes progress to standard output.
fn launch(store: &DigitsStore, world: u32, arguments: &[&str]) -> Vec<Rank> {
    let master = free_address();
    let rank = |rank: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.arg("--store").arg(store.path()).args(["--plan", &store.plan.to_string()]);
        command.args(["--test-dataset", "digits-test"]);
        command.args(["--epochs", "4", "--progress", "-", "--master", &master]).args(arguments);
        command.args(["--rank", &rank.to_string(), "--world", &world.to_string()]);
        command.arg("--report").arg(report(store.path(), rank));
        Rank::spawn(&mut command)
    };
    (0..world).map(rank).collect()
}

fn report(store: &Path, rank: u32) -> PathBuf {
    store.join(format!("report-{rank}.json"))
}

/// Lets all ranks end well: what the first one reports.
fn finish(store: &DigitsStore, mut ranks: Vec<Rank>) -> Value {
    std::thread::scope(|scope| {
        for lines in ranks.iter_mut().map(Rank::lines) {
            scope.spawn(move || lines.for_each(drop));
        }
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()));
        }
    });
    serde_json::from_slice(&std::fs::read(report(store.path(), 0)).unwrap()).unwrap()
}

/// Lets them train until the last rank has seen a number of steps, then does something to one of them and
/// waits for all of them to end.
fn until(mut ranks: Vec<Rank>, steps: usize, act: impl FnOnce(&Rank)) -> Vec<(Option<i32>, String)> {
    std::thread::scope(|scope| {
        let mut lines: Vec<_> = ranks.iter_mut().map(Rank::lines).collect();
        let watched = lines.pop().unwrap();
        // All pipes are read, or a full one would stop its rank.
        for lines in lines {
            scope.spawn(move || lines.for_each(drop));
        }
        let mut watched = watched.take_while(Result::is_ok);
        for _ in 0..steps {
            watched.next();
        }
        act(ranks.last().unwrap());
        scope.spawn(move || watched.for_each(drop));
        ranks.into_iter().map(Rank::end).collect()
    })
}

/// What no training with other ranks or interruptions may differ in.
fn outcome(report: &Value) -> [&Value; 5] {
    ["weights_digest", "loss_per_epoch", "test_loss", "steps", "samples"].map(|name| &report[name])
}

#[test]
fn a_training_killed_again_and_again_gives_what_an_undisturbed_one_gives() {
    let store = DigitsStore::new();
    let whole = finish(&store, launch(&store, 1, &["--virtual-ranks", "4"]));
    let steps = whole["steps"].as_u64().unwrap();
    assert_eq!(whole["samples"].as_u64(), Some(4 * store.manifest.sample_count()));
    let kept = store.path().join("kept");
    let kept = kept.to_str().unwrap();
    // Every step is kept, so that kills come while checkpoints are written, too.
    let arguments = ["--checkpoints", kept, "--checkpoint-every", "1", "--keep-checkpoints", "2"];
    let first = [&arguments[..], &["--virtual-ranks", "4"]].concat();
    let mut kills = 0;
    for (world, after) in [(3, 9), (2, 5), (4, 12), (1, 7), (2, 3), (3, 11), (1, 1), (4, 6)] {
        // A resumed training need not know how many virtual ranks there were.
        let arguments = if kills == 0 { &first[..] } else { &arguments };
        let ends = until(launch(&store, world, arguments), after, |rank| rank.signal(Signal::KILL));
        println!("killed one of {world} ranks after {after} steps of its own: {ends:?}");
        assert_eq!(ends.last().unwrap().0, None, "it was killed");
        for (code, said) in &ends[..ends.len() - 1] {
            assert_eq!(*code, Some(3), "{said}");
            assert!(said.contains(&format!("rank {}", world - 1)), "{said}");
        }
        kills += 1;
    }
    let last = finish(&store, launch(&store, 3, &arguments));
    assert_eq!(outcome(&last), outcome(&whole));
    let resumed = last["resumed_from"].as_u64().expect("it resumed");
    assert!(0 < resumed && resumed < steps, "{resumed} of {steps}");
    println!("{kills} kills, at last from step {resumed} of {steps}: {}", last["weights_digest"]);
}

#[test]
fn a_training_that_is_terminated_ends_well_and_goes_on() {
    let store = DigitsStore::new();
    let kept = store.path().join("kept");
    let kept = kept.to_str().unwrap();
    let whole = finish(&store, launch(&store, 2, &["--virtual-ranks", "4"]));
    let arguments = ["--checkpoints", kept, "--virtual-ranks", "4"];
    for (signal, world) in [(Signal::TERM, 2), (Signal::INT, 3)] {
        for (code, said) in until(launch(&store, world, &arguments), 4, |rank| rank.signal(signal)) {
            assert_eq!((code, &said[..]), (Some(0), ""), "a stop that was asked for is no failure");
        }
    }
    let last = finish(&store, launch(&store, 4, &arguments));
    assert_eq!(outcome(&last), outcome(&whole));
    assert!(last["resumed_from"].as_u64() > Some(8), "{last}");
}

#[test]
fn weights_of_a_checkpoint_are_exported_as_the_training_saves_them() {
    let store = DigitsStore::new();
    let [kept, saved, exported] =
        ["kept", "saved.safetensors", "exported.safetensors"].map(|name| store.path().join(name));
    let at = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let (kept, saved) = (at(&kept), at(&saved));
    let arguments = ["--checkpoints", &kept, "--save", &saved, "--zero", "3", "--virtual-ranks", "4"];
    let report = finish(&store, launch(&store, 2, &arguments));
    assert!(report["checkpoints"]["written_bytes"].as_u64() > Some(0), "{report}");
    let export = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.args(["export", "--checkpoints", &kept, "--save"]).arg(&exported).args(arguments);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (code, said) = export(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("exported.safetensors"), "{said}");
    assert!(std::fs::read(&exported).unwrap() == std::fs::read(&saved).unwrap(), "other bytes");
    for (arguments, part) in [(&["--step", "7"][..], "no checkpoint 7"), (&["--run", "b"], "there are none")]
    {
        let (code, said) = export(arguments);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{said}");
    }
    assert!(std::fs::read(&exported).unwrap() == std::fs::read(&saved).unwrap(), "it is left as it was");
}

#[test]
fn mistakes_about_checkpoints_are_explained_in_one_line() {
    let store = DigitsStore::new();
    let kept = store.path().join("kept");
    let kept = kept.to_str().unwrap();
    let saved = store.path().join("saved.safetensors");
    let saved = saved.to_str().unwrap();
    let base = ["--checkpoints", kept, "--checkpoint-every", "20", "--save", saved];
    let whole = finish(&store, launch(&store, 1, &base));
    let refused = |arguments: &[&str]| {
        let arguments = [&base[..], arguments].concat();
        let (code, said) = launch(&store, 1, &arguments).remove(0).end();
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        (code.unwrap(), said)
    };
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--resume", "never"], 2, "another --run"),
        (&["--resume", "7"], 2, "no checkpoint 7"),
        (&["--lr", "0.3"], 2, "learning rate"),
        (&["--virtual-ranks", "3"], 2, "virtual ranks"),
        (&["--run", "b", "--init", kept], 1, "cannot begin with"),
        (&["--run", "b", "--image-size", "0"], 2, "--image-size"),
    ];
    for (arguments, expected, part) in cases {
        let (code, said) = refused(arguments);
        assert_eq!(code, expected, "{said}");
        assert!(said.contains(part), "{part:?} missing: {said}");
    }
    // Another step of the run, and other first weights for another one.
    let last = finish(&store, launch(&store, 1, &[&base[..], &["--resume", "80"]].concat()));
    assert_eq!((outcome(&last), &last["resumed_from"]), (outcome(&whole), &80.into()));
    let further = finish(&store, launch(&store, 1, &["--init", saved, "--warmup-epochs", "0"]));
    let first_loss = |report: &Value| report["loss_per_epoch"][0].as_f64().unwrap();
    assert!(first_loss(&further) < first_loss(&whole) / 2.0, "{further}");
}

#[test]
fn ranks_that_would_read_a_checkpoint_in_different_ways_are_told_which_setting_it_is() {
    let store = DigitsStore::new();
    let kept = store.path().join("kept");
    let arguments = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "20"];
    finish(&store, launch(&store, 2, &arguments));
    let master = free_address();
    let rank = |(rank, own): (u32, &[&str])| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
        command.arg("--store").arg(store.path()).args(["--plan", &store.plan.to_string()]);
        command.args(["--epochs", "5", "--master", &master, "--world", "2", "--rank", &rank.to_string()]);
        Rank::spawn(command.args(arguments).args(own))
    };
    let ranks: Vec<Rank> = [(0, &[][..]), (1, &["--zero", "3"])].into_iter().map(rank).collect();
    for (code, said) in ranks.into_iter().map(Rank::end) {
        let is_told = said.contains("zero (") && said.contains("start all ranks with the same settings");
        assert!(code == Some(1) && is_told, "{code:?}: {said}");
    }
}
