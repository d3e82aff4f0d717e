//! A local catalog keeps the promises, survives reopening, and hosts several processes; a missing server is named.

use futures::TryStreamExt;
use tempfile::TempDir;

use super::*;
use crate::origin::{ObjectKind, StoredObject};
use crate::stores::StoreOptions;

#[test]
fn a_local_catalog_keeps_the_promises() {
    let dir = TempDir::new().expect("temporary directory");
    conformance(&LocalCatalog::open(&dir).expect("opens"));
    let again = LocalCatalog::open(&dir).expect("opens");
    assert_eq!(again.datasets().expect("lists").len(), 2, "another process sees the same");
    assert_eq!(again.plans().expect("lists").len(), 1);
}

#[test]
fn a_catalog_in_a_bucket_keeps_the_promises() {
    let catalog = LocalCatalog::open_url("memory://", &StoreOptions::default()).expect("opens");
    conformance(&catalog);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let objects: Vec<StoredObject> =
        runtime.block_on(catalog.origin().objects().try_collect()).expect("it lists them");
    let pointers = objects.iter().filter(|object| object.kind == ObjectKind::Pointers);
    let keys: Vec<&str> = pointers.map(|object| object.key.as_str()).collect();
    assert_eq!(keys, ["meta/pointers"], "no gc took it");
}

#[test]
fn places_are_told_apart_by_their_names() {
    let options = StoreOptions { region: Some("x".to_owned()), ..StoreOptions::default() };
    let named = |name: &str| StorePlace::named(name, options.clone());
    for (name, directory) in [("a/b", "a/b"), ("file:///a/b", "/a/b"), ("s3:/a", "s3:/a"), ("", "")] {
        assert_eq!(named(name), StorePlace::Directory(directory.into()), "{name}");
    }
    for url in ["s3://a/b", "file://a/b", "ftp://a", "://"] {
        assert_eq!(named(url), StorePlace::Url { url: url.to_owned(), options: options.clone() });
        assert_eq!(named(url).to_string(), url);
    }
    let refused = LocalCatalog::find(&named("ftp://a")).err().expect("no store").to_string();
    assert!(refused.contains("\"ftp://a\" is not a store"), "{refused}");
    assert!(LocalCatalog::find(&named("memory://")).expect("it can be asked").is_none(), "nothing is there");
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
