//! The size of a step, and the number of its shares: from flags, from a checkpoint, or a default that follows
//! from the plan and the global batch. How many ranks there are decides nothing, only whether they can share
//! it. Pure.

use shardd_plan::{Plan, PlanError};

use crate::args::{Args, UsageError};

/// Samples of a step, by default.
const GLOBAL_BATCH: u64 = 64;

/// How a step is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// V.
    pub(super) virtual_ranks: u32,
    /// Samples of all of them.
    pub(super) global_batch: u64,
}

/// The settings of the command line for it.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    world: u32,
    virtual_ranks: Option<u32>,
    global_batch: Option<u64>,
    micro_batch: Option<u64>,
}

impl Shares {
    /// What `args` ask for; `kept` is the V of the checkpoint that is resumed from.
    pub(super) fn of(args: &Args, plan: &Plan, kept: Option<u32>) -> Result<Shares, UsageError> {
        let asked = Asked {
            world: args.world,
            virtual_ranks: args.virtual_ranks.or(kept),
            global_batch: args.global_batch_size.map(u64::from),
            micro_batch: args.micro_batch_size.map(u64::from),
        };
        asked.shares(plan).map_err(UsageError)
    }
}

impl Asked {
    fn shares(self, plan: &Plan) -> Result<Shares, String> {
        let size = self.global_batch.unwrap_or(GLOBAL_BATCH);
        let virtual_ranks = match (self.virtual_ranks, self.micro_batch) {
            (Some(virtual_ranks), _) => virtual_ranks,
            (None, Some(micro_batch)) if self.global_batch.is_some() => {
                self.of_at_most(micro_batch, size, plan)?
            }
            (None, _) => plan.default_virtual_ranks(size),
        };
        plan.check_ranks(self.world, virtual_ranks).map_err(|error| self.refusal(&error, plan))?;
        let global_batch = match (self.global_batch, self.micro_batch) {
            (None, Some(micro_batch)) => u64::from(virtual_ranks) * micro_batch,
            _ => size,
        };
        let share = global_batch.div_ceil(virtual_ranks.into());
        match self.micro_batch {
            _ if global_batch < u64::from(virtual_ranks) => Err(format!(
                "--global-batch-size {global_batch} leaves some of {virtual_ranks} virtual ranks without samples: give \
                 {virtual_ranks} or more, or fewer --virtual-ranks"
            )),
            Some(micro_batch) if share > micro_batch => Err(format!(
                "each of {virtual_ranks} virtual ranks reads {share} samples of a step of {global_batch}, and --micro-batch-size is \
                 {micro_batch}: give --global-batch-size {}, or leave one of the three out",
                micro_batch.saturating_mul(virtual_ranks.into())
            )),
            _ => Ok(Shares { virtual_ranks, global_batch }),
        }
    }

    /// The fewest virtual ranks that read no more than `micro_batch` each, and that the ranks can share.
    fn of_at_most(self, micro_batch: u64, size: u64, plan: &Plan) -> Result<u32, String> {
        plan.virtual_ranks_of_at_most(micro_batch, size).ok_or_else(|| {
            let partitions = plan.document().partitions;
            let most = micro_batch.saturating_mul(partitions.into());
            format!(
                "a step of {size} samples in micro-batches of {micro_batch} takes more virtual ranks than the {partitions} partitions of \
                 the plan: give --global-batch-size {most} or less, --micro-batch-size {} or more, or a plan with more partitions",
                size.div_ceil(partitions.into())
            )
        })
    }

    /// Why the ranks cannot share the virtual ranks, with the nearest global batch whose default they can.
    fn refusal(self, error: &PlanError, plan: &Plan) -> String {
        let nearest = plan.least_global_batch(self.world);
        match (self.virtual_ranks, self.micro_batch, error, nearest) {
            (None, None, PlanError::World { .. }, Some(size)) => {
                format!("{error}; the default is enough from --global-batch-size {size} on")
            }
            _ => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use shardd_plan::{PlanDocument, PlanOptions, Shape};
    use shardfmt::VersionId;

    use super::*;

    fn plan(partitions: u32) -> Plan {
        let shape = Shape { shard_rows: vec![9600], row_bytes: 1 << 20 };
        let options = PlanOptions { partitions: Some(partitions), ..PlanOptions::default() };
        let document =
            PlanDocument::with_defaults(VersionId::of(b"shares"), &shape, options).expect("it fits");
        Plan::new(document, &shape.shard_rows).expect("it fits")
    }

    fn cut(plan: &Plan, asked: Asked) -> Result<(u32, u64), String> {
        asked.shares(plan).map(|shares| (shares.virtual_ranks, shares.global_batch))
    }

    #[test]
    fn how_a_step_is_cut_does_not_depend_on_how_many_ranks_there_are() {
        let plan = plan(96);
        for (global_batch, micro_batch, shares) in [
            (None, None, (8, 64)),
            (Some(64), None, (8, 64)),
            (Some(384), None, (24, 384)),
            (Some(4096), None, (24, 4096)),
            (None, Some(16), (8, 128)),
            (Some(64), Some(6), (12, 64)),
            (Some(512), Some(32), (16, 512)),
        ] {
            for world in [1, 2, 3, 4, 6, 8] {
                let asked = Asked { world, global_batch, micro_batch, virtual_ranks: None };
                assert_eq!(cut(&plan, asked), Ok(shares), "{asked:?}");
            }
        }
        let given = Asked { world: 2, virtual_ranks: Some(4), ..Asked::default() };
        assert_eq!(cut(&plan, given), Ok((4, 64)));
        assert_eq!(cut(&plan, Asked { micro_batch: Some(16), ..given }), Ok((4, 64)));
        assert_eq!(cut(&plan, Asked { global_batch: Some(66), micro_batch: Some(17), ..given }), Ok((4, 66)));
    }

    #[test]
    fn what_cannot_be_cut_is_refused_with_the_nearest_that_can() {
        let asked = |world| Asked { world, ..Asked::default() };
        let refused = |partitions, asked| cut(&plan(partitions), asked).expect_err("it does not fit");
        let many = refused(96, asked(12));
        assert!(many.starts_with("12 ranks cannot share 8 virtual ranks"), "{many}");
        assert!(many.ends_with("the default is enough from --global-batch-size 192 on"), "{many}");
        let few = refused(96, Asked { global_batch: Some(16), ..asked(3) });
        assert!(few.ends_with("the default is enough from --global-batch-size 24 on"), "{few}");
        let small = Asked { global_batch: Some(5), virtual_ranks: Some(6), ..asked(1) };
        assert!(refused(96, small).contains("give 6 or more"));
        let three =
            Asked { global_batch: Some(64), micro_batch: Some(8), virtual_ranks: Some(4), ..asked(1) };
        assert!(refused(96, three).contains("give --global-batch-size 32"));
        let tiny = Asked { global_batch: Some(64), micro_batch: Some(1), ..asked(1) };
        assert!(refused(12, tiny).contains("--global-batch-size 12 or less, --micro-batch-size 6 or more"));
    }
}
