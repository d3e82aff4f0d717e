//! `shardd`: one node of a cluster, or a cluster of one.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use shardd::config::{self, AtStart, Config, ConfigError, LogFormat, LogLevel, Settings};
use shardd::metastore::MetastoreUrl;
use shardd::serve::{Ended, Migrated, Restored, ServeError, Signals};
use shardd_store::metastore::Backup;
use shardd_telemetry::{Exporting, Service, TelemetryError};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;

/// What `--version` says: the release, and where this build can keep metadata.
#[cfg(feature = "cluster-etcd")]
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\nmetastores: sled, store, etcd");
#[cfg(not(feature = "cluster-etcd"))]
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\nmetastores: sled, store");

/// Serves data sets to trainers: shards and their order, kept near where they are read.
#[derive(Parser)]
#[command(name = "shardd", version, long_version = LONG_VERSION, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node, until SIGTERM or SIGINT
    Serve {
        #[command(flatten)]
        given: Box<Given>,
        #[command(flatten)]
        metadata: AtStart,
    },
    /// Check a settings file, or show the settings that hold
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Move the metadata of a cluster, or make it of a backup
    #[command(subcommand)]
    Metastore(MetastoreCommand),
}

#[derive(Subcommand)]
enum MetastoreCommand {
    /// Move the metadata from sled on the first node to the store or to etcd
    ///
    /// Stop the first node, run this where it has its data, and start it again. The other nodes and the trainings continue.
    /// Each node uses the new place directly after its next start.
    Migrate {
        /// The new place: `store`, or `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`
        #[arg(long, value_name = "URL")]
        to: String,
        #[command(flatten)]
        given: Box<Given>,
    },
    /// Make the metadata of a backup, as `shardctl metastore backup` writes it
    ///
    /// Stop the first node, run this where it has its data, with the settings that it serves with, and start it again. Where the
    /// metadata is in the store or in etcd, stop all nodes. Changes since the backup are lost: names, tags, plans, runs and tokens
    /// are as they were, also revoked ones.
    Restore {
        /// The backup
        file: PathBuf,
        /// Replace metadata that is there; sled's is set aside, not deleted
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        given: Box<Given>,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a settings file: that each key is known, that each value fits, and that they fit each other
    Check {
        /// The file
        #[arg(env = "SHARDD_CONFIG")]
        file: PathBuf,
    },
    /// Print the settings that hold, as TOML, each with its meaning and its source
    Show {
        /// Print the defaults instead, as a settings file to begin with
        #[arg(long)]
        default: bool,
        #[command(flatten)]
        given: Box<Given>,
    },
}

/// The settings of flags and environment, and the files with further ones.
#[derive(Args)]
struct Given {
    /// TOML file of settings, each by the name of its flag; flags and environment win over it
    #[arg(long, value_name = "FILE", env = "SHARDD_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    shardd_store::tls::use_ring();
    let parsed = Arguments::command().try_get_matches();
    let parsed = parsed.and_then(|matches| Ok((Arguments::from_arg_matches(&matches)?, matches)));
    let (arguments, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => return complain(&one_line(&error.to_string()), 2),
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let outcome = match arguments.command {
        Command::Serve { given, metadata } => match given.resolve() {
            Ok(config) => return run(Config { metadata, ..config }),
            Err(error) => Err(error.to_string()),
        },
        Command::Metastore(MetastoreCommand::Migrate { to, given }) => return migrate(&to, *given),
        Command::Metastore(MetastoreCommand::Restore { file, replace, given }) => {
            return restore(&file, replace, *given);
        }
        Command::Config(ConfigCommand::Check { file }) => check(&file),
        Command::Config(ConfigCommand::Show { default: true, .. }) => Ok(config::template()),
        Command::Config(ConfigCommand::Show { default: false, given }) => {
            given.show(&matches).map_err(|error| error.to_string())
        }
    };
    match outcome {
        Ok(text) => {
            // A reader that has gone away wants no more.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => complain(&error, 2),
    }
}

impl Given {
    fn resolve(self) -> Result<Config, ConfigError> {
        let filed = self.config.as_deref().map(Settings::from_file).transpose()?;
        let config = self.settings.or(filed.unwrap_or_default()).resolve()?;
        shardd::serve::check_protection(&config)?;
        Ok(config)
    }

    fn show(self, matches: &ArgMatches) -> Result<String, ConfigError> {
        let path = self.config.as_deref();
        let filed = path.map(|path| Settings::from_file(path).map(|filed| (path, filed))).transpose()?;
        let innermost = |matches: &ArgMatches| matches.subcommand().map(|(_, inner)| inner.clone());
        let own = innermost(matches).and_then(|config| innermost(&config)).unwrap_or_default();
        Ok(config::effective(&own, self.settings, filed))
    }
}

/// Moves the metadata, and says where it is.
fn migrate(to: &str, given: Given) -> ExitCode {
    let to = match to.parse::<MetastoreUrl>() {
        Ok(to) => to,
        Err(reason) => return complain(&format!("--to: {reason}"), 2),
    };
    offline(given, async |config| {
        let Migrated { entries, to } = shardd::serve::migrate(config, &to).await?;
        Ok(format!("moved {entries} entries to {to}; start the node again, with the same settings"))
    })
}

/// Makes the metadata of a backup, and says where it is.
fn restore(file: &Path, is_replacing: bool, given: Given) -> ExitCode {
    let read = std::fs::read(file).map_err(|error| error.to_string());
    let backup = read.and_then(|bytes| Backup::from_bytes(&bytes).map_err(|error| error.to_string()));
    let backup = match backup {
        Ok(backup) => backup,
        Err(reason) => return complain(&format!("{}: {reason}", file.display()), 2),
    };
    offline(given, async |config| {
        let Restored { entries, at } = shardd::serve::restore(config, &backup, is_replacing).await?;
        Ok(format!("restored {entries} entries to {at}; start the node again, with the same settings"))
    })
}

/// Works on the data of a node that does not run, and prints the outcome.
fn offline(given: Given, work: impl AsyncFnOnce(Config) -> Result<String, ServeError>) -> ExitCode {
    let config = match given.resolve() {
        Ok(config) => config,
        Err(error) => return complain(&error.to_string(), 2),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), 1),
    };
    match runtime.block_on(work(config)) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(error) => complain(&format!("{:#}", anyhow::Error::from(error)), 1),
    }
}

/// Checks a settings file as `serve` does: together with the environment.
fn check(file: &Path) -> Result<String, String> {
    let count = Settings::from_file(file).map_err(|error| error.to_string())?.count();
    let mut config = OsString::from("--config=");
    config.push(file);
    let words = ["shardd".into(), "serve".into(), config];
    let parsed = Arguments::try_parse_from(words).map_err(|error| one_line(&error.to_string()))?;
    if let Command::Serve { given, .. } = parsed.command {
        given.resolve().map_err(|error| error.to_string())?;
    }
    Ok(format!("{} is good: {count} setting{}\n", file.display(), if count == 1 { "" } else { "s" }))
}

fn run(config: Config) -> ExitCode {
    shardd::memory::limit_arenas();
    // Dropped at the end: it sends the last spans.
    let _exporting = match log(&config) {
        Ok(exporting) => exporting,
        Err(error) => return complain(&error.to_string(), 2),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), 1),
    };
    let served = runtime.block_on(async {
        let signals = Signals::default();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = signals.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => return told.stop.cancel(),
                _ = terminate.recv() => told.terminate.cancel(),
            }
            // A second signal means that the user does not want to wait.
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            told.stop.cancel();
        });
        let ready = |ready: &shardd::serve::Ready| {
            // The parent of the node may have closed its output; it serves all the same.
            let _ = writeln!(std::io::stdout(), "{ready}");
        };
        let mut config = config;
        loop {
            match shardd::serve::serve(config.clone(), signals.clone(), Box::new(ready)).await? {
                Ended::Stopped => return Ok::<_, anyhow::Error>(()),
                // It starts again where it was reached, and takes over the metadata.
                Ended::ToPromote { http } => {
                    config = Config { http, metadata: AtStart { promote: true, recover: false }, ..config };
                }
            }
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(300));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), 1),
    }
}

/// Log lines on standard error; traces and log records where the OTEL variables name a collector.
fn log(config: &Config) -> Result<Exporting, TelemetryError> {
    let level = match config.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let instance = config.id.as_ref().map(ToString::to_string);
    let service = Service { name: "shardd", version: env!("CARGO_PKG_VERSION"), instance };
    match config.log_format {
        LogFormat::Text => shardd_telemetry::init(lines.with_target(false).with_filter(level), &service),
        LogFormat::Json => shardd_telemetry::init(lines.json().with_filter(level), &service),
    }
}

fn complain(message: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "shardd: {}", message.replace('\n', " "));
    ExitCode::from(code)
}

/// The error of clap, in many lines, without its advice to read the help.
fn one_line(message: &str) -> String {
    let lines =
        message.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}
