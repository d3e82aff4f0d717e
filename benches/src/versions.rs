//! Manifests of versions whose shards exist nowhere.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use shardfmt::row::DigestSum;
use shardfmt::statistics::{ColumnStatistics, Quantiles, Spread, Statistics};
use shardfmt::{Digest, Manifest, NodeHash, ShardEntry, ShardId};

const ROWS: u32 = 512;

/// The manifest of a version as an ingest of images makes it: shards of 512 rows, statistics, ten labels, and a thousand
/// inputs.
pub fn images(shards: u64) -> Manifest {
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, false),
        Field::new("label", DataType::Int64, false),
        Field::new("path", DataType::Utf8, false),
    ]));
    let names: Vec<Arc<str>> = (0..10).map(|label| label.to_string().into()).collect();
    let shard = |number: u64| {
        let digest = Digest::of(&number.to_le_bytes());
        let rows = if number + 1 == shards { ROWS - 1 } else { ROWS };
        let labels =
            (0u64..).zip(&names).map(|(label, name)| (name.clone(), 40 + (number + label) % 25)).collect();
        let column = |min: f64, max: f64| {
            let mean = min + (max - min) * (number % 1000) as f64 / 1000.0;
            let spread = Spread { min, max, mean, variance: max - mean };
            ColumnStatistics { count: rows.into(), spread: Some(spread) }
        };
        let row_bytes =
            [1000, 2000, 3000, 4000, 9000, 9999].map(|length: u32| length + (number % 997) as u32);
        ShardEntry {
            id: ShardId(digest),
            rows,
            bytes: 2_000_000 + number % 1000,
            row_bytes: 1_900_000,
            root: NodeHash(digest.0),
            digest_sum: DigestSum(u128::from(number) << 64),
            labels: Some(labels),
            statistics: Some(Statistics {
                row_bytes: Quantiles::from(row_bytes),
                columns: vec![column(900.0, 9900.0), column(0.0, 9.0), column(12.0, 40.0)],
            }),
        }
    };
    let config = serde_json::json!({ "mix": "random", "seed": 0 });
    Manifest::new(schema, (0..shards).map(shard).collect(), config)
}
