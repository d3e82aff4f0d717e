//! A canonical value as a tree, and back: canonical runs lie column by column, documents value by value.
//!
//! The input is a row that we wrote or a document of another program; both are checked, and neither can take
//! much more memory than it has bytes.

use arrow::datatypes::{DataType, Field, FieldRef};

use crate::row::MAX_ROW_BYTES;

pub(super) type Reason = String;

/// A value of some Arrow type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Null,
    /// A value of fixed width, little-endian; a boolean is one byte.
    Fixed(Vec<u8>),
    /// Text or binary.
    Bytes(Vec<u8>),
    /// The items of a list of any kind; those of a map are structs of a key and a value.
    List(Vec<Tree>),
    /// The fields of a struct, in order.
    Struct(Vec<Tree>),
}

/// The bytes of a value of fixed width in a canonical row.
pub(super) fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        other => other.primitive_width(),
    }
}

/// The items of a list or map.
pub(super) fn items(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(items) | DataType::LargeList(items) | DataType::Map(items, _) => Some(items),
        _ => None,
    }
}

/// Takes a run of `count` values off the front of `bytes`.
pub(super) fn take_run(field: &Field, count: usize, bytes: &mut &[u8]) -> Result<Vec<Tree>, Reason> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let bitmap = match take(bytes, 1)?[0] {
        0 if count == 1 => return Ok(vec![Tree::Null]),
        1 => None,
        2 => Some(take(bytes, count.div_ceil(8))?),
        other => return Err(format!("has {other} where its presence should be")),
    };
    let mut values = take_values(field.data_type(), count, bytes)?;
    for (index, value) in values.iter_mut().enumerate() {
        if bitmap.is_some_and(|bitmap| bitmap[index / 8] >> (index % 8) & 1 == 0) {
            *value = Tree::Null;
        }
    }
    Ok(values)
}

fn take_values(data_type: &DataType, count: usize, bytes: &mut &[u8]) -> Result<Vec<Tree>, Reason> {
    if let Some(items) = items(data_type) {
        let lengths = take_lengths(count, bytes)?;
        let total = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        return group(take_run(items, total.ok_or_else(cut_off)?, bytes)?, lengths);
    }
    match data_type {
        DataType::Null => Ok(vec![Tree::Null; count]),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
            let lengths = take_lengths(count, bytes)?;
            lengths.into_iter().map(|length| Ok(Tree::Bytes(take(bytes, length)?.to_vec()))).collect()
        }
        DataType::FixedSizeList(items, size) => {
            let size = usize::try_from(*size).map_err(|_| cut_off())?;
            let total = count.checked_mul(size).ok_or_else(cut_off)?;
            group(take_run(items, total, bytes)?, vec![size; count])
        }
        DataType::Struct(fields) => {
            let mut values = vec![Tree::Struct(Vec::with_capacity(fields.len())); count];
            for field in fields {
                for (value, part) in values.iter_mut().zip(take_run(field, count, bytes)?) {
                    let Tree::Struct(parts) = value else { unreachable!("made as structs above") };
                    parts.push(part);
                }
            }
            Ok(values)
        }
        fixed => {
            let width = fixed_width(fixed).ok_or_else(|| format!("cannot hold {fixed}"))?;
            (0..count).map(|_| Ok(Tree::Fixed(take(bytes, width)?.to_vec()))).collect()
        }
    }
}

/// Appends a run of these values.
pub(super) fn put_run(field: &Field, values: &[Tree], out: &mut Vec<u8>) -> Result<(), Reason> {
    let values: Vec<Cell<'_>> = values.iter().map(Cell::Of).collect();
    put_cells(field, &values, out)
}

/// A place in a run.
#[derive(Clone, Copy)]
enum Cell<'a> {
    Of(&'a Tree),
    /// Lies beneath a null: null where it may be, else zeros.
    Hidden,
}

impl Cell<'_> {
    /// Whether the value is written as zeros.
    fn is_blank(&self) -> bool {
        matches!(self, Self::Hidden | Self::Of(Tree::Null))
    }
}

fn put_cells(field: &Field, cells: &[Cell<'_>], out: &mut Vec<u8>) -> Result<(), Reason> {
    if cells.is_empty() {
        return Ok(());
    }
    let nullable = field.is_nullable() || *field.data_type() == DataType::Null;
    if !nullable && cells.iter().any(|cell| matches!(cell, Cell::Of(Tree::Null))) {
        return Err(format!("has a null in {:?}, where none may be", field.name()));
    }
    let is_present = |cell: &Cell<'_>| !(nullable && cell.is_blank());
    if cells.iter().all(is_present) {
        put(out, &[1])?;
    } else if cells.len() == 1 {
        return put(out, &[0]);
    } else {
        put(out, &[2])?;
        for bits in cells.chunks(8) {
            put(out, &[bits.iter().rev().fold(0, |byte, cell| byte << 1 | u8::from(is_present(cell)))])?;
        }
    }
    put_values(field.data_type(), cells, out)
}

fn put_values(data_type: &DataType, cells: &[Cell<'_>], out: &mut Vec<u8>) -> Result<(), Reason> {
    let misfit = || format!("has a value that is not {data_type}");
    if let Some(field) = items(data_type) {
        let mut all = Vec::new();
        for cell in cells {
            let items = match cell {
                Cell::Of(Tree::List(items)) => items.as_slice(),
                cell if cell.is_blank() => &[],
                _ => return Err(misfit()),
            };
            put_length(items.len(), out)?;
            all.extend(items.iter().map(Cell::Of));
        }
        return put_cells(field, &all, out);
    }
    match data_type {
        DataType::Null => {}
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
            let mut all = Vec::with_capacity(cells.len());
            for cell in cells {
                all.push(match cell {
                    Cell::Of(Tree::Bytes(bytes)) => bytes.as_slice(),
                    cell if cell.is_blank() => &[],
                    _ => return Err(misfit()),
                });
            }
            all.iter().try_for_each(|bytes| put_length(bytes.len(), out))?;
            all.iter().try_for_each(|bytes| put(out, bytes))?;
        }
        DataType::FixedSizeList(field, size) => {
            let size = usize::try_from(*size).map_err(|_| misfit())?;
            // A blank cell takes no bytes of the document, but a place here.
            if cells.len().checked_mul(size).is_none_or(|all| all > MAX_ROW_BYTES / size_of::<Cell<'_>>()) {
                return Err(too_large());
            }
            let mut all = Vec::with_capacity(cells.len() * size);
            for cell in cells {
                match cell {
                    Cell::Of(Tree::List(items)) if items.len() == size => {
                        all.extend(items.iter().map(Cell::Of))
                    }
                    cell if cell.is_blank() => all.extend(std::iter::repeat_n(Cell::Hidden, size)),
                    _ => return Err(misfit()),
                }
            }
            put_cells(field, &all, out)?;
        }
        DataType::Struct(fields) => {
            for (index, field) in fields.iter().enumerate() {
                let mut all = Vec::with_capacity(cells.len());
                for cell in cells {
                    all.push(match cell {
                        Cell::Of(Tree::Struct(parts)) => Cell::Of(parts.get(index).ok_or_else(misfit)?),
                        cell if cell.is_blank() => Cell::Hidden,
                        _ => return Err(misfit()),
                    });
                }
                put_cells(field, &all, out)?;
            }
        }
        fixed => {
            let width = fixed_width(fixed).ok_or_else(misfit)?;
            for cell in cells {
                match cell {
                    Cell::Of(Tree::Fixed(bytes)) if bytes.len() == width => put(out, bytes)?,
                    cell if cell.is_blank() && width <= MAX_ROW_BYTES.saturating_sub(out.len()) => {
                        out.resize(out.len() + width, 0);
                    }
                    cell if cell.is_blank() => return Err(too_large()),
                    _ => return Err(misfit()),
                }
            }
        }
    }
    Ok(())
}

pub(super) fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Reason> {
    let (head, rest) = bytes.split_at_checked(length).ok_or_else(cut_off)?;
    *bytes = rest;
    Ok(head)
}

pub(super) fn take_length(bytes: &mut &[u8]) -> Result<usize, Reason> {
    let length = take(bytes, 4)?;
    Ok(u32::from_le_bytes(length.try_into().expect("4 bytes")) as usize)
}

fn take_lengths(count: usize, bytes: &mut &[u8]) -> Result<Vec<usize>, Reason> {
    let lengths = take(bytes, count.checked_mul(4).ok_or_else(cut_off)?)?;
    Ok(lengths.as_chunks::<4>().0.iter().map(|length| u32::from_le_bytes(*length) as usize).collect())
}

/// Lists of the given lengths.
fn group(items: Vec<Tree>, lengths: Vec<usize>) -> Result<Vec<Tree>, Reason> {
    let mut items = items.into_iter();
    Ok(lengths.into_iter().map(|length| Tree::List(items.by_ref().take(length).collect())).collect())
}

pub(super) fn put_length(length: usize, out: &mut Vec<u8>) -> Result<(), Reason> {
    put(out, &u32::try_from(length).map_err(|_| too_large())?.to_le_bytes())
}

pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Reason> {
    if bytes.len() > MAX_ROW_BYTES.saturating_sub(out.len()) {
        return Err(too_large());
    }
    out.extend_from_slice(bytes);
    Ok(())
}

fn cut_off() -> Reason {
    "is cut off".to_owned()
}

fn too_large() -> Reason {
    format!("makes a row of more than {MAX_ROW_BYTES} bytes, the most a row may have")
}
