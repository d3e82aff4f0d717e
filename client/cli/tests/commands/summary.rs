//! `shardctl runs summary`: the content of trainings, from their records and from declared facts.

use std::fs;

use serde_json::Value;
use shardd_store::record::RecordId;

use crate::desk::{Desk, text};
use crate::records::put_changed;

/// The record of a run over the desk's digits, of 10 steps of `batch` samples, `per_epoch` of them an epoch.
fn put(desk: &Desk, run: &str, batch: u64, per_epoch: u64) -> RecordId {
    let digits = &desk.json(&["ls"])[0][0];
    let plan = desk.json(&["plan", "ls"])[0][0]["id"].as_str().unwrap().parse().unwrap();
    let (version, samples) = (digits["version"].as_str().unwrap(), digits["samples"].as_u64().unwrap());
    put_changed(desk, run, 5, |record| {
        record.data.version = version.parse().unwrap();
        record.data.plan = plan;
        record.data.samples = samples;
        let data = format!("\"plan in steps of {batch}, the rest short\"");
        record.settings.insert("data".to_owned(), data);
        record.settings.insert("steps per epoch".to_owned(), per_epoch.to_string());
    })
}

#[test]
fn a_summary_has_the_samples_that_a_training_read() {
    let desk = Desk::with_digits();
    let id = put(&desk, "part", 100, 15);
    let facts = &desk.json(&["runs", "summary", "part"])[0];
    let version = &facts["versions"][0];
    assert_eq!((&version["dataset"], &version["samples_read"]), (&"digits".into(), &1000.into()));
    assert_eq!(facts["trainings"][0]["record"], id.to_string());
    let images = serde_json::json!({ "modality": "image", "unit": "pictures", "amount": 1000 });
    assert_eq!(version["amounts"], Value::from(vec![images]), "of those that it read");
    assert_eq!(facts["trainings"][0]["epochs"].as_array().unwrap().len(), 1);
    let columns: Vec<_> = version["columns"].as_array().unwrap().iter().map(|it| &it["modality"]).collect();
    assert!(columns.contains(&&"image".into()) && columns.contains(&&Value::Null), "{columns:?}");

    // Two epochs of 1,437 samples in 5 steps each.
    put(&desk, "whole", 300, 5);
    let page = desk.done(&["runs", "summary", "part", "whole"]);
    assert!(page.contains("1,000 in 1 epochs") && page.contains("2,874 in 2 epochs"), "{page}");
    assert!(page.contains("not declared"), "{page}");
    let facts = &desk.json(&["runs", "summary", "part", "whole"])[0];
    assert_eq!(facts["versions"].as_array().unwrap().len(), 1, "one version, read twice");
    assert_eq!(facts["versions"][0]["samples_read"], 1437);
    assert!(desk.refused(2, &["runs", "summary", "part", "part"]).contains("a second time"));
}

#[test]
fn the_roots_of_a_summary_are_those_of_an_audit() {
    let desk = Desk::with_digits();
    let plan = desk.json(&["plan", "ls"])[0][0]["id"].as_str().unwrap().to_owned();
    let facts = &desk.json(&["runs", "summary", "--plan", &plan, "--epochs", "2", "--roots"])[0];
    for epoch in 0..2 {
        let audited = &desk.json(&["audit", "root", "--plan", &plan, "--epoch", &epoch.to_string()])[0];
        assert_eq!(facts["trainings"][0]["epochs"][epoch]["root"], audited["root"]);
    }
    assert!(desk.refused(2, &["runs", "summary", "--plan", &plan]).contains("--epochs"));
    assert!(desk.refused(2, &["runs", "summary"]).contains("<RECORD>"));
    assert!(desk.refused(2, &["runs", "summary", "a", "--epochs", "2"]).contains("--plan"));
    let other = ["runs", "summary", "--plan", &plan, "--epochs", "1", "--dataset", "digits"];
    assert!(desk.refused(2, &other).contains("--format croissant"));
}

#[test]
fn declared_facts_fill_the_template() {
    let desk = Desk::with_digits();
    put(&desk, "train", 300, 5);
    let summary =
        |more: &[&str]| desk.done(&[&["runs", "summary", "train", "--format", "eu-template"], more].concat());
    let empty = summary(&[]);
    for heading in ["### 1.1.", "### 1.3.", "#### 2.2.2.", "### 2.6.", "### 3.2.", "## Annex: evidence"] {
        assert!(empty.contains(heading), "{heading}: {empty}");
    }
    assert!(empty.contains("Less than 1 million images; 1,437 images"), "{empty}");
    assert!(empty.contains("**Datasets without a declared source:** digits"), "{empty}");

    let file = desk.dir.path().join("about.toml");
    let path = file.to_str().unwrap();
    desk.done(&["runs", "summary", "train", "--write-about", path]);
    assert!(
        desk.refused(1, &["runs", "summary", "train", "--write-about", path]).contains("cannot be written")
    );
    assert_eq!(summary(&["--about", path]), empty, "a form that is not filled in declares nothing");

    fs::write(&file, "[datasets.digits]\nlicense = ' '\n").unwrap();
    assert_eq!(summary(&["--about", path]), empty, "a text without a character declares nothing");

    let facts = "[model]\nnames = ['digits <b>1.0</b>']\n[datasets.digits]\nsource = 'public'\nlicense = 'CC-BY-4.0'\n\
                 content = 'scans | of\\ndigits'\n";
    fs::write(&file, facts.replace("\\n", " ")).unwrap();
    let filled = summary(&["--about", path]);
    assert!(filled.contains("digits &lt;b>1.0&lt;/b>") && filled.contains(r"scans \| of digits"), "{filled}");
    assert!(
        filled.contains("licence: CC-BY-4.0") && filled.contains("1,437 of 1,437 samples read"),
        "{filled}"
    );
    let crawled = filled.split("### 2.3.").nth(1).unwrap();
    assert!(crawled.contains("Were crawlers used by the provider or on its behalf?:** No"), "{crawled}");

    for (wrong, said) in [
        ("[datasets.digit]\nsource = 'public'", "[datasets.digit] is of no dataset of this model"),
        ("[datasets.digits]\nsource = 'web'", "unknown variant `web`"),
        ("[models]\n", "unknown field `models`"),
        ("[provider]\nname = 3", "provider.name"),
        ("[provider]\nname = ", "about.toml, line 2"),
        ("[datasets.digits]\npublished = 'soon'", "datasets.digits.published is \"soon\""),
        ("[data]\ncollected_until = '2026-13'", "data.collected_until is \"2026-13\""),
    ] {
        fs::write(&file, wrong).unwrap();
        let error = desk.refused(2, &["runs", "summary", "train", "--about", path]);
        assert!(error.contains(said) && error.contains("about.toml"), "{error}");
    }
}

#[test]
fn croissant_describes_the_files_of_a_version() {
    let desk = Desk::with_digits();
    put(&desk, "train", 300, 5);
    let output = desk.run(&["runs", "summary", "train", "--format", "croissant"]);
    assert!(text(&output.stderr).contains("declare license, url, description"), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let metadata: Value = serde_json::from_str(&printed).unwrap();
    let (manifest, shards) = (&metadata["distribution"][0], &metadata["distribution"][1]);
    let store = desk.dir.path().join("store/store");
    let length = fs::metadata(store.join(manifest["contentUrl"].as_str().unwrap())).unwrap().len();
    assert_eq!(manifest["contentSize"], format!("{length} B"));
    let shards = shards["includes"].as_array().unwrap();
    assert!(shards.len() > 1 && shards.iter().all(|shard| store.join(shard.as_str().unwrap()).is_file()));

    let other = desk.run(&["runs", "summary", "train", "--format", "croissant", "--dataset", "x"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("was trained on digits@"));
}

/// Tokens are counted whatever the layout: documents, sequences of one length, and packed ones with their padding left out.
#[test]
fn tokens_are_counted_in_every_layout() {
    let desk = Desk::new();
    let tokenizer = desk.dir.path().join("tokenizer.json");
    let words: Vec<String> = (0..26).map(|at| format!("\"{}\": {at}", char::from(b'a' + at))).collect();
    let model =
        format!("{{\"type\": \"WordLevel\", \"vocab\": {{{}}}, \"unk_token\": \"a\"}}", words.join(", "));
    let page = format!(
        "{{\"version\": \"1.0\", \"pre_tokenizer\": {{\"type\": \"Whitespace\"}}, \"model\": {model}}}"
    );
    fs::write(&tokenizer, page).unwrap();
    let text = desk.dir.path().join("text.txt");
    fs::write(&text, "a b c\n\nd e f g h\n\ni j\n\nk l m n\n").unwrap();
    let (text, tokenizer) = (text.to_str().unwrap(), tokenizer.to_str().unwrap());
    let ingest = ["ingest", text, "--documents", "blank-line", "--tokenizer", tokenizer, "--name"];
    let layouts: [(&str, &[&str], u64); 3] = [
        ("whole", &[], 14),
        // Three sequences of 4: the last two tokens are left out.
        ("cut", &["--sequence-length", "4"], 12),
        ("packed", &["--sequence-length", "8", "--packing", "best_fit_decreasing"], 14),
    ];
    for (name, more, tokens) in layouts {
        desk.done(&[&ingest[..], &[name], more].concat());
        let made = &desk.json(&["partition", name, "--q", "0.1", "--partitions", "1"])[0];
        let plan = made["plan"].as_str().or(made["id"].as_str()).unwrap_or_else(|| panic!("{made}"));
        let facts = &desk.json(&["runs", "summary", "--plan", plan, "--epochs", "1"])[0];
        let columns = facts["versions"][0]["columns"].as_array().unwrap();
        let counted: Vec<_> = columns.iter().filter(|column| column["unit"] == "tokens").collect();
        assert_eq!(counted.len(), 1, "{name}: {columns:?}");
        assert_eq!(
            (&counted[0]["name"], &counted[0]["amount"]),
            (&"tokens".into(), &tokens.into()),
            "{name}"
        );
    }
}
