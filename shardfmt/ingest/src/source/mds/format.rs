//! The bytes of MosaicML shards (MDS, version 2): the index, the table of samples, the fields of a sample.
//! Pure functions on bytes from outside: every length is checked against the bytes.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use serde::Deserialize;

use crate::source::arrays::Head;

type Reason = String;

/// `index.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    pub(super) version: u64,
    pub(super) shards: Vec<ShardInfo>,
}

/// The entry of a shard in the index.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ShardInfo {
    pub(super) version: u64,
    pub(super) samples: u64,
    #[serde(default)]
    pub(super) compression: Option<String>,
    pub(super) column_names: Vec<String>,
    pub(super) column_encodings: Vec<String>,
    /// The bytes of columns whose values all have the same size.
    pub(super) column_sizes: Vec<Option<usize>>,
    pub(super) raw_data: FileInfo,
    #[serde(default)]
    pub(super) zip_data: Option<FileInfo>,
}

/// The entry of a file in the index.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct FileInfo {
    pub(super) basename: String,
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) hashes: BTreeMap<String, String>,
}

/// How the samples of a file are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Not at all.
    Plain,
    /// The file as a whole.
    Whole,
    /// Some at a time.
    Frames,
    /// Each by itself.
    Samples,
}

impl Index {
    pub(super) fn parse(bytes: &[u8]) -> Result<Index, Reason> {
        // Other formats of the same index have other keys: say so before those are missed.
        #[derive(Deserialize)]
        struct Kinds {
            shards: Vec<KindOfShard>,
        }
        #[derive(Deserialize)]
        struct KindOfShard {
            format: String,
        }
        let kinds: Kinds = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if let Some(other) = kinds.shards.iter().find(|shard| shard.format != "mds") {
            return Err(format!(
                "its shards are of format {:?}; ingest those files themselves",
                other.format
            ));
        }
        let index: Index = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let newer = index.shards.iter().map(|shard| shard.version).chain([index.version]).find(|&v| v != 2);
        if let Some(version) = newer {
            return Err(format!("it is of version {version}, only 2 is read"));
        }
        for shard in &index.shards {
            let columns = shard.column_names.len();
            if shard.column_encodings.len() != columns || shard.column_sizes.len() != columns {
                return Err(format!("it has more names than encodings of {:?}", shard.raw_data.basename));
            }
        }
        Ok(index)
    }
}

/// Reads the table of a shard: where each sample begins and ends.
#[derive(Debug)]
pub(super) struct Bounds {
    samples: u64,
    bytes: u64,
    last: u64,
    next: u64,
}

impl Bounds {
    /// The table of a shard of `bytes` bytes, of which these are the first eight: the number of samples, and where the
    /// first of them begins.
    pub(super) fn new(head: [u8; 8], bytes: u64) -> Result<Bounds, Reason> {
        let [a, b, c, d, e, f, g, h] = head;
        let (samples, first) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (samples, first) = (u64::from(samples), u64::from(first));
        if first < 8 + 4 * samples || first > bytes {
            return Err(format!("its first sample begins at byte {first} of {bytes}"));
        }
        Ok(Bounds { samples, bytes, last: first, next: 0 })
    }

    /// The number of samples.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// The next sample: its number, where it begins and how long it is; its end is given.
    pub(super) fn next(&mut self, end: [u8; 4]) -> Result<(u64, u64, u64), Reason> {
        let (number, start, end) = (self.next, self.last, u64::from(u32::from_le_bytes(end)));
        if end < start || end > self.bytes {
            return Err(format!("sample {number} is listed at bytes {start} to {end} of {}", self.bytes));
        }
        (self.next, self.last) = (number + 1, end);
        Ok((number, start, end - start))
    }
}

/// The fields of a sample, whose columns have these sizes: first the sizes of those that vary, then all values.
pub(super) fn fields<'s>(sample: &'s [u8], sizes: &[Option<usize>]) -> Result<Vec<&'s [u8]>, Reason> {
    let varying = sizes.iter().filter(|size| size.is_none()).count();
    let cut_off = || format!("is cut off: it has {} bytes", sample.len());
    let (said, mut values) = sample.split_at_checked(4 * varying).ok_or_else(cut_off)?;
    let mut said = said.as_chunks().0.iter();
    let mut fields = Vec::with_capacity(sizes.len());
    for size in sizes {
        let size = match size {
            Some(size) => *size,
            None => u32::from_le_bytes(*said.next().expect("as many as vary")) as usize,
        };
        let (field, rest) = values.split_at_checked(size).ok_or_else(cut_off)?;
        (values, _) = (rest, fields.push(field));
    }
    match values {
        [] => Ok(fields),
        more => Err(format!("has {} bytes after its last column", more.len())),
    }
}

/// The known facts about the arrays of a column before they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ArrayCoding {
    item: Option<DataType>,
    shape: Option<Vec<u64>>,
}

impl ArrayCoding {
    /// The text after `ndarray:`: a type, or a type and a shape.
    pub(super) fn parse(text: &str) -> Result<ArrayCoding, Reason> {
        let (item, shape) = match text.split_once(':') {
            Some((item, shape)) => (item, Some(shape)),
            None => (text, None),
        };
        let item = number(item).ok_or_else(|| format!("arrays of {item:?} are not read"))?;
        let shape = shape.map(|shape| shape.split(',').map(|size| size.trim().parse().ok()).collect());
        let shape: Option<Vec<u64>> = match shape {
            None => None,
            Some(None) => return Err(format!("{text:?} is no type and shape of arrays")),
            Some(shape) => shape,
        };
        Ok(ArrayCoding { item: Some(item), shape })
    }

    /// The type of all arrays, if that is settled.
    pub(super) fn head(&self) -> Option<Head> {
        Some(Head { item: self.item.clone()?, shape: self.shape.clone()? })
    }

    /// The header of an array, and its values.
    pub(super) fn take<'a>(&self, array: &'a [u8]) -> Result<(Head, &'a [u8]), Reason> {
        let cut_off = || "is an array that is cut off".to_owned();
        let mut rest = array;
        let item = match &self.item {
            Some(item) => item.clone(),
            None => {
                let (&code, after) = rest.split_first().ok_or_else(cut_off)?;
                rest = after;
                coded_number(code).ok_or_else(|| format!("is an array of unknown type ({code})"))?
            }
        };
        let shape = match &self.shape {
            Some(shape) => shape.clone(),
            None => {
                // Number of dimensions, and in the two lowest bits how wide the sizes are.
                let (&code, after) = rest.split_first().ok_or_else(cut_off)?;
                let (dimensions, width) = (usize::from(code >> 2), 1 << (code & 3));
                let (sizes, after) = after.split_at_checked(dimensions * width).ok_or_else(cut_off)?;
                rest = after;
                sizes.chunks_exact(width).map(little_endian).collect()
            }
        };
        let head = Head { item, shape };
        if head.bytes() != Some(rest.len() as u64) {
            return Err(format!("is an array of shape {:?} with {} bytes of values", head.shape, rest.len()));
        }
        Ok((head, rest))
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The number type of this name.
pub(super) fn number(name: &str) -> Option<DataType> {
    Some(match name {
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "float16" => DataType::Float16,
        "float32" => DataType::Float32,
        "float64" => DataType::Float64,
        _ => return None,
    })
}

/// Bits, and one or two more for other numbers than unsigned integers.
fn coded_number(code: u8) -> Option<DataType> {
    number(match code {
        8 => "uint8",
        9 => "int8",
        16 => "uint16",
        17 => "int16",
        18 => "float16",
        32 => "uint32",
        33 => "int32",
        34 => "float32",
        64 => "uint64",
        65 => "int64",
        66 => "float64",
        _ => return None,
    })
}

/// The images of a list: after `before` bytes their number, the size of each, then all of them.
pub(super) fn images(list: &[u8], before: usize) -> Result<Vec<&[u8]>, Reason> {
    let cut_off = || "is a list of images that is cut off".to_owned();
    let (count, rest) = list.get(before..).and_then(|list| list.split_first_chunk()).ok_or_else(cut_off)?;
    let count = u32::from_le_bytes(*count) as usize;
    let sizes = count.checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes));
    let (sizes, mut values) = sizes.ok_or_else(cut_off)?;
    let mut images = Vec::with_capacity(count);
    for size in sizes.as_chunks().0 {
        let (image, rest) =
            values.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or_else(cut_off)?;
        (values, _) = (rest, images.push(image));
    }
    if values.is_empty() { Ok(images) } else { Err("has bytes after its last image".to_owned()) }
}

/// An image that was not encoded: width, height, Pillow's name of its mode, and its pixels.
pub(super) fn raw_image(bytes: &[u8]) -> Result<(u32, u32, &str, &[u8]), Reason> {
    let cut_off = || "is an image that is cut off".to_owned();
    let (head, rest) = bytes.split_at_checked(12).ok_or_else(cut_off)?;
    let [width, height, length] = [0, 4, 8].map(|at| little_endian(&head[at..at + 4]) as u32);
    let (mode, pixels) = rest.split_at_checked(length as usize).ok_or_else(cut_off)?;
    let mode = str::from_utf8(mode).map_err(|_| "is an image of a mode without name")?;
    Ok((width, height, mode, pixels))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sample_is_its_varying_sizes_and_then_its_values() {
        let sample = [2, 0, 0, 0, 1, 0, 0, 0, b'h', b'i', 7, 0, b'!'];
        let sizes = [None, Some(2), None];
        assert_eq!(fields(&sample, &sizes).unwrap(), [b"hi".as_slice(), &[7, 0], b"!"]);
        assert!(fields(&sample[..12], &sizes).unwrap_err().contains("cut off"));
        assert!(fields(&[&sample[..], &[0]].concat(), &sizes).unwrap_err().contains("after its last"));
    }

    #[test]
    fn an_array_says_of_itself_what_its_column_does_not() {
        let any = ArrayCoding::default();
        let array = [17, (2 << 2) | 1, 1, 0, 2, 0, 5, 0, 6, 0];
        let (head, values) = any.take(&array).unwrap();
        assert_eq!((head.item, head.shape, values), (DataType::Int16, vec![1, 2], [5, 0, 6, 0].as_slice()));
        let typed = ArrayCoding::parse("int16").unwrap();
        assert_eq!(typed.take(&array[1..]).unwrap().0.shape, [1, 2]);
        let shaped = ArrayCoding::parse("int16:1,2").unwrap();
        assert_eq!(shaped.take(&array[6..]).unwrap().0, shaped.head().unwrap());
        assert!(shaped.take(&array[5..]).is_err());
        assert!(ArrayCoding::parse("complex64").is_err() && ArrayCoding::parse("int16:x").is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            sizes in prop::collection::vec(prop::option::of(0..40usize), 0..6),
            before in 0..6usize,
        ) {
            let _ = fields(&bytes, &sizes);
            let _ = images(&bytes, before);
            let _ = raw_image(&bytes);
            let _ = Index::parse(&bytes);
            let _ = ArrayCoding::default().take(&bytes);
            let _ = ArrayCoding::parse("float32").unwrap().take(&bytes);
            if let Some(head) = bytes.first_chunk()
                && let Ok(mut bounds) = Bounds::new(*head, bytes.len() as u64)
            {
                for end in bytes[8..].as_chunks().0 {
                    let Ok((_, start, length)) = bounds.next(*end) else { break };
                    prop_assert!(start + length <= bytes.len() as u64);
                }
            }
        }
    }
}
