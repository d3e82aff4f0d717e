//! Inputs that lie elsewhere, read by `shardctl` from real servers: the version is that of the same files on this
//! machine, or there is an error that says what to do, and no version.
//!
//! S3 is moto, which checks signatures and policies and is a process of its own; Azure is Azurite where it is installed
//! (`SHARDD_AZURITE`: the path of `azurite-blob`, from `npm install azurite`); web servers are in `inputs/web.rs`.

mod tree;
mod web;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use shardd_tests::s3::{FOREIGN, S3};
use shardd_tests::{binary, certificate_of_localhost, error_line, python, run};
use tempfile::TempDir;

use tree::Tree;
use web::Web;

/// Ingests the given paths into a store of its own.
fn shardctl(given: &[impl AsRef<str>], variables: &[(&str, &str)]) -> (TempDir, Command) {
    let desk = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = Command::new(binary("shardctl"));
    command.arg("--store").arg(desk.path().join("store")).args(["--json", "ingest"]);
    command.args(given.iter().map(AsRef::as_ref));
    command.args(["--name", "x", "--threads", "2"]).env("TMPDIR", desk.path());
    FOREIGN.iter().for_each(|variable| _ = command.env_remove(variable));
    command.envs(variables.iter().copied());
    (desk, command)
}

/// The version that comes of it.
fn version(given: &[impl AsRef<str>], variables: &[(&str, &str)]) -> String {
    let (_desk, mut command) = shardctl(given, variables);
    let printed = run(&mut command);
    let done: Value = serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON");
    done["version"].as_str().unwrap_or_else(|| panic!("{command:?}: {printed}")).to_owned()
}

/// The one line that says why not; nothing came of it.
fn refused(given: &[impl AsRef<str>], variables: &[(&str, &str)]) -> String {
    let (desk, mut command) = shardctl(given, variables);
    let output = command.output().expect("shardctl starts");
    let line = error_line(&output);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {line}");
    assert!(!line.contains('\n'), "{line}");
    let names = desk.path().join("store/meta/refs");
    let visible = names.read_dir().map_or(0, |entries| entries.count());
    assert_eq!(visible, 0, "{command:?} left a version");
    line
}

#[test]
fn what_lies_in_a_bucket_makes_the_version_it_makes_here() {
    let tree = Tree::new();
    let Some(s3) = S3::moto(tree.path(), &[]) else { return };
    for given in tree::KINDS {
        let (here, there) = (tree.here(given), tree::at("s3://data", given));
        let began = std::time::Instant::now();
        assert_eq!(version(&here, &[]), version(&there, &s3.variables()), "{given:?}");
        println!("{given:?}: one version, in {:.1} s", began.elapsed().as_secs_f64());
    }
    assert_ne!(version(&tree.here(&["images"]), &[]), version(&tree.here(&["images/train"]), &[]));
}

#[test]
fn patterns_are_the_same_whether_the_shell_expands_them_or_we_do() {
    let tree = Tree::new();
    let quoted = version(&tree.here(&["images/*/*/1[01].png"]), &[]);
    let expanded: Vec<String> = ["test", "train"]
        .iter()
        .flat_map(|part| ["cat", "dog"].map(|class| format!("images/{part}/{class}")))
        .flat_map(|folder| [10, 11].map(|number| format!("{folder}/{number}.png")))
        .collect();
    let expanded: Vec<&str> = expanded.iter().map(String::as_str).collect();
    assert_eq!(quoted, version(&tree.here(&expanded), &[]));
    assert_eq!(quoted, version(&tree.here(&["images/*/*/{10..11}.png"]), &[]));
}

#[test]
fn each_object_is_fetched_once() {
    let tree = Tree::new();
    let Some(s3) = S3::moto(tree.path(), &[]) else { return };
    version(&["s3://data/images"], &s3.variables());
    let mut gets = s3.gets();
    let all = gets.len();
    gets.sort();
    gets.dedup();
    assert_eq!((gets.len(), all), (tree::IMAGES, tree::IMAGES));
    version(&["s3://data/images.tar.gz"], &s3.variables());
    // Its first bytes, then all of it: one part, as it is small.
    assert!(s3.gets().len() <= tree::IMAGES + 2, "{:?}", &s3.gets()[tree::IMAGES..]);
}

#[test]
fn a_store_that_refuses_is_quoted_with_the_way_out() {
    let tree = Tree::new();
    let Some(s3) = S3::moto(tree.path(), &[]) else { return };
    let with = |name: &'static str, value: &'static str| {
        s3.variables()
            .map(|(variable, there)| if variable == name { (name, value) } else { (variable, there) })
    };
    let cases = [
        (
            "s3://data/images",
            with("AWS_SECRET_ACCESS_KEY", "wrong"),
            "SignatureDoesNotMatch",
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("s3://data/images", with("AWS_ACCESS_KEY_ID", "unknown"), "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("s3://closed/images", s3.variables(), "AccessDenied", "AWS_SKIP_SIGNATURE"),
        ("s3://missing/images", s3.variables(), "no such bucket", "AWS_ENDPOINT_URL"),
        ("s3://data/missing", s3.variables(), "nothing of that name", "check the URL"),
        ("s3://data/images/*.csv", s3.variables(), "matches no file", "list the files of s3://data/images/"),
        ("s3://data/images", with("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), "refused", "check the network"),
    ];
    for (url, variables, said, way_out) in cases {
        let line = refused(&[url], &variables);
        assert!(line.contains(url) && line.contains(said) && line.contains(way_out), "{line}");
    }
    let line = refused(&["s3://data/images", "--under", "trian"], &s3.variables());
    assert!(line.contains("its folders are test, train"), "{line}");
}

#[test]
fn an_object_that_changes_while_it_is_read_stops_the_ingest() {
    let tree = Tree::new();
    for (key, number) in
        [("large.csv", "3"), ("images/train/dog/3.png", "1"), ("large.parquet", "2"), ("images.tar.gz", "2")]
    {
        let Some(s3) = S3::moto(tree.path(), &["--at", key, number, "change"]) else { return };
        let given = if key.starts_with("images/") { "s3://data/images" } else { &format!("s3://data/{key}") };
        let line = refused(&[given, "--on-error", "skip"], &s3.variables());
        assert!(line.contains(&format!("s3://data/{key}: changed while it was read")), "{line}");
    }
}

#[test]
fn a_store_that_is_killed_while_it_is_read_stops_the_ingest() {
    let tree = Tree::new();
    let is_refused = |key, number| {
        let Some(s3) = S3::moto(tree.path(), &["--at", key, number, "kill"]) else { return };
        let given = format!("s3://data/{key}");
        // Not taken for an archive that is damaged, which could be skipped.
        let line = refused(&[&given, "--on-error", "skip"], &s3.variables());
        assert!(line.contains(&format!("{given}: cannot be fetched: cannot be reached")), "{line}");
    };
    // Each is asked for again, for 40 seconds.
    std::thread::scope(|scope| {
        scope.spawn(|| is_refused("large.csv", "3"));
        scope.spawn(|| is_refused("images.tar.gz", "2"));
    });
}

#[test]
fn a_store_behind_tls_is_read_if_its_certificate_is_known() {
    let tree = Tree::new();
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (cert, key) = certificate_of_localhost(dir.path());
    let Some(s3) = S3::moto(tree.path(), &["--tls", &cert, &key]) else { return };
    let mut variables = s3.variables().to_vec();
    let line = refused(&["s3://data/images"], &variables);
    assert!(line.contains("cannot be reached") && line.contains("certificate"), "{line}");
    variables.push(("SSL_CERT_FILE", &cert));
    assert_eq!(version(&["s3://data/images"], &variables), version(&tree.here(&["images"]), &[]));
}

/// Google's XML interface is the one of S3; moto stands in for it. How Google hands out tokens is not tested.
#[test]
fn what_lies_in_a_bucket_of_google_makes_the_version_it_makes_here() {
    let tree = Tree::new();
    let Some(s3) = S3::moto(tree.path(), &["--open"]) else { return };
    for given in tree::KINDS {
        let there = tree::at("gs://data", given);
        let variables = [("STORAGE_EMULATOR_HOST", s3.endpoint.as_str())];
        assert_eq!(version(&tree.here(given), &[]), version(&there, &variables), "{given:?}");
    }
}

#[test]
fn what_lies_in_a_container_of_azure_makes_the_version_it_makes_here() {
    let Some(azurite) = std::env::var_os("SHARDD_AZURITE") else {
        println!(
            "skipped: SHARDD_AZURITE is not set (npm install azurite, then node_modules/.bin/azurite-blob)"
        );
        return;
    };
    let Some(python) = python() else { return };
    let tree = Tree::new();
    let mut child = Command::new(azurite)
        .args(["--inMemoryPersistence", "--blobPort", "0", "--skipApiVersionCheck", "--disableTelemetry"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("azurite starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let at = lines.find_map(|line| Some(line.ok()?.split_once("listening at ")?.1.trim().to_owned()));
    let endpoint = format!("{}/devstoreaccount1", at.expect("it says where it listens"));
    let drain = std::thread::spawn(move || lines.for_each(drop));
    let told = std::panic::catch_unwind(|| azure_story(&python, &tree, &endpoint));
    child.kill().expect("a child can be killed");
    child.wait().expect("a killed child is reaped");
    drain.join().expect("its output ended");
    told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn azure_story(python: &Path, tree: &Tree, endpoint: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/azure_fill.py");
    run(Command::new(python).arg(script).arg(endpoint).arg(tree.path()));
    const KEY: &str =
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
    let connection = format!("AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={endpoint};");
    let variables = [("AZURE_STORAGE_CONNECTION_STRING", connection.as_str())];
    for given in tree::KINDS {
        let there = tree::at("az://data", given);
        assert_eq!(version(&tree.here(given), &[]), version(&there, &variables), "{given:?}");
    }
    let line = refused(&["az://missing/images"], &variables);
    assert!(line.contains("no such bucket"), "{line}");
    let other = connection.replace("Eby8", "Ebz8");
    let line = refused(&["az://data/images"], &[("AZURE_STORAGE_CONNECTION_STRING", &other)]);
    assert!(line.contains("access denied") && line.contains("AZURE_STORAGE_KEY"), "{line}");
    let line = refused(&["az://data/images"], &[]);
    assert!(line.contains("access denied") && line.contains("AZURE_STORAGE_ACCOUNT"), "{line}");
}

#[test]
fn a_file_of_any_web_server_makes_the_version_it_makes_here() {
    let tree = Tree::new();
    let web = Web::start(tree.path());
    // Parts, only all of it, without its length, and after a redirection.
    for given in ["digits.parquet", "large.csv", "images.tar.gz", "large.parquet"] {
        let here = version(&tree.here(&[given]), &[]);
        for manner in ["parts", "bare-parts", "whole", "endless", "moved"] {
            let url = format!("{}/{manner}/{given}?token={}", web.address, web::TOKEN);
            assert_eq!(version(&[&url], &[]), here, "{manner} {given}");
        }
    }
    let urls = ["a.parquet", "b.parquet"]
        .map(|name| format!("{}/parts/tables/{name}?token={}", web.address, web::TOKEN));
    let urls = [urls[0].as_str(), urls[1].as_str()];
    assert_eq!(version(&urls, &[]), version(&tree.here(&["tables/a.parquet", "tables/b.parquet"]), &[]));
}

#[test]
fn a_web_server_that_refuses_is_quoted_and_no_secret_is_shown() {
    let tree = Tree::new();
    let web = Web::start(tree.path());
    let cases = [
        ("parts/large.csv?token=guessed", "access denied (status 403)"),
        ("parts/missing.csv?token=let-me-in", "nothing of that name"),
        ("parts/images/?token=let-me-in", "a folder, which a web server does not list"),
        ("parts/images/*.png?token=let-me-in", "a pattern, and a web server does not list"),
        ("parts/empty.csv?token=let-me-in", "empty"),
        ("changing/large.csv?token=let-me-in", "changed while it was read"),
        ("broken/large.csv?token=let-me-in", "cannot be reached"),
    ];
    for (path, said) in cases {
        let line = refused(&[&format!("{}/{path}", web.address)], &[]);
        assert!(line.contains(said) && !line.contains("token"), "{path}: {line}");
    }
    let line = refused(&["http://no-such-host.invalid/x.csv"], &[]);
    assert!(line.contains("http://no-such-host.invalid/x.csv: cannot be reached"), "{line}");
}
