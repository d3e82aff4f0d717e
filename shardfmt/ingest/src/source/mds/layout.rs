//! What columns the fields of a sample make, and how their values are coded.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use image::{DynamicImage, GrayImage, RgbImage, RgbaImage};

use super::format::{self, ArrayCoding, ShardInfo};
use super::litdata::Form;
use super::shard::MdsShard;
use crate::config::OnError;
use crate::image_size::ImageSize;
use crate::source::arrays::{Arrays, Head};
use crate::source::cells::{Cell, Column, Misfit, Values};
use crate::source::picture::{self, Pictures};
use crate::source::unpack::Spool;
use crate::{IngestConfig, IngestError};

/// How samples lie in shards, and what columns their fields make.
#[derive(Debug)]
pub(super) struct Layout {
    /// Whether a sample is its only field.
    is_bare: bool,
    sizes: Vec<Option<usize>>,
    /// The field that each column is made of, and how it is coded.
    fields: Vec<(usize, Coding)>,
    pub(super) columns: Vec<Column>,
}

/// How the values of a field are coded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Coding {
    /// As the column says.
    Plain,
    Array(ArrayCoding),
    /// An array as LitData writes it.
    Form(Form),
    /// A list of images, after this number of bytes.
    Images(usize),
    /// Pixels.
    RawImage,
}

/// Whose samples they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Mds,
    LitData {
        /// Whether a sample is its only field.
        is_bare: bool,
    },
}

/// Why the columns cannot be known.
pub(super) enum Unknown {
    Encoding(String),
    Content(IngestError),
    /// No image can be read, whose size others would have to have.
    Size,
}

impl From<IngestError> for Unknown {
    fn from(error: IngestError) -> Unknown {
        Unknown::Content(error)
    }
}

impl Layout {
    /// The layout of shards that are like this one. Where it does not settle what the columns are (arrays of any shape,
    /// the size of decoded images), samples are looked at.
    pub(super) fn new(
        info: &ShardInfo,
        of: Writer,
        shards: &mut [MdsShard],
        config: &IngestConfig,
    ) -> Result<Layout, Unknown> {
        // A size of nothing stands for one that varies.
        let sizes = info.column_sizes.iter().map(|size| size.filter(|&size| size > 0)).collect();
        let mut layout = Layout {
            is_bare: of == (Writer::LitData { is_bare: true }),
            sizes,
            fields: Vec::new(),
            columns: Vec::new(),
        };
        let is_asked_for = |name: &String| config.columns.as_ref().is_none_or(|asked| asked.contains(name));
        if let Some(unknown) =
            config.columns.iter().flatten().find(|&asked| !info.column_names.contains(asked))
        {
            let (path, column) = (shards[0].file.path.clone(), unknown.clone());
            return Err(IngestError::NoColumn { path, column, there: info.column_names.join(", ") }.into());
        }
        let mut open = Vec::new();
        for (field, (name, encoding)) in info.column_names.iter().zip(&info.column_encodings).enumerate() {
            if !is_asked_for(name) {
                continue;
            }
            let parsed = match of {
                Writer::Mds => Coding::parse(encoding, config),
                Writer::LitData { .. } => Coding::of_litdata(encoding, config),
            };
            let (coding, values) = match parsed {
                Ok(parsed) => parsed,
                Err(reason) => return Err(Unknown::Encoding(format!("column {name:?} {reason}"))),
            };
            if values.is_none() {
                open.push(layout.columns.len());
            }
            layout.fields.push((field, coding));
            let values = values.unwrap_or(Values::Bytes);
            layout.columns.push(Column { name: name.clone(), nullable: false, values });
        }
        if !open.is_empty() {
            layout.settle(&open, shards, config)?;
        }
        Ok(layout)
    }

    /// Finds out what the columns are that the index leaves open.
    fn settle(
        &mut self,
        open: &[usize],
        shards: &mut [MdsShard],
        config: &IngestConfig,
    ) -> Result<(), Unknown> {
        let spool = Spool::default();
        let mut arrays: BTreeMap<usize, Arrays> = BTreeMap::new();
        let mut sizes: BTreeMap<usize, ImageSize> = BTreeMap::new();
        let is_skipping = config.on_error == OnError::Skip;
        for shard in shards {
            let content = match shard.keep(&spool) {
                Err(error) if is_skipping && error.is_about_content() => continue,
                kept => kept?,
            };
            let shard = &*shard;
            let looked = shard.blocks(
                &content,
                |bytes| bytes,
                |block| {
                    for (number, sample) in shard.read(&content, &block)?.iter() {
                        let Ok(fields) = self.fields(sample) else { continue };
                        for &column in open {
                            let (field, coding) = &self.fields[column];
                            let seen = match coding {
                                Coding::Array(_) | Coding::Form(_) => {
                                    coding.take(fields[*field]).map(|(head, _)| {
                                        let known = arrays.remove(&column);
                                        arrays.insert(column, Arrays::and(known, Some(head)));
                                    })
                                }
                                _ if sizes.contains_key(&column) => Ok(()),
                                coding => {
                                    coding.size_of(fields[*field]).map(|size| _ = sizes.insert(column, size))
                                }
                            };
                            if let Err(reason) = seen
                                && !is_skipping
                            {
                                let entry = format!("sample {number}, column {}", self.columns[column].name);
                                return Err(IngestError::Member {
                                    path: shard.file.path.clone(),
                                    entry,
                                    reason,
                                });
                            }
                        }
                    }
                    Ok(())
                },
            );
            match looked {
                Err(error) if !is_skipping || !error.is_about_content() => return Err(error.into()),
                Err(_) | Ok(()) => {}
            }
            let is_image =
                |column: &usize| !matches!(self.fields[*column].1, Coding::Array(_) | Coding::Form(_));
            if open.iter().all(|column| is_image(column) && sizes.contains_key(column)) {
                break;
            }
        }
        for &column in open {
            self.columns[column].values = match (&self.fields[column].1, sizes.get(&column)) {
                (Coding::Array(_), _) => Values::Arrays(arrays.remove(&column).unwrap_or(Arrays::Mixed)),
                (Coding::Form(form), _) => Values::Arrays(arrays.remove(&column).unwrap_or(form.of_none())),
                (_, Some(&size)) => Values::Picture(Pictures::Decoded { size, resize: false }),
                (_, None) => return Err(Unknown::Size),
            };
        }
        Ok(())
    }

    /// The cells of a sample; or the column that has something wrong with it.
    pub(super) fn row<'c>(&'c self, sample: &'c [u8]) -> Result<Vec<Cell<'c>>, (&'c str, Misfit)> {
        let fields = match self.fields(sample) {
            Ok(fields) => fields,
            Err(reason) => return Err(("any", reason.into())),
        };
        let cells = self.fields.iter().zip(&self.columns).map(|((field, coding), column)| {
            coding.cell(fields[*field], &column.values).map_err(|misfit| (column.name.as_str(), misfit))
        });
        cells.collect()
    }

    /// The fields of a sample.
    fn fields<'s>(&self, sample: &'s [u8]) -> Result<Vec<&'s [u8]>, String> {
        if self.is_bare { Ok(vec![sample]) } else { format::fields(sample, &self.sizes) }
    }

    /// The weight of a sample of `bytes` bytes on its way.
    pub(super) fn weight(&self, bytes: u64) -> u64 {
        let pictures = self.columns.iter().filter_map(|column| match column.values {
            Values::Picture(pictures) => Some(pictures.weight(0)),
            _ => None,
        });
        pictures.fold(bytes, u64::saturating_add)
    }
}

impl Coding {
    /// The meaning of an encoding, and the type of the column's values, unless that depends on the samples.
    fn parse(encoding: &str, config: &IngestConfig) -> Result<(Coding, Option<Values>), String> {
        let plain = |values| Ok((Coding::Plain, Some(values)));
        match encoding {
            "bytes" => plain(Values::Bytes),
            "str" | "str_int" | "str_float" | "str_decimal" => plain(Values::Text),
            "json" => plain(Values::Json),
            "int" => plain(Values::Number(DataType::Int64)),
            "jpeg" | "png" => Ok((Coding::Plain, pictures(config))),
            "pil" if config.decode => Ok((Coding::RawImage, pictures(config))),
            "pil" => Err("has images that are not encoded; have tensors made of them (`decode`)".to_owned()),
            "jpeg_array" | "jpegarray" => Ok((Coding::Images(0), Some(Values::Pictures))),
            "list[jpeg]" | "list[png]" => Ok((Coding::Images(4), Some(Values::Pictures))),
            "pkl" => Err("is pickled, and reading that would run code; leave it out (`columns`)".to_owned()),
            "ndarray" => Ok((Coding::Array(ArrayCoding::default()), None)),
            other => match (other.strip_prefix("ndarray:"), format::number(other)) {
                (Some(said), _) => {
                    let coding = ArrayCoding::parse(said)?;
                    let values = coding.head().map(|head| Values::Arrays(Arrays::and(None, Some(head))));
                    Ok((Coding::Array(coding), values))
                }
                (None, Some(number)) => plain(Values::Number(number)),
                (None, None) => {
                    Err(format!("is encoded as {other:?}, which is not read; leave it out (`columns`)"))
                }
            },
        }
    }

    /// The same of a format of LitData.
    fn of_litdata(format: &str, config: &IngestConfig) -> Result<(Coding, Option<Values>), String> {
        let plain = |values| Ok((Coding::Plain, Some(values)));
        let (name, detail) =
            format.split_once(':').map_or((format, None), |(name, detail)| (name, Some(detail)));
        if let Some(form) = Form::parse(name, detail) {
            return Ok((Coding::Form(form?), None));
        }
        match (name, detail) {
            ("int", None) => plain(Values::Number(DataType::Int64)),
            ("float", None) => plain(Values::Number(DataType::Float64)),
            ("bool" | "boolean", None) => plain(Values::Number(DataType::Boolean)),
            ("str" | "text", None) => plain(Values::Text),
            ("bytes", None) => plain(Values::Bytes),
            ("jpeg" | "png", None) | ("image", _) => Ok((Coding::Plain, pictures(config))),
            ("jpeg_array", None) => Ok((Coding::Images(0), Some(Values::Pictures))),
            ("pil", None) => Self::parse("pil", config),
            ("pickle", None) => Self::parse("pkl", config),
            _ => Err(format!("is of format {format:?}, which is not read; leave it out (`columns`)")),
        }
    }

    /// The header of an array, and its values.
    fn take<'a>(&self, array: &'a [u8]) -> Result<(Head, &'a [u8]), String> {
        match self {
            Coding::Array(coding) => coding.take(array),
            Coding::Form(form) => form.take(array),
            _ => Err("is no array".to_owned()),
        }
    }

    fn cell<'c>(&self, bytes: &'c [u8], values: &Values) -> Result<Cell<'c>, Misfit> {
        match (self, values) {
            (Coding::Plain, _) => values.cell(bytes),
            (Coding::Array(_) | Coding::Form(_), Values::Arrays(arrays)) => {
                let (head, numbers) = self.take(bytes)?;
                match arrays {
                    Arrays::Mixed => values.cell(bytes),
                    arrays if arrays.holds(&head) => values.cell(numbers),
                    _ => Err(format!("is an array of shape {:?}, unlike those before it", head.shape).into()),
                }
            }
            (Coding::Images(before), _) => {
                let images = format::images(bytes, *before)?;
                images.iter().try_for_each(|image| Pictures::Encoded.read(image).map(drop))?;
                Ok(Cell::Parts(images))
            }
            (Coding::RawImage, Values::Picture(pictures)) => {
                Ok(Cell::Bytes(pictures.fit(raw_image(bytes)?)?.into()))
            }
            _ => Err("belongs to a column of another kind".into()),
        }
    }

    /// The size of an image.
    fn size_of(&self, bytes: &[u8]) -> Result<ImageSize, String> {
        if *self != Coding::RawImage {
            return picture::size_of(bytes).map_err(|unfit| unfit.to_string());
        }
        let (width, height, ..) = format::raw_image(bytes)?;
        ImageSize::new(width, height).ok_or_else(|| format!("is an image of {width}x{height} pixels"))
    }
}

/// The values of a column of images, unless their size is not known.
fn pictures(config: &IngestConfig) -> Option<Values> {
    match (config.decode, config.resize) {
        (false, _) => Some(Values::Picture(Pictures::Encoded)),
        (true, Some(size)) => Some(Values::Picture(Pictures::Decoded { size, resize: true })),
        (true, None) => None,
    }
}

/// An image that was not encoded.
fn raw_image(bytes: &[u8]) -> Result<DynamicImage, String> {
    let (width, height, mode, pixels) = format::raw_image(bytes)?;
    let wrong = || format!("is an image of {width}x{height} pixels ({mode}) with {} bytes", pixels.len());
    let channels = match mode {
        "L" => 1,
        "RGB" => 3,
        "RGBA" => 4,
        other => return Err(format!("is an image of mode {other:?}; only L, RGB and RGBA are read")),
    };
    let expected = u64::from(width).checked_mul(u64::from(height)).and_then(|all| all.checked_mul(channels));
    if expected != Some(pixels.len() as u64) {
        return Err(wrong());
    }
    let pixels = pixels.to_vec();
    let image = match channels {
        1 => GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        3 => RgbImage::from_raw(width, height, pixels).map(DynamicImage::from),
        _ => RgbaImage::from_raw(width, height, pixels).map(DynamicImage::from),
    };
    image.ok_or_else(wrong)
}
