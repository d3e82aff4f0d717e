//! What goes with the requests of a store: who pays, how objects are encrypted, over which proxy.

use std::collections::BTreeSet;

use shardd_tests::run;
use shardd_tests::services::{Asked, Service};

use super::{Person, shardctl};

/// The requests of an ingest into the bucket and of what follows it, under these settings.
fn asked(person: &Person, settings: &[(&str, &str)]) -> Vec<Asked> {
    let service = Service::before(&person.s3.endpoint);
    let file = person.write("here.csv", "a,b\n1,2\n");
    let url = service.url();
    for words in
        [&["ingest", &file, "--name", "x"][..], &["ls"], &["verify", "x"], &["rm", "x", "--yes"], &["gc"]]
    {
        let mut command = shardctl(person.home.path());
        command.args(["--store", "s3://data/lab", "--store-endpoint", &url]).args(words);
        run(command.envs(person.s3.variables()).envs(settings.iter().copied()));
    }
    service.asked()
}

#[test]
fn every_request_agrees_to_pay_and_every_put_asks_for_encryption_where_the_environment_says_so() {
    let Some(person) = Person::new() else { return };
    let settings = [("AWS_REQUEST_PAYER", "requester"), ("AWS_SERVER_SIDE_ENCRYPTION", "AES256")];
    let asked = asked(&person, &settings);
    let kinds: BTreeSet<&str> = asked
        .iter()
        .map(|asked| if asked.target.contains("list-type=2") { "LIST" } else { asked.method.as_str() })
        .collect();
    println!("{} requests: {kinds:?}", asked.len());
    assert!(kinds.is_superset(&["GET", "HEAD", "LIST", "PUT"].into()), "{kinds:?}");
    for asked in asked {
        assert_eq!(asked.field("x-amz-request-payer"), Some("requester"), "{asked:?}");
        let is_encrypted = asked.field("x-amz-server-side-encryption") == Some("AES256");
        assert!(is_encrypted || asked.method != "PUT", "{asked:?}");
    }
}

#[test]
fn without_settings_no_request_agrees_to_pay_or_asks_for_encryption() {
    let Some(person) = Person::new() else { return };
    for asked in asked(&person, &[]) {
        assert_eq!(asked.field("x-amz-request-payer"), None, "{asked:?}");
        assert_eq!(asked.field("x-amz-server-side-encryption"), None, "{asked:?}");
    }
}

#[test]
fn requests_go_over_the_proxy_of_the_environment_unless_it_excepts_the_host() {
    let Some(person) = Person::new() else { return };
    let proxy = Service::before(&person.s3.endpoint);
    let (key, secret) = person.s3.keys();
    let keys = [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)];
    let url = proxy.url();
    let proxied = [&keys[..], &[("HTTP_PROXY", url.as_str())]].concat();
    person.reads(&proxied);
    let seen = proxy.asked();
    assert!(
        !seen.is_empty() && seen.iter().all(|asked| asked.target.starts_with("http://localhost:")),
        "{seen:?}"
    );
    person.reads(&[&proxied[..], &[("NO_PROXY", "localhost")]].concat());
    assert_eq!(proxy.asked().len(), seen.len());
}

#[test]
fn a_refusal_names_the_setting_of_buckets_whose_readers_pay() {
    let Some(person) = Person::new() else { return };
    let mut command = shardctl(person.home.path());
    command.args(["--store", "s3://closed/lab", "ls"]).envs(person.s3.variables());
    let output = command.output().expect("shardctl starts");
    let line = shardd_tests::error_line(&output);
    assert!(line.contains("AccessDenied") && line.contains("AWS_REQUEST_PAYER=requester"), "{line}");
}
