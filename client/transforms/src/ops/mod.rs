//! The operations: arguments of torchvision.transforms.v2, and its pixels.

pub mod arguments;
pub mod auto;
mod automatic;
pub mod blur;
pub mod boxes;
pub mod color;
pub mod crop;
pub mod distributions;
pub mod erase;
pub mod flip;
pub mod geometry;
pub mod iou_crop;
pub mod numbers;
pub mod random_color;
pub mod random_geometry;
pub mod random_size;
pub mod resize;
