//! The losses of a step, which a device may have until its end.

use burn::tensor::{ExecutionError, Tensor};

use super::StepInProgress;
use super::there::There;
use crate::loss::{Losses, Measured};
use crate::resident::{Found, read_at_once};

impl StepInProgress {
    pub(super) fn measure(&mut self, index: usize, Measured { losses, samples, .. }: Measured) {
        self.scalars[index][2] += samples as f64;
        match losses {
            Losses::Here { sum, correct } => self.add_losses(index, (sum, correct)),
            Losses::There(numbers) => self.losses[index].push(*numbers),
        }
    }

    /// Waits for a device, once: for the losses that it has, which are added in the order of the micro-batches, and for the findings about
    /// gradients that stay there.
    pub(super) fn read(&mut self) -> Result<Option<Found>, ExecutionError> {
        let losses = std::mem::replace(&mut self.losses, vec![Vec::new(); self.scalars.len()]);
        let owners: Vec<usize> =
            losses.iter().enumerate().flat_map(|(index, of)| std::iter::repeat_n(index, of.len())).collect();
        let losses: Vec<Tensor<1>> = losses.into_iter().flatten().collect();
        let losses = (!losses.is_empty()).then(|| Tensor::cat(losses, 0));
        let findings = self.there.as_ref().map(There::findings);
        let (numbers, found) = read_at_once(losses, findings)?;
        for (index, numbers) in owners.into_iter().zip(numbers.chunks_exact(2)) {
            self.add_losses(index, Losses::of(numbers));
        }
        Ok(found)
    }

    fn add_losses(&mut self, index: usize, (sum, correct): (f64, u64)) {
        self.scalars[index][0] += sum;
        self.scalars[index][1] += correct as f64;
    }
}
