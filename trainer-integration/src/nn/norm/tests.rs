use std::collections::BTreeMap;

use super::*;
use crate::flat_block::to_numbers;
use crate::random::Key;

fn pass(is_training: bool) -> Pass {
    Pass::new(is_training.then(|| Key::new(0)), BTreeMap::new(), None)
}

fn column(values: &[f32]) -> Tensor<2> {
    Tensor::<1>::from_floats(values, &Device::flex()).unsqueeze_dim(1)
}

fn running(norm: &BatchNorm) -> [f32; 2] {
    [&norm.running_mean, &norm.running_var].map(|it| to_numbers(it.value_sync())[0])
}

fn assert_close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4, "{found} instead of {expected}");
    }
}

#[test]
fn training_normalises_by_the_micro_batch_and_remembers_it() {
    let norm = BatchNorm::new(1, &Device::flex());
    let output = to_numbers(norm.forward(column(&[1.0, 2.0, 3.0, 6.0]).autodiff(), &pass(true)));
    let deviation = (14.0f32 / 4.0).sqrt(); // mean 3, squares 4 + 1 + 0 + 9
    assert_close(&output, &[-2.0, -1.0, 0.0, 3.0].map(|number: f32| number / deviation));
    assert_close(&running(&norm), &[0.3, 0.9 + 0.1 * 14.0 / 3.0]);
}

#[test]
fn evaluation_and_a_single_value_use_the_running_statistics_and_leave_them() {
    let norm = BatchNorm::new(1, &Device::flex());
    norm.running_mean.update(Tensor::from_floats([10.0], &Device::flex()));
    norm.running_var.update(Tensor::from_floats([4.0], &Device::flex()));
    assert_eq!(running(&norm), [10.0, 4.0]);
    assert_close(&to_numbers(norm.forward(column(&[12.0, 14.0]), &pass(false))), &[1.0, 2.0]);
    assert_close(&to_numbers(norm.forward(column(&[12.0]).autodiff(), &pass(true))), &[1.0]);
    assert_eq!(running(&norm), [10.0, 4.0]);
}

#[test]
fn sums_of_parts_normalise_as_the_whole() {
    let (device, values) = (Device::flex(), [1.0f32, 2.0, 3.0, 6.0, -7.0, 0.5]);
    let (whole, parts) = (BatchNorm::new(1, &device), SyncBatchNorm::new(1, &device));
    let expected = to_numbers(whole.forward(column(&values).autodiff(), &pass(true)));
    let (first, second) = (column(&values[..4]).autodiff(), column(&values[4..]).autodiff());
    let total = parts.summarise(first.clone()) + parts.summarise(second.clone());
    assert_eq!(total.dims(), [parts.summary_len()]);
    let mut found = to_numbers(parts.forward(first, Some(total.clone())));
    found.extend(to_numbers(parts.forward(second, Some(total))));
    assert_close(&found, &expected);
    // Both parts have moved the same statistics, as two virtual ranks would their own.
    let once = SyncBatchNorm::new(1, &device);
    let all = column(&values).autodiff();
    let _ = once.forward(all.clone(), Some(once.summarise(all)));
    assert_close(&running(&once.local), &running(&whole));
}
