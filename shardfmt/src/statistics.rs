//! What the samples of a shard, or of a version, are like: how long rows are, and of each column how many values there
//! are, how small, how large, and how they scatter.
//!
//! They are for people and programs that compare versions, look for drift or choose shards; no order of samples depends
//! on them. The same rows give the same numbers to the last bit, on every machine: one thread adds them up in a fixed
//! order. Knows nothing of files and manifests.

use arrow::array::{Array, ArrayData, AsArray, RecordBatch};
use arrow::datatypes::{ArrowNativeType, ArrowPrimitiveType, DataType, Float16Type, Schema, i256};
use serde::{Deserialize, Serialize};

/// Columns beyond these have no statistics, lest wide tables have more statistics than samples.
pub const MEASURED_COLUMNS: usize = 256;

/// The statistics of some samples.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// # let mut writer = shardfmt::ShardWriter::new(rows.schema())?;
/// # writer.push(&rows)?;
/// # let finished = writer.finish()?;
/// let statistics = finished.entry.statistics.ok_or("the writer measured no column")?;
/// let label = &statistics.columns[0];
/// assert_eq!(label.count, 5);
/// assert_eq!(label.spread.map(|spread| (spread.min, spread.max)), Some((1.0, 5.0)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// The lengths of the canonical rows.
    pub row_bytes: Quantiles,
    /// The columns in order, at most [`MEASURED_COLUMNS`].
    pub columns: Vec<ColumnStatistics>,
}

/// How some lengths are distributed: that of a part p of all is the one at place ⌊p (n - 1)⌋ of n in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Quantiles {
    pub min: u32,
    pub p25: u32,
    pub p50: u32,
    pub p75: u32,
    pub p99: u32,
    pub max: u32,
}

/// The statistics of the values of a column.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ColumnStatistics {
    /// How many values there are: not null and, of floats, finite.
    pub count: u64,
    /// Where they lie, if they are [measured](Measure) and there are any.
    #[serde(flatten)]
    pub spread: Option<Spread>,
}

/// Where some numbers lie. All are finite; what would be larger than any is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Spread {
    #[serde(with = "exact")]
    pub min: f64,
    #[serde(with = "exact")]
    pub max: f64,
    #[serde(with = "exact")]
    pub mean: f64,
    /// The mean square of the distance from the mean.
    #[serde(with = "exact")]
    pub variance: f64,
}

/// Numbers as texts such as `1.5e3`: to the last bit, and not as the habits of JSON writers change.
mod exact {
    use serde::de::{Deserializer, Error};
    use serde::ser::Serializer;

    use crate::digest::from_text;

    pub(super) fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:e}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let number: f64 = from_text(deserializer)?;
        if number.is_finite() { Ok(number) } else { Err(D::Error::custom("a number that is not finite")) }
    }
}

/// The measured quantity of the values of a type.
///
/// ```
/// use shardfmt::arrow::datatypes::DataType;
/// use shardfmt::statistics::Measure;
///
/// assert_eq!(Measure::of(&DataType::Float32), Measure::Values);
/// assert_eq!(Measure::of(&DataType::Utf8), Measure::Lengths);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The values themselves: numbers, truth values (0 and 1), and points in time as the integers that they are stored as.
    Values,
    /// Their lengths: bytes of texts and binary values, items of lists and maps.
    Lengths,
    /// Nothing; they are only counted.
    Nothing,
}

impl Measure {
    /// The measured quantity of values of `data_type`.
    pub fn of(data_type: &DataType) -> Self {
        use DataType::*;
        match data_type {
            Boolean | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_) => Self::Values,
            number if number.is_numeric() => Self::Values,
            Utf8 | LargeUtf8 | Binary | LargeBinary | List(_) | LargeList(_) | Map(..) => Self::Lengths,
            _ => Self::Nothing,
        }
    }
}

impl Measure {
    /// The noun of what is measured: `values` or `lengths`.
    ///
    /// ```
    /// use shardfmt::arrow::datatypes::DataType;
    /// use shardfmt::statistics::Measure;
    ///
    /// assert_eq!(Measure::of(&DataType::Utf8).noun(), "lengths");
    /// ```
    pub fn noun(self) -> &'static str {
        match self {
            Self::Lengths => "lengths",
            Self::Values | Self::Nothing => "values",
        }
    }
}

/// Which part of all lies below each of the [`Quantiles`], in hundredths.
const HUNDREDTHS: [u64; 6] = [0, 25, 50, 75, 99, 100];

impl Quantiles {
    /// Of `lengths`, whose order is lost. All zero if there are none.
    fn of(lengths: &mut [u32]) -> Self {
        let Some(last) = lengths.len().checked_sub(1) else { return Self::default() };
        let mut sorted_to = 0;
        Self::from(HUNDREDTHS.map(|hundredths| {
            let place = (last as u64 * hundredths / 100) as usize;
            let (_, found, _) = lengths[sorted_to..].select_nth_unstable(place - sorted_to);
            let found = *found;
            sorted_to = place;
            found
        }))
    }

    /// Of many lengths, from the quantiles of parts of them and how many lengths each part has: an estimate, as if the
    /// lengths lay evenly between the quantiles of their part. The smallest and largest are exact.
    fn merged<'a>(parts: impl Iterator<Item = (u64, &'a Self)> + Clone) -> Self {
        let arrays = || parts.clone().map(|(rows, part)| (rows as f64, part.to_array()));
        let rows: f64 = arrays().map(|(rows, _)| rows).sum();
        let at = |quantile: usize| {
            let hundredths = HUNDREDTHS[quantile] as f64;
            let wanted = rows * hundredths;
            // The shortest length that this number of rows does not exceed: not shorter than in all parts,
            // nor longer.
            let each = || arrays().map(|(_, part)| part[quantile]);
            let (mut low, mut high) = (each().min().unwrap_or(0), each().max().unwrap_or(0));
            while low < high {
                let middle = low + (high - low) / 2;
                let below: f64 = arrays().map(|(rows, part)| rows * hundredths_up_to(&part, middle)).sum();
                if below >= wanted { high = middle } else { low = middle + 1 }
            }
            low
        };
        Self::from([0, 1, 2, 3, 4, 5].map(at))
    }

    /// The quantiles, the smallest first.
    pub fn to_array(self) -> [u32; 6] {
        [self.min, self.p25, self.p50, self.p75, self.p99, self.max]
    }
}

impl From<[u32; 6]> for Quantiles {
    fn from([min, p25, p50, p75, p99, max]: [u32; 6]) -> Self {
        Self { min, p25, p50, p75, p99, max }
    }
}

/// How many hundredths of the lengths with these quantiles are at most `length`, if they lie evenly between them.
fn hundredths_up_to(quantiles: &[u32; 6], length: u32) -> f64 {
    // The last quantile that is not longer, and the next.
    let Some(at) = quantiles.iter().rposition(|quantile| *quantile <= length) else { return 0.0 };
    let Some(next) = quantiles.get(at + 1) else { return 100.0 };
    let (from, to) = (HUNDREDTHS[at] as f64, HUNDREDTHS[at + 1] as f64);
    from + (to - from) * f64::from(length - quantiles[at]) / f64::from(next - quantiles[at])
}

impl Spread {
    /// Of finite numbers, if there are any. Four sums are kept side by side, which is four times as fast as one.
    fn of(values: &[f64]) -> Option<Self> {
        const LANES: usize = 4;
        let first = *values.first()?;
        let (mut min, mut max, mut sums) = ([first; LANES], [first; LANES], [0.0; LANES]);
        let (fours, rest) = values.as_chunks::<LANES>();
        for four in fours {
            for lane in 0..LANES {
                // Not `f64::min`, which may take either zero.
                min[lane] = if four[lane] < min[lane] { four[lane] } else { min[lane] };
                max[lane] = if four[lane] > max[lane] { four[lane] } else { max[lane] };
                sums[lane] += four[lane];
            }
        }
        for (lane, value) in rest.iter().enumerate() {
            min[lane] = if *value < min[lane] { *value } else { min[lane] };
            max[lane] = if *value > max[lane] { *value } else { max[lane] };
            sums[lane] += value;
        }
        let count = values.len() as f64;
        let mean = finite(sums.iter().sum::<f64>()) / count;
        let mut squares = [0.0; LANES];
        for four in fours {
            for lane in 0..LANES {
                squares[lane] += (four[lane] - mean) * (four[lane] - mean);
            }
        }
        for (lane, value) in rest.iter().enumerate() {
            squares[lane] += (value - mean) * (value - mean);
        }
        let min = min.into_iter().reduce(|a, b| if b < a { b } else { a })?;
        let max = max.into_iter().reduce(|a, b| if b > a { b } else { a })?;
        // Rounding must not put the mean outside.
        Some(Self {
            min,
            max,
            mean: mean.clamp(min, max),
            variance: finite(squares.iter().sum::<f64>()) / count,
        })
    }

    /// Of `count` numbers and of `more` others together (Chan, Golub and LeVeque 1979).
    fn merge(self, count: u64, other: Self, more: u64) -> Self {
        let (left, right) = (count as f64, more as f64);
        let all = left + right;
        let distance = finite(other.mean - self.mean);
        let (min, max) = (
            if other.min < self.min { other.min } else { self.min },
            if other.max > self.max { other.max } else { self.max },
        );
        let between = finite(finite(distance * distance) * (left / all) * (right / all));
        let within = self.variance * (left / all) + other.variance * (right / all);
        Self {
            min,
            max,
            mean: finite(self.mean + distance * (right / all)).clamp(min, max),
            variance: finite(within + between),
        }
    }
}

/// Sums of finite numbers may become infinite; the largest number is close enough. Or infinite in both directions, which
/// adds up to nothing.
fn finite(number: f64) -> f64 {
    if number.is_nan() { 0.0 } else { number.clamp(f64::MIN, f64::MAX) }
}

impl ColumnStatistics {
    /// Adds the statistics of other values of the same column.
    pub fn merge(&mut self, other: &Self) {
        self.spread = match (self.spread, other.spread) {
            (Some(these), Some(those)) => Some(these.merge(self.count, those, other.count)),
            (these, those) => these.or(those),
        };
        self.count = self.count.saturating_add(other.count);
    }
}

impl Statistics {
    /// Of all samples, from those of parts of them, each with its number of samples. Row lengths between the shortest
    /// and the longest are estimates then. `None` when there is no part, or parts have different columns.
    pub fn merged<'a>(parts: impl Iterator<Item = (u64, &'a Self)> + Clone) -> Option<Self> {
        let mut columns = parts.clone().next()?.1.columns.clone();
        for (_, part) in parts.clone().skip(1) {
            if part.columns.len() != columns.len() {
                return None;
            }
            columns.iter_mut().zip(&part.columns).for_each(|(column, more)| column.merge(more));
        }
        let row_bytes = Quantiles::merged(parts.map(|(rows, part)| (rows, &part.row_bytes)));
        Some(Self { row_bytes, columns })
    }
}

/// Gathers [`Statistics`] while samples pass.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use shardfmt::arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// # use std::sync::Arc;
/// # let labels: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1, 5]));
/// # let rows = RecordBatch::try_from_iter([("label", labels)])?;
/// use shardfmt::statistics::Gatherer;
///
/// let mut gatherer = Gatherer::new(&rows.schema());
/// gatherer.add(&rows, [8; 5].into_iter());
/// let statistics = gatherer.finish();
/// assert_eq!(statistics.row_bytes.p50, 8);
/// assert_eq!(statistics.columns[0].count, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gatherer {
    lengths: Vec<u32>,
    columns: Vec<ColumnStatistics>,
    /// The numbers of one column of one record batch: kept for its space.
    numbers: Vec<f64>,
}

impl Gatherer {
    /// Of samples with these columns; none so far.
    pub fn new(schema: &Schema) -> Self {
        let columns = schema.fields().len().min(MEASURED_COLUMNS);
        Self { lengths: Vec::new(), columns: vec![ColumnStatistics::default(); columns], numbers: Vec::new() }
    }

    /// Adds the samples of a record batch, and the lengths of their canonical rows. How samples are cut into record batches
    /// decides the last bits.
    pub fn add(&mut self, batch: &RecordBatch, lengths: impl Iterator<Item = usize>) {
        // A row has at most 1 GiB.
        self.lengths.extend(lengths.map(|length| length as u32));
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            self.numbers.clear();
            let measured = measure(array, &mut self.numbers);
            let count = if measured { self.numbers.len() } else { array.len() - array.logical_null_count() };
            column.merge(&ColumnStatistics { count: count as u64, spread: Spread::of(&self.numbers) });
        }
    }

    /// The statistics of all samples together.
    pub fn finish(mut self) -> Statistics {
        Statistics { row_bytes: Quantiles::of(&mut self.lengths), columns: self.columns }
    }
}

/// Appends the measure of each value that is not null, and finite. False if nothing is.
fn measure(array: &dyn Array, numbers: &mut Vec<f64>) -> bool {
    use DataType::*;
    let data = array.to_data();
    match array.data_type() {
        Boolean => numbers.extend(array.as_boolean().iter().flatten().map(f64::from)),
        Int8 => values(&data, numbers, |value: i8| value.into()),
        Int16 => values(&data, numbers, |value: i16| value.into()),
        Int32 | Date32 | Time32(_) => values(&data, numbers, |value: i32| value.into()),
        Int64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) => {
            values(&data, numbers, |value: i64| value as f64)
        }
        UInt8 => values(&data, numbers, |value: u8| value.into()),
        UInt16 => values(&data, numbers, |value: u16| value.into()),
        UInt32 => values(&data, numbers, |value: u32| value.into()),
        UInt64 => values(&data, numbers, |value: u64| value as f64),
        Float16 => {
            values(&data, numbers, |value: <Float16Type as ArrowPrimitiveType>::Native| value.to_f64())
        }
        Float32 => values(&data, numbers, |value: f32| value.into()),
        Float64 => values(&data, numbers, |value: f64| value),
        Decimal32(_, scale) => values(&data, numbers, scaled(*scale, |value: i32| value.into())),
        Decimal64(_, scale) => values(&data, numbers, scaled(*scale, |value: i64| value as f64)),
        Decimal128(_, scale) => values(&data, numbers, scaled(*scale, |value: i128| value as f64)),
        Decimal256(_, scale) => values(&data, numbers, scaled(*scale, f64_of_i256)),
        Utf8 | Binary | List(_) | Map(..) => lengths::<i32>(&data, numbers),
        LargeUtf8 | LargeBinary | LargeList(_) => lengths::<i64>(&data, numbers),
        _ => return false,
    }
    if array.data_type().is_floating() {
        numbers.retain(|number| number.is_finite());
    }
    true
}

fn values<T: ArrowNativeType>(data: &ArrayData, numbers: &mut Vec<f64>, number: impl Fn(T) -> f64) {
    let values = &data.buffer::<T>(0)[..data.len()];
    match data.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => numbers.extend(values.iter().map(|value| number(*value))),
        Some(nulls) => numbers.extend(nulls.valid_indices().map(|at| number(values[at]))),
    }
}

fn lengths<O: ArrowNativeType>(data: &ArrayData, numbers: &mut Vec<f64>) {
    if data.is_empty() {
        return;
    }
    let offsets = &data.buffer::<O>(0)[..=data.len()];
    let length = |at: usize| (offsets[at + 1].as_usize() - offsets[at].as_usize()) as f64;
    match data.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => numbers.extend((0..data.len()).map(length)),
        Some(nulls) => numbers.extend(nulls.valid_indices().map(length)),
    }
}

fn scaled<T>(scale: i8, number: impl Fn(T) -> f64) -> impl Fn(T) -> f64 {
    // Parsed, and so rounded the same everywhere, which powers are not.
    let one: f64 = format!("1e{scale}").parse().expect("a power of ten within the range of f64");
    move |value| number(value) / one
}

fn f64_of_i256(value: i256) -> f64 {
    let (low, high) = value.wrapping_abs().to_parts();
    // The largest u128 becomes 2^128.
    let magnitude = high as u128 as f64 * u128::MAX as f64 + low as f64;
    if value.is_negative() { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests;
