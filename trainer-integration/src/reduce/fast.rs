//! The fast all-reduce: every rank brings one sum of all its virtual ranks. Equal to the exact one but for rounding, which depends on the number of ranks.

use super::exact::slice_of;
use crate::collective::{Collective, CollectiveError, Message};

/// The sum over all ranks, the same bits on every rank: the owner of each slice adds it up in the order of ranks, and sends it to all.
///
/// # Errors
/// Names the rank that is gone, late, or brings another number of parameters.
pub fn sum_all(collective: &mut dyn Collective, mut mine: Vec<f32>) -> Result<Vec<f32>, CollectiveError> {
    let (rank, world, length) = (collective.rank(), collective.world(), mine.len());
    if world == 1 {
        return Ok(mine);
    }
    let slices: Vec<&[u8]> =
        (0..world).map(|to| bytemuck::cast_slice(&mine[slice_of(length, to, world)])).collect();
    let received = collective.exchange(&slices)?;
    let own = slice_of(length, rank, world);
    let mut sum = vec![0.0; own.len()];
    for (from, message) in received.iter().enumerate() {
        let numbers = numbers_of(message, from, own.len())?;
        sum.iter_mut().zip(numbers.iter()).for_each(|(sum, number)| *sum += number);
    }
    let all = collective.all_gather(bytemuck::cast_slice(&sum))?;
    for (from, message) in all.iter().enumerate() {
        let slice = slice_of(length, from as u32, world);
        mine[slice.clone()].copy_from_slice(&numbers_of(message, from, slice.len())?);
    }
    Ok(mine)
}

fn numbers_of(
    message: &Message,
    from: usize,
    expected: usize,
) -> Result<std::borrow::Cow<'_, [f32]>, CollectiveError> {
    let numbers = message.numbers::<f32>().filter(|numbers| numbers.len() == expected);
    numbers.ok_or_else(|| {
        let what = format!("{} bytes of a sum of {expected} numbers", message.bytes().len());
        CollectiveError::Malformed { rank: from as u32, what }
    })
}
