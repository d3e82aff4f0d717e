//! An archive for a bug report: findings, versions, settings, the state of nodes and the end of a log, without secrets.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use shardd_store::connect;

use super::cluster::Cluster;
use super::finding::Finding;
use super::{redact, settings};
use crate::failure::Failure;

/// The lines of a log that are kept, and the bytes that are looked at for them.
const LINES: usize = 2000;
const BYTES: u64 = 4 << 20;
/// The beginnings of the names of variables that are kept.
const VARIABLES: [&str; 4] = ["SHARDD_", "AWS_", "GOOGLE_", "AZURE_"];

/// Files of the archive, by their names in it.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// What goes into an archive.
pub(crate) struct Contents<'a> {
    pub(crate) findings: &'a [Finding],
    pub(crate) cluster: Option<&'a Cluster>,
    /// The settings file of a node.
    pub(crate) config: Option<&'a Path>,
    /// A log.
    pub(crate) log: Option<&'a Path>,
}

/// Refuses a file that exists.
pub(crate) fn check_free(path: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(Failure::usage(format!("{} exists; name another file with --bundle", path.display()))),
        Err(_) => Ok(()),
    }
}

/// The files of an archive.
///
/// # Errors
/// When the settings file or the log cannot be read.
pub(crate) fn files(contents: &Contents<'_>) -> Result<Files, Failure> {
    let unreadable =
        |path: &Path, error: io::Error| Failure::failed(format!("cannot read {}: {error}", path.display()));
    let mut files = Files::new();
    let lines = contents.findings.iter().filter_map(|finding| serde_json::to_string(finding).ok());
    files.push(("findings.jsonl".to_owned(), text(lines)));
    files.push(("versions.json".to_owned(), document(&versions(contents.cluster))));
    files.push(("environment.txt".to_owned(), text(environment())));
    if let Some(path) = contents.config {
        let read = fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
        files.push(("shardd.toml".to_owned(), redact::toml(&read).into_bytes()));
    }
    if let Some(read) = connect::path().and_then(|path| fs::read_to_string(path).ok()) {
        files.push(("contexts.toml".to_owned(), redact::toml(&read).into_bytes()));
    }
    if let Some(cluster) = contents.cluster {
        files.extend(of_cluster(cluster));
    }
    if let Some(path) = contents.log {
        let read = end_of(path).map_err(|error| unreadable(path, error))?;
        files.push(("log.txt".to_owned(), last_lines(&read).into_bytes()));
    }
    Ok(files)
}

/// Writes the files as a new archive that only its user can read. It is there whole or not at all.
///
/// # Errors
/// When it exists, or cannot be written.
pub(crate) fn write(path: &Path, files: &Files, time: u64) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    let bytes = archive(files, time).map_err(failed)?;
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{} exists; name another file with --bundle", path.display()))
        }
        _ => failed(error),
    })?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Half an archive helps no reader; the error names the file all the same.
        let _ = fs::remove_file(path);
        failed(error)
    })
}

/// A tar in gzip. All files are of user 0, for their owner, and of the same time.
fn archive(files: &Files, time: u64) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time);
        tar.append_data(&mut header, PathBuf::from("shardd-doctor").join(name), &bytes[..])?;
    }
    tar.into_inner()?.finish()
}

fn of_cluster(cluster: &Cluster) -> Files {
    let mut files = Files::new();
    let redacted = |value: &Value| {
        let mut value = value.clone();
        redact::json(&mut value);
        document(&value)
    };
    files.extend(cluster.overview.as_ref().map(|(sent, _)| ("overview.json".to_owned(), redacted(sent))));
    let addresses = cluster.addresses.iter().chain(cluster.nodes.iter().map(|node| &node.address));
    let addresses = addresses.map(|address| match &address.answer {
        Ok((health, took)) => json!({
            "url": address.url, "node": health.id, "release": health.release, "seconds": took.as_secs_f64(),
        }),
        Err(unanswered) => json!({ "url": address.url, "error": unanswered.reason }),
    });
    files.push(("addresses.json".to_owned(), redacted(&Value::Array(addresses.collect()))));
    for node in &cluster.nodes {
        let id = &node.state.record.id;
        let state = serde_json::to_value(&node.state).unwrap_or_default();
        files.push((format!("nodes/{id}/record.json"), redacted(&state)));
        files.extend(
            node.status.as_ref().map(|(sent, _)| (format!("nodes/{id}/status.json"), redacted(sent))),
        );
    }
    files
}

fn versions(cluster: Option<&Cluster>) -> Value {
    let name = rustix::system::uname();
    let nodes = cluster.map(|cluster| {
        let answers = cluster.nodes.iter().filter_map(|node| node.address.answer.as_ref().ok());
        answers
            .map(|(health, _)| (health.id.to_string(), json!(health.release)))
            .collect::<serde_json::Map<_, _>>()
    });
    json!({
        "shardctl": env!("CARGO_PKG_VERSION"),
        "shardd": settings::release_of_shardd(),
        "nodes": nodes,
        "system": fs::read_to_string("/etc/os-release").ok().and_then(|text| pretty_name(&text)),
        "kernel": name.release().to_string_lossy(),
        "machine": name.machine().to_string_lossy(),
    })
}

fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// The variables that decide something, without secrets.
fn environment() -> impl Iterator<Item = String> {
    let all = super::environment::variables().into_iter();
    let is_kept = |name: &String| VARIABLES.iter().any(|start| name.starts_with(start)) || is_proxy(name);
    all.filter(move |(name, _)| is_kept(name))
        .map(|(name, value)| format!("{name}={}", redact::value(&name, &value)))
}

fn is_proxy(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("_proxy")
}

/// The end of a file.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut bytes = Vec::new();
    file.take(BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of a log, without secrets.
fn last_lines(log: &str) -> String {
    // Whole, so that a private key is known by its first line.
    let redacted = redact::text(log);
    let lines: Vec<&str> = redacted.lines().collect();
    let mut last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    last.push('\n');
    last
}

fn text(lines: impl IntoIterator<Item = String>) -> Vec<u8> {
    lines.into_iter().map(|line| line + "\n").collect::<String>().into_bytes()
}

fn document(value: &Value) -> Vec<u8> {
    text([serde_json::to_string_pretty(value).unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::finding::{Check, Group, doc};
    use super::*;

    fn unpacked(path: &Path) -> Vec<(String, String)> {
        let mut tar =
            tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(path).expect("it is there")));
        let entries = tar.entries().expect("a tar").map(|entry| {
            let mut entry = entry.expect("an entry");
            let (mut text, name) = (String::new(), entry.path().expect("a name").display().to_string());
            entry.read_to_string(&mut text).expect("text");
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn a_bundle_is_private_whole_and_without_secrets() {
        let root = tempfile::TempDir::new().expect("a directory");
        let (config, log) = (root.path().join("shardd.toml"), root.path().join("log"));
        fs::write(&config, "data = \"/srv\"\njoin = \"shardd1,https://a,hush,hush\"\n").expect("written");
        let lines: String = (0..3000).map(|n| format!("line {n} password=hush\n")).collect();
        fs::write(&log, lines).expect("written");
        let check = Check::new(Group::Machine, "open_files", doc::START);
        let findings = [check.warning("few")];
        let contents =
            Contents { findings: &findings, cluster: None, config: Some(&config), log: Some(&log) };
        let files = files(&contents).expect("readable");
        let path = root.path().join("bundle.tar.gz");
        check_free(&path).expect("it is free");
        write(&path, &files, 1_790_000_000).expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let entries = unpacked(&path);
        let find = |name: &str| {
            let entry = entries.iter().find(|(own, _)| own == &format!("shardd-doctor/{name}"));
            &entry.unwrap_or_else(|| panic!("no {name}")).1
        };
        assert!(find("findings.jsonl").contains("open_files"));
        assert!(find("versions.json").contains("kernel"));
        assert_eq!(find("shardd.toml"), "data = \"/srv\"\njoin = \"REDACTED\"\n");
        assert_eq!(find("log.txt").lines().count(), LINES);
        assert!(find("log.txt").ends_with("line 2999 password=REDACTED\n"));
        assert!(entries.iter().all(|(_, text)| !text.contains("hush")), "no secret is in it");
        let again = write(&path, &files, 0).expect_err("it exists");
        assert!(again.to_string().contains("exists") && check_free(&path).is_err());
        assert_eq!(unpacked(&path), entries, "it is not overwritten");
    }

    #[test]
    fn variables_and_systems_are_kept_without_secrets() {
        assert!(is_proxy("https_proxy") && is_proxy("ALL_PROXY") && !is_proxy("PROXY_X"));
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"A B\"\n").as_deref(), Some("A B"));
    }
}
