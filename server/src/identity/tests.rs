use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use super::testing::term;
use super::*;

fn name(text: &str) -> NodeId {
    text.parse().expect("a good name")
}

/// A first node that only lets others join: names its authority, and answers one request with `reply`.
fn first_node(
    authority: String,
    reply: impl FnOnce(JoinRequest) -> (u16, serde_json::Value) + Send + 'static,
) -> (Site, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a request");
        read_until(&mut stream, |_| Some(()));
        answer(&mut stream, 200, &authority);
        let (mut stream, _) = listener.accept().expect("a request");
        let request = read_until(&mut stream, |body| serde_json::from_str(body).ok());
        let (status, body) = reply(request);
        answer(&mut stream, status, &body.to_string());
    });
    (Site { address, tls: false }, served)
}

fn read_until<T>(stream: &mut TcpStream, parse: impl Fn(&str) -> Option<T>) -> T {
    let mut seen = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).expect("a request");
        seen.extend_from_slice(&part[..read]);
        let text = String::from_utf8_lossy(&seen);
        if let Some(parsed) = text.split_once("\r\n\r\n").and_then(|(_, body)| parse(body)) {
            return parsed;
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16, body: &str) {
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .unwrap();
}

fn found(directory: &TempDir) -> (Identity, Authority) {
    Identity::found(directory.path(), name("n1"), &term()).expect("founded")
}

fn signed(authority: &Authority, request: &JoinRequest, id: &NodeId) -> (u16, serde_json::Value) {
    let cluster = Cluster {
        store_options: Default::default(),
        asks_tokens: false,
        store: "file:///store".into(),
        first: name("n1"),
        http: "127.0.0.1:1".parse().unwrap(),
        tls: false,
        quic: "127.0.0.1:2".parse().unwrap(),
        metastore: None,
    };
    let csr = Request::parse(&request.csr).expect("a request");
    let certificate = authority.sign(id, &term().hosts, &csr, term().lifetime).expect("signed").pem();
    let authority = authority.pem().to_owned();
    (200, serde_json::to_value(JoinReply { certificate, authority, cluster }).unwrap())
}

#[test]
fn a_founder_is_the_same_after_a_restart_and_keeps_its_keys_to_itself() {
    let directory = TempDir::new().unwrap();
    let tls = directory.path().join("tls");
    assert!(matches!(Identity::open(&tls), Ok(ClusterRole::New)));
    let (identity, authority) = Identity::found(&tls, name("n1"), &term()).unwrap();
    let Ok(ClusterRole::First(again, same)) = Identity::open(&tls) else {
        panic!("not the founder any more")
    };
    assert_eq!((again.node(), again.key_digest()), (&name("n1"), identity.key_digest()));
    assert_eq!(same.digest(), authority.digest());
    for file in std::fs::read_dir(&tls).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        // The authority's certificate is for everybody.
        assert_eq!(mode & 0o777, if file.file_name() == CA_CERTIFICATE { 0o644 } else { 0o600 });
    }
    assert_eq!(std::fs::metadata(&tls).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_joined_node_has_its_own_key_and_needs_the_token_only_once() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_, authority) = found(&first);
    let pinned = authority.digest();
    let (site, served) =
        first_node(authority.pem().to_owned(), move |request| signed(&authority, &request, &request.id));
    let token = JoinToken { site, authority: pinned, secret: Secret::random() };
    let (joined, cluster) = join(second.path(), &token, Some(name("n2")), &term().hosts).expect("joined");
    served.join().unwrap();
    let Ok(ClusterRole::Joined(again, kept)) = Identity::open(second.path()) else { panic!("not joined") };
    assert_eq!((again.node(), again.key_digest()), (&name("n2"), joined.key_digest()));
    assert_eq!(*kept, cluster);
    assert!(!second.path().join(CA_KEY).exists());

    // The authority's key makes it no first node: it waits there for a promotion.
    std::fs::copy(first.path().join(CA_KEY), second.path().join(CA_KEY)).expect("copied");
    assert!(matches!(Identity::open(second.path()), Ok(ClusterRole::Joined(..))));
    Cluster { first: name("n2"), ..cluster }.save(second.path()).expect("saved");
    assert!(matches!(Identity::open(second.path()), Ok(ClusterRole::First(..))), "it was promoted");
}

#[test]
fn what_an_older_first_node_says_of_the_cluster_is_read_and_what_a_newer_one_adds_too() {
    let old = r#"{"store":"/s","first":"n1","http":"127.0.0.1:1","quic":"127.0.0.1:2"}"#;
    let cluster: Cluster = serde_json::from_str(old).unwrap();
    assert_eq!(cluster.metastore, None, "the first node keeps the metadata itself");
    assert_eq!(serde_json::to_string(&cluster).unwrap(), old);
    let new = r#"{"store":"/s","first":"n1","http":"127.0.0.1:1","quic":"127.0.0.1:2","asks_tokens":true,"metastore":"etcd://e:1/p"}"#;
    let cluster: Cluster = serde_json::from_str(new).unwrap();
    assert!(cluster.asks_tokens);
    assert_eq!(cluster.metastore.as_ref().map(ToString::to_string), Some("etcd://e:1/p".into()));
    assert_eq!(serde_json::to_string(&cluster).unwrap(), new);
}

#[test]
fn a_node_without_a_name_takes_one_from_its_key() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_, authority) = found(&first);
    let pinned = authority.digest();
    let (site, _) =
        first_node(authority.pem().to_owned(), move |request| signed(&authority, &request, &request.id));
    let token = JoinToken { site, authority: pinned, secret: Secret::random() };
    let (joined, _) = join(second.path(), &token, None, &term().hosts).expect("joined");
    assert_eq!(joined.node().to_string(), format!("n-{}", &joined.key_digest().to_string()[..8]));
}

#[test]
fn another_authority_than_the_pinned_one_is_not_believed() {
    let (first, other, second) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_, authority) = found(&first);
    let (_, impostor) = found(&other);
    let (site, _) =
        first_node(impostor.pem().to_owned(), move |request| signed(&impostor, &request, &request.id));
    let token = JoinToken { site, authority: authority.digest(), secret: Secret::random() };
    let refused = join(second.path(), &token, None, &term().hosts).err().expect("refused");
    assert!(matches!(refused, IdentityError::WrongAuthority { .. }), "{refused}");
    assert!(matches!(Identity::open(second.path()), Ok(ClusterRole::New)), "nothing is kept of the impostor");
}

#[test]
fn a_certificate_for_another_name_or_key_is_refused() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_, authority) = found(&first);
    let pinned = authority.digest();
    let (site, _) =
        first_node(authority.pem().to_owned(), move |request| signed(&authority, &request, &name("n9")));
    let token = JoinToken { site, authority: pinned, secret: Secret::random() };
    let refused =
        join(second.path(), &token, Some(name("n2")), &term().hosts).err().expect("refused").to_string();
    assert!(refused.contains("does not name n2"), "{refused}");

    let (_, authority) = found(&first);
    let (site, _) = first_node(authority.pem().to_owned(), move |request| {
        let mine = KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&mine).unwrap().pem().unwrap();
        signed(&authority, &JoinRequest { csr, ..request.clone() }, &request.id)
    });
    let token = JoinToken { site, ..token };
    let refused =
        join(second.path(), &token, Some(name("n2")), &term().hosts).err().expect("refused").to_string();
    assert!(refused.contains("for another key"), "{refused}");
}

#[test]
fn whoever_answers_sees_no_secret_before_it_has_shown_the_authority() {
    let (first, other, second) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_, authority), (_, impostor)) = (found(&first), found(&other));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let site = Site { address: listener.local_addr().expect("bound"), tls: false };
    let listening = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a request");
        read_until(&mut stream, |_| Some(()));
        answer(&mut stream, 200, impostor.pem());
        listener.set_nonblocking(true).expect("set");
        listener
    });
    let token = JoinToken { site, authority: authority.digest(), secret: Secret::random() };
    let refused = join(second.path(), &token, None, &[]).err().expect("refused");
    assert!(matches!(refused, IdentityError::WrongAuthority { .. }), "{refused}");
    assert!(listening.join().unwrap().accept().is_err(), "it asks nothing more");
}

#[test]
fn the_first_nodes_reason_is_passed_on() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_, authority) = found(&first);
    let pinned = authority.digest();
    let (site, _) = first_node(authority.pem().to_owned(), |_| {
        (403, serde_json::json!({ "detail": "the secret is wrong" }))
    });
    let token = JoinToken { site, authority: pinned, secret: Secret::random() };
    let refused = join(second.path(), &token, None, &[]).err().expect("refused").to_string();
    assert_eq!(refused, format!("cannot join at {site}: the secret is wrong"));
}

#[test]
fn a_certificate_is_renewed_under_the_same_key_and_kept() {
    let directory = TempDir::new().unwrap();
    let (identity, authority) = found(&directory);
    let (key, before) = (identity.key_digest(), identity.cert_resolver().leaf());
    assert!(!identity.is_due(&term().hosts));
    let lab = vec!["n1.lab".parse().unwrap()];
    assert!(identity.is_due(&lab), "it is reached under another name");
    identity.renew(&authority, &Term { hosts: lab.clone(), ..term() }).expect("renewed");
    assert!(!identity.is_due(&lab) && identity.cert_resolver().leaf() != before);
    let Ok(ClusterRole::First(again, _)) = Identity::open(directory.path()) else {
        panic!("not the founder")
    };
    assert_eq!((again.key_digest(), again.info()), (key, identity.info()));

    let old = Term { lifetime: std::time::Duration::ZERO, ..term() };
    identity.renew(&authority, &old).expect("one that is over");
    assert!(identity.is_due(&term().hosts));
    let lapsed = identity.check_time().expect_err("lapsed").to_string();
    assert!(lapsed.contains("shardctl token create --join"), "{lapsed}");
}

#[test]
fn a_certificate_that_somebody_puts_there_is_shown_if_it_is_this_nodes() {
    let directory = TempDir::new().unwrap();
    let (identity, authority) = found(&directory);
    let path = directory.path().join(NODE_CERTIFICATE);
    assert_eq!(identity.look_again(), Ok(false));
    let fresh = |node: &str| {
        authority.certify(&name(node), &term().hosts, &identity.key, term().lifetime).expect("signed").pem()
    };
    std::fs::write(&path, fresh("n2")).unwrap();
    assert!(identity.look_again().unwrap_err().contains("it names n2, not n1"));
    std::fs::write(&path, fresh("n1")).unwrap();
    assert_eq!(identity.look_again(), Ok(true));
    assert_eq!(identity.look_again(), Ok(false));
}

#[test]
fn tokens_are_read_as_they_are_written_and_hide_their_secret() {
    let site = Site { address: "127.0.0.1:7700".parse().unwrap(), tls: false };
    let token = JoinToken { site, authority: Digest::of(b"authority"), secret: Secret::random() };
    assert_eq!(token.reveal().parse(), Ok(token.clone()));
    let behind_tls = JoinToken { site: Site { tls: true, ..site }, ..token.clone() };
    assert!(behind_tls.reveal().contains(",https://127.0.0.1:7700,"));
    assert_eq!(behind_tls.reveal().parse(), Ok(behind_tls));
    assert!(!format!("{token:?}").contains(&token.secret.reveal()));
    let whole = token.reveal();
    let cut = &whole[..whole.len() - 1];
    let secret = token.secret.reveal();
    for bad in ["", "shardd1", "shardd2,a,b,c", &whole.replace("127.0.0.1:7700", "somewhere"), cut] {
        let error = bad.parse::<JoinToken>().expect_err(bad).to_string();
        assert!(!error.contains(&secret[..16]), "{error}");
    }
    assert!(token.secret.is(&secret));
    for wrong in ["", "0", &secret[1..], &secret.to_uppercase().replace('A', "B")] {
        assert!(!token.secret.is(wrong));
    }
}

#[test]
fn the_token_file_keeps_its_secret_while_the_cluster_stays_the_same() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("join-token");
    let site = |port| Site { address: ([127, 0, 0, 1], port).into(), tls: false };
    let (here, there) = (site(1), site(2));
    let first = JoinToken::keep(&path, here, Digest::of(b"a")).unwrap();
    let moved = JoinToken::keep(&path, there, Digest::of(b"a")).unwrap();
    assert_eq!((moved.site, &moved.secret), (there, &first.secret));
    assert_ne!(JoinToken::keep(&path, there, Digest::of(b"b")).unwrap().secret, first.secret);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn damaged_files_are_named() {
    let directory = TempDir::new().unwrap();
    found(&directory);
    let other = TempDir::new().unwrap();
    found(&other);
    std::fs::copy(other.path().join(NODE_KEY), directory.path().join(NODE_KEY)).unwrap();
    let error = Identity::open(directory.path()).err().expect("refused").to_string();
    assert!(error.contains("node.pem is damaged") && error.contains("another key"), "{error}");
    std::fs::write(directory.path().join(NODE_KEY), b"nonsense").unwrap();
    let error = Identity::open(directory.path()).err().expect("refused").to_string();
    assert!(error.contains("node.key is damaged"), "{error}");
}

#[test]
fn a_certificate_that_a_clock_ahead_has_made_is_due_at_once_and_what_replaces_it_is_not() {
    let directory = TempDir::new().expect("a directory");
    let (identity, authority) = found(&directory);
    assert!(identity.is_early().is_none() && !identity.is_due(&term().hosts));
    let ahead = now() + 40 * 24 * 3600;
    let early = authority
        .certify_at(identity.node(), &term().hosts, &identity.key, term().lifetime, ahead)
        .expect("signed");
    identity.take(&early.pem()).expect("it is this node's");
    assert!(
        identity.is_early().is_some_and(|ahead| ahead.0 > std::time::Duration::from_secs(39 * 24 * 3600))
    );
    assert!(identity.is_due(&term().hosts));
    identity.renew(&authority, &term()).expect("renewed");
    assert!(identity.is_early().is_none() && !identity.is_due(&term().hosts));
}

#[test]
fn a_node_remembers_that_it_had_the_authoritys_key() {
    let directory = TempDir::new().expect("a directory");
    let (identity, _) = found(&directory);
    assert!(!identity.note_signing(false).expect("noted"), "it never had");
    assert!(!identity.note_signing(true).expect("noted"));
    assert!(identity.note_signing(false).expect("noted"), "it had, and has none");
}
