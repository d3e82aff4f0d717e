use proptest::prelude::*;

use super::*;

fn piece(document: u64, length: u32) -> Piece {
    Piece { document, start: 0, length }
}

/// `DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)` of transformers 5.23 for features whose
/// input_ids are [10, 11, 12], [20] and [30, 31].
#[test]
fn keys_are_those_of_transformers() {
    let rows = [vec![piece(4, 3), piece(7, 1)], vec![piece(9, 2)]];
    let batch = flatten(rows.iter().map(Vec::as_slice), Padding::Exclude).expect("small");
    assert_eq!(batch.position_ids, [0, 1, 2, 0, 0, 1]);
    assert_eq!(batch.cu_seq_lens, [0, 3, 4, 6]);
    assert_eq!(batch.max_length, 3);
    assert_eq!(batch.documents, [4, 7, 9]);
    assert_eq!(batch.segment_ids(), [0, 0, 0, 1, 2, 2]);
    assert_eq!(batch.labels(&[10, 11, 12, 20, 30, 31], -100), Ok(vec![-100, 11, 12, -100, -100, 31]));
    assert_eq!(batch.labels(&[1], -100), Err(FlatError::Labels { expected: 6, found: 1 }));
}

#[test]
fn padding_is_a_segment_of_its_own() {
    let rows = [vec![piece(4, 3)], vec![piece(5, 5)], vec![]];
    let batch = flatten(rows.iter().map(Vec::as_slice), Padding::Segment { length: 5 }).expect("small");
    assert_eq!(batch.cu_seq_lens, [0, 3, 5, 10, 15]);
    assert_eq!(batch.documents, [4, PADDING_DOCUMENT, 5, PADDING_DOCUMENT]);
    assert_eq!(batch.labels(&[1; 15], 0), Ok(vec![0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0]));
    let refused = flatten([&[piece(4, 3)][..]], Padding::Segment { length: 2 });
    assert_eq!(refused, Err(FlatError::Row { row: 0, tokens: 3, length: 2 }));
}

#[test]
fn too_many_tokens_are_refused() {
    assert_eq!(flatten([&[piece(0, 1 << 31)][..]], Padding::Exclude), Err(FlatError::Tokens));
    assert_eq!(flatten([&[piece(0, 3)][..]], Padding::Segment { length: u32::MAX }), Err(FlatError::Tokens));
}

proptest! {
    #[test]
    fn segments_partition_the_tokens(rows in prop::collection::vec(prop::collection::vec(0u32..20, 0..5), 0..6), padded: bool) {
        let rows: Vec<Vec<Piece>> =
            rows.iter().map(|lengths| (0..).zip(lengths).map(|(document, &length)| piece(document, length)).collect()).collect();
        let padding = if padded { Padding::Segment { length: 100 } } else { Padding::Exclude };
        let batch = flatten(rows.iter().map(Vec::as_slice), padding).expect("small");
        prop_assert_eq!(batch.cu_seq_lens[0], 0);
        prop_assert_eq!(batch.cu_seq_lens.last().copied(), Some(batch.tokens() as i32));
        prop_assert!(batch.cu_seq_lens.windows(2).all(|bounds| bounds[0] < bounds[1]));
        prop_assert_eq!(batch.documents.len() + 1, batch.cu_seq_lens.len());
        prop_assert_eq!(batch.segment_ids().len(), batch.tokens());
        let lengths = batch.cu_seq_lens.windows(2).map(|bounds| bounds[1] - bounds[0]);
        prop_assert_eq!(lengths.max().unwrap_or(0), batch.max_length);
        if padded {
            prop_assert_eq!(batch.tokens(), 100 * rows.len());
        }
    }
}
