//! The values of a node over the last hour, for people who look at a cluster without a Prometheus.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::node::NodeId;

/// The values of a node over some time that has just passed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeSeries {
    /// The node.
    pub node: NodeId,
    /// Seconds between two points.
    pub every_s: f64,
    /// When the last point was taken, in seconds since 1970, by the node's clock.
    pub end: u64,
    /// The series, by name and labels.
    pub series: Vec<Series>,
}

/// One value over time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Series {
    /// Its name; the last word is its unit, as in metrics. Counters are rates: `origin_read_bytes_per_second`.
    pub name: String,
    /// Tells series of one name apart: `run`, `rank`, `stage`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The values, the oldest first; `null` where there was none. Each is the mean of the time since the point before.
    pub points: Vec<Option<f64>>,
}
