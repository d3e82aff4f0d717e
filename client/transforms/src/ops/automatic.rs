//! Automatic augmentation as operations of a chain.

use super::auto::{AugMix, AutoAugment, RandAugment, TrivialAugmentWide};
use super::random_geometry::check_fill;
use crate::operation::{At, Operation, bytes_only};
use crate::value::{Kind, Value};

/// The most operations that one may apply, one after the other or beside each other.
const MOST: i64 = 64;

fn few(name: &str, count: impl Into<i64>) -> Result<(), String> {
    let count = count.into();
    if count <= MOST { Ok(()) } else { Err(format!("{name} is {count}: give {MOST} or less")) }
}

/// Refuses companions, as torchvision does: these operations move pixels, and nothing with them.
fn alone(input: Kind) -> Result<(), String> {
    match input.companions.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "changes pictures alone, and gets {} beside them: take RandomAffine and ColorJitter in its place",
            input.companions
        )),
    }
}

/// Operations with a check of their arguments, and a change that draws random numbers.
macro_rules! automatic {
    ($($name:ident => $check:expr;)+) => {
        $(
            impl Operation for $name {
                fn kind(&self, input: Kind) -> Result<Kind, String> {
                    let check: fn(&Self) -> Result<(), String> = $check;
                    check(self).map_err(|reason| format!("has arguments that do not fit: {reason}"))?;
                    check_fill(&self.fill, input.channels)?;
                    alone(input)?;
                    bytes_only(input)
                }

                fn apply(&self, value: Value, at: At) -> Result<Value, String> {
                    Ok(value.bytes(|image| self.apply(image, &mut at.draws())))
                }
            }
        )+
    };
}

automatic! {
    AugMix => |own| own.check().and_then(|()| few("mixture_width", own.mixture_width)).and_then(|()| few("chain_depth", own.chain_depth));
    AutoAugment => |_| Ok(());
    RandAugment => |own| own.check().and_then(|()| few("num_ops", own.num_ops));
    TrivialAugmentWide => Self::check;
}
