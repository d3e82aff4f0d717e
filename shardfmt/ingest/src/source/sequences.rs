//! Packs the documents of pieces into sequences of tokens. Pieces are read on any thread, and packed in their order. Knows
//! nothing of where tokens come from.

use std::path::Path;

use arrow::array::{ArrowPrimitiveType, RecordBatch};
use shardfmt::InputDigest;

use super::pack::{Layout, Mark, Packer, too_long};
use super::{Faults, Feed, Piece};
use crate::{IngestError, pipeline};

/// Lists the sequences that the documents of listed pieces make: `list` lists pieces, and `documents` gives those of a piece's
/// rows. `path` is that of the input.
pub(super) fn sequences<'s, T: ArrowPrimitiveType, M: Mark>(
    layout: Layout,
    path: &Path,
    feed: &mut Feed<'_, 's>,
    list: impl FnOnce(&mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError>,
    documents: impl Fn(&RecordBatch, &mut Faults) -> Result<Vec<Vec<(T::Native, M)>>, IngestError> + Sync,
) -> Result<Vec<InputDigest>, IngestError> {
    let mut packer = Packer::<T, M>::of(layout)?;
    let mut row = 0;
    let (on_error, largest_row) = (feed.on_error, feed.largest_row);
    let digests = pipeline::in_order(
        2 * rayon::current_num_threads() + 1,
        |push| list(&mut Feed { push, on_error, largest_row }),
        |piece: Piece<'s>| {
            let (batch, mut faults) = piece.read(on_error)?;
            let documents = batch.map_or(Ok(Vec::new()), |batch| documents(&batch, &mut faults))?;
            Ok((documents, faults))
        },
        |(documents, faults)| pack(&mut packer, path, documents, faults, &mut row, feed),
    )?;
    packer.finish(path, &path.display().to_string(), feed)?;
    Ok(digests)
}

/// Takes in the next documents, and gives out the samples that are complete. `row` counts documents.
fn pack<T: ArrowPrimitiveType, M: Mark>(
    packer: &mut Packer<T, M>,
    path: &Path,
    documents: Vec<Vec<(T::Native, M)>>,
    faults: Faults,
    row: &mut u64,
    feed: &mut Feed<'_, '_>,
) -> Result<(), IngestError> {
    let name = faults.piece().to_owned();
    feed.pass_on(faults)?;
    for tokens in documents {
        packer.begin();
        packer.add(tokens.into_iter());
        if let Err(error) = packer.end() {
            let reason = format!("document {row}: {}", too_long(&error));
            feed.fault(&name, IngestError::Row { path: path.to_owned(), reason })?;
        }
        *row += 1;
        while let Some(batch) = packer.samples(false) {
            feed.piece(name.clone(), move |_| Ok(batch))?;
        }
    }
    Ok(())
}
