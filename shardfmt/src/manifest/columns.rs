//! What a manifest says of shards, as columns of its record batches and back. Columns are known by their names, and
//! those with other names are passed over.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeBinaryArray, Float64Array, RecordBatch, StringBuilder, StructArray,
    UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, FieldRef, Fields, Float64Type, Schema, SchemaRef, UInt32Type,
    UInt64Type,
};
use arrow::error::ArrowError;

use super::ShardEntry;
use super::labels::Names;
use crate::digest::{Digest, ShardId};
use crate::merkle::NodeHash;
use crate::row::DigestSum;
use crate::statistics::{ColumnStatistics, MEASURED_COLUMNS, Measure, Quantiles, Spread, Statistics};

const STATISTICS: &str = "statistics";
const ROW_BYTES: &str = "row_bytes";
const COLUMNS: &str = "columns";
const COUNT: &str = "count";
const QUANTILES: [&str; 6] = ["min", "p25", "p50", "p75", "p99", "max"];
const SPREAD: [&str; 4] = ["min", "max", "mean", "variance"];

/// The columns of a manifest of samples with `schema`: those that all manifests have, and then statistics.
pub(super) fn fields(schema: &Schema, with_statistics: bool) -> Vec<Field> {
    let mut fields = vec![
        Field::new("shard", DataType::FixedSizeBinary(32), false),
        Field::new("rows", DataType::UInt32, false),
        Field::new("bytes", DataType::UInt64, false),
        Field::new("row_bytes", DataType::UInt64, false),
        Field::new("root", DataType::FixedSizeBinary(32), false),
        Field::new("digest_sum", DataType::FixedSizeBinary(16), false),
        Field::new("labels", DataType::Utf8, true),
    ];
    if with_statistics {
        fields.push(Field::new(STATISTICS, DataType::Struct(statistics_fields(schema)), true));
    }
    fields
}

/// Whether a file has the columns that all manifests have, and statistics, if any, of the columns of its samples.
pub(super) fn check(found: &Schema, samples: &Schema) -> Result<(), String> {
    for expected in fields(&Schema::empty(), false) {
        let name = expected.name();
        let right = found.column_with_name(name).is_some_and(|(_, field)| {
            field.data_type() == expected.data_type() && field.is_nullable() == expected.is_nullable()
        });
        if !right {
            return Err(format!("it has no column {name:?} as manifests have it"));
        }
    }
    let expected = DataType::Struct(statistics_fields(samples));
    match found.column_with_name(STATISTICS) {
        Some((_, field)) if !holds(field.data_type(), &expected) => {
            Err("its statistics are not those of its columns".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether a type has all fields of another, with their types.
fn holds(found: &DataType, expected: &DataType) -> bool {
    let (DataType::Struct(found), DataType::Struct(expected)) = (found, expected) else {
        return found == expected;
    };
    let has = |expected: &FieldRef| {
        let mut named = found.iter().filter(|field| field.name() == expected.name());
        named.any(|field| holds(field.data_type(), expected.data_type()))
    };
    expected.iter().all(has)
}

fn statistics_fields(schema: &Schema) -> Fields {
    Fields::from(vec![
        Field::new(ROW_BYTES, DataType::Struct(quantile_fields()), false),
        Field::new(COLUMNS, DataType::Struct(measured_fields(schema)), false),
    ])
}

fn quantile_fields() -> Fields {
    QUANTILES.into_iter().map(|name| Field::new(name, DataType::UInt32, false)).collect()
}

fn measured_fields(schema: &Schema) -> Fields {
    let columns = schema.fields().iter().take(MEASURED_COLUMNS);
    columns
        .map(|column| Field::new(column.name(), DataType::Struct(column_fields(column.data_type())), false))
        .collect()
}

fn column_fields(data_type: &DataType) -> Fields {
    let mut fields = vec![Field::new(COUNT, DataType::UInt32, false)];
    if Measure::of(data_type) != Measure::Nothing {
        fields.extend(SPREAD.map(|name| Field::new(name, DataType::Float64, false)));
    }
    fields.into()
}

/// The record batch of some shards.
pub(super) fn record_batch(
    schema: SchemaRef,
    samples: &Schema,
    shards: &[ShardEntry],
) -> Result<RecordBatch, ArrowError> {
    let mut columns = vec![
        fixed(32, shards.iter().map(|shard| shard.id.0.0))?,
        Arc::new(UInt32Array::from_iter_values(shards.iter().map(|shard| shard.rows))) as ArrayRef,
        Arc::new(UInt64Array::from_iter_values(shards.iter().map(|shard| shard.bytes))),
        Arc::new(UInt64Array::from_iter_values(shards.iter().map(|shard| shard.row_bytes))),
        fixed(32, shards.iter().map(|shard| shard.root.0))?,
        fixed(16, shards.iter().map(|shard| shard.digest_sum.0.to_le_bytes()))?,
        labels(shards)?,
    ];
    if schema.fields().len() > columns.len() {
        columns.push(statistics(samples, shards)?);
    }
    RecordBatch::try_new(schema, columns)
}

fn fixed<const N: usize>(width: i32, values: impl Iterator<Item = [u8; N]>) -> Result<ArrayRef, ArrowError> {
    let values: Vec<u8> = values.flatten().collect();
    Ok(Arc::new(FixedSizeBinaryArray::try_new(width, values.into(), None)?))
}

fn labels(shards: &[ShardEntry]) -> Result<ArrayRef, ArrowError> {
    let (mut texts, mut text) = (StringBuilder::new(), Vec::new());
    for shard in shards {
        text.clear();
        let Some(labels) = &shard.labels else {
            texts.append_null();
            continue;
        };
        serde_json::to_writer(&mut text, labels).map_err(|error| ArrowError::ExternalError(error.into()))?;
        texts.append_value(str::from_utf8(&text).expect("JSON is UTF-8"));
    }
    Ok(Arc::new(texts.finish()))
}

fn statistics(samples: &Schema, shards: &[ShardEntry]) -> Result<ArrayRef, ArrowError> {
    let measured = samples.fields().len().min(MEASURED_COLUMNS);
    // Statistics of other columns than the samples have are none of theirs.
    let known: Vec<Option<&Statistics>> = shards
        .iter()
        .map(|shard| shard.statistics.as_ref().filter(|known| known.columns.len() == measured))
        .collect();
    let present: NullBuffer = known.iter().map(Option::is_some).collect();
    let quantile = |at: usize| {
        let values = known.iter().map(|known| known.map_or(0, |known| known.row_bytes.to_array()[at]));
        Arc::new(UInt32Array::from_iter_values(values)) as ArrayRef
    };
    let row_bytes = (0..QUANTILES.len()).map(quantile).collect();
    let columns = samples.fields().iter().take(measured).enumerate().map(|(at, column)| {
        let known = known.iter().map(|known| known.map(|known| &known.columns[at]));
        structure(column_fields(column.data_type()), column_statistics(column.data_type(), known), None)
    });
    let columns = structure(measured_fields(samples), columns.collect::<Result<_, _>>()?, None)?;
    let children = vec![structure(quantile_fields(), row_bytes, None)?, columns];
    structure(statistics_fields(samples), children, Some(present))
}

fn column_statistics<'a>(
    data_type: &DataType,
    known: impl Iterator<Item = Option<&'a ColumnStatistics>> + Clone,
) -> Vec<ArrayRef> {
    // A shard has fewer than 2^32 rows.
    let counts =
        known.clone().map(|known| known.map_or(0, |known| known.count.try_into().unwrap_or(u32::MAX)));
    let mut arrays = vec![Arc::new(UInt32Array::from_iter_values(counts)) as ArrayRef];
    if Measure::of(data_type) != Measure::Nothing {
        for part in [|at: Spread| at.min, |at: Spread| at.max, |at: Spread| at.mean, |at: Spread| at.variance]
        {
            let values = known.clone().map(|known| known.and_then(|known| known.spread).map_or(0.0, part));
            arrays.push(Arc::new(Float64Array::from_iter_values(values)));
        }
    }
    arrays
}

fn structure(
    fields: Fields,
    children: Vec<ArrayRef>,
    present: Option<NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    Ok(Arc::new(StructArray::try_new(fields, children, present)?))
}

/// The shards of a record batch whose schema was [checked](check) against that of the samples.
pub(super) fn entries(
    batch: &RecordBatch,
    samples: &Schema,
    names: &mut Names,
) -> Result<Vec<ShardEntry>, String> {
    let column = |name| batch.column_by_name(name).expect("the schema was checked");
    let (ids, roots, sums) = (column("shard"), column("root"), column("digest_sum"));
    let (ids, roots, sums) =
        (ids.as_fixed_size_binary(), roots.as_fixed_size_binary(), sums.as_fixed_size_binary());
    let rows = column("rows").as_primitive::<UInt32Type>();
    let bytes = column("bytes").as_primitive::<UInt64Type>();
    let row_bytes = column("row_bytes").as_primitive::<UInt64Type>();
    let labels = column("labels").as_string::<i32>();
    let statistics = batch.column_by_name(STATISTICS);
    let statistics = statistics.map(|column| StatisticsColumn::of(column, samples)).transpose()?;
    let entry = |index: usize| {
        let id = ShardId(Digest(ids.value(index).try_into().expect("32 bytes by its type")));
        let rows = rows.value(index);
        if rows == 0 {
            return Err(format!("shard {} has no rows", id.short()));
        }
        let labels = match labels.is_valid(index) {
            true => Some(
                names
                    .labels(labels.value(index))
                    .map_err(|error| format!("the labels of shard {}: {error}", id.short()))?,
            ),
            false => None,
        };
        let statistics = match &statistics {
            Some(column) => column
                .value(index, rows)
                .map_err(|reason| format!("the statistics of shard {}: {reason}", id.short()))?,
            None => None,
        };
        Ok(ShardEntry {
            id,
            rows,
            bytes: bytes.value(index),
            row_bytes: row_bytes.value(index),
            root: NodeHash(roots.value(index).try_into().expect("32 bytes by its type")),
            digest_sum: DigestSum(u128::from_le_bytes(
                sums.value(index).try_into().expect("16 bytes by its type"),
            )),
            labels,
            statistics,
        })
    };
    (0..batch.num_rows()).map(entry).collect()
}

/// How many values a column has in each shard, and, if it is measured, smallest, largest, mean and variance.
type Numbers<'a> = (&'a [u32], Option<[&'a [f64]; 4]>);

/// The column of statistics, taken apart.
struct StatisticsColumn<'a> {
    present: Option<&'a NullBuffer>,
    row_bytes: [&'a [u32]; 6],
    columns: Vec<Numbers<'a>>,
}

impl<'a> StatisticsColumn<'a> {
    fn of(column: &'a ArrayRef, samples: &Schema) -> Result<Self, String> {
        let all = struct_of(column)?;
        let row_bytes = struct_of(child(all, ROW_BYTES)?)?;
        let [min, p25, p50, p75, p99, max] =
            QUANTILES.map(|name| values::<UInt32Type>(child(row_bytes, name)?));
        let known = struct_of(child(all, COLUMNS)?)?;
        // In order, as several columns of the samples may have one name.
        let mut known = known.fields().iter().zip(known.columns());
        let columns = samples.fields().iter().take(MEASURED_COLUMNS).map(|measured| {
            let found = known.find(|(field, _)| field.name() == measured.name());
            let (_, column) = found.ok_or_else(|| format!("its statistics have no {:?}", measured.name()))?;
            let column = struct_of(column)?;
            let count = values::<UInt32Type>(child(column, COUNT)?)?;
            if Measure::of(measured.data_type()) == Measure::Nothing {
                return Ok((count, None));
            }
            let [min, max, mean, variance] = SPREAD.map(|name| values::<Float64Type>(child(column, name)?));
            Ok((count, Some([min?, max?, mean?, variance?])))
        });
        Ok(Self {
            present: all.nulls(),
            row_bytes: [min?, p25?, p50?, p75?, p99?, max?],
            columns: columns.collect::<Result<_, String>>()?,
        })
    }

    /// The statistics of a shard with `rows` rows.
    fn value(&self, index: usize, rows: u32) -> Result<Option<Statistics>, String> {
        if self.present.is_some_and(|present| present.is_null(index)) {
            return Ok(None);
        }
        let row_bytes = self.row_bytes.map(|quantile| quantile[index]);
        if !row_bytes.is_sorted() {
            return Err("its row lengths are not in order".to_owned());
        }
        let column = |(count, spread): &Numbers<'_>| {
            let count = count[index];
            if count > rows {
                return Err(format!("{count} values in {rows} rows"));
            }
            let spread = spread.filter(|_| count > 0).map(|spread| {
                let [min, max, mean, variance] = spread.map(|numbers| numbers[index]);
                let right = (min..=max).contains(&mean) && variance >= 0.0;
                let finite = [min, max, variance].iter().all(|number| number.is_finite());
                (right && finite)
                    .then_some(Spread { min, max, mean, variance })
                    .ok_or("no such numbers exist")
            });
            Ok(ColumnStatistics { count: count.into(), spread: spread.transpose()? })
        };
        let columns = self.columns.iter().map(column).collect::<Result<_, _>>()?;
        Ok(Some(Statistics { row_bytes: Quantiles::from(row_bytes), columns }))
    }
}

fn struct_of(array: &ArrayRef) -> Result<&StructArray, String> {
    array
        .as_struct_opt()
        .ok_or_else(|| format!("its statistics have {} instead of a struct", array.data_type()))
}

fn child<'a>(array: &'a StructArray, name: &str) -> Result<&'a ArrayRef, String> {
    array.column_by_name(name).ok_or_else(|| format!("its statistics have no {name:?}"))
}

fn values<T: ArrowPrimitiveType>(array: &ArrayRef) -> Result<&[T::Native], String> {
    let values = array.as_primitive_opt::<T>().filter(|array| array.null_count() == 0);
    let values = values.ok_or_else(|| format!("its statistics have {} or nulls", array.data_type()))?;
    Ok(values.values())
}
