//! How the launchers of a training meet before they start ranks: each says how many it starts, and learns how many the
//! others do.
//! The ranks of machine 0 come first, then those of machine 1, and so on.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::TcpOptions;
use super::callers::{Callers, is_given_up, parse, reason_of, write_json};
use super::connection::{CallError, Connection, invalid};
use super::rendezvous::{JoinError, Rendezvous};
use super::wire::{Kind, read_greeting, write_greeting};
use crate::collective::names;

const RETRY: Duration = Duration::from_millis(50);

/// The most ranks of a machine.
pub const MOST_LOCAL_RANKS: u32 = 4096;

/// A machine that starts ranks of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its number, from 0.
    pub number: u32,
    /// How many machines there are.
    pub machines: u32,
    /// How many ranks it starts, from 1 to [`MOST_LOCAL_RANKS`].
    pub ranks: u32,
}

/// Why machines did not meet.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum MeetError {
    /// The address cannot be used here; choose another.
    #[error(
        "machine 0 cannot listen at {master}: it must be an address of this machine, and no other launcher may have --node 0"
    )]
    Listen { master: String, source: io::Error },
    /// No launcher answers as that of machine 0. Start it, or correct the address.
    #[error(
        "no machine 0 at {master} after {waited:?}: start its launcher with --node 0, or check --master; its ranks may take \
         --timeout to notice that this machine was lost, so allow more time with --join-timeout after a loss"
    )]
    NoFirst { master: String, waited: Duration, source: io::Error },
    /// Machine 0 has answered, and waits for others. Start those that its own error names.
    #[error("machine 0 at {master} still waits for other machines after {waited:?}: its message names them")]
    Waits { master: String, waited: Duration },
    /// Some machines did not appear. Start their launchers, or allow more time.
    #[error(
        "machine {} of {machines} did not appear at {master} within {waited:?}: start a launcher there with --nodes {machines} \
         and its --node, or allow more time with --join-timeout",
        names(missing)
    )]
    Missing { master: String, machines: u32, missing: Vec<u32>, waited: Duration },
    /// Machine 0 does not take this one in.
    #[error("machine 0 at {master} refused machine {machine}: {reason}")]
    Refused { master: String, machine: u32, reason: String },
    /// Machine 0 and this one do not believe each other. Give both certificates of one authority.
    #[error("machine 0 at {address} {reason}")]
    Untrusted { address: SocketAddr, reason: String },
    /// No launcher announced that it waits as that of machine 0. Start it.
    #[error("no machine 0 of run {run} waits for others after {waited:?}: start its launcher with --node 0")]
    Unannounced { run: String, waited: Duration },
    /// The nodes cannot be asked where machine 0 is.
    #[error(transparent)]
    Nodes(JoinError),
    /// The caller no longer waits.
    #[error("the launch has been given up")]
    GivenUp,
}

/// Machine 0 has this one's greeting, and has not answered in time.
#[derive(Debug, Error)]
#[error("machine 0 waits for other machines")]
struct Waits;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    run: String,
    machine: u32,
    machines: u32,
    ranks: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ranks {
    /// Of machines 0, 1, …
    ranks: Vec<u32>,
}

/// Meets the launchers of the other machines at `master`, where that of machine 0 listens: how many ranks each machine starts,
/// by number. The address is free again afterwards, for rank 0.
///
/// # Errors
/// See [`MeetError`]; nothing waits longer than `options.join_timeout`.
///
/// # Panics
/// If the machine's number is not below the number of machines.
pub fn meet(master: &str, machine: Machine, options: &TcpOptions) -> Result<Vec<u32>, MeetError> {
    let Machine { number, machines, .. } = machine;
    assert!(number < machines, "machine {number} outside of {machines}");
    if number > 0 {
        return call(master, machine, options);
    }
    match Rendezvous::bind(master) {
        Ok(rendezvous) => host(rendezvous, machine, options),
        Err(JoinError::Listen { master, source }) => Err(MeetError::Listen { master, source }),
        Err(other) => Err(MeetError::Nodes(other)),
    }
}

/// As machine 0: waits for all others, and lets them know.
pub(super) fn host(
    rendezvous: Rendezvous,
    machine: Machine,
    options: &TcpOptions,
) -> Result<Vec<u32>, MeetError> {
    let Rendezvous { listener, address } = rendezvous;
    let deadline = Instant::now() + options.join_timeout;
    let mut callers: BTreeMap<u32, (Connection, u32)> = BTreeMap::new();
    let mut calling = Callers::<Hello>::new(&listener, Kind::Machine);
    while callers.len() + 1 < machine.machines as usize {
        let caller = calling.next(deadline, options);
        let caller = caller.map_err(|source| MeetError::Listen { master: address.clone(), source })?;
        // One that has hung up meanwhile may come again, with other ranks.
        callers.retain(|_, (connection, _)| connection.is_open());
        let Some((mut connection, _, hello)) = caller else {
            if is_given_up(options) {
                return Err(MeetError::GivenUp);
            }
            let machines = machine.machines;
            let missing = (1..machines).filter(|number| !callers.contains_key(number)).collect();
            return Err(MeetError::Missing {
                master: address,
                machines,
                missing,
                waited: options.join_timeout,
            });
        };
        match why_not(&hello, machine, options, &callers) {
            // Whether it hears the refusal is its own affair.
            Some(reason) => drop(write_greeting(&mut connection, Kind::Refused, reason.as_bytes())),
            None => drop(callers.insert(hello.machine, (connection, hello.ranks))),
        }
    }
    let others = callers.values().map(|(_, ranks)| *ranks);
    let answer = Ranks { ranks: std::iter::once(machine.ranks).chain(others).collect() };
    for (connection, _) in callers.values_mut() {
        // Ranks of one that does not hear it are missed when ranks meet, and all launchers meet again.
        let _ = write_json(connection, Kind::Machines, &answer);
    }
    Ok(answer.ranks)
}

fn why_not(
    hello: &Hello,
    machine: Machine,
    options: &TcpOptions,
    callers: &BTreeMap<u32, (Connection, u32)>,
) -> Option<String> {
    let Hello { run, machine: number, machines, ranks } = hello;
    if *run != options.run {
        return Some(format!("it launches run {:?}, not {run:?}", options.run));
    }
    if *machines != machine.machines {
        return Some(format!("it has --nodes {}, not {machines}", machine.machines));
    }
    if !(1..=MOST_LOCAL_RANKS).contains(ranks) {
        return Some(format!("a machine has 1 to {MOST_LOCAL_RANKS} ranks, not {ranks}"));
    }
    let is_taken = *number == 0 || callers.contains_key(number);
    (is_taken || number >= machines)
        .then(|| format!("machine {number} is already there: give each machine a --node of its own"))
}

/// As another machine: calls machine 0 until it answers.
fn call(master: &str, machine: Machine, options: &TcpOptions) -> Result<Vec<u32>, MeetError> {
    let deadline = Instant::now() + options.join_timeout;
    loop {
        match call_once(master, machine, options, deadline) {
            Ok(ranks) => return Ok(ranks),
            Err(CallError::Refused(reason)) => {
                let (master, machine) = (master.to_owned(), machine.number);
                return Err(MeetError::Refused { master, machine, reason });
            }
            Err(CallError::Untrusted(address, reason)) => {
                return Err(MeetError::Untrusted { address, reason });
            }
            Err(CallError::Failed(_)) if is_given_up(options) => return Err(MeetError::GivenUp),
            Err(CallError::Failed(source)) if Instant::now() + RETRY >= deadline => {
                let (master, waited) = (master.to_owned(), options.join_timeout);
                return Err(if source.get_ref().is_some_and(|it| it.is::<Waits>()) {
                    MeetError::Waits { master, waited }
                } else {
                    MeetError::NoFirst { master, waited, source }
                });
            }
            Err(CallError::Failed(_)) => std::thread::sleep(RETRY),
        }
    }
}

pub(super) fn call_once(
    master: &str,
    machine: Machine,
    options: &TcpOptions,
    deadline: Instant,
) -> Result<Vec<u32>, CallError> {
    let tls = options.tls.as_ref();
    let mut connection = Connection::call(master, tls, deadline)?;
    let Machine { number, machines, ranks } = machine;
    let hello = Hello { run: options.run.clone(), machine: number, machines, ranks };
    write_json(&mut connection, Kind::Machine, &hello)?;
    let answer = read_greeting(&mut connection).map_err(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            CallError::Failed(io::Error::new(ErrorKind::TimedOut, Waits))
        }
        _ => connection.explain(error, tls),
    });
    match answer? {
        (Kind::Machines, bytes) => {
            let Ranks { ranks } = parse(&bytes)?;
            let is_sound = ranks.iter().all(|ranks| (1..=MOST_LOCAL_RANKS).contains(ranks));
            if ranks.len() != machines as usize || !is_sound || ranks[number as usize] != machine.ranks {
                return Err(invalid("machine 0 counts other machines").into());
            }
            Ok(ranks)
        }
        (Kind::Refused, bytes) => Err(CallError::Refused(reason_of(&bytes))),
        (kind, _) => Err(invalid(format!("machine 0 answered with {kind:?}")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(run: &str) -> TcpOptions {
        TcpOptions { run: run.to_owned(), join_timeout: Duration::from_secs(20), ..TcpOptions::default() }
    }

    #[test]
    fn machines_learn_how_many_ranks_each_starts_and_those_that_do_not_fit_are_refused() {
        let rendezvous = Rendezvous::bind("127.0.0.1:0").expect("a free port");
        let master = rendezvous.address().to_owned();
        let machine = |number: u32, ranks: u32| Machine { number, machines: 3, ranks };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| host(rendezvous, machine(0, 2), &options("r")).expect("they meet"));
            let refusal =
                |machine, run| meet(&master, machine, &options(run)).expect_err("refused").to_string();
            assert!(refusal(machine(1, 1), "other").contains("run \"r\""));
            assert!(refusal(Machine { machines: 2, ..machine(1, 1) }, "r").contains("--nodes 3, not 2"));
            assert!(refusal(machine(1, 0), "r").contains("1 to 4096 ranks"));
            let second = scope.spawn(|| meet(&master, machine(1, 5), &options("r")).expect("they meet"));
            let third = meet(&master, machine(2, 1), &options("r")).expect("they meet");
            for ranks in [first.join().expect("no panic"), second.join().expect("no panic"), third] {
                assert_eq!(ranks, [2, 5, 1]);
            }
        });
    }

    #[test]
    fn machines_that_do_not_come_are_named() {
        let hasty = TcpOptions { join_timeout: Duration::from_millis(100), ..options("r") };
        let machine = Machine { number: 0, machines: 3, ranks: 1 };
        let why = meet("127.0.0.1:0", machine, &hasty).expect_err("no other comes").to_string();
        assert!(why.contains("machine 1, 2 of 3") && why.contains("--join-timeout"), "{why}");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its own");
        let absent = meet(&free.to_string(), Machine { number: 2, ..machine }, &hasty).expect_err("none");
        assert!(absent.to_string().contains(&format!("no machine 0 at {free}")), "{absent}");
    }

    #[test]
    fn a_machine_that_is_answered_knows_that_others_are_missing() {
        let rendezvous = Rendezvous::bind("127.0.0.1:0").expect("a free port");
        let master = rendezvous.address().to_owned();
        let machine = |number: u32| Machine { number, machines: 3, ranks: 1 };
        let given_up = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
        let patient = TcpOptions { given_up: std::sync::Arc::clone(&given_up), ..options("r") };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| host(rendezvous, machine(0), &patient));
            let hasty = TcpOptions { join_timeout: Duration::from_millis(300), ..options("r") };
            let why = meet(&master, machine(1), &hasty).expect_err("machine 2 is missing").to_string();
            assert!(why.contains("waits for other machines") && why.contains(&master), "{why}");
            given_up.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(matches!(first.join().expect("no panic"), Err(MeetError::GivenUp)));
        });
    }

    #[test]
    fn callers_that_say_nothing_keep_no_machine_waiting() {
        let rendezvous = Rendezvous::bind("127.0.0.1:0").expect("a free port");
        let master = rendezvous.address().to_owned();
        let silent: Vec<_> =
            (0..50).map(|_| std::net::TcpStream::connect(&master).expect("it listens")).collect();
        // One after the other, they would take 250 s.
        let options = options("r");
        let machine = |number: u32| Machine { number, machines: 2, ranks: 1 };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| host(rendezvous, machine(0), &options));
            assert_eq!(meet(&master, machine(1), &options).expect("they meet"), [1, 1]);
            assert_eq!(first.join().expect("no panic").expect("they meet"), [1, 1]);
        });
        drop(silent);
    }
}
