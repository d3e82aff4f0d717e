//! Operations on versions as people and scripts use them: versions grow, are resharded, compared, checked,
//! repaired and exported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardd_store::catalog::{Catalog, LocalCatalog};
use shardfmt::{Message, VersionId};

use crate::desk::{Desk, digits, text};

/// The files of a kind below a desk's store, in order.
fn files(desk: &Desk, extension: &str) -> Vec<PathBuf> {
    fn below(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { below(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    below(&desk.dir.path().join("store/store/shards"), &mut found);
    found.retain(|path| path.extension().is_some_and(|found| found == extension));
    found.sort();
    found
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].iter_mut().for_each(|byte| *byte ^= 0xff);
    fs::write(path, bytes).expect("room");
}

fn done(lines: &[Value]) -> &Value {
    lines.last().expect("the end")
}

/// What `diff` says, and its exit code.
fn diff(desk: &Desk, args: &[&str]) -> (Value, Option<i32>) {
    let output = desk.run(&[&["--json", "diff"], args].concat());
    let line = text(&output.stdout).lines().last().map(ToOwned::to_owned).unwrap_or_default();
    (serde_json::from_str(&line).unwrap_or_default(), output.status.code())
}

#[test]
fn a_dataset_grows_and_the_difference_is_what_was_added() {
    let desk = Desk::with_digits();
    let appended = desk.json(&["append", "digits", &digits("test"), "-m", "the rest"]);
    let appended = done(&appended);
    assert_eq!((&appended["samples"], &appended["added_samples"]), (&1797.into(), &360.into()));
    let (found, code) = diff(&desk, &["digits"]);
    assert_eq!(code, Some(1));
    assert_eq!(found["diff"]["samples"], serde_json::json!({ "kept": 1437, "added": 360, "removed": 0 }));
    assert_eq!(
        (&found["diff"]["shards"]["kept"], &found["diff"]["shards"]["removed"]),
        (&7.into(), &0.into())
    );
    assert_eq!(found["old"]["version"], appended["before"]);
    let said = desk.run(&["diff", "digits@~1", "digits", "--stats"]);
    let said = text(&said.stdout);
    for part in ["1,437 in both, 360 added, 0 removed", "label distance", "row bytes", "deviation"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let log = desk.done(&["log", "digits"]);
    assert!(log.contains("append") && log.contains("the rest"), "{log}");

    // A command that was killed after its commit is run again by a script, which sees that all is done.
    let again = desk.json(&["append", "digits", &digits("test"), "-m", "the rest"]);
    let again = done(&again);
    for part in ["version", "before", "samples", "added_samples", "added_shards"] {
        assert_eq!(again[part], appended[part], "{part}");
    }
    assert_eq!(
        desk.json(&["log", "digits"])[0].as_array().expect("commits").len(),
        2,
        "nothing was committed"
    );
    // What came in otherwise, or cut otherwise, is no such append.
    for command in [
        &["append", "digits", &digits("train")][..],
        &["append", "digits", &digits("test"), "--shard-size", "8KiB"],
    ] {
        let refused = desk.refused(1, command);
        assert!(refused.contains("in the version already") && refused.contains("--again"), "{refused}");
    }
    let csv = desk.dir.path().join("other.csv");
    fs::write(&csv, "label,image\n3,x\n").expect("room");
    let refused = desk.refused(1, &["append", "digits", csv.to_str().expect("text")]);
    assert!(refused.contains("other.csv") && refused.contains("column"), "{refused}");
    assert!(desk.refused(1, &["append", "nothing", &digits("test")]).contains("there is digits"));
}

#[test]
fn a_dataset_is_cut_anew_and_its_plans_go_on() {
    let desk = Desk::with_digits();
    let read =
        |desk: &Desk| desk.json(&["read", "--epochs", "2", "--batch-size", "50", "--virtual-ranks", "4"]);
    let steps =
        |lines: Vec<Value>| lines.into_iter().filter(|line| line["step"].is_u64()).collect::<Vec<_>>();
    let before = steps(read(&desk));
    let resharded = desk.json(&["reshard", "digits", "--shard-size", "5KiB"]);
    let resharded = done(&resharded);
    assert!(resharded["shards"].as_u64() > resharded["shards_before"].as_u64(), "{resharded}");
    let (found, code) = diff(&desk, &["digits"]);
    assert_eq!((code, &found["same"], &found["diff"]["same_order"]), (Some(0), &true.into(), &true.into()));
    assert_eq!(found["diff"]["samples"]["kept"], 1437);
    assert_eq!(steps(read(&desk)), before, "the plan of the old version reads the same samples");
    assert!(desk.done(&["verify"]).contains("row by row"));
    let again = desk.done(&["reshard", "digits", "--shard-size", "5KiB"]);
    assert!(again.contains("of that size already"), "{again}");
    let back = desk.json(&["reshard", "digits", "--shard-size", "16KiB"]);
    let (found, _) = diff(&desk, &["digits@~2", "digits"]);
    assert_eq!(
        found["diff"]["shards"],
        serde_json::json!({ "kept": 7, "added": 0, "removed": 0 }),
        "{back:?}"
    );
    assert!(desk.refused(2, &["reshard", "digits"]).contains("--shard-size"));
}

#[test]
fn diff_exits_as_diff_does() {
    let desk = Desk::with_digits();
    desk.done(&["ingest", &digits("train"), "--name", "other", "--seed", "5", "--shard-size", "16KiB"]);
    assert_eq!(diff(&desk, &["digits", "digits"]).1, Some(0));
    let (found, code) = diff(&desk, &["digits", "other"]);
    assert_eq!(
        (code, &found["diff"]["samples"]["added"], &found["diff"]["same_order"]),
        (Some(1), &0.into(), &false.into())
    );
    assert!(desk.refused(2, &["diff", "digits", "nothing"]).contains("nothing"));
    let said = text(&desk.run(&["diff", "digits", "other"]).stdout);
    assert!(said.contains("the same samples have other numbers"), "{said}");
}

#[test]
fn what_is_exported_is_ingested_as_the_same_samples() {
    let desk = Desk::with_digits();
    let out = desk.dir.path().join("out");
    let out = out.to_str().expect("text");
    let exported = desk.json(&["export", "digits", out, "--format", "parquet", "--shard-size", "64KiB"]);
    assert!(done(&exported)["files"].as_u64() > Some(1), "{exported:?}");
    desk.done(&["ingest", out, "--name", "again", "--mix", "sequential", "--shard-size", "16KiB"]);
    let (found, code) = diff(&desk, &["digits", "again"]);
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(found["diff"]["shards"]["removed"], 0, "to the very shards");
    let refused = desk.refused(1, &["export", "digits", out, "--format", "parquet"]);
    assert!(refused.contains("exists, and is not"), "{refused}");
    let tars = desk.dir.path().join("tars");
    let tars = tars.to_str().expect("text");
    desk.done(&["export", "digits@~0", tars, "--format", "webdataset"]);
    assert!(fs::read_dir(tars).expect("exported").count() == 1);
    // A file that cannot grow is a disk that is full: nothing is left.
    let full = desk.dir.path().join("full");
    let script = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} --store {} export digits {} --format parquet",
        env!("CARGO_BIN_EXE_shardctl"),
        desk.dir.path().join("store").display(),
        full.display()
    );
    let failed = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(text(&failed.stderr).contains("cannot be written"), "{}", text(&failed.stderr));
    let left =
        fs::read_dir(desk.dir.path()).expect("readable").map(|entry| entry.expect("an entry").file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("full")));
    let odd = ["export", "digits", "x", "--format", "webdataset", "--compression", "zstd"];
    assert!(desk.refused(2, &odd).contains("not compressed"));
}

#[test]
fn a_sample_says_how_much_it_may_have_missed() {
    let desk = Desk::with_digits();
    let sampled = desk.json(&["verify", "--sample", "3", "--seed", "1"]);
    let sampled = done(&sampled);
    assert_eq!(
        (&sampled["checked"], &sampled["shards"], &sampled["sample"]["seed"]),
        (&3.into(), &7.into(), &1.into())
    );
    let chance = sampled["sample"]["chance_to_miss_1_percent"].as_f64().expect("a number");
    assert!((chance - 4.0 / 7.0).abs() < 1e-9, "{sampled}");
    assert!(desk.done(&["verify", "digits", "--sample", "3"]).contains("with a chance of 95 %"));
}

#[test]
fn damage_is_mended_from_the_source_another_store_or_another_version() {
    let (desk, other) = (Desk::with_digits(), Desk::with_digits());
    let (shards, sidecars) = (files(&desk, "arrow"), files(&desk, "rows"));
    let intact: Vec<Vec<u8>> = shards.iter().map(|path| fs::read(path).expect("a shard")).collect();
    let damage = || {
        flip(&shards[0]);
        fs::remove_file(&shards[1]).expect("a shard");
        flip(&sidecars[2]);
        fs::remove_file(&sidecars[3]).expect("a sidecar");
    };
    let is_intact =
        || shards.iter().zip(&intact).all(|(path, bytes)| fs::read(path).is_ok_and(|found| found == *bytes));
    damage();
    let alone = desk.run(&["verify", "--repair"]);
    assert_eq!(alone.status.code(), Some(1));
    let said = text(&alone.stdout);
    assert_eq!(said.matches("mended from its own rows").count(), 2, "{said}");
    assert_eq!(said.matches("not mended").count(), 2, "{said}");
    assert!(text(&alone.stderr).contains("--from"));
    let copy = other.dir.path().join("store");
    desk.done(&["verify", "--repair", "--from", copy.to_str().expect("text")]);
    assert!(is_intact());

    damage();
    let mended = desk.json(&["verify", "--repair", "--from", &digits("train")]);
    assert_eq!(done(&mended)["mended"].as_array().map(Vec::len), Some(4), "{mended:?}");
    assert!(is_intact());

    desk.done(&["reshard", "digits", "--shard-size", "5KiB"]);
    damage();
    let mended = desk.done(&["verify", "digits@~1", "--repair"]);
    assert_eq!(mended.matches("mended from version").count(), 2, "{mended}");
    assert!(is_intact());
    damage();
    assert!(desk.run(&["verify", "digits@~1", "--repair", "--from", "/no/such/place"]).status.success());
    // With the other version gone, there is no place but the one that does not exist.
    desk.done(&["restore", "digits@~1"]);
    for shard in files(&desk, "arrow") {
        fs::remove_file(shard).expect("a shard");
    }
    let nowhere = desk.run(&["verify", "--repair", "--from", "/no/such/place"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        text(&nowhere.stderr).contains("note: /no/such/place is of no help"),
        "{}",
        text(&nowhere.stderr)
    );
}

#[test]
fn damage_is_mended_from_a_version_that_only_a_tag_keeps() {
    let desk = Desk::with_digits();
    let shards = files(&desk, "arrow");
    desk.done(&["ingest", &digits("train"), "--name", "twin", "--shard-size", "5KiB"]);
    desk.done(&["tag", "twin", "kept"]);
    desk.done(&["rm", "twin", "--yes"]);
    fs::remove_file(&shards[0]).expect("a shard");
    let mended = desk.done(&["verify", "digits", "--repair"]);
    assert!(mended.contains("mended from version"), "{mended}");
}

#[test]
fn a_manifest_that_would_be_written_otherwise_is_not_called_mended() {
    let (desk, other) = (Desk::with_digits(), tempfile::tempdir().expect("a temporary directory"));
    let info = desk.json(&["info"])[0].clone();
    let version: VersionId = info["version"].as_str().expect("an id").parse().expect("a version");
    let store = desk.dir.path().join("store/store");
    // The schema lies in the file twice, and only the last, in the footer, is read.
    let mut bytes = fs::read(store.join(version.object_key())).expect("a manifest");
    let key = b"shardd.config";
    let at = bytes.windows(key.len()).position(|found| found == key).expect("it is there");
    bytes[at + key.len() - 1] = b'k';
    let odd = VersionId::of(&bytes);
    for root in [&store, other.path()] {
        fs::create_dir_all(root.join("shards")).expect("room");
        fs::create_dir_all(root.join("manifests")).expect("room");
        fs::write(root.join(odd.object_key()), &bytes).expect("room");
    }
    let catalog = LocalCatalog::open(desk.dir.path().join("store")).expect("opens");
    let name = "digits".parse().expect("a name");
    catalog.restore(&name, Some(version), odd, &Message::default()).expect("all of it is there");
    drop(catalog);
    let damaged = store.join(odd.object_key());
    flip(&damaged);
    let place = other.path().to_str().expect("text");
    let refused = desk.refused(1, &["verify", "--repair", "--from", place]);
    assert!(refused.contains(&format!("copy {} from there", odd.object_key())), "{refused}");
    fs::copy(other.path().join(odd.object_key()), damaged).expect("room");
    desk.done(&["verify"]);
}

#[test]
fn tokens_are_appended_with_the_tokenizer_they_were_made_with() {
    let desk = Desk::new();
    let file = |name: &str, text: &str| {
        let path = desk.dir.path().join(name);
        fs::write(&path, text).expect("room");
        path.to_str().expect("text").to_owned()
    };
    let tokenizer = file(
        "words.json",
        r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"?":2},"unk_token":"?"}}"#,
    );
    let (first, second) = (file("first.txt", "a b"), file("second.txt", "b b a"));
    desk.done(&["ingest", &first, "--name", "tokens", "--tokenizer", &tokenizer]);
    let refused = desk.refused(2, &["append", "tokens", &second]);
    assert!(refused.contains("words.json") && refused.contains("--tokenizer FILE"), "{refused}");
    let refused = desk.refused(1, &["append", "tokens", &second, "--tokenizer", &first]);
    assert!(refused.contains("first.txt"), "{refused}");
    desk.done(&["append", "tokens", &second, "--tokenizer", &tokenizer]);
    assert_eq!(desk.json(&["info", "tokens"])[0]["samples"], 2);
}

#[test]
fn conversations_are_ingested_and_appended_with_the_template_they_were_made_with() {
    let desk = Desk::new();
    let file = |name: &str, text: &str| {
        let path = desk.dir.path().join(name);
        fs::write(&path, text).expect("room");
        path.to_str().expect("text").to_owned()
    };
    let chat = |role: &str, text: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "a"}}, {{"role": "{role}", "content": "{text}"}}]}}"#
        )
    };
    let tokenizer = file(
        "words.json",
        r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"a":0,"b":1,"?":2},"unk_token":"?"}}"#,
    );
    let source = "{{ strftime_now('%Y') }} {% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}\
                  {{ m.content }} {% endfor %}";
    let template = file("chat_template.jinja", source);
    let first = file("first.jsonl", &format!("{}\n{}\n", chat("assistant", "b b"), chat("user", "b")));
    let second = file("second.jsonl", &(chat("assistant", "b") + "\n"));
    let robots = file("robots.jsonl", &format!("{}\n{}\n", chat("assistant", "b"), chat("robot", "b")));
    let flags = ["--name", "chats", "--tokenizer", &tokenizer, "--chat-template", &template];
    let refused = desk.refused(1, &[&["ingest", &first], &flags[..]].concat());
    assert!(refused.contains("--chat-date: the chat template asks for the present date"), "{refused}");
    let flags = [&flags[..], &["--chat-date", "2026-07-26"]].concat();
    let refused = desk.refused(1, &[&["ingest", &robots], &flags[..]].concat());
    assert!(
        refused.contains("robots.jsonl: line 2: the chat template refuses messages[1]: no robots"),
        "{refused}"
    );
    let packing = ["--sequence-length", "16", "--packing", "best_fit_decreasing"];
    let done = desk.json(&[&["ingest", &first], &flags[..], &packing].concat());
    let end = done.iter().find(|line| line["event"] == "done").expect("the end");
    assert_eq!((&end["samples"], &end["skipped"]), (&1.into(), &1.into()));

    let append = ["append", "chats", &second, "--tokenizer", &tokenizer];
    let refused = desk.refused(2, &append);
    assert!(refused.contains("chat_template.jinja") && refused.contains("--chat-template FILE"), "{refused}");
    let other = file("other.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let refused = desk.refused(1, &[&append[..], &["--chat-template", &other]].concat());
    assert!(refused.contains("other.jinja is not the chat template"), "{refused}");
    desk.done(&[&append[..], &["--chat-template", &template]].concat());
    let info = &desk.json(&["info", "chats"])[0];
    assert_eq!((&info["samples"], &info["inputs"]), (&2.into(), &4.into()));
    assert!(desk.refused(2, &["ingest", &first, "--name", "x", "--loss", "all"]).contains("--chat-template"));
}

#[test]
fn windows_are_ingested_and_appended_as_they_were_asked_for() {
    let desk = Desk::new();
    let file = |name: &str, rows: &str| {
        let path = desk.dir.path().join(name);
        fs::write(&path, format!("episode,x\n{rows}")).expect("room");
        path.to_str().expect("text").to_owned()
    };
    let (first, second) = (file("first.csv", "0,1\n0,2\n1,3\n"), file("second.csv", "2,7\n2,8\n"));
    let flags = ["--mix", "sequential", "--window", "x=-1..1", "--window-by", "episode"];
    desk.done(&[&["ingest", &first, "--name", "windows"], &flags[..]].concat());
    desk.done(&["append", "windows", &second]);
    let rows = desk.json(&["head", "windows", "--samples", "10"]);
    assert_eq!(rows.len(), 5, "{rows:?}");
    let windows: Vec<Value> = rows.iter().map(|row| row["x"].clone()).collect();
    assert_eq!(Value::from(windows), serde_json::json!([[1, 1], [1, 2], [3, 3], [7, 7], [7, 8]]));
    for (window, expected) in [
        ("x", "write COLUMN=ROWS, such as action=0..50"),
        ("x=1..1", "a window of no rows"),
        ("x=a", "write 0..50 for 0 to 49, or -1,0"),
    ] {
        let refused = desk.refused(2, &["ingest", &first, "--name", "w", "--window", window]);
        assert!(refused.contains(expected), "{refused}");
    }
    let twice = ["ingest", &first, "--name", "w", "--window", "x=0..2", "--window", "x=0"];
    assert!(desk.refused(2, &twice).contains("--window names column \"x\" twice"));
    let skipping = ["ingest", &first, "--name", "w", "--window", "x=0..2", "--on-error", "skip"];
    let refused = desk.refused(1, &skipping);
    assert!(refused.contains("would be missing in the windows of others"), "{refused}");
    let refused = desk.refused(1, &["ingest", &first, "--name", "w", "--window", "y=0..2"]);
    assert!(refused.contains("\"y\""), "{refused}");
    assert!(desk.refused(2, &["ingest", &first, "--name", "w", "--window-by", "x"]).contains("--window"));
}

#[test]
fn a_damaged_manifest_is_mended_from_another_store() {
    let (desk, other) = (Desk::with_digits(), Desk::with_digits());
    let version = desk.json(&["info"])[0]["version"].as_str().expect("an id").to_owned();
    let manifest = desk.dir.path().join(format!("store/store/manifests/{version}.arrow"));
    flip(&manifest);
    let refused = desk.refused(1, &["verify"]);
    assert!(refused.contains(&version) && refused.contains("corrupt"), "{refused}");
    assert!(desk.refused(1, &["verify", "--repair"]).contains("--from"));
    let copy = other.dir.path().join("store");
    let mended = desk.done(&["verify", "--repair", "--from", copy.to_str().expect("text")]);
    assert!(mended.contains("it was mended from"), "{mended}");
    desk.done(&["verify"]);
}
