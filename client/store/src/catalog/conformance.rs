//! The promises of every catalog, as one scenario on an empty one.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use shardd_api::duration::now;
use shardd_api::protocol::{AuditReport, RanksRecord, RunId, RunRecord};
use shardd_plan::{PlanDocument, PlanOptions, Shape, Strata};
use shardfmt::store::Store;
use shardfmt::{
    CommitId, DatasetName, DatasetRef, Digest, DigestSum, FinishedShard, InputDigest, Manifest, Message,
    NodeHash, Operation, PlanId, Provenance, ShardEntry, ShardId, ShardWriter, TagName, VersionId,
};

use super::records::to_json;
use super::{
    Catalog, CatalogError, CommitNote, DatasetInfo, Forget, GcOptions, RemoveRun, RunState, TagExpected,
};

/// Tells the story to `catalog`, which has no datasets yet.
///
/// # Panics
///
/// With the broken promise.
pub fn conformance(catalog: &dyn Catalog) {
    an_empty_catalog_knows_nothing(catalog);
    let first = dataset(&[0..100, 100..150]);
    let second = dataset(&[0..100, 150..290]);
    commits_need_their_shards(catalog, &first);
    a_name_moves_only_from_where_it_was_expected(catalog, &first, &second);
    what_is_put_comes_back(catalog, &second);
    a_commit_names_what_its_version_was_made_of(catalog);
    a_long_manifest_is_read_as_far_as_is_asked(catalog, &second);
    history_leads_back_to_the_first_version(catalog, &first, &second);
    references_name_what_history_and_tags_hold(catalog, &first, &second);
    tags_move_only_when_told_to(catalog);
    of_concurrent_commits_exactly_one_wins(catalog);
    plans_fit_their_version(catalog, &second);
    what_nothing_reaches_goes_and_nothing_else(catalog, &first, &second);
    a_pruned_history_ends_where_it_was_cut(catalog);
    what_is_forgotten_goes_for_good(catalog);
}

/// The promises about runs, checked on a catalog after the story above. No catalog begins a run: `put` writes
/// into its metastore what nodes keep of them.
///
/// # Panics
///
/// With the broken promise.
pub fn conformance_of_runs(catalog: &dyn Catalog, put: &dyn Fn(String, Vec<u8>)) {
    let [plan] = &catalog.plans().expect("lists")[..] else { panic!("there is one") };
    let run = |name: &str| -> RunId { name.parse().expect("a name") };
    let now = now();
    let record = |name: &str, left: Option<u64>| RunRecord {
        id: run(name),
        plan: plan.id,
        version: plan.version,
        virtual_ranks: 2,
        began: Some(now - 7200),
        left,
        interrupted: false,
        removing: false,
    };
    let put_run = |record: &RunRecord| put(format!("runs/{}", record.id), to_json(record));
    let put_ranks = |name: &str, seen: u64| {
        let nodes = vec![Some("n1".parse().expect("a name"))];
        let ranks = RanksRecord {
            launch: 1,
            world: 1,
            epoch: 0,
            reached: 2,
            nodes,
            seen: Some(seen),
            lost: Vec::new(),
        };
        put(format!("ranks/{name}"), to_json(&ranks));
    };
    put_run(&record("done", Some(now - 3600)));
    put_run(&record("cut", None));
    put_ranks("cut", now - 3600);
    put_run(&record("live", None));
    put_ranks("live", now);
    put_run(&RunRecord { removing: true, ..record("half", None) });
    let report = AuditReport {
        rank: 0,
        world: 1,
        epoch: 2,
        samples: 3,
        digest_sum: DigestSum::default(),
        global_batch_size: None,
    };
    put("audits/done/000002/000001-000000".to_owned(), to_json(&report));

    let listed = catalog.runs().expect("lists");
    let states: Vec<_> = listed.iter().map(|run| (run.id.as_str(), run.state)).collect();
    let expected = [
        ("cut", RunState::Interrupted),
        ("done", RunState::Finished),
        ("half", RunState::Removing),
        ("live", RunState::Running),
    ];
    assert_eq!(states, expected);
    let done = catalog.run_info(&run("done")).expect("one of them");
    assert_eq!((done.plan, done.dataset.as_ref()), (Some(plan.id), Some(&plan.dataset)));
    assert_eq!((done.began, done.seen), (Some(now - 7200), Some(now - 3600)));
    let details = done.details.expect("lists say what there is");
    assert_eq!((details.epochs, details.audits), (3, 1));

    let used = catalog.remove_plan(plan.id).expect_err("runs train over it").to_string();
    assert!(used.contains("shardctl runs rm"), "{used}");
    let asked = RemoveRun::default();
    let running = catalog.remove_run(&run("live"), asked).expect_err("its ranks are heard of");
    assert!(matches!(running, CatalogError::Running { .. }), "{running:?}");
    assert_eq!(catalog.run_info(&run("live")).expect("it is there").state, RunState::Running);
    let missing = catalog.remove_run(&run("none"), asked).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");

    assert_eq!(catalog.remove_run(&run("done"), asked).expect("it is over"), done);
    assert_eq!(catalog.audits(&run("done")).expect("lists"), []);
    let gone = catalog.run(&run("done")).expect_err("it is gone");
    assert!(matches!(gone, CatalogError::NotFound { .. }), "{gone:?}");
    catalog.remove_run(&run("cut"), asked).expect("it was silent for an hour");
    catalog.remove_run(&run("half"), asked).expect("a removal can be repeated");
    catalog.remove_run(&run("live"), RemoveRun { force: true, ..asked }).expect("as requested");
    assert_eq!(catalog.runs().expect("lists"), []);
    catalog.remove_plan(plan.id).expect("no run uses it any more");
}

/// A small version: its shards and its manifest.
struct Version {
    shards: Vec<FinishedShard>,
    manifest: Manifest,
}

fn an_empty_catalog_knows_nothing(catalog: &dyn Catalog) {
    assert_eq!(catalog.datasets().expect("lists"), []);
    assert_eq!(catalog.plans().expect("lists"), []);
    for reference in ["nobody", "nobody@v1", "nobody@~1", "nobody@0123abcd"] {
        let missing = catalog.resolve(&at(reference)).expect_err("there is none");
        assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
        assert!(missing.to_string().contains("nobody"), "{missing}");
    }
    let missing = catalog.log(&name("nobody"), 1).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert_eq!(catalog.tags(None).expect("lists"), []);
    let nobody = "nobody".parse().expect("a good name");
    let missing = catalog.run(&nobody).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert_eq!(catalog.audits(&nobody).expect("lists"), []);
    let missing = catalog.manifest(VersionId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    let missing = catalog.plan(PlanId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
}

fn commits_need_their_shards(catalog: &dyn Catalog, version: &Version) {
    catalog.put_shard(&version.shards[0]).expect("puts");
    let early =
        catalog.commit(&name("story"), None, &version.manifest, &ingested()).expect_err("a shard is missing");
    assert!(early.to_string().contains(&version.shards[1].id.to_string()), "{early}");
    assert_eq!(catalog.datasets().expect("lists"), [], "nothing was committed");
    std::thread::scope(|threads| {
        for shard in &version.shards {
            threads.spawn(|| catalog.put_shard(shard).expect("once more is harmless"));
        }
    });
}

fn a_name_moves_only_from_where_it_was_expected(catalog: &dyn Catalog, first: &Version, second: &Version) {
    let story = name("story");
    let (old, new) = (first.manifest.id(), second.manifest.id());
    let info = catalog.commit(&story, None, &first.manifest, &ingested()).expect("there was none");
    assert_eq!((info.version, info.samples, info.shards), (old, 150, 2));
    assert_eq!(info.bytes, first.manifest.bytes());
    assert_eq!(catalog.commit(&story, None, &first.manifest, &ingested()).expect("repeated"), info);

    second.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
    for expected in [None, Some(VersionId::of(b"other"))] {
        let conflict =
            catalog.commit(&story, expected, &second.manifest, &ingested()).expect_err("it is elsewhere");
        assert!(
            matches!(conflict, CatalogError::Conflict { actual, .. } if actual == Some(old)),
            "{conflict:?}"
        );
        let text = conflict.to_string();
        assert!(text.contains(&old.to_string()) && text.contains("story"), "{text}");
    }
    let conflict =
        catalog.commit(&name("new"), Some(old), &second.manifest, &ingested()).expect_err("there is none");
    assert!(matches!(conflict, CatalogError::Conflict { actual: None, .. }), "{conflict:?}");
    assert_eq!(catalog.dataset(&story).expect("unchanged"), info);
    let note = CommitNote { message: text("ninety more\nsamples"), ..CommitNote::of(Operation::APPEND) };
    let info = catalog.commit(&story, Some(old), &second.manifest, &note).expect("as expected");
    assert_eq!((info.version, info.commits), (new, 2));
    assert_eq!(catalog.dataset(&story).expect("moved"), info);

    catalog
        .commit(&name("another"), None, &first.manifest, &ingested())
        .expect("versions may have several names");
    let names: Vec<_> = catalog.datasets().expect("lists").into_iter().map(|info| info.name).collect();
    assert_eq!(names, [name("another"), story]);
}

fn what_is_put_comes_back(catalog: &dyn Catalog, version: &Version) {
    let manifest = catalog.manifest(version.manifest.id()).expect("committed");
    assert_eq!(manifest, version.manifest);
    for (entry, shard) in manifest.shards.iter().zip(&version.shards) {
        assert_eq!(catalog.shard(entry).expect("reads"), shard.bytes);
        assert_eq!(catalog.shard_file(entry.id).expect("reads"), shard.bytes);
        assert_eq!(catalog.sidecar_file(entry.id).expect("reads"), shard.sidecar.encode());
        assert_eq!(catalog.sidecar(entry).expect("verified"), shard.sidecar);
        let others = ShardEntry { root: NodeHash([0; 32]), ..entry.clone() };
        let corrupt = catalog.sidecar(&others).expect_err("its rows lead elsewhere");
        assert!(corrupt.to_string().contains(&entry.id.to_string()), "{corrupt}");
        let parts = catalog.shard_ranges(entry.id, &[8..20, 40..40, 30..31]).expect("reads");
        assert_eq!(parts, [&shard.bytes[8..20], b"", &shard.bytes[30..31]]);
    }
    assert_eq!(catalog.put_manifest(&manifest).expect("once more is harmless"), manifest.id());
    let shelf = super::CatalogStore(catalog);
    assert!(matches!(shelf.shard(ShardId::of(b"nothing")), Ok(None)), "a missing key differs from a failure");
    assert!(matches!(shelf.sidecar(ShardId::of(b"nothing")), Ok(None)));
}

fn history_leads_back_to_the_first_version(catalog: &dyn Catalog, first: &Version, second: &Version) {
    let story = name("story");
    let (old, new) = (first.manifest.id(), second.manifest.id());
    let missing = catalog.restore(&story, Some(new), VersionId::of(b"nothing"), &Message::default());
    assert!(matches!(missing, Err(CatalogError::NotFound { .. })), "{missing:?}");
    let conflict = catalog.restore(&story, Some(old), old, &Message::default()).expect_err("it is elsewhere");
    assert!(matches!(conflict, CatalogError::Conflict { actual, .. } if actual == Some(new)), "{conflict:?}");
    let back =
        catalog.restore(&story, Some(new), old, &text("the new ones were wrong")).expect("as expected");
    assert_eq!((back.version, back.samples, back.commits), (old, 150, 3));
    catalog.restore(&story, Some(old), new, &Message::default()).expect("and forward again");

    let log = catalog.log(&story, 100).expect("walks");
    let seen: Vec<_> = log.iter().map(|entry| (entry.commit.number, entry.commit.version)).collect();
    assert_eq!(seen, [(4, new), (3, old), (2, new), (1, old)], "the newest first");
    for (entry, before) in log.iter().zip(&log[1..]) {
        assert_eq!(entry.commit.parent, Some(before.id));
        assert!(entry.commit.time >= before.commit.time);
    }
    assert_eq!(log[3].commit.parent, None);
    assert_eq!(log[2].commit.operation, Operation::APPEND);
    assert_eq!(log[2].commit.message.as_str(), "ninety more\nsamples");
    assert_eq!((&log[1].commit.operation, log[1].id), (&Operation::RESTORE, back.commit));
    assert_eq!(log[2].commit.bytes, second.manifest.bytes());
    assert_eq!(catalog.log(&story, 2).expect("walks"), log[..2]);
    assert_eq!(catalog.log(&story, 0).expect("walks"), []);
}

fn references_name_what_history_and_tags_hold(catalog: &dyn Catalog, first: &Version, second: &Version) {
    let (old, new) = (first.manifest.id(), second.manifest.id());
    let found = |reference: &str| catalog.resolve(&at(reference)).expect("it names one");
    for (reference, version, commits) in
        [("story", new, 4), ("story@~0", new, 4), ("story@~1", old, 3), ("story@~3", old, 1)]
    {
        let info = found(reference);
        assert_eq!(
            (info.version, info.commits, &info.name),
            (version, commits, &name("story")),
            "{reference}"
        );
    }
    let latest = found("story@~1");
    assert_eq!(found(&format!("story@{}", old.short())), latest, "the last commit of a version");
    assert_eq!(found(&format!("story@{old}")), latest);
    catalog.put_tag(&name("story"), &tag("v1"), found("story@~3").commit, TagExpected::Absent).expect("tags");
    assert_eq!(found("story@v1"), found("story@~3"));

    let unknown = format!("story@{}", VersionId::of(b"nothing").short());
    for (reference, said) in [("story@~4", "story has 4"), ("story@v2", "v2"), (&unknown, "version ")] {
        let missing = catalog.resolve(&at(reference)).expect_err("it names none");
        assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
        assert!(missing.to_string().contains(said), "{missing}");
    }
}

fn tags_move_only_when_told_to(catalog: &dyn Catalog) {
    let (story, v1) = (name("story"), tag("v1"));
    let commit = |reference: &str| catalog.resolve(&at(reference)).expect("it names one");
    let (old, new) = (commit("story@~3"), commit("story"));
    let set = |commit: &DatasetInfo, expected| catalog.put_tag(&story, &v1, commit.commit, expected);
    let there = set(&old, TagExpected::Absent).expect("it is there already");
    assert_eq!((there.version, there.commit, &there.tag), (old.version, old.commit, &v1));
    for expected in [TagExpected::Absent, TagExpected::At(new.version)] {
        let conflict = set(&new, expected).expect_err("it is elsewhere");
        let elsewhere = |actual| actual == Some(old.version);
        assert!(
            matches!(conflict, CatalogError::TagConflict { actual, .. } if elsewhere(actual)),
            "{conflict:?}"
        );
    }
    assert_eq!(catalog.tags(Some(&story)).expect("lists"), [there]);
    set(&new, TagExpected::At(old.version)).expect("as expected");
    assert_eq!(commit("story@v1"), new);
    set(&old, TagExpected::Any).expect("as requested");

    let absent = catalog.put_tag(&story, &tag("v2"), old.commit, TagExpected::At(old.version));
    assert!(matches!(absent, Err(CatalogError::TagConflict { actual: None, .. })), "{absent:?}");
    let others = catalog.resolve(&at("another")).expect("a dataset").commit;
    for commit in [others, CommitId::of(b"nothing")] {
        let missing =
            catalog.put_tag(&story, &tag("v2"), commit, TagExpected::Absent).expect_err("not of story");
        assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    }
    catalog.put_tag(&name("another"), &tag("paper"), others, TagExpected::Absent).expect("tags");
    let all = catalog.tags(None).expect("lists");
    let names: Vec<_> = all.iter().map(|info| (info.dataset.as_str(), info.tag.as_str())).collect();
    assert_eq!(names, [("another", "paper"), ("story", "v1")]);

    let conflict = catalog.remove_tag(&story, &v1, new.version).expect_err("it is elsewhere");
    assert!(matches!(conflict, CatalogError::TagConflict { .. }), "{conflict:?}");
    catalog.remove_tag(&story, &v1, old.version).expect("as expected");
    let missing = catalog.remove_tag(&story, &v1, old.version).expect_err("it is gone");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert_eq!(catalog.tags(Some(&story)).expect("lists"), []);
}

fn a_long_manifest_is_read_as_far_as_is_asked(catalog: &dyn Catalog, version: &Version) {
    let mut manifest = version.manifest.clone();
    manifest.shards[0].labels =
        Some((0..4000).map(|class| (format!("class {class:050}").into(), 1)).collect());
    let long = name("long");
    let id = catalog.commit(&long, None, &manifest, &ingested()).expect("its shards are there").version;
    let file = catalog.open_manifest(id).expect("committed");
    assert_eq!((file.id(), file.totals().samples), (id, manifest.sample_count()));
    assert_eq!(file.shard_rows().expect("rows"), manifest.shard_rows());
    assert!(file.bytes_read() < 120_000, "{} bytes were read to open it", file.bytes_read());
    assert_eq!(file.entry(1).expect("a shard"), manifest.shards[1]);
    assert_eq!(file.find_sample(100).expect("a sample"), Some((1, 0)));
    assert_eq!(file.labels().expect("labels"), manifest.labels());
    assert_eq!(file.manifest().expect("all of it"), manifest);
    let missing = catalog.open_manifest(VersionId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    catalog.remove_dataset(&long, id).expect("it goes");
}

fn a_commit_names_what_its_version_was_made_of(catalog: &dyn Catalog) {
    // Rows that no other story has: a version belongs to the dataset that had it first.
    let version = dataset(std::slice::from_ref(&(5000..5003)));
    version.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
    let id = version.manifest.id();
    assert_eq!(catalog.provenance(id).expect("looks"), None);
    let of = |file: &str| {
        let input = InputDigest { name: file.to_owned(), bytes: 3, digest: Digest::of(file.as_bytes()) };
        Provenance::new(serde_json::json!({ "mix": "random" }), vec![input])
    };
    // The same samples of another file are the same version, and the first to make it has said how.
    for (dataset, file) in [("made", "numbers.csv"), ("made-again", "numbers.parquet")] {
        let (dataset, note) = (name(dataset), CommitNote { provenance: Some(of(file)), ..ingested() });
        catalog.commit(&dataset, None, &version.manifest, &note).expect("there was none");
        assert_eq!(catalog.provenance(id).expect("reads"), Some(of("numbers.csv")));
        let commit = &catalog.log(&dataset, 1).expect("walks")[0].commit;
        assert_eq!(commit.provenance, Some(of("numbers.csv").digest()));
        catalog.remove_dataset(&dataset, id).expect("it goes");
    }
}

fn of_concurrent_commits_exactly_one_wins(catalog: &dyn Catalog) {
    let versions: Vec<_> = (1..5).map(|n| dataset(std::slice::from_ref(&(0..n)))).collect();
    let race = name("race");
    let outcomes: Vec<_> = std::thread::scope(|threads| {
        let commit = |version: &Version| {
            version.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
            catalog.commit(&race, None, &version.manifest, &ingested())
        };
        let running: Vec<_> = versions.iter().map(|version| threads.spawn(move || commit(version))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let winners: BTreeSet<_> = outcomes.iter().flatten().map(|info| info.version).collect();
    assert_eq!(winners.len(), 1, "{outcomes:?}");
    assert_eq!(winners.first().copied(), Some(catalog.dataset(&race).expect("committed").version));
    let lost = |error: &CatalogError| matches!(error, CatalogError::Conflict { .. });
    assert!(outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).all(lost), "{outcomes:?}");
}

fn plans_fit_their_version(catalog: &dyn Catalog, version: &Version) {
    let manifest = &version.manifest;
    let shape = Shape {
        shard_rows: manifest.shards.iter().map(|shard| shard.rows).collect(),
        row_bytes: manifest.row_bytes(),
    };
    let options = PlanOptions { seed: 7, ..PlanOptions::default() };
    let plan = PlanDocument::with_defaults(manifest.id(), &shape, options).expect("fits");
    let id = catalog.put_plan(&plan).expect("puts");
    assert_eq!(id, plan.id());
    assert_eq!(catalog.put_plan(&plan).expect("once more is harmless"), id);
    assert_eq!(catalog.plan(id).expect("reads"), plan);
    let plans = catalog.plans().expect("lists");
    let [info] = &plans[..] else { panic!("one plan was put: {plans:?}") };
    assert_eq!((info.id, &info.dataset, info.version), (id, &name("story"), manifest.id()));

    let too_fine = PlanDocument { partitions: 90_000, ..plan.clone() };
    catalog.put_plan(&too_fine).expect_err("there are fewer grains");
    let of_nothing = PlanDocument { version: VersionId::of(b"nothing"), ..plan.clone() };
    let refused = catalog.put_plan(&of_nothing).expect_err("there is no such version");
    assert!(matches!(refused, CatalogError::NotFound { .. }), "{refused:?}");
    assert_eq!(catalog.plans().expect("lists"), plans);

    // Strata travel with their plan, and stay with it.
    let names = vec!["even".to_owned(), "odd".to_owned()];
    let of_sample: Vec<u16> = (0..manifest.sample_count()).map(|sample| (sample % 2) as u16).collect();
    let strata = Arc::new(Strata::new("number", names, &of_sample).expect("each is even or odd"));
    let options = PlanOptions { strata: Some(Arc::clone(&strata)), ..PlanOptions::default() };
    let stratified = PlanDocument::with_defaults(manifest.id(), &shape, options).expect("fits");
    let unsupplied = PlanDocument::from_bytes(&stratified.to_bytes()).expect("a document");
    let missing = catalog.put_plan(&unsupplied).expect_err("its strata are missing");
    assert!(missing.to_string().contains("strata"), "{missing}");
    assert_eq!(catalog.plans().expect("lists"), plans);
    assert_eq!(catalog.put_plan(&stratified).expect("puts"), stratified.id());
    let back = catalog.plan(stratified.id()).expect("reads");
    assert_eq!(back.strata.as_ref().and_then(|strata| strata.get()), Some(&strata));
    assert_eq!(catalog.put_plan(&unsupplied).expect("they are there"), stratified.id());
    catalog.remove_plan(stratified.id()).expect("no run uses it");
    assert_eq!(catalog.plans().expect("lists"), plans);

    let missing = catalog.remove_plan(PlanId::of(b"nothing")).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    catalog.remove_plan(id).expect("no run uses it");
    assert_eq!(catalog.plans().expect("lists"), []);
    catalog.put_plan(&plan).expect("put again");
}

fn what_nothing_reaches_goes_and_nothing_else(catalog: &dyn Catalog, first: &Version, second: &Version) {
    let (another, race) = (name("another"), name("race"));
    let (tagged, lost) = (catalog.dataset(&another).expect("one"), catalog.dataset(&race).expect("one"));
    let conflict = catalog.remove_dataset(&race, first.manifest.id()).expect_err("it is elsewhere");
    assert!(
        matches!(conflict, CatalogError::Conflict { actual, .. } if actual == Some(lost.version)),
        "{conflict:?}"
    );
    catalog.remove_dataset(&race, lost.version).expect("as expected");
    catalog.remove_dataset(&another, tagged.version).expect("as expected");
    let missing = catalog.remove_dataset(&race, lost.version).expect_err("it is gone");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert_eq!(catalog.resolve(&at("another@paper")).expect("its tag stays"), tagged);

    let spared = catalog.gc(&GcOptions::default()).expect("looks");
    assert!(spared.dry_run && spared.total().objects == 0 && spared.young.objects > 0, "{spared:?}");
    let all = GcOptions { older_than_s: 0, ..GcOptions::default() };
    let planned = catalog.gc(&all).expect("looks");
    assert!(planned.versions.iter().any(|gone| gone.version == lost.version), "{planned:?}");
    assert!(planned.versions.iter().any(|gone| gone.dataset.as_ref() == Some(&race)), "{planned:?}");
    assert!(planned.shards.objects > 0 && planned.shards.objects == planned.sidecars.objects, "{planned:?}");
    assert_eq!(planned.trees.objects, 1, "that of the long one: {planned:?}");
    assert!(planned.commits.objects > 0, "that of race, and perhaps of those that lost: {planned:?}");
    catalog.manifest(lost.version).expect("nothing was deleted");

    let done = catalog.gc(&GcOptions { dry_run: false, ..all.clone() }).expect("deletes");
    assert_eq!((done.total(), &done.versions), (planned.total(), &planned.versions));
    let gone = catalog.manifest(lost.version).expect_err("deleted");
    assert!(matches!(gone, CatalogError::NotFound { .. }), "{gone:?}");
    for version in [first, second] {
        what_is_put_comes_back(catalog, version);
    }
    assert_eq!(catalog.log(&name("story"), 100).expect("walks").len(), 4);
    let [plan] = &catalog.plans().expect("lists")[..] else { panic!("there is one") };
    catalog.plan(plan.id).expect("reads");
    let nothing = catalog.gc(&GcOptions { dry_run: false, ..all }).expect("deletes");
    assert_eq!((nothing.total().objects, nothing.reached), (0, done.reached));

    let back = catalog.restore(&another, None, tagged.version, &text("it was needed")).expect("it is there");
    assert_eq!((back.version, back.commits), (tagged.version, 1));
    let gone = catalog.restore(&race, None, lost.version, &Message::default()).expect_err("deleted");
    assert!(matches!(gone, CatalogError::NotFound { .. }), "{gone:?}");
}

fn a_pruned_history_ends_where_it_was_cut(catalog: &dyn Catalog) {
    let long = name("long");
    let versions: Vec<Version> = (0..4).map(|n| dataset(&[1000 * n..1000 * n + 20, 9000..9010])).collect();
    let mut expected = None;
    for Version { shards, manifest } in &versions {
        shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
        expected = Some(catalog.commit(&long, expected, manifest, &ingested()).expect("as expected").version);
    }
    let log = catalog.log(&long, 10).expect("walks");
    catalog.put_tag(&long, &tag("kept"), log[3].id, TagExpected::Absent).expect("the first is there");
    let strange = CommitId(Digest::of(b"no commit"));
    let missing = catalog.prune(&long, strange).expect_err("there is none");
    assert!(matches!(missing, CatalogError::NotFound { .. }), "{missing:?}");
    assert_eq!(catalog.log(&long, 10).expect("walks"), log);

    assert_eq!(catalog.prune(&long, log[1].id).expect("it is there"), 2);
    assert_eq!(catalog.prune(&long, log[1].id).expect("once more is harmless"), 0);
    assert_eq!(catalog.log(&long, 10).expect("walks"), log[..2]);
    let beyond = catalog.resolve(&at("long@~2")).expect_err("it was cut off").to_string();
    assert!(beyond.contains("pruned") && beyond.contains("long@~1"), "{beyond}");
    let cut = catalog.prune(&long, log[2].id).expect_err("a cut is not undone");
    assert!(matches!(cut, CatalogError::NotFound { .. }), "{cut:?}");
    let all = GcOptions { dry_run: false, older_than_s: 0 };
    catalog.gc(&all).expect("deletes");
    let gone = catalog.manifest(versions[1].manifest.id()).expect_err("only the history held it");
    assert!(matches!(gone, CatalogError::NotFound { .. }), "{gone:?}");
    for kept in [&versions[0], &versions[2], &versions[3]] {
        what_is_put_comes_back(catalog, kept);
    }
    assert_eq!(catalog.resolve(&at("long@kept")).expect("tags keep their commits").commit, log[3].id);

    let Version { shards, manifest } = dataset(&[5000..5010, 5010..5020]);
    shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
    let last = catalog.commit(&long, expected, &manifest, &ingested()).expect("on top");
    assert_eq!(last.commits, 5, "numbers continue");
    assert_eq!(catalog.log(&long, 10).expect("walks").len(), 3, "and the cut stays");
    catalog.remove_tag(&long, &tag("kept"), versions[0].manifest.id()).expect("there is one");
    catalog.remove_dataset(&long, last.version).expect("as expected");
}

fn what_is_forgotten_goes_for_good(catalog: &dyn Catalog) {
    let people = name("people");
    let with = dataset(&[20_000..20_010, 20_010..20_020, 20_020..20_030]);
    let without = dataset(&[20_000..20_010, 20_020..20_030]);
    let going = &with.shards[1];
    with.shards.iter().for_each(|shard| catalog.put_shard(shard).expect("puts"));
    let first = catalog.commit(&people, None, &with.manifest, &ingested()).expect("as expected");
    catalog.put_tag(&people, &tag("old"), first.commit, TagExpected::Absent).expect("it is there");
    let asked = Forget { rows: going.sidecar.rows.clone(), ..Forget::default() };
    let held = catalog.forget(&asked).expect("looks");
    assert!(held.dry_run && held.rows == 10 && held.deleted.objects == 0, "{held:?}");
    assert_eq!((held.shards.len(), held.shards[0].shard, held.shards[0].rows), (1, going.id, 10));
    assert_eq!((held.versions.len(), held.versions[0].samples, held.versions[0].rows), (1, 30, 10));
    assert_eq!(
        (held.datasets.len(), &held.datasets[0].name, held.datasets[0].is_present),
        (1, &people, true)
    );
    assert_eq!(held.tags.len(), 1);
    let delete = Forget { dry_run: false, ..asked };
    let refused = catalog.forget(&delete).expect_err("the present version has them").to_string();
    assert!(refused.contains("shardctl forget"), "{refused}");
    let note = CommitNote::of(Operation::FORGET);
    let last = catalog.commit(&people, Some(first.version), &without.manifest, &note).expect("on top");

    let done = catalog.forget(&delete).expect("nothing present has them");
    assert_eq!((done.datasets[0].is_present, done.datasets[0].cut, done.tags.len()), (false, 1, 1));
    assert!(done.deleted.objects >= 4, "shard, sidecar, manifest and commit: {done:?}");
    assert!(!catalog.has_shard(&going.id).expect("looks"));
    let gone = catalog.manifest(first.version).expect_err("deleted");
    assert!(matches!(gone, CatalogError::NotFound { .. }), "{gone:?}");
    assert_eq!(catalog.tags(Some(&people)).expect("lists"), []);
    assert_eq!(catalog.log(&people, 10).expect("walks").len(), 1);
    what_is_put_comes_back(catalog, &without);
    let again = catalog.put_shard(going).expect_err("it does not come again").to_string();
    assert!(again.contains("rows that were forgotten"), "{again}");
    assert_eq!(catalog.forget(&delete).expect("twice does no harm").shards, []);
    catalog.remove_dataset(&people, last.version).expect("as expected");
}

fn ingested() -> CommitNote {
    CommitNote::of(Operation::INGEST)
}

fn text(text: &str) -> Message {
    text.parse().expect("a message")
}

fn tag(text: &str) -> TagName {
    text.parse().expect("a tag")
}

fn at(text: &str) -> DatasetRef {
    text.parse().expect("a reference")
}

fn name(text: &str) -> DatasetName {
    text.parse().expect("a name")
}

/// A version with one shard for each range of numbers.
fn dataset(ranges: &[std::ops::Range<i64>]) -> Version {
    let shards: Vec<_> = ranges.iter().map(|range| shard(range.clone())).collect();
    let entries = shards.iter().map(|shard| shard.entry.clone()).collect();
    let config = serde_json::json!({ "made": "by hand" });
    let manifest = Manifest::new(batch(0..1).schema(), entries, config);
    Version { shards, manifest }
}

fn shard(numbers: std::ops::Range<i64>) -> FinishedShard {
    let batch = batch(numbers);
    let mut writer = ShardWriter::new(batch.schema()).expect("plain columns");
    writer.push(&batch).expect("rows of the schema");
    writer.finish().expect("rows")
}

fn batch(numbers: std::ops::Range<i64>) -> RecordBatch {
    let texts: Vec<String> = numbers.clone().map(|n| format!("sample {n}")).collect();
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.map(|n| n % 10)));
    let data: ArrayRef = Arc::new(BinaryArray::from_iter_values(texts.iter().map(String::as_bytes)));
    RecordBatch::try_from_iter([("data", data), ("label", label)]).expect("columns of equal length")
}
