//! Checked transforms of a column: pictures or sounds, behind one interface.

use arrow::datatypes::{DataType, Field, Schema};
use shardd_transforms::{ChainError, Companions, Dtype, Given, Input, Place, Transform};

use super::error::{LoadError, PictureError};
use super::tensors::shape;
use super::transforms::SampleTransforms;

/// Transforms that fit a column.
#[derive(Debug)]
pub(super) enum Change {
    Pictures(Transform),
    /// Of clips: each frame is a picture, and all frames of a sample are changed alike.
    Clips {
        frame: Transform,
        frames: usize,
    },
    #[cfg(feature = "audio")]
    Sounds(shardd_audio::Transform),
}

impl Change {
    /// The transforms, and the column that they change.
    ///
    /// # Errors
    /// [`LoadError`] if there is none, or several, or the transforms do not fit it.
    pub(super) fn new(transforms: &SampleTransforms, columns: &Schema) -> Result<(usize, Self), LoadError> {
        match transforms {
            SampleTransforms::Pictures(chain) => {
                let is_own = |name: &str| !chain.companions.contains_key(name);
                // Clips only where there are no single pictures: these were the only ones for long.
                let single = |field: &Field| picture(field).and_then(single);
                let mut found = None;
                if transforms.column().is_none() {
                    found = find(None, columns, is_own, single)?;
                }
                if found.is_none() {
                    found = find(transforms.column(), columns, is_own, picture)?;
                }
                let (column, (input, frames)) = found
                    .ok_or("no column has encoded images or uint8 pixels for the transforms")
                    .map_err(config)?;
                let transform = Transform::new((**chain).clone(), input)?;
                let Some(frames) = frames else { return Ok((column, Self::Pictures(transform))) };
                if chain.batch.is_some() || !chain.companions.is_empty() {
                    let name = columns.field(column).name();
                    return Err(LoadError::Config(format!(
                        "column {name:?} has clips of {frames} frames, and MixUp, CutMix and companions are of single pictures: \
                         leave them out"
                    )));
                }
                Ok((column, Self::Clips { frame: transform, frames }))
            }
            #[cfg(feature = "audio")]
            SampleTransforms::Sounds(chain) => {
                let found = find(transforms.column(), columns, |_| true, sound)?;
                let (column, input) = found
                    .ok_or(
                        "no column has sound files, or int16 or float32 of [samples] or [channels, samples]",
                    )
                    .map_err(config)?;
                let transform = shardd_audio::Transform::new((**chain).clone(), input);
                Ok((column, Self::Sounds(transform?)))
            }
        }
    }

    /// Those of single pictures.
    pub(super) fn pictures(&self) -> Option<&Transform> {
        match self {
            Self::Pictures(transform) => Some(transform),
            Self::Clips { .. } => None,
            #[cfg(feature = "audio")]
            Self::Sounds(_) => None,
        }
    }

    /// The type of the numbers of a batch.
    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Self::Pictures(transform) | Self::Clips { frame: transform, .. } => transform.dtype(),
            #[cfg(feature = "audio")]
            Self::Sounds(transform) => transform.dtype(),
        }
    }

    /// The shape of a sample in a batch.
    pub(super) fn shape(&self) -> Vec<usize> {
        match self {
            Self::Pictures(transform) => transform.shape().to_vec(),
            Self::Clips { frame, frames } => [&[*frames][..], &frame.shape()[..]].concat(),
            #[cfg(feature = "audio")]
            Self::Sounds(transform) => transform.shape(),
        }
    }

    /// Bytes of a sample in a batch.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Pictures(transform) => transform.bytes(),
            Self::Clips { frame, frames } => frame.bytes() * frames,
            #[cfg(feature = "audio")]
            Self::Sounds(transform) => transform.bytes(),
        }
    }

    /// Bytes of the largest sample on its way.
    pub(super) fn largest(&self) -> u64 {
        match self {
            Self::Pictures(transform) | Self::Clips { frame: transform, .. } => transform.largest(),
            #[cfg(feature = "audio")]
            Self::Sounds(transform) => transform.largest(),
        }
    }

    /// Changes a sample, and moves its companions.
    ///
    /// # Errors
    /// [`PictureError`] if it cannot be decoded or changed.
    pub(super) fn apply(
        &self,
        sample: &[u8],
        given: &[Given<'_>],
        place: Place,
        out: &mut [u8],
    ) -> Result<Option<Companions>, PictureError> {
        match self {
            Self::Pictures(transform) => {
                let companions = transform.apply_with(sample, given, place, out);
                companions.map(Some).map_err(PictureError::Sample)
            }
            Self::Clips { frame, frames } => {
                let pictures = sample.chunks_exact(sample.len() / frames);
                for (picture, out) in pictures.zip(out.chunks_exact_mut(frame.bytes())) {
                    frame.apply(picture, place, out).map_err(PictureError::Sample)?;
                }
                Ok(None)
            }
            #[cfg(feature = "audio")]
            Self::Sounds(transform) => {
                transform.apply(sample, place, out).map(|()| None).map_err(PictureError::Sound)
            }
        }
    }
}

fn config(message: &str) -> LoadError {
    LoadError::Config(message.into())
}

/// The column of this name, or the only one of those that may be meant; none if there is none.
fn find<I: Copy>(
    name: Option<&str>,
    columns: &Schema,
    is_own: impl Fn(&str) -> bool,
    input: impl Fn(&Field) -> Result<I, LoadError>,
) -> Result<Option<(usize, I)>, LoadError> {
    if let Some(name) = name {
        let column = columns.index_of(name).map_err(|_| {
            let names: Vec<&str> = columns.fields().iter().map(|field| field.name().as_str()).collect();
            LoadError::Config(format!(
                "the transforms are of column {name:?}, and there are {}",
                names.join(", ")
            ))
        })?;
        return Ok(Some((column, input(columns.field(column))?)));
    }
    let fields = columns.fields().iter().enumerate().filter(|(_, field)| is_own(field.name()));
    let found: Vec<(usize, I)> = fields.filter_map(|(at, field)| Some((at, input(field).ok()?))).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => {
            let names: Vec<&str> = several.iter().map(|(at, _)| columns.field(*at).name().as_str()).collect();
            Err(LoadError::Config(format!(
                "transforms of one of the columns {}: name it (column)",
                names.join(", ")
            )))
        }
    }
}

/// Refuses clips.
fn single(of: (Input, Option<usize>)) -> Result<(Input, Option<usize>), LoadError> {
    if of.1.is_none() { Ok(of) } else { Err(config("clips")) }
}

/// What a field has as pictures, and how many frames, if it has clips: four dimensions, the first of frames.
fn picture(field: &Field) -> Result<(Input, Option<usize>), LoadError> {
    match field.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok((Input::Encoded, None)),
        DataType::FixedSizeList(item, _) if *item.data_type() == DataType::UInt8 => {
            match shape(field).as_deref() {
                Some([frames @ (1..), picture @ ..]) if picture.len() == 3 => {
                    Ok((Input::of_shape(picture)?, Some(*frames)))
                }
                Some(shape) => Ok((Input::of_shape(shape)?, None)),
                None => Err(ChainError::Input("lists of uint8 without a shape".into()).into()),
            }
        }
        other => Err(ChainError::Input(other.to_string()).into()),
    }
}

#[cfg(feature = "audio")]
fn sound(field: &Field) -> Result<shardd_audio::Input, LoadError> {
    use shardd_audio::{ChainError, Input, Number};
    let input = match field.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(Input::Encoded),
        DataType::FixedSizeList(item, width) => {
            let shape = shape(field).unwrap_or_else(|| vec![*width as usize]);
            match item.data_type() {
                DataType::Int16 => Input::of_shape(&shape, Number::Int16),
                DataType::Float32 => Input::of_shape(&shape, Number::Float32),
                other => Err(ChainError::Input(format!("{other} of {shape:?}"))),
            }
        }
        other => Err(ChainError::Input(other.to_string())),
    };
    Ok(input?)
}
