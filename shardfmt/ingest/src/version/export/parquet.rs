//! Parquet files: a row group for each shard, and the Arrow schema, so that all types come back. Each file is read again
//! before it counts: what Parquet would change is found, and not exported.

use std::fs::File;
use std::io::Seek;
use std::ops::Range;

use ::parquet::arrow::ArrowWriter;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use arrow::array::RecordBatch;
use shardfmt::compare::changes;
use shardfmt::row::{RowCodec, RowDigest, RowError, plain_batch, plain_schema};
use shardfmt::size::ByteSize;

use super::{ExportError, Exported, Job, each};
use crate::version::store::one_line;
use crate::version::stretch::Reader;

/// The size of the rows that are read again together.
const ROWS_AT_ONCE_BYTES: u64 = 4 << 20;

pub(super) fn write(job: &Job<'_>, size: ByteSize, zstd: bool) -> Result<Exported, ExportError> {
    let compression = match zstd {
        true => Compression::ZSTD(ZstdLevel::default()),
        false => Compression::UNCOMPRESSED,
    };
    let properties = WriterProperties::builder()
        .set_compression(compression)
        // A row group ends where a shard does.
        .set_max_row_group_row_count(None)
        .build();
    each(groups(job, size), |(index, shards)| {
        let name = format!("part-{index:0width$}.parquet", width = job.digits());
        let part = Part { job, name: &name, shards };
        let length = job.file(&name, |file| {
            part.write(file, properties.clone())?;
            part.check(file)
        })?;
        Ok(vec![length])
    })
}

/// Shards that make a file together, numbered.
fn groups(job: &Job<'_>, size: ByteSize) -> Vec<(usize, Range<usize>)> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0u64;
    for (index, shard) in job.manifest.shards.iter().enumerate() {
        bytes = bytes.saturating_add(shard.row_bytes);
        match groups.last_mut() {
            Some(group) if bytes <= size.0 => group.end = index + 1,
            _ => {
                groups.push(index..index + 1);
                bytes = shard.row_bytes;
            }
        }
    }
    groups.into_iter().enumerate().collect()
}

/// One file.
struct Part<'a> {
    job: &'a Job<'a>,
    name: &'a str,
    shards: Range<usize>,
}

impl Part<'_> {
    fn write(&self, file: &mut File, properties: WriterProperties) -> Result<(), ExportError> {
        let refuse = |error| self.refuse(error);
        let schema = &self.job.manifest.schema;
        let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(refuse)?;
        let mut reader = Reader::new(self.job.store, &self.job.manifest.shards);
        for shard in self.shards.clone() {
            for batch in reader.shard(shard)?.record_batches() {
                let batch = RecordBatch::try_new(schema.clone(), batch.columns().to_vec());
                let written = batch.map_err(ParquetError::from).and_then(|batch| writer.write(&batch));
                written.map_err(refuse)?;
            }
            writer.flush().map_err(refuse)?;
        }
        writer.close().map(|_| ()).map_err(refuse)
    }

    /// Reads the file as ingest would, and compares every row with its digest.
    fn check(&self, file: &mut File) -> Result<(), ExportError> {
        let differs = |reason: String| ExportError::Parquet { file: self.name.to_owned(), reason };
        let unread = |error: &dyn std::error::Error| differs(one_line(error));
        let read = file.rewind().and_then(|()| file.try_clone());
        let read = read.map_err(|source| self.job.failed(self.name, source))?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(read).map_err(|error| unread(&error))?;
        let found = plain_schema(builder.schema()).map_err(|error| unread(&error))?;
        let schema = &self.job.manifest.schema;
        if let Some(change) = changes(schema, &found).first() {
            return Err(differs(format!("read again, {change}")));
        }
        let codec = RowCodec::new(schema.clone()).map_err(|error| unread(&error))?;
        let mut expected = Expected::new(self);
        let mut row = Vec::new();
        let batches = builder.with_batch_size(self.rows_at_once()).build().map_err(|error| unread(&error))?;
        for batch in batches {
            let batch = batch.map_err(RowError::from).and_then(|batch| plain_batch(&batch, schema));
            let batch = batch.map_err(|error| unread(&error))?;
            let encoder = codec.encoder(&batch).map_err(|error| unread(&error))?;
            let mut bytes = 0;
            for number in 0..batch.num_rows() {
                row.clear();
                encoder.encode(number, &mut row).map_err(|error| unread(&error))?;
                if expected.next()? != Some(RowDigest::of(&row)) {
                    return Err(differs("read again, a row is another".to_owned()));
                }
                bytes += row.len() as u64;
            }
            self.job.progress.advanced(batch.num_rows() as u64, bytes, "exporting");
        }
        match expected.next()? {
            None => Ok(()),
            Some(_) => Err(differs("read again, rows are missing".to_owned())),
        }
    }

    /// As many rows as weigh some MiB.
    fn rows_at_once(&self) -> usize {
        let shards = &self.job.manifest.shards[self.shards.clone()];
        let (rows, bytes) = shards.iter().fold((0, 0u64), |(rows, bytes), shard| {
            (rows + u64::from(shard.rows), bytes.saturating_add(shard.row_bytes))
        });
        (ROWS_AT_ONCE_BYTES / (bytes / rows.max(1)).max(1)).clamp(1, 8192) as usize
    }

    fn refuse(&self, error: ParquetError) -> ExportError {
        match error {
            ParquetError::External(source) if source.is::<std::io::Error>() => {
                let source = source.downcast::<std::io::Error>().expect("just looked");
                self.job.failed(self.name, *source)
            }
            error => ExportError::Parquet { file: self.name.to_owned(), reason: one_line(&error) },
        }
    }
}

/// The digests of all rows of a file, in order.
struct Expected<'a> {
    reader: Reader<'a>,
    shards: Range<usize>,
    row: usize,
}

impl<'a> Expected<'a> {
    fn new(part: &Part<'a>) -> Self {
        let reader = Reader::new(part.job.store, &part.job.manifest.shards);
        Self { reader, shards: part.shards.clone(), row: 0 }
    }

    fn next(&mut self) -> Result<Option<RowDigest>, ExportError> {
        while let Some(shard) = (!self.shards.is_empty()).then_some(self.shards.start) {
            if let Some(digest) = self.reader.digests(shard)?.get(self.row) {
                self.row += 1;
                return Ok(Some(*digest));
            }
            (self.shards.start, self.row) = (shard + 1, 0);
        }
        Ok(None)
    }
}
