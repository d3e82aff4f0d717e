//! The operations among which an augmentation chooses, and how strong each can be.

use super::Primitive;
use crate::{draws::Draws, ops::geometry::linspace_at};

/// An operation without its strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

impl Kind {
    /// Whether it has a strength.
    pub(super) fn has_magnitude(self) -> bool {
        !matches!(self, Self::Identity | Self::AutoContrast | Self::Equalize | Self::Invert)
    }

    /// Whether its strength can be negative.
    pub(super) fn is_signed(self) -> bool {
        self.has_magnitude() && !matches!(self, Self::Posterize | Self::Solarize)
    }

    /// With a strength, which is a whole number where one is needed.
    fn with(self, magnitude: f64) -> Primitive {
        match self {
            Self::Identity => Primitive::Identity,
            Self::ShearX => Primitive::ShearX(magnitude),
            Self::ShearY => Primitive::ShearY(magnitude),
            Self::TranslateX => Primitive::TranslateX(magnitude as i64),
            Self::TranslateY => Primitive::TranslateY(magnitude as i64),
            Self::Rotate => Primitive::Rotate(magnitude),
            Self::Brightness => Primitive::Brightness(magnitude),
            Self::Color => Primitive::Color(magnitude),
            Self::Contrast => Primitive::Contrast(magnitude),
            Self::Sharpness => Primitive::Sharpness(magnitude),
            Self::Posterize => Primitive::Posterize(magnitude as u32),
            Self::Solarize => Primitive::Solarize(magnitude),
            Self::AutoContrast => Primitive::AutoContrast,
            Self::Equalize => Primitive::Equalize,
            Self::Invert => Primitive::Invert,
        }
    }
}

/// How far pictures can move.
#[derive(Clone, Copy)]
enum Way {
    /// The width or height times this.
    Times(f64),
    /// The width or height divided by this.
    Part(f64),
    Pixels(f64),
}

/// Operations and their largest strengths.
pub(super) struct Space {
    pub(super) kinds: &'static [Kind],
    shear: f64,
    translate: Way,
    rotate: f64,
    /// For brightness, colour, contrast and sharpness.
    enhance: f64,
    /// The bits of the weakest operation, and how many fewer the strongest has.
    posterize: [f32; 2],
}

const ALL: &[Kind] = &[
    Kind::Identity,
    Kind::ShearX,
    Kind::ShearY,
    Kind::TranslateX,
    Kind::TranslateY,
    Kind::Rotate,
    Kind::Brightness,
    Kind::Color,
    Kind::Contrast,
    Kind::Sharpness,
    Kind::Posterize,
    Kind::Solarize,
    Kind::AutoContrast,
    Kind::Equalize,
];

const MIXED: &[Kind] = &[
    Kind::ShearX,
    Kind::ShearY,
    Kind::TranslateX,
    Kind::TranslateY,
    Kind::Rotate,
    Kind::Posterize,
    Kind::Solarize,
    Kind::AutoContrast,
    Kind::Equalize,
    Kind::Brightness,
    Kind::Color,
    Kind::Contrast,
    Kind::Sharpness,
];

/// That of RandAugment. AutoAugment has the same strengths, and chooses by its policies.
pub(super) const RAND: Space = Space {
    kinds: ALL,
    shear: 0.3,
    translate: Way::Times(150.0 / 331.0),
    rotate: 30.0,
    enhance: 0.9,
    posterize: [8.0, 4.0],
};

/// That of TrivialAugmentWide.
pub(super) const WIDE: Space = Space {
    kinds: ALL,
    shear: 0.99,
    translate: Way::Pixels(32.0),
    rotate: 135.0,
    enhance: 0.99,
    posterize: [8.0, 6.0],
};

/// That of AugMix with `all_ops`.
pub(super) const MIX: Space =
    Space { kinds: MIXED, translate: Way::Part(3.0), posterize: [4.0, 4.0], ..RAND };

/// That of AugMix without `all_ops`.
pub(super) const MIX_PARTIAL: Space = Space { kinds: MIXED.split_at(9).0, ..MIX };

impl Space {
    /// An operation of the space. Draws `below(kinds.len())`.
    pub(super) fn kind(&self, draws: &mut Draws) -> Kind {
        self.kinds[draws.below(self.kinds.len())]
    }

    /// An operation with a strength for a picture of `[height, width]`. Draws `chance(0.5)` if it has a sign:
    /// that it is negative.
    ///
    /// `bin` is one of `bins` from the weakest strength to the largest; the last if it is beyond.
    pub(super) fn primitive(
        &self,
        kind: Kind,
        [bin, bins]: [u32; 2],
        size: [usize; 2],
        draws: &mut Draws,
    ) -> Primitive {
        let magnitude = self.magnitude(kind, [bin, bins], size);
        let negative = kind.is_signed() && draws.chance(0.5);
        kind.with(if negative { -magnitude } else { magnitude })
    }

    /// The strength without a sign, 0 for operations without.
    pub(super) fn magnitude(&self, kind: Kind, [bin, bins]: [u32; 2], [height, width]: [usize; 2]) -> f64 {
        let bin = bin.min(bins.saturating_sub(1));
        let between = |from, to| f64::from(linspace_at(from, to, bins as usize, bin as usize));
        match kind {
            Kind::ShearX | Kind::ShearY => between(0.0, self.shear),
            Kind::TranslateX => between(0.0, self.way(width)),
            Kind::TranslateY => between(0.0, self.way(height)),
            Kind::Rotate => between(0.0, self.rotate),
            Kind::Brightness | Kind::Color | Kind::Contrast | Kind::Sharpness => between(0.0, self.enhance),
            Kind::Posterize => self.bits([bin, bins]),
            Kind::Solarize => between(1.0, 0.0),
            Kind::Identity | Kind::AutoContrast | Kind::Equalize | Kind::Invert => 0.0,
        }
    }

    fn way(&self, size: usize) -> f64 {
        match self.translate {
            Way::Times(factor) => factor * size as f64,
            Way::Part(divisor) => size as f64 / divisor,
            Way::Pixels(pixels) => pixels,
        }
    }

    fn bits(&self, [bin, bins]: [u32; 2]) -> f64 {
        let [most, fewer] = self.posterize;
        if bins < 2 {
            return f64::from(most);
        }
        let bins_per_bit = (f64::from(bins - 1) / f64::from(fewer)) as f32;
        f64::from((most - bin as f32 / bins_per_bit).round_ties_even())
    }
}
