//! Finds `shardd` and `shardtrain` beside this executable, and has cargo build them if this came out of `cargo run`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// The two other programs of shardd.
pub(crate) struct Binaries {
    pub(crate) shardd: PathBuf,
    pub(crate) shardtrain: PathBuf,
}

/// Why the demo has no programs to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BinariesError {
    #[error(
        "{missing} is not beside {beside}: put it there, or use `cargo demo` in a clone of the repository"
    )]
    Missing { missing: String, beside: PathBuf },
    #[error("cargo could not build shardd and shardtrain (see its messages above)")]
    Build,
    #[error("cannot run {program}")]
    Run { program: String, source: std::io::Error },
    #[error("cannot tell where this program lies")]
    Lost { source: std::io::Error },
}

/// The profile of `cargo demo`, whose programs compile fast.
const QUICK: &str = "demo";

impl Binaries {
    /// Whether the programs were compiled to be there soon, and not to be fast.
    pub(crate) fn are_quickly_compiled(&self) -> bool {
        self.shardd.parent().and_then(Path::file_name).is_some_and(|profile| profile == QUICK)
    }
}

/// The programs, built first if they are missing or older than their sources and cargo is at hand.
pub(crate) fn find_or_build() -> Result<Binaries, BinariesError> {
    let own = env::current_exe().map_err(|source| BinariesError::Lost { source })?;
    let beside = own.parent().unwrap_or(Path::new("/")).to_owned();
    let binaries = Binaries { shardd: beside.join("shardd"), shardtrain: beside.join("shardtrain") };
    let all = [&binaries.shardd, &binaries.shardtrain];
    if let Some((cargo, workspace)) = cargo_workspace()
        && all.iter().any(|binary| is_stale(binary))
    {
        build(&cargo, &workspace, &beside)?;
    }
    if let Some(binary) = all.into_iter().find(|binary| !binary.is_file()) {
        let missing = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(BinariesError::Missing { missing, beside });
    }
    Ok(binaries)
}

/// The cargo that runs us and the root of its workspace; `cargo run` tells both to the program it starts.
fn cargo_workspace() -> Option<(String, PathBuf)> {
    let cargo = env::var("CARGO").ok()?;
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    let root = package.ancestors().find(|dir| {
        fs::read_to_string(dir.join("Cargo.toml")).is_ok_and(|manifest| manifest.contains("[workspace]"))
    })?;
    Some((cargo, root.to_owned()))
}

/// All binaries of the workspace at once, so that every dependency has the features it has in every other build.
fn build(cargo: &str, workspace: &Path, beside: &Path) -> Result<(), BinariesError> {
    let mut command = Command::new(cargo);
    command.arg("build").arg("--bins").current_dir(workspace).stdin(Stdio::null());
    match beside.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => drop(command.args(["--profile", profile])),
    }
    eprintln!(
        "compiling shardd and shardtrain, which the demo starts, in {}; the first time this takes some minutes",
        workspace.display()
    );
    // Its standard output stays empty; its messages go to standard error, which may be shown even with --json.
    let run = |source| BinariesError::Run { program: cargo.to_owned(), source };
    let status = command.status().map_err(run)?;
    if status.success() { Ok(()) } else { Err(BinariesError::Build) }
}

/// Whether the binary is missing or older than one of the sources that cargo's dependency file lists for it.
fn is_stale(binary: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let Some(built) = modified(binary) else { return true };
    let Ok(listed) = fs::read_to_string(binary.with_extension("d")) else { return true };
    is_older(built, sources(&listed).map(|source| modified(&source)))
}

fn is_older(built: SystemTime, sources: impl IntoIterator<Item = Option<SystemTime>>) -> bool {
    // A source that is gone changes the program as much as a new one.
    sources.into_iter().any(|source| source.is_none_or(|changed| changed > built))
}

/// The paths in a Makefile-style dependency file, where spaces inside a path are escaped.
fn sources(listed: &str) -> impl Iterator<Item = PathBuf> {
    listed.lines().filter_map(|line| line.split_once(": ")).flat_map(|(_, paths)| {
        let escaped = paths.replace("\\ ", "\0");
        let paths: Vec<PathBuf> =
            escaped.split_whitespace().map(|path| PathBuf::from(path.replace('\0', " "))).collect();
        paths
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dependency_files_list_sources_even_with_spaces_in_them() {
        let listed = "/t/release/shardd: /w/a.rs /w/with\\ space/b.rs\n";
        let found: Vec<PathBuf> = sources(listed).collect();
        assert_eq!(found, [PathBuf::from("/w/a.rs"), PathBuf::from("/w/with space/b.rs")]);
    }

    #[test]
    fn a_binary_is_stale_once_a_source_is_newer_or_gone() {
        let built = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert!(!is_older(built, [at(1), at(100)]));
        assert!(is_older(built, [at(1), at(101)]));
        assert!(is_older(built, [at(1), None]));
    }
}
