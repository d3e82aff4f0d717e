//! A year later: a rank's samples are read again, every use of a sample is found, and the reading is proved.
//! With the real programs, on a directory and through a node.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};
use arrow::ipc::reader::FileReader;
use serde_json::{Value, json};
use shardd_tests::{Cluster, Delivered, Node, Reading, binary, error_line, hex128, run};
use shardfmt::{RowCodec, RowDigest};
use tempfile::TempDir;

const SAMPLES: u64 = 1437;

/// Where commands work: in a folder with a store, or in a folder and with a node.
struct Place {
    folder: TempDir,
    at: Vec<String>,
}

impl Place {
    /// A store with the digits in shards of this size, and a plan of 16 partitions.
    fn directory(shard_size: &str) -> Place {
        let place = Place::new(&["--store", "s"]);
        place.fill(shard_size);
        place
    }

    fn new(at: &[&str]) -> Place {
        let folder = TempDir::new().expect("a temporary directory can be made");
        Place { folder, at: at.iter().map(ToString::to_string).collect() }
    }

    fn fill(&self, shard_size: &str) {
        let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/data/digits/train.parquet");
        let digits = digits.display();
        self.json(&format!("ingest {digits} --name digits --shard-size {shard_size}"));
        self.json("partition digits --q 0.3 --partitions 16");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn shardctl(&self, words: &str) -> Command {
        let mut command = Command::new(binary("shardctl"));
        command.args(&self.at).args(words.split_whitespace());
        command.env("HOME", self.folder.path()).current_dir(self.folder.path());
        command
    }

    fn lines(&self, words: &str) -> Vec<Value> {
        let printed = run(self.shardctl(words).arg("--json"));
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn json(&self, words: &str) -> Value {
        self.lines(words).pop().expect("it prints something")
    }

    /// The lines that it printed before it failed with 1, and its error.
    fn fails(&self, words: &str) -> (Vec<Value>, String) {
        let output = self.shardctl(words).arg("--json").output().expect("shardctl starts");
        assert_eq!(output.status.code(), Some(1), "{words}: {}", error_line(&output));
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (lines, error_line(&output))
    }

    fn refused(&self, words: &str) -> (String, i32) {
        let output = self.shardctl(words).output().expect("shardctl starts");
        (error_line(&output), output.status.code().expect("it was not killed"))
    }

    /// What `read` gives a rank, step by step, with all rows.
    fn read(&self, run: &str, rank: u32, world: u32, more: &str) -> Vec<Value> {
        let mut steps = self.lines(&format!("read --run {run} --rank {rank} --world {world} --rows {more}"));
        steps.pop().expect("it ends with a summary");
        steps
    }

    /// The batches of a file that `replay` wrote.
    fn written(&self, name: &str) -> Vec<RecordBatch> {
        let file = fs::File::open(self.path(name)).expect("it was written");
        let batches = FileReader::try_new(file, None).expect("an Arrow file");
        batches.map(|batch| batch.expect("a batch")).collect()
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} of {value}"))
}

/// (position, digest) of each row of a replayed step, by position.
fn rows(given: &Value) -> Vec<(u64, String)> {
    let micro_batches = given["micro_batches"].as_array().expect("a list");
    let all = micro_batches.iter().flat_map(|one| one["rows"].as_array().expect("a list"));
    let mut rows: Vec<(u64, String)> =
        all.map(|row| (number(row, "position"), row["digest"].as_str().expect("text").to_owned())).collect();
    rows.sort_unstable();
    rows
}

/// Each replayed step is what the loader gave, and the file has its very values.
fn replayed_is_read(place: &Place, which: &str, rank: u32, world: u32, read: &[Value]) {
    let first = &read[0];
    let from = format!("--epoch {} --position {}", first["epoch"], first["from"]);
    let asked = format!("replay {which} {from} --rank {rank} --world {world}");
    let steps = format!("--batch-size 5 --steps {} --out out.arrow", read.len());
    let given = place.lines(&format!("{asked} {steps}"));
    assert_eq!(given.len(), read.len());
    let mut batches = place.written("out.arrow").into_iter();
    for (given, read) in given.iter().zip(read) {
        for field in ["epoch", "from", "to", "samples", "digest", "sum"] {
            assert_eq!(given[field], read[field], "{field} of {read}");
        }
        let delivered: Vec<(u64, String)> =
            serde_json::from_value(read["rows"].clone()).expect("positions and digests");
        assert_eq!(rows(given), delivered);
        for one in given["micro_batches"].as_array().expect("a list") {
            let batch = batches.next().expect("a record batch for each micro-batch");
            assert_eq!(batch.num_rows() as u64, number(one, "samples"));
            let own = batch.project(&(4..batch.num_columns()).collect::<Vec<_>>()).expect("columns");
            let codec = RowCodec::new(own.schema()).expect("a plain schema");
            let mut bytes = Vec::new();
            for (at, row) in one["rows"].as_array().expect("a list").iter().enumerate() {
                let begin = bytes.len();
                codec.encode(&own, at, &mut bytes).expect("a row");
                assert_eq!(row["digest"], RowDigest::of(&bytes[begin..]).to_string());
                let positions = batch.column(2).as_primitive::<UInt64Type>();
                assert_eq!(positions.value(at), number(row, "position"));
                let virtual_ranks = batch.column(1).as_primitive::<UInt32Type>();
                assert_eq!(u64::from(virtual_ranks.value(at)), number(one, "virtual_rank"));
            }
            assert_eq!(one["digest"], shardfmt::Digest::of(&bytes).to_string());
        }
    }
    assert!(batches.next().is_none());
}

#[test]
fn what_a_rank_was_given_is_given_again_from_a_directory_and_through_a_node() {
    let cluster = Cluster::start(1);
    let node = Place::new(&["--server", &cluster.nodes[0].http]);
    let whole = Place::directory("16KiB");
    let by_range = Place::directory("1MiB");
    node.fill("1MiB");
    for (place, which, again) in [
        (&whole, "--virtual-ranks 8", "--virtual-ranks 8"),
        (&by_range, "--virtual-ranks 8", "--virtual-ranks 8"),
        (&node, "--virtual-ranks 8", "--run r"),
    ] {
        // A rank of three of eight virtual ranks, over the end of an epoch.
        let ranks: Vec<Vec<Value>> = std::thread::scope(|threads| {
            let read = |rank| {
                move || place.read("r", rank, 3, &format!("{which} --batch-size 5 --start 1:0 --epochs 3"))
            };
            let ranks: Vec<_> = (0..3).map(|rank| threads.spawn(read(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("it reads")).collect()
        });
        for (rank, read) in ranks.iter().enumerate() {
            replayed_is_read(place, again, rank as u32, 3, &read[33..38]);
        }
    }
    let step = "replay --epoch 2 --position 40 --global-batch-size 24 --rank 3 --world 8 --virtual-ranks 16";
    assert_eq!(by_range.json(step), node.json(step), "the same plan of the same version");
    let page = run(&mut node.shardctl(step));
    assert!(page.starts_with("epoch 2  positions 40..64  rank 3 of 8  3 samples"), "{page}");
    assert!(page.contains("virtual rank 6 of 16: ") && page.contains("virtual rank 7 of 16: "), "{page}");
}

/// Flips a bit in the middle of each shard's file.
fn spoil(place: &Place) {
    let mut spoiled = 0;
    for folder in fs::read_dir(place.path("s/store/shards")).expect("a store") {
        for file in fs::read_dir(folder.expect("readable").path()).expect("a folder") {
            let path = file.expect("readable").path();
            if path.extension().is_some_and(|kind| kind == "arrow") {
                let mut bytes = fs::read(&path).expect("a shard");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                fs::write(&path, bytes).expect("it can be written");
                spoiled += 1;
            }
        }
    }
    assert!(spoiled > 0);
}

#[test]
fn a_flipped_bit_is_refused_and_what_is_beside_it_is_given() {
    // All in one shard: a row is read by its range, and the flipped bit is in one row.
    let by_range = Place::directory("1MiB");
    let all = "replay --global-batch-size 1 --steps 1437";
    let before = by_range.lines(all);
    spoil(&by_range);
    let (given, said) = by_range.fails(all);
    let at = given.len();
    assert!(at < before.len() && given[..] == before[..at], "the rows given before are right");
    let row = &before[at]["micro_batches"][0]["rows"][0];
    let shard = row["shard"].as_str().expect("text");
    assert!(said.contains(&format!("row {} of shard {shard} is not what", row["row"])), "{said}");
    assert!(said.contains("shardctl verify --repair"), "{said}");
    let rest = format!("replay --position {} --global-batch-size 1 --steps {}", at + 1, 1436 - at);
    assert_eq!(by_range.lines(&rest), before[at + 1..]);

    let (given, said) = by_range.fails("replay --global-batch-size 1437 --out out.arrow");
    assert!(given.is_empty() && said.contains(shard), "{said}");
    assert!(!by_range.path("out.arrow").exists(), "only whole files have a name");
    let whole = Place::directory("16KiB");
    spoil(&whole);
    assert!(whole.fails(all).1.contains("its bytes have digest"));
}

#[test]
fn what_cannot_be_given_again_is_refused_by_name() {
    let place = Place::directory("16KiB");
    fs::create_dir(place.path("folder")).expect("it can be made");
    for (words, said, code) in [
        ("--batch-size 4 --position 1437", "position 1437 is outside the epoch, which has 1437 samples", 2),
        ("--batch-size 4 --plan cifar", "there is no plan cifar", 1),
        ("--batch-size 4 --run nobody", "there is no run nobody", 1),
        ("--batch-size 4 --rank 8 --world 8", "rank 8 is not one of 8: use 0 to 7", 2),
        ("--batch-size 4 --world 5 --virtual-ranks 4", "1, 2 or 4", 2),
        ("--batch-size 4 --virtual-ranks 5", "4 or 8", 2),
        ("--batch-size 4 --world 0", "0", 2),
        ("--batch-size 0", "--batch-size", 2),
        ("--batch-size 4 --global-batch-size 4", "cannot be used with", 2),
        ("--rank 0", "--global-batch-size", 2),
        ("--batch-size 4 --epoch 4294967295", "earlier epoch", 2),
        ("--batch-size 4 --run r --virtual-ranks 4", "cannot be used with", 2),
        ("--batch-size 4 --out none/out.arrow", "none/out.arrow cannot be written", 1),
        ("--batch-size 4 --out folder", "folder cannot be written", 1),
    ] {
        let (line, found) = place.refused(&format!("replay {words}"));
        assert!(line.contains(said) && found == code, "{words}: {line} ({found})");
        assert_eq!(line.lines().count(), 1, "{words}: {line}");
    }
    for (words, said) in [
        ("plan where 7 --epochs 5..5", "FROM..TO"),
        ("plan where 7 --epochs 5 --epoch 3", "cannot be used with"),
        ("plan where 7 --epochs 5 --world 9 --virtual-ranks 8", "1, 2, 4 or 8"),
        ("plan where 7 --global-batch-size 0", "at least 1"),
        ("audit prove 1437", "there is no sample 1437"),
        ("audit verify", "--run RUN, --root ROOT of an epoch, or --consumed FILE"),
        ("audit root --epoch 4294967295", "earlier epoch"),
    ] {
        let (line, found) = place.refused(words);
        assert!(line.contains(said) && found == 2, "{words}: {line} ({found})");
    }
}

#[test]
fn every_use_of_a_sample_is_in_the_step_that_it_names() {
    let place = Place::directory("16KiB");
    let sizes = "--global-batch-size 50 --world 3 --virtual-ranks 8";
    for sample in [0, 700, SAMPLES - 1] {
        let uses = place.json(&format!("plan where {sample} --epochs 2..6 {sizes}"));
        let uses = uses.as_array().expect("a list");
        assert_eq!(uses.iter().map(|one| number(one, "epoch")).collect::<Vec<_>>(), [2, 3, 4, 5]);
        for one in uses {
            let (epoch, position) = (&one["epoch"], number(one, "step") * 50);
            let asked =
                format!("replay --epoch {epoch} --position {position} --rank {} {sizes}", one["rank"]);
            let given = place.json(&asked);
            let of_virtual_rank = given["micro_batches"].as_array().expect("a list").iter();
            let mut rows = of_virtual_rank
                .filter(|of| of["virtual_rank"] == one["virtual_rank"])
                .flat_map(|of| of["rows"].as_array().expect("a list"));
            assert!(rows.any(|row| row["sample"] == sample && row["position"] == one["position"]), "{one}");
        }
    }
    let page = run(&mut place.shardctl(&format!("plan where 7 --epochs 40 {sizes}")));
    assert_eq!(page.lines().count(), 41, "{page}");
}

#[test]
fn the_root_of_an_epoch_comes_out_however_many_ranks_consumed_it_and_out_of_nothing_else() {
    let place = Place::directory("16KiB");
    let read = |rank: u32, world: u32, file: &str, more: &str| {
        place.json(&format!("read --quiet --rank {rank} --world {world} --consumed {file} {more}"));
    };
    let epochs = "--virtual-ranks 8 --batch-size 7 --epochs 3";
    (0..3).for_each(|rank| read(rank, 3, &format!("of-3-{rank}"), epochs));
    let verdict = place.json("audit verify --consumed of-3-0 of-3-1 of-3-2");
    assert_eq!(verdict["exactly_once"], true, "{verdict}");
    let roots: Vec<Value> =
        (0..3).map(|epoch| place.json(&format!("audit root --epoch {epoch}"))["root"].clone()).collect();
    for (epoch, found) in verdict["epochs"].as_array().expect("a list").iter().enumerate() {
        assert_eq!((&found["epoch"], &found["root"]), (&json!(epoch), &roots[epoch]));
        let given = format!("audit verify --root {} --epochs {epoch}..{}", text(&roots[epoch]), epoch + 1);
        assert_eq!(place.json(&given)["exactly_once"], true);
    }
    assert!(
        place.fails(&format!("audit verify --root {}", text(&roots[1]))).1.contains("epoch 0 does not match")
    );

    // Another world, and another that begins within the epoch.
    (0..5).for_each(|rank| read(rank, 5, &format!("of-5-{rank}"), "--virtual-ranks 16 --batch-size 3"));
    let of_5 = "audit verify --consumed of-5-0 of-5-1 of-5-2 of-5-3 of-5-4";
    assert_eq!(place.json(of_5)["epochs"][0]["root"], roots[0]);
    let page = run(&mut place.shardctl(of_5));
    assert!(page.contains("each sample once in 1 epoch"), "{page}");
    read(0, 1, "late", "--virtual-ranks 16 --start 0:600");

    for (files, said) in [
        ("of-3-0 of-3-2", "samples are in no report, the first is that of partition 4"),
        ("of-3-0 of-3-1 of-3-2 of-3-1", "are in two reports"),
        ("late", "samples are in no report, the first is that of partition 0 at position 0"),
        ("late of-5-0", "are in two reports"),
    ] {
        let (lines, error) = place.fails(&format!("audit verify --consumed {files}"));
        let found = text(&lines[0]["epochs"][0]["said"]);
        assert!(found.contains(said) && error.contains("epoch"), "{files}: {found}; {error}");
    }
    let reports = fs::read_to_string(place.path("of-3-1")).expect("written");
    let (first, others) = reports.split_once('\n').expect("a line for each epoch");
    let mut altered: Value = serde_json::from_str(first).expect("JSON");
    altered["parts"][0]["nodes"][0] = "0".repeat(64).into();
    fs::write(place.path("altered"), format!("{altered}\n{others}")).expect("it can be written");
    let (lines, _) = place.fails("audit verify --consumed of-3-0 altered of-3-2");
    assert!(text(&lines[0]["epochs"][0]["said"]).contains("other bytes"), "{lines:?}");
    assert_eq!(lines[0]["epochs"][1]["exactly_once"], true);
    fs::write(place.path("nonsense"), "{}\n").expect("it can be written");
    assert!(place.fails("audit verify --consumed nonsense").1.contains("nonsense, line 1: not the format"));
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

#[test]
fn a_proof_holds_with_nothing_but_the_root_and_breaks_when_it_is_touched() {
    let place = Place::directory("16KiB");
    let made = place.json("audit prove 700 --epoch 2 --out proof.json");
    let root = place.json("audit root --epoch 2")["root"].clone();
    assert_eq!(made["root"], root);
    let used = place.json("plan where 700 --epoch 2");
    let read = place.read("read", 0, 1, "--start 2:0 --epochs 3");
    let rows = read.iter().flat_map(|step| step["rows"].as_array().expect("a list"));
    let delivered: BTreeMap<u64, &Value> =
        rows.map(|row| (row[0].as_u64().expect("a number"), &row[1])).collect();

    // In another place, without the store.
    let elsewhere = Place::new(&[]);
    fs::copy(place.path("proof.json"), elsewhere.path("proof.json")).expect("it can be copied");
    let root = text(&root);
    let proof = elsewhere.json(&format!("audit check proof.json --root {root}"))["proof"].clone();
    assert_eq!((&proof["sample"], &proof["position"]), (&json!(700), &used["position"]));
    assert_eq!(&proof["row"], delivered[&number(&proof, "position")], "the bytes that were delivered");
    assert_eq!(place.json("audit prove 700 --epoch 2"), proof);

    let other = place.json("audit root --epoch 3")["root"].clone();
    let (_, said) = elsewhere.fails(&format!("audit check proof.json --root {}", text(&other)));
    assert!(said.contains("does not lead to that root"), "{said}");
    for (field, value) in [("sample", json!(701)), ("position", json!(1)), ("row", json!("0".repeat(32)))] {
        let mut touched = proof.clone();
        touched[field] = value;
        fs::write(elsewhere.path("touched.json"), touched.to_string()).expect("it can be written");
        let (_, said) = elsewhere.fails(&format!("audit check touched.json --root {root}"));
        assert!(said.contains("does not lead to that root"), "{field}: {said}");
    }
    fs::write(elsewhere.path("none.json"), "{}").expect("it can be written");
    assert!(elsewhere.fails(&format!("audit check none.json --root {root}")).1.contains("is not a proof"));
}

#[test]
fn a_run_is_audited_and_a_rank_that_is_missing_repeats_or_alters_is_named() {
    let cluster = Cluster::start(1);
    let node = Place::new(&["--server", &cluster.nodes[0].http]);
    node.fill("16KiB");
    let plan = node.json("plan ls")[0].clone();
    let reading = Reading { world: 4, virtual_ranks: 8, ..Reading::alone(&json!({ "plan": plan["id"] }), 2) };
    Delivered::collect(cluster.read(&reading), |_, _| {});
    let verdict = node.json("audit verify --run r");
    assert_eq!(verdict["exactly_once"], true, "{verdict}");
    let page = run(&mut node.shardctl("audit verify --run r"));
    assert!(page.contains("epoch 1: 1,437 samples in 4 reports, each once"), "{page}");
    assert!(page.contains(text(&plan["version"])), "{page}");
    let (lines, said) = node.fails("audit verify --run r --epochs 3");
    assert!(said.contains("epoch 2 does not match"), "{said}");
    assert_eq!(lines[0]["epochs"][2]["said"], "no rank reported a sum");

    let told = |run: &str, report: &Value| {
        let url = format!("{}/v1/runs/{run}/audit", cluster.nodes[0].http);
        ureq::post(&url).send_json(report).map(|answer| answer.status().as_u16())
    };
    let begun = |run: &str| {
        let create = json!({ "id": run, "plan": plan["id"], "virtual_ranks": 8 });
        ureq::post(format!("{}/v1/runs", cluster.nodes[0].http)).send_json(create).expect("a run");
    };
    let reports = cluster.nodes[0].get("/v1/runs/r/audit");
    let reports = reports.as_array().expect("a list");
    let of_rank_2 = reports.iter().find(|one| one["epoch"] == 1 && one["rank"] == 2).expect("reported");
    let sample = |number: u64| {
        let found = node.json(&format!("plan where {number}"));
        let given = node.json(&format!("replay --position {} --global-batch-size 1", found["position"]));
        hex128(
            &given["micro_batches"]
                .as_array()
                .expect("a list")
                .iter()
                .find(|of| of["samples"] == 1)
                .expect("one")["rows"][0]["digest"],
        )
        .swap_bytes()
    };
    let changed = |samples: i64, sum: u128| {
        let mut report = of_rank_2.clone();
        let count = number(of_rank_2, "samples").checked_add_signed(samples).expect("small");
        report["samples"] = count.into();
        report["digest_sum"] = format!("{:032x}", hex128(&of_rank_2["digest_sum"]).wrapping_add(sum)).into();
        report
    };
    let more = format!("rank 2 of 4 read its {} and sample 700 more", number(of_rank_2, "samples"));
    for (name, report, said) in [
        ("more", changed(1, sample(700)), more.as_str()),
        ("other", changed(0, 1), "some were left out, came again, or had other bytes"),
    ] {
        assert!(matches!(told("r", &report), Err(ureq::Error::StatusCode(409))), "a report stays");
        assert!(matches!(told("r", of_rank_2), Ok(204)), "the same again is harmless");
        begun(name);
        for one in reports {
            let report = if one == of_rank_2 { &report } else { one };
            assert!(matches!(told(name, report), Ok(204)));
        }
        let (lines, error) = node.fails(&format!("audit verify --run {name}"));
        let found = text(&lines[0]["epochs"][1]["said"]);
        assert!(found.contains(said), "{found}");
        assert!(error.contains("epoch 1 does not match plan and manifest"), "{error}");
        assert_eq!(lines[0]["epochs"][0]["exactly_once"], true, "the epoch before is as it was");
    }

    assert_eq!(node.json("audit verify --run r")["exactly_once"], true);
    assert!(matches!(told("nobody", of_rank_2), Err(ureq::Error::StatusCode(404))));
    begun("s");
    assert!(node.fails("audit verify --run s").1.contains("no rank of run s has reported anything"));
    reports.iter().filter(|one| one["rank"] != 3).for_each(|report| assert!(told("s", report).is_ok()));
    let (lines, said) = node.fails("audit verify --run s");
    assert!(said.contains("2 epochs do not match plan and manifest, the first is epoch 0"), "{said}");
    assert_eq!(lines[0]["epochs"][0]["said"], "rank 3 of 4 reported nothing");
}

#[test]
fn a_step_of_a_recorded_training_leads_to_the_samples_that_its_ranks_read() {
    let place = Place::directory("64KiB");
    let mut train = Command::new(binary("shardtrain"));
    train.args(["run", "--nproc", "2", "--", "--store", "s", "--dataset", "digits", "--epochs", "2"]);
    train.args(["--global-batch-size", "64", "--virtual-ranks", "8", "--run", "t", "--record", "s"]);
    run(train.current_dir(place.folder.path()).env("HOME", place.folder.path()));

    // The eighth step of the second epoch, whose 23rd has 29 samples.
    let step = place.json("explain step 30 --run t");
    let told = ["step", "epoch", "step_of_epoch", "position", "global_batch_size", "virtual_ranks", "world"]
        .map(|name| number(&step["step"], name));
    assert_eq!(told, [30, 1, 7, 448, 64, 8, 2]);
    let shares = step["step"]["shares"].as_array().expect("shares");
    let sum = |share: &Value| share["loss"].as_f64().expect("a loss") * number(share, "samples") as f64;
    let mean = shares.iter().map(sum).sum::<f64>() / 64.0;
    let loss = step["step"]["loss"].as_f64().expect("a loss");
    assert!((mean - loss).abs() < 1e-9 * loss, "{mean} and {loss}");

    let samples = |value: &Value| -> BTreeMap<u64, u64> {
        let rows = value.as_array().expect("samples");
        rows.iter().map(|row| (number(row, "position"), number(row, "sample"))).collect()
    };
    for rank in 0..2 {
        let own = place.json(&format!("explain step 30 --run t --rank {rank}"));
        let words = "replay --epoch 1 --position 448 --global-batch-size 64 --virtual-ranks 8 --world 2";
        let replayed = place.json(&format!("{words} --rank {rank}"));
        let micro_batches = replayed["micro_batches"].as_array().expect("micro-batches");
        let rows =
            micro_batches.iter().flat_map(|one| one["rows"].as_array().expect("rows").clone()).collect();
        assert_eq!(samples(&own["samples"]), samples(&Value::Array(rows)), "rank {rank}");
        assert_eq!(samples(&own["samples"]).len(), 32);
    }
    assert_eq!(samples(&step["samples"]).len(), 64);
    let page = run(&mut place.shardctl("explain step 45 --run t"));
    assert!(page.contains("1, step 22 of it") && page.contains("1,408 to 1,436"), "{page}");

    let (why, code) = place.refused("explain step 46 --run t");
    assert!(code == 2 && why.contains("the newest has 0 to 45"), "{why}");
    let (why, code) = place.refused("explain step 1 --run u");
    assert!(code == 1 && why.contains("run u has no record here"), "{why}");
    let (why, code) = place.refused("explain step 1 --run t --rank 2");
    assert!(code == 2 && why.contains("give 0 to 1"), "{why}");
}

#[test]
fn nodes_explain_a_step_of_a_record_in_their_store() {
    let root = TempDir::new().expect("a temporary directory can be made");
    let node = Node::start(root.path(), "n1", None);
    let store = node.data.join("store");
    let place = Place::new(&["--server", &node.http]);
    place.fill("64KiB");
    let mut train = Command::new(binary("shardtrain"));
    train.args(["--server", &node.http, "--dataset", "digits", "--epochs", "1", "--run", "t", "--record"]);
    run(train.arg(&store).current_dir(root.path()).env("HOME", root.path()));

    let by_node = place.json("explain step 7 --run t");
    let by_store = place.json(&format!("explain step 7 --run t --record {}", store.display()));
    assert_eq!(by_node, by_store);
    assert!(by_node["step"]["loss"].as_f64().is_some_and(f64::is_finite), "{by_node}");
    let (why, code) = place.refused("explain step 7 --run u");
    assert!(code == 1 && why.contains("run u"), "{why}");
    let (why, code) = place.refused("explain step 700 --run t");
    assert!(code == 2 && why.contains("the newest has 0 to "), "{why}");
}
