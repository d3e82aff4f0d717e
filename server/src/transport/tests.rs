use std::net::UdpSocket;

use async_trait::async_trait;
use bytes::Bytes;
use shardd_certificates::certificate_name;
use shardd_engine::peers::{FetchRequest, Pace, PeerError, Peers, Purpose};
use shardfmt::digest::{PlanId, ShardId};
use shardfmt::grain::GrainKey;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::identity::Revoked;
use crate::identity::testing::cluster;

const LOOPBACK: &str = "127.0.0.1:0";
/// The limit of waits.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Keeps received grains and gives them out again; refuses runs called "no".
#[derive(Default)]
struct Shelf(Mutex<BTreeMap<GrainKey, Bytes>>);

#[async_trait]
impl PeerService for Shelf {
    async fn fetch(&self, _: &NodeId, request: FetchRequest) -> Vec<Option<Bytes>> {
        let grains = lock(&self.0);
        request.keys.iter().map(|key| grains.get(key).cloned()).collect()
    }

    async fn receive(
        &self,
        from: &NodeId,
        header: SendHeader,
        mut grains: mpsc::Receiver<(GrainKey, Bytes)>,
    ) -> Result<Ack, PeerError> {
        if header.run.as_str() == "no" {
            let reason = "this run is not wanted".into();
            return Err(PeerError::Refused { peer: from.clone(), kind: Kind::NotFound, reason });
        }
        let mut stored = 0;
        while let Some((key, bytes)) = grains.recv().await {
            lock(&self.0).insert(key, bytes);
            stored += 1;
        }
        Ok(Ack { stored, refused: 0 })
    }
}

struct Node {
    transport: Arc<Transport>,
    shelf: Arc<Shelf>,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Node {
    fn start(identity: &Identity) -> Node {
        Node::start_at(LOOPBACK.parse().unwrap(), identity)
    }

    fn start_at(address: SocketAddr, identity: &Identity) -> Node {
        let revoked = Arc::new(Revoked::default());
        let transport = Transport::bind(address, identity, revoked).expect("bound");
        let (shelf, stop) = (Arc::new(Shelf::default()), CancellationToken::new());
        let services = Services { peers: shelf.clone(), metastore: None, issuer: None, looks: None };
        let serving = tokio::spawn(Arc::clone(&transport).serve(services, stop.clone()));
        Node { transport, shelf, stop, serving }
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(TIMEOUT, self.serving).await.expect("stops").expect("no panic");
        self.transport.close().await;
    }
}

fn name(text: &str) -> NodeId {
    text.parse().expect("a good name")
}

fn key(index: u32) -> GrainKey {
    GrainKey { shard: ShardId::of(b"a shard"), rows: 16, index }
}

fn asks(keys: Vec<GrainKey>) -> FetchRequest {
    let (run, version) = ("r".parse().unwrap(), VersionId::of(b"v"));
    FetchRequest { run, version, epoch: 0, generation: 1, keys, effort: FetchMode::Cached }
}

fn header(run: &str) -> SendHeader {
    let (run, plan, version) = (run.parse().unwrap(), PlanId::of(b"p"), VersionId::of(b"v"));
    SendHeader { run, plan, version, purpose: Purpose::Fill { epoch: 0, generation: 1 } }
}

/// A pair of nodes of one cluster that know each other's address.
fn pair() -> (Node, Node) {
    let identities = cluster(&["a", "b"]);
    let (a, b) = (Node::start(&identities[0]), Node::start(&identities[1]));
    a.transport.learn(&name("b"), b.transport.address());
    b.transport.learn(&name("a"), a.transport.address());
    (a, b)
}

async fn send(from: &Node, to: &str, grains: Vec<(GrainKey, Bytes)>) -> Result<Ack, PeerError> {
    let (sender, receiver) = mpsc::channel(1);
    let feed = async move {
        for grain in grains {
            if sender.send(grain).await.is_err() {
                break;
            }
        }
    };
    let to = name(to);
    let (_, ack) = tokio::join!(feed, from.transport.send(&to, header("r"), receiver, None));
    ack
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grains_travel_both_ways_at_once_and_arrive_as_they_were() {
    let (a, b) = pair();
    let grains = |salt: u32| -> Vec<(GrainKey, Bytes)> {
        (0..1024).map(|i| (key(i + salt), Bytes::from(vec![(i + salt) as u8; 64 << 10]))).collect()
    };
    let both = async { tokio::join!(send(&a, "b", grains(0)), send(&b, "a", grains(5000))) };
    let (there, back) = timeout(TIMEOUT, both).await.expect("64 MiB take less time");
    assert_eq!(there.unwrap(), Ack { stored: 1024, refused: 0 });
    assert_eq!(back.unwrap(), Ack { stored: 1024, refused: 0 });
    assert_eq!(lock(&b.shelf.0).iter().map(|(k, v)| (*k, v.clone())).collect::<Vec<_>>(), grains(0));

    let wanted = vec![key(7), key(999_999), key(3), key(7)];
    let got = a.transport.fetch(&name("b"), asks(wanted)).await.unwrap();
    let lengths: Vec<_> = got.iter().map(|grain| grain.as_ref().map(Bytes::len)).collect();
    assert_eq!(lengths, [Some(64 << 10), None, Some(64 << 10), Some(64 << 10)]);
    assert!(got[0].as_ref().unwrap().iter().all(|byte| *byte == 7));
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn a_refusal_arrives_as_a_refusal_even_while_grains_are_sent() {
    let (a, b) = pair();
    let (sender, receiver) = mpsc::channel(1);
    let feeding =
        tokio::spawn(
            async move { while sender.send((key(1), Bytes::from(vec![0; 1 << 20]))).await.is_ok() {} },
        );
    let refused =
        timeout(TIMEOUT, a.transport.send(&name("b"), header("no"), receiver, None)).await.expect("ends");
    assert!(
        matches!(&refused, Err(PeerError::Refused { kind: Kind::NotFound, reason, .. }) if reason.contains("not wanted")),
        "{refused:?}"
    );
    feeding.await.unwrap();
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn who_is_not_of_the_cluster_or_not_who_was_meant_is_refused() {
    let (ours, theirs) = (cluster(&["a", "b", "c"]), cluster(&["a", "b"]));
    let (a, b, stranger) = (Node::start(&ours[0]), Node::start(&ours[1]), Node::start(&theirs[1]));
    a.transport.learn(&name("b"), stranger.transport.address());
    let error = a.transport.fetch(&name("b"), asks(vec![key(0)])).await.expect_err("another authority");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    // The certificate there is good, but it names b.
    a.transport.learn(&name("c"), b.transport.address());
    let error = a.transport.fetch(&name("c"), asks(vec![key(0)])).await.expect_err("another node");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    // The other way round: a client that trusts b, but whose own certificate is of another cluster.
    let mut endpoint = quinn::Endpoint::client(LOOPBACK.parse().unwrap()).unwrap();
    endpoint.set_default_client_config(
        tls::client(&ours[0].showing(&theirs[0]), tls::discovering(LARGEST_DATAGRAM)).unwrap(),
    );
    let connection = endpoint.connect(b.transport.address(), &certificate_name(&name("b"))).unwrap().await;
    let ended = match connection {
        Ok(connection) => timeout(TIMEOUT, connection.closed()).await.expect("b closes it"),
        Err(error) => error,
    };
    assert!(!matches!(ended, quinn::ConnectionError::TimedOut), "{ended}");
    for node in [a, b, stranger] {
        node.end().await;
    }
}

/// A raw connection from `from` to `to`, to say what no good node says.
async fn raw(from: &Identity, to: &Node, name_of_to: &str) -> (quinn::Endpoint, quinn::Connection) {
    let mut endpoint = quinn::Endpoint::client(LOOPBACK.parse().unwrap()).unwrap();
    endpoint.set_default_client_config(tls::client(from, tls::discovering(LARGEST_DATAGRAM)).unwrap());
    let connecting = endpoint.connect(to.transport.address(), &certificate_name(&name(name_of_to))).unwrap();
    let connection = connecting.await.expect("connected");
    (endpoint, connection)
}

#[tokio::test]
async fn hostile_requests_are_refused_and_harm_nobody_else() {
    let identities = cluster(&["a", "b"]);
    let (a, b) = (Node::start(&identities[0]), Node::start(&identities[1]));
    a.transport.learn(&name("b"), b.transport.address());
    let (_endpoint, connection) = raw(&identities[0], &b, "b").await;
    let good = frame::head(&Request::Send { header: header("r") });
    let prefix = frame::grain_prefix(&key(1), &Bytes::from(vec![0; 100]));
    let mut long = prefix.to_vec();
    long[40..].copy_from_slice(&u32::MAX.to_le_bytes());
    let fetch = |count| {
        let (run, version) = ("r".parse().unwrap(), VersionId::of(b"v"));
        frame::head(&Request::Fetch {
            run,
            version,
            epoch: 0,
            generation: 1,
            effort: FetchMode::Cached,
            count,
            traceparent: None,
        })
    };
    let hostile: Vec<Vec<u8>> = vec![
        vec![],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        u32::MAX.to_le_bytes().to_vec(),
        [&5u32.to_le_bytes()[..], b"nojson"].concat(),
        [&2u32.to_le_bytes()[..], b"{}"].concat(),
        good[..10].to_vec(),
        [&good[..], &prefix[..20]].concat(),
        [&good[..], &prefix[..], &[0; 99]].concat(),
        [&good[..], &long].concat(),
        fetch(u32::MAX).to_vec(),
        [&fetch(2)[..], &[0; 40]].concat(),
    ];
    for bytes in hostile {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        // The answer may come before all is written.
        let _ = send.write_all(&bytes).await;
        let _ = send.finish();
        let reply = timeout(TIMEOUT, frame::read_head::<Reply>(&mut receive, frame::MAX_HEAD))
            .await
            .expect("answers");
        assert!(matches!(reply, Ok(Reply::Refused { .. })), "{bytes:?} got {reply:?}");
    }
    assert!(lock(&b.shelf.0).is_empty());
    assert_eq!(send(&a, "b", vec![(key(1), Bytes::from_static(b"x"))]).await.unwrap().stored, 1);
    drop(connection);
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn a_node_of_another_protocol_is_refused_by_name() {
    let identities = cluster(&["a", "b"]);
    let a = Node::start(&identities[0]);
    let server = tls::server_of(&identities[1], tls::discovering(LARGEST_DATAGRAM), b"shardd/2").unwrap();
    let b = quinn::Endpoint::server(server, LOOPBACK.parse().unwrap()).unwrap();
    a.transport.learn(&name("b"), b.local_addr().unwrap());
    let to = name("b");
    let answering = async { b.accept().await.expect("it is asked").await.map(drop) };
    let asked = async { tokio::join!(a.transport.fetch(&to, asks(vec![key(0)])), answering) };
    let (asked, answered) = timeout(TIMEOUT, asked).await.expect("does not hang");
    assert!(answered.is_err(), "they agreed on a protocol");
    let error = asked.expect_err("another protocol").to_string();
    assert!(error.contains("does not speak shardd/1"), "{error}");
    a.end().await;
}

/// Holds nothing back.
struct Freely;

#[async_trait]
impl Pace for Freely {
    async fn pass(&self, _: u64) {}
}

/// The exchange stands back while a peer waits for an answer, but does not stand still.
#[tokio::test]
async fn the_exchange_lets_answers_pass_and_goes_on_all_the_same() {
    let (a, b) = pair();
    let exchange = async |grains: u32| {
        let (give, take) = mpsc::channel(1);
        let feed = async move {
            for index in 0..grains {
                give.send((key(index), Bytes::from(vec![7; TURN]))).await.expect("it is taken");
            }
        };
        let (to, begun) = (name("b"), Instant::now());
        let sent = a.transport.send(&to, header("r"), take, Some(&Freely));
        let (_, ack) = tokio::join!(feed, sent);
        assert_eq!(ack.unwrap(), Ack { stored: grains.into(), refused: 0 });
        begun.elapsed()
    };
    exchange(1).await;
    a.transport.answering.send_modify(|answers| *answers += 1);
    let beside = timeout(TIMEOUT, exchange(20)).await.expect("it does not stand still");
    assert!(beside >= YIELD * 18, "{beside:?}");
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn hostile_answers_and_lost_connections_are_errors_and_do_not_hang() {
    let identities = cluster(&["a", "b"]);
    let a = Node::start(&identities[0]);
    let server = tls::server(&identities[1], tls::discovering(LARGEST_DATAGRAM)).unwrap();
    let b = quinn::Endpoint::server(server, LOOPBACK.parse().unwrap()).unwrap();
    a.transport.learn(&name("b"), b.local_addr().unwrap());

    let grains = frame::head(&Reply::Grains);
    let other = frame::grain_prefix(&key(9), &Bytes::new());
    let nonsense = [&8u32.to_le_bytes()[..], b"nonsense"].concat();
    let ack = frame::head(&Reply::Ack { ack: Ack { stored: 1, refused: 0 } }).to_vec();
    // The answer, `None` for a lost connection, and whether it counts as a peer that went away.
    let answers = [
        (Some(nonsense), false),
        (Some(u32::MAX.to_le_bytes().to_vec()), false),
        (Some([&grains[..], &[1; 30]].concat()), true),
        (Some([&grains[..], &other].concat()), false),
        (Some(ack), false),
        (Some(vec![]), true),
        (None, true),
    ];
    let mut connection = None;
    for (answer, gone) in answers {
        let reply = async {
            if connection.is_none() {
                connection = Some(b.accept().await.unwrap().await.expect("connected"));
            }
            let connection = connection.as_ref().expect("just made");
            let (mut send, _receive) = connection.accept_bi().await.unwrap();
            match answer {
                Some(bytes) => {
                    send.write_all(&bytes).await.unwrap();
                    send.finish().unwrap();
                }
                None => connection.close(0u32.into(), b"gone"),
            }
        };
        let to = name("b");
        let asked = a.transport.fetch(&to, asks(vec![key(0)]));
        let (_, asked) = timeout(TIMEOUT, async { tokio::join!(reply, asked) }).await.expect("does not hang");
        let error = asked.expect_err("no answer");
        assert_eq!(matches!(error, PeerError::Unreachable { .. }), gone, "{error}");
    }
    a.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_waited_for_once_and_found_again_when_it_speaks() {
    let identities = cluster(&["a", "b"]);
    let a = Node::start(&identities[0]);
    let silent = UdpSocket::bind(LOOPBACK).unwrap();
    let address = silent.local_addr().unwrap();
    a.transport.learn(&name("b"), address);
    let to = name("b");
    let ask = || a.transport.fetch(&to, asks(vec![key(0)]));
    let begun = Instant::now();
    let error = ask().await.expect_err("no node answers there");
    assert!(begun.elapsed() >= CONNECT_TIMEOUT, "{:?}", begun.elapsed());
    assert!(error.to_string().contains("no answer within"), "{error}");
    for _ in 0..3 {
        // Also during the next attempt, in the background, no caller waits for it.
        let begun = Instant::now();
        ask().await.expect_err("still no node");
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        tokio::time::advance(BREAKER).await;
    }
    tokio::time::resume();
    drop(silent);
    let b = Node::start_at(address, &identities[1]);
    let found = async {
        while ask().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, found).await.expect("found again");
    let error = a.transport.fetch(&name("c"), asks(vec![])).await.expect_err("unknown");
    assert!(error.to_string().contains("address is not known"), "{error}");
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn a_peer_that_restarts_elsewhere_is_found_at_its_new_address() {
    let identities = cluster(&["a", "b"]);
    let (a, b) = (Node::start(&identities[0]), Node::start(&identities[1]));
    a.transport.learn(&name("b"), b.transport.address());
    assert!(a.transport.fetch(&name("b"), asks(vec![key(0)])).await.is_ok());
    b.end().await;
    assert!(a.transport.fetch(&name("b"), asks(vec![key(0)])).await.is_err());
    let b = Node::start(&identities[1]);
    a.transport.learn(&name("b"), b.transport.address());
    assert_eq!(a.transport.fetch(&name("b"), asks(vec![key(0)])).await.unwrap(), [None]);
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn a_peer_that_was_killed_and_restarted_is_noticed_at_once() {
    let identities = cluster(&["a", "b"]);
    let a = Node::start(&identities[0]);
    // The process before: a runtime of its own, which ends without a word.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let before = {
        let _inside = process.enter();
        Node::start(&identities[1])
    };
    let address = before.transport.address();
    a.transport.learn(&name("b"), address);
    assert!(a.transport.fetch(&name("b"), asks(vec![key(0)])).await.is_ok());
    process.shutdown_background();
    drop(before);
    let free = async {
        while UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, free).await.expect("the process before has gone");
    let b = Node::start_at(address, &identities[1]);
    let begun = Instant::now();
    // The first may be lost with the connection; after that the peer is there.
    let _ = a.transport.fetch(&name("b"), asks(vec![key(0)])).await;
    assert_eq!(a.transport.fetch(&name("b"), asks(vec![key(0)])).await.unwrap(), [None]);
    assert!(begun.elapsed() < IDLE, "the idle timeout was waited for: {:?}", begun.elapsed());
    a.end().await;
    b.end().await;
}
