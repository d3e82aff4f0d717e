//! `shardctl context`: names for the places one works at, and which of them holds.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use shardd_store::connect::{self, Connect, ContextName, Contexts, Credential, Place, Source};

use crate::failure::Failure;
use crate::output;
use crate::table::{Table, facts};

/// Keep names for clusters, directories and buckets, and choose one to work on
#[derive(Args)]
pub(crate) struct Context {
    #[command(subcommand)]
    command: ContextCommand,
}

#[derive(Subcommand)]
enum ContextCommand {
    /// List the contexts
    Ls,
    /// Show a context; without a name, the place, token and CA in use, and the setting behind each
    Show {
        /// The context
        name: Option<String>,
    },
    /// Make or change a context: its place is that of --server or --store, with --token-file, --ca and the
    /// --store- flags
    Set {
        /// Its name: up to 64 of A-Z, a-z, 0-9, '.', '_' and '-'
        name: ContextName,
    },
    /// Make a context the current one, which is the default for all commands
    Use {
        /// The context
        name: String,
    },
    /// Forget a context; its store or cluster stays unchanged
    Rm {
        /// The context
        name: String,
    },
}

impl Context {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        if let ContextCommand::Show { name: None } = self.command {
            return now(connect, json);
        }
        match self.command {
            ContextCommand::Set { name } => return set(name, connect, json),
            _ if connect.is_chosen() => {
                return Err(Failure::usage(
                    "this is about the contexts themselves: leave --server, --store and --context out",
                ));
            }
            ContextCommand::Ls => list(&Contexts::load()?, json),
            ContextCommand::Show { name } => {
                let contexts = Contexts::load()?;
                let (name, place) = contexts.find(&name.unwrap_or_default())?;
                let is_current = contexts.current.as_ref() == Some(name);
                let mut known =
                    vec![("context", format!("{name}{}", if is_current { " (current)" } else { "" }))];
                known.extend(place.facts());
                say(json, described(name, place, is_current), &facts(&known));
            }
            ContextCommand::Use { name } => {
                let (name, place) = Contexts::change(|contexts| {
                    let (name, place) = contexts.find(&name)?;
                    let (name, place) = (name.clone(), place.clone());
                    contexts.current = Some(name.clone());
                    Ok((name, place))
                })?;
                say(json, described(&name, &place, true), &format!("commands work on {name} now: {place}\n"));
            }
            ContextCommand::Rm { name } => {
                let (name, place, was_current) = Contexts::change(|contexts| {
                    let (name, place) = contexts.find(&name)?;
                    let (name, place) = (name.clone(), place.clone());
                    contexts.contexts.remove(&name);
                    let was_current = contexts.current.take_if(|current| *current == name).is_some();
                    Ok((name, place, was_current))
                })?;
                let left = if was_current { "; no context is the current one now" } else { "" };
                let text = format!("context {name} ({place}) is forgotten{left}\n");
                say(json, described(&name, &place, was_current), &text);
            }
        }
        Ok(())
    }
}

fn set(name: ContextName, connect: &Connect, json: bool) -> Result<(), Failure> {
    let place = connect.given_place()?;
    let (before, is_current) = Contexts::change(|contexts| {
        let is_current = contexts.current.as_ref() == Some(&name);
        Ok((contexts.contexts.insert(name.clone(), place.clone()), is_current))
    })?;
    let before = match before {
        Some(before) if before != place => format!(" instead of {before}"),
        _ => String::new(),
    };
    let hint = match is_current {
        true => String::new(),
        false => format!("; `shardctl context use {name}` makes it the current one"),
    };
    let text = format!("context {name} is {place}{before}{hint}\n");
    say(json, described(&name, &place, is_current), &text);
    Ok(())
}

fn list(contexts: &Contexts, json: bool) {
    let is_current = |name: &ContextName| contexts.current.as_ref() == Some(name);
    if json {
        let all = contexts.contexts.iter();
        let lines: Vec<Value> = all.map(|(name, place)| described(name, place, is_current(name))).collect();
        output::json(&lines);
        return;
    }
    if contexts.contexts.is_empty() {
        output::print("no contexts yet: make one with `shardctl context set NAME --server URL`\n");
        return;
    }
    let mut table = Table::new(&["current", "context", "", "place"]);
    for (name, place) in &contexts.contexts {
        let mark = if is_current(name) { "*" } else { "" };
        let kind = match place {
            Place::Server { .. } => "server",
            Place::Store(_) => "store",
        };
        table.row([mark.to_owned(), name.to_string(), kind.to_owned(), place.to_string()]);
    }
    output::print(&table.render());
}

/// The place of commands, its credentials, and the setting behind each.
fn now(connect: &Connect, json: bool) -> Result<(), Failure> {
    let (place, source) = connect.place()?;
    let (token, ca) = connect.access(&place, &source);
    let place = connect.with_options(place)?;
    let file = connect::path().map(|path| path.display().to_string());
    if json {
        let context = match &source {
            Source::Context { name, .. } => Some(name),
            _ => None,
        };
        let known = json!({ "context": context, "from": source.to_string(), "file": file });
        let mut shown = with_facts(known, &place);
        for (name, credential) in [("token", &token), ("ca", &ca)] {
            let Some(Credential { file, from }) = credential else { continue };
            shown[format!("{name}_from")] = json!(from);
            if let Some(file) = file {
                shown[if name == "token" { "token_file" } else { name }] = json!(file);
            }
        }
        // A token in the environment comes before the file of a context.
        if token.is_some_and(|token| token.file.is_none())
            && let Some(shown) = shown.as_object_mut()
        {
            shown.remove("token_file");
        }
        output::json(&shown);
        return Ok(());
    }
    let mut known = match &place {
        Place::Server { urls, .. } => {
            let or = |credential: Option<Credential>, none: &str| {
                credential.map_or_else(|| none.to_owned(), |credential| credential.to_string())
            };
            vec![
                ("server", urls.clone()),
                ("token", or(token, "none")),
                ("ca", or(ca, "the certificates that the system trusts")),
            ]
        }
        Place::Store(_) => place.facts(),
    };
    known.push(("from", source.to_string()));
    known.push(("contexts", file.unwrap_or_else(|| "no file: there is no home directory".to_owned())));
    output::print(&facts(&known));
    Ok(())
}

fn described(name: &ContextName, place: &Place, is_current: bool) -> Value {
    with_facts(json!({ "context": name, "current": is_current }), place)
}

fn with_facts(mut object: Value, place: &Place) -> Value {
    for (name, value) in place.facts() {
        object[name.replace(' ', "_")] = value.into();
    }
    object
}

fn say(json: bool, value: Value, text: &str) {
    match json {
        true => output::json(&value),
        false => output::print(text),
    }
}
