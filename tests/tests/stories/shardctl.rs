//! `shardctl` as people and scripts meet it: contexts, completions, manual pages, suggestions, colours and JSON; and what
//! `shardd config` says. All with the real binaries, most without any node.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use serde_json::Value;
use shardd_tests::s3::S3;
use shardd_tests::{binary, certificate_of_localhost, digits, error_line, run};
use tempfile::TempDir;

/// What else than the command line decides what these programs do.
const VARIABLES: [&str; 16] = [
    "SHARDD_SERVER",
    "SHARDD_TOKEN",
    "SHARDD_TOKEN_FILE",
    "SHARDD_CA",
    "SHARDD_STORE_ENDPOINT",
    "SHARDD_STORE_REGION",
    "SHARDD_STORE_CA",
    "SHARDD_STORE_ANONYMOUS",
    "SHARDD_CONFIG",
    "SHARDD_CONTEXTS",
    "SHARDD_CONTEXT",
    "XDG_CONFIG_HOME",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "SHARDD_CACHE_SIZE",
];

/// A small cluster to imagine.
const SIMULATE: [&str; 10] =
    ["--samples", "10000", "--sample-bytes", "100", "--nodes", "4", "--q", "0.1", "--epochs", "3"];

/// A home of its own, so that nothing of the user who runs the tests is read or changed.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(TempDir::new().expect("a temporary directory can be made"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn contexts(&self) -> PathBuf {
        self.path(".config/shardd/contexts.toml")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(binary(name));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command.env("HOME", self.0.path()).env("TMPDIR", self.0.path()).current_dir(self.0.path());
        command.stdin(Stdio::null());
        command
    }

    fn shardctl(&self, words: &[&str]) -> Command {
        let mut command = self.command("shardctl");
        command.args(words);
        command
    }

    /// The line that a failing command says, and its exit code.
    fn refused(&self, words: &[&str]) -> (String, i32) {
        failed(&mut self.shardctl(words))
    }

    /// What a command prints with `--json`, line by line.
    fn json(&self, words: &[&str]) -> Vec<Value> {
        let output = self.shardctl(words).arg("--json").output().expect("shardctl starts");
        let text = String::from_utf8(output.stdout).expect("output is text");
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{words:?}: {line}"));
        let said = String::from_utf8(output.stderr).expect("output is text");
        said.lines().map(parse).for_each(|said: Value| assert!(said.is_object(), "{words:?}: {said}"));
        text.lines().map(parse).collect()
    }

    fn digits(&self, store: &str, name: &str) {
        run(&mut self.shardctl(&["--store", store, "ingest", &digits("test"), "--name", name]));
    }
}

fn failed(command: &mut Command) -> (String, i32) {
    let output = command.output().expect("it starts");
    assert!(!output.status.success(), "{command:?} is no failure");
    let line = error_line(&output);
    assert_eq!(line.lines().count(), 1, "{command:?}: {line}");
    (line, output.status.code().expect("it was not killed"))
}

#[test]
fn a_context_is_made_chosen_and_forgotten() {
    let home = Home::new();
    let default = &home.json(&["context", "show"])[0];
    assert_eq!((&default["server"], &default["from"]), (&"http://127.0.0.1:7700".into(), &"default".into()));
    assert_eq!(home.json(&["context", "ls"]), [Value::Array(vec![])]);

    home.json(&["context", "set", "lab", "--server", "http://127.0.0.1:1/,http://127.0.0.1:2"]);
    home.digits("here", "digits");
    run(&mut home.shardctl(&["context", "set", "here", "--store", "here"]));
    let mode = fs::metadata(home.contexts()).expect("it was written").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    run(&mut home.shardctl(&["context", "use", "here"]));
    let listed = home.json(&["context", "ls"]);
    let here = home.path("here").display().to_string();
    assert_eq!(listed[0][0], serde_json::json!({ "context": "here", "store": here, "current": true }));
    assert_eq!(listed[0][1]["server"], "http://127.0.0.1:1,http://127.0.0.1:2");

    // From anywhere, and before it flags, the environment, and another context.
    let names = |command: &mut Command| run(command.args(["ls", "--json"]).current_dir("/"));
    assert!(names(&mut home.shardctl(&[])).contains("\"digits\""));
    let place = |command: &mut Command| -> Value {
        serde_json::from_str(&run(command.args(["context", "show", "--json"]))).expect("JSON")
    };
    let mut command = home.shardctl(&[]);
    let environment = command.env("SHARDD_SERVER", "http://127.0.0.1:3").env("SHARDD_CONTEXT", "lab");
    assert_eq!(place(environment)["from"], "SHARDD_SERVER");
    let mut flags = home.shardctl(&["--context", "lab"]);
    assert_eq!(place(flags.env("SHARDD_SERVER", "http://127.0.0.1:3"))["context"], "lab");
    assert_eq!(place(home.shardctl(&[]).env("SHARDD_CONTEXT", "lab"))["context"], "lab");
    assert_eq!(place(&mut home.shardctl(&["--store", "x"]))["from"], "--store");
    let moved = home.path("elsewhere.toml");
    assert_eq!(place(home.shardctl(&[]).env("SHARDD_CONTEXTS", &moved))["from"], "default");

    let (line, code) = home.refused(&["--context", "hree", "ls"]);
    assert_eq!(
        (line.as_str(), code),
        ("error: there is no context hree: there is here, lab; is it here?", 1)
    );
    assert_eq!(home.refused(&["--context", "lab", "--store", "x", "ls"]).1, 2);
    assert_eq!(home.refused(&["context", "set", "x"]).1, 2);
    for near_miss in ["ftp://x", "https://", "http://", "https:/x", "httpss://x", "x:7700"] {
        let (line, code) = home.refused(&["context", "set", "x", "--server", near_miss]);
        assert!(code == 2 && line.contains("is not the address of a node"), "{near_miss}: {line}");
    }

    let gone = run(&mut home.shardctl(&["context", "rm", "here"]));
    assert!(gone.contains("no context is the current one now"), "{gone}");
    assert_eq!(home.json(&["context", "show"])[0]["from"], "default");
    assert!(home.path("here").is_dir(), "only the name is forgotten");
}

/// Answers every question with an empty list, and tells which token came with it.
fn asked_with() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (tell, told) = sync_channel(16);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            let token = head.iter().find_map(|line| line.strip_prefix("authorization: Bearer "));
            tell.send(token.unwrap_or("none").to_owned()).expect("the test listens");
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]";
            (&stream).write_all(answer.as_bytes()).expect("the client listens");
        }
    });
    (url, told)
}

#[test]
fn a_context_keeps_how_its_place_is_entered_and_flags_and_environment_come_first() {
    let home = Home::new();
    let (url, token) = asked_with();
    for name in ["kept", "given", "set"] {
        fs::write(home.path(name), format!("{name}-secret\n")).expect("it can be written");
    }
    home.json(&["context", "set", "far", "--server", &url, "--token-file", "kept"]);
    run(&mut home.shardctl(&["context", "use", "far"]));
    let shown = &home.json(&["context", "show", "far"])[0];
    assert_eq!(shown["token_file"], home.path("kept").display().to_string(), "{shown}");
    let file = fs::read_to_string(home.contexts()).expect("it was written");
    assert!(file.contains("token-file = ") && !file.contains("secret"), "{file}");

    let shown_token = |command: &mut Command| {
        run(command);
        // Some commands ask several questions.
        let shown: BTreeSet<String> = token.try_iter().collect();
        Vec::from_iter(shown).join(" and ")
    };
    assert_eq!(shown_token(&mut home.shardctl(&["ls"])), "kept-secret");
    assert_eq!(shown_token(&mut home.shardctl(&["token", "ls"])), "kept-secret");
    assert_eq!(shown_token(home.shardctl(&["ls"]).env("SHARDD_TOKEN_FILE", "set")), "set-secret");
    assert_eq!(shown_token(home.shardctl(&["ls"]).env("SHARDD_TOKEN", "said")), "said");
    let mut flag = home.shardctl(&["--token-file", "given", "ls"]);
    assert_eq!(shown_token(flag.env("SHARDD_TOKEN_FILE", "not there")), "given-secret");
    assert_eq!(shown_token(&mut home.shardctl(&["--server", &url, "ls"])), "none", "only in its context");
    let held = |command: &mut Command| -> Value {
        serde_json::from_str(&run(command.args(["context", "show", "--json"]))).expect("JSON")
    };
    let shown = held(&mut home.shardctl(&[]));
    assert_eq!(shown["token_file"], home.path("kept").display().to_string(), "{shown}");
    assert_eq!((&shown["token_from"], &shown["ca"]), (&"context far".into(), &Value::Null), "{shown}");
    let shown = held(home.shardctl(&[]).env("SHARDD_TOKEN_FILE", "set").env("SHARDD_CA", "other.pem"));
    assert_eq!((&shown["token_file"], &shown["token_from"]), (&"set".into(), &"SHARDD_TOKEN_FILE".into()));
    assert_eq!((&shown["ca"], &shown["ca_from"]), (&"other.pem".into(), &"SHARDD_CA".into()), "{shown}");
    let shown = held(home.shardctl(&[]).env("SHARDD_TOKEN", "said"));
    assert_eq!((&shown["token_from"], &shown["token_file"]), (&"SHARDD_TOKEN".into(), &Value::Null));
    assert!(!shown.to_string().contains("said"), "the token itself is not shown: {shown}");
    let mut flag = home.shardctl(&["--token-file", "given", "context", "show"]);
    let page = run(flag.env("SHARDD_TOKEN_FILE", "set"));
    assert!(page.contains("given (--token-file)") && page.contains("context far"), "{page}");

    fs::remove_file(home.path("kept")).expect("it was there");
    let (line, code) = home.refused(&["ls"]);
    assert!(code == 1 && line.contains("kept: no token in it"), "{line}");
    let (line, _) = home.refused(&["--ca", "none.pem", "--token-file", "given", "ls"]);
    assert!(line.contains("none.pem: no certificates to trust"), "{line}");

    for (words, said) in [
        (&["--store", "s", "--token-file", "given", "ls"][..], "s is a store"),
        (&["--server", &url, "--store-region", "r", "ls"], "are for the URL of a bucket"),
        (&["context", "set", "x", "--store", "s", "--store-anonymous"], "are for the URL of a bucket"),
    ] {
        let (line, code) = home.refused(words);
        assert!(code == 2 && line.contains(said), "{words:?}: {line}");
    }
    let bucket = ["context", "set", "bucket", "--store", "s3://b/f", "--store-endpoint", "http://x:1"];
    home.json(&[&bucket[..], &["--store-region", "r", "--store-ca", "ca.pem"]].concat());
    let shown = &home.json(&["context", "show", "bucket"])[0];
    assert_eq!((&shown["endpoint"], &shown["region"]), (&"http://x:1".into(), &"r".into()));
    assert_eq!(shown["ca"], home.path("ca.pem").display().to_string());
    let (line, _) = home.refused(&["--context", "bucket", "ls"]);
    assert!(line.contains("ca.pem: cannot be trusted"), "{line}");
    let mut wrong = home.shardctl(&["--context", "bucket", "ls"]);
    let (line, _) = failed(wrong.env("SHARDD_STORE_ANONYMOUS", "perhaps"));
    assert!(line.contains("SHARDD_STORE_ANONYMOUS is \"perhaps\": use true or false"), "{line}");
}

#[test]
fn a_certificate_that_is_not_trusted_is_an_error_with_the_way_out() {
    let home = Home::new();
    let (cert, key) = certificate_of_localhost(&home.path(""));
    fs::create_dir(home.path("empty")).expect("it can be made");
    // Any server with a certificate will do.
    let Some(server) = S3::moto(&home.path("empty"), &["--open", "--tls", &cert, &key]) else {
        return;
    };
    let (line, code) = home.refused(&["--server", &server.endpoint, "ls"]);
    println!("{line}");
    assert!(code == 1 && line.contains("not trusted") && line.contains("--ca FILE or SHARDD_CA"), "{line}");
    assert!(line.contains("tls/ca.pem"), "{line}");
    let by_address = server.endpoint.replace("localhost", "127.0.0.1");
    let (line, _) = home.refused(&["--server", &by_address, "--ca", "cert.pem", "ls"]);
    println!("{line}");
    assert!(line.contains("it names others"), "{line}");
    let (line, _) = home.refused(&["--server", &server.endpoint, "--ca", "cert.pem", "ls"]);
    assert!(!line.contains("not trusted") && !line.contains("no shardd answers"), "{line}");
}

#[test]
fn a_file_of_contexts_that_cannot_be_read_is_an_error_and_stays() {
    let home = Home::new();
    fs::create_dir_all(home.contexts().parent().expect("a folder")).expect("it can be made");
    for (text, said) in [
        ("current = ", "contexts.toml, line 1"),
        (
            "\n[contexts.a]\nsever = \"http://x\"",
            "line 3: unknown field `sever`, expected one of `server`, `store`, `token-file`",
        ),
        ("[contexts.a]\nstore = \"relative\"", "write its whole path"),
    ] {
        fs::write(home.contexts(), text).expect("it can be written");
        for words in [&["ls"][..], &["context", "ls"], &["context", "set", "b", "--server", "http://b"]] {
            let (line, code) = home.refused(words);
            assert!(line.contains(said) && code == 1, "{words:?}: {line}");
        }
        assert_eq!(fs::read_to_string(home.contexts()).expect("it is there"), text);
        // Who says where to work does not need it.
        assert!(home.refused(&["--store", "none", "ls"]).0.contains("no directory none"));
    }
    fs::write(home.contexts(), "current = \"gone\"").expect("it can be written");
    let (line, _) = home.refused(&["ls"]);
    assert!(line.contains("the current context is gone, which does not exist"), "{line}");
}

#[test]
fn contexts_changed_at_the_same_time_are_all_kept() {
    let home = Home::new();
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let set = |name: &String| home.shardctl(&["context", "set", name, "--server", "http://x"]).spawn();
    let running: Vec<_> = names.iter().map(|name| set(name).expect("shardctl starts")).collect();
    for mut process in running {
        assert!(process.wait().expect("it ends").success());
    }
    let listed = home.json(&["context", "ls"]);
    let listed =
        listed[0].as_array().expect("a list").iter().map(|one| one["context"].as_str().expect("text"));
    assert_eq!(listed.collect::<Vec<_>>(), names);
    let beside = fs::read_dir(home.contexts().parent().expect("a folder")).expect("readable").count();
    assert_eq!(beside, 1, "nothing is left beside the file");
}

#[test]
fn what_was_misspelt_is_named() {
    let home = Home::new();
    home.digits("s", "digits");
    home.digits("s", "cifar10");
    run(&mut home.shardctl(&["--store", "s", "tag", "digits", "release"]));
    run(&mut home.shardctl(&["--store", "s", "partition", "digits", "--q", "0.1"]));
    let in_store = |words: &[&str]| home.refused(&[&["--store", "s"][..], words].concat());
    for (words, said, code) in [
        (&["ingets"][..], "'ingest'", 2),
        (&["plan", "whree"], "'where'", 2),
        (&["ls", "--jsn"], "'--json'", 2),
        (&["info", "digts"], "there is no dataset digts: there is cifar10, digits; is it digits?", 1),
        (&["info", "imagenet"], "there is no dataset imagenet: there is cifar10, digits", 1),
        (&["info", "digits@relaese"], "there is digits@release; is it digits@release?", 1),
        (&["plan", "show", "--plan", "digtis"], "is it that of digits?", 1),
        (&["man", "plan", "shwo"], "is it plan show?", 2),
    ] {
        let (line, found) = in_store(words);
        assert!(line.contains(said) && found == code, "{words:?}: {line} ({found})");
    }
}

#[test]
fn shells_accept_the_completions() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&mut home.shardctl(&["completions", shell]));
        assert!(script.contains("partition") && script.contains("older-than"), "{shell}");
    }
    let script = home.path("shardctl.bash");
    fs::write(&script, run(&mut home.shardctl(&["completions", "bash"]))).expect("it can be written");
    run(Command::new("bash").arg("-n").arg(&script));
    let complete = |words: &[&str]| {
        let line = format!(
            "source {}; COMP_WORDS=(shardctl {}); COMP_CWORD={}; _shardctl shardctl '{}' ''; echo ${{COMPREPLY[@]}}",
            script.display(),
            words.join(" "),
            words.len(),
            words.last().expect("a word"),
        );
        run(Command::new("bash").args(["--norc", "-c", &line])).trim().to_owned()
    };
    assert_eq!(complete(&["inge"]), "ingest");
    assert_eq!(complete(&["plan", "wh"]), "where");
    assert_eq!(complete(&["gc", "--older"]), "--older-than");
}

#[test]
fn every_command_has_a_manual_page_that_says_something() {
    let home = Home::new();
    run(&mut home.shardctl(&["man", "--to", "man1"]));
    let mut pages: BTreeSet<String> = BTreeSet::new();
    for entry in fs::read_dir(home.path("man1")).expect("it was made") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let page = fs::read_to_string(&path).expect("it is text");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(page.lines().any(|line| line == section), "{name} has no {section}");
        }
        let title = page.lines().find(|line| line.starts_with(".TH")).expect("a title");
        assert!(title.starts_with(&format!(".TH {name} 1")), "{title}");
        let said = page.lines().skip_while(|line| *line != ".SH DESCRIPTION").nth(1).expect("a description");
        assert!(said.len() > 10, "{name}: {said}");
        if Command::new("groff").arg("--version").output().is_ok() {
            let output = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&path).output();
            let output = output.expect("groff starts");
            assert!(output.status.success() && output.stderr.is_empty(), "{name}: {}", error_line(&output));
        } else {
            println!("skipped: groff is not installed, so {name} was not set");
        }
        pages.insert(name);
    }
    let expected: BTreeSet<String> =
        verbs(&home).into_iter().map(|verb| format!("shardctl-{}", verb.replace(' ', "-"))).collect();
    let groups = "audit balancer certs context exchange explain metastore plan runs token".split(' ');
    let whole = groups.map(|group| format!("shardctl-{group}")).chain(["shardctl".to_owned()]);
    assert_eq!(pages, expected.into_iter().chain(whole).collect());
    let one = run(&mut home.shardctl(&["man", "plan", "at"]));
    assert_eq!(one, fs::read_to_string(home.path("man1/shardctl-plan-at.1")).expect("it is there"));
}

/// The verbs that the help lists, those of a group with the group's name before.
fn verbs(home: &Home) -> BTreeSet<String> {
    let listed = |group: &[&str]| -> Vec<String> {
        let help = run(&mut home.shardctl(&[group, &["--help"][..]].concat()));
        // The groups of the program's own help, or the commands of a group.
        let lines = help.lines().skip_while(|line| !["Datasets:", "Commands:"].contains(line));
        let lines = lines.take_while(|line| *line != "Options:");
        let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = lines.filter_map(|line| line.split_whitespace().next().map(String::from));
        names.filter(|name| name != "help").collect()
    };
    let mut verbs = BTreeSet::new();
    for verb in listed(&[]) {
        let below = listed(&[&verb]);
        verbs.extend(below.iter().map(|name| format!("{verb} {name}")));
        if below.is_empty() {
            verbs.insert(verb);
        }
    }
    verbs
}

#[test]
fn help_fits_the_terminal() {
    let home = Home::new();
    for verb in verbs(&home) {
        let words: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        for line in run(home.shardctl(&words).env("COLUMNS", "80")).lines() {
            assert!(line.chars().count() <= 80, "shardctl {verb} --help: {line}");
        }
    }
}

#[test]
fn with_json_every_verb_prints_json_and_nothing_else() {
    let home = Home::new();
    let (train, test) = (digits("train"), digits("test"));
    // In an order that has something to work on for each.
    let calls: &[(&str, &[&str])] = &[
        ("ingest", &[&train, "--name", "digits", "--shard-size", "16KiB"]),
        ("append", &["digits", &test]),
        ("ls", &[]),
        ("info", &["digits", "--shards"]),
        ("log", &["digits"]),
        ("diff", &["digits", "--stats"]),
        ("tag", &["digits", "v1"]),
        ("tag", &["digits"]),
        ("reshard", &["digits", "--shard-size", "32KiB"]),
        ("derive", &["digits", "digits", "--filter", "label >= 0", "--dedup"]),
        ("restore", &["digits@v1"]),
        ("prune", &["digits", "--keep", "1"]),
        ("forget", &["digits", "--where", "label=3"]),
        ("export", &["digits", "exported", "--format", "parquet"]),
        ("partition", &["digits", "--q", "0.1"]),
        ("partition", &["digits", "--q", "0.1", "--id"]),
        ("head", &["-n", "2"]),
        ("plan ls", &[]),
        ("plan show", &[]),
        ("plan at", &["--global-batch-size", "4"]),
        ("plan where", &["7"]),
        ("plan where", &["7", "--epochs", "3", "--world", "2"]),
        ("plan cost", &["--nodes", "3"]),
        ("plan advise", &["--epochs", "30"]),
        ("cost", &["--nodes", "3", "--epochs", "2"]),
        ("read", &["--batch-size", "500"]),
        ("read", &["--batch-size", "500", "--rows", "--quiet", "--consumed", "consumed"]),
        ("replay", &["--batch-size", "4", "--out", "step.arrow"]),
        ("audit root", &[]),
        ("audit verify", &["--consumed", "consumed"]),
        ("audit prove", &["7", "--out", "proof.json"]),
        ("verify", &["digits"]),
        ("status", &[]),
        ("runs ls", &[]),
        ("runs summary", &["--plan", "digits", "--epochs", "1"]),
        ("runs summary", &["--plan", "digits", "--epochs", "1", "--format", "croissant"]),
        ("runs summary", &["--plan", "digits", "--epochs", "1", "--write-about", "about.toml"]),
        ("runs expire", &["--keep", "3"]),
        ("recover", &["--dry-run"]),
        ("tag", &["digits", "v1", "--delete"]),
        ("plan rm", &["--plan", "digits"]),
        ("rm", &["digits", "--yes"]),
        ("gc", &["--older-than", "0s"]),
    ];
    let elsewhere: &[(&str, &[&str])] = &[
        ("context set", &["lab", "--server", "http://127.0.0.1:7700"]),
        ("context use", &["lab"]),
        ("context ls", &[]),
        ("context show", &[]),
        ("context show", &["lab"]),
        ("context rm", &["lab"]),
        ("certs init", &["ca"]),
        ("certs issue", &["n1", "--authority", "ca", "--to", "n1-tls"]),
        ("simulate", &SIMULATE),
        ("completions", &["bash"]),
        ("man", &[]),
        ("man", &["--to", "pages"]),
    ];
    let call = |place: &[&str], verb: &str, words: &[&str]| {
        let verb: Vec<&str> = verb.split(' ').collect();
        assert!(!home.json(&[place, &verb, words].concat()).is_empty(), "{verb:?} {words:?} printed nothing");
    };
    calls.iter().for_each(|(verb, words)| call(&["--store", "s"], verb, words));
    elsewhere.iter().for_each(|(verb, words)| call(&[], verb, words));
    // With --json, too: the demo by tests/tests/stories/demo.rs, tokens by tests/tests/stories/access.rs, the rest of certificates by
    // tests/tests/stories/certificates.rs, nodes that come and go by tests/tests/stories/drains.rs, what else operators do by tests/tests/stories/operator.rs,
    // proofs and steps by tests/tests/stories/replay.rs, the first node's death by tests/tests/stories/metadata.rs and first_node.rs, records of trainings by client/cli/tests/commands/records.rs.
    let others = ["demo", "token create", "token ls", "token revoke", "drain", "join", "leave"];
    let others = others.iter().chain(&["certs ls", "certs rotate", "certs revoke", "certs authority"]);
    let others = others.chain(&["exchange show", "exchange pause", "exchange resume", "exchange rate"]);
    let others = others.chain(&["balancer show", "balancer on", "balancer observe", "balancer off"]);
    let others = others.chain(&["explain placement", "explain move", "explain misses", "explain step"]);
    let others =
        others.chain(&["rebalance", "warm", "evict", "audit check", "runs show", "runs diff", "runs rm"]);
    // The trace of a run by tests/tests/stories/observe.rs.
    let others = others.chain(&["runs trace"]);
    // Events and the view of a cluster by tests/tests/stories/top.rs, checks of a machine by tests/tests/stories/doctor.rs.
    let others = others.chain(&["audit send", "promote", "top", "events", "doctor"]);
    // Backups of the metadata by tests/tests/stories/backup.rs, its moves by tests/tests/stories/migration.rs.
    let others = others.chain(&["metastore backup", "metastore migrate"]);
    let called =
        calls.iter().chain(elsewhere).map(|(verb, _)| verb).chain(others).map(|verb| (*verb).to_owned());
    assert_eq!(called.collect::<BTreeSet<_>>(), verbs(&home), "this test knows every verb");
}

#[test]
fn with_json_a_failure_is_an_object_with_its_exit_code() {
    let home = Home::new();
    for (words, code, said) in [
        (&["--json", "--store", "none", "ls"][..], 1, "there is no directory none"),
        (&["--json", "--store", "a", "--server", "http://b", "ls"], 2, "exclude each other"),
        (&["--json", "ingets"], 2, "'ingest'"),
        (&["partition", "--json"], 2, "--q"),
        (
            &[&["--json", "simulate"][..], &SIMULATE, &["--events", "death:9:1"]].concat(),
            2,
            "there are 3 epochs",
        ),
        (&["--json"], 2, "shardctl --help"),
    ] {
        let (line, found) = home.refused(words);
        let object: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{words:?}: {line}"));
        assert_eq!((&object["exit"], found), (&code.into(), code), "{words:?}");
        assert!(object["error"].as_str().is_some_and(|error| error.contains(said)), "{words:?}: {line}");
    }
    // After `--`, it is a name like any other.
    assert!(home.refused(&["info", "--", "--json"]).0.starts_with("error: "));
}

#[test]
fn colours_are_for_terminals() {
    let home = Home::new();
    home.digits("s", "digits");
    let colourful: &[&[&str]] =
        &[&["--help"], &["--store", "s", "ls"], &["--store", "s", "info", "x"], &["ingets"]];
    let has_escapes =
        |output: &Output| [&output.stdout, &output.stderr].iter().any(|bytes| bytes.contains(&0x1b));
    for words in colourful {
        let piped =
            |variable: &str| home.shardctl(words).env(variable, "1").output().expect("shardctl starts");
        assert!(!has_escapes(&piped("LANG")), "{words:?}: escapes in a pipe");
        assert!(has_escapes(&piped("CLICOLOR_FORCE")), "{words:?}: CLICOLOR_FORCE");
    }
    if Command::new("script").arg("--version").output().is_err() {
        println!("skipped: script (of util-linux) is not installed, so there is no terminal to try");
        return;
    }
    for words in colourful {
        let shown = |variable: &str| {
            let mut script = Command::new("script");
            let line = format!("{} {}", binary("shardctl").display(), words.join(" "));
            for name in VARIABLES {
                script.env_remove(name);
            }
            script.args(["-qec", &line, "/dev/null"]).current_dir(home.path("")).stdin(Stdio::null());
            script.env("HOME", home.path("")).env("TERM", "xterm").env(variable, "1");
            script.output().expect("script starts")
        };
        assert!(has_escapes(&shown("LANG")), "{words:?}: no colours on a terminal");
        assert!(!has_escapes(&shown("NO_COLOR")), "{words:?}: NO_COLOR");
    }
    // Scripts are not decorated, wherever they go.
    let forced = home.shardctl(&["--store", "s", "ls", "--json"]).env("CLICOLOR_FORCE", "1").output();
    assert!(!has_escapes(&forced.expect("shardctl starts")));
}

#[test]
fn an_ingest_that_stored_nothing_leaves_nothing() {
    let home = Home::new();
    fs::write(home.path("bad.csv"), "a,b\n1,2\n3\n").expect("it can be written");
    let ingest = ["--store", "s", "ingest", "bad.csv", "--name", "x"];
    home.refused(&ingest);
    assert!(!home.path("s").exists(), "the directory was made for it");
    fs::create_dir(home.path("s")).expect("it can be made");
    home.refused(&ingest);
    assert_eq!(fs::read_dir(home.path("s")).expect("it was there before, and stays").count(), 0);
    home.digits("s", "digits");
    home.refused(&ingest);
    assert!(run(&mut home.shardctl(&["--store", "s", "ls"])).contains("digits"));
}

#[test]
fn a_node_that_cannot_start_leaves_nothing_and_an_unknown_plan_is_the_same_to_all() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it has one").to_string();
    let (line, code) = failed(home.command("shardd").args(["serve", "--data", "d", "--http", &address]));
    assert!(line.contains("--http") && code == 1, "{line}");
    assert!(!home.path("d").exists());

    home.digits("s", "digits");
    let train = |words: &[&str]| failed(home.command("shardtrain").args(["--store", "s"]).args(words)).1;
    assert_eq!((train(&["--dataset", "digts"]), home.refused(&["--store", "s", "info", "digts"]).1), (1, 1));
    let show = ["--store", "s", "plan", "show", "--plan", "abc"];
    assert_eq!((train(&["--plan", "abc"]), home.refused(&show).1), (1, 1));
}

#[test]
fn a_settings_file_is_made_checked_and_shown() {
    let home = Home::new();
    let shardd = |words: &[&str]| {
        let mut command = home.command("shardd");
        command.arg("config").args(words);
        command
    };
    let write = |text: &str| fs::write(home.path("shardd.toml"), text).expect("it can be written");
    write(&run(&mut shardd(&["show", "--default"])));
    assert_eq!(run(&mut shardd(&["check", "shardd.toml"])), "shardd.toml is good: 12 settings\n");

    write("log-level = \"debug\"\ncache-size = \"2GiB\"\n");
    assert_eq!(
        run(shardd(&["check"]).env("SHARDD_CONFIG", "shardd.toml")),
        "shardd.toml is good: 2 settings\n"
    );
    let mut show = shardd(&["show", "--config", "shardd.toml", "--quic", "127.0.0.1:5"]);
    let page = run(show.env("SHARDD_CACHE_SIZE", "1GiB"));
    for line in [
        "log-level = \"debug\" # from shardd.toml",
        "cache-size = \"1GiB\" # from SHARDD_CACHE_SIZE",
        "quic = \"127.0.0.1:5\" # from --quic",
        "http = \"127.0.0.1:7700\" # default",
        "# Space the cache may use, never exceeded",
        "# SIZE; default: 64GiB; --cache-size, SHARDD_CACHE_SIZE",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
    }
    write(&page);
    run(&mut shardd(&["check", "shardd.toml"]));

    for (text, said) in [
        (
            "\ncach-size = \"2GiB\"",
            "shardd.toml, line 2: there is no setting `cach-size`; is it `cache-size`?",
        ),
        ("cache-size = \"1KiB\"", "--cache-size 1.0 KiB is too small"),
        ("http = \"0.0.0.0:7700\"", "--allow-insecure-http"),
        ("http = 7700", "line 1"),
        ("http = \"10.77.0.2:7700\"", "or --join @FILE on the first start of a node that joins"),
        (
            "store = \"s3://b\"\nstore-endpoint = \"10.77.0.9:9000\"",
            "--store-endpoint: it is not a URL with http://",
        ),
    ] {
        write(text);
        for words in [&["config", "check", "shardd.toml"][..], &["serve", "--config", "shardd.toml"]] {
            let (line, code) = failed(home.command("shardd").args(words));
            assert!(line.contains(said) && code == 2, "{words:?}: {line}");
        }
    }
    write("cache-size = \"2GiB\"");
    for words in [&["config", "check", "shardd.toml"][..], &["serve", "--config", "shardd.toml"]] {
        let (line, code) = failed(home.command("shardd").args(words).env("SHARDD_CACHE_SIZE", "oops"));
        assert!(line.contains("oops") && line.contains("--cache-size") && code == 2, "{words:?}: {line}");
    }
    assert!(!Path::new(&home.path("shardd-data")).exists());
    assert_eq!(failed(&mut shardd(&["check"])).1, 2);
    assert!(failed(&mut shardd(&["check", "none.toml"])).0.contains("settings file none.toml"));
}
