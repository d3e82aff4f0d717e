//! Chunks without values: since 0.2.7x, LitData writes samples of plain values as an Arrow file behind an empty table.

use std::io;

use shardfmt::InputDigest;

use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::source::ipc::IpcSource;
use crate::source::{About, Feed, Format};
use crate::{IngestConfig, IngestError};

/// The end of such a chunk, after the length of the Arrow file.
const MAGIC: &[u8] = b"LDARW01\0";
const FOOT: u64 = 12;

/// Where the Arrow file of a chunk is, and how long, if its rows lie in one alone. `samples` is how many the chunk has.
fn span(file: &InputFile, samples: u64) -> Result<Option<(u64, u64)>, IngestError> {
    let table = 4 * (samples + 2);
    let Some(end) = file.bytes.checked_sub(FOOT) else { return Ok(None) };
    let foot = part(file, end, FOOT)?;
    let Some((length, MAGIC)) = foot.split_first_chunk() else { return Ok(None) };
    let length = u64::from(u32::from_le_bytes(*length));
    // Elsewhere the rows lie in the chunk, too.
    Ok((table.checked_add(length) == Some(end)).then_some((table, length)))
}

fn part(file: &InputFile, start: u64, length: u64) -> Result<Vec<u8>, IngestError> {
    let failed = |error: io::Error| file.error(error);
    file.open()?.part(start, length as usize).map_err(failed)
}

/// Whether the rows of a chunk lie in an Arrow file alone.
pub(in crate::source::mds) fn has_rows_alone(file: &InputFile, samples: u64) -> Result<bool, IngestError> {
    span(file, samples).map(|span| span.is_some())
}

/// The rows of such chunks.
#[derive(Debug)]
pub(in crate::source::mds) struct RowsSource {
    index: InputDigest,
    chunks: Vec<InputFile>,
    rows: IpcSource,
    left_out: Vec<(String, String)>,
    about: About,
}

impl RowsSource {
    pub(in crate::source::mds) fn open(
        inputs: &Inputs,
        index: InputDigest,
        chunks: Vec<(InputFile, u64)>,
        left_out: Vec<(String, String)>,
        passed_over: u64,
        config: &IngestConfig,
    ) -> Result<RowsSource, IngestError> {
        let mut files = Vec::with_capacity(chunks.len());
        for (chunk, samples) in &chunks {
            let damaged = || IngestError::Damaged {
                path: chunk.path.clone(),
                kind: "LitData",
                reason: "it holds no Arrow file of its rows, unlike the first chunk".to_owned(),
            };
            let (start, length) = span(chunk, *samples)?.ok_or_else(damaged)?;
            files.push(chunk.part(start, length));
        }
        let all = Inputs { files, is_file: false, ..inputs.clone() };
        let config = IngestConfig { format: Some(Kind::Arrow), ..config.clone() };
        let rows = IpcSource::open(all, &config)?;
        let found = rows.about();
        let about = About { schema: found.schema.clone(), rows: found.rows, passed_over };
        let chunks = chunks.into_iter().map(|(chunk, _)| chunk).collect();
        Ok(RowsSource { index, chunks, rows, left_out, about })
    }
}

impl Format for RowsSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        feed.all_left_out(&self.left_out)?;
        self.rows.pieces(feed)?;
        // Those are the digests of parts.
        let of_chunks = self.chunks.iter().map(|chunk| chunk.finish(chunk.stream()?));
        std::iter::once(Ok(self.index.clone())).chain(of_chunks).collect()
    }
}
