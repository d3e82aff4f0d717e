use proptest::prelude::*;
use proptest::strategy::Strategy as _;

use super::Strategy;
use super::*;

fn packings() -> impl proptest::strategy::Strategy<Value = Packing> {
    let strategies =
        [Strategy::ConcatThenSplit, Strategy::FirstFit, Strategy::BestFit, Strategy::BestFitDecreasing];
    let strategy = prop::sample::select(strategies.to_vec());
    let long = prop::sample::select(vec![Long::Split, Long::Truncate, Long::Drop]);
    (1u32..300, strategy, long, 0usize..30, 0u64..3000, any::<bool>()).prop_map(
        |(length, strategy, long, window, window_tokens, carry)| Packing {
            length,
            strategy,
            long,
            window,
            window_tokens,
            carry,
        },
    )
}

proptest! {
    #[test]
    fn a_stream_is_packed_as_the_list_for_any_way_to_cut_it(
        packing in packings(),
        lengths in prop::collection::vec(0u32..400, 0..300),
        cuts in prop::collection::vec(0usize..20, 0..100),
    ) {
        let mut packer = Packer::new(packing).expect("a length");
        let mut packed = Packed::new();
        let mut rest = &lengths[..];
        for cut in cuts {
            let (chunk, later) = rest.split_at(cut.min(rest.len()));
            packer.extend(chunk.iter().copied(), &mut packed).expect("nothing raises");
            rest = later;
            // As in a process that was stopped here.
            let saved = serde_json::to_string(&packer).expect("saves");
            packer = serde_json::from_str(&saved).expect("reads its own");
        }
        for &length in rest {
            packed.append(packer.push(length).expect("nothing raises"));
        }
        let (last, stats) = packer.finish();
        packed.append(last);
        prop_assert_eq!((packed, stats), packing.pack(&lengths).expect("nothing raises"));
    }

    #[test]
    fn no_more_than_a_window_waits(packing in packings(), lengths in prop::collection::vec(0u32..400, 0..300)) {
        let mut packer = Packer::new(packing).expect("a length");
        for length in lengths {
            packer.push(length).expect("nothing raises");
            let (pieces, tokens) = packer.waiting();
            if packing.strategy == Strategy::ConcatThenSplit {
                prop_assert!(tokens < u64::from(packing.length));
            } else {
                prop_assert!(!packing.is_full(pieces, tokens));
            }
        }
    }

    #[test]
    fn no_document_waits_for_more_than_four_windows(lengths in prop::collection::vec(1u32..100, 0..400)) {
        let packing = Packing { window: 16, ..Packing::new(100) };
        let mut packer = Packer::new(packing).expect("a length");
        for length in lengths {
            packer.push(length).expect("all fit");
            let latest = packer.stats().documents;
            let oldest = packer.window.first().map_or(latest, |waiting| waiting.piece.document);
            prop_assert!(latest - oldest <= 16 * (u64::from(Packing::MOST_WAITS) + 1));
        }
    }
}

#[test]
fn a_refused_document_changes_nothing() {
    let mut packer = Packer::new(Packing { long: Long::Raise, ..Packing::new(4) }).expect("a length");
    packer.push(3).expect("fits");
    assert_eq!(packer.push(5), Err(PackError::Long { document: 1, tokens: 5, length: 4 }));
    packer.push(1).expect("fits");
    let (packed, stats) = packer.finish();
    assert_eq!((packed.len(), stats.documents, stats.padding), (1, 2, 0));
}

#[test]
fn a_changed_packer_is_refused() {
    let saved = |window: &str| {
        format!(
            r#"{{"packing": {{"length": 4, "window": 2}}, "stats": {{"documents": 1, "empty": 0, "cut": 0, "truncated": 0,
            "truncated_tokens": 0, "dropped": 0, "dropped_tokens": 0, "sequences": 0, "tokens": 0, "padding": 0}},
            "window": [{window}]}}"#
        )
    };
    let piece = |document: u64, length: u32| {
        format!(r#"[{{"document": {document}, "start": 0, "length": {length}}}, 0]"#)
    };
    assert!(serde_json::from_str::<Packer>(&saved(&piece(0, 4))).is_ok());
    for window in [piece(0, 5), piece(0, 0), piece(1, 4), [piece(0, 1), piece(0, 1)].join(",")] {
        assert!(serde_json::from_str::<Packer>(&saved(&window)).is_err(), "{window}");
    }
}
