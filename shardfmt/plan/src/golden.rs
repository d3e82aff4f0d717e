//! The golden file, written by the Python reference (`tests/reference/plan.py golden`), byte for byte.
//!
//! The orders of a released plan format never change: if this test fails, the code is wrong, not the file.

use serde::{Deserialize, Serialize};

use super::*;
use crate::digest::{Digest, from_hex};

const GOLDEN: &str = include_str!("../../testdata/plan-golden.json");
/// Versions up to this many samples have their tables and orders written out.
const WRITTEN_OUT: u64 = 200;

#[derive(Deserialize)]
struct Golden {
    permutations: Vec<GoldenPermutation>,
    plans: Vec<GoldenPlan>,
}

#[derive(Serialize, Deserialize)]
struct GoldenPermutation {
    seed: u64,
    tag: u8,
    epoch: u32,
    index: u32,
    key: String,
    n: u64,
    first: Vec<u64>,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct GoldenPlan {
    name: String,
    document: PlanDocument,
    id: PlanId,
    shard_rows: Vec<u32>,
    /// Their encoding, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strata: Option<String>,
    quotas: Vec<u64>,
    shorts: Vec<Vec<GrainNo>>,
    epochs: Vec<GoldenEpoch>,
    shares: Vec<GoldenShares>,
}

/// Which virtual rank reads each position, in steps of a size from the epoch's start on.
#[derive(Serialize, Deserialize)]
struct GoldenShares {
    virtual_ranks: u32,
    batch: u64,
    last: Vec<u64>,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct GoldenEpoch {
    epoch: Epoch,
    slots: Vec<u64>,
    slots_digest: String,
    moves: Vec<u64>,
    first_moves: Vec<[u64; 5]>,
    moves_digest: String,
    order: Vec<u64>,
    order_digest: String,
}

#[test]
fn plans_are_byte_for_byte_those_of_the_reference() {
    let golden: Golden = serde_json::from_str(GOLDEN).expect("the golden file is JSON");
    let permutations = golden.permutations.iter().map(|golden| to_json(&again_permutation(golden)));
    let plans = golden.plans.iter().map(|golden| to_json(&again_plan(golden)));
    let lines = ["{\"permutations\":[".to_owned()]
        .into_iter()
        .chain(comma_separated(permutations))
        .chain(["],\"plans\":[".to_owned()])
        .chain(comma_separated(plans))
        .chain(["]}".to_owned()]);
    let mut expected = GOLDEN.lines();
    for line in lines {
        assert_eq!(Some(line.as_str()), expected.next());
    }
    assert_eq!(expected.next(), None);
}

fn again_permutation(golden: &GoldenPermutation) -> GoldenPermutation {
    let GoldenPermutation { seed, tag, epoch, index, n, .. } = *golden;
    let tag_used = [key::Tag::Exchange, key::Tag::Grains].into_iter().find(|known| *known as u8 == tag);
    let key = key::key(seed, tag_used.expect("a tag the reference uses"), epoch, index);
    let permutation = Permutation::new(&key, n);
    let first: Vec<u64> = (0..n.min(8)).map(|x| permutation.apply(x)).collect();
    assert!((0..).zip(&first).all(|(x, y)| permutation.invert(*y) == x));
    let all = || digest((0..n).map(|x| permutation.apply(x)));
    let digest = if golden.digest.is_empty() { String::new() } else { all() };
    GoldenPermutation { seed, tag, epoch, index, key: Digest(key).to_string(), n, first, digest }
}

fn again_plan(golden: &GoldenPlan) -> GoldenPlan {
    let mut document = golden.document.clone();
    if let Some(strata) = &golden.strata {
        let mut bytes = vec![0; strata.len() / 2];
        from_hex(strata, &mut bytes).expect("strata are hexadecimal");
        document.supply_strata(&bytes).expect("golden strata are those of their document");
        let decoded = Strata::decode(&bytes).expect("golden strata are strata");
        assert_eq!(decoded.encode(), bytes);
    }
    let plan = Plan::new(document, &golden.shard_rows).expect("golden plans fit");
    GoldenPlan {
        name: golden.name.clone(),
        document: plan.document().clone(),
        id: plan.id(),
        shard_rows: golden.shard_rows.clone(),
        strata: golden.strata.clone(),
        quotas: plan.partitions().map(|m| plan.slot_count(m)).collect(),
        shorts: plan.partitions().map(|m| plan.short_grains(m).to_vec()).collect(),
        epochs: golden.epochs.iter().map(|golden| again_epoch(&plan, golden.epoch)).collect(),
        shares: golden.shares.iter().map(|golden| again_shares(&plan, golden)).collect(),
    }
}

fn again_shares(plan: &Plan, golden: &GoldenShares) -> GoldenShares {
    let GoldenShares { virtual_ranks, batch, .. } = *golden;
    let steps = (0..plan.sample_count()).step_by(batch as usize).map(|start| start..start + batch);
    let readers: Vec<u64> =
        steps.flat_map(|step| plan.step_readers(step, virtual_ranks)).map(|v| v.0.into()).collect();
    let last = readers[readers.len().saturating_sub(12)..].to_vec();
    GoldenShares { virtual_ranks, batch, last, digest: digest(readers) }
}

fn again_epoch(plan: &Plan, epoch: Epoch) -> GoldenEpoch {
    let table = SlotTable::at(plan, epoch);
    let in_slots = |m| (0..plan.slot_count(m)).map(move |slot| (m, slot));
    let slots: Vec<u64> =
        plan.partitions().flat_map(in_slots).map(|(m, slot)| table.grain(plan, m, slot).0).collect();
    let chunks: Vec<Vec<[u64; 5]>> = (0..plan.document().chunks)
        .map(|chunk| {
            let numbers = |m: Move| [m.entry, m.from.0.0.into(), m.from.1, m.to.0.0.into(), m.to.1];
            plan.moves(epoch, chunk).map(numbers).collect()
        })
        .collect();
    let reads = plan.step_reads(&table, 0..plan.sample_count(), 0..plan.document().partitions);
    let order: Vec<u64> = reads.iter().map(|read| plan.sample(read.grain, read.row).0).collect();
    let written = |numbers: &[u64]| {
        let full = plan.sample_count() <= WRITTEN_OUT;
        numbers[..if full { numbers.len() } else { numbers.len().min(12) }].to_vec()
    };
    GoldenEpoch {
        epoch,
        slots: written(&slots),
        slots_digest: digest(slots),
        moves: chunks.iter().map(|chunk| chunk.len() as u64).collect(),
        first_moves: chunks.concat().into_iter().take(4).collect(),
        moves_digest: digest(chunks.concat().concat()),
        order: written(&order),
        order_digest: digest(order),
    }
}

fn digest(numbers: impl IntoIterator<Item = u64>) -> String {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    Digest::of(&bytes).to_string()
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

fn comma_separated(lines: impl ExactSizeIterator<Item = String>) -> impl Iterator<Item = String> {
    let last = lines.len() - 1;
    lines.enumerate().map(move |(at, line)| if at == last { line } else { line + "," })
}
