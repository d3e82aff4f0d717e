//! MosaicML shards: a directory with an `index.json` and the `.mds` files that it lists.

mod format;
mod layout;
mod shard;

use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use shardfmt::digest::Digest;
use shardfmt::manifest::InputDigest;

use self::format::{Index, ShardInfo};
use self::layout::{Layout, Unknown};
use self::shard::{Block, MdsShard};
use super::cells::{Column, Table};
use super::{About, Faults, Feed, Format, Stopped};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::{InputFile, OpenInput};
use crate::inputs::Inputs;
use crate::{IngestConfig, IngestError, canonical};

/// The name of the index.
const INDEX: &str = "index.json";
const LARGEST_INDEX: u64 = 1 << 30;

#[derive(Debug)]
pub(super) struct MdsSource {
    about: About,
    index: InputDigest,
    shards: Vec<MdsShard>,
    /// Shards that were left out when the source was opened, and why.
    left_out: Vec<(String, String)>,
    layout: Layout,
}

impl MdsSource {
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<MdsSource, IngestError> {
        let index_file = find_index(&inputs)?;
        let damaged = |reason| IngestError::Mds { path: index_file.path.clone(), reason };
        let bytes = index_file.read_all(LARGEST_INDEX)?;
        let Index { shards: listed, .. } = Index::parse(&bytes).map_err(damaged)?;
        let index = InputDigest {
            name: index_file.name.clone(),
            bytes: index_file.bytes,
            digest: Digest::of(&bytes),
        };
        let folder = index_file.name.strip_suffix(INDEX).unwrap_or_default();
        let (mut shards, mut left_out) = (Vec::new(), Vec::new());
        let mut common: Option<(ShardInfo, PathBuf)> = None;
        for info in listed {
            let name = format!("{folder}{}", info.raw_data.basename);
            let found = MdsShard::find(&info, folder, &inputs, index_file);
            match found.and_then(|shard| compare(common.as_ref(), &info, &shard).map(|()| shard)) {
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
        let layout = Layout::new(&info, &mut shards, config).map_err(|error| match error {
            Unknown::Encoding(reason) => IngestError::Mds { path: index_file.path.clone(), reason },
            Unknown::Content(error) => error,
            Unknown::Size => no_samples(),
        })?;
        let fields: Vec<_> = layout.columns.iter().map(Column::field).collect();
        let schema = canonical::canonical_schema(&index_file.path, &Schema::new(fields))?;
        let rows = shards.iter().map(|shard| shard.samples).try_fold(0, u64::checked_add);
        Ok(MdsSource { about: About { schema, rows, passed_over }, index, shards, left_out, layout })
    }

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
        let bytes = shard.read(content, block)?;
        let mut table = Table::new(&self.layout.columns);
        for (number, sample) in block.samples(&bytes) {
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
fn find_index(inputs: &Inputs) -> Result<&InputFile, IngestError> {
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
            found: format!("shards of MDS without their {INDEX}"),
        }),
    }
}

/// Refuses a shard whose columns are not those of the first.
fn compare(
    first: Option<&(ShardInfo, PathBuf)>,
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
