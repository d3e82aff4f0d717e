//! What deep gradient compression adds to sending the largest numbers (Lin et al., "Deep gradient compression", ICLR 2018). Pure.

use super::residual::Residual;

/// Which share of the numbers is sent, by the epoch: less and less until it is the wanted one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparsity {
    /// In the end.
    pub share: f32,
}

impl Sparsity {
    /// A quarter in the first epoch, then a quarter of that in each of the next three, but never less than wanted.
    pub fn of_epoch(self, epoch: u32) -> f32 {
        if epoch >= 4 { self.share } else { 0.25f32.powi(epoch as i32 + 1).max(self.share) }
    }
}

/// Takes in another gradient, with momentum corrected: velocities are added up, not gradients.
pub(super) fn accumulate(residual: &mut Residual, gradient: &[f32], momentum: f32) {
    residual.velocity.resize(gradient.len(), 0.0);
    residual.gradients.resize(gradient.len(), 0.0);
    for ((velocity, sum), gradient) in residual.velocity.iter_mut().zip(&mut residual.gradients).zip(gradient)
    {
        *velocity = momentum * *velocity + gradient;
        *sum += *velocity;
    }
}

/// Forgets a number that is sent, and its momentum: stale momentum shall not continue to push.
pub(super) fn forget_sent(residual: &mut Residual, place: usize) {
    residual.velocity[place] = 0.0;
    residual.gradients[place] = 0.0;
}

/// Brings a rank's gradient to at most its part of a limit for all: gradients of N ranks that point anywhere have a sum of length N^1/2.
pub(super) fn clip_locally(gradient: &mut [f32], limit: f32, world: u32) {
    let length = gradient.iter().map(|number| f64::from(*number) * f64::from(*number)).sum::<f64>().sqrt();
    let limit = f64::from(limit) / f64::from(world).sqrt();
    if length.is_finite() && length > limit {
        let factor = (limit / length) as f32;
        gradient.iter_mut().for_each(|number| *number *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_falls_over_the_first_epochs() {
        let share = |epoch| Sparsity { share: 0.001 }.of_epoch(epoch);
        assert_eq!([0, 1, 2, 3, 4, 9].map(share), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.001, 0.001]);
        assert_eq!(Sparsity { share: 0.1 }.of_epoch(1), 0.1);
    }

    #[test]
    fn velocities_add_up_until_they_are_sent() {
        let mut residual = Residual::default();
        accumulate(&mut residual, &[1.0, 2.0], 0.5);
        accumulate(&mut residual, &[1.0, 0.0], 0.5);
        // Velocities 1, 1.5 and 2, 1.
        assert_eq!(residual.gradients, [2.5, 3.0]);
        forget_sent(&mut residual, 1);
        accumulate(&mut residual, &[0.0, 1.0], 0.5);
        assert_eq!(residual.gradients, [3.25, 1.0], "its momentum is gone with it");
    }

    #[test]
    fn a_rank_clips_to_its_part() {
        let mut gradient = [3.0, 4.0];
        clip_locally(&mut gradient, 20.0, 4);
        assert_eq!(gradient, [3.0, 4.0]);
        clip_locally(&mut gradient, 2.0, 4);
        assert_eq!(gradient, [0.6, 0.8]);
    }
}
