//! A server that behaves as the Hub: pages, redirects to another host, refusals.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use shardd_ingest::{Ingest, IngestConfig, Inputs, NoProgress, Resources, Source};

use super::place::Token;
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

/// A request as it came in: to which server, what for, and with which token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    path: String,
    token: Option<String>,
}

struct Served {
    files: BTreeMap<String, Vec<u8>>,
    /// Where large files lie.
    storage: String,
    /// How many requests are answered with 503 before any other.
    unwell: Mutex<u32>,
    asked: Mutex<Vec<Asked>>,
}

/// The Hub, and the host that has its large files.
struct Servers {
    hub: String,
    served: Arc<Served>,
    stored: Arc<Served>,
}

impl Servers {
    fn start(files: &[(&str, Vec<u8>)]) -> Servers {
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let served = |storage: String| {
            let (unwell, asked) = (Mutex::default(), Mutex::default());
            Arc::new(Served { files: files.clone(), storage, unwell, asked })
        };
        let stored = served(String::new());
        let storage = serve(stored.clone(), |served, asked, range| {
            let name = asked.path.trim_start_matches("/stored/").split('?').next().unwrap_or_default();
            part(&served.files[&name.replace("%20", " ")], range)
        });
        let served = served(storage);
        let hub = serve(served.clone(), answer);
        Servers { hub, served, stored }
    }

    fn settings(&self, token: Token) -> Settings {
        Settings { endpoint: self.hub.clone(), token }
    }

    fn find(&self, url: &str, under: Option<&str>) -> Result<(Network, Found), InputsError> {
        let network = Network::default();
        let found = find_with(&self.settings(Token::Is(TOKEN.to_owned())), url, under, &network)?;
        Ok((network, found))
    }

    fn names(&self, url: &str) -> Vec<String> {
        let (_network, found) = self.find(url, None).unwrap();
        found.files.iter().map(|file| file.name().to_owned()).collect()
    }

    fn refused(&self, url: &str, token: Token) -> String {
        let refused = find_with(&self.settings(token), url, None, &Network::default());
        refused.err().expect("a refusal").to_string()
    }

    fn asked(&self) -> Vec<Asked> {
        self.served.asked.lock().unwrap().clone()
    }
}

type Answer = fn(&Served, &Asked, Option<(usize, usize)>) -> Vec<u8>;

/// Answers each request on a connection of its own.
fn serve(served: Arc<Served>, answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let served = served.clone();
            thread::spawn(move || one(&served, stream.unwrap(), answer));
        }
    });
    address
}

fn one(served: &Served, mut stream: TcpStream, answer: Answer) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut token, mut range) = (None, None);
    for line in lines.by_ref().take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap_or((&line, ""));
        match name.to_ascii_lowercase().as_str() {
            "authorization" => token = Some(value.trim_start_matches("Bearer ").to_owned()),
            "range" => {
                let (first, last) = value.trim_start_matches("bytes=").split_once('-').unwrap();
                range = Some((first.parse().unwrap(), last.parse().unwrap()));
            }
            _ => {}
        }
    }
    let asked = Asked { path, token };
    served.asked.lock().unwrap().push(asked.clone());
    let _ = stream.write_all(&answer(served, &asked, range));
}

fn with(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn part(bytes: &[u8], range: Option<(usize, usize)>) -> Vec<u8> {
    let Some((first, last)) = range else { return with("200 OK", "", bytes) };
    let end = bytes.len().min(last + 1);
    let headers =
        format!("Content-Range: bytes {first}-{}/{}\r\nETag: \"of-the-host\"\r\n", end - 1, bytes.len());
    with("206 Partial Content", &headers, &bytes[first..end])
}

fn refuse(status: &str, code: &str) -> Vec<u8> {
    with(status, &format!("X-Error-Code: {code}\r\nX-Error-Message: Because of {code}.\r\n"), b"")
}

/// As huggingface.co answers.
fn answer(served: &Served, asked: &Asked, range: Option<(usize, usize)>) -> Vec<u8> {
    {
        let mut unwell = served.unwell.lock().unwrap();
        if *unwell > 0 {
            *unwell -= 1;
            return with("503 Service Unavailable", "", b"");
        }
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let steps: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let is_known = asked.token.as_deref() == Some(TOKEN);
    if path.contains("/private") && !is_known {
        return refuse("401 Unauthorized", "RepoNotFound");
    }
    if asked.token.is_some() && !is_known {
        return with(
            "401 Unauthorized",
            "X-Error-Message: Invalid credentials in Authorization header\r\n",
            b"",
        );
    }
    if path.contains("/missing") {
        return refuse("404 Not Found", "RepoNotFound");
    }
    match steps.as_slice() {
        ["api", "datasets", "o", _, "revision", "main" | "refs%2Fconvert%2Fparquet"] => {
            with("200 OK", "", format!(r#"{{"_id": "1", "sha": "{COMMIT}", "tags": []}}"#).as_bytes())
        }
        ["api", "datasets", "o", _, "revision", _] => refuse("404 Not Found", "RevisionNotFound"),
        ["api", "datasets", "o", "gated", ..] => refuse("403 Forbidden", "GatedRepo"),
        ["api", "datasets", "o", _, "tree", COMMIT, folder @ ..] => {
            tree(served, path, &folder.join("/"), query)
        }
        ["datasets", "o", _, "resolve", COMMIT, name @ ..] => {
            let name = name.join("/").replace("%20", " ");
            match served.files.get(&name) {
                None => refuse("404 Not Found", "EntryNotFound"),
                // What git itself has is given as a whole.
                Some(bytes) if !is_large(&name) => with("200 OK", "", bytes),
                Some(_) => {
                    let to = format!("Location: {}/stored/{name}?signature=x\r\n", served.storage);
                    let _ = range;
                    with("302 Found", &to, b"")
                }
            }
        }
        _ => refuse("404 Not Found", "EntryNotFound"),
    }
}

fn is_large(name: &str) -> bool {
    name.ends_with(".parquet") || name.ends_with(".csv")
}

/// A page of two entries of a folder.
fn tree(served: &Served, path: &str, folder: &str, query: &str) -> Vec<u8> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let is_recursive = query.contains("recursive=true");
    let mut entries: BTreeMap<String, String> = BTreeMap::new();
    for (name, bytes) in &served.files {
        let Some(rest) = name.strip_prefix(&prefix) else { continue };
        let folders = rest.match_indices('/').map(|(at, _)| &rest[..at]);
        for below in folders.take(if is_recursive { usize::MAX } else { 1 }) {
            let below = format!("{prefix}{below}");
            entries.insert(
                below.clone(),
                format!(r#"{{"type": "directory", "oid": "x", "size": 0, "path": "{below}"}}"#),
            );
        }
        if !is_recursive && rest.contains('/') {
            continue;
        }
        let (size, lfs) = match is_large(name) {
            true => (
                130,
                format!(r#", "lfs": {{"oid": "sha-{name}", "size": {}, "pointerSize": 130}}"#, bytes.len()),
            ),
            false => (bytes.len(), String::new()),
        };
        let entry =
            format!(r#"{{"type": "file", "oid": "git-{name}", "size": {size}, "path": "{name}"{lfs}}}"#);
        entries.insert(name.clone(), entry);
    }
    if entries.is_empty() {
        return refuse("404 Not Found", "EntryNotFound");
    }
    let start: usize = query.split_once("cursor=").map_or(0, |(_, cursor)| cursor.parse().unwrap());
    let entries: Vec<String> = entries.into_values().collect();
    let page = &entries[start..entries.len().min(start + 2)];
    let link = match start + 2 < entries.len() {
        true => {
            let query = query.split("&cursor").next().unwrap_or_default();
            format!("Link: <{path}?{query}&cursor={}>; rel=\"next\"\r\n", start + 2)
        }
        false => String::new(),
    };
    with("200 OK", &link, format!("[{}]", page.join(",")).as_bytes())
}

fn csv(first: u32) -> Vec<u8> {
    (first..first + 20_000).fold("n\n".to_owned(), |csv, n| csv + &format!("{n}\n")).into_bytes()
}

fn servers() -> Servers {
    let files: Vec<(&str, Vec<u8>)> = vec![
        (".gitattributes", b"*.csv filter=lfs".to_vec()),
        ("README.md", b"# Words".to_vec()),
        ("data/test/a.csv", csv(0)),
        ("data/train/a.csv", csv(1)),
        ("data/train/b c.csv", csv(20_001)),
        ("data/train/deep/d.csv", csv(7)),
        ("notes.jsonl", b"{\"n\": 1}\n{\"n\": 2}\n".to_vec()),
    ];
    Servers::start(&files)
}

#[test]
fn files_folders_and_patterns_are_found_page_by_page() {
    let servers = servers();
    assert_eq!(servers.names("hf://datasets/o/n/data/train"), ["a.csv", "b c.csv", "deep/d.csv"]);
    assert_eq!(servers.names("hf://datasets/o/n/data/train/"), ["a.csv", "b c.csv", "deep/d.csv"]);
    assert_eq!(servers.names("hf://datasets/o/n/data/train/a.csv"), ["a.csv"]);
    assert_eq!(servers.names("hf://datasets/o/n/data/train/*.csv"), ["a.csv", "b c.csv"]);
    assert_eq!(servers.names("hf://datasets/o/n/data/*/a.csv"), ["test/a.csv", "train/a.csv"]);
    assert_eq!(
        servers.names("hf://datasets/o/n/data/t{est,rain}"),
        ["test/a.csv", "train/a.csv", "train/b c.csv", "train/deep/d.csv"]
    );
    assert_eq!(servers.names("hf://datasets/o/n@refs/convert/parquet/**/d.csv"), ["data/train/deep/d.csv"]);
    let all = servers.names(&format!("hf://datasets/o/n@{COMMIT}"));
    assert_eq!(all.len(), 6, "hidden files are left out: {all:?}");
    let (_network, found) = servers.find("hf://datasets/o/n/data", Some("train")).unwrap();
    let names: Vec<&str> = found.files.iter().map(|file| file.name()).collect();
    assert_eq!(names, ["train/a.csv", "train/b c.csv", "train/deep/d.csv"]);
    assert_eq!(found.root, Root::new("hf", ["o", "n", "data"]));
    let exactly = format!("hf://datasets/o/n@{COMMIT}/data");
    assert_eq!(found.shown.as_deref(), Some(exactly.as_str()), "messages name the commit");
    assert_eq!(found.files[0].path().to_string_lossy(), format!("{exactly}/train/a.csv"));
    assert_eq!(found.files[0].path(), std::path::Path::new(&format!("{exactly}/train/a.csv")));
    assert!(servers.asked().iter().any(|asked| asked.path.contains("cursor=2")));
    assert!(servers.asked().iter().all(|asked| asked.token.as_deref() == Some(TOKEN)));
}

#[test]
fn content_comes_from_the_host_that_has_it_which_sees_no_token() {
    let servers = servers();
    let count = |inputs: Inputs| {
        let config = IngestConfig::default();
        let source = Source::new(inputs, &config).unwrap();
        Ingest::read(source, &config, &[], &Resources::threads(2), &NoProgress).unwrap().sample_count()
    };
    let far = |url: &str| {
        let (network, found) = servers.find(url, None).unwrap();
        (network, Inputs::of_files(url, found.files, !found.is_folder, None).unwrap())
    };
    let (_network, inputs) = far("hf://datasets/o/n/data/train");
    assert_eq!(count(inputs), 60_000);
    let stored = servers.stored.asked.lock().unwrap().clone();
    assert!(!stored.is_empty());
    assert!(stored.iter().all(|asked| asked.token.is_none()), "{stored:?}");
    // One that the Hub gives as a whole, whatever part is asked for.
    let (_network, inputs) = far("hf://datasets/o/n/notes.jsonl");
    assert_eq!(count(inputs), 2);
}

#[test]
fn refusals_of_the_hub_have_a_way_out() {
    let servers = servers();
    let known = || Token::Is(TOKEN.to_owned());
    for (url, token, reason, way_out) in [
        ("hf://datasets/o/private/x", Token::Nowhere, "RepoNotFound", "set HF_TOKEN"),
        ("hf://datasets/o/missing/x", known(), "RepoNotFound", "check the dataset's owner and name"),
        ("hf://datasets/o/n/x", Token::Is("old".to_owned()), "Invalid credentials", "set HF_TOKEN"),
        ("hf://datasets/o/gated/x", known(), "GatedRepo", "accept the terms"),
        ("hf://datasets/o/n@v9/x", known(), "no such revision", "after the @"),
        ("hf://datasets/o/n/data/trian", known(), "nothing of that name", "check the URL"),
        ("hf://datasets/o/n/data/trian/", known(), "nothing of that name", "check the URL"),
        (
            "hf://datasets/o/n/data/*.png",
            known(),
            "matches no file",
            "list the files of hf://datasets/o/n/data",
        ),
    ] {
        let text = servers.refused(url, token);
        assert!(text.contains(url) && text.contains(reason) && text.contains(way_out), "{text}");
        assert!(!text.contains(TOKEN) && !text.contains('\n'), "{text}");
    }
    let nowhere = Settings { endpoint: "http://127.0.0.1:1".to_owned(), token: Token::Nowhere };
    let refused = find_with(&nowhere, "hf://datasets/o/n", None, &Network::default());
    let text = refused.err().expect("nothing listens there").to_string();
    assert!(text.contains("cannot be reached") && text.contains("HF_ENDPOINT"), "{text}");
}

#[test]
fn the_hub_is_asked_again_and_the_token_may_lie_in_a_file() {
    let servers = servers();
    *servers.served.unwell.lock().unwrap() = 2;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    let network = Network::default();
    let found = find_with(&servers.settings(Token::In(path)), "hf://datasets/o/private/data", None, &network)
        .unwrap();
    assert_eq!(found.files.len(), 4);
    // Public datasets need none.
    let absent = Token::In(folder.path().join("absent"));
    assert_eq!(
        find_with(&servers.settings(absent), "hf://datasets/o/n/data", None, &network).unwrap().files.len(),
        4
    );
}
