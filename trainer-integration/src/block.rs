//! What models are made of: blocks with one autodiff graph each. A block knows its own layers, not its neighbours, the
//! optimizer or other ranks.
//!
//! Activations between blocks are `[rows, features]`; a block of images gives the features their shape inside.

use burn::tensor::activation::relu;
use burn::tensor::module::{batch_norm, batch_norm_train, conv2d};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, TensorData};

use crate::random::Key;
use crate::weights::{Init, Parameter, Statistics};

/// How much a micro-batch moves the running statistics.
const MOMENTUM: f32 = 0.1;
const EPSILON: f64 = 1e-5;

/// What a pass is for: which statistics normalisation uses, and whether anything is dropped.
#[derive(Debug)]
pub enum Mode<'a> {
    /// Those of the micro-batch, which then move the virtual rank's running statistics; and random numbers for this step, virtual rank
    /// and block.
    Train(&'a mut Statistics, Key),
    /// The running ones, unchanged.
    Evaluate(&'a Statistics),
}

/// A stretch of layers with its own parameters and its own autodiff graph.
pub trait Block: Send + Sync + std::fmt::Debug {
    /// The parameters in a fixed order.
    fn parameters(&self) -> &[Parameter];

    /// The normalisation layer's name and number of channels, if the block has one.
    fn normalisation(&self) -> Option<(&str, usize)>;

    /// The output for at least one row, given one flat tensor per parameter.
    fn forward(&self, parameters: &[Tensor<1>], input: Tensor<2>, mode: Mode<'_>) -> Tensor<2>;
}

/// Batch normalisation over every dimension but the second.
///
/// A micro-batch with fewer than two values per channel has no variance: it is normalised by the running statistics and
/// leaves them alone.
fn normalise<const D: usize>(
    input: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    mode: Mode<'_>,
) -> Tensor<D> {
    let dims = input.dims();
    let values = dims.iter().product::<usize>() / dims[1];
    let running: &Statistics = match mode {
        Mode::Train(running, _) if values >= 2 => return normalise_by_batch(input, scale, shift, running),
        Mode::Train(running, _) => running,
        Mode::Evaluate(running) => running,
    };
    let constant = |values: &Vec<f32>| {
        let data = TensorData::new(values.clone(), [values.len()]);
        Tensor::<1>::from_data(data, &input.device())
    };
    let (mean, variance) = (constant(&running.mean), constant(&running.variance));
    batch_norm(input, scale, shift, mean, variance, EPSILON)
}

fn normalise_by_batch<const D: usize>(
    input: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    running: &mut Statistics,
) -> Tensor<D> {
    let dims = input.dims();
    let values = dims.iter().product::<usize>() / dims[1];
    let normalised = batch_norm_train(input, scale, shift, EPSILON);
    let unbias = values as f32 / (values - 1) as f32;
    let update = |running: &mut [f32], batch: Tensor<1>, factor: f32| {
        for (running, batch) in running.iter_mut().zip(to_numbers(batch.without_autodiff())) {
            *running = (1.0 - MOMENTUM) * *running + MOMENTUM * (batch * factor);
        }
    };
    update(&mut running.mean, normalised.mean, 1.0);
    update(&mut running.variance, normalised.variance, unbias);
    normalised.output
}

/// A tensor's values on the host.
pub(crate) fn to_numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().expect("the trainer computes in f32")
}

fn normalisation_parameters(name: &str, channels: usize) -> [Parameter; 2] {
    let parameter = |suffix: &str, init| Parameter {
        name: format!("{name}.{suffix}"),
        shape: vec![channels],
        init,
        decays: false,
    };
    [parameter("weight", Init::Ones), parameter("bias", Init::Zeros)]
}

/// Channels, height and width of an image.
pub type ImageShape = [usize; 3];

/// 3x3 convolution with stride 2, batch normalisation, ReLU.
#[derive(Debug)]
pub struct ConvBlock {
    input: ImageShape,
    channels: usize,
    norm: String,
    parameters: Vec<Parameter>,
}

impl ConvBlock {
    /// A block of so many output channels; `index` counts the model's convolutions from 1.
    pub fn new(index: usize, input: ImageShape, channels: usize) -> ConvBlock {
        let norm = format!("bn{index}");
        let fan_in = input[0] * 9;
        let weight = Parameter {
            name: format!("conv{index}.weight"),
            shape: vec![channels, input[0], 3, 3],
            init: before_relu(fan_in),
            decays: true,
        };
        let [scale, shift] = normalisation_parameters(&norm, channels);
        ConvBlock { input, channels, norm, parameters: vec![weight, scale, shift] }
    }

    /// The shape of its output.
    pub fn output(&self) -> ImageShape {
        [self.channels, self.input[1].div_ceil(2), self.input[2].div_ceil(2)]
    }
}

impl Block for ConvBlock {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn normalisation(&self) -> Option<(&str, usize)> {
        Some((&self.norm, self.channels))
    }

    fn forward(&self, parameters: &[Tensor<1>], input: Tensor<2>, mode: Mode<'_>) -> Tensor<2> {
        let [weight, scale, shift] = parameters else { unreachable!("as many tensors as parameters") };
        let rows = input.dims()[0];
        let [channels, height, width] = self.input;
        let weight = weight.clone().reshape([self.channels, channels, 3, 3]);
        let options = ConvOptions::new([2, 2], [1, 1], [1, 1], 1);
        let maps = conv2d(input.reshape([rows, channels, height, width]), weight, None, options);
        let maps = relu(normalise(maps, scale.clone(), shift.clone(), mode));
        maps.reshape([rows, self.output().iter().product()])
    }
}

/// Linear layer, batch normalisation, ReLU.
#[derive(Debug)]
pub struct DenseBlock {
    inputs: usize,
    outputs: usize,
    norm: String,
    parameters: Vec<Parameter>,
}

impl DenseBlock {
    /// A block of so many outputs; `index` counts the model's linear layers from 1.
    pub fn new(index: usize, inputs: usize, outputs: usize) -> DenseBlock {
        let norm = format!("bn{index}");
        let weight = Parameter {
            name: format!("fc{index}.weight"),
            shape: vec![inputs, outputs],
            init: before_relu(inputs),
            decays: true,
        };
        let [scale, shift] = normalisation_parameters(&norm, outputs);
        DenseBlock { inputs, outputs, norm, parameters: vec![weight, scale, shift] }
    }
}

impl Block for DenseBlock {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn normalisation(&self) -> Option<(&str, usize)> {
        Some((&self.norm, self.outputs))
    }

    fn forward(&self, parameters: &[Tensor<1>], input: Tensor<2>, mode: Mode<'_>) -> Tensor<2> {
        let [weight, scale, shift] = parameters else { unreachable!("as many tensors as parameters") };
        let features = input.matmul(weight.clone().reshape([self.inputs, self.outputs]));
        relu(normalise(features, scale.clone(), shift.clone(), mode))
    }
}

/// Brings columns of any scale to mean 0 and variance 1; it has statistics but no parameters.
#[derive(Debug)]
pub struct StandardiseBlock {
    features: usize,
}

impl StandardiseBlock {
    /// A block for so many columns.
    pub fn new(features: usize) -> StandardiseBlock {
        StandardiseBlock { features }
    }
}

impl Block for StandardiseBlock {
    fn parameters(&self) -> &[Parameter] {
        &[]
    }

    fn normalisation(&self) -> Option<(&str, usize)> {
        Some(("input", self.features))
    }

    fn forward(&self, _: &[Tensor<1>], input: Tensor<2>, mode: Mode<'_>) -> Tensor<2> {
        let device = input.device();
        let (scale, shift) =
            (Tensor::ones([self.features], &device), Tensor::zeros([self.features], &device));
        normalise(input, scale, shift, mode)
    }
}

/// While training, leaves each number out with the same chance, and makes the others so much larger that their sum stays as it is to be
/// expected (Srivastava et al., "Dropout", JMLR 2014). Which ones follows from the key of the pass, so a virtual rank leaves out the same ones
/// wherever it is computed.
#[derive(Debug)]
pub struct DropoutBlock {
    share: f32,
}

impl DropoutBlock {
    /// Leaves out this share of the numbers, from 0 and below 1.
    ///
    /// # Panics
    /// If it is another share.
    pub fn new(share: f32) -> DropoutBlock {
        assert!((0.0..1.0).contains(&share), "a share of {share} leaves nothing, or is none");
        DropoutBlock { share }
    }
}

impl Block for DropoutBlock {
    fn parameters(&self) -> &[Parameter] {
        &[]
    }

    fn normalisation(&self) -> Option<(&str, usize)> {
        None
    }

    fn forward(&self, _: &[Tensor<1>], input: Tensor<2>, mode: Mode<'_>) -> Tensor<2> {
        let Mode::Train(_, key) = mode else { return input };
        let [rows, features] = input.dims();
        let kept = 1.0 / (1.0 - self.share);
        let factor = |place| if key.uniform(place) < self.share { 0.0 } else { kept };
        let factors: Vec<f32> = (0..(rows * features) as u64).map(factor).collect();
        let device = input.device();
        input * Tensor::from_data(TensorData::new(factors, [rows, features]), &device)
    }
}

/// The last linear layer, with bias: one output per class.
#[derive(Debug)]
pub struct HeadBlock {
    inputs: usize,
    classes: usize,
    parameters: Vec<Parameter>,
}

impl HeadBlock {
    /// A layer from so many features to so many classes.
    pub fn new(inputs: usize, classes: usize) -> HeadBlock {
        let init = Init::Uniform { bound: 1.0 / (inputs as f32).sqrt() };
        let parameter =
            |suffix: &str, shape, decays| Parameter { name: format!("head.{suffix}"), shape, init, decays };
        let parameters =
            vec![parameter("weight", vec![inputs, classes], true), parameter("bias", vec![classes], false)];
        HeadBlock { inputs, classes, parameters }
    }
}

impl Block for HeadBlock {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn normalisation(&self) -> Option<(&str, usize)> {
        None
    }

    fn forward(&self, parameters: &[Tensor<1>], input: Tensor<2>, _: Mode<'_>) -> Tensor<2> {
        let [weight, bias] = parameters else { unreachable!("as many tensors as parameters") };
        let weight = weight.clone().reshape([self.inputs, self.classes]);
        input.matmul(weight) + bias.clone().reshape([1, self.classes])
    }
}

/// He's initialisation: keeps the variance through a layer that ReLU follows.
fn before_relu(fan_in: usize) -> Init {
    Init::Uniform { bound: (6.0 / fan_in as f32).sqrt() }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
    }

    #[test]
    fn training_normalises_by_the_micro_batch_and_remembers_it() {
        let mut running = Statistics::new(1);
        let input = tensor(&[1.0, 2.0, 3.0, 6.0], [4, 1]);
        let output = StandardiseBlock::new(1).forward(&[], input, Mode::Train(&mut running, Key::new(0)));
        let output = to_numbers(output);
        let deviation = (14.0f32 / 4.0).sqrt(); // mean 3, squares 4 + 1 + 0 + 9
        for (value, expected) in output.iter().zip([-2.0, -1.0, 0.0, 3.0]) {
            assert!((value - expected / deviation).abs() < 1e-4, "{output:?}");
        }
        assert!((running.mean[0] - 0.3).abs() < 1e-6);
        assert!((running.variance[0] - (0.9 + 0.1 * 14.0 / 3.0)).abs() < 1e-6, "unbiased");
    }

    #[test]
    fn evaluation_uses_the_running_statistics() {
        let running = Statistics { mean: vec![10.0], variance: vec![4.0] };
        let block = StandardiseBlock::new(1);
        let output = block.forward(&[], tensor(&[12.0], [1, 1]), Mode::Evaluate(&running));
        assert!((to_numbers(output)[0] - 1.0).abs() < 1e-5);
    }

    #[test]
    fn a_single_value_per_channel_leaves_the_statistics_alone() {
        let mut running = Statistics { mean: vec![10.0], variance: vec![4.0] };
        let before = running.clone();
        let block = StandardiseBlock::new(1);
        let output = block.forward(&[], tensor(&[12.0], [1, 1]), Mode::Train(&mut running, Key::new(0)));
        assert!((to_numbers(output)[0] - 1.0).abs() < 1e-5);
        assert_eq!(running, before);
    }

    #[test]
    fn dropout_keeps_the_mean_and_is_the_same_for_the_same_key() {
        let block = DropoutBlock::new(0.3);
        let pass = |mode: Mode<'_>| to_numbers(block.forward(&[], tensor(&[1.0; 40_000], [200, 200]), mode));
        let train = |key| pass(Mode::Train(&mut Statistics::new(0), key));
        let (key, other) = (Key::new(1).of(5), Key::new(1).of(6));
        let once = train(key);
        assert_eq!(once, train(key));
        assert_ne!(once, train(other));
        let dropped = once.iter().filter(|number| **number == 0.0).count() as f32 / 40_000.0;
        assert!((dropped - 0.3).abs() < 0.01, "{dropped}");
        assert!((once.iter().sum::<f32>() / 40_000.0 - 1.0).abs() < 0.02);
        assert!(pass(Mode::Evaluate(&Statistics::new(0))).iter().all(|number| *number == 1.0));
    }

    #[test]
    fn a_convolution_halves_odd_and_even_sizes() {
        for (size, half) in [(8, 4), (7, 4), (1, 1), (32, 16)] {
            let block = ConvBlock::new(1, [2, size, size], 3);
            assert_eq!(block.output(), [3, half, half]);
            let parameters: Vec<Tensor<1>> = block
                .parameters()
                .iter()
                .map(|parameter| tensor(&parameter.initial(1), [parameter.len()]))
                .collect();
            let input = tensor(&vec![0.5; 2 * 2 * size * size], [2, 2 * size * size]);
            let output = block.forward(&parameters, input, Mode::Train(&mut Statistics::new(3), Key::new(0)));
            assert_eq!(output.dims(), [2, 3 * half * half]);
        }
    }
}
