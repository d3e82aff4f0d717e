//! Which tokens have a loss: those of the assistant's parts of a text. Pure: places and parts in, marks out.

use std::ops::Range;

/// For each token, whether it is of a part: those from the first to the last token that shares a byte with the part are. So
/// does `return_assistant_tokens_mask` of transformers.
///
/// `places` are the bytes of the text that tokens come from, and `parts` are in order, none overlapping another.
pub(super) fn of_parts(places: &[Range<usize>], parts: &[Range<usize>]) -> Vec<bool> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; parts.len()];
    for (token, place) in places.iter().enumerate().filter(|(_, place)| !place.is_empty()) {
        let from = parts.partition_point(|part| part.end <= place.start);
        let touched = parts.iter().zip(&mut spans).skip(from);
        for (_, span) in touched.take_while(|(part, _)| part.start < place.end) {
            let (first, _) = span.unwrap_or((token, token));
            *span = Some((first, token));
        }
    }
    let mut marks = vec![false; places.len()];
    for (first, last) in spans.into_iter().flatten() {
        marks[first..=last].fill(true);
    }
    marks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ranges in order, which may follow each other at once.
    fn ranges(steps: &[(usize, usize)]) -> Vec<Range<usize>> {
        let mut at = 0;
        let range = |&(gap, length): &(usize, usize)| {
            let start = at + gap;
            at = start + length;
            start..at
        };
        steps.iter().map(range).collect()
    }

    proptest! {
        #[test]
        fn a_token_has_a_loss_if_it_shares_a_byte_with_a_part_or_lies_between_two_that_do(
            places in prop::collection::vec((0..2usize, 0..5usize), 0..40),
            parts in prop::collection::vec((0..4usize, 1..9usize), 0..12),
        ) {
            let (places, parts) = (ranges(&places), ranges(&parts));
            let shares = |place: &Range<usize>, part: &Range<usize>| place.clone().any(|byte| part.contains(&byte));
            let expected = places.iter().enumerate().map(|(token, _)| {
                parts.iter().any(|part| {
                    places[..=token].iter().any(|place| shares(place, part))
                        && places[token..].iter().any(|place| shares(place, part))
                })
            });
            prop_assert_eq!(of_parts(&places, &parts), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_token_across_the_border_of_a_part_is_of_the_part() {
        let marks = of_parts(&[0..2, 2..5, 5..6, 6..6, 6..9, 9..12], &[3..8, 9..10]);
        assert_eq!(marks, [false, true, true, true, true, true]);
        assert_eq!(of_parts(&[0..3, 3..6], std::slice::from_ref(&(3..6))), [false, true]);
        assert_eq!(of_parts(&[0..3, 3..6], &[]), [false, false]);
    }
}
