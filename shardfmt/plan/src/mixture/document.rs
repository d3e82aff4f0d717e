//! The mixture document: which plans are mixed, and how much of each. Knows of a plan its id and how many samples it has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::interleave::HEAVIEST;
use crate::digest::{Digest, MixtureId, PlanId, from_text};

/// The newest format that this release reads and writes: that of a mixture with phases. Without phases it writes format 1.
pub const MIXTURE_FORMAT: u32 = 2;

const MOST_SOURCES: usize = 65_536;
/// Proportions of all phases together.
const MOST_PROPORTIONS: usize = 1 << 22;
/// Samples of the longest epoch: a trillion, and what a 64-bit position leaves room for 16 million epochs of.
const LONGEST_EPOCH: u64 = 1 << 40;

/// The immutable document that fixes in what order the samples of several plans are read together.
///
/// Its canonical form is compact JSON with the fields in this order; its [id](Self::id) is the BLAKE3 digest of that.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::digest::PlanId;
/// use shardd_plan::{MixtureDocument, MixtureSource, Take};
///
/// let source = |name: &str, samples| MixtureSource {
///     plan: PlanId::of(name.as_bytes()),
///     samples,
///     take: Take::Proportion(1.into()),
/// };
/// let document = MixtureDocument::new(vec![source("speech", 1000), source("music", 500)], None)?;
/// assert_eq!(document.epoch_size, 1500);
/// assert_eq!(MixtureDocument::from_bytes(&document.to_bytes())?.id(), document.id());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureDocument {
    /// Of `docs/PLAN.md`: 1, or 2 with phases.
    pub format: u32,
    /// The mixed sources. Their order counts: it decides between equals.
    pub sources: Vec<MixtureSource>,
    /// Samples of an epoch of the mixture.
    pub epoch_size: u64,
    /// Changes of the proportions, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<MixturePhase>,
}

/// Other proportions from some position on, until the next phase.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardd_plan::digest::PlanId;
/// # use shardd_plan::{MixtureSource, Take};
/// use shardd_plan::{Mixture, MixtureDocument, MixturePhase};
///
/// # let source = |name: &str, parts| MixtureSource {
/// #     plan: PlanId::of(name.as_bytes()),
/// #     samples: 1000,
/// #     take: Take::Proportion(parts),
/// # };
/// # let sources = vec![source("web", "0.9".parse()?), source("books", "0.1".parse()?)];
/// let phase = MixturePhase { from: 600, proportions: vec!["0.5".parse()?, "0.5".parse()?] };
/// let document = MixtureDocument::with_phases(sources, Some(800), vec![phase])?;
/// assert_eq!(Mixture::new(document)?.before(800), [640, 160]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixturePhase {
    /// The first position of the phase, counted over all epochs of the mixture, from 1.
    pub from: u64,
    /// The proportion of each source, in the document's order. A source of proportion 0 is not read in the phase.
    pub proportions: Vec<Decimal>,
}

/// One plan of a mixture. The same plan may be several of its sources; each reads it from the start.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::digest::PlanId;
/// use shardd_plan::{MixtureDocument, MixtureSource, Take};
///
/// let source = MixtureSource {
///     plan: PlanId::of(b"a plan"),
///     samples: 1000,
///     take: Take::Repeat("1.5".parse()?),
/// };
/// assert_eq!(MixtureDocument::new(vec![source], None)?.epoch_size, 1500);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureSource {
    /// The plan, which has its own epochs.
    pub plan: PlanId,
    /// Samples of one of those: all of the plan's version.
    pub samples: u64,
    /// How much of it an epoch of the mixture has.
    pub take: Take,
}

/// How much of a source an epoch of the mixture has. [`Proportion`](Self::Proportion)s are relative to each other, the other
/// two absolute: a mixture has either, never both.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::Take;
///
/// assert_eq!(Take::Proportion("0.7".parse()?).to_string(), "proportion 0.7");
/// assert_eq!(Take::Repeat(2.into()).to_string(), "repeat 2");
/// assert_eq!(Take::Choose(500).to_string(), "choose 500");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Take {
    /// This much, relative to what the other sources say.
    Proportion(Decimal),
    /// Its samples this many times, rounded down.
    Repeat(Decimal),
    /// This many samples.
    Choose(u64),
}

/// A decimal from 0 to 10^9 with up to nine digits after the point, exactly. In JSON it is text: `"0.7"`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_plan::Decimal;
///
/// assert_eq!("0.70".parse::<Decimal>()?.to_string(), "0.7");
/// assert_eq!("2.0".parse::<Decimal>()?, Decimal::from(2));
/// assert!("7e-1".parse::<Decimal>().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Decimal(u64);

/// Why there is no such mixture, and the way out.
///
/// ```
/// use shardd_plan::{MixtureDocument, MixtureError};
///
/// assert_eq!(MixtureDocument::new(vec![], None), Err(MixtureError::NoSources));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MixtureError {
    /// Text that is no decimal, or not one of those.
    #[error(
        "{text:?} is not a decimal from 0 to 10^9 with at most 9 digits after the point: write 2, 0.7 or 1.25"
    )]
    Decimal { text: String },
    /// Nothing to mix.
    #[error("a mixture needs at least one source")]
    NoSources,
    /// More sources than are kept count of.
    #[error(
        "{sources} sources are more than the {MOST_SOURCES} a mixture may have: make one dataset of some"
    )]
    TooManySources { sources: usize },
    /// A source has no samples at all.
    #[error("source {source_no} (plan {plan}) has no samples: leave it out")]
    NoSamples { source_no: usize, plan: String },
    /// A source of which nothing is taken.
    #[error(
        "source {source_no} (plan {plan}): {take} of {samples} samples is none: take more, or leave it out"
    )]
    Nothing { source_no: usize, plan: String, take: String, samples: u64 },
    /// A phase in which nothing is read.
    #[error("the proportions from position {from} on are all 0: give at least one source more")]
    EmptyPhase { from: u64 },
    /// Phases of a mixture without proportions.
    #[error(
        "proportions change at position {from}, but source 0 has {first}: give all sources a proportion, or leave the phases out"
    )]
    PhasesOfAmounts { from: u64, first: String },
    /// A phase that does not follow the one before it.
    #[error(
        "a phase begins at position {from}, and the one before it at {before}: positions of phases ascend from 1"
    )]
    PhaseOrder { from: u64, before: u64 },
    /// A phase that leaves sources out, or has too many.
    #[error(
        "the phase from position {from} on has {proportions} proportions for {sources} sources: give one for each"
    )]
    PhaseSources { from: u64, proportions: usize, sources: usize },
    /// More proportions than are kept count of.
    #[error(
        "{phases} phases of {sources} sources have more than {MOST_PROPORTIONS} proportions: use fewer phases"
    )]
    TooManyPhases { phases: usize, sources: usize },
    /// Relative and absolute amounts together.
    #[error(
        "source {source_no} (plan {plan}) has {take}, but source 0 has {first}: give all of them a proportion, or each a repeat or choose"
    )]
    Mixed { source_no: usize, plan: String, take: String, first: String },
    /// An epoch of no samples.
    #[error("an epoch of 0 samples reads nothing: leave epoch_size out, or use at least 1")]
    EmptyEpoch,
    /// An epoch size beside amounts that add up to one.
    #[error(
        "epoch_size goes with proportions: repeat and choose say already that an epoch has {sum} samples, so leave epoch_size {epoch_size} out"
    )]
    EpochSize { epoch_size: u64, sum: u64 },
    /// Amounts too large to count with.
    #[error("an epoch of {samples} samples is longer than 2^40: take less of each source")]
    EpochTooLong { samples: u128 },
    /// Proportions that are too far apart.
    #[error("proportions that differ by this factor cannot be kept exactly: use fewer digits")]
    TooFine,
    /// The plan is not the one that the document means.
    #[error(
        "source {source_no} is plan {plan} of {samples} samples, but plan {found} of {found_samples} was given"
    )]
    OtherPlan { source_no: usize, plan: String, samples: u64, found: String, found_samples: u64 },
    /// More or fewer plans than sources.
    #[error("the mixture has {sources} sources, but {plans} plans were given")]
    Plans { sources: usize, plans: usize },
    /// A position that is in no epoch that can be counted to.
    #[error("epoch {epoch}, position {position} of a mixture of {epoch_size} samples is out of range")]
    Outside { epoch: u32, position: u64, epoch_size: u64 },
    /// The document is no mixture document.
    #[error("not a mixture document: {reason}")]
    Malformed { reason: String },
    /// The document was written by a newer release.
    #[error(
        "mixture format {found} is newer than this release, which reads format {supported}: upgrade shardd"
    )]
    Format { found: u32, supported: u32 },
}

impl MixtureDocument {
    /// The mixture of these sources.
    ///
    /// With [`Take::Proportion`]s an epoch has `epoch_size` samples, by default as many as the sources have together: what
    /// MosaicML's `StreamingDataset` does. With [`Take::Repeat`] and [`Take::Choose`] it has their sum, and an `epoch_size`
    /// beside them is refused, as it is there.
    ///
    /// # Errors
    /// [`MixtureError`] for sources that make no mixture; the message names the first that does not.
    pub fn new(sources: Vec<MixtureSource>, epoch_size: Option<u64>) -> Result<Self, MixtureError> {
        Self::with_phases(sources, epoch_size, Vec::new())
    }

    /// The mixture of sources whose proportions change. A source may have none at first, or in some of the phases.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for phases that do not ascend, or do not fit the sources.
    pub fn with_phases(
        sources: Vec<MixtureSource>,
        epoch_size: Option<u64>,
        phases: Vec<MixturePhase>,
    ) -> Result<Self, MixtureError> {
        let absolute = sum_of_absolute(&sources)?;
        let epoch_size = match (absolute, epoch_size) {
            (Some(sum), None) => sum,
            (Some(sum), Some(epoch_size)) => return Err(MixtureError::EpochSize { epoch_size, sum }),
            (None, Some(epoch_size)) => epoch_size,
            (None, None) => in_epoch(sources.iter().map(|source| u128::from(source.samples)).sum())?,
        };
        let format = if phases.is_empty() { 1 } else { MIXTURE_FORMAT };
        let document = MixtureDocument { format, sources, epoch_size, phases };
        document.check()?;
        Ok(document)
    }

    /// Parses and checks a document; any JSON layout will do.
    ///
    /// # Errors
    /// [`MixtureError::Malformed`] if this is no mixture document, [`MixtureError::Format`] if a newer release wrote it, and
    /// others for sources that make no mixture.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MixtureError> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let malformed = |error: serde_json::Error| MixtureError::Malformed { reason: error.to_string() };
        let header: Header = serde_json::from_slice(bytes).map_err(malformed)?;
        if header.format > MIXTURE_FORMAT {
            return Err(MixtureError::Format { found: header.format, supported: MIXTURE_FORMAT });
        }
        let document: MixtureDocument = serde_json::from_slice(bytes).map_err(malformed)?;
        document.check()?;
        Ok(document)
    }

    /// The canonical form: compact JSON, fields in the order of the type.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a document is numbers and strings")
    }

    /// The BLAKE3 digest of the canonical form.
    pub fn id(&self) -> MixtureId {
        MixtureId(Digest::of(&self.to_bytes()))
    }

    /// How often each source has a turn before the first phase, relative to the others, in lowest terms.
    pub(super) fn weights(&self) -> Result<Vec<u64>, MixtureError> {
        let weights = match sum_of_absolute(&self.sources)? {
            Some(_) => self.sources.iter().map(MixtureSource::count).collect(),
            None => self.sources.iter().map(|source| source.take.proportion().0).collect(),
        };
        in_lowest_terms(weights, 0)
    }

    pub(super) fn check(&self) -> Result<(), MixtureError> {
        match (self.format, self.phases.is_empty()) {
            (1, true) | (MIXTURE_FORMAT, false) => {}
            (0, _) => return Err(MixtureError::Malformed { reason: "format 0 was never written".into() }),
            (1, false) => return Err(MixtureError::Malformed { reason: "format 1 has no phases".into() }),
            (MIXTURE_FORMAT, true) => {
                return Err(MixtureError::Malformed {
                    reason: "format 2 has phases, and there are none".into(),
                });
            }
            (found, _) => return Err(MixtureError::Format { found, supported: MIXTURE_FORMAT }),
        }
        match sum_of_absolute(&self.sources)? {
            Some(sum) if sum != self.epoch_size => {
                return Err(MixtureError::EpochSize { epoch_size: self.epoch_size, sum });
            }
            _ => in_epoch(self.epoch_size.into())?,
        };
        if self.epoch_size == 0 {
            return Err(MixtureError::EmptyEpoch);
        }
        self.weights()?;
        self.check_phases()
    }

    fn check_phases(&self) -> Result<(), MixtureError> {
        let (sources, phases) = (self.sources.len(), self.phases.len());
        if sources * phases > MOST_PROPORTIONS {
            return Err(MixtureError::TooManyPhases { phases, sources });
        }
        let mut before = 0;
        for phase in &self.phases {
            let (from, proportions) = (phase.from, phase.proportions.len());
            if !self.sources[0].take.is_relative() {
                return Err(MixtureError::PhasesOfAmounts { from, first: self.sources[0].take.to_string() });
            }
            if from <= before {
                return Err(MixtureError::PhaseOrder { from, before });
            }
            if proportions != sources {
                return Err(MixtureError::PhaseSources { from, proportions, sources });
            }
            phase.weights()?;
            before = from;
        }
        // With phases, a source may wait for one that is still to be set.
        let is_left_out =
            |source: &MixtureSource| source.count() == 0 && source.take.proportion() == Decimal(0);
        let left_out = self.sources.iter().position(is_left_out).filter(|_| phases == 0);
        left_out.map_or(Ok(()), |source_no| {
            let MixtureSource { plan, samples, take } = &self.sources[source_no];
            Err(MixtureError::Nothing {
                source_no,
                plan: plan.short(),
                take: take.to_string(),
                samples: *samples,
            })
        })
    }
}

impl MixturePhase {
    /// How often each source has a turn in the phase, relative to the others, in lowest terms.
    pub(super) fn weights(&self) -> Result<Vec<u64>, MixtureError> {
        in_lowest_terms(self.proportions.iter().map(|proportion| proportion.0).collect(), self.from)
    }
}

/// Weights from a position on.
fn in_lowest_terms(mut weights: Vec<u64>, from: u64) -> Result<Vec<u64>, MixtureError> {
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor);
    if divisor == 0 {
        return Err(MixtureError::EmptyPhase { from });
    }
    weights.iter_mut().for_each(|weight| *weight /= divisor);
    match weights.iter().map(|weight| u128::from(*weight)).sum::<u128>() {
        sum if sum <= u128::from(HEAVIEST) => Ok(weights),
        _ => Err(MixtureError::TooFine),
    }
}

impl MixtureSource {
    /// Samples of an epoch of the mixture, of a source that has an absolute number of them.
    fn count(&self) -> u64 {
        match self.take {
            Take::Proportion(_) => 0,
            Take::Repeat(times) => times.of(self.samples),
            Take::Choose(count) => count,
        }
    }
}

impl Take {
    fn is_relative(&self) -> bool {
        matches!(self, Take::Proportion(_))
    }

    fn proportion(&self) -> Decimal {
        match self {
            Take::Proportion(proportion) => *proportion,
            Take::Repeat(_) | Take::Choose(_) => Decimal(0),
        }
    }
}

impl fmt::Display for Take {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Take::Proportion(proportion) => write!(f, "proportion {proportion}"),
            Take::Repeat(times) => write!(f, "repeat {times}"),
            Take::Choose(count) => write!(f, "choose {count}"),
        }
    }
}

/// Samples of an epoch by the sources' settings, if these are absolute.
fn sum_of_absolute(sources: &[MixtureSource]) -> Result<Option<u64>, MixtureError> {
    let Some(first) = sources.first() else { return Err(MixtureError::NoSources) };
    if sources.len() > MOST_SOURCES {
        return Err(MixtureError::TooManySources { sources: sources.len() });
    }
    for (source_no, source) in sources.iter().enumerate() {
        let (plan, take) = (source.plan.short(), source.take.to_string());
        if source.samples == 0 {
            return Err(MixtureError::NoSamples { source_no, plan });
        }
        if source.take.is_relative() != first.take.is_relative() {
            return Err(MixtureError::Mixed { source_no, plan, take, first: first.take.to_string() });
        }
        if !source.take.is_relative() && source.count() == 0 {
            return Err(MixtureError::Nothing { source_no, plan, take, samples: source.samples });
        }
    }
    if first.take.is_relative() {
        return Ok(None);
    }
    in_epoch(sources.iter().map(|source| u128::from(source.count())).sum()).map(Some)
}

fn in_epoch(samples: u128) -> Result<u64, MixtureError> {
    match u64::try_from(samples) {
        Ok(samples) if samples <= LONGEST_EPOCH => Ok(samples),
        _ => Err(MixtureError::EpochTooLong { samples }),
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Decimal {
    const ONE: u64 = 1_000_000_000;
    const DIGITS: usize = 9;

    /// This many times `number`, rounded down; more than any number there is becomes the largest.
    fn of(self, number: u64) -> u64 {
        let product = u128::from(self.0) * u128::from(number) / u128::from(Self::ONE);
        u64::try_from(product).unwrap_or(u64::MAX)
    }
}

impl From<u32> for Decimal {
    /// A whole number; a larger one becomes 10^9.
    fn from(whole: u32) -> Self {
        Decimal(u64::from(whole).min(Self::ONE) * Self::ONE)
    }
}

impl FromStr for Decimal {
    type Err = MixtureError;

    fn from_str(text: &str) -> Result<Self, MixtureError> {
        let refused = || MixtureError::Decimal { text: text.chars().take(80).collect() };
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() && decimals.is_empty() || !digits(whole) || !digits(decimals) {
            return Err(refused());
        }
        let (whole, decimals) = (whole.trim_start_matches('0'), decimals.trim_end_matches('0'));
        if whole.len() > Self::DIGITS + 1 || decimals.len() > Self::DIGITS {
            return Err(refused());
        }
        // Both have few enough digits for any u64 to hold.
        let number = |digits: &str| digits.bytes().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let units = number(decimals) * 10_u64.pow((Self::DIGITS - decimals.len()) as u32);
        match number(whole) {
            whole if whole < Self::ONE || whole == Self::ONE && units == 0 => {
                Ok(Decimal(whole * Self::ONE + units))
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:09}", self.0 % Self::ONE);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / Self::ONE),
            decimals => write!(f, "{}.{decimals}", self.0 / Self::ONE),
        }
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(samples: u64, take: Take) -> MixtureSource {
        MixtureSource { plan: PlanId::of(b"a plan"), samples, take }
    }

    fn decimal(text: &str) -> Decimal {
        text.parse().expect("a decimal")
    }

    fn error(sources: Vec<MixtureSource>, epoch_size: Option<u64>) -> String {
        MixtureDocument::new(sources, epoch_size).expect_err("no mixture").to_string()
    }

    #[test]
    fn an_epoch_is_as_long_as_users_of_other_loaders_expect() {
        let size = |takes: &[Take], epoch_size| {
            let sources = takes.iter().map(|take| source(1000, *take)).collect();
            MixtureDocument::new(sources, epoch_size).expect("a mixture").epoch_size
        };
        let proportions = ["0.7", "0.2", "0.1"].map(|text| Take::Proportion(decimal(text)));
        assert_eq!(size(&proportions, None), 3000);
        assert_eq!(size(&proportions, Some(77)), 77);
        assert_eq!(size(&[Take::Repeat(decimal("1.5")), Take::Choose(7)], None), 1507);
        assert_eq!(size(&[Take::Repeat(decimal("0.0015")), Take::Repeat(2.into())], None), 2001);
    }

    #[test]
    fn what_is_no_mixture_is_refused_by_name() {
        let (proportion, repeat) = (Take::Proportion(1.into()), Take::Repeat(1.into()));
        let plan = PlanId::of(b"a plan").short();
        for (sources, epoch_size, said) in [
            (vec![], None, "at least one source"),
            (vec![source(5, proportion), source(0, proportion)], None, "source 1 (plan "),
            (
                vec![source(5, proportion), source(5, Take::Proportion(0.into()))],
                None,
                "proportion 0 of 5 samples is none",
            ),
            (vec![source(5, Take::Choose(0))], None, "choose 0 of 5"),
            (vec![source(5, Take::Repeat(decimal("0.19")))], None, "repeat 0.19 of 5"),
            (
                vec![source(5, proportion), source(5, repeat)],
                None,
                "has repeat 1, but source 0 has proportion 1",
            ),
            (vec![source(5, Take::Choose(3)), source(5, proportion)], None, "or each a repeat or choose"),
            (vec![source(5, proportion)], Some(0), "at least 1"),
            (vec![source(5, repeat)], Some(5), "leave epoch_size 5 out"),
            (vec![source(u64::MAX, repeat)], None, "18446744073709551615 samples is longer than 2^40"),
            (vec![source(u64::MAX, proportion), source(1, proportion)], None, "longer than 2^40"),
            (vec![source(5, proportion)], Some(u64::MAX), "longer than 2^40"),
            (vec![source(u64::MAX, Take::Repeat(decimal("1000000000"))); 3], None, "longer than 2^40"),
        ] {
            let error = error(sources, epoch_size);
            assert!(error.contains(said), "{said}: {error}");
            assert!(!error.contains("plan ") || error.contains(&plan) && !error.contains('\n'), "{error}");
        }
        let far_apart = [decimal("1000000000"), decimal("0.000000001")].map(Take::Proportion);
        assert!(MixtureDocument::new(far_apart.map(|take| source(5, take)).to_vec(), None).is_ok());
        let far_apart = [["999999999.999999999"; 5].as_slice(), &["0.000000001"]].concat();
        let far_apart = far_apart.into_iter().map(|text| source(5, Take::Proportion(decimal(text))));
        assert!(error(far_apart.collect(), None).contains("use fewer digits"));
    }

    #[test]
    fn what_is_no_document_is_refused() {
        let good = MixtureDocument::new(vec![source(5, Take::Choose(3))], None).expect("a mixture");
        let text = String::from_utf8(good.to_bytes()).expect("JSON");
        assert_eq!(MixtureDocument::from_bytes(text.as_bytes()), Ok(good.clone()));
        for (from, to, said) in [
            ("\"format\":1", "\"format\":0", "never written"),
            ("\"format\":1", "\"format\":3", "upgrade"),
            ("\"format\":1", "\"format\":1,\"more\":1", "unknown field"),
            ("\"epoch_size\":3", "\"epoch_size\":4", "already that an epoch has 3"),
            ("{\"choose\":3}", "{\"repeat\":\"x\"}", "not a decimal"),
            ("{\"choose\":3}", "{\"choose\":-3}", "not a mixture document"),
        ] {
            assert!(text.contains(from), "{text}");
            let error =
                MixtureDocument::from_bytes(text.replace(from, to).as_bytes()).expect_err(to).to_string();
            assert!(error.contains(said), "{to}: {error}");
        }
    }

    #[test]
    fn decimals_are_exact() {
        for (text, same) in
            [("0.7", "0.7"), (".5", "0.5"), ("2.", "2"), ("007.100", "7.1"), ("1000000000", "1000000000")]
        {
            assert_eq!(decimal(text).to_string(), same);
        }
        for bad in [
            "",
            ".",
            "-1",
            "+1",
            "1e3",
            "0.0000000001",
            "1000000000.1",
            "10000000000",
            "99999999999999999999",
            "٣",
        ] {
            assert!(bad.parse::<Decimal>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn decimals_are_read_as_they_are_written(units in 0..=Decimal::ONE * Decimal::ONE) {
            prop_assert_eq!(Decimal(units).to_string().parse::<Decimal>(), Ok(Decimal(units)));
        }
    }
}
