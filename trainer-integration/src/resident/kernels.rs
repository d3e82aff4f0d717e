//! The arithmetic of a step in burn's kernel language, which CUDA and wgpu share.
//!
//! Numbers of a block are trained parameters one after the other. A table says of each parameter where its numbers end, and
//! what holds for all of them; a unit finds its parameter by halving. How many numbers there are the last end says: memory may be longer
//! than its tensor.

// The macros take shared and mutable slices for buffers, and their code has casts of its own.
#![allow(clippy::too_many_arguments, reason = "a kernel has an argument for each buffer and number")]

use burn::cubecl;
use burn::cubecl::prelude::*;

use crate::cube::{UNITS, sum_of_units};

/// The first parameter that ends behind a place. `table` begins with the ends of all `count` parameters.
#[cube]
fn parameter_at(table: &[u32], count: u32, place: u32) -> u32 {
    let mut low = 0u32;
    let mut high = count;
    while low < high {
        let middle = (low + high) / 2;
        if table[middle as usize] > place {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// A product, rounded: compilers may not add to it before. `zero` is 0, of which they know nothing. So the numbers of an optimizer have the
/// bits of the host's loops on every device that rounds single operations as IEEE 754 says.
#[cube]
fn rounded(product: f32, zero: u32) -> f32 {
    f32::reinterpret(u32::reinterpret(product) ^ zero)
}

/// -1, 0 or 1.
#[cube]
fn sign(number: f32) -> f32 {
    let mut sign = 0.0f32;
    if number > 0.0f32 {
        sign = 1.0f32;
    }
    if number < 0.0f32 {
        sign = -1.0f32;
    }
    sign
}

/// Where a number of a place has its weight, and how much it decays. Behind the ends, the table has the distance of each
/// parameter's weights from its other numbers, and then the bits of its share of the weight decay.
#[cube]
fn weight_at(table: &[u32], count: u32, place: u32) -> (u32, f32) {
    let parameter = parameter_at(table, count, place);
    let at = place + table[(count + parameter) as usize];
    let decay = f32::reinterpret(table[(2u32 * count + parameter) as usize]);
    (at, decay)
}

/// `Optimizer::Sgd`.
#[cube(launch)]
pub(super) fn sgd(
    weights: &mut [f32],
    velocity: &mut [f32],
    gradient: &[f32],
    table: &[u32],
    count: u32,
    start: u32,
    rate: f32,
    factor: f32,
    momentum: f32,
    weight_decay: f32,
    zero: u32,
) {
    let length = table[(count - 1u32) as usize] as usize;
    let mut place = ABSOLUTE_POS;
    while place < length {
        let (at, share) = weight_at(table, count, place as u32);
        let at = at as usize;
        let weight = weights[at];
        let gradient = rounded(gradient[start as usize + place] * factor, zero);
        let pull = rounded(share * weight_decay * weight, zero);
        let moved = rounded(momentum * velocity[place], zero) + (gradient + pull);
        velocity[place] = moved;
        weights[at] = weight - rounded(rate * moved, zero);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// `Optimizer::Lion`.
#[cube(launch)]
pub(super) fn lion(
    weights: &mut [f32],
    momentum: &mut [f32],
    gradient: &[f32],
    table: &[u32],
    count: u32,
    start: u32,
    rate: f32,
    factor: f32,
    beta1: f32,
    beta2: f32,
    weight_decay: f32,
    zero: u32,
) {
    let length = table[(count - 1u32) as usize] as usize;
    let mut place = ABSOLUTE_POS;
    while place < length {
        let (at, share) = weight_at(table, count, place as u32);
        let at = at as usize;
        let weight = weights[at];
        let gradient = rounded(gradient[start as usize + place] * factor, zero);
        let before = momentum[place];
        let step = sign(rounded(beta1 * before, zero) + rounded((1.0f32 - beta1) * gradient, zero));
        let pull = rounded(share * weight_decay * weight, zero);
        weights[at] = weight - rounded(rate * (step + pull), zero);
        momentum[place] = rounded(beta2 * before, zero) + rounded((1.0f32 - beta2) * gradient, zero);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// `Optimizer::Adam`, and with `is_apart` `Optimizer::AdamW`.
#[cube(launch)]
pub(super) fn adam(
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    table: &[u32],
    count: u32,
    start: u32,
    rate: f32,
    factor: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    correct1: f32,
    correct2: f32,
    zero: u32,
    #[comptime] is_apart: bool,
) {
    let length = table[(count - 1u32) as usize] as usize;
    let mut place = ABSOLUTE_POS;
    while place < length {
        let (at, share) = weight_at(table, count, place as u32);
        let at = at as usize;
        let decay = share * weight_decay;
        let mut weight = weights[at];
        let mut gradient = rounded(gradient[start as usize + place] * factor, zero);
        if comptime![is_apart] {
            weight -= rounded(rate * decay * weight, zero);
        } else {
            gradient += rounded(decay * weight, zero);
        }
        let mean = rounded(beta1 * first[place], zero) + rounded((1.0f32 - beta1) * gradient, zero);
        let more = rounded((1.0f32 - beta2) * gradient * gradient, zero);
        let square = rounded(beta2 * second[place], zero) + more;
        first[place] = mean;
        second[place] = square;
        weights[at] = weight - rate * (mean / correct1) / ((square / correct2).sqrt() + epsilon);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The sum of the squares of the numbers of each cube, in a fixed order, as the bits of `sums` from `into` on.
#[cube(launch)]
pub(super) fn squares(numbers: &[f32], sums: &mut [u32], start: u32, length: u32, into: u32) {
    let mut sum = 0.0f32;
    let mut place = ABSOLUTE_POS;
    while place < length as usize {
        let number = numbers[start as usize + place];
        sum += number * number;
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
    let mut room = Shared::<[f32]>::new_slice(comptime![UNITS as usize]);
    let of_cube = sum_of_units(&mut room, sum);
    if UNIT_POS == 0 {
        sums[into as usize + CUBE_POS] = u32::reinterpret(of_cube);
    }
}

/// A number as a whole number of 64 bits, the lower and the upper half: multiplied by 2 to the power of `places`, rounded to the
/// nearest, and of two equally near to the even one. Only whole numbers are added and shifted, so that no device rounds
/// otherwise.
#[cube]
fn whole(number: f32, places: i32) -> (u32, u32) {
    let bits = u32::reinterpret(number);
    let field = bits >> 23u32 & 0xffu32;
    let mut mantissa = bits & 0x7f_ffffu32;
    let mut exponent = 1i32;
    if field > 0u32 {
        mantissa |= 0x80_0000u32;
        exponent = field as i32;
    }
    let shift = exponent - 150 + places;
    let mut low = 0u32;
    let mut high = 0u32;
    if shift >= 0 {
        let left = shift as u32;
        if left == 0u32 {
            low = mantissa;
        } else if left < 32u32 {
            low = mantissa << left;
            high = mantissa >> (32u32 - left);
        } else if left < 64u32 {
            high = mantissa << (left - 32u32);
        }
    } else if shift >= -24 {
        let right = (-shift) as u32;
        low = mantissa >> right;
        let rest = mantissa & ((1u32 << right) - 1u32);
        let half = 1u32 << (right - 1u32);
        if rest > half || (rest == half && low & 1u32 == 1u32) {
            low += 1u32;
        }
    }
    if bits >> 31u32 == 1u32 {
        low = !low + 1u32;
        high = !high;
        if low == 0u32 {
            high += 1u32;
        }
    }
    (low, high)
}

/// Notes the largest exponent field of each parameter's numbers in `largest` from `into` on, and adds the numbers to sums in whole
/// numbers if that `adds`. The table has the binary places of each parameter's sums behind the ends; a sum is two numbers of `sums`, the lower half first.
#[cube(launch)]
pub(super) fn add_whole(
    sums: &mut [u32],
    largest: &[Atomic<u32>],
    numbers: &[f32],
    table: &[u32],
    count: u32,
    length: u32,
    into: u32,
    #[comptime] adds: bool,
) {
    // Each cube has a stretch of its own, most of which have numbers of one parameter alone: then one unit notes for all.
    let each = length.div_ceil(CUBE_COUNT as u32);
    let begin = each * CUBE_POS as u32;
    let mut end = begin + each;
    if end > length {
        end = length;
    }
    let mut of_units = Shared::<[u32]>::new_slice(comptime![UNITS as usize]);
    let mut most = 0u32;
    let mut own = 0u32;
    let mut is_one = false;
    if begin < end {
        own = parameter_at(table, count, begin);
        is_one = own == parameter_at(table, count, end - 1u32);
    }
    let mut place = begin + UNIT_POS;
    while place < end {
        let mut parameter = own;
        if !is_one {
            parameter = parameter_at(table, count, place);
        }
        let number = numbers[place as usize];
        let field = u32::reinterpret(number) >> 23u32 & 0xffu32;
        if is_one {
            if field > most {
                most = field;
            }
        } else {
            largest[(into + parameter) as usize].fetch_max(field);
        }
        if comptime![adds] {
            let (low, high) = whole(number, table[(count + parameter) as usize] as i32);
            let before = sums[(2u32 * place) as usize];
            let sum = before + low;
            let mut carry = 0u32;
            if sum < before {
                carry = 1u32;
            }
            sums[(2u32 * place) as usize] = sum;
            sums[(2u32 * place + 1u32) as usize] += high + carry;
        }
        place += UNITS;
    }
    of_units[UNIT_POS as usize] = most;
    sync_cube();
    if UNIT_POS == 0 && is_one {
        let mut unit = 0u32;
        while unit < UNITS {
            let other = of_units[unit as usize];
            if other > most {
                most = other;
            }
            unit += 1u32;
        }
        largest[(into + own) as usize].fetch_max(most);
    }
}

/// The numbers nearest to sums that [`add_whole`] has made, of two equally near the even one. The smallest step is a normal number.
#[cube(launch)]
pub(super) fn from_whole(sums: &[u32], numbers: &mut [f32], table: &[u32], count: u32) {
    let length = table[(count - 1u32) as usize] as usize;
    let mut place = ABSOLUTE_POS;
    while place < length {
        let parameter = parameter_at(table, count, place as u32);
        let places = table[(count + parameter) as usize] as i32;
        let mut low = sums[2 * place];
        let mut high = sums[2 * place + 1];
        let sign = high & 0x8000_0000u32;
        if sign != 0u32 {
            low = !low + 1u32;
            high = !high;
            if low == 0u32 {
                high += 1u32;
            }
        }
        // The highest bit is brought to the top of the upper half: what was there is worth 2^63 and less.
        let mut exponent = 63i32 - places + 127i32;
        if high == 0u32 {
            high = low;
            low = 0u32;
            exponent -= 32i32;
        }
        let zeros = high.leading_zeros();
        let mut bits = 0u32;
        if zeros < 32u32 {
            if zeros > 0u32 {
                high = high << zeros | low >> (32u32 - zeros);
                low <<= zeros;
            }
            exponent -= zeros as i32;
            let mut mantissa = high >> 8u32;
            let rest = high & 0xffu32;
            if rest > 0x80u32 || (rest == 0x80u32 && (low != 0u32 || mantissa & 1u32 == 1u32)) {
                mantissa += 1u32;
            }
            // A mantissa that was rounded up to 2^24 has carried into the exponent.
            bits = ((exponent as u32) << 23u32) + (mantissa - 0x80_0000u32);
            if bits > 0x7f80_0000u32 {
                bits = 0x7f80_0000u32; // too large for 32 bits
            }
            bits |= sign;
        }
        numbers[place] = f32::reinterpret(bits);
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}

/// The product of two numbers of 64 bits, by their halves.
#[cube]
fn product(low: u32, high: u32, #[comptime] factor: u64) -> (u32, u32) {
    let factor_low = comptime![factor as u32].runtime();
    let factor_high = comptime![(factor >> 32) as u32].runtime();
    (low * factor_low, low.mul_hi(factor_low) + low * factor_high + high * factor_low)
}

/// A number of 64 bits, of which as many of the highest bits are mixed into the lowest.
#[cube]
fn folded(low: u32, high: u32, #[comptime] bits: u32) -> (u32, u32) {
    let (right, left) = (comptime![bits].runtime(), comptime![32 - bits].runtime());
    (low ^ (low >> right | high << left), high ^ high >> right)
}

/// `Key::uniform`, in steps of 2^-24.
#[cube]
fn uniform(key_low: u32, key_high: u32, place: u32) -> u32 {
    let (step_low, step_high) = product(place + 1u32, 0u32, 0x9e37_79b9_7f4a_7c15u64);
    let low = key_low + step_low;
    let mut high = key_high + step_high;
    if low < step_low {
        high += 1u32;
    }
    let (low, high) = folded(low, high, 30u32);
    let (low, high) = product(low, high, 0xbf58_476d_1ce4_e5b9u64);
    let (low, high) = folded(low, high, 27u32);
    let (low, high) = product(low, high, 0x94d0_49bb_1331_11ebu64);
    // All that is wanted of the last step.
    let _ = low;
    (high ^ high >> 31u32) >> 8u32
}

/// Factors of numbers: 0 below the threshold, in steps of 2^-24, and `kept` elsewhere.
#[cube(launch)]
pub(super) fn dropout(factors: &mut [f32], key_low: u32, key_high: u32, threshold: u32, kept: f32) {
    let mut place = ABSOLUTE_POS;
    while place < factors.len() {
        let mut factor = kept;
        if uniform(key_low, key_high, place as u32) < threshold {
            factor = 0.0f32;
        }
        factors[place] = factor;
        place += CUBE_COUNT * CUBE_DIM as usize;
    }
}
