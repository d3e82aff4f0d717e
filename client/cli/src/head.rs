//! `shardctl head`: samples of a version as a table.

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::json::WriterBuilder;
use arrow::json::writer::LineDelimited;
use clap::Args;
use shardd_store::catalog::Catalog;
use shardd_store::connect::{Connect, only_dataset};
use shardfmt::{DatasetRef, ManifestFile, RowCodec};

use crate::failure::Failure;
use crate::human::{count, plural};
use crate::output;
use crate::table::Table;
use crate::values::shown;

/// Show the first samples of a dataset, or those from a row on
///
/// Values are shortened to fit a line; --json prints them whole, with bytes in hexadecimal. Only the shown rows are
/// fetched, and each is compared with its digest.
#[derive(Args)]
pub(crate) struct Head {
    /// The dataset, or a version of it such as NAME@TAG or NAME@~1; may be left out if there is only one
    #[arg(value_name = "NAME[@VERSION]")]
    dataset: Option<DatasetRef>,

    /// Number of samples
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    samples: u64,

    /// First row, counted from 0 in the order of ingest
    #[arg(long, value_name = "ROW", default_value_t = 0)]
    from: u64,

    /// Columns to show, with commas [default: all]
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    columns: Option<Vec<String>>,
}

impl Head {
    pub(crate) fn run(self, connect: &Connect, json: bool) -> Result<(), Failure> {
        let catalog = connect.catalog()?;
        let dataset = only_dataset(&*catalog, self.dataset.as_ref(), "head")?;
        let manifest = catalog.open_manifest(dataset.version)?;
        let total = manifest.totals().samples;
        if self.from >= total {
            return Err(Failure::usage(format!(
                "{} has {}, so --from {} is after the last: use at most {}",
                dataset.name,
                plural(total, "sample"),
                self.from,
                total.saturating_sub(1)
            )));
        }
        let columns = self.columns(&manifest)?;
        let end = total.min(self.from.saturating_add(self.samples));
        let rows = read(&*catalog, &manifest, self.from, end)?;
        let rows: Vec<RecordBatch> =
            rows.iter().map(|batch| batch.project(&columns)).collect::<Result<_, _>>()?;
        if json {
            output::raw(&json_lines(&rows)?);
            return Ok(());
        }
        print_table(&rows, &manifest, self.from);
        let rest = total - (end - self.from);
        if rest > 0 {
            output::note(false, &format!("{} of {} samples", count(end - self.from), count(total)));
        }
        Ok(())
    }

    /// The indices of the columns to show.
    fn columns(&self, manifest: &ManifestFile) -> Result<Vec<usize>, Failure> {
        let schema = manifest.schema();
        let Some(columns) = &self.columns else { return Ok((0..schema.fields().len()).collect()) };
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let index = |column: &String| {
            schema.index_of(column).map_err(|_| {
                let missing = format!("column {column}");
                Failure::usage(shardd_api::suggest::no_such(&missing, column, &names))
            })
        };
        let indices: Vec<usize> = columns.iter().map(index).collect::<Result<_, _>>()?;
        match indices.iter().enumerate().find(|(at, index)| indices[..*at].contains(index)) {
            Some((at, _)) => Err(Failure::usage(format!("--columns names {} twice", columns[at]))),
            None => Ok(indices),
        }
    }
}

/// The rows `from..end` of the version, verified, in record batches.
pub(crate) fn read(
    catalog: &dyn Catalog,
    manifest: &ManifestFile,
    mut from: u64,
    end: u64,
) -> Result<Vec<RecordBatch>, Failure> {
    let codec = RowCodec::new(manifest.schema().clone())?;
    let mut batches = Vec::new();
    while let (true, Some((shard, first))) = (from < end, manifest.find_sample(from)?) {
        let entry = manifest.entry(shard)?;
        let wanted = u64::from(entry.rows - first).min(end - from) as u32;
        let sidecar = catalog.sidecar(&entry)?;
        let plan = sidecar.read_plan(manifest.schema(), std::slice::from_ref(&(first..first + wanted)))?;
        let fetched = catalog.shard_ranges(entry.id, plan.ranges())?;
        let mut row = first;
        for batch in plan.decode(&fetched)?.into_iter().flatten() {
            for index in 0..batch.num_rows() {
                if codec.digest(&batch, index)? != sidecar.rows[row as usize] {
                    return Err(Failure::failed(format!(
                        "row {row} of shard {} is damaged: check the store with `shardctl verify`",
                        entry.id
                    )));
                }
                row += 1;
            }
            batches.push(batch);
        }
        from += u64::from(wanted);
    }
    Ok(batches)
}

/// One JSON object per row, each with every column. A missing value, NaN and infinity are `null`.
fn json_lines(rows: &[RecordBatch]) -> Result<Vec<u8>, ArrowError> {
    let mut lines = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
    for batch in rows {
        lines.write(batch)?;
    }
    lines.finish()?;
    Ok(lines.into_inner())
}

fn print_table(rows: &[RecordBatch], manifest: &ManifestFile, from: u64) {
    let Some(schema) = rows.first().map(RecordBatch::schema) else { return };
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let mut table = Table::new(&[&["row"], names.as_slice()].concat());
    let classes = manifest.class_names().unwrap_or_default();
    let label = manifest.label_column();
    let mut row = from;
    for batch in rows {
        for index in 0..batch.num_rows() {
            let values = batch.columns().iter().zip(&names).map(|(column, name)| {
                let text = shown(column, index);
                let class = (label == Some(*name)).then(|| text.parse::<usize>().ok()).flatten();
                match class.and_then(|class| classes.get(class)) {
                    Some(class) => format!("{text} ({class})"),
                    None => text,
                }
            });
            table.row(std::iter::once(row.to_string()).chain(values));
            row += 1;
        }
    }
    output::print(&table.render());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array, Int64Array};

    use super::*;

    #[test]
    fn a_line_of_json_has_every_column() {
        let count: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let score: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 0.5]));
        let batch =
            RecordBatch::try_from_iter_with_nullable([("count", count, true), ("score", score, false)]);
        let lines = json_lines(&[batch.expect("two columns")]).expect("numbers");
        let wanted = "{\"count\":1,\"score\":null}\n{\"count\":null,\"score\":0.5}\n";
        assert_eq!(String::from_utf8_lossy(&lines), wanted);
    }
}
