//! What every [`Collective`] must do, written once and run for each implementation.
//!
//! `make(world, timeout)` returns the members of a fresh, connected world in rank order.

use std::time::{Duration, Instant};

use super::sums::{Algorithm, all_reduce_by};
use super::{Among, Collective, CollectiveError, Incoming, Outgoing, PIECE_BYTES, Place};

/// Makes a connected world of a number of ranks whose operations wait no longer than the duration.
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
        two_ranks_can_talk_while_others_do_not(make(world, LONG));
        a_transfer_may_be_sparse_and_have_many_messages(make(world, LONG));
        the_sink_takes_pieces_in_rounds_whoever_is_first(make(world, LONG));
        every_algorithm_sums(make(world, LONG));
    }
    for world in [2, 5] {
        large_messages_in_all_directions_do_not_block(make(world, LONG));
        numbers_keep_their_bits(make(world, LONG));
    }
    for world in [2, 3] {
        another_length_or_operation_than_expected_is_told(make(world, LONG));
    }
    for world in [2, 3, 4, 8] {
        a_rank_that_ends_fails_the_others(make(world, LONG));
        a_rank_that_gives_up_says_why(make(world, LONG));
        a_rank_that_gives_up_while_it_is_sent_to_says_why(make(world, LONG));
        an_abort_is_heard_by_those_who_wait_for_another(make(world, LONG));
        a_late_rank_is_named(make(world, SHORT));
    }
    who_is_waited_for_is_reported(make(3, LONG));
    a_wait_for_several_is_one(make(3, LONG));
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

fn two_ranks_can_talk_while_others_do_not(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        let (rank, world) = (member.rank(), member.world());
        if rank == 0 && world > 1 {
            member.send(1, b"first").unwrap();
            member.send(1, &[]).unwrap();
            assert_eq!(member.receive(world - 1).unwrap().bytes(), b"last");
        }
        if rank == 1 {
            assert_eq!(member.receive(0).unwrap().bytes(), b"first");
            assert_eq!(member.receive(0).unwrap().bytes(), b"");
        }
        if rank == world - 1 && world > 1 {
            member.send(0, b"last").unwrap();
        }
        member.barrier().unwrap();
    });
}

/// Each rank sends the next one three messages of different lengths, and the one after that a long one.
fn a_transfer_may_be_sparse_and_have_many_messages(members: Vec<Box<dyn Collective>>) {
    const LENGTHS: [usize; 3] = [2 * PIECE_BYTES + 1, 0, PIECE_BYTES];
    each(members, |member| {
        let (rank, world) = (member.rank(), member.world());
        if world < 3 {
            return;
        }
        let at = |distance| (rank + distance) % world;
        let bytes = |from: u32, length: usize| -> Vec<u8> {
            (0..length).map(|at| (at as u32 * 31 + from) as u8).collect()
        };
        let messages = LENGTHS.map(|length| bytes(rank, length));
        let mut outgoing: Vec<_> = messages.iter().map(|bytes| Outgoing { to: at(1), bytes }).collect();
        outgoing.insert(1, Outgoing { to: at(2), bytes: &messages[0] });
        let (mut slice, mut whole, mut other) = (vec![0; LENGTHS[0]], vec![7; 9], vec![]);
        let mut sunk = Vec::new();
        let mut incoming = [
            Incoming { from: at(world - 1), into: Place::Slice(&mut slice) },
            Incoming { from: at(world - 2), into: Place::Whole(&mut other) },
            Incoming { from: at(world - 1), into: Place::Whole(&mut whole) },
            Incoming { from: at(world - 1), into: Place::Sink(LENGTHS[2]) },
        ];
        member.begin(Among::All);
        member
            .transfer(&outgoing, &mut incoming, &mut |piece| {
                assert_eq!(piece.incoming, 3);
                sunk.extend_from_slice(piece.bytes);
            })
            .unwrap();
        assert_eq!([slice, whole, sunk], LENGTHS.map(|length| bytes(at(world - 1), length)));
        assert_eq!(other, bytes(at(world - 2), LENGTHS[0]));
    });
}

fn the_sink_takes_pieces_in_rounds_whoever_is_first(members: Vec<Box<dyn Collective>>) {
    const LENGTH: usize = 5 * PIECE_BYTES + 3;
    each(members, |member| {
        let (rank, world) = (member.rank(), member.world());
        let mine = vec![rank as u8; LENGTH];
        let others = || (0..world).filter(|&other| other != rank);
        let outgoing: Vec<_> = others().map(|to| Outgoing { to, bytes: &mine }).collect();
        let mut incoming: Vec<_> =
            others().map(|from| Incoming { from, into: Place::Sink(LENGTH) }).collect();
        let senders: Vec<u32> = others().collect();
        let mut taken = Vec::new();
        member.begin(Among::All);
        member
            .transfer(&outgoing, &mut incoming, &mut |piece| {
                assert!(piece.bytes.iter().all(|&byte| u32::from(byte) == senders[piece.incoming]));
                taken.push((piece.offset, piece.incoming, piece.bytes.len()));
            })
            .unwrap();
        let rounds = (0..LENGTH).step_by(PIECE_BYTES).flat_map(|offset| {
            (0..senders.len()).map(move |incoming| (offset, incoming, PIECE_BYTES.min(LENGTH - offset)))
        });
        assert!(rounds.eq(taken));
    });
}

/// Further promises of the algorithms are tested with threads; here, that an implementation carries them.
fn every_algorithm_sums(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        let (rank, world) = (u64::from(member.rank()), u64::from(member.world()));
        for length in [0, 1, 7, 1_000, PIECE_BYTES / 2 + 1] {
            let number = |rank: u64, at: usize| rank * 1_000_003 + at as u64;
            let expected = (0..length).map(|at| (0..world).map(|rank| number(rank, at)).sum());
            let expected: Vec<u64> = expected.collect();
            for algorithm in Algorithm::ALL {
                let mut numbers: Vec<u64> = (0..length).map(|at| number(rank, at)).collect();
                all_reduce_by(algorithm, member, &mut numbers).unwrap();
                assert!(numbers == expected, "{algorithm:?} of {length}");
            }
        }
    });
}

fn another_length_or_operation_than_expected_is_told(members: Vec<Box<dyn Collective>>) {
    each(members, |member| {
        let why = if member.rank() == 0 {
            let mut place = [0; 5];
            let mut incoming = [Incoming { from: 1, into: Place::Slice(&mut place) }];
            member.begin(Among::All);
            member.transfer(&[], &mut incoming, &mut |_| {}).unwrap_err()
        } else {
            member.begin(Among::All);
            let sent = if member.rank() == 1 {
                member.transfer(&[Outgoing { to: 0, bytes: &[1; 4] }], &mut [], &mut |_| {})
            } else {
                Ok(())
            };
            sent.and_then(|()| member.barrier()).unwrap_err()
        };
        assert_eq!(why.rank(), 1, "{why}");
        assert!(why.to_string().contains("4 bytes, 5 expected"), "{why}");
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

/// It gets more bytes than sockets buffer, and no code there reads them.
fn a_rank_that_gives_up_while_it_is_sent_to_says_why(members: Vec<Box<dyn Collective>>) {
    let started = Instant::now();
    each(members, |member| {
        if member.rank() == 0 {
            return member.abort("the disk is full");
        }
        let why = member.all_gather(&vec![1; 16 << 20]).unwrap_err();
        assert_eq!(why.rank(), 0, "{why}");
    });
    assert!(started.elapsed() < LONG / 2, "the others must not wait for the timeout");
}

/// Everyone waits for rank 1, which does not come before all have given up, when the last rank gives up.
fn an_abort_is_heard_by_those_who_wait_for_another(mut members: Vec<Box<dyn Collective>>) {
    if members.len() < 3 {
        return;
    }
    let last = members.len() as u32 - 1;
    let absent = members.remove(1);
    let started = Instant::now();
    each(members, |member| {
        if member.rank() == last {
            return member.abort("enough");
        }
        let why = member.receive(1).unwrap_err();
        assert_eq!(why, CollectiveError::Aborted { rank: last, reason: "enough".to_owned() });
    });
    assert!(started.elapsed() < LONG / 2, "the others must not wait for the timeout");
    drop(absent);
}

/// Rank 2 comes when the others, who have nothing to do but wait for it, have announced themselves.
fn who_is_waited_for_is_reported(members: Vec<Box<dyn Collective>>) {
    let arrived = std::sync::Barrier::new(3);
    each(members, |member| {
        assert!(member.waits().iter().all(|wait| wait.is_zero()));
        member.barrier().unwrap();
        arrived.wait();
        let (before, waited_before) = (member.waits().to_vec(), member.waited());
        let started = Instant::now();
        if member.rank() == 2 {
            // Busy with something else for a while, as a straggler is.
            while started.elapsed() < SHORT {
                std::thread::yield_now();
            }
        }
        member.all_gather(b"here").unwrap();
        let waited: Vec<Duration> =
            member.waits().iter().zip(before).map(|(now, before)| *now - before).collect();
        assert!(waited[member.rank() as usize].is_zero());
        // A time in which it waits for both others counts once.
        let (own, longest) = (member.waited() - waited_before, *waited.iter().max().expect("three ranks"));
        assert!(
            own >= longest && own <= waited.iter().sum::<Duration>() && own <= started.elapsed(),
            "{own:?} of {waited:?}"
        );
        if member.rank() != 2 {
            let other = 1 - member.rank() as usize;
            assert!(waited[2] > waited[other], "{waited:?}");
        }
    });
}

/// Ranks 1 and 2 come late together: rank 0 waits once.
fn a_wait_for_several_is_one(members: Vec<Box<dyn Collective>>) {
    let arrived = std::sync::Barrier::new(3);
    each(members, |member| {
        member.barrier().unwrap();
        arrived.wait();
        let (before, waited_before) = (member.waits().to_vec(), member.waited());
        let started = Instant::now();
        if member.rank() != 0 {
            while started.elapsed() < SHORT {
                std::thread::yield_now();
            }
        }
        member.all_gather(b"here").unwrap();
        if member.rank() == 0 {
            let each: Duration = member.waits().iter().zip(before).map(|(now, before)| *now - before).sum();
            let own = member.waited() - waited_before;
            assert!(own >= SHORT / 2 && own <= started.elapsed(), "{own:?}");
            assert!(each >= own + SHORT / 4, "for each it waited {each:?}, and {own:?} by the clock");
        }
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
    // Messages sent before they gave up are still there, later messages are not.
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
