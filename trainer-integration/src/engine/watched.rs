//! The loss of each row of a micro-batch, beside that of all of them.

use std::ops::Range;

use super::MicroBatch;
use crate::tensor_tree::Part;

impl<'a> MicroBatch<'a> {
    /// Measures each row alone, too, and gives `watch` its number, the sum of its losses, and the answers they are of.
    ///
    /// The micro-batch is measured as without it, to the last bit. A row is given again if the device had no memory for the pass
    /// that followed. Every tensor of the output has equally many outermost entries for each row of the input.
    pub(crate) fn watched(self, watch: impl Fn(usize, f64, u64) + 'a) -> MicroBatch<'a> {
        let MicroBatch { input, measure, is_divisible } = self;
        let watching = move |output: Vec<Part>, rows: Range<usize>, of: usize| {
            for (at, row) in rows.clone().enumerate() {
                let own = output.iter().map(|part| {
                    let each = part.shape()[0] / rows.len();
                    part.rows(at * each..(at + 1) * each)
                });
                let measured = measure(own.collect(), row..row + 1, of);
                watch(row, measured.losses.read().0, measured.samples);
            }
            measure(output, rows, of)
        };
        MicroBatch { input, measure: Box::new(watching), is_divisible }
    }
}
