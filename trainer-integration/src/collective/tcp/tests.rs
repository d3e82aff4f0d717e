mod encrypted;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::collective::{Collective, PIECE_BYTES, conformance};

fn options(timeout: Duration) -> TcpOptions {
    TcpOptions { run: "test".to_owned(), timeout, ..TcpOptions::default() }
}

fn connected(world: u32, options: &TcpOptions) -> Vec<TcpCollective> {
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let master = rendezvous.address().to_owned();
    std::thread::scope(|scope| {
        let host = scope.spawn(|| rendezvous.host(world, options).unwrap());
        let joined: Vec<_> = (1..world)
            .map(|rank| {
                let master = &master;
                scope.spawn(move || connect(master, rank, world, options).unwrap())
            })
            .collect();
        std::iter::once(host).chain(joined).map(|member| member.join().unwrap()).collect()
    })
}

#[test]
fn processes_keep_the_promises_of_a_collective() {
    conformance::run(&|world, timeout| {
        let members = connected(world, &options(timeout));
        members.into_iter().map(|member| Box::new(member) as Box<dyn Collective>).collect()
    });
}

#[test]
fn an_absent_rank_0_is_reported_with_its_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let hasty = TcpOptions { join_timeout: Duration::from_millis(200), ..options(DEFAULT_TIMEOUT) };
    let error = connect(&free, 1, 2, &hasty).err().unwrap();
    assert!(error.to_string().contains(&free), "{error}");
    assert!(matches!(error, JoinError::NoMaster { .. }));
}

#[test]
fn rank_0_names_the_ranks_that_did_not_appear() {
    let hasty = TcpOptions { join_timeout: Duration::from_millis(200), ..options(DEFAULT_TIMEOUT) };
    let error = Rendezvous::bind("127.0.0.1:0").unwrap().host(3, &hasty).err().unwrap();
    assert!(matches!(&error, JoinError::Missing { missing, .. } if *missing == [1, 2]), "{error}");
}

#[test]
fn one_that_does_not_fit_in_is_told_why_and_a_stranger_is_ignored() {
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let master = rendezvous.address().to_owned();
    let ours = options(Duration::from_secs(20));
    std::thread::scope(|scope| {
        let host = scope.spawn(|| rendezvous.host(2, &ours).unwrap());
        TcpStream::connect(&master)
            .unwrap()
            .write_all(b"GET / HTTP/1.1\r\nHost: nowhere at all\r\n\r\n")
            .unwrap();
        let refusal = |rank, world, run: &str| {
            let theirs = TcpOptions { run: run.to_owned(), ..ours.clone() };
            connect(&master, rank, world, &theirs).err().unwrap().to_string()
        };
        assert!(refusal(1, 2, "other").contains("\"test\""), "another run is named");
        assert!(refusal(2, 3, "test").contains("2 ranks"), "another world size is named");
        let mut member = connect(&master, 1, 2, &ours).unwrap();
        let mut hosted = host.join().unwrap();
        scope.spawn(move || hosted.barrier().unwrap());
        member.barrier().unwrap();
    });
}

#[test]
fn garbage_on_a_stream_fails_the_operation_and_names_the_rank() {
    let mut members = connected(2, &options(Duration::from_secs(20)));
    let mut last = members.pop().unwrap();
    let mut first = members.pop().unwrap();
    // Rank 1's socket, written to behind the back of its collective.
    last.peers[0].as_mut().unwrap().stream.write_all(&[7; 64]).unwrap();
    let why = first.barrier().unwrap_err();
    assert!(matches!(why, CollectiveError::Malformed { rank: 1, .. }), "{why}");
}

#[test]
fn an_abort_behind_a_message_that_nobody_wants_yet_is_heard() {
    for length in [10, 3 * PIECE_BYTES] {
        let mut members = connected(3, &options(Duration::from_secs(20)));
        let mut last = members.pop().unwrap();
        let _absent = members.pop().unwrap();
        let mut first = members.pop().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                last.send(0, &vec![1; length]).unwrap();
                last.abort("enough");
            });
            let why = first.receive(1).unwrap_err();
            assert_eq!(why, CollectiveError::Aborted { rank: 2, reason: "enough".to_owned() });
        });
    }
}

#[test]
fn ranks_learn_who_shares_a_machine() {
    let hosts = ["a", "b", "a", "c"];
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let master = rendezvous.address().to_owned();
    let on = |rank: usize| TcpOptions { host: Some(hosts[rank].to_owned()), ..options(DEFAULT_TIMEOUT) };
    std::thread::scope(|scope| {
        let host = scope.spawn(|| rendezvous.host(4, &on(0)).unwrap());
        let (master, on) = (&master, &on);
        let joined: Vec<_> = (1..4)
            .map(|rank| scope.spawn(move || connect(master, rank, 4, &on(rank as usize)).unwrap()))
            .collect();
        for member in std::iter::once(host).chain(joined) {
            assert_eq!(member.join().unwrap().hosts(), [0, 1, 0, 2]);
        }
    });
    assert!(
        connected(2, &options(DEFAULT_TIMEOUT)).iter().all(|member| member.hosts() == [0, 0]),
        "one machine"
    );
}
