//! Pictures in memory.

/// A picture: rows from the top, in each the pixels from the left, in each its channels.
///
/// The channels are grey, or red, green and blue; 8 bits each (`T = u8`), or floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Image<T = u8> {
    height: usize,
    width: usize,
    channels: usize,
    pixels: Vec<T>,
}

impl<T: Copy> Image<T> {
    /// From `height * width * channels` numbers.
    ///
    /// # Panics
    /// If there are more or fewer numbers, or none.
    pub fn new([height, width, channels]: [usize; 3], pixels: Vec<T>) -> Self {
        assert!(!pixels.is_empty(), "a picture has pixels");
        assert_eq!(
            pixels.len(),
            height * width * channels,
            "numbers of a picture of {height}x{width}x{channels}"
        );
        Self { height, width, channels, pixels }
    }

    /// A picture whose pixels all have these channels.
    ///
    /// # Panics
    /// If there are no pixels or channels.
    pub fn filled(height: usize, width: usize, pixel: &[T]) -> Self {
        Self::new([height, width, pixel.len()], pixel.repeat(height * width))
    }

    /// Pixels from top to bottom.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Pixels from left to right.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Numbers of a pixel.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// `[height, width, channels]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }

    /// All numbers, row by row.
    pub fn pixels(&self) -> &[T] {
        &self.pixels
    }

    /// All numbers, to be changed.
    pub fn pixels_mut(&mut self) -> &mut [T] {
        &mut self.pixels
    }

    /// All numbers, row by row.
    pub fn into_pixels(self) -> Vec<T> {
        self.pixels
    }

    /// The numbers of a row.
    ///
    /// # Panics
    /// If the row is outside.
    pub fn row(&self, y: usize) -> &[T] {
        let len = self.width * self.channels;
        &self.pixels[y * len..][..len]
    }

    /// The pixels of a region.
    ///
    /// # Panics
    /// If it is not inside the picture, or empty.
    pub fn cut(&self, region: Region) -> Self {
        Self::cut_out_of(&self.pixels, self.shape(), region)
    }

    /// The pixels of a region of a picture of this shape.
    ///
    /// # Panics
    /// If it is not inside the picture, or empty.
    pub(crate) fn cut_out_of(pixels: &[T], [_, width, channels]: [usize; 3], region: Region) -> Self {
        let mut cut = Vec::with_capacity(region.height * region.width * channels);
        for row in pixels.chunks_exact(width * channels).skip(region.top).take(region.height) {
            cut.extend_from_slice(&row[region.left * channels..][..region.width * channels]);
        }
        Self::new([region.height, region.width, channels], cut)
    }

    /// The channels of a pixel.
    ///
    /// # Panics
    /// If it is outside.
    pub fn pixel(&self, y: usize, x: usize) -> &[T] {
        &self.row(y)[x * self.channels..][..self.channels]
    }
}

/// A rectangle of pixels, inside a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first row.
    pub top: usize,
    /// Its first column.
    pub left: usize,
    /// Its rows.
    pub height: usize,
    /// Its columns.
    pub width: usize,
}

impl Region {
    /// All of a picture.
    pub fn all_of<T: Copy>(image: &Image<T>) -> Self {
        Self { top: 0, left: 0, height: image.height(), width: image.width() }
    }
}
