//! Kernels beside the operations of the CPU, on a device in software.

use burn::backend::Dispatch;
use burn::backend::ops::ConvOptions;
use burn::tensor::{Device, FloatDType, Tensor, TensorData, Tolerance};

use crate::arithmetic::{Arithmetic, batch_norm_train, gelu, layer_norm_rows, softmax};
use crate::device::{Adapter, DeviceName};
use crate::loss::{CrossEntropy, IGNORED, Objective, counted, cross_entropy};
use crate::random::Key;

/// Mesa's lavapipe, if it is installed.
fn device() -> Option<Device> {
    let device = DeviceName::Wgpu(Adapter::Software).open();
    device.map_err(|error| println!("skipped: {error}")).ok()
}

fn random<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let key = Key::new(seed);
    let numbers = (0..shape.iter().product::<usize>() as u64).map(|place| 4.0 * key.uniform(place) - 2.0);
    Tensor::from_data(TensorData::new(numbers.collect::<Vec<f32>>(), shape), device)
}

fn convolution(input: Tensor<4>, weight: Tensor<4>, options: ConvOptions<2>) -> Tensor<4> {
    let (input, weight) = (input.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(<Dispatch as Arithmetic>::convolution(input, weight, options))
}

/// The outputs and gradients of a function of three tensors, on the CPU and on the device, are alike.
fn compare<const D: usize>(
    device: &Device,
    [one, other, third]: [[usize; D]; 3],
    function: impl Fn(Tensor<D>, Tensor<D>, Tensor<D>) -> Tensor<D>,
) {
    let [here, there] = [&Device::flex(), device].map(|device| {
        let inputs = [(1, one), (2, other), (3, third)];
        let [one, other, third] =
            inputs.map(|(seed, shape)| random(seed, shape, device).autodiff().require_grad());
        let output = function(one.clone(), other.clone(), third.clone());
        let upstream = random(4, output.dims(), device).autodiff();
        let mut found = (output.clone() * upstream).sum().backward();
        let gradients = [one, other, third].map(|it| it.grad_remove(&mut found).map(Tensor::into_data));
        (output.inner().into_data(), gradients)
    });
    there.0.assert_approx_eq::<f32>(&here.0, Tolerance::rel_abs(1e-4, 1e-5));
    for (there, here) in there.1.iter().zip(&here.1) {
        assert_eq!(there.is_some(), here.is_some());
        if let (Some(there), Some(here)) = (there, here) {
            there.assert_approx_eq::<f32>(here, Tolerance::rel_abs(1e-3, 1e-4));
        }
    }
}

#[test]
fn activations_and_normalisation_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    // Rows shorter and longer than a cube, more rows than a stretch, and rows that lie in memory another way.
    for shape in [[3, 5], [130, 64], [70, 700], [1, 1]] {
        let columns = [1, shape[1]];
        compare(&device, [shape, columns, columns], |input, scale, shift| {
            let flat = |tensor: Tensor<2>| tensor.reshape([shape[1]]);
            layer_norm_rows(input, flat(scale), flat(shift), 1e-5)
        });
        compare(&device, [shape; 3], |input, _, _| softmax(input));
        compare(&device, [shape; 3], |input, _, _| gelu(input));
        compare(&device, [shape; 3], |input, _, _| softmax(input.transpose()));
        compare(&device, [shape; 3], |input, _, _| gelu(input.transpose()));
        compare(&device, [shape; 3], |input, other, _| softmax(input * other.clone()) + gelu(other));
    }
}

#[test]
fn convolutions_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let layer = |window, stride, padding, dilation| (window, stride, padding, dilation);
    // Images side by side in one matrix and not, windows that step over numbers or out of the image, and those of a pixel.
    for (input, outputs, (window, stride, padding, dilation)) in [
        ([6, 3, 9, 7], 5, layer([3, 3], [1, 1], [1, 1], [1, 1])),
        ([2, 4, 40, 40], 3, layer([3, 3], [1, 1], [1, 1], [1, 1])),
        ([7, 2, 8, 10], 4, layer([3, 2], [2, 3], [1, 0], [1, 1])),
        ([3, 2, 11, 9], 4, layer([2, 3], [1, 2], [2, 1], [2, 3])),
        ([5, 6, 8, 8], 4, layer([1, 1], [1, 1], [0, 0], [1, 1])),
        ([2, 3, 36, 36], 4, layer([1, 1], [1, 1], [0, 0], [1, 1])),
        ([4, 6, 9, 9], 4, layer([1, 1], [2, 2], [0, 0], [1, 1])),
        ([1, 1, 5, 5], 1, layer([5, 5], [1, 1], [0, 0], [1, 1])),
    ] {
        let weight = [outputs, input[1], window[0], window[1]];
        compare(&device, [input, weight, [1; 4]], |input, weight, _| {
            convolution(input, weight, ConvOptions::new(stride, padding, dilation, 1))
        });
    }
    // Groups are burn's.
    compare(&device, [[2, 4, 6, 6], [4, 2, 3, 3], [1; 4]], |input, weight, _| {
        convolution(input, weight, ConvOptions::new([1, 1], [1, 1], [1, 1], 2))
    });
}

#[test]
fn many_images_are_convolved_in_pieces() {
    let Some(device) = device() else { return };
    // Columns of all images would have more numbers than are made at a time.
    let (images, pixels) = (11, 100 * 100);
    let (input, weight) = (random(1, [images, 8, 100, 100], &device), random(2, [4, 8, 9, 9], &device));
    assert!(images * pixels * 8 * 9 * 9 > super::convolution::MOST);
    let options = || ConvOptions::new([1, 1], [4, 4], [1, 1], 1);
    let [input, weight] = [input, weight].map(|it: Tensor<4>| it.autodiff().require_grad());
    let mut found = convolution(input.clone(), weight.clone(), options()).sum().backward();
    let of_all = [&input, &weight].map(|it| it.grad_remove(&mut found).unwrap());
    let mut of_weight: Option<Tensor<4>> = None;
    for image in 0..images {
        let one = input.clone().inner().slice(image..image + 1).autodiff().require_grad();
        let weight = weight.clone().inner().autodiff().require_grad();
        let mut found = convolution(one.clone(), weight.clone(), options()).sum().backward();
        let [of_one, own] = [&one, &weight].map(|it| it.grad_remove(&mut found).unwrap());
        let among_all = of_all[0].clone().slice(image..image + 1).into_data();
        among_all.assert_approx_eq::<f32>(&of_one.into_data(), Tolerance::rel_abs(1e-4, 1e-4));
        of_weight = Some(match of_weight {
            Some(sum) => sum + own,
            None => own,
        });
    }
    let whole = of_weight.unwrap().into_data();
    of_all[1].clone().into_data().assert_approx_eq::<f32>(&whole, Tolerance::rel_abs(1e-3, 1e-2));
}

#[test]
fn batch_normalisation_is_that_of_the_cpu() {
    let Some(device) = device() else { return };
    // Fewer rows than a stretch has, several stretches of which the last is short, and rows of columns.
    for shape in [[6, 3, 5, 7], [9, 2, 60, 60], [300, 5, 8, 8], [9, 300, 1, 1], [2, 1, 1, 1]] {
        let channels = [1, shape[1], 1, 1];
        compare(&device, [shape, channels, channels], |input, scale, shift| {
            let flat = |tensor: Tensor<4>| tensor.reshape([shape[1]]);
            let found = batch_norm_train(input, flat(scale), flat(shift), 1e-5);
            let both = Tensor::cat(vec![found.mean, found.variance], 0);
            found.output + both.reshape([1, shape[1], 2, 1]).sum_dim(2)
        });
    }
}

#[test]
fn half_the_bits_are_rounded_once() {
    let Some(device) = device() else { return };
    for function in [softmax::<2>, gelu::<2>] {
        let half = random(1, [4, 30], &device).cast(FloatDType::F16);
        let wide = function(half.clone().cast(FloatDType::F32)).cast(FloatDType::F16);
        assert_eq!(function(half).into_data(), wide.into_data());
    }
}

#[test]
fn cross_entropy_is_that_of_the_cpu() {
    let Some(device) = device() else { return };
    for (rows, classes) in [(1, 2), (9, 5), (300, 40), (70, 1000)] {
        let logits = random::<2>(rows as u64, [rows, classes], &device);
        // Equal logits, before the label and after it: the answer is the first.
        let logits = with_equals(logits);
        let label = |row| if row % 5 == 3 { IGNORED } else { (row * 7 % classes) as u32 };
        let labels: Vec<u32> = (0..rows).map(label).collect();
        let numbers: Vec<f32> = logits.clone().into_data().try_into_vec().unwrap();
        let expected = cross_entropy(&numbers, &labels, classes);
        let found = CrossEntropy.measure(logits, &labels);
        let (sum, correct) = found.losses.read();
        assert_eq!((correct, found.samples), (expected.correct, counted(&labels)));
        assert!((sum - expected.sum).abs() < 1e-5 * expected.sum.max(1.0), "{sum} {}", expected.sum);
        let gradient: Vec<f32> = found.gradient[0].clone().unwrap().into_data().try_into_vec().unwrap();
        for (found, expected) in gradient.iter().zip(&expected.gradient) {
            assert!((found - expected).abs() < 1e-5, "{found} of {expected}");
        }
    }
    let broken = Tensor::<2>::from_floats([[f32::NAN, 0.0], [0.0, 1.0]], &device);
    assert!(!CrossEntropy.measure(broken, &vec![1, 1]).losses.read().0.is_finite());
}

/// Logits whose first rows have the largest twice.
fn with_equals(logits: Tensor<2>) -> Tensor<2> {
    let ([rows, classes], device) = (logits.dims(), logits.device());
    let some = rows / 2;
    if some == 0 {
        return logits;
    }
    logits.slice_assign([0..some, 0..classes.min(2)], Tensor::ones([some, classes.min(2)], &device) * 5.0)
}
