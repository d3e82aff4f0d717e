//! How often each row is taken, in runs.

/// How often each row of a version is taken, from 0. Rows with equal numbers in a row are stored as one run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Multiplicities {
    /// Times and rows of each run; neighbours differ in times, and no run is empty.
    runs: Vec<(u32, u64)>,
}

impl Multiplicities {
    /// Runs as (times, rows), in row order.
    pub fn runs(&self) -> &[(u32, u64)] {
        &self.runs
    }

    /// Rows of the version.
    pub fn rows(&self) -> u64 {
        self.runs.iter().map(|(_, rows)| rows).sum()
    }

    /// Rows of the derived version.
    pub fn total(&self) -> u64 {
        self.runs.iter().map(|(times, rows)| u64::from(*times) * rows).sum()
    }

    /// How often each row is taken, by row.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|&(times, rows)| (0..rows).map(move |_| times))
    }
}

impl FromIterator<u32> for Multiplicities {
    fn from_iter<I: IntoIterator<Item = u32>>(times: I) -> Self {
        let mut runs: Vec<(u32, u64)> = Vec::new();
        for times in times {
            match runs.last_mut() {
                Some(run) if run.0 == times => run.1 += 1,
                _ => runs.push((times, 1)),
            }
        }
        Self { runs }
    }
}
