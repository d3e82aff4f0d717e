//! Credentials of Google Cloud Storage and Azure Blob Storage. No server here checks their signatures: a small service gives the
//! tokens, and is the store that sees them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::json;
use shardd_tests::services::{Answer, Asked, Service};
use shardd_tests::{error_line, python};

use super::shardctl;

/// The token that stands in the requests for objects, after a listing of an empty store.
fn token(home: &Path, store: &str, service: &Service, variables: &[(&str, &str)]) -> String {
    let mut command = shardctl(home);
    command.args(["--store", store, "--store-endpoint", &service.url(), "ls"]);
    let output = command.envs(variables.iter().copied()).output().expect("shardctl starts");
    let asked = service.asked();
    let of_objects: Vec<&Asked> = asked.iter().filter(|asked| asked.target.contains("lab")).collect();
    let first = of_objects.first().unwrap_or_else(|| panic!("{asked:?}: {}", error_line(&output)));
    first.field("authorization").unwrap_or_default().to_owned()
}

/// A store without objects, and beside it a service of tokens.
fn service(answer: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Service {
    Service::start(move |asked| answer(asked).unwrap_or_else(|| Answer::text(404, "")))
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

#[test]
fn an_instance_of_google_has_the_token_of_its_service_account() {
    let service = service(|asked| {
        let is_token = asked.is("GET", "/computeMetadata/v1/instance/service-accounts/default/token");
        if !is_token || asked.field("metadata-flavor") != Some("Google") {
            return None;
        }
        Some(Answer::json(200, &json!({"access_token": "t", "expires_in": 3599, "token_type": "Bearer"})))
    });
    let host = service.host();
    let token = token(home().path(), "gs://bucket/lab", &service, &[("GCE_METADATA_HOST", &host)]);
    assert_eq!(token, "Bearer t");
}

#[test]
fn a_key_file_of_google_signs_the_tokens_and_other_kinds_of_files_are_refused_by_name() {
    let home = home();
    let path = home.path().join("key.json");
    let file = path.to_str().expect("UTF-8");
    let service = service(|_| None);
    let variables = [("GOOGLE_APPLICATION_CREDENTIALS", file)];
    let external =
        json!({"type": "external_account", "audience": "x", "token_url": "https://sts.googleapis.com"});
    fs::write(&path, external.to_string()).expect("written");
    let mut command = shardctl(home.path());
    let output = command.args(["--store", "gs://bucket/lab", "ls"]).envs(variables).output().expect("starts");
    let line = error_line(&output);
    assert!(line.contains("credentials of type external_account are not supported"), "{line}");

    let Some(python) = python() else { return };
    let script = "from cryptography.hazmat.primitives.asymmetric import rsa\n\
                  from cryptography.hazmat.primitives.serialization import *\n\
                  key = rsa.generate_private_key(65537, 2048)\n\
                  print(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())";
    let made = Command::new(python).args(["-c", script]).output().expect("python starts");
    assert!(made.status.success(), "{made:?}");
    let key = json!({
        "type": "service_account", "client_email": "me@x", "private_key_id": "k",
        "private_key": String::from_utf8(made.stdout).expect("PEM"),
    });
    fs::write(&path, key.to_string()).expect("written");
    let token = token(home.path(), "gs://bucket/lab", &service, &variables);
    assert_eq!(token.strip_prefix("Bearer ").map(|jwt| jwt.split('.').count()), Some(3), "{token}");
}

/// The token of Entra ID for a client with this field in its form.
fn entra_id(field: &'static str) -> Service {
    service(move |asked| {
        let is_token = asked.is("POST", "/the-tenant/oauth2/v2.0/token") && asked.body.contains(field);
        let token = json!({"access_token": "t", "expires_in": 3599, "token_type": "Bearer"});
        is_token.then(|| Answer::json(200, &token))
    })
}

const CLIENT: [(&str, &str); 3] = [
    ("AZURE_STORAGE_ACCOUNT", "account"),
    ("AZURE_CLIENT_ID", "the-client"),
    ("AZURE_TENANT_ID", "the-tenant"),
];

#[test]
fn clients_of_entra_id_have_tokens_for_a_secret_or_a_federated_token() {
    let home = home();
    let service = entra_id("client_secret=the-secret");
    let url = service.url();
    let more = [("AZURE_AUTHORITY_HOST", url.as_str()), ("AZURE_CLIENT_SECRET", "the-secret")];
    let got = token(home.path(), "az://container/lab", &service, &[&CLIENT[..], &more].concat());
    assert_eq!(got, "Bearer t");

    let service = entra_id("client_assertion=the-token");
    let url = service.url();
    let file = home.path().join("token");
    fs::write(&file, "the-token").expect("written");
    let file = file.to_str().expect("UTF-8");
    let more = [("AZURE_AUTHORITY_HOST", url.as_str()), ("AZURE_FEDERATED_TOKEN_FILE", file)];
    let got = token(home.path(), "az://container/lab", &service, &[&CLIENT[..], &more].concat());
    assert_eq!(got, "Bearer t");
}

#[test]
fn a_managed_identity_of_azure_and_the_azure_cli_have_tokens() {
    let home = home();
    let service = service(|asked| {
        let is_token = asked.is("GET", "/msi?") && asked.field("x-identity-header") == Some("the-header");
        let expires = SystemTime::now() + Duration::from_secs(3600);
        let expires = expires.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        let token = json!({"access_token": "t", "expires_on": expires.to_string(), "token_type": "Bearer"});
        (is_token && asked.field("metadata") == Some("true")).then(|| Answer::json(200, &token))
    });
    let url = format!("{}/msi", service.url());
    let account = CLIENT[0];
    let variables = [account, ("IDENTITY_ENDPOINT", &url), ("IDENTITY_HEADER", "the-header")];
    assert_eq!(token(home.path(), "az://container/lab", &service, &variables), "Bearer t");

    // What `az account get-access-token` prints.
    let az = home.path().join("az");
    let printed = json!({
        "accessToken": "u", "expiresOn": "2100-01-01 00:00:00.000000", "subscription": "s", "tenant": "t",
        "tokenType": "Bearer",
    });
    fs::write(&az, format!("#!/bin/sh\ncat <<'X'\n{printed}\nX\n")).expect("written");
    fs::set_permissions(&az, fs::Permissions::from_mode(0o755)).expect("it can be made a program");
    let path = format!("{}:/usr/bin:/bin", home.path().display());
    let variables = [account, ("AZURE_USE_AZURE_CLI", "true"), ("PATH", &path)];
    let service = self::service(|_| None);
    assert_eq!(token(home.path(), "az://container/lab", &service, &variables), "Bearer u");
}
