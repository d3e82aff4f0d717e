//! `shardctl runs` on records that were put by hand.

use std::sync::Arc;

use shardd_store::origin::Origin;
use shardd_store::record::{
    CheckpointWritten, Data, Digest128, Ending, FORMAT, Launch, Record, RecordId, Records, ShareRow, StepRow,
    StepsTable, encode_part,
};
use shardfmt::{Digest, PlanId, VersionId};

use crate::desk::{Desk, text};

/// A step of two virtual ranks.
fn row(step: u64, rate: f32) -> StepRow {
    let share = |rank: u8| ShareRow {
        samples: 8,
        loss: 1.5,
        correct: 3,
        input: Some(Digest128([rank; 16])),
        gradient: Some(Digest128([rank; 16])),
    };
    StepRow {
        step,
        epoch: 0,
        rate,
        samples: 16,
        loss: 3.0,
        correct: 6,
        gradient_norm: 0.5,
        is_skipped: false,
        weights: Some(Digest::of(&rate.to_le_bytes())),
        shares: vec![share(0), share(1)],
    }
}

/// Puts the record of a run whose rate falls after `falls` of 10 steps into the desk's store.
fn put(desk: &Desk, run: &str, falls: u64) -> RecordId {
    put_changed(desk, run, falls, |_| {})
}

/// The same after a change of the record.
pub(crate) fn put_changed(desk: &Desk, run: &str, falls: u64, change: impl FnOnce(&mut Record)) -> RecordId {
    let rows: Vec<StepRow> = (0..10).map(|step| row(step, if step < falls { 0.1 } else { 0.01 })).collect();
    let data = Data {
        dataset: Some("digits".to_owned()),
        version: VersionId(Digest::of(b"version")),
        plan: PlanId(Digest::of(b"plan")),
        q: "0.1".to_owned(),
        seed: 0,
        samples: 160,
    };
    let launch = Launch {
        first_step: 0,
        world: 2,
        started: 1_790_000_000,
        until: 1_790_000_060,
        version: "0.1.0".to_owned(),
        program: None,
        device: "cpu".to_owned(),
        processor: "x86_64".to_owned(),
        memory_bytes: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let origin = Origin::open_dir(&desk.dir.path().join("store")).unwrap();
        let records = Records::new(Arc::new(origin));
        let run = run.parse().unwrap();
        let part = records.put_part(&run, encode_part(&rows)).await.unwrap();
        let mut record = Record {
            format: FORMAT,
            run,
            data,
            virtual_ranks: 2,
            arguments: vec!["--epochs=1".to_owned()],
            settings: [("schedule".to_owned(), format!("\"after {falls}\""))].into(),
            is_exact: true,
            steps: StepsTable { first: 0, end: 10, of: 10, digests_every: 1, parts: vec![part] },
            first_weights: Digest::of(b"first"),
            weights: Some(Digest::of(&[falls as u8])),
            checkpoints: Vec::new(),
            checkpoint_writes: Vec::new(),
            launches: vec![launch],
            ending: Ending::Trained,
        };
        change(&mut record);
        records.publish(&record).await.unwrap()
    })
}

#[test]
fn records_are_listed_shown_and_compared() {
    assert!(Desk::new().refused(1, &["runs", "ls"]).contains("there is no directory"));
    let desk = Desk::with_digits();
    assert!(desk.done(&["runs", "ls"]).contains("no runs yet"));
    let (a, b, c) = (put(&desk, "a", 6), put(&desk, "b", 9), put(&desk, "b", 6));

    let listed = &desk.json(&["runs", "ls"])[0];
    let runs: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            (it["id"].as_str().unwrap(), it["state"].as_str().unwrap(), it["details"]["records"].as_u64())
        })
        .collect();
    assert_eq!(runs, [("a", "finished", Some(1)), ("b", "finished", Some(2))], "a run is one line");
    assert_eq!(desk.json(&["runs", "ls", "b"])[0].as_array().unwrap().len(), 1);
    let page = desk.done(&["runs", "ls"]);
    assert!(page.lines().count() == 3 && page.contains("2026-09-21 14:14:20"), "{page}");

    let shown = desk.done(&["runs", "show", "a", "--steps"]);
    for said in
        [&a.to_string()[..], "0 to 10 of 10", "2026-09-21 14:14:20", "after 6", "6 of 16", "--epochs=1"]
    {
        assert!(shown.contains(said), "{said} is missing: {shown}");
    }
    let lines = desk.json(&["runs", "show", &b.short(), "--steps"]);
    assert_eq!((lines.len(), &lines[0]["id"]), (11, &b.to_string().into()));
    assert_eq!((&lines[10]["step"], &lines[10]["virtual_ranks"][1]["samples"]), (&9.into(), &8.into()));

    let found = desk.run(&["runs", "diff", "a", &b.short()]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stderr));
    let said = text(&found.stdout);
    assert!(
        said.contains(
            "step 6 (epoch 0) is the first that differs: the same gradient and another learning rate"
        ),
        "{said}"
    );
    assert!(said.contains("schedule: \"after 6\" and \"after 9\""), "{said}");
    let same = &desk.json(&["runs", "diff", "a", &c.short()])[0];
    assert_eq!((&same["same"], &same["difference"]["steps"][1]), (&true.into(), &10.into()));

    let both = desk.done(&["runs", "show", "b"]);
    assert!(both.contains(&b.short()) && both.contains(&c.short()), "{both}");
    assert_eq!(desk.json(&["runs", "show", "b"])[0]["records"].as_array().unwrap().len(), 2);
    assert!(desk.refused(2, &["runs", "diff", "a", "b"]).contains("give more of the id"));
    assert!(desk.refused(1, &["runs", "show", "none"]).contains(&a.short()));
    assert!(desk.refused(2, &["runs", "diff", "a", "none"]).contains("no record none"));
}

#[test]
fn a_record_shows_the_memory_of_its_launches_and_its_checkpoints() {
    let desk = Desk::with_digits();
    put(&desk, "before", 6);
    let name = format!("{:012}-{}", 9, Digest::of(b"checkpoint"));
    put_changed(&desk, "after", 6, |record| {
        record.launches[0].memory_bytes = Some(3 << 30);
        record.checkpoints = vec![name.clone()];
        let at = 1_790_000_030;
        let (step, bytes, written_bytes, millis) = (9, 5 << 20, 2 << 20, 1_500);
        let name = name.clone();
        record.checkpoint_writes = vec![CheckpointWritten { name, step, at, bytes, written_bytes, millis }];
    });
    let shown = desk.done(&["runs", "show", "after"]);
    for said in
        ["most memory", "3.0 GiB", "complete (UTC)", "2026-09-21 14:13:50", "5.0 MiB", "2.0 MiB", "1.5"]
    {
        assert!(shown.contains(said), "{said} is missing: {shown}");
    }
    let json = &desk.json(&["runs", "show", "after"])[0]["record"];
    assert_eq!(json["launches"][0]["memory_bytes"], 3_u64 << 30);
    assert!(!desk.done(&["runs", "show", "before"]).contains("complete (UTC)"));
    assert!(desk.done(&["runs", "diff", "before", "after"]).contains("are the same to the last bit"));
}

#[test]
fn a_run_is_removed_with_its_records_and_its_checkpoints_only_when_told() {
    let desk = Desk::with_digits();
    let (a, b) = (put(&desk, "a", 6), put(&desk, "b", 9));
    let file = |name: &str| desk.dir.path().join("store/runs").join(name);
    for run in ["a", "b"] {
        std::fs::create_dir_all(file(run).join("checkpoints")).unwrap();
        std::fs::write(file(run).join("checkpoints/1-x.json"), b"{}").unwrap();
    }
    let asked = desk.refused(2, &["runs", "rm", "a"]);
    assert!(
        asked.contains("records: 1") && asked.contains("checkpoints: 1") && asked.contains("--yes"),
        "{asked}"
    );
    assert!(file(&format!("a/records/{a}.json")).exists(), "nothing was removed");
    desk.done(&["runs", "rm", "a", "--yes"]);
    assert!(!file(&format!("a/records/{a}.json")).exists());
    assert_eq!(std::fs::read_dir(file("a/steps")).unwrap().count(), 0);
    assert!(file("a/checkpoints/1-x.json").exists(), "weights stay by default");
    let listed = &desk.json(&["runs", "ls", "a"])[0][0];
    assert_eq!((&listed["details"]["records"], &listed["details"]["checkpoints"]), (&0.into(), &1.into()));

    let planned = &desk.json(&["runs", "expire", "--older-than", "1d"])[0];
    let names: Vec<_> =
        planned["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!((names, &planned["dry_run"]), (vec!["a", "b"], &true.into()));
    assert!(file(&format!("b/records/{b}.json")).exists());
    assert!(desk.refused(2, &["runs", "expire"]).contains("--keep"));
    desk.done(&["runs", "expire", "--keep", "0", "--checkpoints", "--delete"]);
    assert_eq!(desk.json(&["runs", "ls"])[0].as_array().unwrap().len(), 0);
    assert!(!file("a/checkpoints/1-x.json").exists());
    assert!(desk.refused(1, &["runs", "rm", "b", "--yes"]).contains("no run b"));
}

#[test]
fn damage_is_said_and_told_from_difference() {
    let desk = Desk::new();
    let (a, b) = (put(&desk, "a", 6), put(&desk, "b", 9));
    let folder = desk.dir.path().join("store/runs/b/steps");
    let part = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    assert!(desk.refused(2, &["runs", "diff", &a.short(), &b.short()]).contains("corrupt"));
    std::fs::write(desk.dir.path().join(format!("store/runs/a/records/{a}.json")), b"{}").unwrap();
    assert!(desk.refused(1, &["runs", "show", "a"]).contains("corrupt"));
}

#[test]
fn a_trace_is_of_nodes_and_takes_no_place_of_records() {
    let desk = Desk::new();
    assert!(!desk.done(&["runs", "trace", "--help"]).contains("--record"));
    for args in [
        ["runs", "trace", "r", "--out", "x", "--record", "y"],
        ["runs", "--record", "y", "trace", "r", "--out", "x"],
    ] {
        assert!(desk.refused(2, &args).contains("leave out --record"), "{args:?}");
    }
}
