use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn node(text: &str) -> NodeId {
    text.parse().expect("a good name")
}

fn host(text: &str) -> Host {
    text.parse().expect("a host")
}

fn certified(
    authority: &Authority,
    hosts: &[Host],
    lifetime: Duration,
) -> (KeyPair, CertificateDer<'static>) {
    let key = KeyPair::generate().expect("a key");
    let certificate = authority.certify(&node("n2"), hosts, &key, lifetime).expect("signed");
    (key, certificate.into())
}

#[test]
fn a_certificate_says_what_was_signed_and_is_due_after_two_thirds_of_its_time() {
    let directory = TempDir::new().unwrap();
    let authority = Authority::found(directory.path()).expect("founded");
    let hosts = [host("10.0.0.7"), host("fd00::7"), host("gpu7.lab.example.org")];
    let (key, certificate) = certified(&authority, &hosts, LIFETIME);
    let info = check_certificate(&certificate, authority.certificate(), key_digest(&key)).expect("good");
    assert_eq!((&info.node, info.key, &info.hosts), (&node("n2"), key_digest(&key), &hosts.to_vec()));
    assert!(info.covers(&hosts[1..]) && !info.covers(&[host("10.0.0.8")]));
    assert_eq!(info.not_after - info.issued(), LIFETIME.as_secs());
    assert_eq!(info.due() - info.issued(), 20 * 24 * 3600);
    assert_eq!(holder_of(&certificate), Some((node("n2"), key_digest(&key))));
}

#[test]
fn what_another_authority_signed_or_is_for_another_key_is_not_believed() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (ours, theirs) =
        (Authority::found(here.path()).expect("founded"), Authority::found(there.path()).expect("founded"));
    let (key, certificate) = certified(&theirs, &[], LIFETIME);
    let refused = check_certificate(&certificate, ours.certificate(), key_digest(&key)).expect_err("theirs");
    assert!(refused.contains("not signed by the cluster's authority"), "{refused}");
    let refused =
        check_certificate(&certificate, theirs.certificate(), Digest::of(b"")).expect_err("another key");
    assert!(refused.contains("another key"), "{refused}");
    let refused = check_certificate(ours.certificate(), ours.certificate(), Digest::of(b""));
    assert!(refused.expect_err("the authority is no node").contains("names no node"));
}

#[test]
fn an_authority_stays_itself_and_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    let digest = Authority::found(directory.path()).expect("founded").digest();
    assert_eq!(Authority::found(directory.path()).expect("found again").digest(), digest);
    for (name, wanted) in [(CA_KEY, 0o600), (CA_CERTIFICATE, 0o644)] {
        let mode = std::fs::metadata(directory.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, wanted, "{name}");
    }
    std::fs::remove_file(directory.path().join(CA_KEY)).unwrap();
    let refused = Authority::found(directory.path()).err().expect("no other is invented").to_string();
    assert!(refused.contains("without its key"), "{refused}");
}

#[test]
fn the_key_of_another_authority_is_refused() {
    let (ours, theirs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for directory in [&ours, &theirs] {
        Authority::found(directory.path()).expect("founds");
    }
    std::fs::copy(theirs.path().join(CA_KEY), ours.path().join(CA_KEY)).unwrap();
    let refused = Authority::open(ours.path()).err().expect("it signs for others").to_string();
    assert!(refused.contains("ca.key") && refused.contains("not the key of ca.pem"), "{refused}");
}

#[test]
fn a_request_that_does_not_prove_its_key_is_none() {
    for pem in ["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
    {
        assert!(Request::parse(pem).is_err());
    }
    let key = KeyPair::generate().unwrap();
    assert_eq!(Request::parse(&Request::make(&key).unwrap()).unwrap().key(), key_digest(&key));
}

#[test]
fn hosts_are_names_and_addresses_of_one_machine() {
    for good in ["10.0.0.1", "::1", "localhost", "gpu-7.lab.example.org"] {
        assert_eq!(host(good).to_string(), good);
    }
    assert_eq!(host("GPU7.Lab").to_string(), "gpu7.lab");
    for bad in
        ["", "a b", "*.lab", "_n1_.node.shardd", "_n1_.node.shardd.", "http://a", "10.0.0.1:7700", "a/b", "-"]
    {
        assert!(bad.parse::<Host>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn bytes_that_are_no_certificate_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let certificate = CertificateDer::from(bytes);
        prop_assert!(CertificateInfo::of(&certificate).is_err());
        prop_assert!(holder_of(&certificate).is_none());
    }
}
