use burn::module::Module;
use burn::nn::{BatchNormConfig, DropoutConfig, Linear, LinearConfig};

use super::*;
use crate::nn::BatchNorm;

/// Names that burn's visitor must find: nested, in lists, optional.
#[derive(Module, Debug)]
struct Layers {
    list: Vec<Linear>,
    norm: BatchNorm,
    frozen: Option<Linear>,
}
crate::block!(Layers, |self, input: Tensor<2>, pass| -> Tensor<2> {
    let hidden = self.list.iter().fold(input, |input, linear| linear.forward(input));
    self.norm.forward(hidden, pass)
});

fn layers() -> Layers {
    let device = Device::flex();
    let linear = || LinearConfig::new(2, 2).init(&device);
    Layers {
        list: vec![linear(), linear()],
        norm: BatchNorm::new(2, &device),
        frozen: Some(linear().no_grad()),
    }
}

fn names(named: &[Parameter]) -> Vec<(&str, bool, f32)> {
    named.iter().map(|it| (it.name.as_str(), it.is_trained, it.decay)).collect()
}

#[test]
fn parameters_are_found_with_their_paths_the_trained_ones_first() {
    let stage = stage(layers(), "body");
    assert_eq!(
        names(stage.parameters()),
        [
            ("body.list.0.weight", true, 1.0),
            ("body.list.0.bias", true, 0.0),
            ("body.list.1.weight", true, 1.0),
            ("body.list.1.bias", true, 0.0),
            ("body.norm.weight", true, 0.0),
            ("body.norm.bias", true, 0.0),
            ("body.frozen.weight", false, 0.0),
            ("body.frozen.bias", false, 0.0),
        ]
    );
    let buffers: Vec<&str> = stage.buffers().iter().map(|buffer| buffer.name.as_str()).collect();
    assert_eq!(buffers, ["body.norm.running_mean", "body.norm.running_var"]);
    assert_eq!(stage.initial(0).len(), 4 + 2 + 4 + 2 + 2 + 2 + 4 + 2);
}

#[test]
fn what_is_frozen_by_name_moves_behind_what_is_trained_and_computes_the_same() {
    let device = Device::flex();
    let (plain, mut some) = (stage(layers(), "body"), stage(layers(), "body"));
    some.freeze(&|name| name.starts_with("body.list.0.") || name == "body.norm.bias");
    let expected = [
        ("body.list.1.weight", true, 1.0),
        ("body.list.1.bias", true, 0.0),
        ("body.norm.weight", true, 0.0),
        ("body.list.0.weight", false, 0.0),
        ("body.list.0.bias", false, 0.0),
        ("body.norm.bias", false, 0.0),
        ("body.frozen.weight", false, 0.0),
        ("body.frozen.bias", false, 0.0),
    ];
    assert_eq!(names(some.parameters()), expected);
    let buffers: Vec<&str> = some.buffers().iter().map(|buffer| buffer.name.as_str()).collect();
    assert_eq!(buffers, ["body.norm.running_mean", "body.norm.running_var"]);
    some.rename("other");
    assert_eq!(some.parameters()[0].name, "other.list.1.weight");
    some.rename("body");

    // Of each parameter the same numbers by its name, wherever it lies.
    let outputs = [&plain, &some].map(|stage| {
        let tensor = |parameter: &Parameter| {
            let first = parameter.name.bytes().map(f32::from).sum::<f32>() / 1000.0;
            let values: Vec<f32> = (0..parameter.len()).map(|at| first + at as f32).collect();
            Tensor::from_data(TensorData::new(values, [parameter.len()]), &device)
        };
        let parameters: Vec<Tensor<1>> = stage.parameters().iter().map(tensor).collect();
        let running = [[5.0, 6.0], [1.0, 4.0]].map(|it| Tensor::<1>::from_floats(it, &device));
        let loaded = stage.load(&parameters, &running, Use::Training);
        let mut pass = Pass::new(Some(crate::random::Key::new(0)), std::collections::BTreeMap::new(), None);
        let input = vec![Part::floats(vec![1.0, 2.0, 3.0, 5.0], &[2, 2], &device).leaf(false)];
        let output: Tensor<2> = from_parts(loaded.forward(input, &mut pass));
        let mut found = output.clone().powi_scalar(2).sum().backward();
        let mut gradient = Vec::new();
        loaded.take_gradient(Some(&mut found), &mut gradient);
        let trained = stage.parameters().iter().filter(|parameter| parameter.is_trained);
        let by_name: Vec<_> = trained
            .scan(0, |start, parameter| {
                let range = *start..*start + parameter.len();
                *start = range.end;
                Some((parameter.name.clone(), gradient[range].to_vec()))
            })
            .collect();
        assert_eq!(by_name.iter().map(|(_, numbers)| numbers.len()).sum::<usize>(), gradient.len());
        (to_numbers(output), by_name)
    });
    let [(output, all), (again, left)] = outputs;
    assert_eq!(output, again);
    assert_eq!(left, all[2..5]);
}

#[test]
fn what_is_loaded_is_what_computes_and_what_comes_back() {
    let stage = stage(layers(), "body");
    let device = Device::flex();
    let tensor = |parameter: &Parameter| {
        let values: Vec<f32> = (0..parameter.len()).map(|at| at as f32 + 1.0).collect();
        Tensor::from_data(TensorData::new(values, [parameter.len()]), &device)
    };
    let parameters: Vec<Tensor<1>> = stage.parameters().iter().map(tensor).collect();
    let running = [[5.0, 6.0], [1.0, 4.0]];
    let there = running.map(|it| Tensor::<1>::from_floats(it, &device));
    let loaded = stage.load(&parameters, &there, Use::Evaluation);
    let mut pass = Pass::new(None, std::collections::BTreeMap::new(), None);
    let input = Part::floats(vec![1.0, 1.0], &[1, 2], &device);
    let output: Tensor<2> = from_parts(loaded.forward(vec![input], &mut pass));
    // [1, 1] [[1, 2], [3, 4]] + [1, 2] = [5, 8]; again [29, 42] + [1, 2] = [30, 44]; (30 - 5) / 1 x 1 + 1, (44 - 6) / 2 x 2 + 2.
    for (found, expected) in to_numbers(output).iter().zip([26.0, 40.0]) {
        assert!((found - expected).abs() < 1e-2, "{found} instead of {expected}");
    }
    let buffers: Vec<_> = loaded.buffers().into_iter().map(to_numbers).collect();
    assert_eq!(buffers, running, "an evaluation moves nothing");
}

#[test]
fn two_stages_of_one_module_share_no_running_numbers() {
    let module = layers();
    let (one, other) = (stage(module.clone(), "one"), stage(module, "other"));
    let device = Device::flex();
    let parameters = |stage: &dyn FlatBlock| -> Vec<Tensor<1>> {
        let ones = |parameter: &Parameter| Tensor::ones([parameter.len()], &device);
        stage.parameters().iter().map(ones).collect()
    };
    let first = [[0.0; 2], [1.0; 2]];
    let there = first.map(|it| Tensor::<1>::from_floats(it, &device));
    let (one, other) = (
        one.load(&parameters(&*one), &there, Use::Training),
        other.load(&parameters(&*other), &there, Use::Training),
    );
    let input = vec![Part::floats(vec![1.0, 2.0, 3.0, 4.0], &[2, 2], &device).leaf(false)];
    let mut pass = Pass::new(Some(crate::random::Key::new(0)), std::collections::BTreeMap::new(), None);
    let _ = one.forward(input, &mut pass);
    let buffers = |of: &dyn Loaded| of.buffers().into_iter().map(to_numbers).collect::<Vec<_>>();
    assert_ne!(buffers(&*one), first);
    assert_eq!(buffers(&*other), first);
}

#[derive(Module, Debug)]
struct Random {
    dropout: burn::nn::Dropout,
}
crate::block!(Random, |self, input: Tensor<2>| -> Tensor<2> { self.dropout.forward(input) });

#[derive(Module, Debug)]
struct Foreign {
    norm: burn::nn::BatchNorm,
}
crate::block!(Foreign, |self, input: Tensor<2>| -> Tensor<2> { self.norm.forward(input) });

#[test]
fn layers_that_draw_from_the_process_are_objected_to() {
    let objection = stage(Random { dropout: DropoutConfig::new(0.5).init() }, "noise").objection().unwrap();
    assert!(
        objection.contains("block noise") && objection.contains("shardd_trainer::nn::Dropout"),
        "{objection}"
    );
    assert_eq!(stage(layers(), "body").objection(), None);
    let foreign = stage(Foreign { norm: BatchNormConfig::new(3).init(&Device::flex()) }, "norm");
    assert_eq!(
        foreign.objection(),
        None,
        "burn's normalisation keeps its running numbers where they are found"
    );
    assert_eq!(foreign.buffers().len(), 2);
}
