use proptest::prelude::*;

use super::*;

fn ways(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("not zero")
}

fn sums(costs: &[u64], assignment: &[u32], ways: u32) -> (Vec<usize>, Vec<u128>) {
    let (mut items, mut sums) = (vec![0; ways as usize], vec![0; ways as usize]);
    for (&cost, &way) in costs.iter().zip(assignment) {
        items[way as usize] += 1;
        sums[way as usize] += u128::from(cost);
    }
    (items, sums)
}

/// The least largest sum of any deal with these sizes.
fn best(costs: &[u64], ways: u32) -> u128 {
    let most = costs.len().div_ceil(ways as usize);
    let full = costs.len() % ways as usize;
    let deals = (ways as usize).pow(costs.len() as u32);
    let mut best = u128::MAX;
    for deal in 0..deals {
        let mut rest = deal;
        let assignment: Vec<u32> = costs
            .iter()
            .map(|_| {
                let way = rest % ways as usize;
                rest /= ways as usize;
                way as u32
            })
            .collect();
        let (items, sums) = sums(costs, &assignment, ways);
        let allowed = items.iter().all(|&items| items == most || (full > 0 && items + 1 == most));
        if allowed {
            best = best.min(sums.into_iter().max().unwrap_or(0));
        }
    }
    best
}

proptest! {
    #[test]
    fn each_way_gets_equally_many_or_one_more(costs in prop::collection::vec(any::<u64>(), 0..200), count in 1u32..70) {
        let assignment = balance(&costs, ways(count));
        let (items, _) = sums(&costs, &assignment, count);
        let (least, most) = (items.iter().min(), items.iter().max());
        prop_assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 1));
        prop_assert_eq!(items.iter().sum::<usize>(), costs.len());
    }

    #[test]
    fn ways_are_numbered_by_their_first_items(costs in prop::collection::vec(0u64..100, 0..100), count in 1u32..20) {
        let mut seen = 0;
        for way in balance(&costs, ways(count)) {
            prop_assert!(way <= seen);
            seen = seen.max(way + 1);
        }
    }

    #[test]
    fn the_sums_do_not_depend_on_the_order_of_costs(costs in prop::collection::vec(0u64..50, 1..100), count in 1u32..20, turn in 0usize..100) {
        let mut turned = costs.clone();
        turned.rotate_left(turn % costs.len());
        turned.reverse();
        let (_, mut before) = sums(&costs, &balance(&costs, ways(count)), count);
        let (_, mut after) = sums(&turned, &balance(&turned, ways(count)), count);
        before.sort_unstable();
        after.sort_unstable();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn few_items_are_dealt_about_as_well_as_by_trying_all_deals(costs in prop::collection::vec(1u64..1000, 1..9), count in 1u32..4) {
        let (_, sums) = sums(&costs, &balance(&costs, ways(count)), count);
        let (largest, best) = (sums.into_iter().max().unwrap_or(0), best(&costs, count));
        prop_assert!(largest * 100 <= best * 110, "{} of {}", largest, best);
    }
}

#[test]
fn no_items_and_one_way_are_no_special_case() {
    assert_eq!(balance(&[], ways(3)), [0; 0]);
    assert_eq!(balance(&[5, 6], ways(1)), [0, 0]);
    assert_eq!(balance(&[5, 6], ways(3)), [0, 1]);
    assert_eq!(imbalance(&[0, 0], &[0, 1], ways(2)), 1.0);
    assert_eq!(imbalance(&[3, 1], &[0, 1], ways(2)), 1.5);
}

#[test]
fn the_cost_of_a_long_piece_is_more_than_that_of_its_parts() {
    let model = CostModel { token: 10, square: 2 };
    let piece = |length| Piece { document: 0, start: 0, length };
    assert_eq!(model.cost(&[piece(4)]), 40 + 32);
    assert_eq!(model.cost(&[piece(2), piece(2)]), 40 + 16);
    assert_eq!(CostModel { token: u64::MAX, square: u64::MAX }.cost(&[piece(9), piece(9)]), u64::MAX);
}
