//! Which numbers of an image a pixel of the result is summed from.

/// One step of the depth: a channel, and a place relative to where a pixel of the result begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tap {
    pub(super) channel: usize,
    pub(super) y: isize,
    pub(super) x: isize,
}

/// Pixels of a result, each a sum over the same taps of an image.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Channels, height and width of the image.
    pub(super) image: [usize; 3],
    /// Height and width of the result.
    pub(super) pixels: [usize; 2],
    /// Rows and columns of the image from one pixel of the result to the next.
    pub(super) step: [usize; 2],
    pub(super) taps: Vec<Tap>,
}

/// Zeros around an image, so that no tap of a window lies outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Margin {
    pub(super) before: [usize; 2],
    /// Height and width with zeros.
    pub(super) size: [usize; 2],
}

impl Window {
    pub(super) fn margin(&self) -> Margin {
        let places = |tap: &Tap| [tap.y, tap.x];
        let mut margin = Margin { before: [0; 2], size: [0; 2] };
        for axis in [0, 1] {
            let least = self.taps.iter().map(|tap| places(tap)[axis]).min().unwrap_or(0);
            let most = self.taps.iter().map(|tap| places(tap)[axis]).max().unwrap_or(0);
            let before = least.min(0).unsigned_abs();
            let last = most + ((self.pixels[axis].max(1) - 1) * self.step[axis]) as isize;
            let end = (last + 1).max(self.image[axis + 1] as isize).unsigned_abs();
            margin.before[axis] = before;
            margin.size[axis] = before + end;
        }
        margin
    }
}
