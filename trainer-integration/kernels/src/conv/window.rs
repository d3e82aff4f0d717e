//! Which numbers of an image a pixel of the result is summed from.

use super::Conv;

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
    /// The pixels of a convolution's output; one tap for each number of the weight of an output channel, in their order.
    pub(super) fn of(conv: &Conv, pixels: [usize; 2]) -> Window {
        let Conv { channels, height, width, kernel: [rows, columns], stride, .. } = *conv;
        let at = |axis: usize, index: usize| {
            (index * conv.dilation[axis]) as isize - conv.padding[axis].0 as isize
        };
        let taps = (0..channels).flat_map(|channel| {
            (0..rows).flat_map(move |y| (0..columns).map(move |x| Tap { channel, y: at(0, y), x: at(1, x) }))
        });
        Window { image: [channels, height, width], pixels, step: stride, taps: taps.collect() }
    }

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

impl Margin {
    /// Row and column of a tap of the first pixel.
    pub(super) fn place(&self, tap: Tap) -> [usize; 2] {
        [tap.y + self.before[0] as isize, tap.x + self.before[1] as isize].map(isize::unsigned_abs)
    }
}
