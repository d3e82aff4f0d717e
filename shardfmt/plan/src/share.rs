//! How much is exchanged after each epoch, as exact fractions of 2^32. Knows nothing of grains or partitions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Epoch, PlanError};

const ONE: u64 = 1 << 32;
/// Decimals that still fit the exact arithmetic of parsing.
const DECIMALS: usize = 28;
/// Longest schedule accepted.
const LONGEST: usize = 65_536;

/// A fraction from 0 to 1 in units of 2^-32: the part of its grains a partition exchanges after an epoch.
///
/// Parses decimals without passing through a float, rounding to the nearest unit (a half rounds up), so `0.1` is
/// 429,496,730 everywhere; prints the shortest decimal that parses to the same share. In JSON it is the number of units.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::{PlanError, Share};
///
/// let tenth: Share = "0.1".parse()?;
/// assert_eq!(tenth.units(), 429_496_730);
/// assert_eq!(tenth.to_string(), "0.1");
/// assert!(matches!("1.5".parse::<Share>(), Err(PlanError::ShareOutside { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Share(u64);

impl Share {
    /// Nothing moves.
    pub const NONE: Share = Share(0);
    /// Everything moves.
    pub const ALL: Share = Share(ONE);

    /// The share of `units` / 2^32.
    ///
    /// # Errors
    /// [`PlanError::ShareOutside`] above 2^32.
    pub fn from_units(units: u64) -> Result<Self, PlanError> {
        if units > ONE {
            return Err(PlanError::ShareOutside { text: format!("{units}/2^32") });
        }
        Ok(Share(units))
    }

    /// The share in units of 2^-32.
    pub fn units(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Share {
    type Error = PlanError;

    fn try_from(units: u64) -> Result<Self, PlanError> {
        Share::from_units(units)
    }
}

impl From<Share> for u64 {
    fn from(share: Share) -> u64 {
        share.0
    }
}

impl FromStr for Share {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let trimmed = text.trim();
        let outside = || PlanError::ShareOutside { text: trimmed.to_owned() };
        let (sign, digits) = match trimmed.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, trimmed.strip_prefix('+').unwrap_or(trimmed)),
        };
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() && decimals.is_empty() || !is_number(whole) || !is_number(decimals) {
            return Err(PlanError::ShareSyntax { text: trimmed.to_owned() });
        }
        let (whole, decimals) = (whole.trim_start_matches('0'), decimals.trim_end_matches('0'));
        match (sign, whole, decimals) {
            (_, "", "") => return Ok(Share::NONE),
            (1, "1", "") => return Ok(Share::ALL),
            (1, "", _) => {}
            _ => return Err(outside()),
        }
        if decimals.len() > DECIMALS {
            return Err(PlanError::ShareTooFine { text: trimmed.to_owned() });
        }
        let numerator: u128 = decimals.parse().expect("up to 28 digits fit 128 bits");
        match nearest(numerator, 10_u128.pow(decimals.len() as u32)) {
            0 => Err(PlanError::ShareTooFine { text: trimmed.to_owned() }),
            units => Ok(Share(units)),
        }
    }
}

/// `numerator / denominator` in units of 2^-32, a half rounded up.
fn nearest(numerator: u128, denominator: u128) -> u64 {
    (((numerator << 33) + denominator) / (2 * denominator)) as u64
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 || self.0 == ONE {
            return write!(f, "{}", self.0 / ONE);
        }
        for width in 1..=10 {
            let scale = 10_u128.pow(width as u32);
            let decimals = (u128::from(self.0) * scale + u128::from(ONE / 2)) >> 32;
            if nearest(decimals, scale) == self.0 {
                return write!(f, "0.{decimals:0width$}");
            }
        }
        unreachable!("ten decimals are finer than 2^-32")
    }
}

/// The shares exchanged after epochs 0, 1, …; the last one holds from then on. Written `0.1` or `1,0.01`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::{Epoch, Schedule, Share};
///
/// let schedule: Schedule = "1,0.1".parse()?;
/// assert_eq!(schedule.after(Epoch(0)), Share::ALL);
/// assert_eq!(schedule.after(Epoch(9)), "0.1".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Share>", into = "Vec<Share>")]
pub struct Schedule(Vec<Share>);

impl Schedule {
    /// The same share after every epoch.
    pub fn constant(share: Share) -> Self {
        Schedule(vec![share])
    }

    /// The shares as listed.
    pub fn shares(&self) -> &[Share] {
        &self.0
    }

    /// The share exchanged after `epoch`.
    pub fn after(&self, epoch: Epoch) -> Share {
        self.0[(epoch.0 as usize).min(self.0.len() - 1)]
    }

    /// The largest share of all.
    pub fn largest(&self) -> Share {
        *self.0.iter().max().expect("a schedule is never empty")
    }
}

impl Default for Schedule {
    /// A tenth after every epoch.
    fn default() -> Self {
        Schedule::constant("0.1".parse().expect("a valid share"))
    }
}

impl TryFrom<Vec<Share>> for Schedule {
    type Error = PlanError;

    fn try_from(shares: Vec<Share>) -> Result<Self, PlanError> {
        match shares.len() {
            0 => Err(PlanError::ScheduleEmpty),
            1..=LONGEST => Ok(Schedule(shares)),
            len => Err(PlanError::ScheduleTooLong { len, longest: LONGEST }),
        }
    }
}

impl From<Schedule> for Vec<Share> {
    fn from(schedule: Schedule) -> Vec<Share> {
        schedule.0
    }
}

impl FromStr for Schedule {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        if text.trim().is_empty() {
            return Err(PlanError::ScheduleEmpty);
        }
        text.split(',').map(str::parse).collect::<Result<Vec<Share>, _>>()?.try_into()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, share) in self.0.iter().enumerate() {
            write!(f, "{}{share}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Running sums of a schedule, exact at any epoch.
#[derive(Clone, Debug)]
pub(crate) struct RunningShares {
    /// `sums[e]` is the sum over the epochs before e, for e up to the schedule's length.
    sums: Vec<u128>,
    last: u128,
}

impl RunningShares {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        let mut sums = vec![0];
        for share in schedule.shares() {
            sums.push(sums[sums.len() - 1] + u128::from(share.0));
        }
        let last = schedule.shares()[schedule.shares().len() - 1];
        RunningShares { sums, last: u128::from(last.0) }
    }

    /// How many of `size` grains have been exchanged before `epoch`: the floor of size times the shares so far, and of the
    /// `phase`, in units of 2^-32, that they are ahead by.
    pub(crate) fn exchanged_before(&self, size: u64, phase: u32, epoch: Epoch) -> u128 {
        (u128::from(size) * self.sum_before(epoch) + u128::from(phase)) >> 32
    }

    fn sum_before(&self, epoch: Epoch) -> u128 {
        let (listed, epoch) = (self.sums.len() - 1, epoch.0 as usize);
        match self.sums.get(epoch) {
            Some(sum) => *sum,
            None => self.sums[listed] + (epoch - listed) as u128 * self.last,
        }
    }

    /// The epoch after which the grain number `turn` (from 0) of `size` that take turns is exchanged.
    pub(crate) fn epoch_of_turn(&self, size: u64, phase: u32, turn: u128) -> Option<Epoch> {
        let needed = (((turn + 1) << 32) - u128::from(phase)).div_ceil(u128::from(size));
        let listed = self.sums.len() - 1;
        let epochs = if needed <= self.sums[listed] {
            self.sums.partition_point(|sum| *sum < needed) as u128
        } else if self.last > 0 {
            listed as u128 + (needed - self.sums[listed]).div_ceil(self.last)
        } else {
            return None;
        };
        u32::try_from(epochs - 1).ok().map(Epoch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_parse_exactly() {
        let units = |text: &str| text.parse::<Share>().map(Share::units);
        assert_eq!(units("0.1"), Ok(429_496_730));
        assert_eq!(units(".25"), Ok(1 << 30));
        assert_eq!(units("1.000"), Ok(1 << 32));
        assert_eq!(units("00.50"), Ok(1 << 31));
        assert_eq!(units(" 0 "), Ok(0));
        assert_eq!(
            units("0.0000000001164153218269"),
            Err(PlanError::ShareTooFine { text: "0.0000000001164153218269".into() })
        );
        assert_eq!(
            units("0.000000000116415321826934814453125"),
            Err(PlanError::ShareTooFine { text: "0.000000000116415321826934814453125".into() })
        );
        assert_eq!(units("0.0000000001164153218270"), Ok(1));
    }

    #[test]
    fn what_is_no_share_is_refused_with_the_way_out() {
        let message = |text: &str| text.parse::<Schedule>().unwrap_err().to_string();
        assert_eq!(
            message("1.5"),
            "exchange share 1.5 is outside 0 to 1: it is the part of the samples that moves after an epoch, so use 1 to move all of them, or 0.1 for a tenth"
        );
        assert!(message("-0.1").contains("outside 0 to 1"));
        assert!(message("2").contains("outside 0 to 1"));
        assert!(message("1.0000000000000000000000000000000000001").contains("outside 0 to 1"));
        for text in ["ten", "0.1.2", "1e-3", ".", "0.1,,1", "10%", "0,1x", "٣"] {
            assert!(message(text).contains("is not a decimal number"), "{text}: {}", message(text));
        }
        assert!(message("").contains("empty"));
        assert!(message(&vec!["0"; 70_000].join(",")).contains("65536"));
    }

    #[test]
    fn a_schedule_holds_its_last_share_for_ever() {
        let schedule: Schedule = "1, 0.01".parse().unwrap();
        assert_eq!(schedule.after(Epoch(0)), Share::ALL);
        assert_eq!(schedule.after(Epoch(1)).to_string(), "0.01");
        assert_eq!(schedule.after(Epoch(u32::MAX)).to_string(), "0.01");
        assert_eq!(schedule.largest(), Share::ALL);
        assert_eq!(schedule.to_string(), "1,0.01");
        assert_eq!(serde_json::to_string(&schedule).unwrap(), "[4294967296,42949673]");
        assert!(serde_json::from_str::<Schedule>("[4294967297]").is_err());
        assert!(serde_json::from_str::<Schedule>("[]").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn every_share_survives_its_text(units in 0..=ONE) {
            let share = Share(units);
            prop_assert_eq!(share.to_string().parse::<Share>(), Ok(share));
        }

        #[test]
        fn turns_fall_in_the_epoch_whose_exchange_covers_them(
            units in prop::collection::vec(0..=ONE, 1..5), size in 1..2000_u64, phase: u32, turn in 0..9000_u128,
        ) {
            let shares = units.into_iter().map(Share).collect::<Vec<_>>();
            let running = RunningShares::new(&Schedule(shares));
            match running.epoch_of_turn(size, phase, turn) {
                Some(epoch) => {
                    prop_assert!(running.exchanged_before(size, phase, epoch) <= turn);
                    prop_assert!(turn < running.exchanged_before(size, phase, Epoch(epoch.0 + 1)));
                }
                None => prop_assert!(running.exchanged_before(size, phase, Epoch(u32::MAX)) <= turn),
            }
        }
    }
}
