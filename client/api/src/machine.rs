//! What a node says of its machine: its disks, its process, its certificate.

use serde::{Deserialize, Serialize};

/// The machine of a node and its process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MachineStatus {
    /// The release of the node.
    pub release: String,
    /// When its process started, in seconds since 1970.
    pub start: u64,
    /// Processors used in the last seconds: 1.5 is one and a half.
    pub processors: f64,
    /// Resident memory of the process in bytes.
    pub resident_bytes: u64,
    /// The disks on which it keeps data.
    pub disks: Vec<DiskStatus>,
    /// Parts of the last seconds in which some task of the machine waited for a resource; none where the kernel does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub pressure: Option<PressureShares>,
    /// When the node's certificate ends, in seconds since 1970; none on a node without peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub certificate_ends: Option<u64>,
    /// When it was issued, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub certificate_issued: Option<u64>,
}

/// Parts of some time, from 0 to 1, in which some task waited (PSI, `some`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PressureShares {
    /// For a processor.
    pub cpu: f64,
    /// For storage.
    pub io: f64,
    /// For memory.
    pub memory: f64,
}

/// The use that a node makes of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Directory {
    /// Its cache.
    Cache,
    /// A store on this machine.
    Store,
    /// Its identity, and the metadata where it keeps that.
    Data,
}

impl Directory {
    /// Its name in JSON and in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Directory::Cache => "cache",
            Directory::Store => "store",
            Directory::Data => "data",
        }
    }
}

/// A disk on which a node keeps data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskStatus {
    /// What the node keeps there.
    pub directory: Directory,
    /// Where.
    pub path: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes that are free for the node.
    pub free_bytes: u64,
    /// When it will be full if data other than the cache fill it as in the last minutes; none if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub full: Option<Forecast>,
}

/// A moment that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forecast {
    /// Seconds from now.
    pub in_s: f64,
    /// The earliest, by how the measurements vary.
    pub earliest_s: f64,
    /// The latest.
    pub latest_s: f64,
}

/// When a value that was measured at some times (in seconds) reaches zero: by the line of least squares through it, as of the last
/// measurement, with two standard errors of its slope to either side. `None` if it does not surely fall.
#[must_use]
pub fn reaches_zero(measured: &[(f64, f64)]) -> Option<Forecast> {
    let count = measured.len() as f64;
    if measured.len() < 3 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| measured.iter().map(of).sum::<f64>() / count;
    let (mean_at, mean_value) = (mean(|(at, _)| *at), mean(|(_, value)| *value));
    let spread: f64 = measured.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
    let along: f64 = measured.iter().map(|(at, value)| (at - mean_at) * (value - mean_value)).sum();
    if spread <= 0.0 {
        return None;
    }
    let slope = along / spread;
    let rest = |(at, value): &(f64, f64)| (value - mean_value - slope * (at - mean_at)).powi(2);
    let error = (measured.iter().map(rest).sum::<f64>() / (count - 2.0) / spread).sqrt();
    let (steepest, flattest) = (slope - 2.0 * error, slope + 2.0 * error);
    let (last, value) = *measured.last()?;
    let value = value.max(mean_value + slope * (last - mean_at)).max(0.0);
    (flattest < 0.0).then(|| Forecast {
        in_s: value / -slope,
        earliest_s: value / -steepest,
        latest_s: value / -flattest,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_line_reaches_zero_where_it_does(start in 1e6..1e12f64, per_s in 1e3..1e9f64, count in 3..100u32) {
            let line: Vec<(f64, f64)> = (0..count).map(|at| (f64::from(at) * 5.0, start - per_s * f64::from(at) * 5.0)).collect();
            let left = line.last().expect("three at least").1;
            let forecast = reaches_zero(&line).expect("it falls");
            if left > 0.0 {
                let near = 1e-3 * (1.0 + left / per_s);
                prop_assert!((forecast.in_s - left / per_s).abs() < near, "{forecast:?} {}", left / per_s);
                prop_assert!(forecast.latest_s - forecast.earliest_s < 4.0 * near);
            } else {
                prop_assert!(forecast.in_s.abs() < 1e-6);
            }
        }

        #[test]
        fn noise_around_a_level_is_no_forecast_of_soon(values in prop::collection::vec(0.99..1.01f64, 10..200)) {
            let measured: Vec<(f64, f64)> = values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect();
            // Two standard errors are wrong one time in twenty, and then about a time that is far away.
            if let Some(forecast) = reaches_zero(&measured) {
                prop_assert!(forecast.earliest_s <= forecast.in_s && forecast.in_s <= forecast.latest_s);
                prop_assert!(forecast.in_s > measured.len() as f64 * 2.0, "{forecast:?}");
            }
        }
    }

    #[test]
    fn nothing_is_said_of_what_rises_or_was_hardly_measured() {
        assert_eq!(reaches_zero(&[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]), None);
        assert_eq!(reaches_zero(&[(0.0, 3.0), (1.0, 2.0)]), None);
        assert_eq!(reaches_zero(&[(1.0, 3.0), (1.0, 2.0), (1.0, 1.0)]), None);
    }
}
