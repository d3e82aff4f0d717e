//! Laws of epoch roots: samples that are read exactly once have the root of the plan, for any readers, and
//! nothing else has.

use proptest::prelude::*;
use shardd_plan::{PlanDocument, PlanOptions, Read, Shape};

use super::*;
use crate::digest::Digest;

/// A plan over three shards, and the digests of their rows.
fn planned(rows: u32, partitions: u32) -> (Plan, Vec<RowDigest>) {
    let shape = Shape { shard_rows: vec![rows, rows / 2 + 1, rows], row_bytes: 8 * u64::from(rows) };
    let options = PlanOptions { partitions: Some(partitions), grain_rows: Some(2), ..PlanOptions::default() };
    let document = PlanDocument::with_defaults(VersionId(Digest::of(b"v")), &shape, options).unwrap();
    let plan = Plan::new(document, &shape.shard_rows).unwrap();
    let rows = (0..plan.sample_count()).map(|sample| RowDigest::of(&sample.to_le_bytes())).collect();
    (plan, rows)
}

/// The report of a rank that read these, step by step.
fn consumed(plan: &Plan, epoch: Epoch, reads: &[Read], rows: &[RowDigest]) -> ConsumedReport {
    let mut consumed = Consumed::new(plan, epoch);
    for read in reads {
        let sample = plan.sample(read.grain, read.row);
        consumed.take(plan, read.position, sample, &rows[sample.0 as usize]).expect("in turn");
    }
    consumed.report()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn ranks_of_any_number_resumed_anywhere_have_the_root_of_the_plan(
        rows in 8..120u32, power in 0..4u32, epoch in 0..6u32, cut: prop::sample::Index,
        worlds in (1..9u32, 1..9u32), batch in 1..40u64,
    ) {
        let partitions = 1 << power;
        let (plan, rows) = planned(rows, partitions);
        let table = SlotTable::at(&plan, Epoch(epoch));
        let root = root(&plan, &table, &rows);
        let cut = cut.index(rows.len() + 1) as u64;
        let mut reports = Vec::new();
        for (world, positions) in [(worlds.0, 0..cut), (worlds.1, cut..rows.len() as u64)] {
            let world = world.min(partitions);
            for rank in 0..world {
                let own = Plan::virtual_ranks_of(rank, world, partitions);
                let step = |start| {
                    let step = start..positions.end.min(start + batch);
                    let mut reads = plan.step_shares(&table, step, partitions, own.clone()).concat();
                    reads.sort_by_key(|read| read.position);
                    reads
                };
                let reads: Vec<Read> = positions.clone().step_by(batch as usize).flat_map(step).collect();
                reports.push(consumed(&plan, Epoch(epoch), &reads, &rows));
            }
        }
        let text = serde_json::to_string(&reports).unwrap();
        let reports: Vec<ConsumedReport> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(put_together(&plan, Epoch(epoch), &reports), Ok(root));
        for without in 0..reports.len() {
            let mut some = reports.clone();
            let gone = some.remove(without);
            let missing = put_together(&plan, Epoch(epoch), &some);
            let is_missing = matches!(missing, Err(Incomplete::Missing { .. }));
            prop_assert!(is_missing || gone.parts.is_empty(), "{:?}", missing);
            some.extend([gone.clone(), gone.clone()]);
            let twice = put_together(&plan, Epoch(epoch), &some);
            let is_twice = matches!(twice, Err(Incomplete::Twice { .. }));
            prop_assert!(is_twice || gone.parts.is_empty(), "{:?}", twice);
        }
    }

    #[test]
    fn a_proof_leads_to_the_root_and_one_that_was_touched_to_another(
        rows in 8..60u32, epoch in 0..4u32, sample: prop::sample::Index, bit in 0..128usize,
    ) {
        let (plan, rows) = planned(rows, 4);
        let table = SlotTable::at(&plan, Epoch(epoch));
        let root = root(&plan, &table, &rows);
        let sample = SampleNo(sample.index(rows.len()) as u64);
        let proof = prove(&plan, &table, &rows, sample);
        prop_assert_eq!(proof.root(), Some(root));
        let touches: [fn(&mut Proof, usize); 9] = [
            |proof, bit| proof.row.0[bit / 8] ^= 1 << (bit % 8),
            |proof, bit| { let at = bit % proof.path.len(); proof.path[at].0[bit / 8] ^= 1 << (bit % 8) },
            |proof, _| proof.sample.0 ^= 1,
            |proof, _| proof.position ^= 1,
            |proof, _| proof.leaf ^= 1,
            |proof, _| proof.subject.epoch ^= 1,
            |proof, _| proof.subject.samples += 1,
            |proof, bit| proof.subject.plan.0.0[bit / 8] ^= 1 << (bit % 8),
            |proof, _| proof.path.truncate(proof.path.len() - 1),
        ];
        for (number, touch) in touches.iter().enumerate() {
            let mut wrong = proof.clone();
            touch(&mut wrong, bit);
            prop_assert_ne!(wrong.root(), Some(root), "touch {}", number);
        }
    }
}

#[test]
fn a_sample_altered_swapped_read_again_or_left_out_is_noticed() {
    let (plan, rows) = planned(40, 4);
    let table = SlotTable::initial(&plan);
    let reads = plan.step_reads(&table, 0..plan.sample_count(), 0..4);
    let root = root(&plan, &table, &rows);
    let said = |rows: &[RowDigest]| {
        let report = consumed(&plan, Epoch(0), &reads, rows);
        put_together(&plan, Epoch(0), &[report]).expect("complete")
    };
    assert_eq!(said(&rows), root);
    let mut wrong = rows.clone();
    wrong[17].0[3] ^= 4;
    assert_ne!(said(&wrong), root);
    let mut wrong = rows.clone();
    wrong.swap(3, 60);
    assert_ne!(said(&wrong), root, "as many samples, and the same sum of digests");

    let mut consumed = Consumed::new(&plan, Epoch(0));
    let take = |consumed: &mut Consumed, at: usize| {
        let sample = plan.sample(reads[at].grain, reads[at].row);
        consumed.take(&plan, reads[at].position, sample, &rows[sample.0 as usize])
    };
    (0..8).for_each(|at| take(&mut consumed, at).expect("in turn"));
    let error = take(&mut consumed, 7).expect_err("again").to_string();
    assert_eq!(error, "position 7 was read out of turn: partition 3 was at position 11");
    (8..12).for_each(|at| take(&mut consumed, at).expect("a refused report changed nothing"));
    (13..reads.len())
        .for_each(|at| take(&mut consumed, at).expect("another rank may read what lies between"));
    let missing = put_together(&plan, Epoch(0), &[consumed.report()]).unwrap_err().to_string();
    assert_eq!(missing, "1 samples are in no report, the first is that of partition 0 at position 12");
}

#[test]
fn reports_of_another_epoch_and_of_samples_that_are_not_there_are_refused() {
    let (plan, rows) = planned(40, 4);
    let reads = plan.step_reads(&SlotTable::initial(&plan), 0..plan.sample_count(), 0..4);
    let report = consumed(&plan, Epoch(0), &reads, &rows);
    let refused = |report: &ConsumedReport, epoch| {
        put_together(&plan, Epoch(epoch), std::slice::from_ref(report)).unwrap_err().to_string()
    };
    assert!(refused(&report, 1).contains("a report is of epoch 0"));
    assert!(refused(&ConsumedReport { format: 2, ..report.clone() }, 0).contains("use a newer one"));
    let mut beyond = report.parts[0].clone();
    beyond.push(NodeHash([0; 32]));
    assert!(refused(&ConsumedReport { parts: vec![beyond], ..report }, 0).contains("an epoch has 101"));
}

#[test]
fn roots_are_what_the_format_document_says() {
    let subject =
        Subject { plan: PlanId::of(b"plan"), version: VersionId::of(b"version"), epoch: 1, samples: 7 };
    let leaf = |number: u64| {
        let row = RowDigest::of(&number.to_le_bytes());
        NodeHash(LEAF.of(&leaf_bytes(SampleNo(number), 6 - number, &row)))
    };
    let mut tree = Part::at(0);
    (0..7).for_each(|number| tree.push(leaf(number)));
    assert_eq!(leaf(3).to_string(), "07b016cd5c469cf0df59a4555779fa1f316f4da6cb1d051905c13a75d2af3cd6");
    let root = subject.seal(tree.root().unwrap()).to_string();
    assert_eq!(root, "586dc7821aa0b912ba9f4d7a5d85bd88fd498512b8eee73c9fe44eda4dfbaa9b");
}
