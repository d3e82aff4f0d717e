//! JSON Lines: an object on each line, whose fields are the columns.
//!
//! Types are those of all rows together. They are found by merging what blocks of lines have, which Arrow's own inference
//! cannot, and which tells the line that does not fit.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use shardfmt::InputDigest;

use super::lines::{self, Block, Grammar, Records};
use super::{About, Faults, Feed, Format, PIECE_BYTES, PIECE_ROWS, canonical_rows, column_types, wide};
use crate::config::OnError;
use crate::error::one_line;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError, canonical};

/// A longer line is refused: its values take many times as much while they are read.
pub(super) const LONGEST_LINE: usize = if cfg!(test) { 4 << 20 } else { 64 << 20 };
/// More columns than this are taken for a mistake: keys that are data.
const MOST_COLUMNS: usize = 1 << 16;
/// The memory that reading may take for absent values: every object takes room for every column.
const MOST_SPARSE_BYTES: u64 = 1 << 30;
const CELL_BYTES: u64 = 16;

#[derive(Debug)]
pub(super) struct JsonSource {
    about: About,
    files: Vec<InputFile>,
    on_error: OnError,
    grammar: Grammar,
    columns: u64,
    /// The schema given to the reader of JSON.
    read_as: SchemaRef,
    /// Columns whose type was chosen, or which are not read: what integers are in them is no matter.
    chosen: Chosen,
}

impl JsonSource {
    /// Reads all files once to find their columns.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<JsonSource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::JsonLines.files(inputs, config);
        let files = lines::near(files)?;
        let chosen = Chosen::of(config);
        let (known, rows) = survey(&files, &chosen, config.on_error)?;
        if rows == 0 {
            return Err(IngestError::NoSamples { path, found: "there is no line with a row".to_owned() });
        }
        if let Some((column, _)) = known.0.iter().find(|(name, shape)| !chosen.has(name) && shape.is_lossy())
        {
            return Err(IngestError::Column {
                path,
                column: column.clone(),
                data_type: "integer".to_owned(),
                reason: format!(
                    "it has integers below 0 and above {}, which no type of 64 bits holds (--type COLUMN=Utf8 keeps \
                     them as they are written, Float64 rounds)",
                    i64::MAX
                ),
            });
        }
        let found = Schema::new(known.fields());
        let types = column_types(&path, &found, config)?;
        let fields = found.fields().iter().map(|field| match types.get(field.name()) {
            Some(chosen) => Arc::new(Field::new(field.name(), chosen.clone(), true)),
            None => field.clone(),
        });
        // Unrequested columns need no reading.
        let found = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let (read_as, _) = super::project(&path, &found, config.columns.as_deref())?;
        let schema = canonical::canonical_schema(&path, &read_as)?;
        let columns = read_as.flattened_fields().len().max(1) as u64;
        let at_once = (PIECE_BYTES / (CELL_BYTES * columns)).clamp(1, PIECE_ROWS) as usize;
        let grammar = Grammar { rows: at_once, ..LINES };
        let rows = (config.on_error == OnError::Fail).then_some(rows);
        let about = About { schema, rows, passed_over };
        let source =
            JsonSource { about, files, on_error: config.on_error, grammar, columns, read_as, chosen };
        source.builder().build_decoder().map_err(|error| IngestError::Config {
            setting: "types",
            reason: words(error),
            way_out: "choose types that JSON can be read as, such as Int32, Float32 or Utf8",
        })?;
        Ok(source)
    }

    fn builder(&self) -> ReaderBuilder {
        // Numbers and booleans beside texts are texts, as they are written.
        ReaderBuilder::new(self.read_as.clone()).with_coerce_primitive(true)
    }

    fn read(&self, file: &InputFile, block: &Block, faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let mut batches = Vec::new();
        lines::by_halves(
            block.records(),
            &|records| self.decode(records),
            &mut |batch| batches.push(batch),
            &mut |records, reason| {
                let name = format!("{}, line {}", file.name, records.line());
                faults.add(name, fault(&file.path, records.line(), reason))
            },
        )?;
        let batch = concat_batches(&self.read_as, &batches)
            .map_err(|error| fault(&file.path, block.records().line(), words(error)))?;
        canonical_rows(&file.path, &batch, &self.about.schema)
    }

    fn decode(&self, records: Records<'_>) -> Result<RecordBatch, String> {
        let text = records.text();
        let objects = (text.iter().filter(|&&byte| byte == b'{').count() + records.len()) as u64;
        if objects.saturating_mul(self.columns * CELL_BYTES) > MOST_SPARSE_BYTES {
            return Err(format!("has {objects} objects, too many for {} columns", self.columns));
        }
        if self.on_error == OnError::Skip {
            // Arrow's reader forgives text that is not quite JSON; whether lines are skipped must not change
            // the rule.
            records.iter().try_for_each(|(_, record)| Object::of_line(record, &self.chosen).map(|_| ()))?;
        }
        let mut decoder = self.builder().with_batch_size(records.len()).build_decoder().map_err(words)?;
        let read = decoder.decode(text).map_err(words)?;
        let batch = decoder.flush().map_err(words)?;
        let batch = batch.unwrap_or_else(|| RecordBatch::new_empty(self.read_as.clone()));
        let expected = records.iter().filter(|(_, record)| !record.trim_ascii().is_empty()).count();
        if read < text.len() || batch.num_rows() != expected {
            return Err("is not one object".to_owned());
        }
        Ok(batch)
    }
}

impl Format for JsonSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let digests = self.files.iter().map(|file| {
            lines::pieces(file, self.grammar, feed, move |block, faults| self.read(file, block, faults))
        });
        digests.collect()
    }
}

const LINES: Grammar =
    Grammar { record: lines::line, has_header: false, rows: PIECE_ROWS as usize, longest: LONGEST_LINE };

/// The columns of all files' rows, and the number of rows. Lines that are none are passed over, if they will
/// be skipped.
fn survey(files: &[InputFile], chosen: &Chosen, on_error: OnError) -> Result<(Object, u64), IngestError> {
    let (mut known, mut rows) = (Object::default(), 0);
    for file in files {
        let look = |block: Block| {
            let seen = Object::of_block(&block, chosen);
            Ok((block, seen))
        };
        lines::survey(file, LINES, on_error, look, |(block, seen)| {
            match seen {
                Ok((seen, count)) if known.fits(&seen, &mut Vec::new()).is_ok() => {
                    known.merge(seen);
                    rows += count;
                }
                // Some line is bad, or does not fit those before: which, is known when they are added one by one.
                _ => {
                    for (line, record) in block.records().iter() {
                        match known.add(record, chosen) {
                            Ok(is_row) => rows += u64::from(is_row),
                            Err(reason) if on_error == OnError::Fail => {
                                return Err(fault(&file.path, line, reason));
                            }
                            Err(_) => {}
                        }
                    }
                }
            }
            if known.size() > MOST_COLUMNS {
                let reason = format!("its objects have more than {MOST_COLUMNS} keys; are they data?");
                return Err(IngestError::Damaged { path: file.path.clone(), kind: "JSON Lines", reason });
            }
            Ok(())
        })?;
    }
    Ok((known, rows))
}

/// Columns of which the settings say what becomes of their values.
#[derive(Debug)]
struct Chosen {
    typed: BTreeSet<String>,
    /// The only ones that are read.
    asked: Option<BTreeSet<String>>,
}

impl Chosen {
    fn of(config: &IngestConfig) -> Chosen {
        let asked = config.columns.as_ref().map(|columns| columns.iter().cloned().collect());
        Chosen { typed: config.types.keys().cloned().collect(), asked }
    }

    fn has(&self, column: &str) -> bool {
        self.typed.contains(column) || self.asked.as_ref().is_some_and(|asked| !asked.contains(column))
    }
}

/// The known facts about the values of a column.
#[derive(Clone, Debug, Default, PartialEq)]
enum Shape {
    /// None was there.
    #[default]
    Nothing,
    Boolean,
    Integer {
        is_negative: bool,
        is_beyond_i64: bool,
    },
    Float,
    Text,
    List(Box<Shape>),
    Object(Object),
}

/// The fields of objects, in order of appearance.
#[derive(Clone, Debug, Default, PartialEq)]
struct Object(IndexMap<String, Shape>);

impl Shape {
    /// Whether values of both shapes can be in one column; `place` is where this is.
    fn fits<'o>(&self, other: &'o Shape, place: &mut Vec<&'o str>) -> Result<(), String> {
        match (self, other) {
            (Shape::Nothing, _) | (_, Shape::Nothing) => Ok(()),
            (Shape::List(known), Shape::List(other)) => known.fits(other, place),
            (Shape::Object(known), Shape::Object(other)) => known.fits(other, place),
            (known, other) if known.is_scalar() && other.is_scalar() => Ok(()),
            (known, other) => {
                let (known, found) = (known.name(), other.name());
                Err(format!("{:?} is {found}, and {known} in lines before", place.join(".")))
            }
        }
    }

    /// Takes in a shape that fits.
    fn merge(&mut self, other: Shape) {
        match (&mut *self, other) {
            (_, Shape::Nothing) => {}
            (known @ Shape::Nothing, other) => *known = other,
            (Shape::List(known), Shape::List(other)) => known.merge(*other),
            (Shape::Object(known), Shape::Object(other)) => known.merge(other),
            (
                Shape::Integer { is_negative, is_beyond_i64 },
                Shape::Integer { is_negative: negative, is_beyond_i64: beyond },
            ) => {
                *is_negative |= negative;
                *is_beyond_i64 |= beyond;
            }
            (known @ (Shape::Integer { .. } | Shape::Float), Shape::Integer { .. } | Shape::Float) => {
                *known = Shape::Float
            }
            (Shape::Boolean, Shape::Boolean) => {}
            (known, _) => *known = Shape::Text,
        }
    }

    /// Whether its type would round some of its integers.
    fn is_lossy(&self) -> bool {
        match self {
            Shape::Integer { is_negative, is_beyond_i64 } => *is_negative && *is_beyond_i64,
            Shape::List(item) => item.is_lossy(),
            Shape::Object(object) => object.0.values().any(Shape::is_lossy),
            _ => false,
        }
    }

    fn is_scalar(&self) -> bool {
        !matches!(self, Shape::List(_) | Shape::Object(_))
    }

    fn name(&self) -> &'static str {
        match self {
            Shape::List(_) => "a list",
            Shape::Object(_) => "an object",
            _ => "a single value",
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Shape::Boolean => DataType::Boolean,
            Shape::Integer { is_beyond_i64: false, .. } => DataType::Int64,
            Shape::Integer { is_negative: false, .. } => DataType::UInt64,
            Shape::Integer { .. } | Shape::Float => DataType::Float64,
            Shape::Nothing | Shape::Text => DataType::Utf8,
            Shape::List(item) => DataType::new_list(item.data_type(), true),
            Shape::Object(object) => DataType::Struct(object.fields()),
        }
    }

    fn size(&self) -> usize {
        match self {
            Shape::List(item) => item.size(),
            Shape::Object(object) => object.size(),
            _ => 0,
        }
    }
}

/// The shape of a value, of which nothing else is kept.
impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Shape, D::Error> {
        value.deserialize_any(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Nothing)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
        Ok(Shape::Boolean)
    }

    fn visit_i64<E>(self, number: i64) -> Result<Shape, E> {
        Ok(Shape::Integer { is_negative: number < 0, is_beyond_i64: false })
    }

    fn visit_u64<E>(self, number: u64) -> Result<Shape, E> {
        Ok(Shape::Integer { is_negative: false, is_beyond_i64: i64::try_from(number).is_err() })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
        Ok(Shape::Float)
    }

    fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
        Ok(Shape::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
        let mut known = Shape::Nothing;
        while let Some(shape) = items.next_element()? {
            let misfit = |_| A::Error::custom("the items of a list differ too much for one type");
            known.fits(&shape, &mut Vec::new()).map_err(misfit)?;
            known.merge(shape);
        }
        Ok(Shape::List(Box::new(known)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Shape, A::Error> {
        let mut object = Object::default();
        while let Some((name, shape)) = fields.next_entry::<String, Shape>()? {
            if object.0.contains_key(&name) {
                return Err(A::Error::custom(format!("key {name:?} is there twice in one object")));
            }
            object.0.insert(name, shape);
        }
        Ok(Shape::Object(object))
    }
}

impl Object {
    /// The columns of a block's lines, and the number of rows; unless one of them is none, or does not fit.
    fn of_block(block: &Block, chosen: &Chosen) -> Result<(Object, u64), String> {
        let (mut known, mut rows) = (Object::default(), 0);
        for (_, record) in block.records().iter() {
            rows += u64::from(known.add(record, chosen)?);
        }
        Ok((known, rows))
    }

    /// Takes in the row of a line; nothing of it, when it is bad or does not fit. Returns whether there is one.
    fn add(&mut self, record: &[u8], chosen: &Chosen) -> Result<bool, String> {
        let Some(row) = Self::of_line(record, chosen)? else { return Ok(false) };
        self.fits(&row, &mut Vec::new())?;
        self.merge(row);
        Ok(true)
    }

    /// The row of a line, unless it is blank.
    fn of_line(record: &[u8], chosen: &Chosen) -> Result<Option<Object>, String> {
        let record = record.trim_ascii();
        if record.is_empty() {
            return Ok(None);
        }
        let shape: Shape = serde_json::from_slice(record)
            .map_err(|error| one_line(error).replace(" at line 1 column ", " at byte "))?;
        if let Some((column, digits)) = wide::integers(record).find(|(column, _)| !chosen.has(column)) {
            return Err(format!(
                "{column:?} has the integer {digits}, which 64 bits do not hold; choose a type for the column (--type COLUMN=Utf8 keeps \
                 it as it is written, Float64 rounds)"
            ));
        }
        match shape {
            Shape::Object(row) => Ok(Some(row)),
            _ => Err("is no object; each line must be one, {\"column\": value, ...}".to_owned()),
        }
    }

    fn fits<'o>(&self, other: &'o Object, place: &mut Vec<&'o str>) -> Result<(), String> {
        for (name, shape) in &other.0 {
            if let Some(known) = self.0.get(name) {
                place.push(name);
                known.fits(shape, place)?;
                place.pop();
            }
        }
        Ok(())
    }

    fn merge(&mut self, other: Object) {
        for (name, shape) in other.0 {
            self.0.entry(name).or_default().merge(shape);
        }
    }

    fn fields(&self) -> Fields {
        self.0.iter().map(|(name, shape)| Field::new(name, shape.data_type(), true)).collect()
    }

    /// How many fields there are, at any depth.
    fn size(&self) -> usize {
        self.0.values().map(|shape| 1 + shape.size()).sum()
    }
}

fn fault(path: &Path, line: u64, reason: String) -> IngestError {
    IngestError::Line { path: path.to_owned(), line, reason }
}

fn words(error: ArrowError) -> String {
    match error {
        ArrowError::JsonError(words) => words,
        other => one_line(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// So the types found do not depend on where blocks end.
        #[test]
        fn shapes_merged_in_parts_are_those_of_the_whole(values in prop::collection::vec(value(), 1..6), at: prop::sample::Index) {
            let all = |values: &[Value]| {
                let mut known = Shape::Nothing;
                for value in values {
                    let shape: Shape = serde_json::from_value(value.clone()).ok()?;
                    known.fits(&shape, &mut Vec::new()).ok()?;
                    known.merge(shape);
                }
                Some(known)
            };
            let (left, right) = values.split_at(at.index(values.len()));
            if let (Some(whole), Some(mut left), Some(right)) = (all(&values), all(left), all(right)) {
                prop_assert!(left.fits(&right, &mut Vec::new()).is_ok());
                left.merge(right);
                prop_assert_eq!(left, whole);
            }
        }
    }
}
