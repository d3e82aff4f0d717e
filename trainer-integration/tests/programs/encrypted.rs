//! Ranks as processes that show each other certificates.

use std::process::Command;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::certificates::Authority;
use crate::common::DigitsStore;
use crate::launch::{Launcher, outcome, read_report, report_of, undisturbed};
use crate::rank::{Rank, free_address};

const SETTINGS: [&str; 4] = ["--epochs", "6", "--virtual-ranks", "4"];

fn rank(store: &DigitsStore, number: &str, master: &str, more: &[&str]) -> Rank {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.arg("--store").arg(store.path()).args(["--plan", &store.plan.to_string()]);
    command.args(["--test-dataset", "digits-test", "--world", "2", "--rank", number, "--master", master]);
    command.args(SETTINGS).args(more);
    Rank::spawn(&mut command)
}

#[test]
fn ranks_with_certificates_train_the_same_weights_and_let_no_other_in() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let (authority, other) = (Authority::new(), Authority::new());
    let [first, second, stranger] = [authority.issue("n1"), authority.issue("n2"), other.issue("n3")];
    let master = free_address();
    let report = report_of(&store);
    let with_report = [&first.flags()[..], &["--report", report.to_str().unwrap()]].concat();
    let host = rank(&store, "0", &master, &with_report);

    let (code, said) = rank(&store, "1", &master, &[]).end();
    assert!(code == Some(1) && said.contains(&master) && said.contains("--tls-cert"), "{code:?}: {said}");
    let (code, said) = rank(&store, "1", &master, &stranger.flags()).end();
    assert!(code == Some(2) && said.contains(&master) && said.contains("another authority"), "{said}");

    assert_eq!(rank(&store, "1", &master, &second.flags()).end(), (Some(0), String::new()));
    let (code, said) = host.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("it shows no certificate") && said.contains("127.0.0.1"), "{said}");
    assert_eq!(outcome(&read_report(&store)), outcome(&whole));
}

#[test]
fn a_launch_with_certificates_survives_the_loss_of_a_rank() {
    let store = DigitsStore::new();
    let whole = undisturbed(&store, &SETTINGS);
    let certificate = Authority::new().issue("n1");
    let kept = store.path().join("kept");
    let kept = ["--checkpoints", kept.to_str().unwrap(), "--checkpoint-every", "3"];
    let arguments = [&SETTINGS[..], &kept, &certificate.flags()].concat();
    for launch in [&["--nproc", "3"][..], &["--nproc", "3", "--elastic"]] {
        let launcher = Launcher::start(&store, launch, &arguments);
        let pids = launcher.world(3);
        launcher.train(10);
        kill_process(pids[1], Signal::KILL).unwrap();
        launcher.world(2);
        let (code, said) = launcher.end();
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(outcome(&read_report(&store)), outcome(&whole));
        std::fs::remove_dir_all(store.path().join("kept")).unwrap();
    }
}

#[test]
fn certificates_that_do_not_fit_are_a_usage_error() {
    let store = DigitsStore::new();
    let authority = Authority::new();
    let (good, old) = (authority.issue("n1"), authority.issue_expired("n2"));
    let ended = |flags: &[&str]| rank(&store, "1", "127.0.0.1:1", flags).end();
    let (code, said) = ended(&old.flags());
    assert!(code == Some(2) && said.contains("expired") && said.contains("shardctl certs issue"), "{said}");
    let (code, said) = ended(&good.flags()[..2]);
    assert!(code == Some(2) && said.contains("--tls-key"), "{said}");
    let other = Authority::new().issue("n3");
    let (code, said) = ended(&[&good.flags()[..], &["--tls-ca", other.ca.to_str().unwrap()]].concat());
    assert!(code == Some(2) && said.contains("another authority") && said.contains("--tls-ca"), "{said}");
}

#[test]
fn collectives_are_measured_with_certificates_too() {
    let certificate = Authority::new().issue("n1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.args(["bench-comm", "--world", "2", "--sizes", "1MiB", "--operations", "all_reduce"]);
    let output = command.args(["--time", "20", "--json"]).args(certificate.flags()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["transport"], &report["is_encrypted"]), (&"tcp".into(), &true.into()));

    // Empty variables are none, and an authority alone asks for nothing.
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardtrain"));
    command.args([
        "bench-comm",
        "--world",
        "2",
        "--sizes",
        "1KiB",
        "--operations",
        "all_reduce",
        "--time",
        "20",
    ]);
    command.env("SHARDD_TLS_CERT", "").env("SHARDD_TLS_KEY", "").env("SHARDD_TLS_CA", "/nowhere/ca.pem");
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["is_encrypted"], false);
}
