use burn::nn::conv::Conv2dConfig;
use burn::nn::{Initializer, LinearConfig};
use burn::tensor::module::batch_norm_train as burns_batch_norm;
use burn::tensor::{Device, FloatDType, Tensor, TensorData, Tolerance};

use super::*;

fn random<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let mut state = seed | 1;
    let numbers: Vec<f32> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), &Device::flex())
}

/// Output and gradients of a function of two tensors, where the output's gradient differs from number to number.
fn with_gradients<const A: usize, const B: usize, const O: usize>(
    one: &Tensor<A>,
    other: &Tensor<B>,
    function: impl Fn(Tensor<A>, Tensor<B>) -> Tensor<O>,
) -> [TensorData; 3] {
    let (one, other) = (one.clone().autodiff().require_grad(), other.clone().autodiff().require_grad());
    let output = function(one.clone(), other.clone());
    let upstream = random(99, output.dims()).autodiff();
    let found = (output.clone() * upstream).sum().backward();
    [
        output.inner().into_data(),
        one.grad(&found).expect("it has a part").into_data(),
        other.grad(&found).expect("it has a part").into_data(),
    ]
}

fn assert_like(ours: &[TensorData], theirs: &[TensorData]) {
    for (ours, theirs) in ours.iter().zip(theirs) {
        ours.assert_approx_eq::<f32>(theirs, Tolerance::rel_abs(1e-4, 1e-4));
    }
}

#[test]
fn products_and_their_gradients_are_burns() {
    let (left, right) = (random(1, [2, 3, 5, 700]), random(2, [2, 3, 700, 4]));
    assert_like(
        &with_gradients(&left, &right, matmul),
        &with_gradients(&left, &right, |left, right| left.matmul(right)),
    );
}

#[test]
fn a_list_of_matrices_is_repeated_where_the_other_is_longer() {
    let (left, right) = (random(1, [1, 5, 6]), random(2, [4, 6, 3]));
    assert_like(
        &with_gradients(&left, &right, matmul),
        &with_gradients(&left, &right, |left, right| left.matmul(right)),
    );
}

#[test]
fn views_are_multiplied_as_copies_are() {
    let (left, right) = (random(3, [9, 7, 4]), random(4, [9, 8, 4]));
    let view = matmul(
        left.clone().swap_dims(0, 1).narrow(0, 2, 3),
        right.clone().swap_dims(0, 1).narrow(0, 1, 3).transpose(),
    );
    let copied = |tensor: Tensor<3>| {
        let data = tensor.into_data();
        Tensor::<3>::from_data(data, &Device::flex())
    };
    let copy = matmul(
        copied(left.swap_dims(0, 1).narrow(0, 2, 3)),
        copied(right.clone().swap_dims(0, 1).narrow(0, 1, 3).transpose()),
    );
    assert_eq!(view.into_data(), copy.into_data());
    let backwards = right.clone().flip([2]);
    let product = matmul(random(5, [9, 2, 4]), backwards.clone().transpose());
    let expected = random(5, [9, 2, 4]).matmul(backwards.transpose());
    assert_like(&[product.into_data()], &[expected.into_data()]);
}

#[test]
fn a_linear_layer_is_burns() {
    let layer = LinearConfig::new(6, 5)
        .with_initializer(Initializer::Normal { mean: 0.0, std: 1.0 })
        .init(&Device::flex());
    let input = random(6, [2, 3, 6]);
    let (ours, theirs) = (linear_layer(&layer, input.clone()), layer.forward(input));
    assert_like(&[ours.into_data()], &[theirs.into_data()]);
}

#[test]
fn convolutions_and_their_gradients_are_burns() {
    let device = Device::flex();
    for padding in [PaddingConfig2d::Valid, PaddingConfig2d::Same, PaddingConfig2d::Explicit(1, 2, 0, 1)] {
        for (stride, dilation, groups) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2)] {
            let layer = Conv2dConfig::new([4, 6], [3, 2])
                .with_stride([stride, 1])
                .with_dilation([dilation, 1])
                .with_padding(padding.clone())
                .with_groups(groups)
                .init(&device);
            let weight = random(7, [6, 4 / groups, 3, 2]);
            let input = random(8, [2, 4, 9, 10]);
            let with = |weight: Tensor<4>| {
                let mut layer = layer.clone();
                layer.weight = burn::module::Param::initialized(layer.weight.id, weight);
                layer
            };
            assert_like(
                &with_gradients(&input, &weight, |input, weight| conv2d_layer(&with(weight), input)),
                &with_gradients(&input, &weight, |input, weight| with(weight).forward(input)),
            );
        }
    }
}

#[test]
fn batch_normalisation_and_its_gradients_are_burns() {
    let (input, scale, shift) = (random(9, [5, 3, 4, 7]), random(10, [3]), random(11, [3]));
    let by = |normalise: &dyn Fn(Tensor<4>, Tensor<1>, Tensor<1>) -> Tensor<4>| {
        let (constant, of_scale) = (shift.clone().autodiff(), scale.clone().autodiff());
        let found = with_gradients(&input, &scale, |input, scale| normalise(input, scale, constant.clone()));
        let [_, _, of_shift] =
            with_gradients(&input, &shift, |input, shift| normalise(input, of_scale.clone(), shift));
        found.into_iter().chain([of_shift]).collect::<Vec<_>>()
    };
    assert_like(
        &by(&|input, scale, shift| batch_norm_train(input, scale, shift, 1e-5).output),
        &by(&|input, scale, shift| burns_batch_norm(input, scale, shift, 1e-5).output),
    );
    let ours = batch_norm_train(input.clone(), scale.clone(), shift.clone(), 1e-5);
    let theirs = burns_batch_norm(input, scale, shift, 1e-5);
    assert_like(
        &[ours.mean.into_data(), ours.variance.into_data()],
        &[theirs.mean.into_data(), theirs.variance.into_data()],
    );
}

/// The definition, once and for all: other bits on any machine fail here. Depth 1,300 is more than a chunk.
#[test]
fn products_have_the_defined_bits() {
    let (left, right) = (random(12, [3, 1300]), random(13, [1300, 70]));
    let product = matmul(left.clone(), right.clone()).into_data().try_into_vec::<f32>().unwrap();
    let (left, right) =
        (left.into_data().try_into_vec::<f32>().unwrap(), right.into_data().try_into_vec::<f32>().unwrap());
    let number = |row: usize, column: usize| {
        let steps: Vec<usize> = (0..1300).collect();
        let chunk = |steps: &[usize]| {
            steps
                .iter()
                .fold(0.0_f32, |sum, step| left[row * 1300 + step].mul_add(right[step * 70 + column], sum))
        };
        steps.chunks(shardd_kernels::CHUNK).map(chunk).reduce(|sum, next| sum + next).unwrap()
    };
    let expected: Vec<f32> = (0..3)
        .flat_map(|row| (0..70).map(move |column| (row, column)))
        .map(|(row, column)| number(row, column))
        .collect();
    assert!(product.iter().zip(&expected).all(|(found, expected)| found.to_bits() == expected.to_bits()));
}

#[test]
fn half_the_bits_are_widened_and_rounded_once() {
    let (left, right) = (random(14, [4, 600]), random(15, [600, 5]));
    let half = |tensor: Tensor<2>| tensor.cast(FloatDType::BF16);
    let wide = |tensor: Tensor<2>| tensor.cast(FloatDType::F32);
    let ours = matmul(half(left.clone()), half(right.clone()));
    let expected = half(matmul(wide(half(left)), wide(half(right))));
    assert_eq!(ours.into_data(), expected.into_data());
}

/// Where one side is a constant, the other has its gradient all the same.
#[test]
fn a_constant_side_has_no_gradient_and_the_other_has_its_own() {
    let (left, right) = (random(1, [3, 5]), random(2, [5, 4]));
    let [_, of_left, of_right] = with_gradients(&left, &right, matmul);
    let upstream = random(99, [3, 4]).autodiff();
    let (tracked, constant) = (left.clone().autodiff().require_grad(), right.clone().autodiff());
    let found = (matmul(tracked.clone(), constant.clone()) * upstream.clone()).sum().backward();
    assert_eq!(tracked.grad(&found).unwrap().into_data(), of_left);
    assert!(constant.grad(&found).is_none());
    let (constant, tracked) = (left.autodiff(), right.autodiff().require_grad());
    let found = (matmul(constant, tracked.clone()) * upstream).sum().backward();
    assert_eq!(tracked.grad(&found).unwrap().into_data(), of_right);
}

#[test]
fn expanded_tensors_are_multiplied_as_copies_are() {
    let column = random(3, [3, 1]);
    let (expanded, right) = (column.clone().expand([3, 5]), random(4, [5, 4]));
    let copied = column.matmul(Tensor::ones([1, 5], &Device::flex()));
    assert_eq!(matmul(expanded, right.clone()).into_data(), matmul(copied, right).into_data());
}

#[test]
fn activations_and_their_gradients_are_burns() {
    use burn::tensor::activation;
    let (input, upstream) = (random::<3>(11, [2, 5, 40]) * 3.0, random::<3>(12, [2, 5, 40]));
    let by = |of: &dyn Fn(Tensor<3>) -> Tensor<3>| -> Vec<TensorData> {
        let leaf = input.clone().autodiff().require_grad();
        let output = of(leaf.clone());
        let mut found = (output.clone() * upstream.clone().autodiff()).sum().backward();
        let gradient = leaf.grad_remove(&mut found).expect("it has a part");
        vec![output.inner().into_data(), gradient.into_data()]
    };
    assert_like(&by(&softmax), &by(&|input| activation::softmax(input, 2)));
    assert_like(&by(&gelu), &by(&activation::gelu));
    // Rows are along the last dimension, however they lie in memory.
    let turned = |input: Tensor<3>| input.swap_dims(1, 2);
    assert_like(
        &by(&|input| softmax(turned(input)).swap_dims(1, 2)),
        &by(&|input| activation::softmax(input, 1)),
    );
    let half = softmax(input.clone().cast(FloatDType::BF16));
    assert_eq!(half.dtype(), burn::tensor::DType::BF16);
}

#[test]
fn largest_numbers_and_their_gradients_are_burns() {
    use burn::nn::pool::MaxPool2dConfig;
    let paddings = [PaddingConfig2d::Valid, PaddingConfig2d::Same, PaddingConfig2d::Explicit(1, 1, 1, 1)];
    for padding in paddings {
        for (size, stride, dilation) in [([2, 2], [2, 2], 1), ([3, 2], [2, 3], 1), ([3, 3], [1, 1], 2)] {
            let layer = MaxPool2dConfig::new(size).with_strides(stride).with_padding(padding.clone());
            let layer = layer.with_dilation([dilation; 2]).init();
            let input = random::<4>(21, [2, 3, 9, 10]);
            let by = |of: &dyn Fn(Tensor<4>) -> Tensor<4>, input: Tensor<4>| -> Vec<TensorData> {
                let leaf = input.autodiff().require_grad();
                let output = of(leaf.clone());
                let upstream = random(22, output.dims()).autodiff();
                let mut found = (output.clone() * upstream).sum().backward();
                let gradient = leaf.grad_remove(&mut found).expect("it has a part");
                vec![output.inner().into_data(), gradient.into_data()]
            };
            let (ours, theirs) = (|input| max_pool2d_layer(&layer, input), |input| layer.forward(input));
            assert_like(&by(&ours, input.clone()), &by(&theirs, input.clone()));
            let turned = input.swap_dims(2, 3);
            assert_like(&by(&ours, turned.clone()), &by(&theirs, turned));
        }
    }
    let layer = MaxPool2dConfig::new([2, 2]).init();
    let half = max_pool2d_layer(&layer, random::<4>(23, [1, 1, 4, 4]).cast(FloatDType::BF16));
    assert_eq!((half.dtype(), half.dims()), (burn::tensor::DType::BF16, [1, 1, 2, 2]));
}
