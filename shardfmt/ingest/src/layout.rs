//! How the samples of a version were laid into shards, as its manifest records it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shardd_views::rule::Rule;
use shardfmt::digest::VersionId;
use shardfmt::manifest::Manifest;
use shardfmt::shard::Compression;
use shardfmt::size::ByteSize;

use crate::config::is_default;
use crate::{IngestConfig, Mix};

/// The settings of an ingest that decide the shards of given samples: part of the version.
///
/// All other settings decide which samples there are, and lie in the version's provenance.
///
/// ```
/// use shardd_ingest::version::Layout;
/// use shardd_ingest::{IngestConfig, Mix};
///
/// let config = IngestConfig { mix: Mix::Sequential, decode: true, ..IngestConfig::default() };
/// let layout = Layout::of(&config);
/// assert_eq!(serde_json::to_string(&layout)?, r#"{"mix":"sequential","seed":0}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layout {
    /// Order of the rows.
    pub mix: Mix,
    /// Key of the random order.
    pub seed: u64,
    /// Size that shards aim at, in canonical bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard_size: Option<ByteSize>,
    /// How the bodies of shards are compressed.
    #[serde(skip_serializing_if = "is_default")]
    pub compression: Compression,
}

impl Layout {
    /// Those of these settings.
    pub fn of(config: &IngestConfig) -> Self {
        let IngestConfig { mix, seed, shard_size, compression, .. } = config;
        Self { mix: mix.clone(), seed: *seed, shard_size: *shard_size, compression: *compression }
    }

    /// The settings with these in their places.
    pub fn over(self, config: IngestConfig) -> IngestConfig {
        let Self { mix, seed, shard_size, compression } = self;
        IngestConfig { mix, seed, shard_size, compression, ..config }
    }

    /// Of a version; `None` when something else made it. Manifests of format 1 have all settings of the ingest there.
    pub fn recorded(manifest: &Manifest) -> Option<Self> {
        if let Ok(made) = serde_json::from_value::<Made>(manifest.config.clone()) {
            return Some(made.layout);
        }
        serde_json::from_value(manifest.config.clone()).ok()
    }

    /// As a manifest's configuration.
    pub fn config(&self) -> Value {
        serde_json::to_value(self).expect("settings are plain values")
    }
}

/// The version that a version was made of, if it was: some of its shards may have other settings.
pub fn made_of(manifest: &Manifest) -> Option<VersionId> {
    serde_json::from_value::<Made>(manifest.config.clone()).ok().map(|made| made.base)
}

/// The configuration of a version that was made of another.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Made {
    pub(crate) operation: Operation,
    pub(crate) base: VersionId,
    /// That of the appended samples, or the rest that resharding left: the layout of the next version.
    #[serde(alias = "ingest")]
    pub(crate) layout: Layout,
    /// Those that left samples out, or repeated some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rules: Vec<Rule>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    Append,
    Derive,
    Forget,
    Reshard,
}

impl Made {
    /// As a manifest's configuration.
    pub(crate) fn config(&self) -> Value {
        serde_json::to_value(self).expect("settings are plain values")
    }
}
