//! `shardctl ls`: what datasets there are.

use clap::Args;
use shardfmt::ByteSize;

use crate::connect::Connect;
use crate::failure::Failure;
use crate::human::count;
use crate::output;
use crate::table::Table;

/// List the datasets
#[derive(Args)]
pub(crate) struct Ls {}

impl Ls {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let datasets = connect.catalog()?.datasets()?;
        if json {
            output::json(&datasets);
            return Ok(());
        }
        let mut table = Table::new(&["dataset", "samples", "shards", "size", "version"]);
        for dataset in &datasets {
            table.row([
                dataset.name.to_string(),
                count(dataset.samples),
                count(dataset.shards),
                ByteSize(dataset.bytes).to_string(),
                dataset.version.short(),
            ]);
        }
        output::print(&match datasets.is_empty() {
            true => "no datasets yet: make one with `shardctl ingest PATH --name NAME`\n".to_owned(),
            false => table.render(),
        });
        Ok(())
    }
}
