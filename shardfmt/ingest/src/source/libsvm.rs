//! libsvm and SVMlight files: on each line a label, perhaps a query, and the features that are not zero.
//!
//! `1 qid:3 2:0.5 7:1 # comment`: [`Row::parse`] knows the grammar, the rest of this file what the lines have in common.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StructArray, UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use shardfmt::InputDigest;

use super::lines::{self, Block, Grammar};
use super::{About, Faults, Feed, Format, PIECE_ROWS};
use crate::config::OnError;
use crate::input::InputFile;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

const LINES: Grammar = Grammar {
    record: lines::line,
    has_header: false,
    rows: PIECE_ROWS as usize,
    longest: lines::LONGEST_RECORD,
};

#[derive(Debug)]
pub(super) struct LibsvmSource {
    about: About,
    files: Vec<InputFile>,
    columns: Columns,
}

/// The common facts of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Columns {
    rows: u64,
    unlabelled: u64,
    /// Some line has several labels; one without any has none of them, then.
    has_lists: bool,
    has_fractions: bool,
    queries: u64,
}

impl LibsvmSource {
    /// Reads all files once to find what labels are and whether there are queries.
    pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<LibsvmSource, IngestError> {
        let path = inputs.path.clone();
        let (files, passed_over) = Kind::Libsvm.files(inputs, config);
        let files = lines::near(files)?;
        let mut columns = Columns::default();
        for file in &files {
            let look = |block: Block| {
                let (mut seen, mut row) = (Columns::default(), Row::default());
                for (line, text) in block.records().iter() {
                    match row.parse(text) {
                        Ok(true) => seen.add(&row),
                        Err(reason) if config.on_error == OnError::Fail => {
                            return Err(fault(&file.path, line, reason));
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                Ok(seen)
            };
            lines::survey(file, LINES, config.on_error, look, |seen| {
                columns.merge(seen);
                Ok(())
            })?;
        }
        if columns.rows == 0 {
            return Err(IngestError::NoSamples { path, found: "there is no line with a row".to_owned() });
        }
        let rows = (config.on_error == OnError::Fail).then_some(columns.rows);
        Ok(LibsvmSource { about: About { schema: columns.schema(), rows, passed_over }, files, columns })
    }

    fn read(&self, file: &InputFile, block: &Block, faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let (mut rows, mut row) = (Rows::default(), Row::default());
        for (line, text) in block.records().iter() {
            match row.parse(text) {
                Ok(true) if self.columns.hold(&row) => rows.add(&row),
                Ok(false) => {}
                other => {
                    let unlike = if row.labels.is_empty() { "has no label" } else { "has other columns" };
                    let reason = other.err().unwrap_or_else(|| format!("{unlike}, unlike other lines"));
                    faults.add(format!("{}, line {line}", file.name), fault(&file.path, line, reason))?;
                }
            }
        }
        Ok(rows.finish(&self.columns, &self.about.schema))
    }
}

impl Format for LibsvmSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        let digests = self.files.iter().map(|file| {
            lines::pieces(file, LINES, feed, move |block, faults| self.read(file, block, faults))
        });
        digests.collect()
    }
}

impl Columns {
    fn add(&mut self, row: &Row) {
        self.merge(Columns {
            rows: 1,
            unlabelled: u64::from(row.labels.is_empty()),
            has_lists: row.labels.len() > 1,
            has_fractions: row.labels.iter().any(|label| matches!(label, Label::Fraction(_))),
            queries: u64::from(row.query.is_some()),
        });
    }

    fn merge(&mut self, other: Columns) {
        self.rows += other.rows;
        self.unlabelled += other.unlabelled;
        self.has_lists |= other.has_lists;
        self.has_fractions |= other.has_fractions;
        self.queries += other.queries;
    }

    fn has_labels(&self) -> bool {
        self.unlabelled < self.rows
    }

    /// Whether a row has what these columns hold: a line without a label among others with one has not, nor has one of
    /// a file that changed since.
    fn hold(&self, row: &Row) -> bool {
        let labels = self.has_lists || row.labels.len() == usize::from(self.has_labels());
        let types = self.has_fractions || row.labels.iter().all(|label| matches!(label, Label::Integer(_)));
        let query = match row.query {
            Some(_) => self.queries > 0,
            None => self.queries < self.rows,
        };
        labels && types && query
    }

    fn schema(&self) -> SchemaRef {
        let mut fields = Vec::new();
        if self.has_labels() {
            fields.push(Field::new("label", self.label_type(), false));
        }
        if self.queries > 0 {
            fields.push(Field::new("qid", DataType::Int64, self.queries < self.rows));
        }
        let feature = DataType::Struct(feature_fields());
        fields.push(Field::new("features", DataType::new_list(feature, false), false));
        Arc::new(Schema::new(fields))
    }

    fn label_type(&self) -> DataType {
        let one = if self.has_fractions { DataType::Float64 } else { DataType::Int64 };
        if self.has_lists { DataType::new_list(one, false) } else { one }
    }
}

fn feature_fields() -> Fields {
    vec![Field::new("index", DataType::UInt32, false), Field::new("value", DataType::Float32, false)].into()
}

/// Rows on their way to a record batch.
#[derive(Default)]
struct Rows {
    labels: Vec<Label>,
    label_counts: Vec<usize>,
    queries: Vec<Option<i64>>,
    indices: Vec<u32>,
    values: Vec<f32>,
    feature_counts: Vec<usize>,
}

impl Rows {
    fn add(&mut self, row: &Row) {
        self.labels.extend(&row.labels);
        self.label_counts.push(row.labels.len());
        self.queries.push(row.query);
        self.indices.extend(row.features.iter().map(|feature| feature.0));
        self.values.extend(row.features.iter().map(|feature| feature.1));
        self.feature_counts.push(row.features.len());
    }

    fn finish(self, columns: &Columns, schema: &SchemaRef) -> RecordBatch {
        let list = |items: ArrayRef, counts: Vec<usize>| {
            let item = Arc::new(Field::new_list_field(items.data_type().clone(), false));
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(counts), items, None))
        };
        let mut arrays: Vec<ArrayRef> = Vec::new();
        if columns.has_labels() {
            let labels: ArrayRef = if columns.has_fractions {
                Arc::new(Float64Array::from_iter_values(self.labels.iter().map(|label| label.as_f64())))
            } else {
                Arc::new(self.labels.iter().map(|label| label.as_i64()).collect::<Int64Array>())
            };
            arrays.push(if columns.has_lists { list(labels, self.label_counts) } else { labels });
        }
        if columns.queries > 0 {
            arrays.push(Arc::new(Int64Array::from(self.queries)));
        }
        let parts: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(self.indices)), Arc::new(Float32Array::from(self.values))];
        let features = Arc::new(StructArray::new(feature_fields(), parts, None));
        arrays.push(list(features, self.feature_counts));
        RecordBatch::try_new(schema.clone(), arrays).expect("columns as the schema says")
    }
}

/// The values of a line.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    labels: Vec<Label>,
    query: Option<i64>,
    /// Index and value, by ascending index.
    features: Vec<(u32, f32)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Label {
    Integer(i64),
    Fraction(f64),
}

impl Label {
    fn as_f64(self) -> f64 {
        match self {
            Label::Integer(label) => label as f64,
            Label::Fraction(label) => label,
        }
    }

    fn as_i64(self) -> Option<i64> {
        match self {
            Label::Integer(label) => Some(label),
            Label::Fraction(_) => None,
        }
    }
}

impl Row {
    /// Takes the values of a line in place of the earlier ones; `false` if it has none. Never panics,
    /// whatever the bytes.
    fn parse(&mut self, line: &[u8]) -> Result<bool, String> {
        self.labels.clear();
        self.query = None;
        self.features.clear();
        let content = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let content = std::str::from_utf8(content).map_err(|_| "is not UTF-8".to_owned())?;
        let mut words = content.split_ascii_whitespace().peekable();
        if words.peek().is_none() {
            return Ok(false);
        }
        if let Some(labels) = words.next_if(|word| !word.contains(':')) {
            for label in labels.split(',') {
                self.labels.push(parse_label(label)?);
            }
        }
        if let Some(query) = words.peek().and_then(|word| word.strip_prefix("qid:")) {
            self.query = Some(query.parse().map_err(|_| format!("{query:?} is not the number of a query"))?);
            words.next();
        }
        for word in words {
            let (index, value) = parse_feature(word)?;
            if let Some(&(before, _)) = self.features.last()
                && before >= index
            {
                return Err(format!("feature {index} follows {before}; indices must ascend"));
            }
            self.features.push((index, value));
        }
        Ok(true)
    }
}

fn parse_label(text: &str) -> Result<Label, String> {
    if let Ok(label) = text.parse() {
        return Ok(Label::Integer(label));
    }
    text.parse().map(Label::Fraction).map_err(|_| format!("{text:?} is no label, which is a number"))
}

fn parse_feature(word: &str) -> Result<(u32, f32), String> {
    let refused = || format!("{word:?} is no feature, such as 7:0.5");
    let (index, value) = word.split_once(':').ok_or_else(refused)?;
    let index = index.parse().map_err(|_| refused())?;
    let value: f64 = value.parse().map_err(|_| refused())?;
    let nearest = value as f32;
    if nearest.is_infinite() && value.is_finite() {
        return Err(format!("{word:?} is beyond the range of float32"));
    }
    Ok((index, nearest))
}

fn fault(path: &Path, line: u64, reason: String) -> IngestError {
    IngestError::Line { path: path.to_owned(), line, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            labels in prop::collection::vec(prop_oneof![any::<i64>().prop_map(Label::Integer), (-1e9..1e9).prop_map(|x: f64| Label::Fraction(x.fract()))], 0..3),
            query: Option<i64>,
            features in prop::collection::btree_map(any::<u32>(), -1e30f32..1e30, 0..9),
        ) {
            let shown = labels.iter().map(|label| match label {
                Label::Integer(label) => label.to_string(),
                Label::Fraction(label) => format!("{label:?}"),
            });
            let mut line = shown.collect::<Vec<_>>().join(",");
            line += &query.map(|query| format!(" qid:{query}")).unwrap_or_default();
            features.iter().for_each(|(index, value)| line += &format!(" {index}:{value}"));
            let mut row = Row::default();
            prop_assert_eq!(row.parse(format!("{line}\t# {line} \n").as_bytes()), Ok(!line.is_empty()));
            prop_assert_eq!(row, Row { labels, query, features: features.into_iter().collect() });
        }

        #[test]
        fn no_line_is_a_panic(line in prop::collection::vec(prop::sample::select(b"0123.-+e:,# qid\t\xffn".to_vec()), 0..40)) {
            let _ = Row::default().parse(&line);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refusal = |line: &str| Row::default().parse(line.as_bytes()).unwrap_err();
        assert!(refusal("1 3:1 2:1").contains("must ascend"));
        assert!(refusal("1 3:1 3:1").contains("must ascend"));
        assert!(refusal("1 3:1e39").contains("float32"));
        assert!(refusal("cat 3:1").contains("\"cat\" is no label"));
        assert!(refusal("1 3").contains("\"3\" is no feature"));
        assert!(refusal("1 -3:1").contains("no feature"));
        assert!(refusal("1 qid:x").contains("query"));
        assert!(refusal("1, 1:1").contains("no label"));
    }
}
