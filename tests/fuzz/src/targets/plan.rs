//! Plan documents, as they are.

use shardd_plan::{Epoch, Plan, PlanDocument, SlotTable};

/// Rows of the shards that plans are made for.
const SHARDS: [&[u32]; 3] = [&[1], &[64, 64, 64, 37], &[3, 1000, 8, 17, 512]];

/// Bytes accepted as a plan document have one form and one id. A plan of it orders every sample of every
/// epoch once.
pub(crate) fn plan(data: &[u8]) -> bool {
    let Ok(document) = PlanDocument::from_bytes(data) else { return false };
    let again = PlanDocument::from_bytes(&document.to_bytes()).expect("the written bytes are read");
    assert_eq!(again, document);
    assert_eq!(again.id(), document.id());
    let mut fits = false;
    for shard_rows in SHARDS {
        let Ok(plan) = Plan::new(document.clone(), shard_rows) else { continue };
        fits = true;
        let mut table = SlotTable::initial(&plan);
        for epoch in 0..3 {
            let epoch = Epoch(epoch);
            let mut seen = vec![false; plan.sample_count() as usize];
            for read in plan.step_reads(&table, 0..plan.sample_count(), 0..document.partitions) {
                let sample = plan.sample_at(epoch, read.position);
                assert_eq!(plan.position_of_sample(epoch, sample), read.position);
                assert_eq!(plan.sample(read.grain, read.row), sample);
                assert!(!std::mem::replace(&mut seen[sample.0 as usize], true), "{sample} twice");
            }
            assert!(seen.iter().all(|seen| *seen));
            table.advance(&plan);
        }
    }
    fits
}
