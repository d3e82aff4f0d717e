//! Softmax cross-entropy, its gradient and the number of right answers, on the host in one fixed order.

/// What a micro-batch's logits amount to.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Sum of the samples' losses.
    pub sum: f64,
    /// Samples whose largest logit (the first of equals) is the label's.
    pub correct: u64,
    /// Of `sum / divisor` with respect to each logit.
    pub gradient: Vec<f32>,
}

/// The loss of `labels.len()` rows of `classes` logits. The gradient is divided by `divisor`, the samples of the whole
/// step, so that gradients of all virtual ranks add up to that of the mean.
///
/// # Panics
/// If lengths do not match or a label is not a class.
pub fn cross_entropy(logits: &[f32], labels: &[u32], classes: usize, divisor: u64) -> Loss {
    assert_eq!(logits.len(), labels.len() * classes, "a row of logits for every label");
    let mut loss = Loss { sum: 0.0, correct: 0, gradient: Vec::with_capacity(logits.len()) };
    for (row, &label) in logits.chunks_exact(classes).zip(labels) {
        let label = label as usize;
        let (largest, top) =
            row.iter().enumerate().fold((0, f32::NEG_INFINITY), |(at, top), (index, &logit)| {
                if logit > top { (index, logit) } else { (at, top) }
            });
        let shifted = |logit: f32| f64::from(logit) - f64::from(top);
        let total: f64 = row.iter().map(|&logit| shifted(logit).exp()).sum();
        loss.sum += total.ln() - shifted(row[label]);
        loss.correct += u64::from(largest == label);
        loss.gradient.extend(row.iter().enumerate().map(|(class, &logit)| {
            let target = if class == label { 1.0 } else { 0.0 };
            ((shifted(logit).exp() / total - target) / divisor as f64) as f32
        }));
    }
    loss
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_logits_lose_the_logarithm_of_the_classes() {
        let loss = cross_entropy(&[1.0; 8], &[0, 3], 4, 2);
        assert!((loss.sum - 2.0 * 4f64.ln()).abs() < 1e-12);
        assert_eq!(loss.correct, 1, "the first of equals is the answer");
        assert_eq!(loss.gradient[..4], [-0.375, 0.125, 0.125, 0.125]);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let loss = cross_entropy(&[1e30, -1e30], &[0], 2, 1);
        assert_eq!((loss.sum, loss.correct), (0.0, 1));
    }

    #[test]
    fn a_logit_that_is_no_number_shows_in_the_loss() {
        assert!(!cross_entropy(&[f32::NAN, 0.0], &[0], 2, 1).sum.is_finite());
    }

    proptest! {
        #[test]
        fn the_gradient_is_the_slope(logits in prop::collection::vec(-3.0f32..3.0, 6), label in 0..3u32, at in 0..6usize) {
            let labels = [label, 2 - label];
            let slope = {
                const STEP: f32 = 1e-2;
                let moved = |by: f32| {
                    let mut moved = logits.clone();
                    moved[at] += by;
                    cross_entropy(&moved, &labels, 3, 5).sum / 5.0
                };
                (moved(STEP) - moved(-STEP)) / f64::from(2.0 * STEP)
            };
            let gradient = cross_entropy(&logits, &labels, 3, 5).gradient[at];
            prop_assert!((f64::from(gradient) - slope).abs() < 1e-4);
        }
    }
}
