//! Packs lengths from lines of JSON, for comparisons with TRL: `tests/reference/packing.py` drives it.
//!
//! A line is `{"packing", "lengths"}`; the answer is `{"sequences", "seconds"}`, where a sequence is a list of `[document,
//! start, length]`.

use std::io::{self, BufRead, BufWriter, Write};
use std::time::Instant;

use serde::Deserialize;
use serde_json::json;
use shardd_packing::Packing;

#[derive(Deserialize)]
struct Line {
    packing: Packing,
    lengths: Vec<u32>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let Line { packing, lengths } = serde_json::from_str(&line?)?;
        let started = Instant::now();
        let (packed, _) = packing.pack(&lengths)?;
        let seconds = started.elapsed().as_secs_f64();
        let sequences: Vec<Vec<(u64, u32, u32)>> = packed
            .iter()
            .map(|pieces| pieces.iter().map(|piece| (piece.document, piece.start, piece.length)).collect())
            .collect();
        writeln!(out, "{}", json!({"sequences": sequences, "seconds": seconds}))?;
    }
    Ok(())
}
