//! A local catalog keeps the promises, survives reopening, and hosts several processes; a missing server is named.

use tempfile::TempDir;

use super::*;

#[test]
fn a_local_catalog_keeps_the_promises() {
    let dir = TempDir::new().expect("temporary directory");
    conformance(&LocalCatalog::open(&dir).expect("opens"));
    let again = LocalCatalog::open(&dir).expect("opens");
    assert_eq!(again.datasets().expect("lists").len(), 2, "another process sees the same");
    assert_eq!(again.plans().expect("lists").len(), 1);
}

#[test]
fn a_missing_server_is_named_with_what_to_do() {
    // A port that was free a moment ago and that no one listens on.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let url = format!("http://{port}");
    let error = HttpCatalog::new(&url).datasets().expect_err("no one answers");
    let text = error.to_string();
    assert!(text.contains(&url) && text.contains("shardd serve"), "{text}");
}

#[test]
fn errors_become_the_problems_that_clients_react_to() {
    let name: DatasetName = "d".parse().expect("a name");
    let actual = Some(VersionId::of(b"v"));
    let conflict = CatalogError::Conflict { dataset: name, expected: None, actual }.to_problem();
    assert_eq!((conflict.status, conflict.actual_version()), (409, actual));
    assert!(conflict.detail.contains("no version"), "{}", conflict.detail);
    assert_eq!(CatalogError::NotFound { what: "plan x".to_owned() }.to_problem().status, 404);
}
