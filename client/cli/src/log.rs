//! `shardctl log`: the history of a dataset.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use shardd_store::catalog::{Catalog, LogEntry};
use shardd_store::connect::{Connect, find_version};
use shardfmt::{ByteSize, CommitId, DatasetName, TagName};

use crate::failure::Failure;
use crate::human::{count, date, plural};
use crate::output;
use crate::table::Table;

/// Show the versions of a dataset, the newest first, with times, programs and reasons
#[derive(Args)]
pub(crate) struct Log {
    /// The dataset
    dataset: DatasetName,

    /// Show at most this many
    #[arg(long, short = 'n', default_value_t = 100)]
    limit: usize,
}

/// A commit and its tags.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    entry: LogEntry,
    tags: Vec<TagName>,
}

impl Log {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        find_version(&*catalog, &self.dataset.clone().into())?;
        let mut tags = tags_of(&*catalog, &self.dataset)?;
        // One more than fits says whether there are more.
        let mut entries = catalog.log(&self.dataset, self.limit.saturating_add(1))?;
        let is_all = entries.len() <= self.limit;
        entries.truncate(self.limit);
        let before = entries.last().map_or(0, |oldest| oldest.commit.number.saturating_sub(1));
        let with_tags = |entry: LogEntry| Line { tags: tags.remove(&entry.id).unwrap_or_default(), entry };
        let lines: Vec<Line> = entries.into_iter().map(with_tags).collect();
        if json {
            output::json(&lines);
            return Ok(());
        }
        output::print(&table(&lines).render());
        match (before, is_all) {
            (0, _) => {}
            (before, true) => output::print(&format!("{} before that, pruned\n", plural(before, "version"))),
            (1, false) => output::print("1 more: -n shows it\n"),
            // How far the history goes is not known without walking it.
            (before, false) => output::print(&format!("up to {} more: -n shows them\n", count(before))),
        }
        Ok(())
    }
}

/// The tags of a dataset by their commits.
fn tags_of(
    catalog: &dyn Catalog,
    dataset: &DatasetName,
) -> Result<BTreeMap<CommitId, Vec<TagName>>, Failure> {
    let mut tags = BTreeMap::<_, Vec<TagName>>::new();
    for info in catalog.tags(Some(dataset))? {
        tags.entry(info.commit).or_default().push(info.tag);
    }
    Ok(tags)
}

fn table(lines: &[Line]) -> Table {
    let mut table =
        Table::new(&["back", "version", "committed (UTC)", "by", "samples", "size", "tags", "message"]);
    for (back, Line { entry, tags }) in lines.iter().enumerate() {
        let commit = &entry.commit;
        let tags: Vec<&str> = tags.iter().map(TagName::as_str).collect();
        table.row([
            format!("~{back}"),
            commit.version.short(),
            date(commit.time),
            commit.operation.to_string(),
            count(commit.samples),
            ByteSize(commit.bytes).to_string(),
            tags.join(", "),
            first_line(commit.message.as_str()),
        ]);
    }
    table
}

/// As much of a message as fits beside the rest.
fn first_line(message: &str) -> String {
    const WIDEST: usize = 60;
    let line = message.lines().next().unwrap_or_default().replace('\t', " ");
    match line.chars().count() > WIDEST || message.lines().nth(1).is_some() {
        true => line.chars().take(WIDEST).chain(['…']).collect(),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_visibly() {
        assert_eq!(first_line("fixed labels"), "fixed labels");
        assert_eq!(first_line("fixed labels\n\nof class 3"), "fixed labels…");
        assert_eq!(first_line(&"é".repeat(61)), "é".repeat(60) + "…");
        assert_eq!(first_line(""), "");
    }
}
