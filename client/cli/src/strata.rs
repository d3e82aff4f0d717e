//! Makes the strata of a version: which label each sample has, or how large it is. Reads the shards of the version, but for
//! those of which the manifest says enough.

use std::collections::BTreeMap;

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use shardd_plan::{PlanError, Strata};
use shardd_store::catalog::{Catalog, CatalogError};
use shardfmt::manifest::LABEL_COLUMN;
use shardfmt::{ByteSize, ManifestError, ManifestFile, Shard, ShardEntry, ShardError};

/// Shards of the manifest that are looked at together.
const LOOKED_AT: u64 = 256;
/// The stratum of samples whose label is missing.
const UNLABELLED: &str = "(no label)";

/// Why there are no strata.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StrataError {
    /// Nothing to tell samples apart by.
    #[error("the dataset has no column {LABEL_COLUMN:?} with numbers or texts: stratify by size")]
    NoLabels,
    /// As many labels as samples, or nearly.
    #[error("there are more than 65536 labels: stratify by size")]
    TooManyLabels,
    /// A number of buckets.
    #[error("{buckets} buckets of sizes are outside 1 to 65536: use size:8")]
    Buckets { buckets: u32 },
    /// A shard cannot be had.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The list of shards cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A shard is damaged.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The strata do not fit a plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A stratum for each label, in the order of their names. `progress` gets the number of finished shards, and
/// of all shards.
///
/// # Errors
/// [`StrataError`], if samples have no labels or too many different ones, or a shard cannot be read.
pub(crate) fn by_label(
    catalog: &dyn Catalog,
    manifest: &ManifestFile,
    progress: &dyn Fn(u64, u64),
) -> Result<Strata, StrataError> {
    let field = manifest.schema().field_with_name(LABEL_COLUMN).map_err(|_| StrataError::NoLabels)?;
    let data_type = field.data_type();
    let names_classes = data_type.is_integer()
        || matches!(data_type, DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8);
    if !names_classes {
        return Err(StrataError::NoLabels);
    }
    let (mut found, mut of_sample) = (BTreeMap::<String, u32>::new(), Vec::new());
    let mut number = |label: &str| -> Result<u32, StrataError> {
        if let Some(number) = found.get(label) {
            return Ok(*number);
        }
        let next = found.len() as u32;
        if next == 1 << 16 {
            return Err(StrataError::TooManyLabels);
        }
        found.insert(label.to_owned(), next);
        Ok(next)
    };
    each_shard(manifest, progress, |entry| {
        if let Some(only) = only_label(entry) {
            of_sample.resize(of_sample.len() + entry.rows as usize, number(only)?);
            return Ok(());
        }
        let shard = Shard::from_bytes(catalog.shard(entry)?)?;
        for batch in shard.record_batches() {
            let column = batch.column_by_name(LABEL_COLUMN).ok_or(StrataError::NoLabels)?;
            let texts = cast(column, &DataType::LargeUtf8).map_err(|_| StrataError::NoLabels)?;
            for label in texts.as_string::<i64>() {
                of_sample.push(number(label.unwrap_or(UNLABELLED))?);
            }
        }
        Ok(())
    })?;
    // Numbered as they came; strata are in the order of their names, so that the order of shards does not show.
    let mut place = vec![0; found.len()];
    (0..).zip(found.values()).for_each(|(at, number)| place[*number as usize] = at);
    let of_sample: Vec<u16> = of_sample.into_iter().map(|number| place[number as usize]).collect();
    Ok(Strata::new("label", found.into_keys().collect(), &of_sample)?)
}

/// The label of all rows of a shard, if they have one and the manifest says so.
fn only_label(entry: &ShardEntry) -> Option<&str> {
    let (label, count) = entry.labels.as_ref()?.first_key_value()?;
    (*count == u64::from(entry.rows)).then_some(label)
}

/// About as many samples in each of at most `buckets` strata, by the length of their canonical rows; equal lengths are in one
/// stratum. `progress` is called as by [`by_label`].
///
/// # Errors
/// [`StrataError`], if the number is out of range or a shard cannot be read.
pub(crate) fn by_size(
    catalog: &dyn Catalog,
    manifest: &ManifestFile,
    buckets: u32,
    progress: &dyn Fn(u64, u64),
) -> Result<Strata, StrataError> {
    if !(1..=1 << 16).contains(&buckets) {
        return Err(StrataError::Buckets { buckets });
    }
    let (mut lengths, mut row) = (Vec::new(), Vec::new());
    each_shard(manifest, progress, |entry| {
        // One length for all rows needs no look at them.
        if let Some(all) = entry.statistics.as_ref().map(|statistics| statistics.row_bytes)
            && all.min == all.max
        {
            lengths.resize(lengths.len() + entry.rows as usize, all.min);
            return Ok(());
        }
        let shard = Shard::from_bytes(catalog.shard(entry)?)?;
        for at in 0..shard.rows() {
            row.clear();
            shard.encode_row(at, &mut row)?;
            lengths.push(row.len() as u32); // a row has less than 2^32 bytes
        }
        Ok(())
    })?;
    Ok(of_lengths(&lengths, buckets)?)
}

fn of_lengths(lengths: &[u32], buckets: u32) -> Result<Strata, PlanError> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let last_of =
        |bucket: u64| sorted[(sorted.len() as u64 * (bucket + 1) / u64::from(buckets)).max(1) as usize - 1];
    let mut ends: Vec<u32> = (0..u64::from(buckets)).filter(|_| !sorted.is_empty()).map(last_of).collect();
    ends.dedup();
    let of_sample: Vec<u16> =
        lengths.iter().map(|length| ends.partition_point(|end| end < length) as u16).collect();
    let names = ends.iter().map(|end| format!("up to {}", ByteSize(u64::from(*end)))).collect();
    Strata::new("size", names, &of_sample)
}

/// Calls `look` with every shard of the manifest in order.
fn each_shard(
    manifest: &ManifestFile,
    progress: &dyn Fn(u64, u64),
    mut look: impl FnMut(&ShardEntry) -> Result<(), StrataError>,
) -> Result<(), StrataError> {
    let shards = manifest.totals().shards;
    for start in (0..shards).step_by(LOOKED_AT as usize) {
        for (number, entry) in (start..).zip(manifest.entries(start..shards.min(start + LOOKED_AT))?) {
            look(&entry)?;
            progress(number + 1, shards);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shardd_plan::SampleNo;

    use super::*;

    #[test]
    fn buckets_of_sizes_have_about_as_many_samples_and_never_part_equal_sizes() {
        let lengths: Vec<u32> = (0..1000).map(|sample| 100 + sample * 7919 % 1000).collect();
        let strata = of_lengths(&lengths, 4).expect("sizes make strata");
        assert_eq!(strata.sizes(), [250; 4]);
        assert_eq!(strata.names()[0], "up to 349 B");
        let of = |sample: usize| strata.of(SampleNo(sample as u64));
        assert!((1..1000).all(|sample| (lengths[sample] < lengths[0]) <= (of(sample) <= of(0))));
        let equal = of_lengths(&[5, 5, 5, 5, 9], 3).expect("sizes make strata");
        assert_eq!((equal.names().len(), equal.sizes()), (2, vec![4, 1]));
        let one = of_lengths(&[3], 8).expect("sizes make strata");
        assert_eq!(one.sizes(), [1]);
    }
}
