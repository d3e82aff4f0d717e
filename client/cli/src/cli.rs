//! The command line of `shardctl`: its subcommands, and its help in groups.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use shardd_store::connect::Connect;

use crate::{
    append, audit, balancer, certs, completions, context, cost, demo, derive, diff, doctor, drain, events,
    evict, exchange, explain, export, forget, gc, head, info, ingest, log, ls, man, metastore, partition,
    plan, promote, prune, read, rebalance, recover, replay, reshard, restore, rm, runs, simulate, status,
    tag, token, top, verify, warm,
};

/// The end of the help and of the manual page.
const ENDING: &str = "\
Exit codes: 0 success, 1 failure, 2 invalid or ambiguous command line; of `diff` and `runs diff`: 0 equal, 1 different, 2 not \
compared.

A command works on the nodes or the store of --server, --store or --context, else of SHARDD_SERVER, else of the context in \
SHARDD_CONTEXT or the current context (see `shardctl context`), else on http://127.0.0.1:7700. Contexts are stored in \
$SHARDD_CONTEXTS, else in shardd/contexts.toml of $XDG_CONFIG_HOME or ~/.config.

With --json, standard output holds lines of JSON and nothing else; an error is {\"error\": TEXT, \"exit\": CODE} on standard \
error, a note {\"note\": TEXT}. Colours go to terminals only; NO_COLOR and CLICOLOR_FORCE have their usual meaning.";

/// The width of the help, as of its other parts.
const WIDTH: usize = 100;

/// The groups of the help, with their subcommands in order.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Datasets",
        &[
            "ingest", "ls", "info", "head", "log", "diff", "append", "derive", "reshard", "export", "tag",
            "restore", "rm", "prune", "forget",
        ],
    ),
    ("Plans", &["partition", "plan", "simulate", "cost"]),
    ("Trainings", &["runs", "read", "replay", "explain", "audit"]),
    (
        "Cluster",
        &[
            "status",
            "doctor",
            "top",
            "events",
            "warm",
            "evict",
            "balancer",
            "exchange",
            "rebalance",
            "drain",
            "join",
            "leave",
            "promote",
            "metastore",
        ],
    ),
    ("Store", &["verify", "gc", "recover"]),
    ("Other", &["demo", "context", "token", "certs", "completions", "man", "help"]),
];

/// Datasets, plans and nodes of shardd
#[derive(Parser)]
#[command(name = "shardctl", version, about, after_long_help = ENDING, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print JSON instead of tables: one value, or one line per step of long work
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) connect: Connect,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Ingest(ingest::Ingest),
    Ls(ls::Ls),
    Info(info::Info),
    Head(head::Head),
    Log(log::Log),
    Diff(diff::Diff),
    Append(append::Append),
    Reshard(reshard::Reshard),
    Derive(derive::Derive),
    Export(export::Export),
    Tag(tag::Tag),
    Restore(restore::Restore),
    Rm(rm::Rm),
    Prune(prune::Prune),
    Forget(forget::Forget),
    Gc(gc::Gc),
    Recover(recover::Recover),
    Partition(partition::Partition),
    Plan(plan::Plan),
    Simulate(simulate::Simulate),
    Cost(cost::Cost),
    Status(status::Status),
    Top(top::Top),
    Events(events::Events),
    Doctor(doctor::Doctor),
    Drain(drain::Drain),
    Join(drain::Join),
    Leave(drain::Leave),
    Promote(promote::Promote),
    Metastore(metastore::Metastore),
    Rebalance(rebalance::Rebalance),
    Warm(warm::Warm),
    Evict(evict::Evict),
    Balancer(balancer::Balancer),
    Exchange(exchange::Exchange),
    Explain(explain::Explain),
    Token(token::Token),
    Certs(certs::Certs),
    Verify(verify::Verify),
    Read(read::Read),
    Replay(replay::Replay),
    Audit(audit::Audit),
    Runs(runs::Runs),
    Demo(demo::Demo),
    Context(context::Context),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// The command with its help in groups.
    pub(crate) fn grouped() -> clap::Command {
        let command = Self::command();
        let groups = groups(&command);
        let heading = command.get_styles().get_header();
        let options = format!("{heading}Options:{heading:#}");
        command.help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{options}\n{{options}}{{after-help}}"
        ))
    }

    /// Parses the arguments of this process.
    pub(crate) fn parse_arguments() -> Result<Cli, clap::Error> {
        Self::grouped().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches))
    }
}

/// The list of subcommands, in groups under headings.
fn groups(command: &clap::Command) -> String {
    let heading = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let width = GROUPS.iter().flat_map(|(_, names)| names.iter()).map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (group, names) in GROUPS {
        text += &format!("{heading}{group}:{heading:#}\n");
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(command) => command.get_about().map(ToString::to_string).unwrap_or_default(),
                None => "Print this text, or the help of a subcommand".to_owned(),
            };
            let about = wrapped(&about, WIDTH - width - 4, width + 4);
            text += &format!("  {literal}{name}{literal:#}{:1$}  {about}\n", "", width - name.len());
        }
        text.push('\n');
    }
    text
}

/// The text in lines of at most `width` characters, all but the first after `indent` spaces.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        match line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width {
            true if line.is_empty() => line.push_str(word),
            true => *line += &format!(" {word}"),
            false => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}

/// The subcommands that the words name, one inside the other.
pub(crate) fn subcommands(words: impl Iterator<Item = String>) -> String {
    let mut command = Cli::command();
    let mut named = String::new();
    for word in words {
        if let Some(inner) = command.find_subcommand(&word).cloned() {
            command = inner;
            named += &word;
            named.push(' ');
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let command = Cli::command();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        all.push("help");
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_list_of_subcommands_is_no_wider_than_the_rest_of_the_help() {
        let text = anstream::adapter::strip_str(&groups(&Cli::command())).to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= WIDTH), "{text}");
    }

    #[test]
    fn an_error_names_the_help_of_the_innermost_subcommand() {
        let of = |line: &str| subcommands(line.split(' ').map(str::to_owned));
        assert_eq!(of("--json plan at --epoch x"), "plan at ");
        assert_eq!(of("--server http://a:1 ls"), "ls ");
        assert_eq!(of("nonsense"), "");
    }
}
