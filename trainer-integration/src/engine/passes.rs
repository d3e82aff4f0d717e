//! Forward and backward of a step's micro-batches, and the sums that leave for other ranks on the way.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock};

use blake3::Hasher;
use burn::tensor::Tensor;
use shardd_kernels::{Level, largest_exponent};
use tracing::warn;

use super::block::BlockState;
use super::gather::Lent;
use super::memory::{Piece, at_once, is_out_of_memory, pieces, wait_for_memory};
use super::scatter::Scatter;
use super::walk::{Gradient, Open, Walk};
use super::{
    BucketSum, Engine, EngineError, Measure, MicroBatch, Reduced, Reducing, Share, StepInProgress, StepPlan,
    lock, reduce,
};
use crate::collective::numbers::add_right;
use crate::collective::sums::all_reduce_in;
use crate::collective::{CollectiveError, slice_of, sums};
use crate::compress::{Circumstances, Compressor};
use crate::dtype::ReduceDtype;
use crate::flat_block::{Use, from_numbers, to_numbers};
use crate::ledger::{Kind, Numbers};
use crate::loss::Losses;
use crate::optim::Optimizer;
use crate::random::Key;
use crate::reduce::fixed::{self, FixedSum, Scales};
use crate::reduce::rounded::{rounded, widen};
use crate::reduce::{Partials, Reduction, VirtualRanks, all_reduce};
use crate::trace::Lane;
use crate::zero::Zero;

/// The use of a call's gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    /// The step is complete with them.
    pub(super) is_complete: bool,
    /// They are sent.
    pub(super) sends: bool,
}

impl Engine {
    /// Forward and backward of these micro-batches.
    pub(super) fn run(
        &mut self,
        shares: Vec<Share<'_>>,
        plan: StepPlan,
        is_complete: bool,
    ) -> Result<(), EngineError> {
        assert_eq!(shares.len(), self.virtual_ranks().len(), "a share for every virtual rank");
        let mut begun = self.begun.take().unwrap_or_else(|| self.begin(plan));
        assert_eq!(begun.number, plan.number, "the step begun is completed first");
        let closing = Closing { is_complete, sends: is_complete || self.sends_at_once() };
        let outcome = if self.slices.zero == Zero::Parameters {
            self.run_sliced(shares, &mut begun, closing)
        } else {
            let mut lent = self.lend();
            let outcome = if self.is_side_by_side() {
                self.run_side_by_side(shares, &mut lent, &mut begun, closing)
            } else {
                self.run_one_by_one(shares, &mut lent, &mut begun, closing)
            };
            self.take_back(lent);
            outcome
        };
        if outcome.is_err() {
            self.running = begun.running;
            return outcome;
        }
        self.begun = Some(begun);
        Ok(())
    }

    /// Whether gradients are not kept until a step is complete: added up in any order, they are sent by every call.
    fn sends_at_once(&self) -> bool {
        self.slices.zero >= Zero::Gradients && matches!(self.reducer.reduction, Reduction::Fast(_))
    }

    /// Whether there are blocks that need sums over all virtual ranks.
    pub(super) fn is_side_by_side(&self) -> bool {
        self.model.stages.iter().any(|stage| stage.summary_len() > 0)
    }

    fn begin(&self, StepPlan { number, epoch, .. }: StepPlan) -> StepInProgress {
        let (hosted, buckets) = (self.virtual_ranks().len(), self.reducer.buckets.count());
        let (there, is_exact) = (self.begin_there(), self.reducer.reduction == Reduction::Exact);
        StepInProgress {
            number,
            epoch,
            running: self.running.clone(),
            carried: vec![vec![None; buckets]; hosted],
            scalars: vec![[0.0; 3]; hosted],
            losses: vec![Vec::new(); hosted],
            micro_batches: vec![0; hosted],
            // Of gradients that are added up on a device in any order there are none by virtual rank.
            hashers: vec![
                Hasher::new();
                if self.notes.digests && (is_exact || there.is_none()) { hosted } else { 0 }
            ],
            samples: None,
            there,
            sums: (0..buckets).map(|bucket| self.no_sum(bucket)).collect(),
            reductions: Vec::with_capacity(buckets),
            sliced: (0..buckets).map(|_| None).collect(),
            largest: vec![0; if self.sums_whole() { self.reducer.ranges.len() } else { 0 }],
        }
    }

    /// A virtual rank goes all the way forward and back before the next one begins: only one graph exists at a time.
    fn run_one_by_one(
        &mut self,
        shares: Vec<Share<'_>>,
        lent: &mut Lent,
        begun: &mut StepInProgress,
        closing: Closing,
    ) -> Result<(), EngineError> {
        for (index, share) in shares.into_iter().enumerate() {
            let last = share.len().wrapping_sub(1);
            if share.is_empty() && closing.sends {
                for bucket in 0..self.reducer.buckets.count() {
                    self.deliver(begun, index, bucket, None, true)?;
                }
            }
            for (at, micro_batch) in share.into_iter().enumerate() {
                let key = self.next_key(begun, index);
                let is_last = closing.sends && at == last;
                self.pass(&micro_batch, key, lent, begun, (index, is_last))?;
            }
        }
        Ok(())
    }

    /// Forward and backward of a micro-batch; in pieces, if the device has no memory for all of its rows.
    fn pass(
        &mut self,
        micro_batch: &MicroBatch<'_>,
        key: Key,
        lent: &mut Lent,
        begun: &mut StepInProgress,
        (index, is_last): (usize, bool),
    ) -> Result<(), EngineError> {
        let rows = micro_batch.rows();
        let is_divisible = micro_batch.is_divisible && matches!(self.reducer.reduction, Reduction::Fast(_));
        let at_most = self.compute.most_rows.filter(|_| is_divisible);
        let mut left = pieces(rows.unwrap_or(1), at_most);
        while let Some(mut piece) = left.pop_front() {
            let is_last = is_last && left.is_empty();
            let running = self.running[index].clone();
            let mut sent = Ok(());
            self.begin_proof(piece.rows.len());
            let attempt = || {
                let whole = 0..rows.unwrap_or(1);
                let (input, key) = if piece.rows == whole {
                    (micro_batch.input.clone(), key)
                } else {
                    let cut = micro_batch.input.iter().map(|part| part.rows(piece.rows.clone()));
                    (cut.collect(), key.of(piece.rows.start as u64))
                };
                let walk = Walk::new(self.at_precision(input), key, self.no_gradient(), self.compute.scale);
                sent = self.walk(walk, micro_batch, &mut piece, lent, begun, (index, is_last));
            };
            // Whatever was on its way is dropped; the piece knows its finished buckets.
            let Err(panic) = catch_unwind(AssertUnwindSafe(attempt)) else {
                sent?;
                self.end_proof(piece.rows.len());
                continue;
            };
            if !is_out_of_memory(&*panic) {
                resume_unwind(panic);
            }
            self.running[index] = running;
            let halves = piece.halves().filter(|_| is_divisible);
            let Some([first, second]) = halves else {
                let way_out = match self.reducer.reduction {
                    Reduction::Exact => ", or --reduce fast, which cuts them",
                    Reduction::Fast(_) => "",
                };
                let rows = if rows.is_some() { piece.rows.len() } else { 1 };
                return Err(EngineError::OutOfMemory { rows, way_out });
            };
            let at_most = first.rows.len();
            warn!(at_most, "the device has no memory for more rows at once; micro-batches are cut");
            self.compute.most_rows =
                Some(self.compute.most_rows.map_or(at_most, |before| before.min(at_most)));
            left.push_front(second);
            left.push_front(first);
        }
        Ok(())
    }

    /// Before as many rows go through the model at once: if they are more than before, the device may have no memory for them.
    pub(super) fn begin_proof(&mut self, rows: usize) {
        self.compute.proves = rows > self.compute.proven_rows;
    }

    /// They did.
    pub(super) fn end_proof(&mut self, rows: usize) {
        self.compute.proves = false;
        self.compute.proven_rows = self.compute.proven_rows.max(rows);
    }

    fn walk(
        &mut self,
        mut walk: Walk,
        micro_batch: &MicroBatch<'_>,
        piece: &mut Piece,
        lent: &mut Lent,
        begun: &mut StepInProgress,
        (index, is_last): (usize, bool),
    ) -> Result<(), CollectiveError> {
        for block in 0..self.model.stages.len() {
            let parameters = self.tensors(lent, block)?;
            self.forward(&mut walk, index, block, parameters, None);
        }
        let rows = micro_batch.rows().unwrap_or(1);
        let measured = walk.turn(|output| (micro_batch.measure)(output, piece.rows.clone(), rows));
        if let (true, Losses::There(losses)) = (self.compute.proves, &measured.losses) {
            wait_for_memory(std::slice::from_ref(losses));
        }
        if !std::mem::replace(&mut piece.is_measured, true) {
            begun.measure(index, measured);
        }
        for block in (0..self.model.stages.len()).rev() {
            if self.is_gone_back(block) {
                let open = self.backward(&mut walk, block);
                debug_assert!(open.is_none(), "no block has a summary");
            }
            let Some(bucket) = self.reducer.buckets.completed_by(block) else { continue };
            let gradient = walk.gradient.take();
            if bucket >= piece.buckets {
                self.deliver(begun, index, bucket, Some(gradient), is_last)?;
                piece.buckets = bucket + 1;
            }
        }
        Ok(())
    }

    /// All virtual ranks, of this rank and of the others, go through a block before any enters the next: for blocks that need sums over
    /// them all.
    fn run_side_by_side(
        &mut self,
        shares: Vec<Share<'_>>,
        lent: &mut Lent,
        begun: &mut StepInProgress,
        closing: Closing,
    ) -> Result<(), EngineError> {
        let longest = shares.iter().map(Vec::len).max().unwrap_or(0);
        let rounds = self.largest(longest, begun.number, closing.is_complete)?;
        let mut shares: Vec<_> = shares.into_iter().map(Vec::into_iter).collect();
        for round in 0..rounds {
            let is_last = closing.sends && round + 1 == rounds;
            let (mut walks, mut measures) = (Vec::new(), Vec::new());
            for (index, share) in shares.iter_mut().enumerate() {
                let (walk, measure) = match share.next() {
                    Some(MicroBatch { input, measure, .. }) => {
                        let rows = input.first().and_then(|part| part.shape().first().copied());
                        let (input, key) = (self.at_precision(input), self.next_key(begun, index));
                        let walk = Walk::new(input, key, self.no_gradient(), self.compute.scale);
                        (Some(walk), Some((measure, rows.unwrap_or(1))))
                    }
                    None => (None, None),
                };
                walks.push(walk);
                measures.push(measure);
            }
            let rows = measures.iter().flatten().map(|(_, rows)| rows).sum();
            self.begin_proof(rows);
            at_once(rows, || self.side_by_side(walks, measures, lent, begun, is_last))?;
            self.end_proof(rows);
        }
        if rounds == 0 && closing.sends {
            self.deliver_nothing(begun)?;
        }
        Ok(())
    }

    /// A micro-batch of each virtual rank that has one, forward and back.
    fn side_by_side(
        &mut self,
        mut walks: Vec<Option<Walk>>,
        measures: Vec<Option<(Measure<'_>, usize)>>,
        lent: &mut Lent,
        begun: &mut StepInProgress,
        is_last: bool,
    ) -> Result<(), CollectiveError> {
        for block in 0..self.model.stages.len() {
            let parameters = self.tensors(lent, block)?;
            let total = self.summary(block, parameters, walks.iter().map(Option::as_ref).enumerate())?;
            for (index, walk) in walks.iter_mut().enumerate() {
                let Some(walk) = walk else { continue };
                self.forward(walk, index, block, parameters, total.clone());
            }
        }
        for (index, (walk, measure)) in walks.iter_mut().zip(measures).enumerate() {
            if let (Some(walk), Some((measure, rows))) = (walk, measure) {
                begun.measure(index, walk.turn(|output| measure(output, 0..rows, rows)));
            }
        }
        for block in (0..self.model.stages.len()).rev() {
            if self.is_gone_back(block) {
                let back = |walk: &mut Option<Walk>| self.backward(walk.as_mut()?, block);
                let open: Vec<Option<Open>> = walks.iter_mut().map(back).collect();
                self.close(block, walks.iter_mut().map(Option::as_mut), open)?;
            }
            let Some(bucket) = self.reducer.buckets.completed_by(block) else { continue };
            for (index, walk) in walks.iter_mut().enumerate() {
                let gradient = walk.as_mut().map(|walk| walk.gradient.take());
                self.deliver(begun, index, bucket, gradient, is_last)?;
            }
        }
        Ok(())
    }

    /// No virtual rank of this rank has anything to add.
    pub(super) fn deliver_nothing(&mut self, begun: &mut StepInProgress) -> Result<(), CollectiveError> {
        for bucket in 0..self.reducer.buckets.count() {
            for index in 0..self.virtual_ranks().len() {
                self.deliver(begun, index, bucket, None, true)?;
            }
        }
        Ok(())
    }

    /// The largest number of micro-batches of a virtual rank, on all ranks, which must be at the same call of the same step.
    pub(super) fn largest(
        &self,
        mine: usize,
        number: u64,
        is_complete: bool,
    ) -> Result<u64, CollectiveError> {
        let call = [mine as u64, number, u64::from(is_complete)];
        let all = self.comm.run(move |collective| collective.all_gather(bytemuck::cast_slice(&call)))?;
        let mut largest = 0;
        for (rank, message) in all.iter().enumerate() {
            let theirs = message.numbers::<u64>();
            match theirs.as_deref() {
                Some(&[count, of, completes]) if (of, completes) == (call[1], call[2]) => {
                    largest = largest.max(count);
                }
                _ => {
                    let what = "it is at another micro-batch or step: with ZeRO stage 3, and with models that sum over all virtual ranks, all ranks make the same calls";
                    return Err(CollectiveError::Malformed { rank: rank as u32, what: what.to_owned() });
                }
            }
        }
        Ok(largest)
    }

    /// Of a block that asks for one, the sum over all virtual ranks.
    pub(super) fn summary<'a>(
        &self,
        block: usize,
        parameters: &[Tensor<1>],
        walks: impl Iterator<Item = (usize, Option<&'a Walk>)>,
    ) -> Result<Option<Tensor<1>>, CollectiveError> {
        let stage = &self.model.stages[block];
        let length = stage.summary_len();
        if length == 0 {
            return Ok(None);
        }
        let summary = |(index, walk): (usize, Option<&Walk>)| match walk {
            Some(walk) => {
                let loaded = stage.load(parameters, &self.running[index][block], Use::Forward);
                to_numbers(walk.summary(&*loaded))
            }
            None => vec![0.0; length],
        };
        self.sum_over_all(walks.map(summary)).map(Some)
    }

    /// Sends back what flows through the sums of a block's summaries.
    pub(super) fn close<'a>(
        &self,
        block: usize,
        walks: impl Iterator<Item = Option<&'a mut Walk>>,
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
        for (walk, open) in walks.zip(open) {
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
        Ok(from_numbers(total.into_values(), &self.compute.device))
    }

    /// The key of a virtual rank's next micro-batch: of the training, the step, the virtual rank, and the place in the step.
    pub(super) fn next_key(&self, begun: &mut StepInProgress, index: usize) -> Key {
        let virtual_rank = self.virtual_ranks().start + index as u32;
        let place = &mut begun.micro_batches[index];
        *place += 1;
        self.key.of(begun.number).of(virtual_rank.into()).of(*place - 1)
    }

    pub(super) fn forward(
        &mut self,
        walk: &mut Walk,
        index: usize,
        block: usize,
        parameters: &[Tensor<1>],
        total: Option<Tensor<1>>,
    ) {
        let _span = self.times.tracer.span(Lane::Compute, || format!("forward {block}"));
        let (is_gone_back, stage) = (self.is_gone_back(block), &self.model.stages[block]);
        let running = &mut self.running[index][block];
        *running = if is_gone_back {
            let loaded = stage.load(parameters, running, Use::Training);
            walk.forward(block, loaded, block > self.compute.first_trained, total)
        } else {
            walk.pass_frozen(block, &*stage.load(parameters, running, Use::Forward), total)
        };
    }

    /// Whether gradients flow back into the block: not where it and all blocks before it are frozen.
    pub(super) fn is_gone_back(&self, block: usize) -> bool {
        block >= self.compute.first_trained
    }

    pub(super) fn backward(&mut self, walk: &mut Walk, block: usize) -> Option<Open> {
        if let Gradient::Host(numbers) = &mut walk.gradient
            && numbers.capacity() == 0
        {
            *numbers = self.room_for(self.reducer.buckets.with(block));
        }
        let _span = self.times.tracer.span(Lane::Compute, || format!("backward {block}"));
        walk.backward()
    }

    /// Takes a micro-batch's gradient of a bucket (`None` without a sample). With the last micro-batch of the last virtual rank, the bucket
    /// goes to the other ranks.
    pub(super) fn deliver(
        &mut self,
        begun: &mut StepInProgress,
        index: usize,
        bucket: usize,
        gradient: Option<Gradient>,
        is_last: bool,
    ) -> Result<(), CollectiveError> {
        if let (true, Some(Gradient::Device(tensors))) = (self.compute.proves, &gradient) {
            wait_for_memory(tensors);
        }
        let gradient = match gradient {
            Some(Gradient::Host(numbers)) => Some(numbers),
            None if begun.there.is_none() => None,
            there => return self.deliver_there(begun, index, bucket, there, is_last),
        };
        let carried = &mut begun.carried[index][bucket];
        let sum = match (carried.take(), gradient) {
            (Some(mut sum), Some(gradient)) => {
                add_right(&mut sum, &gradient);
                Some(sum)
            }
            (one, other) => one.or(other),
        };
        if !is_last {
            *carried = sum;
            return Ok(());
        }
        let hosted = self.virtual_ranks();
        let virtual_rank = hosted.start + index as u32;
        let sum = sum.unwrap_or_else(|| self.no_numbers(bucket));
        if let Some(hasher) = begun.hashers.get_mut(index) {
            let _span = self.times.tracer.span(Lane::Compute, || format!("digest bucket {bucket}"));
            digest(hasher, bytemuck::cast_slice(&sum));
        }
        if !begun.largest.is_empty() {
            self.note_largest(bucket, &sum, &mut begun.largest);
        }
        match &mut begun.sums[bucket] {
            BucketSum::Exact(fixed) => {
                for room in fixed.push(sum) {
                    self.spare.return_gradient(bucket, room);
                }
            }
            BucketSum::Rounded(partials) => {
                partials.push(virtual_rank, rounded(&sum, &self.ledger));
                self.spare.return_gradient(bucket, sum);
            }
            BucketSum::Fast(Some(total)) => add_right(total, &sum),
            BucketSum::Fast(none) => *none = Some(sum),
            BucketSum::There(_) => unreachable!("these numbers are on the host"),
        }
        if virtual_rank + 1 < hosted.end {
            return Ok(());
        }
        let sum = std::mem::replace(&mut begun.sums[bucket], BucketSum::Fast(None));
        self.send(begun, bucket, sum)
    }

    /// Sends a bucket on its way, behind those before it.
    pub(super) fn send(
        &mut self,
        begun: &mut StepInProgress,
        bucket: usize,
        sum: BucketSum,
    ) -> Result<(), CollectiveError> {
        // The sum of two virtual ranks takes more memory than the first one's numbers, of which it is made bucket by bucket.
        let grows = self.sums_whole() && self.virtual_ranks().len() == 2;
        if (self.slices.zero >= Zero::Gradients || grows)
            && let Some(last) = begun.reductions.pop()
        {
            // No more than two buckets exist at once: this one waits for the one before it.
            let sum = self.wait_for(last)?;
            begun.reductions.push(Reducing::Done(Reduced { sum, spare: None }));
        }
        let reduction = self.reduce(bucket, sum, begun);
        begun.reductions.push(reduction);
        Ok(())
    }

    /// The gradient of a bucket without numbers.
    fn no_numbers(&mut self, bucket: usize) -> Numbers<f32> {
        let mut numbers = self.room_for(bucket);
        numbers.growing().resize(self.reducer.buckets.len(bucket), 0.0);
        numbers
    }

    /// Room for the gradient of a bucket; none for that of frozen blocks alone, which has no numbers.
    fn room_for(&mut self, bucket: usize) -> Numbers<f32> {
        match self.reducer.buckets.len(bucket) {
            0 => Numbers::default(),
            length => self.spare.gradients(bucket, length),
        }
    }

    /// Where gradients are to be, and none yet.
    pub(super) fn no_gradient(&self) -> Gradient {
        match self.keeps_gradients_there() {
            true => Gradient::Device(Vec::new()),
            false => Gradient::Host(Numbers::default()),
        }
    }

    /// Of no virtual rank.
    fn no_sum(&self, bucket: usize) -> BucketSum {
        match (self.reducer.reduction, self.reducer.reduce_dtype) {
            (Reduction::Exact, ReduceDtype::F32) => {
                BucketSum::Exact(FixedSum::new(self.scales(bucket), self.virtual_ranks().len(), &self.ledger))
            }
            (Reduction::Exact, ReduceDtype::Bf16) => BucketSum::Rounded(Partials::new(self.ranks.count)),
            (Reduction::Fast(_), _) => BucketSum::Fast(None),
        }
    }

    /// The trained parameters of a bucket in order: the place of each among those of all blocks, and its length.
    pub(super) fn trained_of(&self, bucket: usize) -> impl Iterator<Item = (usize, usize)> {
        self.reducer.buckets.places(bucket).flat_map(|(block, _)| {
            let before: usize = self.blocks[..block].iter().map(BlockState::trained_count).sum();
            self.blocks[block].trained_lengths().enumerate().map(move |(at, length)| (before + at, length))
        })
    }

    pub(super) fn scales(&self, bucket: usize) -> Scales {
        let places = |parameter| self.reducer.ranges.places(parameter, self.ranks.count);
        Scales::new(self.trained_of(bucket).map(|(parameter, length)| (length, places(parameter))))
    }

    /// Notes how large the numbers of a virtual rank are, parameter by parameter.
    fn note_largest(&self, bucket: usize, numbers: &[f32], largest: &mut [u8]) {
        let mut rest = numbers;
        for (parameter, length) in self.trained_of(bucket) {
            let (own, others) = rest.split_at(length);
            rest = others;
            largest[parameter] = largest[parameter].max(largest_exponent(Level::best(), own));
        }
    }

    /// Sends a bucket on its way.
    fn reduce(&mut self, bucket: usize, sum: BucketSum, begun: &mut StepInProgress) -> Reducing {
        if self.reducer.buckets.len(bucket) == 0 {
            // Of frozen blocks alone: there is nothing to send.
            return Reducing::Done(Reduced { sum: Numbers::default(), spare: None });
        }
        // The moment at which it is handed over lies in the compute lane.
        drop(self.times.tracer.span(Lane::Compute, || format!("send bucket {bucket}")));
        if self.slices.zero != Zero::Nothing {
            return self.reduce_slices(bucket, sum);
        }
        let (ranks, tracer, dtype) = (self.ranks, self.times.tracer.clone(), self.reducer.reduce_dtype);
        let table = self.reducer.table.clone();
        let compressor = self.reducer.compressors.get(bucket).map(Arc::clone);
        Reducing::UnderWay(match (sum, compressor) {
            (BucketSum::Exact(sum), _) => self.comm.submit(move |collective| {
                let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                Ok(Reduced { sum: fixed::all_reduce(collective, ranks, sum)?, spare: None })
            }),
            (BucketSum::Rounded(partials), _) => {
                let mut sum = self.spare.gradients(bucket, self.reducer.buckets.len(bucket));
                self.comm.submit(move |collective| {
                    let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                    widen(&all_reduce(collective, ranks, partials)?, &mut sum.growing());
                    Ok(Reduced { sum, spare: None })
                })
            }
            (BucketSum::Fast(sum), None) => self.comm.submit(move |collective| {
                let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
                let mut sum = sum.unwrap_or_default();
                all_reduce_in(dtype, table.as_deref(), collective, &mut sum)?;
                Ok(Reduced { sum, spare: None })
            }),
            (BucketSum::Fast(sum), Some(compressor)) => {
                let sum = sum.unwrap_or_default();
                return self.reduce_compressed(bucket, sum, &compressor, begun);
            }
            (BucketSum::There(_), _) => unreachable!("whole gradients on a device have sums of their own"),
        })
    }

    /// Has every rank add up its own slices of a bucket. Of what several ranks keep, each adds up a part, which the others are then given.
    fn reduce_slices(&mut self, bucket: usize, sum: BucketSum) -> Reducing {
        let (rank, world, tracer) = (self.comm.rank(), self.comm.world(), self.times.tracer.clone());
        let mesh = self.slices.mesh.clone();
        let places: Vec<_> = self.reducer.buckets.places(bucket).collect();
        let ownerships: Vec<_> = places.iter().map(|(block, _)| self.blocks[*block].ownership).collect();
        let kept = |place: u32| {
            let slices = ownerships.iter().zip(&places).map(|(ownership, (_, range))| {
                let slice = ownership.trained_of(place);
                range.start + slice.start..range.start + slice.end
            });
            slices.collect::<Vec<_>>()
        };
        let owned = |rank: u32| {
            let (group, place) = mesh.of(rank);
            let part = |slice: Range<usize>| {
                let part = slice_of(slice.len(), group, mesh.count());
                slice.start + part.start..slice.start + part.end
            };
            kept(place).into_iter().map(part).collect::<Vec<_>>()
        };
        let outlives = self.slices.zero == Zero::Moments;
        let scatter = Scatter {
            owned: (0..world).map(owned).collect(),
            kept: (0..mesh.size()).map(&kept).collect(),
            place: mesh.place(),
            replicas: mesh.replicas(),
            is_by_groups: mesh.count() > 1 && mesh.size() > 1 && mesh.is_in_order(),
            outlives,
        };
        // Sums made in any order are added up once more in that of the ranks.
        let by_rank = VirtualRanks { count: world, world };
        let name = move || format!("reduce bucket {bucket}");
        let (ranks, partials) = match (sum, self.reducer.reduce_dtype) {
            (BucketSum::Exact(sum), _) => {
                let ranks = self.ranks;
                return Reducing::UnderWay(self.comm.submit(move |collective| {
                    let _span = tracer.span(Lane::Communication, name);
                    let (sum, spare) = scatter.fixed_sums(collective, ranks, sum)?;
                    Ok(Reduced { sum, spare })
                }));
            }
            (BucketSum::Fast(sum), ReduceDtype::F32) => {
                let partials = Partials::of(world, rank, sum.unwrap_or_default());
                return Reducing::UnderWay(self.comm.submit(move |collective| {
                    let _span = tracer.span(Lane::Communication, name);
                    let (sum, spare) = scatter.sums(collective, by_rank, partials)?;
                    Ok(Reduced { sum, spare })
                }));
            }
            (BucketSum::Fast(sum), ReduceDtype::Bf16) => {
                let sum = sum.unwrap_or_default();
                let halves = rounded(&sum, &self.ledger);
                self.spare.return_gradient(bucket, sum);
                (by_rank, Partials::of(world, rank, halves))
            }
            (BucketSum::Rounded(partials), _) => (self.ranks, partials),
            (BucketSum::There(sum), _) => return self.reduce_slices_there(bucket, scatter, *sum),
        };
        let of_slices = scatter.kept[scatter.place as usize].iter().map(ExactSizeIterator::len);
        let mut sum = match outlives {
            true => self.spare.gradients(bucket, self.reducer.buckets.len(bucket)),
            false => Numbers::with_capacity(&self.ledger, Kind::Gradients, of_slices.sum()),
        };
        Reducing::UnderWay(self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, name);
            widen(&scatter.sums(collective, ranks, partials)?.0, &mut sum.growing());
            Ok(Reduced { sum, spare: None })
        }))
    }

    fn reduce_compressed(
        &self,
        bucket: usize,
        sum: Numbers<f32>,
        compressor: &Arc<Mutex<Compressor>>,
        begun: &mut StepInProgress,
    ) -> Reducing {
        let (tracer, compressor) = (self.times.tracer.clone(), Arc::clone(compressor));
        let momentum = match self.rule.optimizer {
            Optimizer::Sgd { momentum, .. } => momentum,
            _ => 0.0,
        };
        // Each bucket has its part of what the whole gradient may be long.
        let all: usize =
            (0..self.reducer.buckets.count()).map(|bucket| self.reducer.buckets.len(bucket)).sum();
        let part = (self.reducer.buckets.len(bucket) as f64 / all.max(1) as f64).sqrt() as f32;
        let clip = self.rule.clip.map(|limit| limit * part);
        let circumstances = Circumstances { epoch: begun.epoch, momentum, clip };
        let samples = Arc::clone(begun.samples.get_or_insert_with(|| self.count_samples(&begun.scalars)));
        Reducing::UnderWay(self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("compress and reduce bucket {bucket}"));
            // The remainders of short steps and of long ones are added up: as means.
            let share = samples.get().map_or(0.0, |samples| 1.0 / samples.max(1.0)) as f32;
            let mean = sum.into_values().into_iter().map(|number| number * share).collect();
            let sum = lock(&compressor).all_reduce(collective, mean, circumstances)?.into();
            Ok(Reduced { sum, spare: None })
        }))
    }

    /// Has the samples of all ranks counted, before anything that is submitted after it.
    fn count_samples(&self, scalars: &[[f64; 3]]) -> Arc<OnceLock<f64>> {
        let mut own = [scalars.iter().map(|[_, _, samples]| samples).sum::<f64>()];
        let counted = Arc::new(OnceLock::new());
        let result = Arc::clone(&counted);
        // An error is one of every later operation as well.
        let _ = self.comm.submit(move |collective| {
            sums::all_reduce(collective, &mut own)?;
            let _ = result.set(own[0]);
            Ok(())
        });
        counted
    }
}

/// Takes in bytes, on several threads where that is faster.
pub(super) fn digest(hasher: &mut Hasher, bytes: &[u8]) {
    const SEVERAL_THREADS_FROM: usize = 1 << 20;
    if bytes.len() < SEVERAL_THREADS_FROM {
        hasher.update(bytes);
    } else {
        hasher.update_rayon(bytes);
    }
}
