//! Operations that mix the pictures of a finished batch with one another, and their labels likewise.
//!
//! A batch here is the micro-batch of one virtual rank in one step. Its samples follow from the plan alone, so a mixed picture is
//! the same for any number of processes.

use std::ops::Range;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::document::{choose, probabilities};
use crate::image::Region;
use crate::operation::At;
use crate::ops::arguments::{half, probability};
use crate::ops::distributions::beta;
use crate::value::Dtype;
use crate::value::Layout;

/// How the samples of a batch are mixed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixing {
    /// The operations, one after the other.
    pub transforms: Vec<Mix>,
    /// The number of classes; that of the classes which the column of labels names, if none is given.
    #[serde(default)]
    pub num_classes: Option<u32>,
    /// The column of labels; `label`, `labels` or the only one with such a name, if none is given.
    #[serde(default)]
    pub labels: Option<String>,
}

/// An operation that mixes the samples of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Mix {
    /// A weighted mean of two pictures.
    MixUp(MixUp),
    /// A picture with a rectangle of another one.
    CutMix(CutMix),
    /// All of some operations, or none.
    RandomApply(RandomApplyMix),
    /// One of some operations.
    RandomChoice(RandomChoiceMix),
}

/// Replaces each sample by `share * sample + (1 - share) * previous` (Zhang et al., "mixup: beyond empirical risk minimization",
/// ICLR 2018). The previous sample of the first one is the last.
///
/// Random numbers, those of the position of the batch's first sample: `share` of the beta distribution of `(alpha, alpha)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixUp {
    /// Both parameters of the distribution; with 1, all shares are equally probable.
    #[serde(default = "one")]
    pub alpha: f64,
}

/// Replaces a rectangle of each picture by that of the previous one, and the label in proportion to its area (Yun et al.,
/// "CutMix: regularization strategy to train strong classifiers", ICCV 2019).
///
/// Random numbers, those of the position of the batch's first sample: a share of the beta distribution of `(alpha, alpha)`, then
/// `below(width)` and `below(height)`, the middle of the rectangle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutMix {
    /// Both parameters of the distribution; with 1, all shares are equally probable.
    #[serde(default = "one")]
    pub alpha: f64,
}

/// All of its operations, or none.
///
/// Random numbers: `chance(p)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomApplyMix {
    /// The operations.
    pub transforms: Vec<Mix>,
    /// The probability of all.
    #[serde(default = "half")]
    pub p: f64,
}

/// One of its operations.
///
/// Random numbers: `uniform()`, as for [`RandomChoice`](crate::op::containers::RandomChoice).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomChoiceMix {
    /// The operations.
    pub transforms: Vec<Mix>,
    /// The probability of each, in any unit. All alike if there are none.
    #[serde(default)]
    pub p: Option<Vec<f64>>,
}

fn one() -> f64 {
    1.0
}

/// A decision for one batch: its samples keep `share` of themselves, and get the rest from the sample before them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mixed {
    Blend { share: f64 },
    Paste { region: Region, share: f64 },
}

/// The pictures of a batch in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pictures {
    pub(crate) shape: [usize; 3],
    pub(crate) layout: Layout,
    pub(crate) dtype: Dtype,
}

impl Mixing {
    /// Checks it for pictures of this type.
    pub(crate) fn check(&self, dtype: Dtype) -> Result<(), (&'static str, String)> {
        if self.num_classes == Some(0) {
            return Err((
                self.transforms.first().map_or("Compose", Mix::name),
                "has 0 classes: give num_classes".into(),
            ));
        }
        self.transforms.iter().try_for_each(|mix| mix.check(dtype).map_err(|reason| (mix.name(), reason)))
    }

    /// Mixes the pictures of a batch, and its labels, which are a row of shares of each class for each picture. The first sample of
    /// the batch is at `place`, and the first operation has the number `op`. One sample alone stays as it is.
    pub(crate) fn apply(&self, at: At, pictures: Pictures, numbers: &mut [u8], labels: &mut [f32]) {
        let size = pictures.shape.iter().product::<usize>() * pictures.dtype.size();
        let count = numbers.len() / size;
        if count < 2 {
            return;
        }
        let classes = labels.len() / count;
        for mixed in self.decide(at, pictures) {
            let share = match mixed {
                Mixed::Blend { share } => {
                    pictures.blend(numbers, share);
                    share
                }
                Mixed::Paste { region, share } => {
                    pictures.paste(numbers, region);
                    share
                }
            };
            with_previous(labels, classes, |own, previous| blend(own, previous, share));
        }
    }

    fn decide(&self, at: At, pictures: Pictures) -> Vec<Mixed> {
        let mut decided = Vec::new();
        decide_all(&self.transforms, at, pictures.height_and_width(), &mut decided);
        decided
    }
}

fn decide_all(mixes: &[Mix], mut at: At, size: [usize; 2], decided: &mut Vec<Mixed>) {
    for mix in mixes {
        mix.decide(at, size, decided);
        at.op += mix.count();
    }
}

fn count_of(mixes: &[Mix]) -> u64 {
    mixes.iter().map(Mix::count).sum()
}

impl Mix {
    fn name(&self) -> &'static str {
        match self {
            Self::MixUp(_) => "MixUp",
            Self::CutMix(_) => "CutMix",
            Self::RandomApply(_) => "RandomApply",
            Self::RandomChoice(_) => "RandomChoice",
        }
    }

    fn count(&self) -> u64 {
        match self {
            Self::MixUp(_) | Self::CutMix(_) => 1,
            Self::RandomApply(RandomApplyMix { transforms, .. })
            | Self::RandomChoice(RandomChoiceMix { transforms, .. }) => 1 + count_of(transforms),
        }
    }

    fn check(&self, dtype: Dtype) -> Result<(), String> {
        let all = |mixes: &[Mix]| {
            mixes.iter().try_for_each(|mix| {
                mix.check(dtype).map_err(|error| format!("has {}, which {error}", mix.name()))
            })
        };
        let positive = |alpha: f64| match alpha > 0.0 && alpha.is_finite() {
            true => Ok(()),
            false => Err(format!("has alpha = {alpha}: give a positive number")),
        };
        match self {
            Self::MixUp(_) if dtype == Dtype::Uint8 => {
                Err("takes float pictures, and gets uint8: put ToDtype(\"float32\", scale=True) before it"
                    .into())
            }
            Self::MixUp(MixUp { alpha }) | Self::CutMix(CutMix { alpha }) => positive(*alpha),
            Self::RandomApply(RandomApplyMix { transforms, p }) => {
                probability(*p)?;
                all(transforms)
            }
            Self::RandomChoice(RandomChoiceMix { transforms, p }) => {
                probabilities(p.as_deref(), transforms.len())?;
                all(transforms)
            }
        }
    }

    fn decide(&self, at: At, size: [usize; 2], decided: &mut Vec<Mixed>) {
        let inside = At { op: at.op + 1, ..at };
        let mut draws = at.draws();
        match self {
            Self::MixUp(MixUp { alpha }) => {
                decided.push(Mixed::Blend { share: beta(&mut draws, *alpha, *alpha) })
            }
            Self::CutMix(CutMix { alpha }) => {
                let share = beta(&mut draws, *alpha, *alpha);
                let [height, width] = size;
                let (x, y) = (draws.below(width), draws.below(height));
                decided.push(rectangle(share, [y, x], size));
            }
            Self::RandomApply(RandomApplyMix { transforms, p }) => {
                if draws.chance(*p) {
                    decide_all(transforms, inside, size, decided);
                }
            }
            Self::RandomChoice(RandomChoiceMix { transforms, p }) => {
                let probabilities =
                    probabilities(p.as_deref(), transforms.len()).expect("checked with the chain");
                let chosen = choose(&probabilities, draws.uniform());
                let op = inside.op + count_of(&transforms[..chosen]);
                transforms[chosen].decide(At { op, ..at }, size, decided);
            }
        }
    }
}

/// A rectangle around a middle with `1 - share` of the area, cut off at the borders. The share follows from the rest.
fn rectangle(share: f64, [y, x]: [usize; 2], [height, width]: [usize; 2]) -> Mixed {
    let ratio = 0.5 * libm::sqrt(1.0 - share);
    let span = |middle: usize, length: usize| {
        let reach = (ratio * length as f64) as usize;
        let start = middle.saturating_sub(reach);
        (start, (middle + reach).min(length) - start)
    };
    let ((top, rows), (left, columns)) = (span(y, height), span(x, width));
    let share = 1.0 - (rows * columns) as f64 / (height * width) as f64;
    Mixed::Paste { region: Region { top, left, height: rows, width: columns }, share }
}

impl Pictures {
    fn height_and_width(self) -> [usize; 2] {
        let [a, b, c] = self.shape;
        match self.layout {
            Layout::ChannelsFirst => [b, c],
            Layout::ChannelsLast => [a, b],
        }
    }

    /// Numbers of a picture.
    fn len(self) -> usize {
        self.shape.iter().product()
    }

    fn blend(self, numbers: &mut [u8], share: f64) {
        match self.dtype {
            Dtype::Float32 => {
                self.blend_as(numbers, share, |bytes| f32::from_le_bytes(*bytes), f32::to_le_bytes)
            }
            Dtype::Float16 => self.blend_as(
                numbers,
                share,
                |bytes| f16::from_le_bytes(*bytes).to_f32(),
                |float| f16::from_f32(float).to_le_bytes(),
            ),
            Dtype::Bfloat16 => self.blend_as(
                numbers,
                share,
                |bytes| bf16::from_le_bytes(*bytes).to_f32(),
                |float| bf16::from_f32(float).to_le_bytes(),
            ),
            Dtype::Uint8 => unreachable!("a checked chain blends floats"),
        }
    }

    fn blend_as<const N: usize>(
        self,
        numbers: &mut [u8],
        share: f64,
        float: impl Fn(&[u8; N]) -> f32,
        bytes: impl Fn(f32) -> [u8; N],
    ) {
        let (own, other) = (share as f32, (1.0 - share) as f32);
        with_previous(numbers.as_chunks_mut::<N>().0, self.len(), |picture, previous| {
            for (number, previous) in picture.iter_mut().zip(previous) {
                *number = bytes(float(previous) * other + float(number) * own);
            }
        });
    }

    fn paste(self, numbers: &mut [u8], region: Region) {
        let size = self.dtype.size();
        let runs: Vec<Range<usize>> = self.runs(region).map(|run| run.start * size..run.end * size).collect();
        with_previous(numbers, self.len() * size, |picture, previous| {
            for run in &runs {
                picture[run.clone()].copy_from_slice(&previous[run.clone()]);
            }
        });
    }

    /// The numbers of a region that lie side by side.
    fn runs(self, region: Region) -> impl Iterator<Item = Range<usize>> {
        let [height, width] = self.height_and_width();
        let channels = self.len() / (height * width);
        let (planes, pixel) = match self.layout {
            Layout::ChannelsFirst => (channels, 1),
            Layout::ChannelsLast => (1, channels),
        };
        (0..planes).flat_map(move |plane| {
            (region.top..region.top + region.height).map(move |row| {
                let start = ((plane * height + row) * width + region.left) * pixel;
                start..start + region.width * pixel
            })
        })
    }
}

/// Changes each part of this length by the one before it as that was; the first one by the last.
fn with_previous<T: Copy>(all: &mut [T], len: usize, mut change: impl FnMut(&mut [T], &[T])) {
    let Some(last) = all.len().checked_sub(len).filter(|_| len > 0) else { return };
    let kept = all[last..].to_vec();
    for start in (len..all.len()).step_by(len).rev() {
        let (before, from) = all.split_at_mut(start);
        change(&mut from[..len], &before[start - len..]);
    }
    change(&mut all[..len], &kept);
}

fn blend(own: &mut [f32], previous: &[f32], share: f64) {
    let (kept, other) = (share as f32, (1.0 - share) as f32);
    own.iter_mut().zip(previous).for_each(|(own, previous)| *own = previous * other + *own * kept);
}

#[cfg(test)]
mod tests;
