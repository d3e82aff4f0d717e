//! What an engine is made of, for checkpoints and for weights from elsewhere.

use tracing::warn;

use super::{BlockState, Engine, lock};
use crate::checkpoint::{
    BlockLayout, Checkpoint, CheckpointError, Layout, Manifest, Place, Settings, Snapshot, State,
};
use crate::collective::CollectiveError;
use crate::optim::Moments;
use crate::stage::Stage;
use crate::train::ProgressSoFar;
use crate::weights::{Weights, WeightsError};

impl Engine {
    /// Makes the weights those of the same names, and the running numbers of every virtual rank, as far as they are among them.
    ///
    /// # Errors
    /// When they are of another model; then nothing has changed.
    pub(crate) fn begin_with(&mut self, weights: &Weights) -> Result<(), WeightsError> {
        let mut running = self.model.initial_running();
        let (mut wanted, mut initial) = (Vec::new(), Vec::new());
        for parameter in self.model.stages.iter().flat_map(|stage| stage.parameters()) {
            wanted.push((parameter.name.clone(), parameter.shape.clone(), false));
            initial.push(None);
        }
        for buffer in self.model.stages.iter().flat_map(|stage| stage.buffers()) {
            wanted.push((buffer.name.clone(), buffer.shape.clone(), true));
            initial.push(Some(buffer.initial.clone()));
        }
        let found: Vec<Option<&[f32]>> = weights.pick(&wanted)?;
        let mut values = found.into_iter().zip(&initial);
        let mut next =
            || values.next().and_then(|(found, initial)| Some(found.or(initial.as_deref())?.to_vec()));
        for block in 0..self.model.stages.len() {
            let parameters = self.model.stages[block].parameters().iter();
            let numbers: Vec<f32> = parameters.flat_map(|_| next().unwrap_or_default()).collect();
            self.begin_block(block, &numbers);
        }
        for buffer in running.iter_mut().flatten() {
            *buffer = next().unwrap_or_default();
        }
        self.running.fill(running);
        Ok(())
    }

    /// What this rank would have to be given to go on from here: the layout of the numbers, and the numbers, as they lie.
    pub(crate) fn state(&self) -> (Layout, Vec<&[f32]>, Vec<Vec<f32>>) {
        let running = self.running.iter().map(|blocks| blocks.iter().flatten().flatten().copied().collect());
        let mut numbers = Vec::with_capacity(3 * self.blocks.len());
        for BlockState { weights, moments, .. } in &self.blocks {
            numbers.extend(weights.stretches().map(|(_, numbers)| numbers));
            numbers.extend([&moments.first[..], &moments.second]);
        }
        (self.layout(), numbers, running.collect())
    }

    /// What a checkpoint of a training with these settings is to hold, which has come so far.
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
        let (layout, common, statistics) = self.state();
        let manifest = Manifest {
            format: Manifest::FORMAT,
            run,
            step: progress.steps,
            place,
            virtual_ranks: self.ranks.count,
            settings,
            progress,
            layout,
            parts: Vec::new(),
        };
        Ok(Snapshot { manifest, common, statistics, before: None })
    }

    fn layout(&self) -> Layout {
        let layout = |stage: &dyn Stage, state: &BlockState| BlockLayout {
            parameters: stage.parameters().iter().map(|it| (it.name.clone(), it.shape.clone())).collect(),
            weights: state.ownership.all,
            first: state.moments.first.len(),
            second: state.moments.second.len(),
            updates: state.moments.steps,
            statistics: stage.buffers().iter().map(|buffer| buffer.initial.len()).sum(),
        };
        let blocks = self.model.stages.iter().zip(&self.blocks);
        Layout { blocks: blocks.map(|(stage, state)| layout(&**stage, state)).collect() }
    }

    /// Makes this what it was at a checkpoint, which is of a training with the same settings.
    ///
    /// # Errors
    /// When it is of another model; then nothing has changed.
    pub(crate) fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.settle()?;
        let restored = self.restore(&checkpoint.manifest.layout, &checkpoint.state);
        restored.map_err(|differences| {
            let id = checkpoint.id.short();
            CheckpointError::Settings { id, differences: format!("its model has {differences}") }
        })?;
        self.compressors.iter().for_each(|compressor| lock(compressor).forget());
        if self.compression().is_some() {
            warn!("what compression had not sent before the checkpoint is not in it, and lost");
        }
        Ok(())
    }

    /// Makes this what [`Engine::state`] said of some engine, in the numbers of its layout. The running numbers are those of this rank's
    /// virtual ranks, in order.
    ///
    /// # Errors
    /// What of the model differs from the layout; then nothing has changed.
    pub(crate) fn restore(&mut self, layout: &Layout, state: &State) -> Result<(), String> {
        let ours = self.layout();
        if ours.blocks.len() != layout.blocks.len() {
            return Err(format!("{} blocks, and not {}", layout.blocks.len(), ours.blocks.len()));
        }
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
        }
        if !state.statistics.iter().map(|(rank, _)| *rank).eq(self.virtual_ranks())
            || state.statistics.iter().any(|(_, numbers)| numbers.len() != layout.statistics())
            || state.common.len() != layout.common()
        {
            return Err("other numbers than its layout says".to_owned());
        }
        let mut left = &state.common[..];
        for (block, layout) in self.blocks.iter_mut().zip(&layout.blocks) {
            block.begin(0, &take(&mut left, layout.weights));
            let (first, second) = (take(&mut left, layout.first), take(&mut left, layout.second));
            block.remember(Moments { first, second, steps: layout.updates });
        }
        for (blocks, (_, numbers)) in self.running.iter_mut().zip(&state.statistics) {
            let mut left = &numbers[..];
            for buffer in blocks.iter_mut().flatten() {
                *buffer = take(&mut left, buffer.len());
            }
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
