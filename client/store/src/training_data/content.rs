//! The content of a version: its columns, and how much of which kind of media they hold. Pure.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field};
use serde::{Deserialize, Serialize};
use shardd_api::media::Media;
use shardfmt::ManifestFile;

/// The kinds of media that the template of the European Commission tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Modality {
    /// Texts, and their tokens.
    Text,
    /// Pictures.
    Image,
    /// Recordings of sound.
    Audio,
    /// Moving pictures.
    Video,
    /// Anything else.
    Other,
}

impl Modality {
    /// All of them, in the order of the template.
    pub const ALL: [Modality; 5] =
        [Modality::Text, Modality::Image, Modality::Audio, Modality::Video, Modality::Other];

    /// Its name in the template.
    pub fn title(self) -> &'static str {
        match self {
            Modality::Text => "Text",
            Modality::Image => "Image",
            Modality::Audio => "Audio",
            Modality::Video => "Video",
            Modality::Other => "Other",
        }
    }
}

/// The unit of an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Tokens of text.
    Tokens,
    /// Bytes of text.
    BytesOfText,
    /// Images.
    Pictures,
    /// Recordings of sound.
    Recordings,
    /// Files of video.
    Clips,
    /// Samples, where the columns show no media.
    Samples,
}

impl Unit {
    /// Its name after a number.
    pub fn noun(self) -> &'static str {
        match self {
            Unit::Tokens => "tokens",
            Unit::BytesOfText => "bytes of text",
            Unit::Pictures => "images",
            Unit::Recordings => "recordings",
            Unit::Clips => "video files",
            Unit::Samples => "samples",
        }
    }
}

/// A column and the media in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether values may be missing.
    pub nullable: bool,
    /// The format of its files, if it holds files.
    pub media_type: Option<&'static str>,
    /// None for numbers, labels and other columns beside the media.
    pub modality: Option<Modality>,
    /// How much it holds, if it holds media.
    pub amount: Option<u64>,
    /// What the amount counts.
    pub unit: Option<Unit>,
}

/// The columns of a version; `first` has its first sample, whose bytes show the formats of files.
pub fn columns(manifest: &ManifestFile, first: Option<&RecordBatch>) -> Vec<Column> {
    let totals = manifest.totals();
    let label = manifest.label_column();
    let sum_of = |at: usize| {
        // The mean is a quotient of whole numbers; rounding gives their sum back.
        let known = totals.statistics.as_ref()?.columns.get(at)?;
        Some((known.spread?.mean * known.count as f64).round() as u64)
    };
    let packed = manifest.schema().index_of("documents").and(manifest.schema().index_of("length")).ok();
    let packed = packed.and_then(sum_of);
    let describe = |(at, field): (usize, &std::sync::Arc<Field>)| {
        let known = totals.statistics.as_ref().and_then(|statistics| statistics.columns.get(at));
        let present = known.map_or(totals.samples, |known| known.count);
        let lengths = sum_of(at);
        let value = first.and_then(|batch| bytes(batch.column_by_name(field.name())?.as_ref()));
        let media = value.and_then(Media::of);
        let (modality, unit) = match field.data_type() {
            _ if label == Some(field.name()) || is_name(field.name()) => (None, None),
            DataType::Utf8 | DataType::LargeUtf8 => (Some(Modality::Text), Some(Unit::BytesOfText)),
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)
                if item.data_type().is_integer() && is_token_name(field.name()) =>
            {
                (Some(Modality::Text), Some(Unit::Tokens))
            }
            DataType::FixedSizeList(..) if is_picture(field) => (Some(Modality::Image), Some(Unit::Pictures)),
            _ => match media.map(|media| media.media_type) {
                Some(kind) if kind.starts_with("image/") => (Some(Modality::Image), Some(Unit::Pictures)),
                Some(kind) if kind.starts_with("audio/") => (Some(Modality::Audio), Some(Unit::Recordings)),
                Some(kind) if kind.starts_with("video/") => (Some(Modality::Video), Some(Unit::Clips)),
                _ => (None, None),
            },
        };
        let amount = match (unit, field.data_type()) {
            (Some(Unit::Tokens), DataType::FixedSizeList(_, length)) => {
                // Of packed documents, the rest of a sequence is padding.
                packed.or(u64::try_from(*length).ok().and_then(|length| present.checked_mul(length)))
            }
            (Some(Unit::Tokens | Unit::BytesOfText), _) => lengths,
            (Some(_), _) => Some(present),
            (None, _) => None,
        };
        Column {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
            media_type: media.map(|media| media.media_type),
            modality,
            amount,
            unit,
        }
    };
    manifest.schema().fields().iter().enumerate().map(describe).collect()
}

/// Columns with the names of files or samples, which ingest adds to folders and archives.
fn is_name(name: &str) -> bool {
    ["path", "key", "__key__"].contains(&name)
}

/// Names of columns with tokens that other programs made.
fn is_token_name(name: &str) -> bool {
    ["tokens", "token_ids", "input_ids"].contains(&name)
}

/// Whether the tensors have rows, columns and the channels of a picture, as bytes.
fn is_picture(field: &Field) -> bool {
    let mut values = field.data_type();
    while let DataType::FixedSizeList(item, _) = values {
        values = item.data_type();
    }
    let shape = field.metadata().get("ARROW:extension:metadata");
    let shape = shape.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let sizes = shape.as_ref().and_then(|shape| shape.get("shape")?.as_array());
    let Some([first, _, last]) = sizes.map(Vec::as_slice) else { return false };
    let is_channels = |size: &serde_json::Value| matches!(size.as_u64(), Some(1 | 3 | 4));
    *values == DataType::UInt8 && (is_channels(first) || is_channels(last))
}

/// The first value, if the column has bytes.
fn bytes(column: &dyn Array) -> Option<&[u8]> {
    if column.is_empty() || column.is_null(0) {
        return None;
    }
    match column.data_type() {
        DataType::Binary => Some(column.as_binary::<i32>().value(0)),
        DataType::LargeBinary => Some(column.as_binary::<i64>().value(0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_tensors_of_bytes_with_channels() {
        let tensor = |values: DataType, shape: &str| {
            let item = Field::new("item", values, false);
            let metadata = [("ARROW:extension:metadata".to_owned(), format!("{{\"shape\":{shape}}}"))];
            Field::new("x", DataType::FixedSizeList(item.into(), 12), false)
                .with_metadata(std::collections::HashMap::from(metadata))
        };
        assert!(is_picture(&tensor(DataType::UInt8, "[2,2,3]")));
        assert!(is_picture(&tensor(DataType::UInt8, "[3,2,2]")));
        assert!(!is_picture(&tensor(DataType::Float32, "[2,2,3]")));
        assert!(!is_picture(&tensor(DataType::UInt8, "[2,6]")));
        assert!(!is_picture(&tensor(DataType::UInt8, "[2,2,5]")));
        assert!(!is_picture(&Field::new("x", DataType::UInt8, false)));
    }
}
