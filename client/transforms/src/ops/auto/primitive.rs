//! The single operations of automatic augmentation.

use crate::{
    image::Image,
    ops::{
        blur, color,
        geometry::{Interpolation, affine, rotate},
    },
};

/// An operation and how strong it is: torchvision's `_apply_image_or_video_transform`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Primitive {
    /// Leaves the picture as it is.
    Identity,
    /// Moves each row to the left by this times its number.
    ShearX(f64),
    /// Moves each column up by this times its number.
    ShearY(f64),
    /// Moves the picture to the right by pixels.
    TranslateX(i64),
    /// Moves the picture down by pixels.
    TranslateY(i64),
    /// Rotates by degrees, counter-clockwise.
    Rotate(f64),
    /// Multiplies the brightness by 1 plus this.
    Brightness(f64),
    /// Multiplies the saturation by 1 plus this.
    Color(f64),
    /// Multiplies the contrast by 1 plus this.
    Contrast(f64),
    /// Multiplies the sharpness by 1 plus this.
    Sharpness(f64),
    /// Keeps this many bits of each number.
    Posterize(u32),
    /// Inverts the numbers from this share of 255 on.
    Solarize(f64),
    /// Stretches the range of each channel.
    AutoContrast,
    /// Evens out the histogram of each channel.
    Equalize,
    /// Inverts all numbers.
    Invert,
}

impl Primitive {
    /// The picture after the operation, of the same size. `fill` is as
    /// [`Fill::values`](crate::ops::geometry::Fill::values) gives it.
    pub fn apply(&self, mut image: Image<u8>, interpolation: Interpolation, fill: &[f32]) -> Image<u8> {
        let shear = |image: &Image<u8>, shear: [f64; 2]| {
            let degrees = shear.map(|magnitude| libm::atan(magnitude).to_degrees());
            affine(image, 0.0, [0.0; 2], 1.0, degrees, interpolation, fill, Some([0.0; 2]))
        };
        let translate = |image: &Image<u8>, pixels: [i64; 2]| {
            let pixels = pixels.map(|pixels| pixels as f64);
            affine(image, 0.0, pixels, 1.0, [0.0; 2], interpolation, fill, None)
        };
        match *self {
            Self::Identity => {}
            Self::ShearX(magnitude) => return shear(&image, [magnitude, 0.0]),
            Self::ShearY(magnitude) => return shear(&image, [0.0, magnitude]),
            Self::TranslateX(pixels) => return translate(&image, [pixels, 0]),
            Self::TranslateY(pixels) => return translate(&image, [0, pixels]),
            Self::Rotate(angle) => return rotate(&image, angle, interpolation, false, None, fill),
            Self::Brightness(magnitude) => color::adjust_brightness(&mut image, 1.0 + magnitude),
            Self::Color(magnitude) => color::adjust_saturation(&mut image, 1.0 + magnitude),
            Self::Contrast(magnitude) => color::adjust_contrast(&mut image, 1.0 + magnitude),
            Self::Sharpness(magnitude) => blur::adjust_sharpness(&mut image, 1.0 + magnitude),
            Self::Posterize(bits) => color::posterize(&mut image, bits),
            Self::Solarize(share) => color::solarize(&mut image, 255.0 * share),
            Self::AutoContrast => color::autocontrast(&mut image),
            Self::Equalize => color::equalize(&mut image),
            Self::Invert => color::invert(&mut image),
        }
        image
    }

    /// The picture after several operations.
    pub fn apply_all(
        all: &[Self],
        image: Image<u8>,
        interpolation: Interpolation,
        fill: &[f32],
    ) -> Image<u8> {
        all.iter().fold(image, |image, primitive| primitive.apply(image, interpolation, fill))
    }
}
