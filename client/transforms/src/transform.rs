//! A checked chain: from a sample's bytes to its numbers in a batch.

use std::borrow::Cow;
use std::cell::RefCell;

use thiserror::Error;

mod write;

use crate::chain::{Chain, ChainError};
use crate::companions::{BoxFormat, CompanionKind, CompanionKinds, Companions, Given, Misfit};
use crate::decode::{self, DecodeError, Decoder};
use crate::draws::Place;
use crate::image::{Image, Region};
use crate::mixing::Pictures;
use crate::op::Op;
use crate::operation::{At, Operation};
use crate::placed::Placed;
use crate::value::{Dtype, Kind, Layout, Value};

/// What a chain gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Files of images.
    Encoded,
    /// Bytes of pixels.
    Pixels {
        /// Height, width and channels of all pictures.
        shape: [usize; 3],
        /// The order of the bytes.
        layout: Layout,
    },
}

impl Input {
    /// Of tensors of bytes with this shape: pictures are `[height, width, channels]` or `[channels, height, width]` with 1 or 3
    /// channels, or `[height, width]`.
    ///
    /// # Errors
    /// [`ChainError::Input`] for any other shape.
    pub fn of_shape(shape: &[usize]) -> Result<Self, ChainError> {
        let is_channels = |count: &usize| matches!(count, 1 | 3);
        match *shape {
            _ if shape.contains(&0) => Err(ChainError::Input(format!("uint8 of {shape:?}"))),
            [height, width] => Ok(Self::Pixels { shape: [height, width, 1], layout: Layout::ChannelsLast }),
            [height, width, channels] if is_channels(&channels) => {
                Ok(Self::Pixels { shape: [height, width, channels], layout: Layout::ChannelsLast })
            }
            [channels, height, width] if is_channels(&channels) => {
                Ok(Self::Pixels { shape: [height, width, channels], layout: Layout::ChannelsFirst })
            }
            _ => Err(ChainError::Input(format!("uint8 of {shape:?}"))),
        }
    }
}

/// A sample's picture cannot be changed.
#[derive(Debug, Error)]
pub enum SampleError {
    /// It is no image that can be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An operation does not accept it.
    #[error("operation {index} of the transforms, {name}, {reason}")]
    Op {
        /// The operation's index.
        index: usize,
        /// Its name.
        name: &'static str,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
    /// There are not as many bytes of pixels as the shape has.
    #[error("the sample has {0} bytes, and its pictures have {1}")]
    Bytes(usize, usize),
    /// There are not as many companions as the chain declares.
    #[error(
        "the sample has {given} companions, and the transforms declare {declared}: give one for each, in the order of their names"
    )]
    Companions {
        /// How many there are.
        given: usize,
        /// How many the chain declares.
        declared: usize,
    },
    /// A companion does not fit its picture, or cannot be decoded.
    #[error("companion {name:?} of the picture {reason}")]
    Companion {
        /// Its column.
        name: String,
        /// The end of the sentence that begins with its name.
        reason: String,
    },
}

/// A chain that fits its input.
#[derive(Clone, Debug)]
pub struct Transform {
    chain: Chain,
    input: Input,
    output: Kind,
    size: [usize; 2],
    /// The numbers of the operations.
    numbers: Vec<u64>,
    /// The number behind theirs: that of the first that mixes a batch.
    count: u64,
    /// Bytes of two pictures of the largest kind.
    largest: u64,
    /// The last operations, which change each byte by itself, as one table.
    tail: Option<Tail>,
}

/// Operations from `first` on, as the float of each byte of each channel.
#[derive(Clone, Debug)]
struct Tail {
    first: usize,
    floats: Vec<[f32; 256]>,
}

/// A picture on its way, for those who look at each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The operation as a call in Python; nothing for the decoded picture.
    pub op: Option<String>,
    /// The picture behind it.
    pub value: Value,
    /// The picture's companions.
    pub companions: Companions,
}

thread_local! {
    /// Keeps its memory from one picture to the next.
    static DECODER: RefCell<Decoder> = RefCell::default();
}

impl Transform {
    /// Checks a chain for pictures of this kind.
    ///
    /// # Errors
    /// [`ChainError`] if an operation does not accept what it gets, or if batches would have pictures of several sizes.
    pub fn new(chain: Chain, input: Input) -> Result<Self, ChainError> {
        let checked = Self::of_one(chain, input)?;
        if checked.output.size.is_some() { Ok(checked) } else { Err(ChainError::Sizes) }
    }

    /// The same for single pictures, whose sizes may differ. Where that at the end is not known beforehand, [`size`](Self::size) is
    /// zero until [`sized`](Self::sized) sets it.
    ///
    /// # Errors
    /// [`ChainError`] if an operation does not accept what it gets.
    pub fn of_one(chain: Chain, input: Input) -> Result<Self, ChainError> {
        if let Some(name) = chain.column.as_ref().filter(|name| chain.companions.contains_key(*name)) {
            return Err(ChainError::Companions(format!("column {name:?} has the pictures: leave it out")));
        }
        let companions = CompanionKinds::of(&chain.companions).map_err(ChainError::Companions)?;
        let mut kind = match input {
            Input::Encoded => {
                Kind { dtype: Dtype::Uint8, channels: chain.decode.mode.channels(), size: None, companions }
            }
            Input::Pixels { shape: [height, width, channels], .. } => {
                Kind { dtype: Dtype::Uint8, channels, size: Some([height, width]), companions }
            }
        };
        let mut numbers = Vec::with_capacity(chain.transforms.len());
        let (mut kinds, mut number) = (vec![kind], 0);
        for (index, op) in chain.transforms.iter().enumerate() {
            numbers.push(number);
            number += op.operation().count();
            let fits = op.operation().kind(kind);
            kind = fits.map_err(|reason| ChainError::Op { index, name: op.name(), reason })?;
            kinds.push(kind);
        }
        let size = kind.size.unwrap_or_default();
        if let Some(mixing) = &chain.batch {
            let index = chain.transforms.len();
            mixing.check(kind.dtype).map_err(|(name, reason)| ChainError::Op { index, name, reason })?;
        }
        let tail = Tail::of(&chain.transforms, &kinds);
        let largest = kinds.iter().map(|kind| 2 * bytes_of(kind, chain.decode.max_pixels)).max().unwrap_or(0);
        Ok(Self { chain, input, output: kind, size, numbers, count: number, largest, tail })
    }

    /// For pictures of this height and width at the end, if the chain does not say it.
    #[must_use]
    pub fn sized(mut self, size: [usize; 2]) -> Self {
        if self.output.size.is_none() {
            self.size = size;
        }
        self
    }

    /// Its operations with numbers from `first` on, for one that follows other operations.
    #[must_use]
    pub fn numbered_from(mut self, first: u64) -> Self {
        self.numbers.iter_mut().for_each(|number| *number += first);
        self.count += first;
        self
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The type of the numbers of a batch.
    pub fn dtype(&self) -> Dtype {
        self.output.dtype
    }

    /// The shape of a picture in a batch.
    pub fn shape(&self) -> [usize; 3] {
        let [height, width] = self.size;
        self.chain.layout.shape([height, width, self.output.channels])
    }

    /// Height and width of a picture in a batch.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Bytes of the largest picture on its way through the chain, two of which may be there at once; of pictures whose size is not
    /// known before they are read, that of the largest that may be decoded.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// Bytes of a picture in a batch.
    pub fn bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.output.dtype.size()
    }

    /// The format of the boxes behind the operations, if there are boxes.
    pub fn box_format(&self) -> Option<BoxFormat> {
        self.output.companions.boxes
    }

    /// The names and kinds of the companions behind the operations, in the order of the names.
    pub fn companions(&self) -> impl Iterator<Item = (&str, CompanionKind)> {
        let kind = |kind: &CompanionKind| match (kind, self.box_format()) {
            (CompanionKind::Boxes { .. }, Some(format)) => CompanionKind::Boxes { format },
            (other, _) => *other,
        };
        self.chain.companions.iter().map(move |(name, declared)| (name.as_str(), kind(declared)))
    }

    /// Changes the picture of a sample without companions: see [`apply_with`](Self::apply_with).
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed, or if the chain declares companions.
    ///
    /// # Panics
    /// If the memory has another size.
    pub fn apply(&self, sample: &[u8], place: Place, out: &mut [u8]) -> Result<(), SampleError> {
        self.apply_with(sample, &[], place, out).map(drop)
    }

    /// Changes a sample's picture and writes its numbers, little-endian, into memory of [`bytes`](Self::bytes). Moves its
    /// companions with it: one for each that the chain declares, in the order of their names.
    ///
    /// The picture is the same with and without companions, unless [`RandomIoUCrop`](crate::ops::iou_crop::RandomIoUCrop)
    /// looks at the boxes.
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed; the memory has then any bytes.
    ///
    /// # Panics
    /// If the memory has another size.
    pub fn apply_with(
        &self,
        sample: &[u8],
        given: &[Given<'_>],
        place: Place,
        out: &mut [u8],
    ) -> Result<Companions, SampleError> {
        assert_eq!(out.len(), self.bytes(), "the memory of a picture");
        let place = self.keyed(place);
        let end = self.tail.as_ref().map_or(self.chain.transforms.len(), |tail| tail.first);
        if given.is_empty() && self.chain.companions.is_empty() {
            let size = self.apply_alone(sample, place, end, out)?;
            return Ok(Companions::none(size));
        }
        let (first, value, mut companions) = self.first(sample, given, place)?;
        let value =
            (first..end).try_fold(value, |value, index| self.op(index, value, &mut companions, place))?;
        for index in end..self.chain.transforms.len() {
            self.carry(index, &mut companions, value.size(), place)?;
        }
        self.write(&value, out);
        Ok(companions)
    }

    /// Changes a picture without companions, and writes it; its height and width. Operations that only cut or flip touch no pixel:
    /// the next one copies what is left, or the last pass reads it.
    fn apply_alone(
        &self,
        sample: &[u8],
        place: Place,
        end: usize,
        out: &mut [u8],
    ) -> Result<[usize; 2], SampleError> {
        let (mut index, mut pixels, mut shape) = match self.input {
            Input::Pixels { shape, layout: Layout::ChannelsLast } => {
                self.check_len(sample, shape)?;
                (0, Cow::Borrowed(sample), shape)
            }
            _ => {
                let (index, value, _) = self.first(sample, &[], place)?;
                let Value::Bytes(image) = value else {
                    unreachable!("no operation cuts floats out of a file")
                };
                let shape = image.shape();
                (index, Cow::Owned(image.into_pixels()), shape)
            }
        };
        loop {
            let mut placed = Placed::whole(&pixels, shape);
            let next = self.place(index, end, &mut placed, place);
            if next == end {
                self.write_placed(&placed, out);
                return Ok(placed.size());
            }
            let region = self.on(next, place, |op, at| Ok(op.region(placed.size(), at)))?;
            let is_cut = region.is_some_and(|region| placed.cut(region));
            let image = match placed.is_whole() {
                true => Image::new(shape, pixels.into_owned()),
                false => placed.to_image(),
            };
            let image = Value::Bytes(image);
            let value = self.on(next, place, |op, at| match is_cut {
                true => op.apply_to_region(image),
                false => op.apply(image, at),
            })?;
            index = next + 1;
            match value {
                Value::Bytes(image) => {
                    shape = image.shape();
                    pixels = Cow::Owned(image.into_pixels());
                }
                floats => {
                    let change = |value, index| self.on(index, place, |op, at| op.apply(value, at));
                    let floats = (index..end).try_fold(floats, change)?;
                    self.write(&floats, out);
                    return Ok(floats.size());
                }
            }
        }
    }

    /// Cuts and flips a picture by the operations from one to another, as far as these do nothing else; the index of the next one.
    fn place(&self, from: usize, end: usize, placed: &mut Placed<'_>, place: Place) -> usize {
        let is_placed = |index: &usize| {
            let at = At { place, op: self.numbers[*index] };
            self.chain.transforms[*index].operation().place(placed, at)
        };
        from + (from..end).take_while(is_placed).count()
    }

    fn write(&self, value: &Value, out: &mut [u8]) {
        match value {
            Value::Bytes(image) => self.write_placed(&Placed::whole(image.pixels(), image.shape()), out),
            Value::Floats(image) => write::floats(image, self.chain.layout, self.output.dtype, out),
        }
    }

    fn write_placed(&self, placed: &Placed<'_>, out: &mut [u8]) {
        let (layout, dtype) = (self.chain.layout, self.output.dtype);
        match &self.tail {
            Some(tail) => write::by_table(placed, &tail.floats, layout, dtype, out),
            None => write::bytes(placed, layout, out),
        }
    }

    /// Mixes the pictures of a batch, which [`apply`](Self::apply) has written one behind the other, as the chain's
    /// [`batch`](Chain::batch) has it. The first sample of the batch is at `first`. `labels` has the share of each class, for one
    /// picture after the other, and is mixed likewise. Nothing changes without such operations, or if there is one picture.
    ///
    /// # Panics
    /// If these are no whole pictures, or not as many labels for each.
    pub fn mix(&self, first: Place, pictures: &mut [u8], labels: &mut [f32]) {
        let Some(mixing) = &self.chain.batch else { return };
        let count = pictures.len() / self.bytes();
        assert_eq!(pictures.len(), count * self.bytes(), "whole pictures");
        assert!(count == 0 || labels.len().is_multiple_of(count), "as many labels for each picture");
        let at = At { place: self.keyed(first), op: self.count };
        let kind = Pictures { shape: self.shape(), layout: self.chain.layout, dtype: self.dtype() };
        mixing.apply(at, kind, pictures, labels);
    }

    /// The stages of a sample without companions: see [`stages_with`](Self::stages_with).
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed, or if the chain declares companions.
    pub fn stages(&self, sample: &[u8], place: Place) -> Result<Vec<Stage>, SampleError> {
        self.stages_with(sample, &[], place)
    }

    /// A sample's picture behind each operation, the decoded one first: bytes or floats of 32 bits, channels last. With it come
    /// its companions.
    ///
    /// # Errors
    /// [`SampleError`] for a sample that cannot be decoded or changed.
    pub fn stages_with(
        &self,
        sample: &[u8],
        given: &[Given<'_>],
        place: Place,
    ) -> Result<Vec<Stage>, SampleError> {
        let place = self.keyed(place);
        let value = self.read(sample)?;
        let companions = self.beside(given, value.size())?;
        let mut stages = vec![Stage { op: None, value, companions }];
        for (index, op) in self.chain.transforms.iter().enumerate() {
            let Stage { value, mut companions, .. } = stages[index].clone();
            let value = self.op(index, value, &mut companions, place)?;
            stages.push(Stage { op: Some(op.to_string()), value, companions });
        }
        Ok(stages)
    }

    /// The companions of a picture of this height and width.
    fn beside(&self, given: &[Given<'_>], size: [usize; 2]) -> Result<Companions, SampleError> {
        let declared = &self.chain.companions;
        Companions::of(declared, given, size).map_err(|misfit| match misfit {
            Misfit::Count(given) => SampleError::Companions { given, declared: declared.len() },
            Misfit::One(name, reason) => SampleError::Companion { name, reason },
        })
    }

    fn keyed(&self, place: Place) -> Place {
        Place { seed: self.chain.seed.unwrap_or(place.seed), ..place }
    }

    fn op(
        &self,
        index: usize,
        value: Value,
        companions: &mut Companions,
        place: Place,
    ) -> Result<Value, SampleError> {
        self.on(index, place, |op, at| op.apply_with(value, companions, at))
    }

    /// Changes companions alone, beside a picture that becomes one of this height and width.
    fn carry(
        &self,
        index: usize,
        companions: &mut Companions,
        to: [usize; 2],
        place: Place,
    ) -> Result<(), SampleError> {
        self.on(index, place, |op, at| op.carry(companions, to, at))
    }

    /// Does something with an operation, which an error names.
    fn on<T>(
        &self,
        index: usize,
        place: Place,
        work: impl FnOnce(&dyn Operation, At) -> Result<T, String>,
    ) -> Result<T, SampleError> {
        let op = &self.chain.transforms[index];
        let done = work(op.operation(), At { place, op: self.numbers[index] });
        done.map_err(|reason| SampleError::Op { index, name: op.name(), reason })
    }

    /// The picture behind the first operation if that cuts out of the decoded picture, else the decoded one, with its companions;
    /// and the index of the operation that is next.
    fn first(
        &self,
        sample: &[u8],
        given: &[Given<'_>],
        place: Place,
    ) -> Result<(usize, Value, Companions), SampleError> {
        if let Some(op) = self.chain.transforms.first()
            && let Some(size) = self.size_before_reading(sample)?
            && let Some(region) = op.operation().region(size, At { place, op: self.numbers[0] })
        {
            let part = self.read_region(sample, region)?;
            let value = self.on(0, place, |op, _| op.apply_to_region(part))?;
            let mut companions = self.beside(given, size)?;
            self.carry(0, &mut companions, value.size(), place)?;
            return Ok((1, value, companions));
        }
        let value = self.read(sample)?;
        let companions = self.beside(given, value.size())?;
        Ok((0, value, companions))
    }

    /// Height and width of a picture of which a part can be read; none if all of it has to be.
    fn size_before_reading(&self, sample: &[u8]) -> Result<Option<[usize; 2]>, SampleError> {
        Ok(match self.input {
            Input::Encoded => Some(decode::header(sample)?.decoded_size(&self.chain.decode)),
            Input::Pixels { shape: [height, width, _], layout: Layout::ChannelsLast } => {
                Some([height, width])
            }
            Input::Pixels { layout: Layout::ChannelsFirst, .. } => None,
        })
    }

    /// A part of a picture that has a [size before it is read](Self::size_before_reading).
    fn read_region(&self, sample: &[u8], region: Region) -> Result<Value, SampleError> {
        Ok(Value::Bytes(match self.input {
            Input::Encoded => DECODER
                .with_borrow_mut(|decoder| decoder.decode_region(sample, &self.chain.decode, region))?,
            Input::Pixels { shape, .. } => {
                self.check_len(sample, shape)?;
                Image::cut_out_of(sample, shape, region)
            }
        }))
    }

    fn check_len(&self, sample: &[u8], shape: [usize; 3]) -> Result<(), SampleError> {
        let len = shape.iter().product();
        if sample.len() == len { Ok(()) } else { Err(SampleError::Bytes(sample.len(), len)) }
    }

    fn read(&self, sample: &[u8]) -> Result<Value, SampleError> {
        let Input::Pixels { shape, layout } = self.input else {
            return Ok(Value::Bytes(
                DECODER.with_borrow_mut(|decoder| decoder.decode(sample, &self.chain.decode))?,
            ));
        };
        self.check_len(sample, shape)?;
        let pixels = match layout {
            Layout::ChannelsLast => sample.to_vec(),
            Layout::ChannelsFirst => channels_last(sample, shape),
        };
        Ok(Value::Bytes(Image::new(shape, pixels)))
    }
}

/// Bytes of a picture of this kind while it is changed; of one without a known size, of the most pixels.
fn bytes_of(kind: &Kind, most: u64) -> u64 {
    let pixels = kind.size.map_or(most, |[height, width]| height as u64 * width as u64);
    let number = if kind.dtype == Dtype::Uint8 { 1 } else { 4 };
    pixels.saturating_mul(kind.channels as u64 * number)
}

fn channels_last(planes: &[u8], [height, width, channels]: [usize; 3]) -> Vec<u8> {
    let mut pixels = vec![0; planes.len()];
    for (channel, plane) in planes.chunks_exact(height * width).enumerate() {
        pixels.iter_mut().skip(channel).step_by(channels).zip(plane).for_each(|(to, from)| *to = *from);
    }
    pixels
}

/// Whether each number that an operation makes follows from the one that was there.
fn is_by_number(op: &Op) -> bool {
    use Op::{
        ClampBoundingBoxes, ConvertBoundingBoxFormat, Identity, Normalize, SanitizeBoundingBoxes, ToDtype,
        ToImage, ToPureTensor,
    };
    matches!(
        op,
        ToDtype(_)
            | Normalize(_)
            | ToImage(_)
            | ToPureTensor(_)
            | Identity(_)
            | ClampBoundingBoxes(_)
            | ConvertBoundingBoxFormat(_)
            | SanitizeBoundingBoxes(_)
    )
}

impl Tail {
    /// The last operations that change each number by itself, from bytes to floats; none if there are none.
    fn of(ops: &[Op], kinds: &[Kind]) -> Option<Self> {
        let count = ops.iter().rev().take_while(|op| is_by_number(op)).count();
        let first = (ops.len() - count..ops.len()).find(|index| kinds[*index].dtype == Dtype::Uint8)?;
        if kinds[ops.len()].dtype == Dtype::Uint8 {
            return None;
        }
        let channels = kinds[first].channels;
        let all_bytes = (0..=255).flat_map(|byte| std::iter::repeat_n(byte, channels)).collect();
        let at = At { place: Place { seed: 0, epoch: 0, position: 0 }, op: 0 };
        let value = Value::Bytes(Image::new([1, 256, channels], all_bytes));
        let Ok(Value::Floats(image)) =
            ops[first..].iter().try_fold(value, |value, op| op.operation().apply(value, at))
        else {
            return None;
        };
        let mut floats = vec![[0.0; 256]; channels];
        for (byte, pixel) in image.pixels().chunks_exact(channels).enumerate() {
            pixel.iter().zip(&mut floats).for_each(|(float, table)| table[byte] = *float);
        }
        Some(Self { first, floats })
    }
}

#[cfg(test)]
mod tests;
