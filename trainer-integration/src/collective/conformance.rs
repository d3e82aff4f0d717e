//! What every [`Collective`] must do, written once and run for each implementation.
//!
//! `make(world, timeout)` returns the members of a fresh, connected world in rank order.

use std::time::{Duration, Instant};

use super::{Collective, CollectiveError};

/// Makes a connected world of so many ranks whose operations wait no longer than the duration.
pub type MakeWorld<'a> = &'a dyn Fn(u32, Duration) -> Vec<Box<dyn Collective>>;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

/// Runs the whole suite.
///
/// # Panics
/// If the implementation breaks a promise.
pub fn run(make: MakeWorld<'_>) {
    for world in 1..=8 {
        everyone_receives_what_was_meant_for_it(make(world, LONG));
        gathering_keeps_rank_order_and_every_length(make(world, LONG));
        every_root_can_broadcast(make(world, LONG));
    }
    for world in [2, 5] {
        large_messages_in_all_directions_do_not_block(make(world, LONG));
        numbers_keep_their_bits(make(world, LONG));
    }
    for world in [2, 3, 4, 8] {
        a_rank_that_ends_fails_the_others(make(world, LONG));
        a_rank_that_gives_up_says_why(make(world, LONG));
        a_late_rank_is_named(make(world, SHORT));
    }
    bytes_sent_count_what_left_the_rank(make(3, LONG));
}

fn everyone_receives_what_was_meant_for_it(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        let (rank, world) = (member.rank(), member.world());
        for round in 0..5u8 {
            let outgoing: Vec<[u8; 3]> = (0..world).map(|to| [rank as u8, to as u8, round]).collect();
            let slices: Vec<&[u8]> = outgoing.iter().map(|bytes| &bytes[..]).collect();
            let received = member.exchange(&slices).unwrap();
            assert_eq!(received.len(), world as usize);
            for (from, message) in received.iter().enumerate() {
                assert_eq!(message.bytes(), [from as u8, rank as u8, round]);
            }
        }
        member.barrier().unwrap();
    });
}

fn gathering_keeps_rank_order_and_every_length(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        let mine = vec![member.rank() as u8; member.rank() as usize];
        let all = member.all_gather(&mine).unwrap();
        for (rank, message) in all.iter().enumerate() {
            assert_eq!(message.bytes(), vec![rank as u8; rank]);
        }
    });
}

fn every_root_can_broadcast(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        for root in 0..member.world() {
            let mine = format!("from {}", member.rank());
            let received = member.broadcast(root, mine.as_bytes()).unwrap();
            assert_eq!(received.bytes(), format!("from {root}").as_bytes());
        }
    });
}

fn large_messages_in_all_directions_do_not_block(members: Vec<Box<dyn Collective>>) {
    const LENGTH: usize = 6 << 20; // more than sockets buffer
    each(members, |member| {
        let mine = vec![member.rank() as u8; LENGTH];
        let all = member.all_gather(&mine).unwrap();
        for (rank, message) in all.iter().enumerate() {
            assert_eq!(message.bytes().len(), LENGTH);
            assert!(message.bytes().iter().all(|&byte| byte == rank as u8));
        }
    });
}

fn numbers_keep_their_bits(members: Vec<Box<dyn Collective>>) {
    let numbers = [0.0f32, -0.0, f32::MIN_POSITIVE / 2.0, f32::NAN, f32::NEG_INFINITY, 1.0 / 3.0];
    let bits = numbers.map(f32::to_bits);
    each(members, |member| {
        for message in member.all_gather(bytemuck::bytes_of(&numbers)).unwrap() {
            let received = message.numbers::<f32>().unwrap();
            assert!(received.iter().map(|number| number.to_bits()).eq(bits));
            assert!(message.numbers::<[f32; 4]>().is_none(), "24 bytes are not a whole number of 16");
        }
    });
}

/// The last rank takes part once and is dropped; no other waits for it until the timeout.
fn a_rank_that_ends_fails_the_others(members: Vec<Box<dyn Collective>>) {
    let last = members.len() as u32 - 1;
    let started = Instant::now();
    each(members, |member| {
        if member.rank() == last {
            return member.barrier().unwrap();
        }
        // One that is slow to finish the first operation may hear the bad news already there.
        let why = member.barrier().and_then(|()| member.barrier()).unwrap_err();
        assert!(matches!(why, CollectiveError::Gone { .. } | CollectiveError::Aborted { .. }), "{why:?}");
        assert_eq!(why.rank(), last, "{why}");
        assert_eq!(member.barrier().unwrap_err(), why, "a failed world stays failed");
    });
    assert!(started.elapsed() < LONG / 2, "the others must not wait for the timeout");
}

fn a_rank_that_gives_up_says_why(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        if member.rank() == 0 {
            member.barrier().unwrap();
            member.abort("the disk is full");
            assert!(member.barrier().is_err(), "who gave up takes no further part");
            return;
        }
        let why = member.barrier().and_then(|()| member.barrier()).unwrap_err();
        assert_eq!(why, CollectiveError::Aborted { rank: 0, reason: "the disk is full".to_owned() });
    });
}

/// Rank 0 stays connected and does not come until all others have given up waiting.
fn a_late_rank_is_named(mut members: Vec<Box<dyn Collective>>) {
    let mut late = members.remove(0);
    each(members, |member| {
        let why = member.barrier().unwrap_err();
        assert!(matches!(why, CollectiveError::Late { .. } | CollectiveError::Aborted { .. }), "{why:?}");
        assert_eq!(why.rank(), 0, "{why}");
    });
    // What they sent before they gave up is still there, what comes after is not.
    let why = late.barrier().and_then(|()| late.barrier()).unwrap_err();
    assert_eq!(why.rank(), 0, "{why}");
}

fn bytes_sent_count_what_left_the_rank(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        member.all_gather(&[0; 100]).unwrap();
        assert_eq!(member.bytes_sent(), 200);
    });
}

/// Runs every member in a thread of its own and drops it there.
fn each(members: Vec<Box<dyn Collective>>, run: impl Fn(&mut dyn Collective) + Sync) {
    std::thread::scope(|scope| {
        for mut member in members {
            let run = &run;
            scope.spawn(move || run(&mut *member));
        }
    });
}
