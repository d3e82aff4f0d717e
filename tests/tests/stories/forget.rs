//! Rows that are forgotten in a running cluster: after it no file of the store and of the caches has a byte of them. Over real processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use shardd_tests::{Cluster, Delivered, Reading, binary, error_line, run, wait_until};

/// What only one person's rows have in them.
const MARKER: &str = "the-one-and-only-Wilhelmina-Quackenbush";

/// What `shardctl --json` prints through the first node; the last value of it.
fn ask(cluster: &Cluster, args: &[&str]) -> Value {
    let text = run(cluster.shardctl().arg("--json").args(args));
    serde_json::from_str(text.lines().last().expect("a value")).expect("JSON")
}

/// Rows of people, of whom one is to be forgotten.
fn people(path: &Path, users: std::ops::Range<u64>, forgotten: u64) -> String {
    let row = |user: u64| {
        let text =
            if user == forgotten { MARKER.to_owned() } else { format!("somebody else, number {user}") };
        // The same in both files but for the number of the user.
        let user = if user == forgotten { 7 } else { 1000 + user };
        json!({ "user": user, "text": text }).to_string()
    };
    fs::write(path, users.map(row).collect::<Vec<_>>().join("\n")).expect("a file can be written");
    path.to_str().expect("a plain path").to_owned()
}

/// The files below a folder that have the marker in them.
fn holding(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        // What nodes are just removing is not there.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() => {
                    let bytes = fs::read(&path).unwrap_or_default();
                    if bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()) {
                        found.push(path);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// The files below a folder with this extension, in order; with any if it is empty.
fn ending(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if extension.is_empty() || path.extension().is_some_and(|e| e == extension) => {
                    found.push(path)
                }
                false => {}
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_forgotten_everywhere_is_in_no_store_and_no_cache() {
    let mut cluster = Cluster::start(2);
    let source = people(&cluster.root().join("people.jsonl"), 0..500, 123);
    let more = people(&cluster.root().join("more.jsonl"), 500..600, 555);
    let store = cluster.nodes[0].data.join("store");
    ask(&cluster, &["ingest", &source, "--name", "people", "--shard-size", "4KiB"]);
    ask(&cluster, &["tag", "people", "v1"]);
    ask(&cluster, &["append", "people", &more]);
    ask(&cluster, &["reshard", "people", "--shard-size", "6KiB"]);
    let plan = ask(&cluster, &["partition", "--q", "0.3", "--partitions", "4", "people"]);
    let reading = Reading { world: 2, virtual_ranks: 4, batch_size: 10, ..Reading::alone(&plan, 2) };
    Delivered::collect(cluster.read(&reading), |_, _| ());
    let caches = |cluster: &Cluster| -> Vec<PathBuf> {
        cluster.nodes.iter().flat_map(|node| holding(&node.data.join("cache"))).collect()
    };
    assert!(!holding(&store).is_empty() && !caches(&cluster).is_empty(), "it is where it was put");

    let refused = |cluster: &Cluster, args: &[&str]| {
        let output = cluster.shardctl().arg("forget").args(args).output().expect("starts");
        assert!(!output.status.success(), "{args:?}");
        error_line(&output)
    };
    let wrong = refused(&cluster, &["people", "--where", "users=7"]);
    assert!(wrong.contains("there is no column users") && wrong.contains("is it user?"), "{wrong}");
    let wrong = refused(&cluster, &["people", "--where", "user=seven"]);
    assert!(wrong.contains("\"seven\" is not a value of column \"user\""), "{wrong}");
    let none = refused(&cluster, &["people", "--where", "user=8"]);
    assert!(none.contains("no row of people") && none.contains("user=\"8\""), "{none}");
    let bad = cluster.root().join("bad");
    fs::write(&bad, "7\nseven\n").expect("a file can be written");
    let wrong = refused(&cluster, &["people", "--rows", bad.to_str().expect("a plain path")]);
    assert!(wrong.contains("line 2"), "{wrong}");

    // Both rows are one by their digest; ingest, append and reshard have each put it into other shards.
    let held = ask(&cluster, &["forget", "people", "--where", "user=7"]);
    assert_eq!((&held["rows"], &held["matching"], &held["dry_run"]), (&1.into(), &2.into(), &true.into()));
    assert!(held["shards"].as_array().expect("a list").len() >= 3, "{held}");
    assert_eq!(held["versions"].as_array().expect("a list").len(), 3);
    assert_eq!((&held["tags"][0]["tag"], &held["plans"][0]["id"]), (&"v1".into(), &plan["plan"]));
    assert_eq!(held["runs"][0]["id"], "r");
    let finished = || ask(&cluster, &["runs", "ls"])[0]["state"] == "finished";
    wait_until("the ranks have left", finished);

    let shown = run(cluster.shardctl().args(["forget", "people", "--where", "user=7", "--delete"]));
    assert!(shown.contains("people: 2 samples forgotten, 598 samples"), "{shown}");
    assert!(shown.contains("tag people@v1") && shown.contains("run r (finished)"), "{shown}");
    let last = &ask(&cluster, &["log", "people"])[0];
    assert_eq!((&last["operation"], &last["message"]), (&"forget".into(), &"without 2 rows".into()));
    assert!(!holding(&store).is_empty(), "older versions have it still");

    // A node that does not run drops it when it starts.
    cluster.nodes[1].kill();
    let done = ask(&cluster, &["forget", "people", "--where", "user=7", "--delete", "--everywhere"]);
    assert_eq!((&done["runs"][0]["id"], &done["datasets"][0]["cut"]), (&"r".into(), &3.into()));
    assert_eq!(holding(&store), Vec::<PathBuf>::new());
    wait_until("the first node has dropped it", || holding(&cluster.nodes[0].data).is_empty());
    cluster.nodes[1].restart();
    wait_until("the second node has, too", || holding(&cluster.nodes[1].data).is_empty());

    assert_eq!(ask(&cluster, &["info", "people"])["samples"], 598);
    run(cluster.shardctl().args(["verify", "people"]));
    assert!(ask(&cluster, &["runs", "ls"]).as_array().is_some_and(Vec::is_empty));
    assert!(ask(&cluster, &["plan", "ls"]).as_array().is_some_and(Vec::is_empty));
    let gone = refused(&cluster, &["people", "--where", "user=7", "--delete", "--everywhere"]);
    assert!(gone.contains("no row of people"), "{gone}");
    let again = cluster
        .shardctl()
        .args(["ingest", &source, "--name", "people", "--shard-size", "4KiB"])
        .output()
        .expect("starts");
    assert!(error_line(&again).contains("rows that were forgotten"), "{}", error_line(&again));
    assert_eq!(holding(&store), Vec::<PathBuf>::new());
}

#[test]
fn without_a_node_rows_are_forgotten_in_a_directory() {
    let root = tempfile::TempDir::new().expect("a temporary directory can be made");
    let source = people(&root.path().join("people.jsonl"), 0..300, 42);
    let store = root.path().join("store-of-mine");
    let shardctl = |args: &[&str]| {
        let mut command = Command::new(binary("shardctl"));
        command.arg("--store").arg(&store).args(["--json"]).args(args);
        command
    };
    let ask = |args: &[&str]| -> Value {
        let text = run(&mut shardctl(args));
        serde_json::from_str(text.lines().last().expect("a value")).expect("JSON")
    };
    ask(&["ingest", &source, "--name", "people", "--shard-size", "2KiB"]);
    ask(&["ingest", &source, "--name", "others", "--shard-size", "3KiB"]);
    // By number, in the version that is named; the numbers of the present one are others afterwards.
    let digest = ask(&["forget", "people", "--where", "user=7"]);
    assert_eq!((&digest["rows"], digest["datasets"].as_array().map(Vec::len)), (&1.into(), Some(2)));
    let numbers = root.path().join("numbers");
    fs::write(&numbers, "0\n5\n").expect("a file can be written");
    let rows = ["--rows", numbers.to_str().expect("a plain path")];
    let first = ask(&[&["forget", "people", "--delete"][..], &rows].concat());
    assert_eq!((&first["committed"][0]["rows"], &first["committed"][0]["samples"]), (&2.into(), &298.into()));
    let output = shardctl(&[&["forget", "people", "--delete"][..], &rows].concat()).output().expect("starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("people@~1"));
    ask(&[&["forget", "people@~1", "--delete"][..], &rows].concat());
    assert_eq!(ask(&["info", "people"])["samples"], 298, "they were gone already");

    let done = ask(&["forget", "people", "--where", "user=7", "--delete", "--everywhere"]);
    assert_eq!(done["committed"].as_array().map(Vec::len), Some(2), "{done}");
    assert_eq!(holding(&store), Vec::<PathBuf>::new());
    let samples = |name: &str| ask(&["info", name])["samples"].clone();
    assert_eq!((samples("people"), samples("others")), (297.into(), 299.into()));
    for name in ["people", "others"] {
        run(&mut shardctl(&["verify", name]));
    }

    // Rows that cannot be looked up are not taken for rows that are gone, though an earlier forget left something to do.
    let shards = ending(&store, "arrow");
    let marked = shards.last().and_then(|shard| shard.file_stem()).expect("a shard");
    let folder = ending(&store, "").into_iter().find_map(|path| {
        let parent = path.parent()?;
        parent.ends_with("forgotten").then(|| parent.to_owned())
    });
    fs::write(folder.expect("it has marks").join(marked), &*marked.to_string_lossy()).expect("written");
    for shard in &shards {
        fs::write(shard, "damaged").expect("written");
    }
    let everywhere = ["forget", "people", "--where", "user=1008", "--delete", "--everywhere"];
    let output = shardctl(&everywhere).output().expect("starts");
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(ending(&store, "arrow"), shards, "nothing was deleted");
}
