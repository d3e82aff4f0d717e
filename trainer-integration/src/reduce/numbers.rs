//! Bytes as numbers, and numbers added to numbers.

use std::borrow::Cow;
use std::ops::Add;

use bytemuck::Pod;

/// The bytes of whole numbers, which are copied only where they are not aligned.
pub(super) fn numbers<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

/// `left[i] + right[i]`, in place of `left[i]`.
pub(super) fn add_right<T: Copy + Add<Output = T>>(left: &mut [T], right: &[T]) {
    for (left, &right) in left.iter_mut().zip(right) {
        *left = *left + right;
    }
}
