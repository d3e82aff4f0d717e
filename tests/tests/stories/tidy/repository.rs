//! The files of the repository, and enough understanding of Rust and Markdown to check rules in them. Knows no rule.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

/// A Rust file, and where its tests begin.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    /// The first line (from 0) that is compiled for tests only.
    tests_from: usize,
}

impl Source {
    pub(crate) fn is_under(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    pub(crate) fn is_library(&self) -> bool {
        self.path.contains("/src/")
            && !self.path.contains("/src/bin/")
            && !self.path.ends_with("/src/main.rs")
            && !self.is_under("client/cli")
            && !self.is_under("tests")
            && !self.is_under("benches")
    }

    /// Numbered lines of code, without comments.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)))
    }

    pub(crate) fn product(&self) -> impl Iterator<Item = (usize, &str)> {
        self.all().take(self.tests_from)
    }

    pub(crate) fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        self.all().skip(self.tests_from)
    }
}

pub(crate) fn sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
        let rust = files().iter().filter(|file| file.ends_with(".rs"));
        let mut sources: Vec<Source> = rust
            .map(|path| {
                let text = read(path);
                let tests_from =
                    if is_test_code(path) { 0 } else { inline_tests(&text).unwrap_or(usize::MAX) };
                Source { path: path.clone(), text, tests_from }
            })
            .collect();
        let for_tests: Vec<String> =
            sources.iter().flat_map(|source| test_modules(&source.path, &source.text)).collect();
        for source in &mut sources {
            let file = source.path.strip_suffix(".rs").expect("a Rust file").to_owned();
            if for_tests.iter().any(|module| file == *module || file.starts_with(&format!("{module}/"))) {
                source.tests_from = 0;
            }
        }
        sources
    });
    &SOURCES
}

fn is_test_code(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/conformance.rs")
}

/// The line of `#[cfg(test)]` before a module that is written out, which is the last thing in its file.
fn inline_tests(text: &str) -> Option<usize> {
    test_items(text).find(|(_, item)| item.contains("mod ") && item.ends_with('{')).map(|(at, _)| at)
}

/// Paths, without `.rs`, of the modules that `text`, the file at `path`, declares for tests only.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let home = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        name => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    let declared = test_items(text).filter_map(|(_, item)| item.strip_suffix(';')?.rsplit_once("mod "));
    declared.map(|(_, name)| format!("{home}/{name}")).collect()
}

/// The items under `#[cfg(test)]`: the line of the attribute, and the first line of the item.
fn test_items(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let attributes: Vec<usize> = (0..lines.len()).filter(|at| lines[*at] == "#[cfg(test)]").collect();
    attributes.into_iter().filter_map(move |at| {
        let item = lines[at + 1..].iter().find(|line| !line.starts_with("#[") && !line.starts_with("//"))?;
        Some((at, *item))
    })
}

/// The line up to its comment. A `//` within a string (a URL) follows a colon.
fn without_comment(line: &str) -> &str {
    let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Whether a line of code names a crate: `name::…` or `use name;`, but not `crate::name::…`.
pub(crate) fn names_crate(line: &str, name: &str) -> bool {
    let whole =
        |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '"');
    let used =
        |at: usize| line[at + name.len()..].starts_with("::") || line[..at].trim_end().ends_with("use");
    line.match_indices(name).any(|(at, _)| whole(at) && used(at))
}

/// Whether a line of code calls a function of that name, however it is imported.
pub(crate) fn calls(line: &str, name: &str) -> bool {
    let called = |at: usize| line[at + name.len()..].starts_with('(');
    let whole = |at: usize| {
        !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') && !line[..at].ends_with("fn ")
    };
    line.match_indices(name).any(|(at, _)| whole(at) && called(at))
}

/// Relative targets of Markdown links, without their anchors.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    targets.map(|target| target.split('#').next().expect("not empty")).filter(|target| !target.is_empty())
}

/// Paths of this repository in backticks.
pub(crate) fn code_paths<'a>(text: &'a str, tops: &[&str]) -> impl Iterator<Item = &'a str> {
    let is_path = |code: &&str| {
        let known = code.split_once('/').is_some_and(|(top, rest)| !rest.is_empty() && tops.contains(&top));
        known && code.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    text.split('`').skip(1).step_by(2).filter(is_path)
}

/// The files of the repository: those that git tracks, or all of them without git.
pub(crate) fn files() -> &'static [String] {
    static FILES: LazyLock<Vec<String>> = LazyLock::new(|| {
        let listed = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output();
        let mut files = match listed {
            Ok(output) if output.status.success() && !output.stdout.is_empty() => {
                let names = String::from_utf8(output.stdout).expect("file names are text");
                names.split_terminator('\0').map(String::from).collect()
            }
            _ => {
                let mut found = Vec::new();
                walk("", &mut found);
                found
            }
        };
        files.retain(|file| fs::symlink_metadata(root().join(file)).is_ok());
        files.sort();
        files
    });
    &FILES
}

fn walk(folder: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(folder)).expect("a folder can be listed") {
        let entry = entry.expect("a folder can be listed");
        let name = entry.file_name().into_string().expect("file names are text");
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type().expect("a file has a type").is_dir() {
            if name != ".git" && path != "target" && path != "shared" {
                walk(&path, found);
            }
        } else {
            found.push(path);
        }
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("cannot read {file}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_see_what_they_look_for() {
        assert!(
            names_crate("use quinn::Endpoint;", "quinn")
                && names_crate("    fn f(c: &quinn::Connection)", "quinn")
        );
        assert!(
            !names_crate("use crate::metastore::sled::Sled;", "sled")
                && !names_crate("pub mod sled;", "sled")
        );
        assert!(calls("thread::nap(POLL);", "nap") && calls("nap(POLL).await;", "nap"));
        assert!(!calls("fn nap(", "nap") && !calls("kidnap()", "nap") && !calls("let nap = 1;", "nap"));
        assert_eq!(without_comment("let a = 1; // b"), "let a = 1; ");
        assert_eq!(without_comment(r#"let a = "http://b";"#), r#"let a = "http://b";"#);
        let text = "#[cfg(test)]\nmod laws;\n\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(test_modules("a/src/plan/mod.rs", text), ["a/src/plan/laws"]);
        assert_eq!(test_modules("a/src/plan.rs", text), ["a/src/plan/laws"]);
        assert_eq!(inline_tests(text), Some(5));
        let text = "[a](b.md#c) [d](https://e) [f](#g) `docs/ADR.md` `docs/` `a b`";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.md"]);
        assert_eq!(code_paths(text, &["docs"]).collect::<Vec<_>>(), ["docs/ADR.md"]);
        assert!(sources().iter().any(|source| source.tests_from > 0 && source.tests_from < usize::MAX));
    }
}
