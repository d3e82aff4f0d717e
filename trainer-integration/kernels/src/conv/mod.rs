//! Convolutions of two dimensions, and their gradients, as products that are never laid out in memory.

mod backward;
mod forward;
mod image;
mod window;

use std::fmt;

use crate::level::Level;

/// A convolution of `[batch, channels, height, width]` with `[outputs, channels, height, width]`, without groups.
///
/// In each of the three operations, a number of the result is a product as [defined](crate#definition), over this depth:
///
/// | operation | depth, the last running fastest |
/// |---|---|
/// | [`forward`](Conv::forward) | input channel, row and column of the kernel |
/// | [`input_gradient`](Conv::input_gradient) | output channel, row and column of the kernel, where the input is read there |
/// | [`weight_gradient`](Conv::weight_gradient) | image, row and column of the output |
///
/// ```
/// use shardd_kernels::{Conv, Level};
///
/// let conv = Conv { batch: 1, channels: 1, height: 1, width: 3, outputs: 1, kernel: [1, 2], ..Conv::default() };
/// assert_eq!(conv.output(), Ok([1, 2]));
/// let output = conv.forward(Level::best(), &[1.0, 2.0, 3.0], &[10.0, 1.0]).unwrap();
/// assert_eq!(output, [12.0, 23.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Of the input.
    pub channels: usize,
    /// Of the input.
    pub height: usize,
    /// Of the input.
    pub width: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Height and width.
    pub kernel: [usize; 2],
    /// Distances between the pixels of the input that the kernel begins at.
    pub stride: [usize; 2],
    /// Rows of zeros above and below, columns of zeros on the left and on the right.
    pub padding: [(usize, usize); 2],
    /// Distances between the pixels of the input that a kernel covers.
    pub dilation: [usize; 2],
}

impl Default for Conv {
    /// Of one pixel: all sizes 1, no padding.
    fn default() -> Conv {
        let one = [1, 1];
        Conv {
            batch: 1,
            channels: 1,
            height: 1,
            width: 1,
            outputs: 1,
            kernel: one,
            stride: one,
            padding: [(0, 0); 2],
            dilation: one,
        }
    }
}

/// A convolution that does not exist, or numbers of another size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvError {
    /// A kernel, stride or dilation is 0.
    Zero,
    /// The kernel is larger than the padded image.
    TooLarge {
        /// Height and width that the kernel covers.
        kernel: [usize; 2],
        /// Height and width with padding.
        image: [usize; 2],
    },
    /// Other numbers than the sizes ask for.
    Length {
        /// Which of the arguments.
        argument: &'static str,
        /// How many it has.
        found: usize,
        /// How many it must have.
        expected: usize,
    },
}

impl fmt::Display for ConvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConvError::Zero => f.write_str("kernel, stride and dilation of a convolution must be at least 1"),
            ConvError::TooLarge { kernel: [height, width], image: [rows, columns] } => {
                write!(
                    f,
                    "a kernel that covers {height} x {width} does not fit an image of {rows} x {columns}, padding included"
                )
            }
            ConvError::Length { argument, found, expected } => {
                write!(f, "{argument} has {found} numbers; the convolution needs {expected}")
            }
        }
    }
}

impl std::error::Error for ConvError {}

impl Conv {
    /// Height and width of the output.
    ///
    /// # Errors
    /// When the kernel is empty or larger than the padded image, or a stride or dilation is 0.
    pub fn output(&self) -> Result<[usize; 2], ConvError> {
        let sizes = self.kernel.into_iter().chain(self.stride).chain(self.dilation);
        if sizes.min() == Some(0) {
            return Err(ConvError::Zero);
        }
        let [(above, below), (left, right)] = self.padding;
        let image = [above + self.height + below, left + self.width + right];
        let kernel = [0, 1].map(|axis| (self.kernel[axis] - 1) * self.dilation[axis] + 1);
        if kernel[0] > image[0] || kernel[1] > image[1] {
            return Err(ConvError::TooLarge { kernel, image });
        }
        Ok([0, 1].map(|axis| (image[axis] - kernel[axis]) / self.stride[axis] + 1))
    }

    /// `[batch, outputs, height, width]` of an input and a weight.
    ///
    /// # Errors
    /// As [`output`](Conv::output), and when the numbers of the arguments do not fit.
    pub fn forward(&self, level: Level, input: &[f32], weight: &[f32]) -> Result<Vec<f32>, ConvError> {
        let pixels = self.output()?;
        check("the input", input, self.input_len())?;
        check("the weight", weight, self.weight_len())?;
        Ok(match input.is_empty() || weight.is_empty() {
            true => vec![0.0; self.output_len(pixels)],
            false => forward::forward(self, pixels, level, input, weight),
        })
    }

    /// The gradient of the input, `[batch, channels, height, width]`, from that of the output.
    ///
    /// # Errors
    /// As [`forward`](Conv::forward).
    pub fn input_gradient(
        &self,
        level: Level,
        output: &[f32],
        weight: &[f32],
    ) -> Result<Vec<f32>, ConvError> {
        let pixels = self.output()?;
        check("the output's gradient", output, self.output_len(pixels))?;
        check("the weight", weight, self.weight_len())?;
        Ok(match output.is_empty() || weight.is_empty() {
            true => vec![0.0; self.input_len()],
            false => forward::input_gradient(self, pixels, level, output, weight),
        })
    }

    /// The gradient of the weight, `[outputs, channels, height, width]`, from that of the output.
    ///
    /// # Errors
    /// As [`forward`](Conv::forward).
    pub fn weight_gradient(
        &self,
        level: Level,
        input: &[f32],
        output: &[f32],
    ) -> Result<Vec<f32>, ConvError> {
        let pixels = self.output()?;
        check("the input", input, self.input_len())?;
        check("the output's gradient", output, self.output_len(pixels))?;
        Ok(match input.is_empty() || output.is_empty() {
            true => vec![0.0; self.weight_len()],
            false => backward::weight_gradient(self, pixels, level, input, output),
        })
    }

    fn input_len(&self) -> usize {
        self.batch * self.channels * self.height * self.width
    }

    fn weight_len(&self) -> usize {
        self.outputs * self.taps()
    }

    fn output_len(&self, [height, width]: [usize; 2]) -> usize {
        self.batch * self.outputs * height * width
    }

    /// Numbers of the weight for one output channel.
    fn taps(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }
}

fn check(argument: &'static str, numbers: &[f32], expected: usize) -> Result<(), ConvError> {
    if numbers.len() == expected {
        return Ok(());
    }
    Err(ConvError::Length { argument, found: numbers.len(), expected })
}

#[cfg(test)]
mod tests;
