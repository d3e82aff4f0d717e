//! `shardctl plan at` and `plan where`: forward and inverse lookups in the order of an epoch.

use clap::Args;
use shardd_client::catalog::Catalog;
use shardd_client::lookup::{self, Step};

use crate::failure::Failure;
use crate::human::count;
use crate::output;
use crate::table::{Table, facts};

use super::PlanArg;

/// What `plan at` asks.
#[derive(Args)]
pub(super) struct At {
    #[command(flatten)]
    plan: PlanArg,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,

    /// First position of the step
    #[arg(long, default_value_t = 0)]
    position: u64,

    /// Positions in the step
    #[arg(long, default_value_t = 1)]
    global_batch_size: u64,

    /// Only what this rank reads
    #[arg(long)]
    rank: Option<u32>,

    /// How many ranks there are
    #[arg(long, default_value_t = 1)]
    world: u32,

    /// How many virtual ranks there are [default: the smallest number of partitions' divisors that is no less than WORLD]
    #[arg(long)]
    virtual_ranks: Option<u32>,
}

/// What `plan where` asks.
#[derive(Args)]
pub(super) struct Where {
    /// Number of the sample in the order of the dataset, from 0
    sample: u64,

    #[command(flatten)]
    plan: PlanArg,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,
}

impl At {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.plan.open(catalog)?;
        let step = Step {
            epoch: self.epoch,
            position: self.position,
            global_batch_size: self.global_batch_size,
            rank: self.rank,
            world: self.world,
            virtual_ranks: self.virtual_ranks,
        };
        let found = lookup::at(&plan, &manifest, &step).map_err(Failure::wrong)?;
        if json {
            output::json(&found);
            return Ok(());
        }
        let mut rows =
            Table::new(&["position", "partition", "virtual rank", "sample", "grain", "row", "shard"]);
        for one in &found {
            rows.row([
                count(one.position),
                one.partition.to_string(),
                one.virtual_rank.map(|v| v.to_string()).unwrap_or_default(),
                count(one.sample),
                count(one.grain),
                count(one.row.into()),
                one.shard.short(),
            ]);
        }
        output::print(&rows.render());
        Ok(())
    }
}

impl Where {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.plan.open(catalog)?;
        let found = lookup::find(&plan, &manifest, self.epoch, self.sample).map_err(Failure::wrong)?;
        if json {
            output::json(&found);
            return Ok(());
        }
        output::print(&facts(&[
            (
                "sample",
                format!(
                    "{} (row {} of shard {})",
                    count(found.sample),
                    count(found.row.into()),
                    found.shard.short()
                ),
            ),
            ("epoch", found.epoch.to_string()),
            ("position", count(found.position)),
            ("partition", found.partition.to_string()),
            ("grain", count(found.grain)),
        ]));
        Ok(())
    }
}
