//! NumPy's files: one array in an `.npy`, several of the same length in an `.npz`. The first dimension counts the rows.
//!
//! A piece is a range of rows of all arrays, read by range. Compressed arrays are unpacked to a temporary file first, as
//! values in Fortran order lie far apart.

mod column;
mod header;

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use npyz::DType;
use npyz::npz::{NpzArchive, array_name_from_file_name};
use npyz::zip::CompressionMethod;
use shardfmt::InputDigest;

use self::header::Header;
use super::alike::Alike;
use super::unpack::{Spool, most_unpacked};
use super::{About, Feed, Format, PIECE_BYTES, PIECE_ROWS, canonical_rows, caught};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::{self, InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

/// The column of an `.npy`, whose array has no name.
const DATA: &str = "data";
/// More arrays of one length are taken for a mistake.
const MOST_ARRAYS: usize = 4096;

#[derive(Debug)]
pub(super) struct NumpySource {
    about: About,
    files: Alike<NumpyFile>,
}

#[derive(Debug)]
struct NumpyFile {
    file: InputFile,
    arrays: Vec<Array>,
    /// The columns as they are read.
    columns: SchemaRef,
    rows: u64,
}

#[derive(Debug)]
struct Array {
    header: Header,
    /// Where it is among the members of an `.npz`.
    member: Option<usize>,
}

/// An array whose values can be read.
#[derive(Clone)]
struct Opened {
    input: OpenInput,
    /// Where its values begin.
    start: u64,
}

type Archive = NpzArchive<BufReader<input::ReadFrom>>;

impl NumpySource {
    /// Reads the headers of all arrays and compares their columns.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<NumpySource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::Numpy.files(inputs, config);
        let files = Alike::open(files, config, NumpyFile::open).map_err(|error| match error {
            IngestError::Schemas { path, first, difference } => {
                // The commonest reason: x.npy beside y.npy.
                let difference = format!("{difference} (arrays that belong together go into one .npz)");
                IngestError::Schemas { path, first, difference }
            }
            other => other,
        })?;
        let rows = files.files.iter().map(|file| file.rows).fold(0, u64::saturating_add);
        if rows == 0 {
            return Err(IngestError::NoSamples { path, found: "the arrays have no rows".to_owned() });
        }
        let schema = files.schema.clone().unwrap_or_else(|| Arc::new(Schema::empty()));
        let rows = (config.on_error == OnError::Fail).then_some(rows);
        Ok(NumpySource { about: About { schema, rows, passed_over }, files })
    }
}

impl Format for NumpySource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.files.pieces(feed, |file, feed| file.pieces(&self.about.schema, feed))
    }
}

impl NumpyFile {
    fn open(file: InputFile) -> Result<(NumpyFile, SchemaRef), IngestError> {
        let (arrays, fields) = if file.head(2)? == *b"PK" {
            Self::members(&file)?
        } else {
            let mut start = BufReader::new(file.open()?.read_from(0));
            let header =
                Header::read(&mut start, file.bytes).map_err(|reason| damaged(&file.path, reason))?;
            let fields = fields_of(DATA, &header.row, false);
            (vec![Array { header, member: None }], fields.map_err(|reason| damaged(&file.path, reason))?)
        };
        let rows = arrays.first().map_or(0, |array| array.header.rows);
        let columns = Arc::new(Schema::new(fields));
        let schema = canonical::canonical_schema(&file.path, &columns)?;
        Ok((NumpyFile { file, arrays, columns, rows }, schema))
    }

    /// The arrays of an `.npz`, in the order in which they were saved.
    fn members(file: &InputFile) -> Result<(Vec<Array>, Vec<Field>), IngestError> {
        let mut archive = archive(file, file.open()?)?;
        let count = archive.zip_archive().len();
        if count > MOST_ARRAYS {
            return Err(damaged(&file.path, format!("it has {count} members, the most is {MOST_ARRAYS}")));
        }
        let (mut arrays, mut fields) = (Vec::<Array>::new(), Vec::new());
        for member in 0..count {
            let read = || -> Result<Option<(Header, Vec<Field>)>, String> {
                let mut content =
                    archive.zip_archive().by_index(member).map_err(|error| error.to_string())?;
                let name = content.name().to_owned();
                let Some(name) = array_name_from_file_name(&name) else { return Ok(None) };
                let bytes = content.size();
                let read = Header::read(&mut content, bytes);
                let read = read.and_then(|header| Ok((fields_of(name, &header.row, true)?, header)));
                read.map(|(fields, header)| Some((header, fields)))
                    .map_err(|reason| format!("{name}: {reason}"))
            };
            let read = caught(read).unwrap_or_else(gave_up).map_err(|reason| damaged(&file.path, reason))?;
            let Some((header, of_array)) = read else { continue };
            if let Some(first) = arrays.first()
                && first.header.rows != header.rows
            {
                let name = of_array.first().map_or("", |field| field.name());
                let reason =
                    format!("{name} has {} rows, the first array {}", header.rows, first.header.rows);
                return Err(damaged(&file.path, reason));
            }
            arrays.push(Array { header, member: Some(member) });
            fields.extend(of_array);
        }
        Ok((arrays, fields))
    }

    fn pieces<'s>(
        &'s self,
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<InputDigest, IngestError> {
        let whole = self.file.open_whole()?;
        let (spool, mut most) = (Spool::default(), most_unpacked(&self.file));
        let opened = self.arrays.iter().map(|array| self.opened(array, &whole.input, &spool, &mut most));
        match opened.collect::<Result<Vec<_>, _>>() {
            Ok(opened) => self.ranges(&opened, schema, feed)?,
            Err(error) => feed.fault(&self.file.name, error)?,
        }
        whole.digest()
    }

    fn ranges<'s>(
        &'s self,
        opened: &[Opened],
        schema: &'s SchemaRef,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), IngestError> {
        let row_bytes: u64 = self.arrays.iter().map(|array| array.header.row_bytes as u64).sum();
        let size = (PIECE_BYTES / row_bytes.max(1)).clamp(1, PIECE_ROWS);
        let mut from = 0;
        while from < self.rows {
            let rows = from..from.saturating_add(size).min(self.rows);
            from = rows.end;
            let (name, opened) =
                (format!("{}, rows {}..{}", self.file.name, rows.start, rows.end), opened.to_vec());
            feed.piece(name, move |_| self.read(&opened, &rows, schema))?;
        }
        Ok(())
    }

    fn read(
        &self,
        opened: &[Opened],
        rows: &Range<u64>,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, IngestError> {
        let count = (rows.end - rows.start) as usize;
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (array, opened) in self.arrays.iter().zip(opened) {
            let bytes = opened.read(&array.header, rows).map_err(|error| self.file.error(error))?;
            let read = match &array.header.row {
                DType::Record(record) => column::columns(record, &bytes, count),
                row => column::column(row, bytes, count).map(|column| vec![column]),
            };
            columns.extend(read.map_err(|reason| damaged(&self.file.path, reason))?);
        }
        let batch = RecordBatch::try_new(self.columns.clone(), columns);
        let batch = batch.map_err(|error| damaged(&self.file.path, error))?;
        canonical_rows(&self.file.path, &batch, schema)
    }

    /// An array whose values can be read by range, unpacked if need be.
    fn opened(
        &self,
        array: &Array,
        input: &OpenInput,
        spool: &Spool,
        most: &mut u64,
    ) -> Result<Opened, IngestError> {
        let length = array.header.length;
        let Some(member) = array.member else { return Ok(Opened { input: input.clone(), start: length }) };
        let mut archive = archive(&self.file, input.clone())?;
        let failed = |error: io::Error| damaged(&self.file.path, error);
        let unpack = || -> Result<Opened, IngestError> {
            let mut content = archive.zip_archive().by_index(member).map_err(|error| failed(error.into()))?;
            let (bytes, start) = (content.size(), content.data_start());
            let opened = if content.compression() == CompressionMethod::Stored {
                // Read once for its checksum, then where it lies.
                let read = io::copy(&mut content, &mut io::sink()).map_err(failed)?;
                (read == bytes).then(|| Opened { input: input.clone(), start: start + length })
            } else {
                // One byte too many shows that it continues, perhaps without end; the checksum is compared at
                // the end.
                let part = content.by_ref().take(bytes.saturating_add(1));
                let (unpacked, broken) = spool.part(&self.file, part, most)?;
                if let Some(reason) = broken {
                    return Err(damaged(&self.file.path, reason));
                }
                (unpacked.bytes() == bytes).then_some(Opened { input: unpacked, start: length })
            };
            opened.ok_or_else(|| damaged(&self.file.path, "an array of it has not the length it says"))
        };
        caught(unpack).unwrap_or_else(|| Err(damaged(&self.file.path, "its reader gave up")))
    }
}

impl Opened {
    /// The bytes of some rows, in C order.
    fn read(&self, header: &Header, rows: &Range<u64>) -> io::Result<Vec<u8>> {
        let count = (rows.end - rows.start) as usize;
        let Some(row) = &header.fortran else {
            return self
                .input
                .part(self.start + rows.start * header.row_bytes as u64, count * header.row_bytes);
        };
        let (item, row_bytes) = (header.item_bytes, header.row_bytes);
        let mut bytes = vec![0; count * row_bytes];
        for (index, place) in Header::places(row).enumerate() {
            let start = (place * header.rows + rows.start) * item as u64;
            let values = self.input.part(self.start + start, count * item)?;
            for (value, row) in values.chunks_exact(item).zip(bytes.chunks_exact_mut(row_bytes)) {
                row[index * item..(index + 1) * item].copy_from_slice(value);
            }
        }
        Ok(bytes)
    }
}

/// The columns of an array: one, or one for each field of a structured type.
fn fields_of(name: &str, row: &DType, is_named: bool) -> Result<Vec<Field>, String> {
    let DType::Record(record) = row else { return Ok(vec![column::field(name, row)?]) };
    let fields = column::fields(record)?;
    if !is_named {
        return Ok(fields);
    }
    let full = |field: Field| {
        let full = format!("{name}.{}", field.name());
        field.with_name(full)
    };
    Ok(fields.into_iter().map(full).collect())
}

fn archive(file: &InputFile, input: OpenInput) -> Result<Archive, IngestError> {
    let opened = caught(|| NpzArchive::new(BufReader::new(input.read_from(0))));
    opened
        .map_or_else(gave_up, |opened| opened.map_err(|error| error.to_string()))
        .map_err(|reason| damaged(&file.path, reason))
}

fn gave_up<T>() -> Result<T, String> {
    Err("its reader gave up".to_owned())
}

fn damaged(path: &Path, reason: impl std::fmt::Display) -> IngestError {
    IngestError::Damaged { path: path.to_owned(), kind: "NumPy", reason: one_line(reason) }
}
