//! Figures for programs: what a bench prints for people, as lines of JSON in a file, so that prose is not parsed.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

/// The environment variable that names the file.
pub const FILE: &str = "SHARDD_BENCH_FIGURES";

/// One repetition of a measurement and of its yardstick, both in the same unit and of the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample<'a> {
    /// The benchmark, as `benches/guard/registry.py` has it.
    pub name: &'a str,
    /// The measurement.
    pub ours: f64,
    /// The yardstick.
    pub yardstick: f64,
}

impl Sample<'_> {
    /// The sample as a line.
    ///
    /// # Panics
    /// When a figure is no finite number: the measurement was of nothing.
    pub fn line(&self) -> String {
        let is_ratio = self.ours.is_finite() && self.yardstick.is_finite() && self.yardstick > 0.0;
        assert!(is_ratio, "{}: {} beside {} is no ratio", self.name, self.ours, self.yardstick);
        serde_json::to_string(self).expect("a name and two numbers are JSON") + "\n"
    }
}

/// Appends a sample to the file that [`FILE`] names; without the variable nothing happens.
///
/// # Panics
/// When the file cannot be written, or a figure is no finite number.
pub fn report(name: &str, ours: f64, yardstick: f64) {
    if let Some(path) = std::env::var_os(FILE) {
        append(Path::new(&path), &Sample { name, ours, yardstick });
    }
}

fn append(path: &Path, sample: &Sample<'_>) {
    let written = File::options().create(true).append(true).open(path);
    let written = written.and_then(|mut file| file.write_all(sample.line().as_bytes()));
    written.unwrap_or_else(|error| panic!("{FILE} names {}: {error}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_a_line_of_its_own() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("figures");
        append(&path, &Sample { name: "gather/784", ours: 2.0, yardstick: 4.0 });
        append(&path, &Sample { name: "gather/784", ours: 2.5, yardstick: 4.0 });
        let lines = std::fs::read_to_string(&path).expect("it was written");
        let first = "{\"name\":\"gather/784\",\"ours\":2.0,\"yardstick\":4.0}";
        assert_eq!(lines.lines().collect::<Vec<_>>(), [first, &first.replace("2.0", "2.5")]);
    }

    #[test]
    #[should_panic(expected = "is no ratio")]
    fn a_measurement_of_nothing_is_no_figure() {
        Sample { name: "gather/784", ours: 1.0, yardstick: 0.0 }.line();
    }
}
