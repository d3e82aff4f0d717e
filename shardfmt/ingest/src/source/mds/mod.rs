//! MosaicML shards: a directory with an `index.json` and the `.mds` files that it lists. LitData's chunks are read as those.

mod format;
mod layout;
mod litdata;
mod shard;

use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use shardfmt::InputDigest;
use shardfmt::digest::Digest;

use self::format::{Index, Packing, ShardInfo};
use self::layout::{Layout, Unknown, Writer};
use self::litdata::{RowsSource, has_rows_alone};
use self::shard::{Block, MdsShard};
use super::cells::{Column, Table};
use super::{About, Faults, Feed, Format, Stopped};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

/// The name of the index.
const INDEX: &str = "index.json";
const LARGEST_INDEX: u64 = 1 << 30;

#[derive(Debug)]
struct MdsSource {
    about: About,
    index: InputDigest,
    shards: Vec<MdsShard>,
    /// Shards that were left out when the source was opened, and why.
    left_out: Vec<(String, String)>,
    layout: Layout,
}

/// The shards of an index, and how they are read.
struct Listed {
    shards: Vec<ShardInfo>,
    packing: Packing,
    writer: Writer,
}

impl Listed {
    fn parse(kind: Kind, bytes: &[u8]) -> Result<Listed, String> {
        if kind == Kind::LitData {
            let litdata::Index { chunks: shards, packing, is_bare } = litdata::Index::parse(bytes)?;
            return Ok(Listed { shards, packing, writer: Writer::LitData { is_bare } });
        }
        let Index { shards, .. } = Index::parse(bytes)?;
        Ok(Listed { shards, packing: Packing::Plain, writer: Writer::Mds })
    }

    /// The shard of an entry, as it lies in the folder of the index.
    fn find(
        &self,
        info: &ShardInfo,
        folder: &str,
        inputs: &Inputs,
        index: &InputFile,
    ) -> Result<MdsShard, IngestError> {
        match self.writer {
            Writer::Mds => MdsShard::find(info, folder, inputs, index),
            Writer::LitData { .. } => MdsShard::find_chunk(info, self.packing, folder, inputs, index),
        }
    }
}

/// Opens a directory of MDS or of LitData.
pub(super) fn open(
    kind: Kind,
    inputs: Inputs,
    config: &IngestConfig,
) -> Result<Box<dyn Format>, IngestError> {
    let index_file = find_index(&inputs, kind)?;
    let damaged = |reason| damaged(kind, index_file, reason);
    let bytes = index_file.read_all(LARGEST_INDEX)?;
    let listed = Listed::parse(kind, &bytes).map_err(damaged)?;
    let index =
        InputDigest { name: index_file.name.clone(), bytes: index_file.bytes, digest: Digest::of(&bytes) };
    let folder = index_file.name.strip_suffix(INDEX).unwrap_or_default();
    let (mut shards, mut left_out) = (Vec::new(), Vec::new());
    let mut common: Option<(&ShardInfo, PathBuf)> = None;
    for info in &listed.shards {
        let name = format!("{folder}{}", info.raw_data.basename);
        let found = listed.find(info, folder, &inputs, index_file);
        match found.and_then(|shard| compare(common.as_ref(), info, &shard).map(|()| shard)) {
            Ok(shard) => {
                common.get_or_insert_with(|| (info, shard.file.path.clone()));
                shards.push(shard);
            }
            Err(error) if config.on_error == OnError::Skip && error.is_about_content() => {
                left_out.push((name, one_line(error)));
            }
            Err(error) => return Err(error),
        }
    }
    let passed_over = (inputs.files.len() - 1).saturating_sub(shards.len()) as u64;
    let no_samples = || IngestError::NoSamples {
        path: inputs.path.clone(),
        found: format!("{INDEX} lists no shard that can be read"),
    };
    let (info, _) = common.ok_or_else(no_samples)?;
    if kind == Kind::LitData && has_rows_alone(&shards[0].file, shards[0].samples)? {
        let chunks = shards.into_iter().map(|shard| (shard.file, shard.samples)).collect();
        let rows = RowsSource::open(&inputs, index, chunks, left_out, passed_over, config)?;
        return Ok(Box::new(rows));
    }
    let layout = Layout::new(info, listed.writer, &mut shards, config).map_err(|error| match error {
        Unknown::Encoding(reason) => damaged(reason),
        Unknown::Content(error) => error,
        Unknown::Size => no_samples(),
    })?;
    let fields: Vec<_> = layout.columns.iter().map(Column::field).collect();
    let schema = canonical::canonical_schema(&index_file.path, &Schema::new(fields))?;
    let rows = shards.iter().map(|shard| shard.samples).try_fold(0, u64::checked_add);
    let about = About { schema, rows, passed_over };
    Ok(Box::new(MdsSource { about, index, shards, left_out, layout }))
}

impl MdsSource {
    fn shard<'s>(&'s self, shard: &'s MdsShard, feed: &mut Feed<'_, 's>) -> Result<InputDigest, Stopped> {
        let name = &shard.file.name;
        shard.visit(|content| {
            let visited = content.map_err(Stopped::Reading).and_then(|content| {
                shard.blocks(
                    content,
                    |bytes| self.layout.weight(bytes),
                    |block| {
                        let content = content.clone();
                        let part = format!("{name}, samples {}..{}", block.first, block.end());
                        feed.piece(part, move |faults| self.rows(shard, &content, &block, faults))
                            .map_err(Stopped::Elsewhere)
                    },
                )
            });
            feed.visited(name, visited)
        })
    }

    fn rows(
        &self,
        shard: &MdsShard,
        content: &OpenInput,
        block: &Block,
        faults: &mut Faults,
    ) -> Result<RecordBatch, IngestError> {
        let samples = shard.read(content, block)?;
        let mut table = Table::new(&self.layout.columns);
        for (number, sample) in samples.iter() {
            match self.layout.row(sample) {
                Ok(row) => table.push(row),
                Err((column, misfit)) => {
                    let name = format!("sample {number}, column {column}");
                    faults
                        .add(format!("{}, {name}", shard.file.name), misfit.named(&shard.file.path, &name))?;
                }
            }
        }
        table.finish(&shard.file.path, &self.about.schema)
    }
}

impl Format for MdsSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        feed.all_left_out(&self.left_out)?;
        let mut digests = vec![self.index.clone()];
        for shard in &self.shards {
            match self.shard(shard, feed) {
                Ok(digest) => digests.push(digest),
                Err(stopped) => feed.visited(&shard.file.name, Err(stopped))?,
            }
        }
        Ok(digests)
    }
}

/// The index of the directory: the one at the top, or the only one.
fn find_index(inputs: &Inputs, kind: Kind) -> Result<&InputFile, IngestError> {
    let top = inputs.under.as_ref().map_or(INDEX.to_owned(), |under| format!("{under}/{INDEX}"));
    if let Some(file) = inputs.files.iter().find(|file| file.name == top) {
        return Ok(file);
    }
    let is_index = |file: &&InputFile| file.name.rsplit('/').next() == Some(INDEX);
    let mut found = inputs.files.iter().filter(is_index);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (Some(first), Some(second)) => Err(IngestError::Ambiguous {
            path: inputs.path.clone(),
            first: first.name.clone(),
            second: second.name.clone(),
        }),
        (None, _) => Err(IngestError::NoSamples {
            path: inputs.path.clone(),
            found: format!(
                "{} of {} without their {INDEX}",
                if kind == Kind::Mds { "shards" } else { "chunks" },
                kind.description()
            ),
        }),
    }
}

fn damaged(kind: Kind, file: &InputFile, reason: String) -> IngestError {
    let path = file.path.clone();
    match kind {
        Kind::LitData => IngestError::Damaged { path, kind: "LitData", reason },
        _ => IngestError::Mds { path, reason },
    }
}

/// Refuses a shard whose columns are not those of the first.
fn compare(
    first: Option<&(&ShardInfo, PathBuf)>,
    info: &ShardInfo,
    shard: &MdsShard,
) -> Result<(), IngestError> {
    let Some((common, first)) = first else { return Ok(()) };
    let columns = |info: &ShardInfo| {
        (info.column_names.clone(), info.column_encodings.clone(), info.column_sizes.clone())
    };
    if columns(common) == columns(info) {
        return Ok(());
    }
    Err(IngestError::Schemas {
        path: shard.file.path.clone(),
        first: first.clone(),
        difference: "has other columns or encodings".to_owned(),
    })
}
