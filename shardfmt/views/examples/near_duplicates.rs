//! Finds near-duplicates among the lines of a file: `near_duplicates FILE THRESHOLD NUM_PERM NGRAM
//! word|character`.
//!
//! Prints `removed kept similarity` for each line that goes, and the times to standard error.

use std::error::Error;
use std::time::Instant;

use shardd_views::dedup::{Clusters, MinHash, MinHasher, Unit};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, threshold, num_perm, ngram, unit] = arguments.as_slice() else {
        return Err("usage: near_duplicates FILE THRESHOLD NUM_PERM NGRAM word|character".into());
    };
    let unit = if unit == "word" { Unit::Word } else { Unit::Character };
    let parameters = MinHash {
        num_perm: num_perm.parse()?,
        threshold: threshold.parse()?,
        ngram: ngram.parse()?,
        unit,
        seed: 1,
    };
    let hasher = MinHasher::new(parameters)?;
    let text = std::fs::read_to_string(file)?;
    let lines: Vec<&str> = text.lines().collect();

    // The least of five passes.
    let mut signing = f64::INFINITY;
    let mut signatures = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        signatures = lines.iter().map(|line| hasher.signature(line)).collect();
        signing = signing.min(start.elapsed().as_secs_f64());
    }
    let start = Instant::now();
    let mut clusters = Clusters::new(&hasher);
    for (row, signature) in (0..).zip(&signatures) {
        clusters.insert(row, signature)?;
    }
    let report = clusters.finish(lines.len() as u64)?;
    let joining = start.elapsed().as_secs_f64();
    for duplicate in &report.duplicates {
        println!("{} {} {:.4}", duplicate.removed, duplicate.kept, duplicate.similarity);
    }
    let megabytes = text.len() as f64 / 1e6;
    eprintln!(
        "{} rows, {megabytes:.1} MB: signatures {signing:.3} s ({:.1} MB/s), clusters {joining:.3} s, {:?}, {} comparisons, {} \
         crowded",
        lines.len(),
        megabytes / signing,
        hasher.banding(),
        report.comparisons,
        report.crowded
    );
    Ok(())
}
