//! Kernels beside the operations of the CPU, on a device in software.

use burn::tensor::{Device, FloatDType, Tensor, TensorData, Tolerance};

use crate::arithmetic::{gelu, layer_norm_rows, softmax};
use crate::device::{Adapter, DeviceName};
use crate::loss::{CrossEntropy, Objective, cross_entropy};
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
        let labels: Vec<u32> = (0..rows).map(|row| (row * 7 % classes) as u32).collect();
        let numbers: Vec<f32> = logits.clone().into_data().try_into_vec().unwrap();
        let expected = cross_entropy(&numbers, &labels, classes);
        let found = CrossEntropy.measure(logits, &labels);
        let (sum, correct) = found.losses.read();
        assert_eq!((correct, found.samples), (expected.correct, rows as u64));
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
