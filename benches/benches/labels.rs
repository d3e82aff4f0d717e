//! How far the labels of virtual ranks are from those of all samples, epoch by epoch, counted in the slots of plans of 10^7
//! samples in 4,096 partitions. Nothing is trained. Prints a line of JSON for each plan and number of virtual ranks:
//!
//! `cargo bench -p shardd-benches --bench labels > benches/paper/labels.jsonl`

use anyhow::Result;
use serde_json::json;
use shardd_plan::{Partition, Plan, PlanDocument, PlanOptions, Selection, Shape, SlotTable, VirtualRank};
use shardfmt::VersionId;

const SAMPLES: u64 = 10_000_000;
const SHARD_ROWS: u32 = 100_000;
const PARTITIONS: u32 = 4096;
/// As many classes as ImageNet has. The samples are sorted by class.
const CLASSES: u64 = 1000;
const EPOCHS: u32 = 20;
const VIRTUAL_RANKS: [u32; 2] = [PARTITIONS, 64];
const PLANS: [(&str, Selection); 6] = [
    ("0", Selection::Cyclic),
    ("0.01", Selection::Cyclic),
    ("0.1", Selection::Cyclic),
    ("0.1", Selection::Independent),
    ("1", Selection::Cyclic),
    ("1,0.01", Selection::Cyclic),
];

fn main() -> Result<()> {
    for (q, selection) in PLANS {
        let plan = plan(q, selection)?;
        let mut table = SlotTable::initial(&plan);
        let mut distances = VIRTUAL_RANKS.map(|_| Vec::new());
        for epoch in 0..=EPOCHS {
            if epoch > 0 {
                table.advance(&plan);
            }
            for (distances, virtual_ranks) in distances.iter_mut().zip(VIRTUAL_RANKS) {
                distances.push(mean_distance(&plan, &table, virtual_ranks));
            }
        }
        for (distances, virtual_ranks) in distances.into_iter().zip(VIRTUAL_RANKS) {
            let selection = if selection == Selection::Cyclic { "cyclic" } else { "independent" };
            let line = json!({
                "samples": SAMPLES, "partitions": PARTITIONS, "classes": CLASSES, "virtual_ranks": virtual_ranks,
                "q": q, "selection": selection, "distances": distances, "floor": floor(virtual_ranks),
            });
            println!("{line}");
        }
    }
    Ok(())
}

fn plan(q: &str, selection: Selection) -> Result<Plan> {
    let shard_rows = vec![SHARD_ROWS; (SAMPLES / u64::from(SHARD_ROWS)) as usize];
    let shape = Shape { shard_rows, row_bytes: SAMPLES * 1000 };
    let options = PlanOptions {
        q: q.parse()?,
        selection,
        partitions: Some(PARTITIONS),
        grain_rows: Some(1),
        ..PlanOptions::default()
    };
    let document = PlanDocument::with_defaults(VersionId::of(b"sorted by class"), &shape, options)?;
    Ok(Plan::new(document, &shape.shard_rows)?)
}

/// Half the sum of the differences between a virtual rank's shares of the classes and those of all samples, in the mean over
/// virtual ranks.
fn mean_distance(plan: &Plan, table: &SlotTable, virtual_ranks: u32) -> f64 {
    let of_all = 1.0 / CLASSES as f64;
    let mut sum = 0.0;
    let mut counts = vec![0_u64; CLASSES as usize];
    for v in (0..virtual_ranks).map(VirtualRank) {
        counts.fill(0);
        for partition in plan.partitions_of(v, virtual_ranks).map(Partition) {
            for grain in table.grains_of(plan, partition) {
                counts[(grain.0 * CLASSES / SAMPLES) as usize] += 1;
            }
        }
        let samples = counts.iter().sum::<u64>() as f64;
        sum += counts.iter().map(|count| (*count as f64 / samples - of_all).abs()).sum::<f64>() / 2.0;
    }
    sum / f64::from(virtual_ranks)
}

/// The distance to be expected of as many samples drawn at random without replacement (the mean absolute deviation of the
/// normal distribution).
fn floor(virtual_ranks: u32) -> f64 {
    let (all, some) = (SAMPLES as f64, SAMPLES as f64 / f64::from(virtual_ranks));
    let share = 1.0 / CLASSES as f64;
    let deviation = (2.0 * share * (1.0 - share) / (std::f64::consts::PI * some)).sqrt();
    0.5 * CLASSES as f64 * deviation * ((all - some) / (all - 1.0)).sqrt()
}
