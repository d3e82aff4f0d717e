//! Copies of images with zeros around, in the order in which they are read.

use super::window::{Margin, Tap, Window};

/// Images with zeros around, channel by channel and row by row. Within a row, the columns that pixels of the result begin at follow each
/// other: of a step of 2, first the even columns, then the odd ones.
#[derive(Debug)]
pub(super) struct Rows {
    margin: Margin,
    step: usize,
    channels: usize,
    /// Columns of a row that are the same modulo the step.
    columns: usize,
}

impl Rows {
    pub(super) fn of(window: &Window) -> Rows {
        let (margin, step) = (window.margin(), window.step[1]);
        Rows { margin, step, channels: window.image[0], columns: margin.size[1].div_ceil(step) }
    }

    /// Numbers from one row to the next.
    pub(super) fn row_len(&self) -> usize {
        self.columns * self.step
    }

    fn channel_len(&self) -> usize {
        self.margin.size[0] * self.row_len()
    }

    pub(super) fn image_len(&self) -> usize {
        self.channels * self.channel_len()
    }

    /// Where the tap of the first pixel lies.
    pub(super) fn place(&self, tap: Tap) -> usize {
        let [y, x] = self.margin.place(tap);
        tap.channel * self.channel_len() + y * self.row_len() + self.column(x)
    }

    fn column(&self, x: usize) -> usize {
        x % self.step * self.columns + x / self.step
    }

    /// Copies an image of this many columns into `image_len` numbers that are zero, or hold another image of these sizes.
    pub(super) fn copy(&self, image: &[f32], [_, height, width]: [usize; 3], into: &mut [f32]) {
        let [above, left] = self.margin.before;
        let channels = image.chunks_exact(height * width).zip(into.chunks_exact_mut(self.channel_len()));
        for (channel, into) in channels {
            let rows = into.chunks_exact_mut(self.row_len()).skip(above);
            for (row, into) in channel.chunks_exact(width).zip(rows) {
                if self.step == 1 {
                    into[left..left + width].copy_from_slice(row);
                } else {
                    row.iter().enumerate().for_each(|(x, number)| into[self.column(x + left)] = *number);
                }
            }
        }
    }
}

/// An image with zeros around, row by row, in each pixel by pixel, in each all channels.
#[derive(Debug)]
pub(super) struct Pixels {
    margin: Margin,
    channels: usize,
}

impl Pixels {
    pub(super) fn of(window: &Window) -> Pixels {
        Pixels { margin: window.margin(), channels: window.image[0] }
    }

    pub(super) fn row_len(&self) -> usize {
        self.margin.size[1] * self.channels
    }

    pub(super) fn image_len(&self) -> usize {
        self.margin.size[0] * self.row_len()
    }

    /// Where the tap of the first pixel lies.
    pub(super) fn place(&self, tap: Tap) -> usize {
        let [y, x] = self.margin.place(tap);
        y * self.row_len() + x * self.channels + tap.channel
    }

    /// Copies an image into `image_len` numbers that are zero.
    pub(super) fn copy(&self, image: &[f32], [_, height, width]: [usize; 3], into: &mut [f32]) {
        let [above, left] = self.margin.before;
        let rows = into.chunks_exact_mut(self.row_len()).skip(above).take(height);
        for (y, into) in rows.enumerate() {
            let into = &mut into[left * self.channels..][..width * self.channels];
            for (channel, numbers) in image.chunks_exact(height * width).enumerate() {
                let row = &numbers[y * width..][..width];
                let places = into[channel..].iter_mut().step_by(self.channels);
                places.zip(row).for_each(|(place, number)| *place = *number);
            }
        }
    }
}
