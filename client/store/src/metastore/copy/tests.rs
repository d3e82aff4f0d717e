use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn copy(epoch: u64, node: &str, settled: u64) -> MetadataCopy {
    let keeper = MetastoreAddress {
        node: node.parse().expect("a name"),
        http: "http://127.0.0.1:1".to_owned(),
        quic: "127.0.0.1:2".parse().expect("an address"),
    };
    let entry = |key: &str, value: &[u8]| CopiedEntry { key: key.into(), revision: 1, value: value.into() };
    let entries = vec![entry("refs/a", b"{\"x\":1}"), entry("refs/b", &[0xff, 0, 7]), entry("refs/c", b"")];
    MetadataCopy {
        epoch,
        keeper,
        settled,
        revision: settled,
        last_lease: 3,
        taken_at: 4,
        entries,
        moved_to: None,
    }
}

fn stores() -> (TempDir, [Arc<Origin>; 2]) {
    let directory = TempDir::new().expect("a directory");
    let memory = Origin::open("memory://").expect("opens");
    let local = Origin::open_dir(directory.path()).expect("opens");
    (directory, [Arc::new(memory), Arc::new(local)])
}

fn shelf(origin: &Arc<Origin>) -> CopyShelf {
    CopyShelf::of(Arc::clone(origin), Digest::of(b"an authority"))
}

#[tokio::test]
async fn a_copy_is_replaced_only_by_who_has_read_it_and_so_fences_who_kept_the_metadata_before() {
    let (_directory, stores) = stores();
    for origin in stores {
        let shelf = shelf(&origin);
        assert!(matches!(shelf.read(None).await.expect("reads"), Found::Absent));
        let Replaced::Done(first) = shelf.replace(&copy(1, "n1", 5), None).await else { panic!("put") };
        assert!(matches!(shelf.replace(&copy(1, "n9", 5), None).await, Replaced::Lost));
        assert!(matches!(shelf.read(Some(&first)).await.expect("reads"), Found::Unchanged));
        let Replaced::Done(second) = shelf.replace(&copy(2, "n2", 5), Some(&first)).await else {
            panic!("it was the one")
        };
        // The node before does not know that it is before.
        assert!(matches!(shelf.replace(&copy(1, "n1", 6), Some(&first)).await, Replaced::Lost));
        let Found::Copy(found, tag) = shelf.read(Some(&first)).await.expect("reads") else { panic!("there") };
        assert_eq!((found, tag), (copy(2, "n2", 5), second));
        assert_eq!(all(&origin).await.expect("lists"), [copy(2, "n2", 5)]);
    }
}

#[tokio::test]
async fn of_all_who_replace_a_copy_at_once_one_has_replaced_it() {
    let (_directory, stores) = stores();
    for origin in stores {
        let shelf = shelf(&origin);
        let Replaced::Done(base) = shelf.replace(&copy(1, "n1", 0), None).await else { panic!("put") };
        let copies: Vec<_> = (1..9).map(|settled| copy(1, "n1", settled)).collect();
        let swaps =
            futures::future::join_all(copies.iter().map(|copy| shelf.replace(copy, Some(&base)))).await;
        let won: Vec<u64> =
            (1..).zip(&swaps).filter(|(_, swap)| matches!(swap, Replaced::Done(_))).map(|(n, _)| n).collect();
        let Found::Copy(found, _) = shelf.read(None).await.expect("reads") else { panic!("there") };
        assert_eq!(won, [found.settled], "{swaps:?}");
    }
}

#[tokio::test]
async fn clusters_over_one_store_have_copies_of_their_own() {
    let (_directory, [origin, _]) = stores();
    let other = CopyShelf::of(Arc::clone(&origin), Digest::of(b"another"));
    assert!(matches!(shelf(&origin).replace(&copy(1, "n1", 5), None).await, Replaced::Done(_)));
    assert!(matches!(other.read(None).await.expect("reads"), Found::Absent));
    let keepers = async |shelf: &CopyShelf| {
        let copies = shelf.of_others().await.expect("reads");
        copies.into_iter().map(|copy| copy.keeper.node.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((keepers(&other).await, keepers(&shelf(&origin)).await), (vec!["n1".to_owned()], vec![]));
}

proptest! {
    #[test]
    fn a_copy_with_a_flipped_bit_is_no_copy(at: prop::sample::Index, bit in 0..8u8) {
        let mut bytes = encode(&copy(1, "n1", 5));
        prop_assert_eq!(decode::<MetadataCopy>(&bytes), Ok(copy(1, "n1", 5)));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode::<MetadataCopy>(&bytes).is_err());
    }
}
