//! Records as values of the metastore, where one that cannot be read is an error.

use serde::de::DeserializeOwned;
use shardd_store::metastore::Entry;

use super::EngineError;

pub(super) use shardd_store::metastore::packed::{pack, parse};

/// The record in a value, for those who would replace it.
pub(super) fn understood<V: DeserializeOwned>(key: &str, entry: &Entry) -> Result<V, EngineError> {
    parse(entry).ok_or_else(|| EngineError::NotUnderstood { key: key.to_owned() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shardd_api::node::NodeId;
    use shardd_api::placement::{Host, place};
    use shardd_api::protocol::{Placement, RanksRecord};
    use shardd_store::metastore::MAX_VALUE_BYTES;
    use shardd_store::metastore::packed::MAGIC;

    use super::*;

    fn entry(value: Vec<u8>) -> Entry {
        Entry { value, revision: 1 }
    }

    #[test]
    fn the_largest_cluster_fits_into_a_value() {
        // Names as nodes take them from their keys, which nothing can compress.
        let name = |n: u32| format!("n-{}", &shardfmt::Digest::of(&n.to_le_bytes()).to_string()[..8]);
        let mut nodes: Vec<NodeId> = (0..4096).map(|n| name(n).parse().expect("a name")).collect();
        nodes.sort();
        let preferred: Vec<_> =
            (0..16384_usize).map(|p| Some(nodes[p * 2_654_435_761 % 4096].clone())).collect();
        let hosts: Vec<Host> = nodes.iter().cloned().map(Host::roomy).collect();
        let placement = place(&hosts, &preferred, None).expect("a placement");
        let value = pack(&placement);
        assert!(value.len() <= MAX_VALUE_BYTES, "{}", value.len());
        assert_eq!(parse::<Placement>(&entry(value)), Some(placement.clone()));

        // A quarter of the nodes goes: their partitions are moved, and remembered.
        let left: Vec<Host> = hosts.into_iter().skip(1024).collect();
        let placement = place(&left, &preferred, Some(&placement)).expect("another placement");
        let value = pack(&placement);
        assert!(value.len() <= MAX_VALUE_BYTES, "{}", value.len());
        assert_eq!(parse::<Placement>(&entry(value)), Some(placement));

        let nodes = nodes.into_iter().map(Some).collect();
        let ranks = RanksRecord {
            launch: 1,
            world: 4096,
            epoch: 0,
            reached: 0,
            nodes,
            seen: Some(1 << 32),
            lost: Vec::new(),
        };
        let value = pack(&ranks);
        assert!(value.len() <= MAX_VALUE_BYTES, "{}", value.len());
        assert_eq!(parse::<RanksRecord>(&entry(value)), Some(ranks));
    }

    #[test]
    fn small_records_are_text_and_bombs_do_not_go_off() {
        assert_eq!(pack(&[1, 2]), b"[1,2]");
        let bomb = zstd::bulk::compress(&vec![b' '; 64 << 20], 19).expect("compressed");
        assert_eq!(parse::<u64>(&entry(bomb)), None);
    }

    proptest! {
        #[test]
        fn what_is_packed_is_read_and_what_is_not_is_refused(
            numbers in proptest::collection::vec(any::<u64>(), 0..4000),
            noise in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            prop_assert_eq!(parse::<Vec<u64>>(&entry(pack(&numbers))), Some(numbers));
            let noise = [&MAGIC[..], &noise].concat();
            prop_assert_eq!(parse::<Vec<u64>>(&entry(noise)), None);
        }
    }
}
