//! `shardctl ls`: what datasets there are, and how they are tagged.

use clap::Args;
use serde::Serialize;
use shardd_store::catalog::{DatasetInfo, TagInfo};
use shardd_store::connect::Connect;
use shardfmt::{ByteSize, DatasetName};

use crate::failure::Failure;
use crate::human::count;
use crate::output;
use crate::table::Table;

/// List the datasets with their tags; `shardctl log` lists the versions of a dataset
#[derive(Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let (datasets, tags) = (catalog.datasets()?, catalog.tags(None)?);
        if json {
            let lines: Vec<Line<'_>> = datasets.iter().map(|dataset| Line::of(dataset, &tags)).collect();
            output::json(&lines);
            return Ok(());
        }
        let mut table = Table::new(&["dataset", "samples", "shards", "size", "version", "commits", "tags"]);
        for dataset in &datasets {
            let on = |tag: &TagInfo| if tag.commit == dataset.commit { "" } else { " (older)" };
            let tags = of(&dataset.name, &tags).map(|tag| format!("{}{}", tag.tag, on(tag)));
            table.row([
                dataset.name.to_string(),
                count(dataset.samples),
                count(dataset.shards),
                ByteSize(dataset.bytes).to_string(),
                dataset.version.short(),
                count(dataset.commits),
                tags.collect::<Vec<_>>().join(", "),
            ]);
        }
        let is_removed = |tag: &&TagInfo| datasets.iter().all(|dataset| dataset.name != tag.dataset);
        let left: Vec<String> =
            tags.iter().filter(is_removed).map(|tag| format!("{}@{}", tag.dataset, tag.tag)).collect();
        output::print(&match datasets.is_empty() {
            true => "no datasets yet: make one with `shardctl ingest PATH --name NAME`\n".to_owned(),
            false => table.render(),
        });
        if !left.is_empty() {
            output::print(&format!("tags of datasets that were removed: {}\n", left.join(", ")));
        }
        Ok(())
    }
}

/// A dataset and its tags.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    dataset: &'a DatasetInfo,
    tags: Vec<&'a TagInfo>,
}

impl<'a> Line<'a> {
    fn of(dataset: &'a DatasetInfo, tags: &'a [TagInfo]) -> Line<'a> {
        Line { dataset, tags: of(&dataset.name, tags).collect() }
    }
}

fn of<'a>(dataset: &DatasetName, tags: &'a [TagInfo]) -> impl Iterator<Item = &'a TagInfo> {
    tags.iter().filter(move |tag| tag.dataset == *dataset)
}
