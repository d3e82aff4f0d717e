//! Records of trainings in the store: lists, courses, and the place of a step in the data.

use shardd_store::record::{
    CheckpointWritten, Data, Ending, FORMAT, Launch, Listed, Record, RecordError, Records, SampleLoss,
    ShareRow, StepRow, StepsTable, encode_part,
};
use shardfmt::{Digest, PlanId};

use super::*;

/// Steps of the recorded training; that of the spike; steps of an epoch; samples of a step.
const STEPS: u64 = 1500;
const SPIKE: u64 = 340;
const PER_EPOCH: u64 = 32;
const BATCH: u64 = 64;

fn row(step: u64) -> StepRow {
    let loss = if step == SPIKE { 640.0 } else { 64.0 };
    let share = |virtual_rank: u32| {
        let loss = if virtual_rank == 5 { loss - 56.0 } else { 8.0 };
        ShareRow { samples: 8, loss, correct: 4, input: None, gradient: None }
    };
    StepRow {
        step,
        epoch: (step / PER_EPOCH) as u32,
        rate: 0.1,
        samples: BATCH,
        loss,
        correct: 32,
        gradient_norm: loss / 64.0,
        is_skipped: step == SPIKE,
        weights: None,
        shares: (0..8).map(share).collect(),
    }
}

/// A checkpoint of every tenth step.
fn checkpoint(number: u64) -> CheckpointWritten {
    let name = format!("{:012}-{}", 10 * number, Digest::of(&number.to_le_bytes()));
    let step = 10 * number;
    CheckpointWritten { name, step, at: 1000 + number, bytes: 2048, written_bytes: 1024, millis: 250 }
}

/// A training of eight virtual ranks, on two ranks, and from step 320 on three.
fn recorded(server: &Server, dataset: Option<&str>) -> String {
    recorded_of(server, dataset, VersionId(Digest::of(b"v")), 2048)
}

/// The same, over this version with this number of samples.
fn recorded_of(server: &Server, dataset: Option<&str>, version: VersionId, samples: u64) -> String {
    recorded_by(server, dataset, version, samples, PER_EPOCH)
}

/// The same, in epochs of this number of steps.
fn recorded_by(
    server: &Server,
    dataset: Option<&str>,
    version: VersionId,
    samples: u64,
    per_epoch: u64,
) -> String {
    let origin =
        Origin::open(&server.directory.path().join("store").display().to_string()).expect("the store");
    let records = Records::new(Arc::new(origin));
    let run: shardd_api::protocol::RunId = "r1".parse().expect("a name");
    let rows: Vec<StepRow> = (0..STEPS).map(row).collect();
    let parts = rows.chunks(shardd_store::record::STEPS_PER_PART as usize).map(encode_part);
    let put = |part| server.runtime.block_on(records.put_part(&run, part)).expect("put");
    let launch = |first_step, world| Launch {
        first_step,
        world,
        started: 1000,
        until: 2000,
        version: "0.1.0".to_owned(),
        program: None,
        device: "cpu".to_owned(),
        processor: "a processor".to_owned(),
        memory_bytes: (world == 3).then_some(5 << 30),
    };
    let data = format!("\"plan x, 2048 samples in steps of {BATCH}, last batch Short\"");
    let settings = [("data", data), ("steps per epoch", per_epoch.to_string())];
    let record = Record {
        format: FORMAT,
        run: run.clone(),
        data: Data {
            dataset: dataset.map(str::to_owned),
            version,
            plan: PlanId(Digest::of(b"p")),
            q: "0.1".to_owned(),
            seed: 0,
            samples,
        },
        virtual_ranks: 8,
        arguments: Vec::new(),
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        is_exact: true,
        steps: StepsTable {
            first: 0,
            end: STEPS,
            of: 2000,
            digests_every: 1,
            parts: parts.map(put).collect(),
        },
        first_weights: Digest::of(b"w"),
        weights: None,
        checkpoints: Vec::new(),
        checkpoint_writes: (1..=150).map(checkpoint).collect(),
        launches: vec![launch(0, 2), launch(320, 3)],
        ending: Ending::Stopped,
    };
    server.runtime.block_on(records.publish(&record)).expect("published").to_string()
}

/// Saves these losses for each of these steps of a record.
fn save_losses(server: &Server, id: &str, steps: impl IntoIterator<Item = u64>, losses: &[SampleLoss]) {
    let store = server.directory.path().join("store").display().to_string();
    let records = Records::new(Arc::new(Origin::open(&store).expect("the store")));
    let listed = Listed { run: "r1".parse().expect("a name"), id: id.parse().expect("an id") };
    let save = async {
        let record = records.read(&listed).await?;
        for step in steps {
            records.put_losses(&record, &row(step), losses).await?;
        }
        Ok::<_, RecordError>(())
    };
    server.runtime.block_on(save).expect("saved");
}

#[test]
fn a_spike_in_the_course_leads_to_the_positions_that_its_step_read() {
    let server = Server::start();
    let id = recorded(&server, Some("d"));
    let listed = server.document("runs/r1/records");
    let record = &listed[0];
    let wanted = json!([id, "d", 8, BATCH, 0, STEPS, 2000, "stopped", 2000]);
    let names =
        ["id", "dataset", "virtual_ranks", "global_batch_size", "first", "end", "of", "ending", "written"];
    assert_eq!(Value::from(names.map(|name| record[name].clone()).to_vec()), wanted);
    assert_eq!(server.document("runs/r2/records"), json!([]));

    let path = format!("runs/r1/records/{id}/steps");
    let course = server.document(&format!("{path}?points=50"));
    let points = course["points"].as_array().expect("points");
    assert!(points.len() <= 50 && course["is_sampled"] == false);
    let spike = points.iter().find(|point| point["loss_max"] == 10.0).expect("it is seen in 50 points");
    assert_eq!(
        (&spike["step_of_max"], &spike["skipped"], &spike["loss_min"]),
        (&json!(SPIKE), &json!(1), &json!(1.0))
    );
    let near = server.document(&format!("{path}?from=1020&to=1030"));
    assert_eq!(near["points"].as_array().map(Vec::len), Some(10), "two parts have these steps");
    assert_eq!(server.document(&format!("{path}?from=9000"))["points"], json!([]));

    let step = server.document(&format!("{path}/{SPIKE}"));
    let names = ["epoch", "step_of_epoch", "position", "global_batch_size", "world", "loss", "is_skipped"];
    let wanted = json!([10, 20, 20 * BATCH, BATCH, 3, 10.0, true]);
    assert_eq!(Value::from(names.map(|name| step[name].clone()).to_vec()), wanted);
    let shares = step["shares"].as_array().expect("shares");
    let ranks: Vec<&Value> = shares.iter().map(|share| &share["rank"]).collect();
    assert_eq!(ranks, [0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!((&shares[5]["loss"], &shares[4]["loss"]), (&json!(73.0), &json!(1.0)));
    assert_eq!(server.document(&format!("{path}/319"))["world"], 2);
}

#[test]
fn what_is_not_recorded_is_not_found() {
    let server = Server::start();
    let id = recorded(&server, None);
    let other = Digest::of(b"another");
    assert_eq!(server.refused(&format!("runs/r1/records/{other}/steps")).0, 404);
    assert_eq!(server.refused(&format!("runs/r2/records/{id}/steps")).0, 404);
    let (status, why) = server.refused(&format!("runs/r1/records/{id}/steps/{STEPS}"));
    assert_eq!((status, why), (404, format!("the record has no step {STEPS}, but 0 to {}", STEPS - 1)));
    assert_eq!(server.refused(&format!("runs/r1/records/{id}/steps?points=0")).0, 400);
    assert_eq!(server.refused("runs/r1/records/x/steps").0, 400);
    assert_eq!(server.refused(&format!("runs/r1/records/{id}/steps/-1")).0, 400);
}

#[test]
fn the_data_of_a_record_is_that_of_its_version() {
    let server = Server::start();
    let rows = [0, 3].map(super::contents::rows);
    let config = json!({ "seed": 1, "base": Digest::of(b"before").to_string() });
    let (version, ..) = version_of(&server.catalog(), "pets", rows, config);
    let id = recorded_of(&server, Some("pets"), version, 6);
    let data = server.document(&format!("runs/r1/records/{id}/summary"));
    let training = &data["trainings"][0];
    let names = ["record", "dataset", "version", "ending", "root"];
    let wanted = json!([id, "pets", version, "stopped", null]);
    assert_eq!(Value::from(names.map(|name| training[name].clone()).to_vec()), wanted);
    // 1,500 steps in epochs of 32 steps; the first step of an epoch reads all six samples.
    let epochs = training["epochs"].as_array().expect("epochs");
    assert_eq!((epochs.len(), &epochs[46]), (47, &json!({ "epoch": 46, "samples": 6, "root": null })));
    assert_eq!((&data["epochs"], &data["samples_read"]), (&json!(47), &json!(47 * 6)));

    let known = &data["versions"][0];
    let names = ["dataset", "samples", "samples_read", "classes"];
    assert_eq!(
        Value::from(names.map(|name| known[name].clone()).to_vec()),
        json!(["pets", 6, 6, 2]),
        "{known}"
    );
    assert_eq!(known["derived_from"], json!([Digest::of(b"before")]), "it is named though it is gone");
    let amounts = known["amounts"].as_array().expect("amounts");
    let pictures = json!({ "modality": "image", "unit": "pictures", "amount": 4 });
    assert!(amounts.contains(&pictures), "{amounts:?}");
    assert_eq!(known["columns"][0]["media_type"], "image/png");

    // Of a long training the last epochs are listed, and all are counted.
    let long = recorded_by(&server, Some("pets"), version, 6, 10);
    let data = server.document(&format!("runs/r1/records/{long}/summary"));
    let epochs = data["trainings"][0]["epochs"].as_array().expect("epochs");
    assert_eq!((epochs.len(), &epochs[0]["epoch"], &epochs[99]["epoch"]), (100, &json!(50), &json!(149)));
    assert_eq!((&data["epochs"], &data["samples_read"]), (&json!(150), &json!(150 * 6)));
    assert_eq!(data["versions"][0]["samples_read"], 6);

    let listed = server.document("runs/r1/records");
    let store = server.directory.path().join("store");
    assert_eq!(listed[0]["store"], store.display().to_string(), "commands name it");
    assert_eq!(server.refused(&format!("runs/r2/records/{id}/summary")).0, 404);
    let gone = recorded(&server, None);
    assert_eq!(server.refused(&format!("runs/r1/records/{gone}/summary")).0, 404, "the version is not there");
}

#[test]
fn saved_losses_of_a_step_come_with_the_largest_first_and_others_with_the_command() {
    let server = Server::start();
    let id = recorded(&server, Some("d"));
    let path = |step: u64| format!("runs/r1/records/{id}/steps/{step}/losses");
    let (status, why) = server.refused(&path(SPIKE));
    let store = server.directory.path().join("store");
    let command = format!(
        "`shardtrain rerun {} --sample-losses {SPIKE} --save --record {}",
        &id[..12],
        store.display()
    );
    assert!(status == 404 && why.contains(&command) && why.contains(" --server http"), "{why}");
    assert_eq!(server.document("runs/r1/records")[0]["losses"], json!({ "count": 0, "last": [] }));

    let of = |at: u64| SampleLoss {
        sample: 900 + at,
        position: 20 * BATCH + at,
        virtual_rank: (at / 8) as u32,
        loss: match at {
            7 => f64::NAN,
            _ => at as f64,
        },
        answers: 1,
    };
    let losses: Vec<SampleLoss> = (0..BATCH).map(of).collect();
    save_losses(&server, &id, [SPIKE], &losses);
    let found = server.document(&path(SPIKE));
    assert_eq!((&found["samples"], &found["mean"]), (&json!(BATCH), &json!(null)));
    let largest = found["largest"].as_array().expect("samples");
    let names = ["sample", "position", "virtual_rank", "loss"];
    let first: Vec<Value> = names.map(|name| largest[0][name].clone()).to_vec();
    assert_eq!(Value::from(first), json!([907, 20 * BATCH + 7, 0, null]), "NaN is the largest");
    assert_eq!(
        (largest.len(), &largest[1]["loss"], &largest[1]["virtual_rank"]),
        (64, &json!(63.0), &json!(7))
    );
    let few = server.document(&format!("{}?limit=3", path(SPIKE)));
    assert_eq!((few["largest"].as_array().map(Vec::len), &few["samples"]), (Some(3), &json!(BATCH)));
    let listed_losses = || server.document("runs/r1/records")[0]["losses"].clone();
    assert_eq!(listed_losses(), json!({ "count": 1, "last": [SPIKE] }));
    // The last hundred are listed, and all are counted.
    save_losses(&server, &id, 0..110, &losses[..1]);
    let last: Vec<u64> = (11..110).chain([SPIKE]).collect();
    assert_eq!(listed_losses(), json!({ "count": 111, "last": last }));
    assert_eq!(server.document(&path(3))["samples"], 1, "one that is not listed is there");

    assert_eq!(server.refused(&format!("{}?limit=0", path(SPIKE))).0, 400);
    assert_eq!(server.refused(&path(STEPS)).0, 404);
    assert_eq!(server.refused(&format!("runs/r2/records/{id}/steps/{SPIKE}/losses")).0, 404);
}

#[test]
fn a_token_for_other_datasets_sees_nothing_of_a_record() {
    let server = Server::start();
    let rows = [0, 3].map(super::contents::rows);
    let (version, ..) = version_of(&server.catalog(), "pets", rows, json!({}));
    let id = recorded_of(&server, Some("pets"), version, 6);
    let loss = SampleLoss { sample: 1, position: 0, virtual_rank: 0, loss: 0.5, answers: 1 };
    save_losses(&server, &id, [SPIKE], &[loss]);

    let (_, made) = server.send("tokens", &json!({ "name": "boss", "role": "admin" }));
    let bearer = |made: Response<ureq::Body>| {
        let made: Value = serde_json::from_slice(&bytes(made)).expect("JSON");
        format!("Bearer {}", made["token"].as_str().expect("a token"))
    };
    let boss = bearer(made);
    let reader = |name: &str| {
        let body = json!({ "name": name, "role": "read", "datasets": [name] });
        let reply = agent().post(server.url("tokens")).header("authorization", &boss).send_json(body);
        bearer(reply.expect("an answer"))
    };
    let (of_it, of_another) = (reader("pets"), reader("digits"));
    let step = format!("steps/{SPIKE}");
    for below in ["steps", &step, &format!("{step}/losses"), "summary"] {
        let path = format!("runs/r1/records/{id}/{below}");
        assert_eq!(server.get(&path, &[]).0, 401, "{below}");
        let (status, reply) = server.get(&path, &[("authorization", &of_it)]);
        assert_eq!(status, 200, "{below}: {}", String::from_utf8_lossy(&bytes(reply)));
        let (status, reply) = server.get(&path, &[("authorization", &of_another)]);
        let why = format!("run r1 has no record {id}");
        assert_eq!((status.as_u16(), detail(reply)), (404, why), "{below}: as if there were none");
    }
}

#[test]
fn a_record_has_the_memory_of_its_launches_and_its_last_checkpoints() {
    let server = Server::start();
    recorded(&server, Some("d"));
    let listed = server.document("runs/r1/records");
    let launches = listed[0]["launches"].as_array().expect("launches");
    let memory: Vec<Option<&Value>> = launches.iter().map(|launch| launch.get("memory_bytes")).collect();
    assert_eq!(memory, [None, Some(&json!(5_u64 << 30))], "of the first it is not known");
    let checkpoints = &listed[0]["checkpoints"];
    assert_eq!(
        (&checkpoints["count"], checkpoints["last"].as_array().map(Vec::len)),
        (&json!(150), Some(100))
    );
    let last = json!({ "step": 1500, "at": 1150, "bytes": 2048, "written_bytes": 1024, "took_s": 0.25 });
    assert_eq!((&checkpoints["last"][99], &checkpoints["last"][0]["step"]), (&last, &json!(510)));
}
