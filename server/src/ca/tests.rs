use std::path::Path;

use rcgen::KeyPair;
use shardd_api::duration::now;
use shardd_certificates::{CA_CERTIFICATE, LIFETIME, NODE_CERTIFICATE, SKEW, key_digest};
use shardd_store::metastore::{Expected, MemoryMetastore};
use tempfile::TempDir;

use super::*;
use crate::identity::Identity;
use crate::identity::testing::term;

struct House {
    issuer: CertificateIssuer,
    first: Identity,
    directory: TempDir,
}

impl House {
    fn new() -> House {
        let directory = TempDir::new().expect("a directory");
        let (first, authority) = Identity::found(directory.path(), name("n1"), &term()).expect("founded");
        let address = "127.0.0.1:1".parse().expect("an address");
        let cluster = Cluster {
            store: "file:///store".into(),
            store_options: Default::default(),
            first: name("n1"),
            http: address,
            tls: true,
            quic: address,
            asks_tokens: false,
            metastore: None,
        };
        let issuer = CertificateIssuer {
            authority_pem: authority.pem().to_owned(),
            authority: Some(authority),
            standing: None,
            first_key: first.key_digest(),
            cluster,
            metastore: Arc::new(MemoryMetastore::new()),
            lifetime: LIFETIME,
        };
        House { issuer, first, directory }
    }

    async fn secret(&self) -> String {
        self.secrets().create(Duration::from_secs(60)).await.expect("made").0.reveal()
    }

    fn secrets(&self) -> JoinSecrets {
        JoinSecrets::in_metastore(Arc::clone(&self.issuer.metastore))
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn name(text: &str) -> NodeId {
    text.parse().expect("a good name")
}

fn asks(secret: &str, node: &str, key: &KeyPair) -> JoinRequest {
    let csr = Request::make(key).expect("a request");
    JoinRequest { secret: secret.to_owned(), csr, id: name(node), hosts: vec!["10.0.0.2".to_owned()] }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

#[tokio::test]
async fn a_secret_lets_one_node_in_which_may_ask_again() {
    let house = House::new();
    let (secret, ours, theirs) = (house.secret().await, key(), key());
    let reply = house.issuer.join(asks(&secret, "n2", &ours)).await.expect("joins");
    let certificate = CertificateDer::from_pem_slice(reply.certificate.as_bytes()).expect("PEM");
    let info = check_certificate(&certificate, house.first.ca(), key_digest(&ours)).expect("signed");
    assert_eq!((info.node, info.hosts.len()), (name("n2"), 1));
    assert!(info.not_before <= now() - SKEW.as_secs() && info.not_after <= now() + LIFETIME.as_secs());

    house.issuer.join(asks(&secret, "n2", &ours)).await.expect("it did not hear the answer");
    for (node, key) in [("n3", &ours), ("n2", &theirs), ("n3", &theirs)] {
        let refused = house.issuer.join(asks(&secret, node, key)).await.expect_err("a replay").to_string();
        assert!(refused.contains("node n2 has joined with this join token"), "{refused}");
    }
    let noted = Register::in_metastore(Arc::clone(&house.issuer.metastore)).list().await.expect("lists");
    assert_eq!(noted.iter().map(|record| record.node.as_str()).collect::<Vec<_>>(), ["n2"]);
}

#[tokio::test]
async fn of_two_who_come_at_once_one_gets_in() {
    let house = Arc::new(House::new());
    let secret = house.secret().await;
    let come = |node: &'static str| {
        let (house, secret) = (Arc::clone(&house), secret.clone());
        tokio::spawn(async move { house.issuer.join(asks(&secret, node, &key())).await.is_ok() })
    };
    let (one, two) = (come("n2"), come("n3"));
    assert!(one.await.expect("no panic") ^ two.await.expect("no panic"));
}

#[tokio::test]
async fn old_wrong_and_no_secrets_let_nobody_in_and_say_which() {
    let house = House::new();
    let expired = house.secrets().create(Duration::ZERO).await.expect("made").0.reveal();
    let refused = house.issuer.join(asks(&expired, "n2", &key())).await.expect_err("too late").to_string();
    assert!(refused.contains("the join token expired"), "{refused}");
    for wrong in ["", "x", &Secret::random().reveal()] {
        let refused = house.issuer.join(asks(wrong, "n2", &key())).await.expect_err("wrong").to_string();
        assert!(refused.contains("not that of a join token of this cluster"), "{refused}");
    }
    let kept = house.issuer.metastore.list("").await.expect("lists");
    assert!(!format!("{kept:?}").contains(&expired), "secrets are kept as digests");
}

#[tokio::test]
async fn what_is_refused_costs_no_secret() {
    let house = House::new();
    let secret = house.secret().await;
    let bad = JoinRequest { csr: "nonsense".to_owned(), ..asks(&secret, "n2", &key()) };
    assert!(matches!(house.issuer.join(bad).await, Err(IssueError::BadRequest(_))));
    let odd = JoinRequest { hosts: vec!["a b".to_owned()], ..asks(&secret, "n2", &key()) };
    assert!(matches!(house.issuer.join(odd).await, Err(IssueError::BadHosts(_))));
    let many = JoinRequest { hosts: vec!["a".to_owned(); 65], ..asks(&secret, "n2", &key()) };
    assert!(matches!(house.issuer.join(many).await, Err(IssueError::BadHosts(_))));
    let refused =
        house.issuer.join(asks(&secret, "n1", &key())).await.expect_err("the first node's").to_string();
    assert!(refused.contains("is that of the first node"), "{refused}");
    let held = house.issuer.metastore.put("names/n2", b"somebody".to_vec(), Expected::Any, None).await;
    held.expect("put");
    let refused = house.issuer.join(asks(&secret, "n2", &key())).await.expect_err("taken").to_string();
    assert!(refused.contains("node id n2 belongs to a live node"), "{refused}");
    house.issuer.join(asks(&secret, "n3", &key())).await.expect("it is still good");
}

#[tokio::test]
async fn a_certificate_is_renewed_for_its_own_key_until_that_is_revoked() {
    let house = House::new();
    let (secret, ours) = (house.secret().await, key());
    house.issuer.join(asks(&secret, "n2", &ours)).await.expect("joins");
    let csr = Request::make(&ours).expect("a request");
    let renew = |key| house.issuer.renew(&house.issuer.cluster.first, key, &csr, &[]);
    renew(key_digest(&ours)).await.expect("renewed");
    let refused = renew(Digest::of(b"another")).await.expect_err("another key").to_string();
    assert!(refused.contains("another key than that of the connection"), "{refused}");
    Revoked::revoke(house.issuer.metastore.as_ref(), &name("n2"), key_digest(&ours)).await.expect("kept");
    assert!(matches!(renew(key_digest(&ours)).await, Err(IssueError::Revoked(_))));
    let again = asks(&house.secret().await, "n2", &ours);
    assert!(matches!(house.issuer.join(again).await, Err(IssueError::Revoked(_))));
    house.issuer.join(asks(&house.secret().await, "n2", &key())).await.expect("with another key it may");
}

#[tokio::test]
async fn who_has_a_certificate_joins_with_it_and_without_an_authority_nobody_gets_one() {
    let mut house = House::new();
    let held = std::fs::read_to_string(house.path().join(NODE_CERTIFICATE)).expect("PEM");
    house.issuer.authority = None;
    let secret = house.secret().await;
    let mine = JoinRequest { csr: held.clone(), ..asks(&secret, "n1", &key()) };
    assert_eq!(house.issuer.join(mine).await.expect("joins").certificate, held);
    let others = JoinRequest { csr: held, ..asks(&house.secret().await, "n2", &key()) };
    let refused = house.issuer.join(others).await.expect_err("it names n1").to_string();
    assert!(refused.contains("names n1, not n2"), "{refused}");
    let ca = std::fs::read_to_string(house.path().join(CA_CERTIFICATE)).expect("PEM");
    let forged = JoinRequest { csr: ca, ..asks(&house.secret().await, "n2", &key()) };
    assert!(matches!(house.issuer.join(forged).await, Err(IssueError::BadRequest(_))));
    let secret = house.secret().await;
    let refused = house.issuer.join(asks(&secret, "n3", &key())).await.expect_err("no authority");
    assert!(refused.to_string().contains("shardctl certs issue n3"), "{refused}");
    house.secrets().check(&secret).await.expect("and costs nothing");
    house.secrets().spend(&secret, &name("n4"), Digest::of(b"a key")).await.expect("it is good for another");
}

#[tokio::test]
async fn a_first_node_lacks_its_key_where_one_has_signed_before() {
    let house = House::new();
    let register = house.issuer.register();
    let lacks = async || register.signing().await.expect("readable").map(|signing| signing.lacks_its_key());
    assert_eq!(lacks().await, None);
    register.note_signing(&name("n1"), false).await.expect("noted");
    assert_eq!(lacks().await, Some(false), "the authority is away from all nodes");
    register.note_signing(&name("n1"), true).await.expect("noted");
    assert_eq!(lacks().await, Some(false));
    register.note_signing(&name("n2"), false).await.expect("noted");
    assert_eq!(lacks().await, Some(true), "it was promoted");
    assert_eq!(register.signing().await.expect("readable").expect("noted").node, name("n2"));
    register.note_signing(&name("n2"), true).await.expect("noted");
    assert_eq!(lacks().await, Some(false), "its owner has put the key there");
}
