//! Matrix products, convolutions, normalisations and activations whose bits are the same on every processor and for any number of threads.
//!
//! # Definition
//!
//! Each number of a product is a sum over the *depth*: the columns of the left matrix, the taps of a convolution, the
//! pixels of a batch. The depth is cut into chunks of [`CHUNK`] steps. Within a chunk, each step is one fused
//! multiply-add in order, from zero. The sums of the chunks are added in order, from the first chunk's sum:
//!
//! ```
//! fn product(a: &[f32], b: &[f32]) -> f32 {
//!     let sums = a.chunks(shardd_kernels::CHUNK).zip(b.chunks(shardd_kernels::CHUNK)).map(|(a, b)| {
//!         a.iter().zip(b).fold(0.0_f32, |sum, (a, b)| a.mul_add(*b, sum))
//!     });
//!     sums.reduce(|sum, next| sum + next).unwrap_or(0.0)
//! }
//! # assert_eq!(product(&[1.0, 2.0], &[3.0, 4.0]), 11.0);
//! ```
//!
//! A vector holds different numbers of the result, never different steps of one number. Its width, the sizes of caches
//! and the number of threads therefore decide the speed alone. Processors with AVX-512, with AVX2 and FMA, and with
//! NEON compute the definition at full speed; others compute the fused multiply-add in software, exactly, and are
//! slower by an order of magnitude.
//!
//! # Sums
//!
//! A sum of a row has [`CHAINS`] partial sums: number `i` is added to partial sum `i % CHAINS`, in order. The upper half of the partial
//! sums is then added to the lower half, until one is left.
//!
//! Infinities and NaN follow IEEE 754, but the bits of a NaN are not defined. A tap outside of an image is a
//! multiplication with zero.

mod activation;
mod conv;
mod elementary;
mod fixed;
mod layer_norm;
mod level;
mod matrix;
mod norm;
mod operand;
mod pool;
mod product;
mod sum;
#[cfg(test)]
mod testkit;

pub use activation::{gelu, gelu_gradient, softmax, softmax_gradient};
pub use conv::{Conv, ConvError};
pub use fixed::{add_whole, from_whole, largest_exponent};
pub use layer_norm::LayerNorm;
pub use level::Level;
pub use matrix::{Matrix, multiply};
pub use norm::{BatchNorm, NormGradient, Normalised};
pub use pool::MaxPool;
pub use sum::{CHAINS, sum};

/// Steps of the depth that are summed before their sum is added to those of the steps before.
pub const CHUNK: usize = 512;
