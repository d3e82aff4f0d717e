//! A sample as files: how the tars of WebDataset hold it, one member for each column.
//!
//! [`Members`] turns a canonical row into members and members into a canonical row, without loss for every type that a
//! row can have; `docs/OPERATIONS.md` has the rules. Knows nothing of tars, keys and datasets.

mod json;
mod npy;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, Field, SchemaRef};

use self::npy::Dense;
use self::tree::{Reason, fixed_width, put, put_length, put_run, take, take_length, take_run};
use crate::manifest::{parse_schema_message, schema_message};
use crate::row::MAX_ROW_BYTES;

/// The member at the beginning of a tar that holds the schema of its samples.
pub const SCHEMA_MEMBER: &str = "__shardd_schema__";

/// The suffix of the key of a sample with only nulls.
pub const NOTHING: &str = "__null__";

/// Writes and reads the members of samples of one schema.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::RowCodec;
/// use shardfmt::member::Members;
///
/// let mut row = Vec::new();
/// RowCodec::new(rows.schema())?.encode(&rows, 0, &mut row)?;
/// let members = Members::new(rows.schema())?;
/// let files = members.write(&row)?;
///
/// let files: Vec<(&str, &[u8])> = files.iter().map(|m| (m.suffix.as_str(), m.content.as_slice())).collect();
/// let mut read = Vec::new();
/// members.read(&files, &mut read)?;
/// assert_eq!(read, row);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Members {
    schema: SchemaRef,
    columns: Vec<Column>,
}

/// A part of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The suffix after the key and its dot: `<column>.<type>`.
    pub suffix: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// Why a sample could not be written as members or read from them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("member {member:?} {reason}")]
pub struct MemberError {
    /// The member, or the column that lacks one.
    pub member: String,
    /// The fault.
    pub reason: String,
}

#[derive(Debug)]
struct Column {
    /// Its name as it stands in names of members.
    name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text,
    Binary,
    /// Binary of this number of bytes.
    FixedBinary(usize),
    Integer(usize),
    Dense(Dense),
    Other,
}

impl Members {
    /// Members of samples of `schema`, which is plain.
    ///
    /// # Errors
    ///
    /// When a struct has two fields of one name, which JSON could not tell apart.
    pub fn new(schema: SchemaRef) -> Result<Self, MemberError> {
        let columns = schema.fields().iter().map(|field| {
            check_names(field.data_type()).map_err(|name| MemberError {
                member: field.name().clone(),
                reason: format!("cannot be written as JSON: it has two fields of the name {name:?}"),
            })?;
            Ok(Column { name: escaped(field.name()), kind: Kind::of(field) })
        });
        let columns = columns.collect::<Result<_, _>>()?;
        Ok(Self { schema, columns })
    }

    /// Members of samples of the schema that a [`SCHEMA_MEMBER`] holds.
    ///
    /// # Errors
    ///
    /// When it holds none, or one that samples cannot have.
    pub fn of_schema_member(content: &[u8]) -> Result<Self, MemberError> {
        let schema = parse_schema_message(content).map_err(|reason| MemberError {
            member: SCHEMA_MEMBER.to_owned(),
            reason: format!("holds no schema of samples: {reason}"),
        })?;
        Self::new(schema)
    }

    /// The content of a [`SCHEMA_MEMBER`] for these samples.
    pub fn schema_member(&self) -> Vec<u8> {
        schema_message(&self.schema)
    }

    /// The columns of the samples.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The members of a canonical row, in the order of the columns: none for a null, and one that says so where there
    /// would be none at all.
    ///
    /// # Errors
    ///
    /// When the bytes are no row of the schema.
    pub fn write(&self, mut row: &[u8]) -> Result<Vec<Member>, MemberError> {
        let mut members = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let written = column.write(field, &mut row);
            let written = written.map_err(|reason| MemberError { member: column.name.clone(), reason })?;
            members.extend(written.map(|(extension, content)| Member {
                suffix: format!("{}.{extension}", column.name),
                content,
            }));
        }
        if !row.is_empty() {
            let reason = format!("is followed by {} bytes", row.len());
            return Err(MemberError { member: "the last".to_owned(), reason });
        }
        if members.is_empty() {
            members.push(Member { suffix: NOTHING.to_owned(), content: Vec::new() });
        }
        Ok(members)
    }

    /// Appends the canonical row that the members of one sample make, given in any order as suffix and content.
    ///
    /// # Errors
    ///
    /// When a member belongs to no column, or a second one to the same, or does not fit its type; when a column that
    /// may not be null has none. `out` is then as it was.
    pub fn read(&self, members: &[(&str, &[u8])], out: &mut Vec<u8>) -> Result<(), MemberError> {
        let start = out.len();
        let mut row = Vec::new();
        self.read_row(members, &mut row)?;
        out.truncate(start);
        out.append(&mut row);
        Ok(())
    }

    fn read_row(&self, members: &[(&str, &[u8])], row: &mut Vec<u8>) -> Result<(), MemberError> {
        let mut found = vec![None; self.columns.len()];
        for (suffix, content) in members.iter().filter(|(suffix, _)| *suffix != NOTHING) {
            let refuse =
                |reason: &str| MemberError { member: (*suffix).to_owned(), reason: reason.to_owned() };
            let (name, extension) = suffix.rsplit_once('.').ok_or_else(|| refuse("has no type"))?;
            let column = self.columns.iter().position(|column| column.name == name);
            let column = column.ok_or_else(|| refuse("belongs to no column of the schema"))?;
            if found[column].replace((*suffix, extension, *content)).is_some() {
                return Err(refuse("is the second of its column"));
            }
        }
        for ((column, field), found) in self.columns.iter().zip(self.schema.fields()).zip(found) {
            match found {
                Some((suffix, extension, content)) => {
                    let read = column.read(field, extension, content, row);
                    read.map_err(|reason| MemberError { member: suffix.to_owned(), reason })?;
                }
                None if field.is_nullable() => row.push(0),
                None => {
                    let reason = "is missing, and may not be null".to_owned();
                    return Err(MemberError { member: column.name.clone(), reason });
                }
            }
        }
        match row.len() <= MAX_ROW_BYTES {
            true => Ok(()),
            false => Err(MemberError {
                member: "the last".to_owned(),
                reason: "makes the row too large".to_owned(),
            }),
        }
    }
}

impl Kind {
    fn of(field: &Field) -> Self {
        match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => Self::Text,
            DataType::Binary | DataType::LargeBinary => Self::Binary,
            binary @ DataType::FixedSizeBinary(_) => {
                fixed_width(binary).map_or(Self::Other, Self::FixedBinary)
            }
            integer if integer.is_integer() => fixed_width(integer).map_or(Self::Other, Self::Integer),
            _ => Dense::of(field).map_or(Self::Other, Self::Dense),
        }
    }
}

impl Column {
    /// Takes the column off the front of the row: its member's type and content, `None` for a null.
    fn write(&self, field: &Field, row: &mut &[u8]) -> Result<Option<(&'static str, Vec<u8>)>, Reason> {
        let whole = *row;
        if take(row, 1)? == [0] {
            return Ok(None);
        }
        let member = match &self.kind {
            Kind::Text => {
                let length = take_length(row)?;
                ("txt", take(row, length)?.to_vec())
            }
            Kind::Binary => {
                let length = take_length(row)?;
                binary(take(row, length)?)
            }
            Kind::FixedBinary(width) => binary(take(row, *width)?),
            Kind::Integer(width) => {
                let mut text = Vec::new();
                json::write(field.data_type(), &tree::Tree::Fixed(take(row, *width)?.to_vec()), &mut text)?;
                ("cls", text)
            }
            Kind::Dense(dense) => match dense.take(row)? {
                Some(file) => ("npy", file),
                None => ("json", as_json(field, whole, row)?),
            },
            Kind::Other => ("json", as_json(field, whole, row)?),
        };
        Ok(Some(member))
    }

    /// Appends the column's cell.
    fn read(&self, field: &Field, extension: &str, content: &[u8], row: &mut Vec<u8>) -> Result<(), Reason> {
        match (&self.kind, extension) {
            (Kind::Text, "txt") => {
                std::str::from_utf8(content).map_err(|_| "is not UTF-8")?;
                put(row, &[1])?;
                put_length(content.len(), row)?;
                put(row, content)
            }
            (Kind::Binary, _) => {
                put(row, &[1])?;
                put_length(content.len(), row)?;
                put(row, content)
            }
            (Kind::FixedBinary(width), _) if content.len() == *width => {
                put(row, &[1])?;
                put(row, content)
            }
            (Kind::FixedBinary(width), _) => Err(format!("has {} bytes instead of {width}", content.len())),
            (Kind::Integer(width), "cls") => {
                let text = std::str::from_utf8(content).map_err(|_| "is not UTF-8")?;
                put(row, &[1])?;
                put(row, &json::read_integer(text.trim_ascii(), *width, field.data_type())?)
            }
            (Kind::Dense(dense), "npy") => {
                put(row, &[1])?;
                dense.put(content, row)
            }
            (Kind::Dense(_) | Kind::Other, "json") => put_run(field, &[json::read(field, content)?], row),
            _ => {
                Err(format!("has a type that column {:?} of {} cannot have", field.name(), field.data_type()))
            }
        }
    }
}

fn as_json<'a>(field: &Field, mut cell: &'a [u8], row: &mut &'a [u8]) -> Result<Vec<u8>, Reason> {
    let values = take_run(field, 1, &mut cell)?;
    *row = cell;
    let mut text = Vec::new();
    values.iter().try_for_each(|value| json::write(field.data_type(), value, &mut text))?;
    Ok(text)
}

/// Encoded images are known by their first bytes.
fn binary(bytes: &[u8]) -> (&'static str, Vec<u8>) {
    const KNOWN: [(&str, &[u8]); 6] = [
        ("jpg", b"\xff\xd8\xff"),
        ("png", b"\x89PNG\r\n\x1a\n"),
        ("bmp", b"BM"),
        ("gif", b"GIF8"),
        ("tiff", b"II*\0"),
        ("tiff", b"MM\0*"),
    ];
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    let known = KNOWN.iter().find(|(_, magic)| bytes.starts_with(magic)).map(|(extension, _)| *extension);
    (if is_webp { "webp" } else { known.unwrap_or("bin") }, bytes.to_vec())
}

/// A column's name in the name of a file.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '%' | '/' | '\\' | '\0'..='\x1f' | '\x7f' => {
                out.push_str(&format!("%{:02X}", u32::from(character)))
            }
            other => out.push(other),
        }
    }
    out
}

/// The name that two fields of a struct share, at any depth.
fn check_names(data_type: &DataType) -> Result<(), String> {
    match data_type {
        DataType::Struct(fields) => {
            let mut names = BTreeSet::new();
            fields.iter().try_for_each(|field| match names.insert(field.name()) {
                true => check_names(field.data_type()),
                false => Err(field.name().clone()),
            })
        }
        DataType::Map(entries, _) => match entries.data_type() {
            // Keys and values are written side by side, without their names.
            DataType::Struct(pair) => pair.iter().try_for_each(|field| check_names(field.data_type())),
            _ => Ok(()),
        },
        DataType::FixedSizeList(items, _) => check_names(items.data_type()),
        other => tree::items(other).map_or(Ok(()), |items| check_names(items.data_type())),
    }
}
