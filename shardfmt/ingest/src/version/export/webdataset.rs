//! Tars as WebDataset has them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;

use shardfmt::member::{Members, SCHEMA_MEMBER};
use shardfmt::size::ByteSize;

use super::{ExportError, Exported, Job, each};
use crate::version::VersionError;
use crate::version::stretch::Reader;

pub(super) fn write(job: &Job<'_>, size: ByteSize) -> Result<Exported, ExportError> {
    let members = Members::new(job.manifest.schema.clone())?;
    let schema = members.schema_member();
    each(job.pieces(size), |unit| {
        let mut reader = Reader::new(job.store, &job.manifest.shards);
        let lengths = unit.into_iter().map(|(index, samples)| {
            let name = format!("samples-{index:0width$}.tar", width = job.digits());
            job.file(&name, |file| {
                let mut tar = Tar(tar::Builder::new(BufWriter::with_capacity(1 << 20, file)));
                let failed = |source| job.failed(&name, source);
                tar.add(SCHEMA_MEMBER, &schema).map_err(failed)?;
                let samples = Samples { job, members: &members, name: &name, range: samples };
                samples.write(&mut reader, &mut tar)?;
                tar.finish().map_err(failed)
            })
        });
        lengths.collect()
    })
}

/// The samples of one tar.
struct Samples<'a> {
    job: &'a Job<'a>,
    members: &'a Members,
    name: &'a str,
    range: Range<u64>,
}

impl Samples<'_> {
    fn write(self, reader: &mut Reader<'_>, tar: &mut Tar<'_>) -> Result<(), ExportError> {
        let (job, width) = (self.job, self.job.digits());
        let mut row = Vec::new();
        for (part, rows) in job.line.parts(self.range) {
            let first = job.line.samples(part).start;
            let shard = reader.shard(part)?;
            let mut bytes = 0;
            for number in rows.clone() {
                row.clear();
                let encoded = shard.encode_row(number, &mut row);
                encoded.map_err(|source| VersionError::Shard { index: part, source })?;
                let key = first + u64::from(number);
                for member in self.members.write(&row)? {
                    let added = tar.add(&format!("{key:0width$}.{}", member.suffix), &member.content);
                    added.map_err(|source| job.failed(self.name, source))?;
                }
                bytes += row.len() as u64;
            }
            job.progress.advanced(rows.len() as u64, bytes, "exporting");
        }
        Ok(())
    }
}

struct Tar<'a>(tar::Builder<BufWriter<&'a mut File>>);

impl Tar<'_> {
    /// Adds a member whose header says nothing but its name and length.
    fn add(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, name, content)
    }

    fn finish(self) -> io::Result<()> {
        self.0.into_inner()?.flush()
    }
}
