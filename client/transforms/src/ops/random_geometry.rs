//! Rotations, shears and perspectives.

use serde::{Deserialize, Serialize};

use super::arguments::{OneOrMany, bounded, half, ordered, probability, round};
use super::geometry::{
    Field, Fill, Interpolation, affine, affine_points, elastic, elastic_points, expanded_size, perspective,
    perspective_points, rotate, rotated_points,
};
use crate::companions::Coordinates;
use crate::draws::Draws;
use crate::image::Image;
use crate::operation::{At, Motion, Mover, bytes_only};
use crate::value::{Kind, Value};

/// The least and the largest angle: a number is that of both directions.
fn angles(degrees: &OneOrMany<f64>, of: &str) -> Result<[f64; 2], String> {
    let range = match *degrees.as_slice() {
        [both] if both < 0.0 => {
            return Err(format!("has {of} = {both}: give a number from 0, or the least and the largest"));
        }
        [both] => [-both, both],
        [low, high] => [low, high],
        _ => return Err(format!("has {of} of other than one or two numbers")),
    };
    ordered(range, of, f64::MIN, f64::INFINITY).map(|()| range)
}

pub(super) fn check_fill(fill: &Fill, channels: usize) -> Result<(), String> {
    if !fill.values().iter().all(|value| (0.0..=255.0).contains(value)) {
        return Err("has a fill that is not from 0 to 255".into());
    }
    match fill.values() {
        [] | [_] => Ok(()),
        many if many.len() == channels => Ok(()),
        many => Err(format!(
            "has {} values of fill for {channels} channels: give one, or one for each",
            many.len()
        )),
    }
}

fn finite(center: Option<[f64; 2]>) -> Result<(), String> {
    match center {
        Some(center) if !center.iter().all(|at| at.is_finite()) => {
            Err("has a center that is not finite".into())
        }
        _ => Ok(()),
    }
}

fn nearest() -> Interpolation {
    Interpolation::Nearest
}

fn bilinear() -> Interpolation {
    Interpolation::Bilinear
}

/// Where all pixels come from, as the arguments of [`geometry`](super::geometry)'s functions.
enum Warp {
    Affine { angle: f64, translate: [f64; 2], scale: f64, shear: [f64; 2], center: Option<[f64; 2]> },
    Rotation { angle: f64, expand: bool, center: Option<[f64; 2]> },
    Perspective { from: [[f64; 2]; 4], to: [[f64; 2]; 4] },
    Elastic(Field),
}

impl Warp {
    fn image(&self, image: &Image<u8>, how: Interpolation, fill: &[f32]) -> Image<u8> {
        match *self {
            Self::Affine { angle, translate, scale, shear, center } => {
                affine(image, angle, translate, scale, shear, how, fill, center)
            }
            Self::Rotation { angle, expand, center } => rotate(image, angle, how, expand, center, fill),
            Self::Perspective { from, to } => perspective(image, from, to, how, fill),
            Self::Elastic(ref field) => elastic(image, field, how, fill),
        }
    }
}

/// The motion of all operations here.
pub(crate) struct Warped<'a> {
    warp: Warp,
    interpolation: Interpolation,
    fill: &'a Fill,
}

impl Motion for Warped<'_> {
    fn picture(&self, value: Value) -> Result<Value, String> {
        Ok(value.bytes(|image| self.warp.image(&image, self.interpolation, self.fill.values())))
    }

    fn mask(&self, plane: Image<u8>) -> Result<Image<u8>, String> {
        Ok(self.warp.image(&plane, Interpolation::Nearest, &[0.0]))
    }

    fn coordinates(&self, all: &mut impl Coordinates, from: [usize; 2], to: [usize; 2]) {
        match self.warp {
            Warp::Affine { angle, translate, scale, shear, center } => {
                all.map(affine_points(from, angle, translate, scale, shear, center), to);
            }
            Warp::Rotation { angle, expand, center } => {
                all.map(rotated_points(from, angle, expand, center), to)
            }
            Warp::Perspective { from, to: ends } => all.map(perspective_points(from, ends), to),
            Warp::Elastic(ref field) => all.map_pixels(elastic_points(field), to),
        }
    }
}

/// Rotates by a random angle.
///
/// Random numbers: `between(degrees)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomRotation {
    /// The largest angle in both directions, or the least and the largest; in degrees, counter-clockwise.
    pub degrees: OneOrMany<f64>,
    /// How pixels between pixels are found.
    #[serde(default = "nearest")]
    pub interpolation: Interpolation,
    /// Whether pictures become so large that nothing is cut off.
    #[serde(default)]
    pub expand: bool,
    /// The pixel around which it rotates, from the left and from above; the middle if none is given.
    #[serde(default)]
    pub center: Option<[f64; 2]>,
    /// Pixels from outside.
    #[serde(default)]
    pub fill: Fill,
}

impl Mover for RandomRotation {
    type Motion<'a> = Warped<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        angles(&self.degrees, "degrees")?;
        finite(self.center)?;
        check_fill(&self.fill, input.channels)?;
        let size = input.size.filter(|_| !self.expand);
        bytes_only(Kind { size, ..input })
    }

    fn motion(&self, size: [usize; 2], at: At) -> Result<Option<Warped<'_>>, String> {
        let [low, high] = angles(&self.degrees, "degrees")?;
        let angle = at.draws().between(low, high);
        if self.expand {
            bounded(expanded_size(size, angle, self.center))?;
        }
        let warp = Warp::Rotation { angle, expand: self.expand, center: self.center };
        Ok(Some(Warped { warp, interpolation: self.interpolation, fill: &self.fill }))
    }
}

/// Rotates, moves, scales and shears.
///
/// Random numbers, of those that are given: `between(degrees)`; `between(-max, max)` for the pixels to the right and then down,
/// rounded, where `max` is the part of the width and of the height; `between(scale)`; `between(shear)` along x, then along y.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomAffine {
    /// The largest angle in both directions, or the least and the largest; in degrees, clockwise.
    pub degrees: OneOrMany<f64>,
    /// The largest parts of width and height by which pictures move.
    #[serde(default)]
    pub translate: Option<[f64; 2]>,
    /// The least and the largest factor.
    #[serde(default)]
    pub scale: Option<[f64; 2]>,
    /// Degrees along x as `degrees`, or the least and the largest along x and along y.
    #[serde(default)]
    pub shear: Option<OneOrMany<f64>>,
    /// How pixels between pixels are found.
    #[serde(default = "nearest")]
    pub interpolation: Interpolation,
    /// Pixels from outside.
    #[serde(default)]
    pub fill: Fill,
    /// The pixel that stays, from the left and from above; the middle if none is given.
    #[serde(default)]
    pub center: Option<[f64; 2]>,
}

impl RandomAffine {
    /// The least and the largest shear along x and y.
    fn shears(&self) -> Result<[Option<[f64; 2]>; 2], String> {
        match self.shear.as_ref().map(OneOrMany::as_slice) {
            None => Ok([None, None]),
            Some(&[a, b, c, d]) => {
                ordered([a, b], "a shear", f64::MIN, f64::INFINITY)?;
                ordered([c, d], "a shear", f64::MIN, f64::INFINITY)?;
                Ok([Some([a, b]), Some([c, d])])
            }
            Some(one_or_two) => Ok([Some(angles(&OneOrMany::Many(one_or_two.to_vec()), "shear")?), None]),
        }
    }
}

impl Mover for RandomAffine {
    type Motion<'a> = Warped<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        angles(&self.degrees, "degrees")?;
        self.shears()?;
        finite(self.center)?;
        if let Some(parts) = self.translate
            && !parts.iter().all(|part| (0.0..=1.0).contains(part))
        {
            return Err(format!("translates by {parts:?}: give parts of width and height from 0 to 1"));
        }
        if let Some(scale) = self.scale {
            ordered(scale, "a scale", f64::MIN_POSITIVE, f64::INFINITY)?;
        }
        check_fill(&self.fill, input.channels)?;
        bytes_only(input)
    }

    fn motion(&self, [height, width]: [usize; 2], at: At) -> Result<Option<Warped<'_>>, String> {
        let mut draws = at.draws();
        let mut within =
            |range: Option<[f64; 2]>, or: f64| range.map_or(or, |[low, high]| draws.between(low, high));
        let angle = within(Some(angles(&self.degrees, "degrees")?), 0.0);
        let parts = self.translate.map(|[across, down]| [across * width as f64, down * height as f64]);
        let translate = [0, 1].map(|axis| round(within(parts.map(|parts| [-parts[axis], parts[axis]]), 0.0)));
        let scale = within(self.scale, 1.0);
        let shear = self.shears()?.map(|range| within(range, 0.0));
        let warp = Warp::Affine { angle, translate, scale, shear, center: self.center };
        Ok(Some(Warped { warp, interpolation: self.interpolation, fill: &self.fill }))
    }
}

/// Looks at some pictures from another side.
///
/// Random numbers: `chance(p)`; then `below(bound)` across and down for the corner at the top left, and those of the others,
/// clockwise, where `bound` is 1 and the part of half the side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPerspective {
    /// By which part of half a side a corner moves at most: 0 to 1.
    #[serde(default = "half")]
    pub distortion_scale: f64,
    /// The probability of it.
    #[serde(default = "half")]
    pub p: f64,
    /// How pixels between pixels are found.
    #[serde(default = "bilinear")]
    pub interpolation: Interpolation,
    /// Pixels from outside.
    #[serde(default)]
    pub fill: Fill,
}

impl RandomPerspective {
    /// Where the corners of a picture of this height and width go: clockwise from the top left, each from the left and from above.
    pub fn corners(&self, [height, width]: [usize; 2], draws: &mut Draws) -> [[f64; 2]; 4] {
        let bound = |side: usize| (self.distortion_scale * (side / 2) as f64) as usize + 1;
        let [across, down] = [bound(width), bound(height)];
        let left =
            |is_left: bool, draws: &mut Draws| draws.below(across) + if is_left { 0 } else { width - across };
        let top =
            |is_top: bool, draws: &mut Draws| draws.below(down) + if is_top { 0 } else { height - down };
        [[true, true], [false, true], [false, false], [true, false]].map(|[is_left, is_top]| {
            let x = left(is_left, draws);
            [x as f64, top(is_top, draws) as f64]
        })
    }
}

impl Mover for RandomPerspective {
    type Motion<'a> = Warped<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        probability(self.p)?;
        ordered([0.0, self.distortion_scale], "a distortion_scale", 0.0, 1.0)?;
        check_fill(&self.fill, input.channels)?;
        bytes_only(input)
    }

    fn motion(&self, size @ [height, width]: [usize; 2], at: At) -> Result<Option<Warped<'_>>, String> {
        let mut draws = at.draws();
        if !draws.chance(self.p) {
            return Ok(None);
        }
        let [right, bottom] = [(width - 1) as f64, (height - 1) as f64];
        let from = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
        let warp = Warp::Perspective { from, to: self.corners(size, &mut draws) };
        Ok(Some(Warped { warp, interpolation: self.interpolation, fill: &self.fill }))
    }
}

/// Moves each pixel by a random field that is smooth (Simard et al., "Best practices for convolutional neural networks",
/// ICDAR 2003).
///
/// Random numbers: `uniform()` of each pixel, row by row, for the moves across, then for those down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElasticTransform {
    /// The strength of the moves: of both directions, or across and down.
    #[serde(default = "ElasticTransform::alpha")]
    pub alpha: OneOrMany<f64>,
    /// The standard deviation in pixels of the blur that makes the field smooth: of both directions, or across and down.
    #[serde(default = "ElasticTransform::sigma")]
    pub sigma: OneOrMany<f64>,
    /// How pixels between pixels are found.
    #[serde(default = "bilinear")]
    pub interpolation: Interpolation,
    /// Pixels from outside.
    #[serde(default)]
    pub fill: Fill,
}

impl ElasticTransform {
    fn alpha() -> OneOrMany<f64> {
        OneOrMany::One(50.0)
    }

    fn sigma() -> OneOrMany<f64> {
        OneOrMany::One(5.0)
    }

    /// Across and down: the strengths, and the standard deviations.
    fn arguments(&self) -> Result<[[f64; 2]; 2], String> {
        let both = |values: &OneOrMany<f64>, of: &str, most: f64| {
            let both = match *values.as_slice() {
                [one] => [one, one],
                [across, down] => [across, down],
                _ => return Err(format!("has {of} of other than one or two numbers")),
            };
            match both.iter().all(|value| (0.0..=most).contains(value)) {
                true => Ok(both),
                false => Err(format!("has {of} of {both:?}: give numbers from 0 to {most}")),
            }
        };
        Ok([both(&self.alpha, "alpha", 1e6)?, both(&self.sigma, "sigma", 256.0)?])
    }
}

impl Mover for ElasticTransform {
    type Motion<'a> = Warped<'a>;

    fn kind(&self, input: Kind) -> Result<Kind, String> {
        self.arguments()?;
        check_fill(&self.fill, input.channels)?;
        bytes_only(input)
    }

    fn motion(&self, size: [usize; 2], at: At) -> Result<Option<Warped<'_>>, String> {
        let [alpha, sigma] = self.arguments()?;
        let warp = Warp::Elastic(Field::random(size, alpha, sigma, &mut at.draws()));
        Ok(Some(Warped { warp, interpolation: self.interpolation, fill: &self.fill }))
    }
}
