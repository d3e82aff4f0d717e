//! `shardctl man`: a manual page for each command, made of its help.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use serde_json::json;
use shardd_api::suggest::nearest;

use crate::failure::Failure;
use crate::human::plural;
use crate::output;

/// Print the manual page of a command, or write those of all
///
/// `shardctl man plan at | man -l -` reads a page; `shardctl man --to ~/.local/share/man/man1` installs all of them.
#[derive(Args)]
pub(crate) struct Man {
    /// The command, such as `ingest` or `plan at` [default: shardctl itself]
    #[arg(conflicts_with = "to")]
    command: Vec<String>,

    /// Write the pages of all commands to this directory
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// The manual page of one command.
struct Page {
    /// Such as `shardctl-plan-at`.
    name: String,
    roff: Vec<u8>,
}

impl Man {
    pub(crate) fn run(self, command: Command, json: bool) -> Result<(), Failure> {
        let pages = pages(command)?;
        if let Some(dir) = &self.to {
            return write(&pages, dir, json);
        }
        let asked = self.command.join("-");
        let own = |page: &Page| page.name.trim_start_matches("shardctl").trim_start_matches('-').to_owned();
        let names: Vec<String> = pages.iter().map(own).collect();
        let Some(at) = names.iter().position(|name| *name == asked) else {
            let meant = nearest(&asked, names.iter().map(String::as_str));
            let meant = meant.map(|name| format!("; is it {}?", name.replace('-', " "))).unwrap_or_default();
            return Err(Failure::usage(format!("there is no command {}{meant}", self.command.join(" "))));
        };
        let page = &pages[at];
        match json {
            true => output::json(&json!({ "page": page.name, "roff": String::from_utf8_lossy(&page.roff) })),
            false => output::raw(&page.roff),
        }
        Ok(())
    }
}

fn write(pages: &[Page], dir: &Path, json: bool) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("{}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(failed)?;
    let mut files = Vec::new();
    for page in pages {
        let file = dir.join(format!("{}.1", page.name));
        fs::write(&file, &page.roff).map_err(failed)?;
        files.push(file);
    }
    match json {
        true => output::json(&json!({ "pages": files })),
        false => {
            output::print(&format!("{} in {}\n", plural(files.len() as u64, "page"), dir.display()));
        }
    }
    Ok(())
}

fn pages(command: Command) -> Result<Vec<Page>, Failure> {
    let mut root = command.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_pages(&root, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<Page>) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = clap_mangen::Man::new(command.clone())
        .source(concat!("shardd ", env!("CARGO_PKG_VERSION")))
        .manual("shardd");
    let mut roff = Vec::new();
    man.render(&mut roff)?;
    pages.push(Page { name, roff });
    command.get_subcommands().try_for_each(|command| add_pages(command, pages))
}
