//! Gradients of the operations.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;

use super::kernels::Kernels;
use super::{Arithmetic, Windows};

impl<B: Kernels, C: CheckpointStrategy> Arithmetic for Autodiff<B, C> {
    fn product(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        let (wants_left, wants_right) = (left.is_tracked(), right.is_tracked());
        match Product.prepare::<C>([left.node(), right.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let of_left = wants_right.then(|| step.checkpoint(&left));
                let of_right = wants_left.then(|| step.checkpoint(&right));
                let output = B::multiply(left.into_primitive(), right.into_primitive());
                step.finish((of_left, of_right), output)
            }
            OpsKind::UnTracked(step) => {
                step.finish(B::multiply(left.into_primitive(), right.into_primitive()))
            }
        }
    }

    fn convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        match Convolution.prepare::<C>([input.node(), weight.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let state = (step.checkpoint(&input), step.checkpoint(&weight), options.clone());
                let output = B::convolve(input.into_primitive(), weight.into_primitive(), options);
                step.finish(state, output)
            }
            OpsKind::UnTracked(step) => {
                step.finish(B::convolve(input.into_primitive(), weight.into_primitive(), options))
            }
        }
    }

    fn largest_of_windows(input: FloatTensor<Self>, windows: Windows) -> FloatTensor<Self> {
        match Largest.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let state = (step.checkpoint(&input), windows);
                step.finish(state, B::largest(input.into_primitive(), windows))
            }
            OpsKind::UnTracked(step) => step.finish(B::largest(input.into_primitive(), windows)),
        }
    }

    fn normalise(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let nodes = [input.node(), scale.node(), shift.node()];
        let constants = |mean, variance| (<FloatTensor<Self>>::new(mean), <FloatTensor<Self>>::new(variance));
        match Normalisation.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let (of_input, of_scale) = (step.checkpoint(&input), step.checkpoint(&scale));
                let [input, scale, shift] = [input, scale, shift].map(<FloatTensor<Self>>::into_primitive);
                let (output, mean, variance) = B::normalise(input, scale, shift, epsilon);
                let state = (of_input, of_scale, [mean.clone(), variance.clone()], epsilon);
                let (mean, variance) = constants(mean, variance);
                (step.finish(state, output), mean, variance)
            }
            OpsKind::UnTracked(step) => {
                let [input, scale, shift] = [input, scale, shift].map(<FloatTensor<Self>>::into_primitive);
                let (output, mean, variance) = B::normalise(input, scale, shift, epsilon);
                let (mean, variance) = constants(mean, variance);
                (step.finish(output), mean, variance)
            }
        }
    }

    fn layer_norm_of_rows(
        input: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let nodes = [input.node(), scale.node(), shift.node()];
        match LayerNormalisation.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let state = (step.checkpoint(&input), step.checkpoint(&scale), epsilon);
                let [input, scale, shift] = [input, scale, shift].map(<FloatTensor<Self>>::into_primitive);
                step.finish(state, B::layer_norm_rows(input, scale, shift, epsilon))
            }
            OpsKind::UnTracked(step) => {
                let [input, scale, shift] = [input, scale, shift].map(<FloatTensor<Self>>::into_primitive);
                step.finish(B::layer_norm_rows(input, scale, shift, epsilon))
            }
        }
    }

    fn softmax_of_rows(input: FloatTensor<Self>) -> FloatTensor<Self> {
        match Softmax.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => {
                let output = B::softmax_rows(input.into_primitive());
                step.finish(output.clone(), output)
            }
            OpsKind::UnTracked(step) => step.finish(B::softmax_rows(input.into_primitive())),
        }
    }

    fn gelu_of(input: FloatTensor<Self>) -> FloatTensor<Self> {
        match Gelu.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut step) => {
                let of_input = step.checkpoint(&input);
                step.finish(of_input, B::gelu_all(input.into_primitive()))
            }
            OpsKind::UnTracked(step) => step.finish(B::gelu_all(input.into_primitive())),
        }
    }

    fn seed(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let zero = B::zero(output.primitive());
        match Seed.prepare::<C>([output.node()]).compute_bound().stateful() {
            OpsKind::Tracked(step) => step.finish(gradient.into_primitive(), zero),
            OpsKind::UnTracked(step) => step.finish(zero),
        }
    }
}

#[derive(Debug)]
struct Product;

impl<B: Kernels> Backward<B, 2> for Product {
    /// The sides that the gradient of the other side needs.
    type State = (Option<NodeId>, Option<NodeId>);

    fn backward(self, ops: Ops<Self::State, 2>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [left, right] = ops.parents;
        let gradient = found.consume::<B>(&ops.node);
        let (of_left, of_right) = ops.state;
        let mut value = |node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node);
        let (of_left, of_right) = (of_left.map(&mut value), of_right.map(&mut value));
        if let (Some(left), Some(right)) = (left, of_right) {
            found.register::<B>(left.id, B::multiply(gradient.clone(), B::float_transpose(right)));
        }
        if let (Some(right), Some(left)) = (right, of_left) {
            found.register::<B>(right.id, B::multiply(B::float_transpose(left), gradient));
        }
    }
}

#[derive(Debug)]
struct Convolution;

impl<B: Kernels> Backward<B, 2> for Convolution {
    type State = (NodeId, NodeId, ConvOptions<2>);

    fn backward(self, ops: Ops<Self::State, 2>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [of_input, of_weight] = ops.parents;
        let gradient = found.consume::<B>(&ops.node);
        let (input, weight, options) = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(input);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
        if let Some(node) = of_input {
            let (input, weight, gradient) = (input.clone(), weight.clone(), gradient.clone());
            found.register::<B>(node.id, B::convolve_back_to_input(input, weight, gradient, options.clone()));
        }
        if let Some(node) = of_weight {
            found.register::<B>(node.id, B::convolve_back_to_weight(input, weight, gradient, options));
        }
    }
}

#[derive(Debug)]
struct Largest;

impl<B: Kernels> Backward<B, 1> for Largest {
    /// The input.
    type State = (NodeId, Windows);

    fn backward(self, ops: Ops<Self::State, 1>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = found.consume::<B>(&ops.node);
        let (input, windows) = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(input);
        if let [Some(node)] = ops.parents {
            found.register::<B>(node.id, B::largest_back(input, windows, gradient));
        }
    }
}

#[derive(Debug)]
struct Normalisation;

impl<B: Kernels> Backward<B, 3> for Normalisation {
    type State = (NodeId, NodeId, [FloatTensor<B>; 2], f64);

    fn backward(self, ops: Ops<Self::State, 3>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = found.consume::<B>(&ops.node);
        let (input, scale, statistics, epsilon) = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(input);
        let scale = checkpointer.retrieve_node_output::<FloatTensor<B>>(scale);
        let gradients = B::normalise_back(input, scale, statistics, epsilon, gradient);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                found.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct LayerNormalisation;

impl<B: Kernels> Backward<B, 3> for LayerNormalisation {
    type State = (NodeId, NodeId, f64);

    fn backward(self, ops: Ops<Self::State, 3>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = found.consume::<B>(&ops.node);
        let (input, scale, epsilon) = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(input);
        let scale = checkpointer.retrieve_node_output::<FloatTensor<B>>(scale);
        let gradients = B::layer_norm_rows_back(input, scale, epsilon, gradient);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                found.register::<B>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Softmax;

impl<B: Kernels> Backward<B, 1> for Softmax {
    /// The output.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, found: &mut Gradients, _: &mut Checkpointer) {
        let gradient = found.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            found.register::<B>(node.id, B::softmax_rows_back(ops.state, gradient));
        }
    }
}

#[derive(Debug)]
struct Gelu;

impl<B: Kernels> Backward<B, 1> for Gelu {
    /// The input.
    type State = NodeId;

    fn backward(self, ops: Ops<Self::State, 1>, found: &mut Gradients, checkpointer: &mut Checkpointer) {
        let gradient = found.consume::<B>(&ops.node);
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(ops.state);
        if let [Some(node)] = ops.parents {
            found.register::<B>(node.id, B::gelu_all_back(input, gradient));
        }
    }
}

#[derive(Debug)]
struct Seed;

impl<B: Kernels> Backward<B, 1> for Seed {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, found: &mut Gradients, _: &mut Checkpointer) {
        // That of the zero, which is always 1.
        found.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            found.register::<B>(node.id, ops.state);
        }
    }
}
