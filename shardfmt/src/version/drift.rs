//! How far the samples of two versions are apart in what their manifests say of them.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::manifest::Manifest;

/// How labels differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    /// Every label that either has, in order. `None` where one of them has no labels.
    pub labels: Option<Vec<LabelShare>>,
    /// Half the sum of the differences of their shares: 0 where labels are spread alike, 1 where they have none in common.
    pub label_distance: Option<f64>,
}

/// How often a label occurs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LabelShare {
    /// The label.
    pub label: String,
    /// Samples of the first version that have it.
    pub old: u64,
    /// Samples of the second.
    pub new: u64,
}

/// Compares what two manifests say of their samples.
pub fn drift(old: &Manifest, new: &Manifest) -> Drift {
    let labels = old.labels().zip(new.labels()).map(|(old, new)| {
        let all: BTreeSet<&str> = old.keys().chain(new.keys()).map(AsRef::as_ref).collect();
        let count = |label: &str| LabelShare {
            label: label.to_owned(),
            old: old.get(label).copied().unwrap_or(0),
            new: new.get(label).copied().unwrap_or(0),
        };
        all.into_iter().map(count).collect::<Vec<_>>()
    });
    let label_distance = labels.as_deref().map(total_variation);
    Drift { labels, label_distance }
}

fn total_variation(labels: &[LabelShare]) -> f64 {
    let total =
        |of: fn(&LabelShare) -> u64| labels.iter().map(|label| of(label) as f64).sum::<f64>().max(1.0);
    let (old, new) = (total(|label| label.old), total(|label| label.new));
    let apart: f64 = labels.iter().map(|label| (label.old as f64 / old - label.new as f64 / new).abs()).sum();
    (apart / 2.0).min(1.0)
}
