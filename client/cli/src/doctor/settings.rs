//! The settings of a node: read from its file by its own program, `shardd config`, where that is at hand, else from
//! variables. And the file of contexts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use shardd_store::catalog::StorePlace;
use shardd_store::connect::{self, Contexts};
use shardd_store::stores::StoreOptions;
use shardfmt::ByteSize;

use super::finding::{Check, Finding, Group, doc};
use super::limit;

/// How long `shardd` may take to read a file.
const LIMIT: Duration = Duration::from_secs(5);
/// The size of the cache of a node without a setting.
pub(crate) const DEFAULT_CACHE: ByteSize = ByteSize(64 << 30);
/// The data directory of a node without a setting.
pub(crate) const DEFAULT_DATA: &str = "shardd-data";

const FILE: Check = Check::new(Group::Settings, "settings_file", doc::SETTINGS);
const CONTEXTS: Check = Check::new(Group::Settings, "contexts", doc::CONTEXTS);

/// The settings of a node that checks need.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct NodeSettings {
    pub(crate) data: Option<PathBuf>,
    pub(crate) cache_size: Option<ByteSize>,
    pub(crate) disk_reserve: Option<ByteSize>,
    pub(crate) store: Option<String>,
    store_endpoint: Option<String>,
    store_region: Option<String>,
    store_ca: Option<PathBuf>,
    store_anonymous: Option<bool>,
    tls_key: Option<PathBuf>,
    join: Option<String>,
}

impl NodeSettings {
    /// The store that it names.
    pub(crate) fn store_place(&self) -> Option<StorePlace> {
        let options = StoreOptions {
            endpoint: self.store_endpoint.clone(),
            region: self.store_region.clone(),
            ca: self.store_ca.clone(),
            anonymous: self.store_anonymous.unwrap_or(false),
            bandwidth: None,
        };
        self.store.as_deref().map(|store| StorePlace::named(store, options))
    }

    /// The files with secrets that it names.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        let join = self.join.as_deref().and_then(|join| join.strip_prefix('@')).map(PathBuf::from);
        self.tls_key.iter().cloned().chain(join).collect()
    }

    /// Those of the variables of this process.
    pub(crate) fn of_environment() -> NodeSettings {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        NodeSettings {
            data: set("SHARDD_DATA").map(PathBuf::from),
            cache_size: set("SHARDD_CACHE_SIZE").and_then(|size| size.parse().ok()),
            disk_reserve: set("SHARDD_DISK_RESERVE").and_then(|size| size.parse().ok()),
            store: set("SHARDD_STORE"),
            store_endpoint: set("SHARDD_STORE_ENDPOINT"),
            store_region: set("SHARDD_STORE_REGION"),
            store_ca: set("SHARDD_STORE_CA").map(PathBuf::from),
            store_anonymous: set("SHARDD_STORE_ANONYMOUS").map(|value| value == "true"),
            tls_key: set("SHARDD_TLS_KEY").map(PathBuf::from),
            join: set("SHARDD_JOIN"),
        }
    }
}

/// The outcome of a run of `shardd config`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Checked {
    /// It has no fault.
    Good(String),
    /// The fault.
    Refused(String),
    /// The program is not at hand.
    Absent,
    /// The program was not run to its end.
    Failed(String),
}

/// Reads the settings file of a node, and names its fault.
pub(crate) fn read(file: &Path) -> (NodeSettings, Vec<Finding>) {
    let program = shardd();
    let checked = ask(program.as_deref(), &["config", "check"], file);
    let mut settings = NodeSettings::default();
    if let Checked::Good(_) = checked {
        let shown = ask(program.as_deref(), &["config", "show", "--config"], file);
        if let Checked::Good(page) = shown {
            settings = toml::from_str(&page).unwrap_or_default();
        }
    } else if let Ok(text) = std::fs::read_to_string(file) {
        settings = toml::from_str(&text).unwrap_or_default();
    }
    (settings, vec![judge(file, checked)])
}

fn judge(file: &Path, checked: Checked) -> Finding {
    let shown = file.display();
    match checked {
        Checked::Good(line) => FILE.ok(line.trim().to_owned()),
        Checked::Refused(line) => FILE
            .error(line.trim().trim_start_matches("shardd: ").to_owned())
            .mend("Correct the line; `shardd config show --default` lists all settings with their meaning."),
        Checked::Absent => FILE
            .info(format!("{shown} is not checked: shardd is neither beside shardctl nor in PATH"))
            .mend("Run `shardd config check` on it where shardd is."),
        Checked::Failed(reason) => FILE
            .warning(format!("{shown} is not checked: `shardd config` fails ({reason})"))
            .mend("Run `shardd config check` by hand."),
    }
}

/// The release of `shardd` beside this program.
pub(crate) fn release_of_shardd() -> Option<String> {
    let output = limit::output(Command::new(shardd()?).arg("--version"), LIMIT).ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `shardd` beside this program, else in PATH.
fn shardd() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join("shardd")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join("shardd"));
    beside.into_iter().chain(in_path).find(|program| program.is_file())
}

fn ask(program: Option<&Path>, words: &[&str], file: &Path) -> Checked {
    let Some(program) = program else { return Checked::Absent };
    match limit::output(Command::new(program).args(words).arg(file), LIMIT) {
        Ok(output) if output.status.success() => {
            Checked::Good(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Checked::Refused(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Checked::Failed(error.to_string()),
    }
}

/// Whether the file of contexts can be read.
pub(crate) fn contexts() -> Finding {
    let path = connect::path();
    let shown = path.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    match Contexts::load() {
        Ok(contexts) => of_contexts(&shown, path.is_some_and(|path| path.exists()), &contexts),
        Err(error) => CONTEXTS
            .error(error.to_string())
            .mend("Correct the file, or name another one in SHARDD_CONTEXTS."),
    }
}

fn of_contexts(path: &str, exists: bool, contexts: &Contexts) -> Finding {
    let current = contexts.current.as_ref();
    let lacking = current.filter(|current| !contexts.contexts.contains_key(*current));
    match (lacking, exists) {
        (Some(current), _) => CONTEXTS
            .error(format!("the current context of {path} is {current}, which does not exist"))
            .mend("Choose one of `shardctl context ls` with `shardctl context use NAME`."),
        (None, true) => CONTEXTS.ok(format!("{path} has {} contexts", contexts.contexts.len())),
        (None, false) => CONTEXTS.ok("there is no file of contexts"),
    }
}

#[cfg(test)]
mod tests {
    use shardd_store::connect::Place;

    use super::super::finding::Severity::{Error, Info, Ok as Fine, Warning};
    use super::*;

    #[test]
    fn the_word_of_shardd_about_a_file_is_passed_on() {
        let file = Path::new("/srv/shardd.toml");
        for (checked, severity, words) in [
            (Checked::Good("/srv/shardd.toml is good: 3 settings\n".to_owned()), Fine, "3 settings"),
            (Checked::Refused("shardd: line 1: no `x`\n".to_owned()), Error, "line 1"),
            (Checked::Absent, Info, "not checked"),
            (Checked::Failed("it does not end".to_owned()), Warning, "does not end"),
        ] {
            let found = judge(file, checked);
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.evidence.contains(words) && !found.evidence.starts_with("shardd:"), "{found:?}");
        }
        assert_eq!(ask(None, &[], file), Checked::Absent);
        assert!(matches!(ask(Some(Path::new("/not/there")), &[], file), Checked::Failed(_)));
    }

    #[test]
    fn settings_are_those_that_checks_need() {
        let page = "data = \"/srv\" # from x\ncache-size = \"1GiB\"\nstore = \"s3://b/f\"\nstore-region = \"r\"\n\
                    join = \"@/srv/join\"\ntls-key = \"/k\"\nlog-level = \"debug\"\n";
        let settings: NodeSettings = toml::from_str(page).expect("settings");
        assert_eq!(
            (settings.data.as_deref(), settings.cache_size),
            (Some(Path::new("/srv")), Some(ByteSize(1 << 30)))
        );
        assert!(
            matches!(settings.store_place(), Some(StorePlace::Url { options, .. }) if options.region.is_some())
        );
        assert_eq!(settings.secret_files(), [PathBuf::from("/k"), "/srv/join".into()]);
        assert_eq!(NodeSettings::default().store_place(), None);
    }

    #[test]
    fn a_current_context_that_does_not_exist_is_an_error() {
        let lab: connect::ContextName = "lab".parse().expect("a name");
        let mut contexts = Contexts { current: Some(lab.clone()), ..Contexts::default() };
        assert_eq!(of_contexts("x", true, &contexts).severity, Error);
        contexts.contexts.insert(lab, Place::server("http://a:1"));
        assert_eq!(of_contexts("x", true, &contexts).severity, Fine);
        assert_eq!(of_contexts("x", false, &Contexts::default()).severity, Fine);
    }
}
