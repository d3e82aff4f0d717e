//! `shardctl plan at` and `plan where`: forward and inverse lookups in the order of an epoch.

use clap::Args;
use serde::Serialize;
use shardd_client::catalog::Catalog;
use shardfmt::ManifestError;
use shardfmt::plan::{Epoch, Plan, SampleNo, SlotTable};

use crate::failure::Failure;
use crate::human::{count, plural};
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

/// One sample in one epoch.
#[derive(Debug, Serialize)]
struct Found {
    epoch: u32,
    position: u64,
    partition: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_rank: Option<u32>,
    sample: u64,
    grain: u64,
    shard: String,
    row: u32,
}

impl At {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.plan.open(catalog)?;
        let virtual_ranks = self.virtual_ranks.unwrap_or_else(|| plan.default_virtual_ranks(self.world));
        plan.check_ranks(self.world, virtual_ranks)?;
        let partitions = self.partitions(&plan, virtual_ranks)?;
        let end = self.position.saturating_add(self.global_batch_size).min(plan.sample_count());
        if self.position >= end {
            let samples = count(plan.sample_count());
            return Err(Failure::usage(format!(
                "position {} is outside the epoch, which has {samples}",
                self.position
            )));
        }
        let table = SlotTable::at(&plan, Epoch(self.epoch));
        let found: Vec<Found> = plan
            .step_reads(&table, self.position..end, partitions)
            .into_iter()
            .map(|read| {
                let place = plan.locate_grain(read.grain);
                let shard = manifest.entry(place.shard.into())?.id.to_string();
                Ok(Found {
                    epoch: self.epoch,
                    position: read.position,
                    partition: read.partition.0,
                    virtual_rank: Some(plan.virtual_rank_of(read.partition, virtual_ranks).0),
                    sample: plan.sample(read.grain, read.row).0,
                    grain: read.grain.0,
                    shard,
                    row: place.index * plan.document().grain_rows + read.row,
                })
            })
            .collect::<Result<_, ManifestError>>()?;
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
                one.shard[..12].to_owned(),
            ]);
        }
        output::print(&rows.render());
        Ok(())
    }

    fn partitions(&self, plan: &Plan, virtual_ranks: u32) -> Result<std::ops::Range<u32>, Failure> {
        let Some(rank) = self.rank else { return Ok(0..plan.document().partitions) };
        if rank >= self.world {
            let ranks = plural(self.world.into(), "rank");
            return Err(Failure::usage(format!(
                "--rank {rank} is not one of {ranks}: use 0 to {}",
                self.world - 1
            )));
        }
        let owned = Plan::virtual_ranks_of(rank, self.world, virtual_ranks);
        let bound = |v: u32| u64::from(v) * u64::from(plan.document().partitions) / u64::from(virtual_ranks);
        Ok(bound(owned.start) as u32..bound(owned.end) as u32)
    }
}

impl Where {
    pub(super) fn run(self, catalog: &dyn Catalog, json: bool) -> Result<(), Failure> {
        let (plan, manifest) = self.plan.open(catalog)?;
        if self.sample >= plan.sample_count() {
            let samples = count(plan.sample_count());
            return Err(Failure::usage(format!(
                "there is no sample {}: the version has {samples}, from 0",
                self.sample
            )));
        }
        let (epoch, sample) = (Epoch(self.epoch), SampleNo(self.sample));
        let position = plan.position_of_sample(epoch, sample);
        let (partition, _) = plan.at_position(position);
        let (grain, _) = plan.grain_of(sample);
        let (shard, row) = plan.locate_sample(sample);
        let found = Found {
            epoch: self.epoch,
            position,
            partition: partition.0,
            virtual_rank: None,
            sample: self.sample,
            grain: grain.0,
            shard: manifest.entry(shard.into())?.id.to_string(),
            row,
        };
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
                    &found.shard[..12]
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
