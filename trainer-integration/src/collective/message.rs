//! Bytes that came from another rank, and the numbers they are.

use std::borrow::Cow;

/// A message from one rank to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(bytes: Vec<u8>) -> Message {
        Message(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The message as numbers; `None` when its length is not a whole number of them.
    pub fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self) -> Option<Cow<'_, [T]>> {
        if !self.0.len().is_multiple_of(size_of::<T>()) {
            return None;
        }
        // The allocator aligns whole messages well enough, so this borrows; the copy is for the odd one that is not.
        Some(match bytemuck::try_cast_slice(&self.0) {
            Ok(numbers) => Cow::Borrowed(numbers),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.0)),
        })
    }
}
