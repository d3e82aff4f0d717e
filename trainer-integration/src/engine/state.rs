//! What an engine is made of, for checkpoints and for weights from elsewhere.

use std::ops::Range;

use tracing::warn;

use super::{BlockState, Engine, lock, running_there};
use crate::checkpoint::{
    BlockLayout, Checkpoint, CheckpointError, Held, Holding, Kind, Layout, Manifest, Numbers, Place,
    Settings, Snapshot, State,
};
use crate::collective::CollectiveError;
use crate::compress::{RankResidual, Residual, inherited, joined};
use crate::flat_block::FlatBlock;
use crate::ledger;
use crate::name_pattern::NamePattern;
use crate::nn::lora::is_adapter;
use crate::optim::Moments;
use crate::progress::ProgressSoFar;
use crate::reduce::fixed::GradientRanges;
use crate::weights::{Wanted, Weights, WeightsError, ranges};
use crate::zero::Zero;

impl Engine {
    /// Makes the weights those of the same names, and the running numbers of every virtual rank, if they are
    /// among them. Of what `skip` matches, the model keeps its own and the others are ignored; it keeps those of
    /// adapters that are missing.
    ///
    /// # Errors
    /// When they are of another model, or a pattern matches nothing; then nothing has changed.
    pub(crate) fn begin_with(&mut self, weights: &Weights, skip: &[NamePattern]) -> Result<(), WeightsError> {
        let stages = &self.model.stages;
        let (mut parameters, mut buffers) = (Vec::new(), Vec::new());
        for stage in stages {
            parameters.extend(stage.parameters().iter().map(|it| (&it.name[..], &it.shape[..])));
            buffers.extend(stage.buffers().iter().map(|it| (&it.name[..], &it.shape[..])));
        }
        let mut wanted = Vec::new();
        // A model is adapted that was trained without adapters.
        wanted.extend(parameters.iter().map(|(name, shape)| Wanted {
            name,
            shape,
            is_optional: is_adapter(name),
        }));
        wanted.extend(buffers.iter().map(|(name, shape)| Wanted { name, shape, is_optional: true }));
        let mut found = weights.pick(&wanted, skip)?.into_iter();
        for (stage, block) in stages.iter().zip(&mut self.blocks) {
            for range in ranges(stage.parameters()) {
                if let Some(values) = found.next().flatten() {
                    block.begin(range.start, values);
                }
            }
        }
        let mut running = self.model.initial_running();
        for (buffer, values) in running.iter_mut().flatten().zip(found) {
            if let Some(values) = values {
                *buffer = values.to_vec();
            }
        }
        self.running.fill(running_there(&running, &self.compute.device));
        self.model.stages.iter_mut().for_each(|stage| stage.forget_initial());
        Ok(())
    }

    /// With the loss scale and the range of gradients of the next step.
    pub(crate) fn with_scales(&self, progress: ProgressSoFar) -> ProgressSoFar {
        let gradient_ranges = self.sums_whole().then(|| self.reducer.ranges.clone());
        ProgressSoFar { loss_scale: self.compute.scale, gradient_ranges, ..progress }
    }

    /// The content of a checkpoint of a training with these settings at this point.
    ///
    /// # Errors
    /// When another rank is gone or late, of which weights are still to come.
    pub(crate) fn snapshot(
        &mut self,
        run: String,
        settings: Settings,
        place: Place,
        progress: ProgressSoFar,
    ) -> Result<Snapshot<'_>, CollectiveError> {
        self.settle()?;
        self.fetch();
        let running = self.running_numbers();
        let mut held = Vec::with_capacity(3 * self.blocks.len());
        for (block, BlockState { weights, moments, slice, .. }) in self.blocks.iter().enumerate() {
            let weights = weights.stretches();
            held.extend(weights.map(|(start, numbers)| Held { block, kind: Kind::Weights, start, numbers }));
            let (first, second) = ((Kind::First, &moments.first), (Kind::Second, &moments.second));
            let moments = [first, second].into_iter();
            held.extend(moments.map(|(kind, numbers)| Held { block, kind, start: slice.start, numbers }));
        }
        let residual = self.residual().map(|it| it.residual);
        let progress = self.with_scales(progress);
        let manifest = Manifest {
            format: if residual.is_some() { Manifest::FORMAT_WITH_RESIDUALS } else { Manifest::FORMAT },
            run,
            step: progress.steps,
            place,
            virtual_ranks: self.ranks.count,
            settings,
            progress,
            layout: self.layout(),
            pieces: Vec::new(),
            statistics: Vec::new(),
            residuals: Vec::new(),
            parts: Vec::new(),
        };
        let holding = Holding::of(&self.slices.mesh, self.gathers(), self.slices.zero != Zero::Nothing);
        let ledger = self.ledger.clone();
        Ok(Snapshot { manifest, holding, held, statistics: running, residual, ledger, before: None })
    }

    /// This rank's state of a training, whether or not the others are still there: of weights that were on
    /// their way when they went, its own. Running numbers are those of before a step that has failed. Moments
    /// are moved, and nothing is there twice but a block's weights.
    pub(crate) fn remains(mut self) -> (Layout, State) {
        let are_there: Vec<bool> = (0..self.reducer.buckets.count())
            .map(|bucket| self.arrive(bucket).is_ok() && !self.slices.stale.contains(&bucket))
            .collect();
        self.fetch();
        let (layout, mut state) = (self.layout(), State::default());
        for (block, kept) in std::mem::take(&mut self.blocks).into_iter().enumerate() {
            let BlockState { weights, moments, slice, ownership, computed, .. } = kept;
            let is_whole = computed.is_some() || are_there[self.reducer.buckets.with(block)];
            let mut keep = |kind, start, values: Vec<f32>| {
                if !values.is_empty() {
                    state.numbers.push(Numbers { block, kind, start, values });
                }
            };
            for (start, numbers) in weights.stretches() {
                let own = [slice.clone(), ownership.trained..ownership.all];
                let all = [start..start + numbers.len(), 0..0];
                for range in if is_whole { all } else { own } {
                    let (from, to) = (range.start.max(start), range.end.min(start + numbers.len()));
                    if from < to {
                        keep(Kind::Weights, from, numbers[from - start..to - start].to_vec());
                    }
                }
            }
            keep(Kind::First, slice.start, moments.first);
            keep(Kind::Second, slice.start, moments.second);
        }
        state.statistics = self.virtual_ranks().zip(self.running_numbers()).collect();
        state.residuals = self.residual().into_iter().collect();
        (layout, state)
    }

    /// The gradients that this rank has not sent; `None` if nothing is compressed.
    fn residual(&self) -> Option<RankResidual> {
        if self.reducer.compressors.is_empty() {
            return None;
        }
        let (buckets, count) = self.reducer.buckets.all_places();
        let of_buckets: Vec<Residual> =
            self.reducer.compressors.iter().map(|it| lock(it).residual().clone()).collect();
        let residual = joined(&of_buckets, &buckets, count);
        Some(RankResidual { rank: self.comm.rank(), world: self.comm.world(), residual })
    }

    fn layout(&self) -> Layout {
        let shape = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
        let layout = |stage: &dyn FlatBlock, state: &BlockState| {
            let trained = state.trained_len();
            // Of all ranks, whatever this one has of it.
            let first = if state.moments.steps > 0 { trained } else { 0 };
            BlockLayout {
                parameters: stage.parameters().iter().map(|it| shape(&it.name, &it.shape)).collect(),
                weights: state.ownership.all,
                trained,
                first,
                second: if self.rule.optimizer.has_second_moment() { first } else { 0 },
                updates: state.moments.steps,
                statistics: stage.buffers().iter().map(|buffer| buffer.initial.len()).sum(),
                buffers: stage.buffers().iter().map(|it| shape(&it.name, &it.shape)).collect(),
            }
        };
        let blocks = self.model.stages.iter().zip(&self.blocks);
        Layout { blocks: blocks.map(|(stage, state)| layout(&**stage, state)).collect() }
    }

    /// Restores the state of a checkpoint, which is of a training with the same settings, and whose numbers
    /// it takes.
    ///
    /// # Errors
    /// When it is of another model; then nothing has changed here.
    pub(crate) fn resume(&mut self, checkpoint: &mut Checkpoint) -> Result<(), CheckpointError> {
        self.settle()?;
        let mut state = std::mem::take(&mut checkpoint.state);
        let residuals = std::mem::take(&mut state.residuals);
        let (buckets, count) = self.reducer.buckets.all_places();
        let place = (self.comm.rank(), self.comm.world());
        let restored = inherited(&residuals, place, &buckets, count).and_then(|inherited| {
            self.restore(&checkpoint.manifest.layout, state)?;
            let compressors = self.reducer.compressors.iter().zip(inherited);
            compressors.for_each(|(compressor, residual)| lock(compressor).restore(residual));
            Ok(())
        });
        restored.map_err(|differences| {
            let id = checkpoint.id.short();
            CheckpointError::Settings { id, differences: format!("its model has {differences}") }
        })?;
        if let (Some(scale), Some(kept)) = (&mut self.compute.scale, checkpoint.manifest.progress.loss_scale)
        {
            *scale = kept;
        }
        // A checkpoint of an earlier version has none, nor one of a training whose sums were others.
        let kept = checkpoint.manifest.progress.gradient_ranges.clone();
        let trained = self.reducer.ranges.len();
        self.reducer.ranges =
            kept.filter(|kept| kept.len() == trained).unwrap_or_else(|| GradientRanges::new(trained));
        if let Some(lost) = self.lost_residuals(checkpoint, &residuals) {
            warn!(rank = self.comm.rank(), "gradients that compression had not sent are lost: {lost}");
        }
        Ok(())
    }

    /// Whose residuals no rank inherits, if this rank knows of any and is to say so: a rank that continues from
    /// memory without a residual speaks for itself, and rank 0 for all.
    fn lost_residuals(&self, checkpoint: &Checkpoint, residuals: &[RankResidual]) -> Option<&'static str> {
        let is_compressed = !self.reducer.compressors.is_empty();
        let is_first = self.comm.rank() == 0;
        let had_any = !checkpoint.manifest.residuals.is_empty() || !residuals.is_empty();
        if !is_compressed {
            return had_any.then_some("a single rank compresses nothing");
        }
        if checkpoint.is_stored {
            let reason = "the checkpoint is of a single rank, or of an earlier version";
            return (!had_any && is_first).then_some(reason);
        }
        if residuals.is_empty() {
            return Some("those of the rank that this one replaces");
        }
        let are_fewer = residuals.iter().any(|it| it.world > self.comm.world());
        (are_fewer && is_first).then_some("those of the ranks that are gone")
    }

    /// Takes over the numbers of this layout, those that this rank keeps, all of which are there. The running
    /// numbers are those of this rank's virtual ranks, in order.
    ///
    /// # Errors
    /// The differences of the model from the layout; then nothing has changed.
    pub(crate) fn restore(&mut self, layout: &Layout, mut state: State) -> Result<(), String> {
        let mut copies = self.ledger.hold(ledger::Kind::Copies, state.bytes());
        self.fetch();
        let ours = self.layout();
        if ours.blocks.len() != layout.blocks.len() {
            return Err(format!("{} blocks, and not {}", layout.blocks.len(), ours.blocks.len()));
        }
        // Format 1 does not say which are trained.
        let says_trained = layout.blocks.iter().any(|block| block.trained > 0);
        for (index, (ours, theirs)) in ours.blocks.iter().zip(&layout.blocks).enumerate() {
            let trained = self.blocks[index].trained_len();
            let fits = |count: usize| count == 0 || count == trained;
            if (&ours.parameters, ours.statistics) != (&theirs.parameters, theirs.statistics) {
                let (ours, theirs) = (&ours.parameters, &theirs.parameters);
                return Err(format!("block {index} of {theirs:?}, and not of {ours:?}"));
            }
            if theirs.weights != ours.weights || !fits(theirs.first) || !fits(theirs.second) {
                return Err(format!("block {index} with other numbers than its parameters have"));
            }
            if says_trained && theirs.trained != trained {
                let theirs = theirs.trained;
                return Err(format!(
                    "{theirs} trained numbers in block {index}, and not {trained}: a training freezes the same parameters from its beginning to its end"
                ));
            }
        }
        let others = || "other numbers than its layout says".to_owned();
        if !state.statistics.iter().map(|(rank, _)| *rank).eq(self.virtual_ranks())
            || state.statistics.iter().any(|(_, numbers)| numbers.len() != layout.statistics())
        {
            return Err(others());
        }
        let mut moments = Vec::with_capacity(self.blocks.len());
        for (block, (ours, layout)) in self.blocks.iter().zip(&layout.blocks).enumerate() {
            let mut kept = ours.weights.stretches().map(|(start, numbers)| start..start + numbers.len());
            let has = |range: Range<usize>| state.has(block, Kind::Weights, &range);
            let is_there = if ours.computed.is_some() { has(0..ours.ownership.all) } else { kept.all(has) };
            let mut moment = |kind| match layout.count(kind) {
                0 => Some(Vec::new()),
                _ => state.take(block, kind, &ours.slice),
            };
            let (first, second) = (moment(Kind::First), moment(Kind::Second));
            let (Some(first), Some(second)) = (first.filter(|_| is_there), second) else {
                return Err(others());
            };
            moments.push(Moments { first, second, steps: layout.updates });
        }
        copies.set(state.bytes());
        for Numbers { block, start, values, .. } in
            state.numbers.into_iter().filter(|it| it.kind == Kind::Weights)
        {
            self.blocks[block].begin(start, &values);
        }
        drop(copies);
        for (block, moments) in self.blocks.iter_mut().zip(moments) {
            block.remember(moments);
        }
        let mut running = self.model.initial_running();
        for (there, (_, numbers)) in self.running.iter_mut().zip(&state.statistics) {
            let mut left = &numbers[..];
            for buffer in running.iter_mut().flatten() {
                *buffer = take(&mut left, buffer.len());
            }
            *there = running_there(&running, &self.compute.device);
        }
        Ok(())
    }
}

/// The next `count` numbers.
fn take(left: &mut &[f32], count: usize) -> Vec<f32> {
    let (taken, rest) = left.split_at(count);
    *left = rest;
    taken.to_vec()
}
