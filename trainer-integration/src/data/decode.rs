//! Encoded images to pixels.

use std::io::Cursor;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use image::imageops::{FilterType, resize};
use image::{ImageError, ImageReader};
use rayon::prelude::*;

use super::error::InputError;

/// Every image as RGB of `size` x `size`, pixel by pixel; decoded in parallel, in the order of the rows.
pub(super) fn images(array: &ArrayRef, positions: &[u64], size: usize) -> Result<Vec<u8>, InputError> {
    let encoded: Vec<&[u8]> = match array.data_type() {
        DataType::LargeBinary => array.as_binary::<i64>().iter().flatten().collect(),
        DataType::BinaryView => array.as_binary_view().iter().flatten().collect(),
        _ => array.as_binary::<i32>().iter().flatten().collect(),
    };
    let decoded: Vec<Result<Vec<u8>, ImageError>> =
        encoded.par_iter().map(|bytes| decode(bytes, size)).collect();
    let mut pixels = Vec::with_capacity(array.len() * 3 * size * size);
    for (image, &position) in decoded.into_iter().zip(positions) {
        pixels.extend(image.map_err(|source| InputError::Image { position, source })?);
    }
    Ok(pixels)
}

fn decode(bytes: &[u8], size: usize) -> Result<Vec<u8>, ImageError> {
    let mut image = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?.decode()?.into_rgb8();
    let side = size as u32;
    if image.dimensions() != (side, side) {
        image = resize(&image, side, side, FilterType::Triangle);
    }
    Ok(image.into_raw())
}
