//! Rows that cannot be trained on.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use thiserror::Error;

/// Why rows cannot be trained on.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum InputError {
    /// Name the right column.
    #[error("the data set has no column {label:?} to learn (its columns: {columns}); name it with --label")]
    NoLabel { label: String, columns: String },
    /// Labels must be numbers or text.
    #[error("label column {label:?} has type {found}; classes must be whole numbers from 0, or text")]
    LabelType { label: String, found: DataType },
    /// The labels are shares of classes, and single classes are needed.
    #[error(
        "column {column:?} has shares of classes, and this loader gives one class: leave MixUp and CutMix out of its transforms"
    )]
    Shares { column: String },
    /// Nothing says how many classes there are.
    #[error("nothing says how many classes column {label:?} has; give --classes")]
    Classes { label: String },
    /// The classes of a text column are not listed.
    #[error(
        "the dataset does not list the classes in the text column {label:?}: ingest lists those of a column named `label`, up to \
         4,096 in a shard; else write whole numbers from 0"
    )]
    ClassNames { label: String },
    /// The classes are listed, and another number of them is given.
    #[error("column {label:?} has {listed} classes of text, but --classes is {given}; leave --classes out")]
    ClassCount { label: String, listed: usize, given: usize },
    /// A class is listed twice.
    #[error(
        "the list of the classes of column {label:?} has {class:?} twice; write its metadata `shardd.classes` again"
    )]
    ClassTwice { label: String, class: String },
    /// A sample has a class that is not among those of the training data.
    #[error(
        "label {label:?} of the sample at position {position} is not one of the {classes} classes of the training data"
    )]
    ClassName { label: String, position: u64, classes: usize },
    /// Nothing says how many features there are.
    #[error(
        "nothing says how many features the sparse column {column:?} has; give --features, one more than the largest index"
    )]
    Features { column: String },
    /// There are none, or more than indices are exact for.
    #[error("column {column:?} with {features} features cannot be learnt: at least 1, at most {most}")]
    FeatureCount { column: String, features: usize, most: usize },
    /// The number of features is given, and there are none.
    #[error("--features is for a sparse column, and there is none (columns: {columns}); leave it out")]
    NotSparse { columns: String },
    /// A sample has a feature that does not exist.
    #[error(
        "index {index} of column {column:?} in the sample at position {position} is not one of the {features} features (0 to {}); \
         give --features, one more than the largest index", features - 1
    )]
    Index { column: String, index: u32, position: u64, features: usize },
    /// A sparse row with more present features than a micro-batch can hold.
    #[error(
        "the sample at position {position} has {present} features in column {column:?}, the most is {most}; leave out its          smallest values"
    )]
    Present { column: String, position: u64, present: usize, most: usize },
    /// Sparse rows are asked for with their zeros, and are too many numbers.
    #[error(
        "{rows} rows of {features} features are more numbers than a batch may have ({most}); read them with InputSpec::stored"
    )]
    TooWide { rows: usize, features: usize, most: usize },
    /// There is nothing to learn from.
    #[error(
        "no column to learn from: need an image, a fixed-shape tensor, a sparse column (lists of index and value) or numeric columns \
         (columns: {columns})"
    )]
    NoInput { columns: String },
    /// The tensor does not have the shape of an image or a vector.
    #[error(
        "tensor column {column:?} has shape {shape:?}; [height, width], [channels, height, width] and [features] are understood"
    )]
    TensorShape { column: String, shape: Vec<usize> },
    /// The tensors lie in memory in another order than they are meant to be read in.
    #[error(
        "tensor column {column:?} has its dimensions permuted ({permutation}); write it in the order of its shape"
    )]
    TensorOrder { column: String, permutation: String },
    /// Numbers that the trainer does not read.
    #[error(
        "column {column:?} has bfloat16 numbers; end the transforms with ToDtype(\"float32\"): --precision rounds what is computed"
    )]
    Bfloat16 { column: String },
    /// Nothing says how many tokens there are.
    #[error("nothing says how many tokens the vocabulary of column {column:?} has; give --classes")]
    Vocabulary { column: String },
    /// A sequence of which no token follows another, or of a vocabulary that is too large.
    #[error(
        "sequences of {width} tokens out of {vocabulary} cannot be learnt: at least 2, out of at most 16,777,216"
    )]
    Sequence { width: usize, vocabulary: usize },
    /// Nothing says where documents begin.
    #[error(
        "column {column:?} has no documents beside it: a column `documents` has the places where they begin (ingest's --packing); \
         else leave --attention block-causal out"
    )]
    NoDocuments { column: String },
    /// Attention is chosen, and there are no sequences of tokens.
    #[error("--attention is for sequences of tokens, and there are none (columns: {columns}); leave it out")]
    NoSequences { columns: String },
    /// Documents do not lie one after the other in their sequence.
    #[error(
        "the documents of the sample at position {position} begin at {}{}, and it has {length} tokens of {width}: begins ascend, \
         below the length", starts.iter().take(8).map(ToString::to_string).collect::<Vec<_>>().join(", "),
         if starts.len() > 8 { ", .." } else { "" }
    )]
    Documents { position: u64, width: usize, length: usize, starts: Vec<u32> },
    /// A sample has a class that does not exist.
    #[error("label {label} of the sample at position {position} is not one of the {classes} classes (0 to {})", classes - 1)]
    Label { label: i64, position: u64, classes: usize },
    /// A sample lacks a value.
    #[error(
        "column {column:?} is null in the sample at position {position}; fill or drop such rows before ingest"
    )]
    Null { column: String, position: u64 },
    /// An image's bytes are no image.
    #[error("the image at position {position} cannot be decoded")]
    Image { position: u64, source: image::ImageError },
    /// Rows do not have the columns of the schema.
    #[error("rows lack the column {column:?} of the schema")]
    Column { column: String },
    /// A column's numbers do not convert.
    #[error("column {column:?} cannot be read as numbers")]
    Numbers { column: String, source: ArrowError },
}
