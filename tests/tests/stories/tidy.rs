//! The repository's own rules that a program can check: dependencies between crates, cycles between modules,
//! licences, the places that may name a crate, the links of documents, the sources of their promises and
//! figures, and the English of documents, comments and strings. `docs/STYLE.md` says why.
//!
//! A rule that fails lists every offence, each with the file to open.

pub(crate) mod english;
mod licence;
mod modules;
mod promises;
mod repository;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use modules::Modules;
use promises::Known;
use repository::{calls, code_paths, files, links, names_crate, read, root, sources};

/// What lies at the top of the repository; files that begin with a dot are welcome, too.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "client",
    "deny.toml",
    "docs",
    "rustfmt.toml",
    "server",
    "shardfmt",
    "tests",
    "trainer-integration",
];

/// Which of our packages each of them may depend on. Tests and benches see everything.
const ARROWS: &[(&str, &[&str])] = &[
    ("shardd-plan", &[]),
    ("shardd-packing", &[]),
    ("shardd-tokens", &[]),
    ("shardd-views", &[]),
    ("shardd-strategies", &[]),
    ("shardfmt", &["shardd-plan", "shardd-strategies"]),
    (
        "shardd-ingest",
        &["shardd-packing", "shardd-plan", "shardd-strategies", "shardd-tokens", "shardd-views", "shardfmt"],
    ),
    ("shardd-api", &["shardd-plan", "shardfmt"]),
    ("shardd-telemetry", &[]),
    // Its tests ingest.
    ("shardd-store", &["shardd-api", "shardd-ingest", "shardd-plan", "shardd-telemetry", "shardfmt"]),
    ("shardd-inputs", &["shardd-ingest", "shardd-store"]),
    ("shardd-simulation", &["shardd-api", "shardd-plan", "shardfmt"]),
    ("shardd-transforms", &[]),
    // Documents are read and written as those of pictures.
    ("shardd-columns", &["shardd-transforms"]),
    // Places, draws and what happens with broken samples are those of pictures.
    ("shardd-audio", &["shardd-transforms"]),
    (
        "shardd-client",
        &[
            "shardd-api",
            "shardd-audio",
            "shardd-columns",
            "shardd-plan",
            "shardd-store",
            "shardd-telemetry",
            "shardd-transforms",
            "shardfmt",
        ],
    ),
    ("shardd-certificates", &["shardd-api", "shardfmt"]),
    ("shardd-engine", &["shardd-api", "shardd-plan", "shardd-store", "shardfmt"]),
    (
        "shardd",
        &[
            "shardd-api",
            "shardd-certificates",
            "shardd-client",
            "shardd-engine",
            "shardd-plan",
            "shardd-simulation",
            "shardd-store",
            "shardd-telemetry",
            "shardd-transforms",
            "shardfmt",
        ],
    ),
    (
        "shardctl",
        &[
            "shardd-api",
            "shardd-certificates",
            "shardd-client",
            "shardd-ingest",
            "shardd-inputs",
            "shardd-plan",
            "shardd-simulation",
            "shardd-store",
            "shardd-views",
            "shardfmt",
        ],
    ),
    (
        "shardd-python",
        &[
            "shardd-api",
            "shardd-audio",
            "shardd-client",
            "shardd-columns",
            "shardd-ingest",
            "shardd-inputs",
            "shardd-plan",
            "shardd-store",
            "shardd-tokens",
            "shardd-transforms",
            "shardfmt",
        ],
    ),
    (
        "shardd-trainer",
        &[
            "shardd-api",
            "shardd-client",
            "shardd-ingest",
            "shardd-kernels",
            "shardd-plan",
            "shardd-store",
            "shardd-telemetry",
            "shardd-transforms",
            "shardfmt",
        ],
    ),
];

/// Crates with which bytes are sent, waited for and served.
const INPUT_AND_OUTPUT: &[&str] = &[
    "async-trait",
    "axum",
    "futures",
    "hyper",
    "object_store",
    "quinn",
    "reqwest",
    "rustls",
    "sled",
    "tokio",
    "ureq",
];

/// Crates that a package must not even reach through others.
const OUT_OF_REACH: &[(&str, &[&str])] = &[
    // A plan is computed from numbers alone.
    ("shardd-plan", &["arrow", "parquet"]),
    ("shardd-plan", INPUT_AND_OUTPUT),
    ("shardfmt", &["image", "parquet", "tar"]),
    ("shardfmt", INPUT_AND_OUTPUT),
    ("shardd-ingest", INPUT_AND_OUTPUT),
    ("shardd-api", INPUT_AND_OUTPUT),
    // Loaders and nodes read what others ingested.
    ("shardd-store", &["axum", "burn", "etcd-client", "image", "parquet", "quinn", "sled", "tar"]),
    ("shardd-client", &["axum", "burn", "etcd-client", "parquet", "quinn", "rcgen", "sled", "tar"]),
    // Transforms change one sample and know nothing of its place.
    ("shardd-transforms", &["arrow", "burn", "shardfmt"]),
    ("shardd-transforms", INPUT_AND_OUTPUT),
    ("shardd-columns", &["burn", "shardfmt"]),
    ("shardd-columns", INPUT_AND_OUTPUT),
    ("shardd-engine", &["axum", "burn", "etcd-client", "quinn", "sled"]),
    ("shardctl", &["axum", "burn", "etcd-client", "quinn", "sled"]),
    ("shardd-trainer", &["axum", "etcd-client", "quinn", "sled"]),
    // etcd-client's build script needs protoc, which the first command of the README must not.
    ("shardd", &["burn", "etcd-client", "parquet"]),
];

/// Crates that are an implementation's own business: only files under the path name them.
const BEHIND: &[(&str, &str)] = &[
    ("aws_config", "client/store/src/stores/profile"),
    ("etcd_client", "server/src/metastore/etcd"),
    ("quinn", "server/src/transport"),
    ("sled", "server/src/metastore"),
    ("tonic", "server/src/metastore/etcd"),
];

/// Modules that decide and do not act.
const PURE: &[&str] = &[
    "shardfmt/plan/src",
    "client/api/src/drain.rs",
    "client/api/src/evict.rs",
    "client/api/src/exchange.rs",
    "client/api/src/explain.rs",
    "client/api/src/health.rs",
    "client/api/src/local_transport.rs",
    "client/api/src/lookup.rs",
    "client/api/src/placement",
    "client/api/src/timeline",
    "client/api/src/timeline.rs",
    "client/simulation/src",
    "server/engine/src/engine/kept.rs",
    "server/engine/src/engine/pace.rs",
    "server/engine/src/engine/schedule.rs",
    "client/store/src/record/compare.rs",
    "client/store/src/record/document.rs",
    "client/store/src/record/steps.rs",
    "client/columns/src",
    "client/transforms/src/draws.rs",
    "client/transforms/src/op.rs",
    "client/transforms/src/op",
    "client/transforms/src/ops",
    "client/transforms/src/transform.rs",
    "client/src/loader/columns.rs",
    "client/src/loader/order.rs",
    "client/src/loader/ranks.rs",
    "client/src/loader/span.rs",
    "client/src/loader/steps.rs",
    "trainer-integration/src/bin/shardtrain/launch/membership.rs",
    "trainer-integration/src/bin/shardtrain/launch/restart_policy.rs",
    "trainer-integration/src/bin/shardtrain/status.rs",
    "trainer-integration/src/checkpoint/manifest.rs",
    "trainer-integration/src/checkpoint/codec.rs",
    "trainer-integration/src/checkpoint/layout.rs",
    "trainer-integration/src/checkpoint/objects.rs",
    "trainer-integration/src/checkpoint/part.rs",
    "trainer-integration/src/checkpoint/pieces.rs",
    "trainer-integration/src/checkpoint/plan.rs",
    "trainer-integration/src/checkpoint/state.rs",
    "trainer-integration/src/buckets.rs",
    "trainer-integration/src/scaling.rs",
    "trainer-integration/src/engine/segments.rs",
    "trainer-integration/src/train/account.rs",
    "trainer-integration/src/collective/pieces.rs",
    "trainer-integration/src/collective/sums/choose.rs",
    "trainer-integration/src/zero",
];

/// The roots of the crates whose modules form no cycle.
const CRATE_ROOTS: &[&str] = &[
    "shardfmt/plan/src/lib.rs",
    "shardfmt/src/lib.rs",
    "shardfmt/ingest/src/lib.rs",
    "client/api/src/lib.rs",
    "client/telemetry/src/lib.rs",
    "client/store/src/lib.rs",
    "client/inputs/src/lib.rs",
    "client/simulation/src/lib.rs",
    "client/columns/src/lib.rs",
    "client/transforms/src/lib.rs",
    "client/audio/src/lib.rs",
    "client/src/lib.rs",
    "client/cli/src/main.rs",
    "client/python/src/lib.rs",
    "server/certificates/src/lib.rs",
    "server/engine/src/lib.rs",
    "server/src/lib.rs",
    "trainer-integration/kernels/src/lib.rs",
    "trainer-integration/src/lib.rs",
    "trainer-integration/src/bin/shardtrain/main.rs",
];

/// Pages whose figures have no source beside them: programs make both from the results of benches.
const MADE_OF_RESULTS: &[&str] = &["docs/PAPER.md", "docs/PERFORMANCE.md"];

/// The widest line of a document's prose, in characters. Rows of tables may be wider.
const WIDEST: usize = 110;

/// Longest Rust file, in lines.
const LONGEST: usize = 900;

/// Largest committed file. Data sets live elsewhere.
const LARGEST_BYTES: u64 = 2 << 20;

#[test]
fn crates_depend_on_each_other_in_one_direction_only() {
    let metadata = cargo(&["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("cargo lists packages");
    let name_of = |value: &Value| value["name"].as_str().expect("a package has a name").to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name_of).collect();
    let mut offences = Vec::new();
    for package in packages {
        let from = name_of(package);
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else { continue };
        for to in package["dependencies"].as_array().expect("cargo lists dependencies").iter().map(name_of) {
            if ours.contains(&to) && !allowed.contains(&to.as_str()) {
                offences.push(format!("{from} depends on {to}"));
            }
        }
    }
    none("arrows between crates point one way", offences);
}

#[test]
fn the_modules_of_a_crate_form_no_cycle() {
    let mut offences = Vec::new();
    for crate_root in CRATE_ROOTS {
        for (parent, cycles) in Modules::read(&root().join(crate_root)).cycles() {
            for cycle in cycles {
                offences.push(format!("{crate_root} {parent}: {}", cycle.modules.join(", ")));
                offences.extend(cycle.arrows.into_iter().map(|arrow| format!("    {arrow}")));
            }
        }
    }
    none("modules need each other one way only", offences);
}

#[test]
fn what_a_crate_must_not_know_is_out_of_its_reach() {
    let mut offences = Vec::new();
    for (package, forbidden) in OUT_OF_REACH {
        let reached = dependencies(&["--package", package, "--edges", "normal,build"]);
        let found = reached.keys().filter(|(name, _)| forbidden.contains(&name.as_str()));
        offences.extend(
            found.map(|(name, _)| format!("{package} reaches {name}: cargo tree -p {package} -i {name}")),
        );
    }
    none("some crates stay out of reach of some packages", offences);
}

#[test]
fn every_dependency_has_a_licence_that_is_welcome() {
    let deny = toml_file("deny.toml");
    let allowed = strings(&deny["licenses"]["allow"]);
    let mut excepted = BTreeMap::new();
    for exception in deny["licenses"]["exceptions"].as_array().expect("a list") {
        excepted.insert(exception["crate"].as_str().expect("a name"), strings(&exception["allow"]));
    }
    let mut offences = Vec::new();
    for ((name, version), licence) in
        dependencies(&["--workspace", "--features", "shardd/cluster-etcd,shardd/otlp,shardd/aws-profiles"])
    {
        let mut welcome = allowed.clone();
        welcome.extend(excepted.remove(name.as_str()).unwrap_or_default());
        match licence::is_met(&licence, &welcome) {
            Ok(true) => {}
            Ok(false) => offences.push(format!("{name} {version} is under {licence}")),
            Err(reason) => {
                offences.push(format!("{name} {version} has a licence we cannot read, {licence:?}: {reason}"))
            }
        }
    }
    offences.extend(excepted.into_keys().map(|name| format!("the exception for {name} is not needed")));
    none("licences are those of deny.toml", offences);
}

#[test]
fn no_unwelcome_crate_or_second_copy_is_locked_and_all_come_from_the_registry() {
    let (deny, lock) = (toml_file("deny.toml"), toml_file("Cargo.lock"));
    let registries: Vec<String> = strings(&deny["sources"]["allow-registry"])
        .into_iter()
        .map(|url| format!("registry+{url}"))
        .collect();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut offences = Vec::new();
    for package in lock["package"].as_array().expect("a list of packages") {
        let name = package["name"].as_str().expect("a name");
        versions.entry(name).or_default().push(package["version"].as_str().expect("a version"));
        if let Some(source) = package.get("source").and_then(toml::Value::as_str)
            && !registries.iter().any(|registry| registry == source)
        {
            offences.push(format!("{name} comes from {source}"));
        }
    }
    for banned in deny["bans"]["deny"].as_array().expect("a list") {
        let name = banned["crate"].as_str().expect("a name");
        let locked = versions.get(name).map_or(&[][..], Vec::as_slice);
        let most = usize::from(banned.get("deny-multiple-versions").is_some());
        if locked.len() > most {
            offences.push(format!("{name} {} is locked: cargo tree -i {name}", locked.join(" and ")));
        }
    }
    none("dependencies are those that deny.toml welcomes", offences);
}

#[test]
fn every_package_has_the_lints_of_the_workspace() {
    let manifests = files().iter().filter(|file| file.ends_with("/Cargo.toml"));
    let without = manifests.filter(|file| {
        let manifest = toml_file(file);
        manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool)
            != Some(true)
    });
    none("[lints] workspace = true", without.cloned());
}

#[test]
fn crates_behind_a_seam_are_named_by_its_implementation_only() {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| !source.is_under("tests") && !source.is_under("benches")) {
        for (name, home) in BEHIND.iter().filter(|(_, home)| !source.is_under(home)) {
            offences.extend(source.all().filter(|(_, line)| names_crate(line, name)).map(|(number, _)| {
                format!("{}:{number} names {name}, which is known under {home} only", source.path)
            }));
        }
    }
    none("what a seam hides is hidden", offences);
}

#[test]
fn pure_modules_name_no_runtime_file_or_socket() {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| PURE.iter().any(|pure| source.is_under(pure))) {
        // How long something takes is a number; what time it is, is not.
        for (number, line) in source.product().filter(|(_, line)| line.trim() != "use std::time::Duration;") {
            let found = ["std::fs", "std::net", "std::io", "std::time", "std::thread", "std::env"]
                .into_iter()
                .find(|module| line.contains(module));
            // Computing on all cores (rayon) is computing.
            let found =
                found.or_else(|| ["tokio", "futures"].into_iter().find(|name| names_crate(line, name)));
            offences.extend(found.map(|name| format!("{}:{number} names {name}", source.path)));
        }
    }
    none("pure modules are pure", offences);
}

#[test]
fn libraries_print_nothing() {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| source.is_library()) {
        let prints = |line: &str| ["print!(", "println!(", "dbg!("].iter().any(|name| line.contains(name));
        offences.extend(
            source
                .product()
                .filter(|(_, line)| prints(line))
                .map(|(number, _)| format!("{}:{number}", source.path)),
        );
    }
    none("printing is for binaries; a library returns or logs", offences);
}

#[test]
fn only_tests_unwrap() {
    let mut offences = Vec::new();
    for source in sources() {
        let found = source.product().filter(|(_, line)| line.contains(".unwrap()"));
        offences.extend(found.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    none("`expect` says why it cannot fail, and `?` what happens if it does", offences);
}

#[test]
fn tests_wait_for_conditions_and_do_not_sleep() {
    let mut offences = Vec::new();
    // The test kit polls processes that do not announce their changes; tests call it and wait for something
    // to be so.
    for source in sources().iter().filter(|source| !source.is_under("tests/src")) {
        // There, sleeping is how time passes at all.
        let paused =
            ["start_paused = true", "start_paused(true)"].iter().any(|text| source.text.contains(text));
        let sleeps =
            |line: &str| line.contains(concat!("thread::", "sleep")) || !paused && calls(line, "sleep");
        let found = source.tests().filter(|(_, line)| sleeps(line));
        offences.extend(found.map(|(number, _)| format!("{}:{number}", source.path)));
    }
    none("no test sleeps", offences);
}

#[test]
fn nothing_is_left_for_later_and_no_file_is_too_long() {
    let later =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!(")];
    let mut offences = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > LONGEST {
            offences
                .push(format!("{} has {lines} lines; cut it where it begins a second story", source.path));
        }
        for (number, line) in source.text.lines().enumerate() {
            let found = later.iter().find(|word| line.contains(*word));
            offences.extend(found.map(|word| format!("{}:{} says {word}", source.path, number + 1)));
        }
    }
    none("the code is finished, and short enough to read", offences);
}

#[test]
fn the_top_level_holds_what_it_should() {
    let top: BTreeSet<&str> = files().iter().map(|file| file.split('/').next().expect("not empty")).collect();
    let unknown = top.iter().filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(name));
    let missing = TOP_LEVEL.iter().filter(|name| !top.contains(*name));
    let offences = unknown
        .map(|name| format!("{name} has no place at the top level"))
        .chain(missing.map(|name| format!("{name} is missing")));
    none("the top level is known", offences);
}

#[test]
fn no_data_set_is_committed() {
    let shared = std::env::var_os("SHARDD_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    let mut shared_names: BTreeSet<String> =
        ["cifar10-jpeg.tar.gz", "tinyshakespeare.txt"].map(String::from).into();
    shared_names.extend(
        fs::read_dir(shared.join("data"))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok()),
    );
    let mut offences = Vec::new();
    for file in files() {
        let metadata = fs::symlink_metadata(root().join(file)).expect("a listed file is there");
        if metadata.len() > LARGEST_BYTES {
            offences.push(format!("{file} has {} bytes", metadata.len()));
        }
        if metadata.is_symlink() {
            offences.push(format!("{file} is a link"));
        }
        if file.rsplit('/').next().is_some_and(|name| shared_names.contains(name)) {
            offences.push(format!("{file} belongs to the shared data"));
        }
    }
    none("data stays out of the repository", offences);
}

#[test]
fn known_bugs_can_still_be_put_back() {
    let bugs = root().join("tests/bugs");
    let patches = bugs.read_dir().expect("a directory").map(|entry| entry.expect("a file").path());
    let refused =
        patches.filter(|path| path.extension().is_some_and(|kind| kind == "patch")).filter(|path| {
            let check = Command::new("git").args(["apply", "--check"]).arg(path).current_dir(root()).output();
            !check.expect("git runs").status.success()
        });
    none(
        "a patch of tests/bugs does not apply: make it again",
        refused.map(|path| path.display().to_string()),
    );
}

#[test]
fn documents_point_at_what_exists() {
    let mut offences = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".md")) {
        let folder = Path::new(file).parent().expect("a file is in a folder");
        let text = read(file);
        for link in links(&text) {
            if !root().join(folder).join(link).exists() {
                offences.push(format!("{file} links to {link}"));
            }
        }
        for path in code_paths(&text, TOP_LEVEL) {
            if !root().join(path).exists() {
                offences.push(format!("{file} speaks of {path}"));
            }
        }
    }
    none("documents keep up with the code", offences);
}

#[test]
fn every_promise_names_a_test_or_a_bench_that_exists() {
    let (page, known) = ("docs/PROMISES.md", known());
    let faults = promises::unproven(&read(page), &known);
    none("a promise has a test", faults.into_iter().map(|(line, fault)| format!("{page}:{line} {fault}")));
}

#[test]
fn documents_name_the_sources_of_their_figures_and_tests_that_exist() {
    let known = known();
    let mut offences = Vec::new();
    for page in files().iter().filter(|file| is_page_for_readers(file)) {
        let text = read(page);
        let unsourced = promises::unsourced(&text, &known).into_iter();
        offences.extend(unsourced.map(|(line, figure)| format!("{page}:{line} has {figure}, and no source")));
        let unknown = promises::unknown_tests(&text, &known).into_iter();
        offences.extend(unknown.map(|(line, name)| format!("{page}:{line} names {name}, which is no test")));
    }
    none("a section with a measured figure names its test or bench (docs/CONTRIBUTING.md)", offences);
}

/// Whether a file is a page that people write for readers: the README files of the repository and the Python
/// package, and those in `docs` but records of decisions, copies of help texts, and pages made of results.
fn is_page_for_readers(file: &str) -> bool {
    let is_readme = ["README.md", "client/python/README.md"].contains(&file);
    let is_left_out = ["docs/adr/", "docs/reference/"].iter().any(|folder| file.starts_with(folder));
    let is_doc = file.starts_with("docs/") && file.ends_with(".md") && !is_left_out;
    (is_readme || is_doc) && !MADE_OF_RESULTS.contains(&file)
}

/// All files, and the tests in them.
fn known() -> Known {
    let mut known = Known::default();
    for file in files() {
        let has_code = [".rs", ".py"].iter().any(|ending| file.ends_with(ending));
        known.add(file, &if has_code { read(file) } else { String::new() });
    }
    known
}

#[test]
fn documents_are_in_plain_english_and_no_wider_than_a_screen() {
    let mut offences = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".md")) {
        let text = read(file);
        let count = english::count(&text);
        if !count.is_plain() {
            let places = count.markers.iter().map(|(line, marker)| format!("{file}:{line} says {marker:?}"));
            offences.extend(places);
        }
        // Code, and what programs print, stays as it is.
        for (number, line) in english::prose(&text) {
            if line.chars().count() > WIDEST && !line.starts_with('|') && line.trim_start().contains(' ') {
                offences.push(format!("{file}:{number} is wider than {WIDEST} characters"));
            }
        }
    }
    none("name the thing; the active voice; the field's noun", offences);
}

#[test]
fn module_documentation_is_in_plain_english() {
    let mut offences = Vec::new();
    for file in files().iter().filter(|file| file.ends_with(".rs")) {
        let count = english::count(&english::module_docs(&read(file)));
        offences.extend(count.markers.iter().map(|(line, marker)| format!("{file}:{line} says {marker:?}")));
    }
    none("name the thing; the active voice; the field's noun", offences);
}

#[test]
fn strings_and_comments_are_in_plain_english() {
    let mut packages: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    // The list of the words itself is no text.
    for file in files().iter().filter(|file| !file.ends_with("tidy/english.rs")) {
        let texts = match file.rsplit_once('.') {
            Some((_, "rs")) => english::rust_texts(&read(file)),
            Some((_, "py")) => english::python_texts(&read(file)),
            _ => continue,
        };
        let count = english::count(&texts);
        let (words, places) = packages.entry(package_of(file)).or_default();
        *words += count.words;
        places.extend(count.markers.iter().map(|(line, marker)| format!("{file}:{line} says {marker:?}")));
    }
    let wordy = packages.into_values().filter(|(words, places)| places.len() * 1000 > *words);
    none("name the thing; the active voice; the field's noun", wordy.flat_map(|(_, places)| places));
}

#[test]
fn the_page_about_the_paper_says_what_was_measured() {
    let report = root().join("benches/paper/report");
    let Some((status, lines)) = python(&[report.as_ref(), "--check".as_ref()]) else { return };
    none("benches/paper/report changes nothing", lines.lines().map(String::from));
    assert!(status, "the page could be made");
}

#[test]
fn the_page_about_performance_says_what_was_measured() {
    let run = root().join("benches/run");
    let Some((status, lines)) = python(&[run.as_ref(), "--page".as_ref(), "--dry-run".as_ref()]) else {
        return;
    };
    none("benches/run --page changes nothing", lines.lines().map(String::from));
    assert!(status, "the page could be made");
}

#[test]
fn the_guard_of_benches_finds_what_is_slower() {
    let tests = root().join("benches/guard/tests.py");
    let Some((status, lines)) = python(&[tests.as_ref()]) else { return };
    assert!(status, "{lines}");
}

#[test]
fn the_figures_of_benches_keep_their_schema() {
    let Some(_) = shardd_tests::python() else { return };
    let check = "import json, sys, jsonschema_rs\n\
        schema, figures = (json.load(open(path)) for path in sys.argv[1:])\n\
        check = jsonschema_rs.validator_for(schema)\n\
        check.validate(figures)\n\
        def refused(change):\n    \
            other = json.loads(json.dumps(figures))\n    \
            change(other)\n    \
            return not check.is_valid(other)\n\
        assert refused(lambda it: it['machine'].pop('cpu')), 'a machine without a processor'\n\
        assert refused(lambda it: it['benchmarks'][0].update(better='faster')), 'an unknown direction'\n\
        assert refused(lambda it: it['benchmarks'][0].update(samples=[])), 'a median of nothing'\n\
        assert refused(lambda it: it['benchmarks'][0]['samples'][0].update(yardstick=0)), 'no yardstick'\n\
        assert refused(lambda it: it.update(more=1)), 'an unknown key'";
    let files = ["benches/schema.json", "benches/results/quick.json"].map(|file| root().join(file));
    let [schema, figures] = &files;
    let given: [&OsStr; 4] = ["-c".as_ref(), check.as_ref(), schema.as_ref(), figures.as_ref()];
    let (status, lines) = python(&given).expect("a Python is there");
    assert!(status, "{lines}");
}

/// Runs Python with these arguments: whether it succeeded, and its output. Nothing where there is no Python.
fn python(given: &[&OsStr]) -> Option<(bool, String)> {
    let python = std::env::var_os("SHARDD_PYTHON").unwrap_or_else(|| "python3".into());
    let Ok(done) = Command::new(python).arg("-B").args(given).output() else {
        println!("skipped: there is no Python");
        return None;
    };
    let lines = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Some((done.status.success(), lines))
}

/// The folder of the package that a file belongs to; empty for none.
fn package_of(file: &str) -> &str {
    let mut folders = std::iter::successors(file.rsplit_once('/'), |(folder, _)| folder.rsplit_once('/'));
    let package = folders.find(|(folder, _)| files().binary_search(&format!("{folder}/Cargo.toml")).is_ok());
    package.map_or("", |(folder, _)| folder)
}

/// What `cargo tree` with these arguments says is compiled for this machine, our own packages left out: name and version,
/// and the licence.
fn dependencies(arguments: &[&str]) -> BTreeMap<(String, String), String> {
    let mut all = vec!["tree", "--locked", "--prefix", "none", "--format", "{p}|{l}"];
    all.extend(arguments);
    let mut found = BTreeMap::new();
    for line in cargo(&all).lines().filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('|').expect("the format asked for");
        let mut words = package.split(' ');
        let name = words.next().expect("a name").to_owned();
        let version = words.next().expect("a version").trim_start_matches('v').to_owned();
        if !package.contains("(/") {
            found.insert((name, version), licence.trim_end_matches(" (*)").to_owned());
        } else {
            assert!(
                package.contains(&format!("({}/", root().display())),
                "{package} is outside the repository"
            );
        }
    }
    found
}

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).current_dir(root()).args(arguments).output().expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints text")
}

fn toml_file(file: &str) -> toml::Table {
    read(file).parse().unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn strings(list: &toml::Value) -> BTreeSet<String> {
    let items = list.as_array().expect("a list").iter();
    items.map(|item| item.as_str().expect("a list of strings").to_owned()).collect()
}

/// The rule holds when there are no offences; else they are listed.
#[track_caller]
fn none(rule: &str, offences: impl IntoIterator<Item = String>) {
    let offences: Vec<String> = offences.into_iter().collect();
    assert!(offences.is_empty(), "{rule}, but:\n  {}", offences.join("\n  "));
}
