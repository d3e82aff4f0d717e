//! Layers whose numbers are the same wherever a virtual rank is computed; for all others, burn's own serve.

mod dropout;
pub(crate) mod lora;
pub(crate) mod norm;

pub use crate::arithmetic::{conv2d_layer, gelu, linear, linear_layer, matmul, max_pool2d_layer, softmax};
pub use dropout::Dropout;
pub use lora::{AdaptedLinear, Lora};
pub use norm::{BatchNorm, SyncBatchNorm, layer_norm};
