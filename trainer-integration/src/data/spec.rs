//! Which columns are the input and which the label, found in the schema.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, UInt8Type};
use serde_json::Value;
use shardd_client::loader::BFLOAT16;
use shardfmt::Digest;

use super::convert::{converted, numbers, present};
use super::error::InputError;
use super::packed::Attention;
use super::stored::{StoredSamples, Values};
use super::{Samples, decode, packed, sparse};
use crate::models::InputShape;

/// The facts that the schema does not have.
#[derive(Clone, Debug)]
pub struct InputOptions {
    /// The column of classes. Default `label`.
    pub label: String,
    /// How many classes there are; default: what the label's metadata `shardd.classes` lists.
    pub classes: Option<usize>,
    /// The classes of a label column of text, in the order of their numbers; default: the list in the label's metadata
    /// `shardd.classes`.
    pub class_names: Option<Vec<String>>,
    /// The value of a tensor that becomes 1.0; default: the largest of its integer type, 1 for floating point.
    pub input_max: Option<f32>,
    /// Width and height that encoded images are brought to. Default 32.
    pub image_size: usize,
    /// How many features a sparse column has, one more than its largest index; default: its metadata `shardd.features`.
    pub features: Option<usize>,
    /// To what a token of a sequence attends; default: [`Attention::BlockCausal`] if a column `length` says that sequences are
    /// of whole documents, else [`Attention::Causal`].
    pub attention: Option<Attention>,
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions {
            label: "label".to_owned(),
            classes: None,
            class_names: None,
            input_max: None,
            image_size: 32,
            features: None,
            attention: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Image {
        column: String,
        size: usize,
    },
    Tensor {
        column: String,
        width: usize,
        max: f32,
    },
    Sparse {
        column: String,
    },
    Columns(Vec<String>),
    Tokens {
        column: String,
        width: usize,
    },
    /// Tokens of documents, in sequences.
    Packed {
        column: String,
        width: usize,
        attention: Attention,
    },
}

/// How to make numbers of rows.
#[derive(Clone, PartialEq)]
pub struct InputSpec {
    source: Source,
    label: String,
    shape: InputShape,
    classes: usize,
    /// The number of each class by its name, where labels are text.
    class_numbers: Option<Arc<BTreeMap<String, u32>>>,
    /// Whether a label is the share of each class.
    has_shares: bool,
}

/// Part of the settings that a checkpoint and a record keep: it stays as it is for all that was trained before.
impl fmt::Debug for InputSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut spec = f.debug_struct("InputSpec");
        spec.field("source", &self.source).field("label", &self.label).field("shape", &self.shape);
        spec.field("classes", &self.classes);
        if let Some(numbers) = &self.class_numbers {
            let names = numbers.keys().map(|name| format!("{name:?}\n")).collect::<String>();
            spec.field("class_names", &Digest::of(names.as_bytes()).to_string());
        }
        spec.finish()
    }
}

impl InputSpec {
    /// Finds the label, and as input the first of: a column of encoded images, a fixed-shape tensor, a sparse column
    /// (lists of index and value), all numeric columns. Without the label,
    /// a column `tokens` of sequences of one length is a text to continue; with the columns `documents` and `length`, its
    /// documents are ([`InputOptions::attention`]). With a column `loss_mask`, only the tokens that it marks have a loss.
    ///
    /// # Errors
    /// Names the missing part and the option that supplies it.
    pub fn from_schema(schema: &Schema, options: &InputOptions) -> Result<InputSpec, InputError> {
        let columns =
            || schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        let label = options.label.clone();
        if schema.field_with_name(&label).is_err()
            && let Some(spec) = sequences(schema, options)?
        {
            return Ok(spec);
        }
        let Ok(label_field) = schema.field_with_name(&label) else {
            return Err(InputError::NoLabel { label, columns: columns() });
        };
        let listed = label_field.metadata().get("shardd.classes").and_then(|json| class_names(json));
        let mut has_shares = false;
        let (classes, class_numbers) = match label_field.data_type() {
            DataType::FixedSizeList(share, width) if *share.data_type() == DataType::Float32 => {
                has_shares = true;
                let listed = *width as usize;
                match options.classes {
                    Some(given) if given != listed => {
                        return Err(InputError::ClassCount { label, listed, given });
                    }
                    _ => (listed, None),
                }
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                let names = options.class_names.clone().or(listed).filter(|names| !names.is_empty());
                let names = names.ok_or(InputError::ClassNames { label: label.clone() })?;
                let mut numbers = BTreeMap::new();
                for (class, number) in names.into_iter().zip(0u32..) {
                    if numbers.insert(class.clone(), number).is_some() {
                        return Err(InputError::ClassTwice { label, class });
                    }
                }
                let listed = numbers.len();
                match options.classes {
                    Some(given) if given != listed => {
                        return Err(InputError::ClassCount { label, listed, given });
                    }
                    _ => (listed, Some(Arc::new(numbers))),
                }
            }
            number if number.is_integer() => {
                let classes = options.classes.or(listed.map(|names| names.len()));
                match classes.filter(|&classes| classes > 0) {
                    Some(classes) => (classes, None),
                    None => return Err(InputError::Classes { label }),
                }
            }
            found => return Err(InputError::LabelType { label, found: found.clone() }),
        };
        let inputs: Vec<&Field> =
            schema.fields().iter().map(|field| &**field).filter(|field| *field.name() != label).collect();
        let (source, shape) =
            find_source(&inputs, options)?.ok_or_else(|| InputError::NoInput { columns: columns() })?;
        if options.attention.is_some() {
            return Err(InputError::NoSequences { columns: columns() });
        }
        if options.features.is_some() && !matches!(source, Source::Sparse { .. }) {
            return Err(InputError::NotSparse { columns: columns() });
        }
        Ok(InputSpec { source, label, shape, classes, class_numbers, has_shares })
    }

    /// The shape of a sample.
    pub fn shape(&self) -> InputShape {
        self.shape
    }

    /// The same for a model that takes sequences of `shape`: with or without documents, of which `schema` may have columns.
    pub(crate) fn for_model_of(mut self, shape: InputShape, schema: &Schema) -> InputSpec {
        let (InputShape::Tokens(length) | InputShape::PackedTokens(length)) = self.shape else { return self };
        if shape.sequence_length() != Some(length) || self.shape == shape {
            return self;
        }
        if let Source::Tokens { column, width } | Source::Packed { column, width, .. } = self.source {
            let attention = match shape {
                InputShape::PackedTokens(_) if packed::has_documents(schema) => Attention::BlockCausal,
                _ => Attention::Causal,
            };
            self.source = Source::Packed { column, width, attention };
        }
        InputSpec { shape, ..self }
    }

    /// Whether labels are text.
    pub(crate) fn has_text_labels(&self) -> bool {
        self.class_numbers.is_some()
    }

    /// The column of labels, if labels are shares of classes.
    pub(crate) fn shares(&self) -> Option<&str> {
        self.has_shares.then_some(self.label.as_str())
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The numbers of these rows; `positions` names them in errors, one for each row.
    ///
    /// # Errors
    /// Names the first sample that has no usable label or input.
    pub fn read(&self, rows: &RecordBatch, positions: &[u64]) -> Result<Samples, InputError> {
        Ok(self.stored(rows, positions)?.on_host())
    }

    /// The same rows as they are stored: a byte stays a byte.
    ///
    /// # Errors
    /// As [`InputSpec::read`].
    ///
    /// # Panics
    /// If there are not as many positions as rows.
    pub fn stored(&self, rows: &RecordBatch, positions: &[u64]) -> Result<StoredSamples, InputError> {
        assert_eq!(rows.num_rows(), positions.len(), "a position for every row");
        let column = |name: &str| {
            rows.column_by_name(name).ok_or_else(|| InputError::Column { column: name.to_owned() })
        };
        let present = |name: &str| present(name, column(name)?, positions);
        if let Source::Tokens { column, width } | Source::Packed { column, width, .. } = &self.source {
            let (tokens, mut labels) = self.tokens(column, present(column)?, *width, positions)?;
            if packed::has_loss_mask(rows.schema_ref(), *width) {
                let mask = flat(packed::LOSS_MASK, present(packed::LOSS_MASK)?, *width)?;
                packed::ignore_unmarked(&numbers(packed::LOSS_MASK, &mask)?, *width, &mut labels);
            }
            let values = match self.source {
                Source::Packed { attention, .. } => {
                    let begins = packed::begins(rows, *width, attention, positions)?;
                    packed::ignore_ends(&begins, *width, &mut labels);
                    match self.shape {
                        InputShape::PackedTokens(_) => {
                            Values::Packed { tokens, begins: packed::of_inputs(&begins, *width) }
                        }
                        _ => Values::Tokens(tokens),
                    }
                }
                _ => Values::Tokens(tokens),
            };
            return Ok(StoredSamples::new(values, labels, self.shape));
        }
        let label = present(&self.label)?;
        let values = match &self.source {
            Source::Tokens { .. } | Source::Packed { .. } => unreachable!("read above"),
            Source::Image { column, size } => {
                Values::Pixels(decode::images(present(column)?, positions, *size)?)
            }
            Source::Tensor { column, width, max } => {
                let values = flat(column, present(column)?, *width)?;
                match values.as_primitive_opt::<UInt8Type>() {
                    Some(bytes) if bytes.null_count() == 0 => {
                        Values::Bytes { values: bytes.values().to_vec(), max: *max }
                    }
                    _ => Values::Floats { values: numbers(column, &values)?.values().to_vec(), max: *max },
                }
            }
            Source::Sparse { column } => {
                Values::Sparse(sparse::read(column, present(column)?, self.shape.len(), positions)?)
            }
            Source::Columns(names) => {
                let columns = names.iter().map(|name| numbers(name, present(name)?));
                let columns: Vec<Float32Array> = columns.collect::<Result<_, _>>()?;
                let row = |row| columns.iter().map(move |column| column.value(row));
                Values::Floats { values: (0..rows.num_rows()).flat_map(row).collect(), max: 1.0 }
            }
        };
        if self.has_shares {
            let shares = numbers(&self.label, &flat(&self.label, label, self.classes)?)?;
            return Ok(StoredSamples::mixed(values, shares.values().to_vec(), self.classes, self.shape));
        }
        Ok(StoredSamples::new(values, self.labels(label, positions)?, self.shape))
    }

    /// All but the last of each sequence, and all but the first.
    fn tokens(
        &self,
        column: &str,
        array: &ArrayRef,
        width: usize,
        positions: &[u64],
    ) -> Result<(Vec<i32>, Vec<u32>), InputError> {
        let tokens = numbers(column, &flat(column, array, width)?)?;
        let classes = self.classes;
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        for (row, &position) in tokens.values().chunks_exact(width).zip(positions) {
            if let Some(&label) = row.iter().find(|&&token| token < 0.0 || token as usize >= classes) {
                return Err(InputError::Label { label: label as i64, position, classes });
            }
            inputs.extend(row[..width - 1].iter().map(|&token| token as i32));
            labels.extend(row[1..].iter().map(|&token| token as u32));
        }
        Ok((inputs, labels))
    }

    fn labels(&self, array: &ArrayRef, positions: &[u64]) -> Result<Vec<u32>, InputError> {
        if let Some(numbers) = &self.class_numbers {
            return self.text_labels(numbers, array, positions);
        }
        let classes = self.classes;
        let array = converted::<Int64Array>(&self.label, array, &DataType::Int64)?;
        // libsvm's two classes are -1 and 1.
        let is_signed = matches!(self.source, Source::Sparse { .. }) && classes == 2;
        let check = |(&label, &position): (&i64, &u64)| match usize::try_from(label) {
            Err(_) if label == -1 && is_signed => Ok(0),
            Ok(class) if class < classes => Ok(class as u32),
            _ => Err(InputError::Label { label, position, classes }),
        };
        array.values().iter().zip(positions).map(check).collect()
    }

    fn text_labels(
        &self,
        numbers: &BTreeMap<String, u32>,
        array: &ArrayRef,
        positions: &[u64],
    ) -> Result<Vec<u32>, InputError> {
        let array = converted::<StringArray>(&self.label, array, &DataType::Utf8)?;
        let number = |(label, &position): (Option<&str>, &u64)| {
            let label = label.unwrap_or_default();
            let unknown =
                || InputError::ClassName { label: label.to_owned(), position, classes: numbers.len() };
            numbers.get(label).copied().ok_or_else(unknown)
        };
        array.iter().zip(positions).map(number).collect()
    }
}

/// Sequences of tokens of one length, if there are any.
fn sequences(schema: &Schema, options: &InputOptions) -> Result<Option<InputSpec>, InputError> {
    let Ok(field) = schema.field_with_name("tokens") else { return Ok(None) };
    let DataType::FixedSizeList(item, width) = field.data_type() else { return Ok(None) };
    if !item.data_type().is_integer() {
        return Ok(None);
    }
    let (column, width) = (field.name().clone(), *width as usize);
    let of_type = (*item.data_type() == DataType::UInt8).then_some(256);
    let Some(vocabulary) = options.classes.or(of_type) else { return Err(InputError::Vocabulary { column }) };
    if width < 2 || vocabulary == 0 || vocabulary > 1 << 24 {
        return Err(InputError::Sequence { width, vocabulary });
    }
    let has_documents = packed::has_documents(schema);
    let is_packed = has_documents && packed::has_length(schema);
    let usual = if is_packed { Attention::BlockCausal } else { Attention::Causal };
    let (shape, source) = match options.attention.unwrap_or(usual) {
        Attention::BlockCausal if !has_documents => return Err(InputError::NoDocuments { column }),
        Attention::Causal if !is_packed => (InputShape::Tokens(width - 1), Source::Tokens { column, width }),
        attention => (InputShape::PackedTokens(width - 1), Source::Packed { column, width, attention }),
    };
    Ok(Some(InputSpec {
        source,
        label: String::new(),
        shape,
        classes: vocabulary,
        class_numbers: None,
        has_shares: false,
    }))
}

fn find_source(
    inputs: &[&Field],
    options: &InputOptions,
) -> Result<Option<(Source, InputShape)>, InputError> {
    let is_binary = |field: &&&Field| {
        matches!(field.data_type(), DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    };
    if let Some(field) = inputs.iter().find(is_binary) {
        let (column, size) = (field.name().clone(), options.image_size);
        return Ok(Some((Source::Image { column, size }, InputShape::Image([3, size, size]))));
    }
    for field in inputs {
        let DataType::FixedSizeList(item, width) = field.data_type() else { continue };
        if !item.data_type().is_numeric() {
            continue;
        }
        let (column, width) = (field.name().clone(), *width as usize);
        if field.metadata().get(BFLOAT16[0]).is_some_and(|dtype| dtype == BFLOAT16[1]) {
            return Err(InputError::Bfloat16 { column });
        }
        let tensor = tensor_metadata(field);
        if let Some(permutation) = tensor.as_ref().and_then(permutation) {
            return Err(InputError::TensorOrder { column, permutation });
        }
        let dims = tensor.as_ref().and_then(tensor_shape).unwrap_or_else(|| vec![width]);
        let shape = match dims[..] {
            [features] => InputShape::Features(features),
            [height, width] => InputShape::Image([1, height, width]),
            [channels, height, width] => InputShape::Image([channels, height, width]),
            _ => return Err(InputError::TensorShape { column, shape: dims }),
        };
        if shape.len() != width || width == 0 {
            return Err(InputError::TensorShape { column, shape: dims });
        }
        let max = options.input_max.unwrap_or_else(|| largest(item.data_type()));
        return Ok(Some((Source::Tensor { column, width, max }, shape)));
    }
    if let Some(field) = inputs.iter().find(|field| sparse::is_sparse(field)) {
        let (column, most) = (field.name().clone(), sparse::MOST_FEATURES);
        let Some(features) = options.features.or_else(|| sparse::features(field)) else {
            return Err(InputError::Features { column });
        };
        if features == 0 || features > most {
            return Err(InputError::FeatureCount { column, features, most });
        }
        return Ok(Some((Source::Sparse { column }, InputShape::Sparse(features))));
    }
    let is_number =
        |field: &&&Field| field.data_type().is_numeric() || *field.data_type() == DataType::Boolean;
    let names: Vec<String> = inputs.iter().filter(is_number).map(|field| field.name().clone()).collect();
    let shape = InputShape::Features(names.len());
    Ok((!names.is_empty()).then_some((Source::Columns(names), shape)))
}

/// The metadata of an `arrow.fixed_shape_tensor`, if the field is one.
fn tensor_metadata(field: &Field) -> Option<Value> {
    let metadata = field.metadata();
    let is_tensor = metadata.get("ARROW:extension:name")? == "arrow.fixed_shape_tensor";
    is_tensor.then(|| serde_json::from_str(metadata.get("ARROW:extension:metadata")?).ok())?
}

fn tensor_shape(tensor: &Value) -> Option<Vec<usize>> {
    tensor["shape"].as_array()?.iter().map(|size| size.as_u64().map(|size| size as usize)).collect()
}

/// In which order the dimensions lie, if that is not the order of the shape.
fn permutation(tensor: &Value) -> Option<String> {
    let order = tensor["permutation"].as_array()?;
    let is_plain = order.iter().zip(0u64..).all(|(at, expected)| at.as_u64() == Some(expected));
    (!is_plain).then(|| tensor["permutation"].to_string())
}

fn class_names(json: &str) -> Option<Vec<String>> {
    serde_json::from_str(json).ok()
}

/// Of the type, not of the data: it must not depend on which rows are seen first.
fn largest(numbers: &DataType) -> f32 {
    match numbers {
        DataType::UInt8 => 255.0,
        DataType::Int8 => 127.0,
        DataType::UInt16 => 65_535.0,
        DataType::Int16 => 32_767.0,
        _ => 1.0,
    }
}

/// The values of all rows' lists.
fn flat(column: &str, array: &ArrayRef, width: usize) -> Result<ArrayRef, InputError> {
    let list = array.as_fixed_size_list_opt();
    let list = list.ok_or_else(|| InputError::Column { column: column.to_owned() })?;
    Ok(list.values().slice(list.value_offset_at(0), list.len() * width))
}

#[cfg(test)]
mod tests;
