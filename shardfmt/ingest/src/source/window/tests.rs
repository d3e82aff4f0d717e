use proptest::prelude::*;
use shardd_packing::{Long, Packing, Strategy};

use super::*;

fn window(strategy: Strategy, long: Long, length: u32) -> Window<u32> {
    Window::new(Packing { strategy, long, ..Packing::new(length) }).expect("a length")
}

/// Each document's own tokens: its number times 1000, and on.
fn documents(lengths: &[usize]) -> Vec<Vec<u32>> {
    let document =
        |(number, length): (u32, &usize)| (0..*length as u32).map(|at| number * 1000 + at + 1).collect();
    (0..).zip(lengths).map(document).collect()
}

/// The documents of each sequence, cut where they begin.
fn pieces(sequences: &Sequences<u32>, length: usize) -> Vec<Vec<u32>> {
    let mut starts = sequences.starts.iter().map(|start| *start as usize);
    let mut pieces = Vec::new();
    for (row, (count, used)) in sequences.documents.iter().zip(&sequences.lengths).enumerate() {
        let tokens = &sequences.tokens[row * length..(row + 1) * length];
        assert!(tokens[*used as usize..].iter().all(|token| *token == 0), "zeros behind the last document");
        let mut begins: Vec<usize> = starts.by_ref().take(*count).collect();
        assert_eq!(begins[0], 0);
        begins.push(*used as usize);
        pieces.extend(begins.windows(2).map(|ends| tokens[ends[0]..ends[1]].to_vec()));
    }
    pieces
}

proptest! {
    #[test]
    fn every_document_is_in_one_sequence_as_a_whole_or_cut_to_size(
        lengths in prop::collection::vec(0usize..40, 1..80), length in 4usize..30, chosen in 0usize..4, long in 0usize..3,
    ) {
        let strategies = [
            Strategy::FirstFit, Strategy::FirstFitDecreasing, Strategy::BestFit, Strategy::BestFitDecreasing,
        ];
        let long = [Long::Split, Long::Truncate, Long::Drop][long];
        let mut window = window(strategies[chosen], long, length as u32);
        let documents = documents(&lengths);
        let mut found = Vec::new();
        for (number, document) in documents.iter().enumerate() {
            window.push(document.clone()).expect("no error is asked for");
            if number % 7 == 0 {
                while window.count() > 0 {
                    found.extend(pieces(&window.take(3), length));
                }
            }
        }
        window.close();
        while window.count() > 0 {
            found.extend(pieces(&window.take(3), length));
        }
        let mut expected: Vec<Vec<u32>> = documents.iter().filter(|document| !document.is_empty()).flat_map(|document| {
            match long {
                Long::Drop if document.len() > length => Vec::new(),
                Long::Truncate => vec![document[..document.len().min(length)].to_vec()],
                _ => document.chunks(length).map(<[u32]>::to_vec).collect(),
            }
        }).collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
        prop_assert!(window.waiting.is_empty(), "no tokens stay");
        prop_assert_eq!(window.stats().documents, lengths.len() as u64);
    }
}

#[test]
fn a_document_that_is_too_long_is_refused_and_the_others_stay() {
    let mut window = window(Strategy::BestFit, Long::Raise, 4);
    window.push(vec![1, 2, 3]).expect("it fits");
    let error = window.push(vec![5; 9]).expect_err("too long");
    assert!(error.to_string().contains("has 9 tokens"), "{error}");
    window.push(vec![4]).expect("it fits");
    window.close();
    assert_eq!(window.take(9).tokens, [1, 2, 3, 4]);
}
