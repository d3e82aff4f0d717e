//! Forward and backward of a step's micro-batches, and the sums that leave for other ranks on the way.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};

use super::walk::{Open, Walk};
use super::{Begun, BucketSum, Engine, MicroBatch, Share, StepPlan, lock, reduce};
use crate::collective::{CollectiveError, sums};
use crate::compress::Circumstances;
use crate::optim::Optimizer;
use crate::random::Key;
use crate::reduce::{Partials, Pending, Reduction, all_reduce};
use crate::stage::to_numbers;
use crate::trace::Lane;

impl Engine {
    /// Forward and backward of these micro-batches.
    pub(super) fn run(
        &mut self,
        shares: Vec<Share<'_>>,
        plan: StepPlan,
        is_complete: bool,
    ) -> Result<(), CollectiveError> {
        assert_eq!(shares.len(), self.virtual_ranks().len(), "a share for every virtual rank");
        let mut begun = self.begun.take().unwrap_or_else(|| self.begin(plan));
        assert_eq!(begun.number, plan.number, "the step begun is completed first");
        let parameters = self.tensors();
        if self.model.stages.iter().any(|stage| stage.summary_len() > 0) {
            self.run_side_by_side(shares, &parameters, &mut begun, is_complete)?;
        } else {
            self.run_one_by_one(shares, &parameters, &mut begun, is_complete);
        }
        self.begun = Some(begun);
        Ok(())
    }

    fn begin(&self, StepPlan { number, epoch, .. }: StepPlan) -> Begun {
        let (hosted, buckets) = (self.virtual_ranks().len(), self.buckets.count());
        Begun {
            number,
            epoch,
            running: self.running.clone(),
            carried: vec![vec![None; buckets]; hosted],
            scalars: vec![[0.0; 3]; hosted],
            micro_batches: vec![0; hosted],
            sums: (0..buckets).map(|bucket| self.no_sum(bucket)).collect(),
            reductions: Vec::with_capacity(buckets),
        }
    }

    /// A virtual rank goes all the way forward and back before the next one begins: only one graph exists at a time.
    fn run_one_by_one(
        &mut self,
        shares: Vec<Share<'_>>,
        parameters: &[Vec<Tensor<1>>],
        begun: &mut Begun,
        is_complete: bool,
    ) {
        for (index, share) in shares.into_iter().enumerate() {
            let last = share.len().wrapping_sub(1);
            if share.is_empty() && is_complete {
                (0..self.buckets.count()).for_each(|bucket| self.deliver(begun, index, bucket, None, true));
            }
            for (at, micro_batch) in share.into_iter().enumerate() {
                let is_last = is_complete && at == last;
                let key = self.next_key(begun, index);
                let mut walk = Walk::new(micro_batch.input, key);
                for (block, parameters) in parameters.iter().enumerate() {
                    self.forward(&mut walk, index, block, parameters, None);
                }
                begun.measure(index, walk.turn(micro_batch.measure));
                for block in (0..self.model.stages.len()).rev() {
                    let open = self.backward(&mut walk, block);
                    debug_assert!(open.is_none(), "no block has a summary");
                    if let Some(bucket) = self.buckets.completed_by(block) {
                        self.deliver(begun, index, bucket, Some(std::mem::take(&mut walk.gradient)), is_last);
                    }
                }
            }
        }
    }

    /// All virtual ranks, of this rank and of the others, go through a block before any enters the next: for blocks that need sums over
    /// them all.
    fn run_side_by_side(
        &mut self,
        shares: Vec<Share<'_>>,
        parameters: &[Vec<Tensor<1>>],
        begun: &mut Begun,
        is_complete: bool,
    ) -> Result<(), CollectiveError> {
        let longest = shares.iter().map(Vec::len).max().unwrap_or(0);
        let rounds = self.largest(longest as u64)?;
        let mut shares: Vec<_> = shares.into_iter().map(Vec::into_iter).collect();
        for round in 0..rounds {
            let is_last = is_complete && round + 1 == rounds;
            let (mut walks, mut measures) = (Vec::new(), Vec::new());
            for (index, share) in shares.iter_mut().enumerate() {
                let (walk, measure) = match share.next() {
                    Some(MicroBatch { input, measure }) => {
                        (Some(Walk::new(input, self.next_key(begun, index))), Some(measure))
                    }
                    None => (None, None),
                };
                walks.push(walk);
                measures.push(measure);
            }
            for (block, parameters) in parameters.iter().enumerate() {
                let total = self.summary(block, parameters, &walks)?;
                for (index, walk) in walks.iter_mut().enumerate() {
                    let Some(walk) = walk else { continue };
                    self.forward(walk, index, block, parameters, total.clone());
                }
            }
            for (index, (walk, measure)) in walks.iter_mut().zip(measures).enumerate() {
                if let (Some(walk), Some(measure)) = (walk, measure) {
                    begun.measure(index, walk.turn(measure));
                }
            }
            for block in (0..self.model.stages.len()).rev() {
                let back = |walk: &mut Option<Walk>| self.backward(walk.as_mut()?, block);
                let open: Vec<Option<Open>> = walks.iter_mut().map(back).collect();
                self.close(block, &mut walks, open)?;
                let Some(bucket) = self.buckets.completed_by(block) else { continue };
                for (index, walk) in walks.iter_mut().enumerate() {
                    let gradient = walk.as_mut().map(|walk| std::mem::take(&mut walk.gradient));
                    self.deliver(begun, index, bucket, gradient, is_last);
                }
            }
        }
        if rounds == 0 && is_complete {
            for bucket in 0..self.buckets.count() {
                for index in 0..shares.len() {
                    self.deliver(begun, index, bucket, None, true);
                }
            }
        }
        Ok(())
    }

    /// The largest of what all ranks bring.
    fn largest(&self, mine: u64) -> Result<u64, CollectiveError> {
        let all = self.comm.run(move |collective| collective.all_gather(&mine.to_le_bytes()))?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        let malformed = |rank: usize| CollectiveError::Malformed {
            rank: rank as u32,
            what: "not a number of micro-batches".to_owned(),
        };
        let numbers =
            all.iter().enumerate().map(|(rank, it)| number(it.bytes()).map_err(|_| malformed(rank)));
        numbers.collect::<Result<Vec<u64>, _>>().map(|all| all.into_iter().max().unwrap_or(mine))
    }

    /// Of a block that asks for one, the sum over all virtual ranks.
    fn summary(
        &self,
        block: usize,
        parameters: &[Tensor<1>],
        walks: &[Option<Walk>],
    ) -> Result<Option<Tensor<1>>, CollectiveError> {
        let stage = &self.model.stages[block];
        let length = stage.summary_len();
        if length == 0 {
            return Ok(None);
        }
        let summary = |(index, walk): (usize, &Option<Walk>)| match walk {
            Some(walk) => {
                let loaded = stage.load(parameters, &self.running[index][block], true);
                to_numbers(walk.summary(&*loaded))
            }
            None => vec![0.0; length],
        };
        self.sum_over_all(walks.iter().enumerate().map(summary)).map(Some)
    }

    /// Sends back what flows through the sums of a block's summaries.
    fn close(
        &self,
        block: usize,
        walks: &mut [Option<Walk>],
        open: Vec<Option<Open>>,
    ) -> Result<(), CollectiveError> {
        let length = self.model.stages[block].summary_len();
        if length == 0 {
            return Ok(());
        }
        let shares = open.iter().map(|open| match open {
            Some(open) => to_numbers(open.share.clone()),
            None => vec![0.0; length],
        });
        let gradient = self.sum_over_all(shares)?;
        for (walk, open) in walks.iter_mut().zip(open) {
            if let (Some(walk), Some(open)) = (walk, open) {
                walk.close(open, gradient.clone());
            }
        }
        Ok(())
    }

    /// The sum of the numbers of all virtual ranks, in the order of the tree.
    fn sum_over_all(&self, mine: impl Iterator<Item = Vec<f32>>) -> Result<Tensor<1>, CollectiveError> {
        let mut partials = Partials::new(self.ranks.count);
        for (virtual_rank, numbers) in self.virtual_ranks().zip(mine) {
            partials.push(virtual_rank, numbers);
        }
        let total = reduce(&self.comm, self.ranks, partials).wait()?;
        let count = [total.len()];
        Ok(Tensor::from_data(TensorData::new(total, count), &self.device))
    }

    /// The key of a virtual rank's next micro-batch: of the training, the step, the virtual rank, and the place in the step.
    fn next_key(&self, begun: &mut Begun, index: usize) -> Key {
        let virtual_rank = self.virtual_ranks().start + index as u32;
        let place = &mut begun.micro_batches[index];
        *place += 1;
        self.key.of(begun.number).of(virtual_rank.into()).of(*place - 1)
    }

    fn forward(
        &mut self,
        walk: &mut Walk,
        index: usize,
        block: usize,
        parameters: &[Tensor<1>],
        total: Option<Tensor<1>>,
    ) {
        let _span = self.tracer.span(Lane::Compute, || format!("forward {block}"));
        let running = &mut self.running[index][block];
        let loaded = self.model.stages[block].load(parameters, running, true);
        // Before the first trained parameters there is nothing to go back for.
        let first = self.blocks.iter().position(|block| !block.trained.is_empty()).unwrap_or(0);
        *running = walk.forward(loaded, block > first, total);
    }

    fn backward(&self, walk: &mut Walk, block: usize) -> Option<Open> {
        let _span = self.tracer.span(Lane::Compute, || format!("backward {block}"));
        walk.backward()
    }

    /// Takes a micro-batch's gradient of a bucket (`None` without a sample). With the last micro-batch of the last virtual rank, the bucket
    /// goes to the other ranks.
    fn deliver(
        &self,
        begun: &mut Begun,
        index: usize,
        bucket: usize,
        gradient: Option<Vec<f32>>,
        is_last: bool,
    ) {
        let carried = &mut begun.carried[index][bucket];
        let sum = match (carried.take(), gradient) {
            (Some(mut sum), Some(gradient)) => {
                sum.iter_mut().zip(gradient).for_each(|(sum, number)| *sum += number);
                Some(sum)
            }
            (one, other) => one.or(other),
        };
        if !is_last {
            *carried = sum;
            return;
        }
        let hosted = self.virtual_ranks();
        let virtual_rank = hosted.start + index as u32;
        let sum = sum.unwrap_or_else(|| vec![0.0; self.buckets.len(bucket)]);
        match &mut begun.sums[bucket] {
            BucketSum::Exact(partials) => partials.push(virtual_rank, sum),
            BucketSum::Fast(total) => total.iter_mut().zip(sum).for_each(|(total, number)| *total += number),
        }
        if virtual_rank + 1 == hosted.end {
            let sum = std::mem::replace(&mut begun.sums[bucket], self.no_sum(bucket));
            let samples: f64 = begun.scalars.iter().map(|[_, _, samples]| samples).sum();
            begun.reductions.push(self.reduce(bucket, sum, begun.epoch, samples));
        }
    }

    /// Of no virtual rank.
    pub(super) fn no_sum(&self, bucket: usize) -> BucketSum {
        match self.reduction {
            Reduction::Exact => BucketSum::Exact(Partials::new(self.ranks.count)),
            Reduction::Fast(_) => BucketSum::Fast(vec![0.0; self.buckets.len(bucket)]),
        }
    }

    /// Sends a bucket on its way, with the gradients of so many samples of this rank.
    fn reduce(&self, bucket: usize, sum: BucketSum, epoch: u32, samples: f64) -> Pending<Vec<f32>> {
        let (ranks, tracer) = (self.ranks, self.tracer.clone());
        // The moment at which it is handed over lies among what is computed.
        drop(self.tracer.span(Lane::Compute, || format!("send bucket {bucket}")));
        let sum = match sum {
            BucketSum::Exact(partials) => {
                return self.comm.submit(move |collective| {
                    let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                    all_reduce(collective, ranks, partials)
                });
            }
            BucketSum::Fast(sum) => sum,
        };
        let Some(compressor) = self.compressors.get(bucket).map(Arc::clone) else {
            return self.comm.submit(move |collective| {
                let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                let mut sum = sum;
                sums::all_reduce(collective, &mut sum)?;
                Ok(sum)
            });
        };
        let momentum = match self.rule.optimizer {
            Optimizer::Sgd { momentum, .. } => momentum,
            _ => 0.0,
        };
        // The limit is for the mean over the samples of all ranks, of which this rank knows its own.
        let all = samples * f64::from(self.comm.world());
        let clip = self.rule.clip.map(|limit| (f64::from(limit) * all) as f32);
        let circumstances = Circumstances { epoch, momentum, clip };
        self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("compress and reduce bucket {bucket}"));
            lock(&compressor).all_reduce(collective, sum, circumstances)
        })
    }
}
