//! `shardd`: one node of a cluster, or a cluster of one.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use shardd::config::{Config, LogFormat, LogLevel, Settings};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

/// What `--version` says: the release, and where this build can keep metadata.
#[cfg(feature = "cluster-etcd")]
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\nmetastores: sled, etcd");
#[cfg(not(feature = "cluster-etcd"))]
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\nmetastores: sled");

/// Serves data sets to trainers: shards and their order, kept near where they are read.
#[derive(Parser)]
#[command(name = "shardd", version, long_version = LONG_VERSION)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node, until SIGTERM or SIGINT
    Serve {
        /// TOML file of settings, each by the name of its flag; flags and environment win over it
        #[arg(long, value_name = "FILE", env = "SHARDD_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
}

fn main() -> ExitCode {
    shardd_client::tls::use_ring();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => return complain(&one_line(&error.to_string()), 2),
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let Command::Serve { config, settings } = arguments.command;
    let config = config.map_or_else(|| Ok(Settings::default()), |path| Settings::from_file(&path));
    match config.and_then(|file| settings.or(file).resolve()) {
        Ok(config) => run(config),
        Err(error) => complain(&error.to_string(), 2),
    }
}

fn run(config: Config) -> ExitCode {
    log(config.log_format, config.log_level);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), 1),
    };
    let served = runtime.block_on(async {
        let stop = CancellationToken::new();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            told.cancel();
        });
        let ready = |ready: &shardd::serve::Ready| {
            // Whoever started the node may have closed its output; it serves all the same.
            let _ = writeln!(std::io::stdout(), "{ready}");
        };
        shardd::serve::serve(config, stop, ready).await.map_err(anyhow::Error::from)
    });
    runtime.shutdown_timeout(Duration::from_millis(300));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error:#}"), 1),
    }
}

fn log(format: LogFormat, level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(level);
    match format {
        LogFormat::Text => lines.with_target(false).init(),
        LogFormat::Json => lines.json().init(),
    }
}

fn complain(message: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "shardd: {}", message.replace('\n', " "));
    ExitCode::from(code)
}

/// What clap says in many lines, without its advice to read the help.
fn one_line(message: &str) -> String {
    let lines =
        message.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}
