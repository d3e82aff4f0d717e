use proptest::prelude::*;
use proptest::strategy::Strategy as _;

use super::Strategy;
use super::*;
use crate::packed::Piece;

const STRATEGIES: [Strategy; 5] = [
    Strategy::ConcatThenSplit,
    Strategy::FirstFit,
    Strategy::FirstFitDecreasing,
    Strategy::BestFit,
    Strategy::BestFitDecreasing,
];

fn strategies() -> impl proptest::strategy::Strategy<Value = Strategy> {
    prop::sample::select(&STRATEGIES[..])
}

fn fits() -> impl proptest::strategy::Strategy<Value = Strategy> {
    prop::sample::select(&STRATEGIES[1..])
}

fn packings() -> impl proptest::strategy::Strategy<Value = Packing> {
    let long = prop::sample::select(&[Long::Split, Long::Truncate, Long::Drop][..]);
    (1u32..60, strategies(), long, 0usize..40, 0u64..300, any::<bool>()).prop_map(
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

fn documents() -> impl proptest::strategy::Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..100, 0..200)
}

/// The sequence of each document by the definition: all open sequences are looked at for each document.
fn naive(strategy: Strategy, length: u32, lengths: &[u32]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    if matches!(strategy, Strategy::FirstFitDecreasing | Strategy::BestFitDecreasing) {
        order.sort_by_key(|&document| std::cmp::Reverse(lengths[document]));
    }
    let best = matches!(strategy, Strategy::BestFit | Strategy::BestFitDecreasing);
    let mut room: Vec<u32> = Vec::new();
    let mut sequences: Vec<Vec<usize>> = Vec::new();
    for document in order {
        let fits = (0..room.len()).filter(|&sequence| room[sequence] >= lengths[document]);
        let found = fits.min_by_key(|&sequence| (if best { room[sequence] } else { 0 }, sequence));
        let sequence = found.unwrap_or_else(|| {
            room.push(length);
            sequences.push(Vec::new());
            room.len() - 1
        });
        room[sequence] -= lengths[document];
        sequences[sequence].push(document);
    }
    for sequence in &mut sequences {
        sequence.sort_unstable();
    }
    sequences.sort_unstable();
    sequences
}

proptest! {
    #[test]
    fn each_token_is_in_one_sequence_or_counted(packing in packings(), lengths in documents()) {
        let (packed, stats) = packing.pack(&lengths).expect("nothing raises");
        let mut pieces: Vec<Piece> = packed.pieces().to_vec();
        pieces.sort_unstable();
        let mut tokens = vec![0u64; lengths.len()];
        for piece in &pieces {
            let document = piece.document as usize;
            prop_assert!(piece.length > 0);
            prop_assert_eq!(u64::from(piece.start), tokens[document], "pieces are consecutive");
            tokens[document] += u64::from(piece.length);
        }
        let missing: u64 = lengths.iter().zip(&tokens).map(|(&length, placed)| u64::from(length) - placed).sum();
        prop_assert_eq!(missing, stats.truncated_tokens + stats.dropped_tokens);
        prop_assert_eq!(stats.documents as usize, lengths.len());
        prop_assert_eq!(stats.tokens, tokens.iter().sum::<u64>());
        prop_assert_eq!(stats.empty as usize, lengths.iter().filter(|&&length| length == 0).count());
        let cut = (0..lengths.len()).filter(|&document| pieces.iter().filter(|piece| piece.document == document as u64).count() > 1);
        prop_assert_eq!(stats.cut as usize, cut.count());
        prop_assert!(stats.sequences >= stats.least_sequences(packing.length));
    }

    #[test]
    fn a_sequence_has_its_length_with_padding_and_the_order_of_documents(packing in packings(), lengths in documents()) {
        let (packed, stats) = packing.pack(&lengths).expect("nothing raises");
        prop_assert_eq!(packed.len() as u64, stats.sequences);
        prop_assert_eq!(packed.padding().iter().map(|&padding| u64::from(padding)).sum::<u64>(), stats.padding);
        for (pieces, &padding) in packed.iter().zip(packed.padding()) {
            prop_assert!(!pieces.is_empty());
            prop_assert!(pieces.is_sorted());
            prop_assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u32>() + padding, packing.length);
        }
        if packing.window == 0 && packing.window_tokens == 0 {
            prop_assert!(packed.iter().map(|pieces| pieces[0]).is_sorted(), "sequences have the order of their first pieces");
        }
    }

    #[test]
    fn fits_are_those_of_the_definition(strategy in fits(), lengths in prop::collection::vec(1u32..=40, 0..300)) {
        let (packed, _) = Packing { strategy, ..Packing::new(40) }.pack(&lengths).expect("all fit");
        let sequences: Vec<Vec<usize>> =
            packed.iter().map(|pieces| pieces.iter().map(|piece| piece.document as usize).collect()).collect();
        prop_assert_eq!(sequences, naive(strategy, 40, &lengths));
    }

    #[test]
    fn windows_without_carry_are_packed_on_their_own(packing in packings(), strategy in fits(), lengths in documents()) {
        let packing = Packing { strategy, carry: false, window_tokens: 0, long: Long::Truncate, window: packing.window.max(1), ..packing };
        let lengths: Vec<u32> = lengths.into_iter().filter(|&length| length > 0).collect();
        let (packed, _) = packing.pack(&lengths).expect("nothing raises");
        let mut expected = Vec::new();
        for (window, chunk) in lengths.chunks(packing.window).enumerate() {
            let chunk: Vec<u32> = chunk.iter().map(|&length| length.min(packing.length)).collect();
            let first = window * packing.window;
            expected.extend(naive(packing.strategy, packing.length, &chunk).into_iter().map(|documents| {
                documents.into_iter().map(|document| (first + document) as u64).collect::<Vec<u64>>()
            }));
        }
        let documents: Vec<Vec<u64>> =
            packed.iter().map(|pieces| pieces.iter().map(|piece| piece.document).collect()).collect();
        prop_assert_eq!(documents, expected);
    }

    #[test]
    fn the_order_of_equal_sets_of_lengths_does_not_change_the_padding(mut lengths in prop::collection::vec(1u32..=40, 0..100), seed: u64) {
        for strategy in [Strategy::FirstFitDecreasing, Strategy::BestFitDecreasing] {
            let packing = Packing { strategy, ..Packing::new(40) };
            let before = packing.pack(&lengths).expect("all fit").1;
            for index in (1..lengths.len()).rev() {
                lengths.swap(index, (seed.wrapping_mul(index as u64 + 7) % (index as u64 + 1)) as usize);
            }
            prop_assert_eq!(packing.pack(&lengths).expect("all fit").1, before);
        }
    }
}

#[test]
fn concatenation_pads_the_last_sequence_only() {
    let packing = Packing { strategy: Strategy::ConcatThenSplit, ..Packing::new(4) };
    let (packed, stats) = packing.pack(&[3, 6, 1]).expect("packs");
    let pieces = |sequence| {
        packed.get(sequence).map(|pieces: &[Piece]| {
            pieces.iter().map(|piece| (piece.document, piece.start, piece.length)).collect::<Vec<_>>()
        })
    };
    assert_eq!(pieces(0), Some(vec![(0, 0, 3), (1, 0, 1)]));
    assert_eq!(pieces(1), Some(vec![(1, 1, 4)]));
    assert_eq!(pieces(2), Some(vec![(1, 5, 1), (2, 0, 1)]));
    assert_eq!(pieces(3), None);
    assert_eq!(packed.padding(), [0, 0, 2]);
    assert_eq!((stats.cut, stats.sequences), (1, 3));
}

#[test]
fn a_long_document_is_split_truncated_dropped_or_refused() {
    let pack = |long| Packing { long, ..Packing::new(4) }.pack(&[9, 2]);
    let (packed, stats) = pack(Long::Split).expect("packs");
    assert_eq!((packed.len(), stats.cut, stats.padding), (3, 1, 1));
    let (packed, stats) = pack(Long::Truncate).expect("packs");
    assert_eq!((packed.len(), stats.truncated, stats.truncated_tokens), (2, 1, 5));
    let (packed, stats) = pack(Long::Drop).expect("packs");
    assert_eq!((packed.len(), stats.dropped, stats.dropped_tokens), (1, 1, 9));
    assert_eq!(pack(Long::Raise), Err(PackError::Long { document: 0, tokens: 9, length: 4 }));
}

#[test]
fn a_length_without_positions_is_refused() {
    for length in [0, 1 << 31] {
        assert_eq!(Packing::new(length).pack(&[]), Err(PackError::Length(length)));
    }
    let (packed, _) =
        Packing::new(i32::MAX as u32).pack(&[7, u32::MAX]).expect("a length of 2^31 - 1 is one");
    assert_eq!(packed.len(), 3);
}

#[test]
fn names_of_other_programs_are_read() {
    let packing: Packing =
        serde_json::from_str(r#"{"length": 8, "strategy": "bfd", "long": "drop"}"#).expect("reads");
    assert_eq!(packing, Packing { long: Long::Drop, ..Packing::new(8) });
    assert!(serde_json::from_str::<Packing>(r#"{"length": 8, "size": 9}"#).is_err());
}
