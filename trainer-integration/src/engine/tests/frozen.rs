//! Frozen parameters save computation.

use std::sync::Mutex;

use super::*;

/// Whether tensors of blocks were part of a graph, by the name of the tensor.
static TRACKED: Mutex<Vec<(&str, bool)>> = Mutex::new(Vec::new());

/// Keeps its weight for later blocks.
#[derive(Module, Debug)]
struct Keeping {
    linear: Linear,
}
crate::block!(Keeping, |self, input: Tensor<2>, pass| -> Tensor<2> {
    pass.keep("weight", self.linear.weight.val());
    let output = self.linear.forward(input);
    TRACKED.lock().unwrap().push(("output", output.is_tracked()));
    output
});

/// Uses a kept weight again.
#[derive(Module, Debug)]
struct Recalling {
    linear: Linear,
}
crate::block!(Recalling, |self, input: Tensor<2>, pass| -> Tensor<2> {
    let weight: Tensor<2> = pass.recall("weight");
    TRACKED.lock().unwrap().push(("recalled", weight.is_tracked()));
    log_softmax(self.linear.forward(input.matmul(weight)), 1)
});

#[test]
fn nothing_flows_back_into_frozen_blocks_also_where_their_weights_are_used_again() {
    for zero in [Zero::Nothing, Zero::Gradients, Zero::Parameters] {
        for is_frozen in [false, true] {
            let chain =
                Chain::start(Keeping { linear: linear(64, 64) }).then(Recalling { linear: linear(64, 10) });
            let model = chain.freeze(|name| is_frozen && name.starts_with("0.")).into_model();
            let weights = model.initial(0);
            let (ranks, comm) = (VirtualRanks { count: 2, world: 1 }, alone());
            let mut engine = Engine::blank(model, zero, Device::flex(), ranks, PLAIN, Key::new(0), comm);
            weights.iter().enumerate().for_each(|(block, weights)| engine.begin_block(block, weights));
            TRACKED.lock().unwrap().clear();
            engine.step(vec![columns(4, 1), columns(4, 2)], plan(0), |_| true).unwrap();
            let tracked = TRACKED.lock().unwrap();
            for name in ["output", "recalled"] {
                let mut of_name =
                    tracked.iter().filter(|(of, _)| *of == name).map(|(_, is_tracked)| *is_tracked);
                assert_eq!(of_name.any(|is_tracked| is_tracked), !is_frozen, "{zero:?}: {tracked:?}");
            }
            drop(tracked);
            let after = engine.parameters().unwrap();
            assert_eq!((after[0] == weights[0], after[1] == weights[1]), (is_frozen, false), "{zero:?}");
        }
    }
}
