//! Where the random numbers of operations come from.

/// Uniform random numbers, one after the other.
///
/// Each random operation documents how many it takes, and in which order. A second implementation can then compute an
/// operation's parameters from the same numbers, for example with NumPy.
pub trait Draw {
    /// The next number, in `0.0..1.0`.
    fn uniform(&mut self) -> f64;
}

impl<D: Draw + ?Sized> Draw for &mut D {
    fn uniform(&mut self) -> f64 {
        (**self).uniform()
    }
}

/// The numbers of an operation in a chain.
impl Draw for shardd_transforms::Draws {
    fn uniform(&mut self) -> f64 {
        Self::uniform(self)
    }
}
