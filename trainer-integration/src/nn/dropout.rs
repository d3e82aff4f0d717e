//! Dropout by counter.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use crate::block::Pass;
use crate::resident;

/// While training, leaves each number out with the same chance, and scales the others up so that the expected
/// sum stays the same (Srivastava et al., "Dropout", JMLR 2014). Which ones follows from the key of the pass,
/// so a virtual rank leaves out the same ones wherever it is computed.
#[derive(Module, Debug)]
pub struct Dropout {
    share: f32,
}

impl Dropout {
    /// Leaves out this share of the numbers, from 0 and below 1.
    ///
    /// # Panics
    /// If it is another share.
    pub fn new(share: f32) -> Dropout {
        assert!((0.0..1.0).contains(&share), "a share of {share} leaves nothing, or is none");
        Dropout { share }
    }

    /// The same shape, with zeros in it while training.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, pass: &mut Pass) -> Tensor<D> {
        if self.share == 0.0 {
            return input;
        }
        let Some(key) = pass.key() else { return input };
        let dims = input.dims();
        let kept = 1.0 / (1.0 - self.share);
        let (count, device) = (dims.iter().product::<usize>(), input.device());
        let factors = if device == Device::flex() {
            let factor = |place| if key.uniform(place) < self.share { 0.0 } else { kept };
            let factors: Vec<f32> = (0..count as u64).map(factor).collect();
            Tensor::<D>::from_data(TensorData::new(factors, dims), &device)
        } else {
            resident::dropout(key, self.share, kept, count, &device).reshape(dims)
        };
        let precision = FloatDType::from(input.dtype());
        input * factors.cast(precision)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use burn::tensor::Device;

    use super::*;
    use crate::flat_block::to_numbers;
    use crate::random::Key;

    #[test]
    fn dropout_keeps_the_mean_and_is_the_same_for_the_same_key() {
        let dropout = Dropout::new(0.3);
        let pass = |key: Option<Key>| {
            let ones = Tensor::<2>::ones([200, 200], &Device::flex());
            to_numbers(dropout.forward(ones, &mut Pass::new(key, BTreeMap::new(), None)))
        };
        let (key, other) = (Key::new(1).of(5), Key::new(1).of(6));
        let once = pass(Some(key));
        assert_eq!(once, pass(Some(key)));
        assert_ne!(once, pass(Some(other)));
        let dropped = once.iter().filter(|number| **number == 0.0).count() as f32 / 40_000.0;
        assert!((dropped - 0.3).abs() < 0.01, "{dropped}");
        assert!((once.iter().sum::<f32>() / 40_000.0 - 1.0).abs() < 0.02);
        assert!(pass(None).iter().all(|number| *number == 1.0), "nothing is left out of an evaluation");
    }

    #[test]
    fn two_layers_of_a_block_leave_out_other_numbers() {
        let mut pass = Pass::new(Some(Key::new(1)), BTreeMap::new(), None);
        let ones = Tensor::<2>::ones([20, 20], &Device::flex());
        let dropout = Dropout::new(0.5);
        let first = to_numbers(dropout.forward(ones.clone(), &mut pass));
        assert_ne!(first, to_numbers(dropout.forward(ones, &mut pass)));
    }
}
