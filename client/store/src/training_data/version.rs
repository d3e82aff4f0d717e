//! A version that a model was trained on, and how much of which media the trainings read. Pure.

use arrow::array::RecordBatch;
use serde::Serialize;
use shardfmt::{ManifestError, ManifestFile, Provenance, VersionId};

use super::content::{Column, Modality, Unit, columns};
use super::reads::Training;

/// How much of a kind of media was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Amount {
    /// The kind of media.
    pub modality: Modality,
    /// The unit that is counted.
    pub unit: Unit,
    /// How many.
    pub amount: u64,
}

/// A version that the model was trained on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Version {
    /// The name of the dataset; the beginning of the version where the training had no name for it.
    pub dataset: String,
    /// The version.
    #[cfg_attr(feature = "openapi", schema(value_type = shardd_api::schema::Digest))]
    pub version: VersionId,
    /// Samples that it has.
    pub samples: u64,
    /// Samples that a training certainly read, each once or more.
    pub samples_read: u64,
    /// How much the trainings read of each kind of media: of a version that was read in part, an equal part of each amount.
    pub amounts: Vec<Amount>,
    /// Bytes of its shards.
    pub bytes: u64,
    /// How many inputs it was made of, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub inputs: Option<u64>,
    /// How many of them were left out.
    pub skipped: u64,
    /// How many different labels it has; none without a column of labels.
    pub classes: Option<usize>,
    /// Its columns, and the media in them.
    pub columns: Vec<Column>,
    /// The versions that it was derived from, the nearest first.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<shardd_api::schema::Digest>))]
    pub derived_from: Vec<VersionId>,
    /// How samples were laid into shards, and what the version was made of another one by.
    pub config: serde_json::Value,
    /// The settings of the ingest, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub settings: Option<serde_json::Value>,
}

impl Version {
    /// The version of a manifest. `first` has its first sample, and of `trainings` those count that read this version.
    ///
    /// # Errors
    /// When the manifest is damaged.
    pub fn of(
        manifest: &ManifestFile,
        provenance: Option<&Provenance>,
        first: Option<&RecordBatch>,
        trainings: &[Training],
        derived_from: Vec<VersionId>,
    ) -> Result<Version, ManifestError> {
        let totals = manifest.totals();
        let own = || trainings.iter().filter(|training| training.version == manifest.id());
        let name = own().find_map(|training| training.dataset.clone());
        let mut version = Version {
            dataset: name.unwrap_or_else(|| manifest.id().short()),
            version: manifest.id(),
            samples: totals.samples,
            samples_read: own().map(Training::samples_at_least).max().unwrap_or(0),
            amounts: Vec::new(),
            bytes: totals.bytes,
            inputs: provenance.map(|known| known.inputs.len() as u64),
            skipped: provenance.map_or(0, |known| known.skipped.count),
            classes: manifest.labels()?.map(|labels| labels.len()),
            columns: columns(manifest, first),
            derived_from,
            config: manifest.config().clone(),
            settings: provenance.map(|known| known.settings.clone()),
        };
        version.declare(None, None);
        Ok(version)
    }

    /// Counts the media again, with the tokens of text and the only kind of media that a person declares.
    pub fn declare(&mut self, tokens: Option<u64>, modality: Option<Modality>) {
        let declared = tokens.map(|amount| Amount { modality: Modality::Text, unit: Unit::Tokens, amount });
        let seen = self.columns.iter().filter_map(|column| {
            Some(Amount { modality: column.modality?, unit: column.unit?, amount: column.amount? })
        });
        let mut amounts: Vec<Amount> = declared.into_iter().chain(seen).collect();
        // Text beside its tokens is the same text.
        if amounts.iter().any(|it| it.unit == Unit::Tokens) {
            amounts.retain(|it| it.unit != Unit::BytesOfText);
        }
        if let Some(modality) = modality {
            amounts.retain(|it| it.modality == modality);
        }
        if amounts.is_empty() {
            let modality = modality.unwrap_or(Modality::Other);
            amounts.push(Amount { modality, unit: Unit::Samples, amount: self.samples });
        }
        for Amount { amount, .. } in &mut amounts {
            let part = u128::from(*amount) * u128::from(self.samples_read) / u128::from(self.samples.max(1));
            *amount = u64::try_from(part).unwrap_or(u64::MAX);
        }
        self.amounts = amounts;
    }

    /// The kinds of media, each once.
    #[must_use]
    pub fn modalities(&self) -> Vec<Modality> {
        let mut found: Vec<Modality> = self.amounts.iter().map(|it| it.modality).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The version that one with these settings of ingest was derived from, if it was.
#[must_use]
pub fn base(config: &serde_json::Value) -> Option<VersionId> {
    config.get("base")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(columns: Vec<Column>) -> Version {
        Version {
            dataset: "d".to_owned(),
            version: VersionId::of(b"v"),
            samples: 100,
            samples_read: 25,
            amounts: Vec::new(),
            bytes: 1,
            inputs: Some(1),
            skipped: 0,
            classes: None,
            columns,
            derived_from: Vec::new(),
            config: serde_json::Value::Null,
            settings: None,
        }
    }

    fn column(modality: Modality, unit: Unit, amount: u64) -> Column {
        Column {
            name: "x".to_owned(),
            data_type: "Utf8".to_owned(),
            nullable: false,
            media_type: None,
            modality: Some(modality),
            amount: Some(amount),
            unit: Some(unit),
        }
    }

    #[test]
    fn a_version_that_was_read_in_part_counts_in_part() {
        let amounts = |columns, tokens, modality| {
            let mut version = version(columns);
            version.declare(tokens, modality);
            version.amounts.iter().map(|it| (it.unit, it.amount)).collect::<Vec<_>>()
        };
        let text = || column(Modality::Text, Unit::BytesOfText, 4000);
        let both = || vec![text(), column(Modality::Image, Unit::Pictures, 100)];
        assert_eq!(amounts(both(), None, None), [(Unit::BytesOfText, 1000), (Unit::Pictures, 25)]);
        assert_eq!(amounts(both(), Some(800), None), [(Unit::Tokens, 200), (Unit::Pictures, 25)]);
        assert_eq!(amounts(both(), None, Some(Modality::Image)), [(Unit::Pictures, 25)]);
        assert_eq!(amounts(Vec::new(), None, None), [(Unit::Samples, 25)]);
    }
}
