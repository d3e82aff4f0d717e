//! Ranks that show certificates, and those that are not let in.

#[path = "../../../../tests/programs/certificates.rs"]
mod certificates;

use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use proptest::prelude::*;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedCipherSuite, Tls13CipherSuite};

use super::super::session::Session;
use super::*;
use certificates::{Authority, Certificate};

const PATIENT: Duration = Duration::from_secs(20);

fn with(tls: Option<Tls>) -> TcpOptions {
    TcpOptions { tls, ..options(PATIENT) }
}

fn of(certificate: &Certificate) -> Tls {
    let [_, cert, _, key] = certificate.flags();
    Tls::open(cert.as_ref(), key.as_ref(), None, None).unwrap()
}

#[test]
fn ranks_with_certificates_keep_the_promises_of_a_collective() {
    let authority = Authority::new();
    let tls = of(&authority.issue("n1"));
    conformance::run(&|world, timeout| {
        let options = TcpOptions { timeout, ..with(Some(tls.clone())) };
        let members = connected(world, &options);
        members.into_iter().map(|member| Box::new(member) as Box<dyn Collective>).collect()
    });
}

/// All bytes that two ranks send each other while they reduce a message.
fn overheard(message: &[u8], tls: Option<Tls>) -> Vec<u8> {
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let (master, options) = (rendezvous.address().to_owned(), with(tls));
    let wire = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = wire.local_addr().unwrap().to_string();
    let heard = Mutex::new(Vec::new());
    let listen = |mut from: TcpStream, mut to: TcpStream| {
        let mut bytes = [0; 1 << 16];
        while let Ok(more @ 1..) = from.read(&mut bytes) {
            heard.lock().unwrap().extend_from_slice(&bytes[..more]);
            if to.write_all(&bytes[..more]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    };
    std::thread::scope(|scope| {
        let (options, listen) = (&options, &listen);
        scope.spawn(move || {
            let (caller, _) = wire.accept().unwrap();
            let called = TcpStream::connect(master).unwrap();
            let (caller_2, called_2) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
            scope.spawn(move || listen(caller, called));
            scope.spawn(move || listen(called_2, caller_2));
        });
        scope.spawn(move || rendezvous.host(2, options).unwrap().send(1, message).unwrap());
        let mut member = connect(&address, 1, 2, options).unwrap();
        assert_eq!(member.receive(0).unwrap().bytes(), message);
    });
    heard.into_inner().unwrap()
}

#[test]
fn gradients_cannot_be_read_on_the_wire() {
    let message = b"a gradient of which the bits are no secret to ranks ".repeat(1000);
    let contains = |heard: &[u8], words: &[u8]| heard.windows(words.len()).any(|it| it == words);
    let readable = overheard(&message, None);
    assert!(contains(&readable, &message[..52]) && contains(&readable, b"\"run\":\"test\""));
    let encrypted = overheard(&message, Some(of(&Authority::new().issue("n1"))));
    assert!(encrypted.len() > message.len());
    assert!(!contains(&encrypted, &message[..8]) && !contains(&encrypted, b"\"run\""));
}

/// The error of one that calls ranks with `ours`, which meet all the same once it has been sent away.
fn refusal(ours: &TcpOptions, call: impl FnOnce(&str) -> String) -> String {
    let rendezvous = Rendezvous::bind("127.0.0.1:0").unwrap();
    let master = rendezvous.address().to_owned();
    std::thread::scope(|scope| {
        let host = scope.spawn(|| rendezvous.host(2, ours).unwrap());
        let refused = call(&master);
        assert!(refused.contains(&master), "{refused}");
        let mut member = connect(&master, 1, 2, ours).unwrap();
        let mut hosted = host.join().unwrap();
        scope.spawn(move || hosted.barrier().unwrap());
        member.barrier().unwrap();
        refused
    })
}

/// What `connect` says to one with these options.
fn refused_with(theirs: TcpOptions) -> impl FnOnce(&str) -> String {
    move |master| connect(master, 1, 2, &theirs).expect_err("it is no rank").to_string()
}

#[test]
fn one_without_a_certificate_is_refused_and_learns_the_flags() {
    let ours = with(Some(of(&Authority::new().issue("n1"))));
    let why = refusal(&ours, refused_with(with(None)));
    assert!(why.contains("--tls-cert") && why.contains("SHARDD_TLS_CERT"), "{why}");
}

#[test]
fn one_with_a_certificate_is_refused_by_those_without() {
    let theirs = with(Some(of(&Authority::new().issue("n1"))));
    let why = refusal(&with(None), refused_with(theirs));
    assert!(why.contains("plaintext") && why.contains("--tls-cert"), "{why}");
}

#[test]
fn one_of_another_authority_is_refused_by_both_ends() {
    let (ours, theirs) = (Authority::new().issue("n1"), Authority::new().issue("n2"));
    let why = refusal(&with(Some(of(&ours))), refused_with(with(Some(of(&theirs)))));
    assert!(why.contains("another authority signed it") && why.contains("shardctl certs issue"), "{why}");

    // One that believes ours, and shows its own all the same: rank 0 has to look, too.
    let chain = vec![CertificateDer::from_pem_file(&theirs.cert).unwrap()];
    let why = refusal(&with(Some(of(&ours))), refused_with(with(Some(believing(&ours, chain, &theirs)))));
    assert!(why.contains("does not know the authority of this rank's certificate"), "{why}");
}

#[test]
fn one_whose_certificate_has_expired_is_refused() {
    let authority = Authority::new();
    let (ours, old) = (authority.issue("n1"), authority.issue_expired("n2"));
    let chain = vec![CertificateDer::from_pem_file(&old.cert).unwrap()];
    let why = refusal(&with(Some(of(&ours))), refused_with(with(Some(believing(&ours, chain, &old)))));
    assert!(why.contains("has expired"), "{why}");
}

#[test]
fn one_that_shows_no_certificate_is_refused() {
    let ours = Authority::new().issue("n1");
    let why = refusal(&with(Some(of(&ours))), refused_with(with(Some(believing(&ours, vec![], &ours)))));
    assert!(why.contains("this rank shows none"), "{why}");
}

/// Settings that no file leads to: the authority of `ours`, with another certificate, or none.
fn believing(ours: &Certificate, chain: Vec<CertificateDer<'static>>, theirs: &Certificate) -> Tls {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ours.ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(tls::OfAuthority::new(roots, tls::provider())));
    let mut client = match chain.is_empty() {
        true => builder.with_no_client_auth(),
        false => {
            let key = PrivateKeyDer::from_pem_file(&theirs.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    client.alpn_protocols = vec![tls::PROTOCOL.to_vec()];
    Tls { client: Arc::new(client), ..of(ours) }
}

#[test]
fn certificates_that_others_would_refuse_are_found_before_any_call() {
    let authority = Authority::new();
    let (good, other) = (authority.issue("n1"), Authority::new().issue("n2"));
    let old = authority.issue_expired("n3");
    let why =
        |cert, key, ca: Option<&std::path::Path>| Tls::open(cert, key, ca, None).unwrap_err().to_string();
    let expired = why(&old.cert, &old.key, None);
    assert!(expired.contains("expired") && expired.contains("n3/node.pem"), "{expired}");
    let foreign = why(&good.cert, &good.key, Some(&other.ca));
    assert!(foreign.contains("another authority") && foreign.contains("--tls-ca"), "{foreign}");
    let crossed = why(&good.cert, &other.key, None);
    assert!(crossed.contains("--tls-key"), "{crossed}");
    let swapped = why(&good.key, &good.key, None);
    assert!(swapped.contains("--tls-cert"), "{swapped}");
    let absent = why(&good.cert, &good.key, Some("/nowhere/ca.pem".as_ref()));
    assert!(absent.contains("/nowhere/ca.pem") && absent.contains("--tls-ca"), "{absent}");
}

#[test]
fn a_message_is_sent_whole_before_its_sender_turns_to_other_things() {
    let tls = of(&Authority::new().issue("n1"));
    let mut members = connected(2, &with(Some(tls)));
    let (mut last, mut first) = (members.pop().unwrap(), members.pop().unwrap());
    // So little fits that some of the last records has to wait.
    let stream = &first.peers[1].as_ref().unwrap().stream;
    set_socket_send_buffer_size(stream, 16 << 10).unwrap();
    let messages: Vec<Vec<u8>> = (0..24).map(|at| vec![7; 1 + 29_999 * at]).collect();
    let (received, has_received) = std::sync::mpsc::sync_channel(0);
    let messages = &messages;
    // The sender ends with the receiver, also where that fails.
    std::thread::scope(move |scope| {
        scope.spawn(move || {
            for message in messages {
                first.send(1, message).unwrap();
                // It does nothing more: the rest of the message must not wait for it.
                has_received.recv().unwrap();
            }
        });
        for message in messages {
            assert_eq!(last.receive(0).unwrap().bytes(), message);
            received.send(()).unwrap();
        }
    });
}

/// The suite with new keys after every few records.
fn restless() -> Arc<CryptoProvider> {
    let usual = tls::provider();
    let SupportedCipherSuite::Tls13(suite) = usual.cipher_suites[0] else { panic!("TLS 1.3 only") };
    let mut suite = Tls13CipherSuite { common: copy(&suite.common), ..*suite };
    suite.common.confidentiality_limit = 5;
    let suite = SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)));
    Arc::new(CryptoProvider { cipher_suites: vec![suite], ..(*usual).clone() })
}

fn copy(common: &rustls::crypto::CipherSuiteCommon) -> rustls::crypto::CipherSuiteCommon {
    let &rustls::crypto::CipherSuiteCommon { suite, hash_provider, confidentiality_limit, .. } = common;
    rustls::crypto::CipherSuiteCommon { suite, hash_provider, confidentiality_limit }
}

fn settings_of(certificate: &Certificate, provider: Arc<CryptoProvider>) -> Tls {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificate.ca).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(&certificate.cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&certificate.key).unwrap();
    let settings = tls::settings(roots, chain, key, provider);
    let (client, server) = settings.unwrap_or_else(|_| panic!("they fit"));
    Tls { client, server, ..of(certificate) }
}

#[test]
fn keys_change_in_the_middle_of_messages() {
    let tls = settings_of(&Authority::new().issue("n1"), restless());
    let mut members = connected(2, &with(Some(tls)));
    let (mut last, mut first) = (members.pop().unwrap(), members.pop().unwrap());
    let (one, other) = (vec![1; 5 * PIECE_BYTES + 3], vec![2; 3 * PIECE_BYTES + 7]);
    let exchange = |member: &mut TcpCollective, mine: &[u8], theirs: &[u8]| {
        let place = member.rank() as usize;
        let parts: Vec<&[u8]> = (0..2).map(|to| if to == place { &[][..] } else { mine }).collect();
        for _ in 0..5 {
            assert_eq!(member.exchange(&parts).unwrap()[1 - place].bytes(), theirs);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&mut last, &other, &one));
        exchange(&mut first, &one, &other);
    });
}

/// A stream that takes and gives a few bytes at a time, and blocks in between.
struct Choppy<'a> {
    stream: &'a UnixStream,
    parts: &'a mut dyn FnMut() -> usize,
}

impl Choppy<'_> {
    fn part(&mut self, of: usize) -> io::Result<usize> {
        match (self.parts)() {
            0 => Err(ErrorKind::WouldBlock.into()),
            part => Ok(part.min(of)),
        }
    }
}

impl Read for Choppy<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let part = self.part(into.len())?;
        self.stream.read(&mut into[..part])
    }
}

impl Write for Choppy<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = self.part(bytes.len())?;
        self.stream.write(&bytes[..part])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Two ends that have shaken hands.
fn shaken(tls: &Tls) -> [(Session, UnixStream); 2] {
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let (mut client, mut server) = (Session::client(tls).unwrap(), Session::server(tls).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| server.shake_hands(&mut far, |_| Ok(())).unwrap());
        client.shake_hands(&mut near, |_| Ok(())).unwrap();
    });
    [(client, near), (server, far)]
}

fn would_block<T: Default>(outcome: io::Result<T>) -> T {
    match outcome {
        Ok(value) => value,
        Err(error) if error.kind() == ErrorKind::WouldBlock => T::default(),
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_written_is_read_however_the_stream_chops_it(
        lengths in prop::collection::vec((0usize..60, 0usize..70_000), 1..6),
        parts in prop::collection::vec(0usize..40_000, 1..40),
        spaces in prop::collection::vec(1usize..50_000, 1..10),
    ) {
        let tls = of(&Authority::new().issue("n1"));
        let [(mut client, near), (mut server, far)] = shaken(&tls);
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let (mut at, mut spaces) = (0, spaces.into_iter().cycle());
        let mut next = || {
            at += 1;
            // Whatever the parts are, some bytes go through in the end.
            if at % 7 == 0 { 1 } else { parts[at % parts.len()] }
        };
        let messages: Vec<[Vec<u8>; 2]> = lengths
            .iter()
            .enumerate()
            .map(|(index, &(first, then))| [vec![index as u8; first], vec![!(index as u8); then]])
            .collect();
        let sent: Vec<u8> = messages.iter().flatten().flatten().copied().collect();
        let mut received = Vec::new();
        for [first, then] in &messages {
            let (whole, mut written) = (first.len() + then.len(), 0);
            while written < whole || !client.is_flushed() {
                let rest = (&first[written.min(first.len())..], &then[written.saturating_sub(first.len())..]);
                let mut to = Choppy { stream: &near, parts: &mut next };
                written += would_block(client.write(&mut to, rest.0, rest.1));
                let mut space = vec![0; spaces.next().unwrap()];
                let mut from = Choppy { stream: &far, parts: &mut next };
                let read = would_block(server.read(&mut from, &mut [IoSliceMut::new(&mut space)]));
                received.extend_from_slice(&space[..read]);
            }
        }
        while received.len() < sent.len() {
            let mut halves = [vec![0; spaces.next().unwrap()], vec![0; 48]];
            let [one, two] = &mut halves;
            let mut from = Choppy { stream: &far, parts: &mut next };
            let into = &mut [IoSliceMut::new(one), IoSliceMut::new(two)];
            let read = would_block(server.read(&mut from, into));
            received.extend_from_slice(&halves.concat()[..read]);
        }
        prop_assert!(received == sent);
        drop((client, near));
        let mut byte = [0];
        let mut far = &far;
        prop_assert_eq!(would_block(server.read(&mut far, &mut [IoSliceMut::new(&mut byte)])), 0);
    }
}
