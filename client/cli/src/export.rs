//! `shardctl export`: the samples of a version as files that other programs read, whole or not at all.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use shardd_ingest::version::{ExportFormat, ExportOptions, export};
use shardd_store::catalog::CatalogStore;
use shardd_store::connect::{Connect, find_version};
use shardfmt::{ByteSize, DatasetRef};

use crate::failure::Failure;
use crate::human::{duration, plural};
use crate::ingest::processors;
use crate::output;
use crate::work::WorkProgress;

/// Write the samples of a version to files, in order and without loss
#[derive(Args)]
pub(crate) struct Export {
    /// The version: NAME, NAME@TAG, NAME@ID or NAME@~1
    version: DatasetRef,

    /// A new or empty directory
    to: PathBuf,

    /// The format of the files
    #[arg(long, value_enum)]
    format: FormatArg,

    /// Target size of the files
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    shard_size: ByteSize,

    /// Compression of Parquet; tars of WebDataset are not compressed [default: zstd]
    #[arg(long, value_enum)]
    compression: Option<CompressionArg>,

    /// Threads to work with; the result does not depend on it [default: one per processor]
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Parquet,
    Webdataset,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum CompressionArg {
    None,
    Zstd,
}

impl Export {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let format = match (self.format, self.compression) {
            (FormatArg::Parquet, compression) => {
                ExportFormat::Parquet { zstd: compression != Some(CompressionArg::None) }
            }
            (FormatArg::Webdataset, None | Some(CompressionArg::None)) => ExportFormat::WebDataset,
            (FormatArg::Webdataset, Some(CompressionArg::Zstd)) => {
                return Err(Failure::usage("tars of WebDataset are not compressed: leave --compression out"));
            }
        };
        let catalog = connect.catalog()?;
        let dataset = find_version(&*catalog, &self.version)?;
        let manifest = catalog.manifest(dataset.version)?;
        let progress = WorkProgress::new(json, "exporting", dataset.samples);
        let options = ExportOptions { format, file_size: self.shard_size };
        let threads = self.threads.map_or_else(processors, usize::from);
        let done = export(&manifest, &CatalogStore(&*catalog), &self.to, options, threads, &progress);
        let took = progress.finish();
        let done = done?;
        if json {
            output::json(&json!({
                "event": "done",
                "dataset": dataset.name,
                "version": dataset.version,
                "samples": dataset.samples,
                "digest_sum": manifest.digest_sum(),
                "to": self.to,
                "files": done.files,
                "bytes": done.bytes,
                "seconds": took.as_secs_f64(),
            }));
        } else {
            output::print(&format!(
                "{}: {} of version {} in {} ({}) in {}; {}\n",
                dataset.name,
                plural(dataset.samples, "sample"),
                dataset.version.short(),
                plural(done.files, "file"),
                ByteSize(done.bytes),
                self.to.display(),
                duration(took),
            ));
        }
        Ok(())
    }
}
