//! Settings as a page of TOML that explains itself. The text of a setting comes from the help of its flag, so
//! that there is one place to change. Reads nothing.

use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};

use super::Settings;

/// A setting that is not shown, unless it says in which file it lies (`@FILE`).
const SECRET: &str = "join";

const HEADING: &str = "\
# Settings of `shardd serve`. A flag wins over the environment, that over the settings file, that over the default.
# A SIZE is a number of bytes, or has a unit, as 500MB or 64GiB; an ADDR is IP:PORT; a FILE or DIR that does not begin
# with / is looked for where the node is started.
";

/// The facts about a setting.
pub(super) struct Known {
    /// Its key in the file, and with `--` before it, its flag.
    pub(super) key: String,
    id: String,
    about: String,
    /// The default, in words or as a value; empty if the help does not give it.
    default: String,
    /// The kind of a value, or its unit.
    value: String,
    variable: String,
}

impl Known {
    /// All settings, in the order of the help.
    pub(super) fn all() -> Vec<Known> {
        Settings::augment_args(Command::new("shardd")).get_arguments().map(Known::of).collect()
    }

    fn of(argument: &clap::Arg) -> Known {
        let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
        let help = help.unwrap_or_default();
        let (about, default) = match help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: ")) {
            Some((about, default)) => (about.to_owned(), default.to_owned()),
            None => (help, String::new()),
        };
        let names = argument.get_value_names().unwrap_or_default();
        Known {
            key: argument.get_long().unwrap_or_default().to_owned(),
            id: argument.get_id().to_string(),
            about,
            default,
            value: names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
            variable: argument.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    }
}

/// The defaults, as a settings file to begin with.
pub fn template() -> String {
    render(&Settings::defaults(), |_| None)
}

/// The settings that hold, and for each of them what says so: `given` is what flags and environment say, and `matches` which
/// of the two.
pub fn effective(matches: &ArgMatches, given: Settings, file: Option<(&Path, Settings)>) -> String {
    let (path, filed) = match file {
        Some((path, filed)) => (path.display().to_string(), filed),
        None => (String::new(), Settings::default()),
    };
    let in_file = filed.to_table();
    let settings = given.or(filed).or(Settings::defaults());
    render(&settings, |known| {
        Some(match matches.value_source(&known.id) {
            Some(ValueSource::CommandLine) => format!("from --{}", known.key),
            Some(ValueSource::EnvVariable) => format!("from {}", known.variable),
            _ if in_file.contains_key(&known.key) => format!("from {path}"),
            _ => "default".to_owned(),
        })
    })
}

fn render(settings: &Settings, source: impl Fn(&Known) -> Option<String>) -> String {
    let values = settings.to_table();
    let mut page = HEADING.to_owned();
    for known in Known::all() {
        let Known { key, about, default, value, variable, .. } = &known;
        page.push_str(&format!("\n# {about}\n# {value}; default: {default}; --{key}, {variable}\n"));
        let from = source(&known).map(|source| format!(" # {source}")).unwrap_or_default();
        page.push_str(&match values.get(key) {
            None => format!("# {key} = {:?}\n", value),
            Some(set) if key == SECRET && !set.as_str().is_some_and(|set| set.starts_with('@')) => {
                format!("# {key} = \"(not shown)\"{from}\n")
            }
            Some(set) => format!("{key} = {set}{from}\n"),
        });
    }
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Settings {
        Settings::from_toml(text, Path::new("shardd.toml")).unwrap_or_else(|error| panic!("{text}\n{error}"))
    }

    fn matches(words: &[&str]) -> (ArgMatches, Settings) {
        use clap::FromArgMatches;
        let command = Settings::augment_args(Command::new("shardd"));
        let matches = command.get_matches_from([&["shardd"][..], words].concat());
        let settings = Settings::from_arg_matches(&matches).expect("they fit");
        (matches, settings)
    }

    #[test]
    fn the_help_of_every_setting_says_all_there_is_to_say() {
        for Known { key, about, default, value, variable, .. } in Known::all() {
            assert_eq!(variable, format!("SHARDD_{}", key.replace('-', "_").to_uppercase()));
            assert!(!about.is_empty() && !value.is_empty(), "--{key}: the help does not describe it");
            assert!(!default.is_empty(), "--{key}: the help does not end with [default: ...], if only none");
        }
    }

    #[test]
    fn the_help_tells_the_defaults_that_hold() {
        let told: Vec<Known> = Known::all();
        for (key, holds) in Settings::defaults().to_table() {
            let known = told.iter().find(|known| known.key == key).expect("a setting has a flag");
            let quoted = if holds.is_str() { format!("{:?}", known.default) } else { known.default.clone() };
            let read = parse(&format!("{key} = {quoted}")).to_table();
            assert_eq!(read.get(&key), Some(&holds), "the help of --{key} says {}", known.default);
        }
    }

    #[test]
    fn the_template_is_a_file_that_changes_nothing() {
        let template = template();
        assert_eq!(parse(&template), Settings::defaults());
        let resolve = |settings: Settings| -> Config { settings.resolve().expect("defaults are good") };
        assert_eq!(resolve(parse(&template)), resolve(Settings::default()));
        for known in Known::all() {
            let lines = template.lines();
            let own =
                lines.filter(|line| line.trim_start_matches("# ").starts_with(&format!("{} = ", known.key)));
            assert_eq!(own.count(), 1, "{} in\n{template}", known.key);
        }
    }

    #[test]
    fn each_setting_says_where_it_comes_from() {
        let (matches, given) = matches(&["--cache-size", "1GiB", "--join", "shardd1,a,b,c"]);
        let filed = parse("cache-size = \"2GiB\"\nlog-level = \"debug\"");
        let page = effective(&matches, given, Some((Path::new("/etc/shardd.toml"), filed)));
        let lines: BTreeSet<&str> = page.lines().collect();
        for line in [
            "cache-size = \"1GiB\" # from --cache-size",
            "log-level = \"debug\" # from /etc/shardd.toml",
            "http = \"127.0.0.1:7700\" # default",
            "# join = \"(not shown)\" # from --join",
            "# ready-file = \"FILE\"",
        ] {
            assert!(lines.contains(line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("shardd1,a"));
        assert_eq!(parse(&page).cache_size, "1GiB".parse().ok());
    }
}
