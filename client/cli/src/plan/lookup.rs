//! `shardctl plan at` and `plan where`: forward and inverse lookups in the order of an epoch.

use std::ops::Range;
use std::str::FromStr;

use clap::Args;
use shardd_api::lookup::{self, Readers, Step, Use};
use shardd_store::catalog::Catalog;

use super::{PlanArg, PlanOrRun};
use crate::failure::Failure;
use crate::human::count;
use crate::output;
use crate::table::{Table, facts};

/// Arguments of `plan at`.
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

    /// Only the samples of this rank
    #[arg(long)]
    rank: Option<u32>,

    /// Number of ranks
    #[arg(long, default_value_t = 1)]
    world: u32,

    /// Number of virtual ranks [default: that of a loader with this --global-batch-size]
    #[arg(long)]
    virtual_ranks: Option<u32>,
}

/// Arguments of `plan where`.
#[derive(Args)]
pub(super) struct Where {
    /// Number of the sample in the order of the dataset, from 0
    sample: u64,

    #[command(flatten)]
    which: PlanOrRun,

    /// Epoch, from 0
    #[arg(long, default_value_t = 0)]
    epoch: u32,

    /// Every use in these epochs: FROM..TO without TO, or the number of epochs
    #[arg(long, value_name = "EPOCHS", conflicts_with = "epoch")]
    epochs: Option<EpochRange>,

    /// Positions in a step: shows the step
    #[arg(long, value_name = "N")]
    global_batch_size: Option<u64>,

    /// Number of ranks: shows the rank
    #[arg(long)]
    world: Option<u32>,

    /// Number of virtual ranks: shows the virtual rank [default: those of RUN; else, with WORLD, as a loader
    /// has with this --global-batch-size, or the smallest divisor of the partitions that is no less than WORLD]
    #[arg(long, conflicts_with = "run")]
    virtual_ranks: Option<u32>,
}

/// Some epochs: `3..7`, or `7` for the first seven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochRange {
    from: u32,
    to: u32,
}

impl EpochRange {
    pub(crate) fn range(self) -> Range<u32> {
        self.from..self.to
    }
}

impl FromStr for EpochRange {
    type Err = String;

    fn from_str(text: &str) -> Result<EpochRange, String> {
        let (from, to) = text.split_once("..").unwrap_or(("0", text));
        match (from.parse(), to.parse()) {
            (Ok(from), Ok(to)) if from < to => Ok(EpochRange { from, to }),
            _ => Err("use FROM..TO, such as 3..7, or the number of epochs".to_owned()),
        }
    }
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
        let (plan, manifest, run) = self.which.open(catalog)?;
        let readers = Readers {
            global_batch_size: self.global_batch_size,
            world: self.world,
            virtual_ranks: run.map(|run| run.virtual_ranks).or(self.virtual_ranks),
        };
        let one = self.epoch..self.epoch.saturating_add(1);
        let epochs = self.epochs.map_or(one, EpochRange::range);
        let uses = lookup::uses(&plan, &manifest, epochs, self.sample, &readers).map_err(Failure::wrong)?;
        match (self.epochs, uses.as_slice()) {
            (None, [one]) if json => output::json(one),
            (None, [one]) => output::print(&describe(one)),
            _ if json => output::json(&uses),
            _ => output::print(&list(&uses)),
        }
        Ok(())
    }
}

fn describe(Use { found, step, rank }: &Use) -> String {
    let of = format!("row {} of shard {}", count(found.row.into()), found.shard.short());
    let mut lines = vec![
        ("sample", format!("{} ({of})", count(found.sample))),
        ("epoch", found.epoch.to_string()),
        ("position", count(found.position)),
        ("partition", found.partition.to_string()),
        ("grain", count(found.grain)),
    ];
    lines.extend(step.map(|step| ("step", count(step))));
    lines.extend(found.virtual_rank.map(|v| ("virtual rank", v.to_string())));
    lines.extend(rank.map(|rank| ("rank", rank.to_string())));
    facts(&lines)
}

fn list(uses: &[Use]) -> String {
    let mut table = Table::new(&["epoch", "position", "partition", "step", "virtual rank", "rank"]);
    for Use { found, step, rank } in uses {
        let or_none = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), count);
        table.row([
            found.epoch.to_string(),
            count(found.position),
            found.partition.to_string(),
            or_none(*step),
            or_none(found.virtual_rank.map(u64::from)),
            or_none(rank.map(u64::from)),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_a_range_or_a_number_of_them() {
        let range = |text: &str| text.parse::<EpochRange>().map(EpochRange::range);
        assert_eq!(range("3..7"), Ok(3..7));
        assert_eq!(range("7"), Ok(0..7));
        for wrong in ["", "0", "7..7", "7..3", "..3", "3..", "-1", "1..x", "1..2..3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
