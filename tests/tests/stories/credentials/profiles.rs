//! Profiles that need requests: roles, web identities, sessions of IAM Identity Center.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use shardd_tests::services::{Answer, Service};

use super::machines::metadata_service;
use super::{LATER, Person, Session};

const READER: &str = "role_arn = arn:aws:iam::123456789012:role/reader\nrole_session_name = me\n";
const SECOND: &str = "role_arn = arn:aws:iam::123456789012:role/second\nexternal_id = the-id\n";
/// The names of cached tokens: SHA-1 of the session `dev`, and of START.
const OF_DEV: &str = ".aws/sso/cache/34c6fceca75e456f25e7e99531e2425c6c1de443.json";
const OF_START: &str = ".aws/sso/cache/e8be5486177c5b5392bd9aa76563515b29358e6e.json";
const START: &str = "https://example.awsapps.com/start";

/// The forms in the bodies of requests to STS.
fn actions(service: &Service) -> Vec<String> {
    service.asked().into_iter().map(|asked| asked.body).collect()
}

#[test]
fn roles_are_assumed_one_after_the_other_from_the_keys_of_another_profile() {
    let Some(person) = Person::new() else { return };
    let (key, secret) = person.s3.keys();
    person.write(
        ".aws/credentials",
        &format!("[base]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"),
    );
    person.write(
        ".aws/config",
        &format!(
            "[profile first]\n{READER}external_id = the-id\nsource_profile = base\n\
             [profile second]\n{SECOND}source_profile = first\n\
             [profile stranger]\n{READER}external_id = wrong\nsource_profile = base\n\
             [profile device]\n{SECOND}source_profile = coded\n\
             [profile coded]\n{READER}mfa_serial = arn:aws:iam::123456789012:mfa/me\nsource_profile = base\n\
             [profile lost]\n{READER}source_profile = nowhere\n"
        ),
    );
    let sts = Service::before(&person.s3.endpoint);
    let url = sts.url();
    let at = ("AWS_ENDPOINT_URL_STS", url.as_str());
    person.reads(&[("AWS_PROFILE", "first"), at]);
    let asked = actions(&sts);
    assert_eq!(asked.len(), 1, "{asked:?}");
    for said in ["Action=AssumeRole&", "ExternalId=the-id", "RoleSessionName=me", "role%2Freader"] {
        assert!(asked[0].contains(said), "{said}: {asked:?}");
    }
    person.reads(&[("AWS_PROFILE", "second"), at]);
    let asked = actions(&sts);
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[2].contains("role%2Fsecond"), "{asked:?}");

    let line = person.refused(&[("AWS_PROFILE", "stranger"), at]);
    assert!(line.contains("role_arn of profile \"stranger\"") && line.contains("AccessDenied"), "{line}");
    assert!(line.contains("trust policy"), "{line}");
    let line = person.refused(&[("AWS_PROFILE", "device"), at]);
    assert!(line.contains("MFA device in profile \"coded\""), "{line}");
    assert!(line.contains("export-credentials --profile device"), "{line}");
    let line = person.refused(&[("AWS_PROFILE", "lost"), at]);
    assert!(line.contains("profile \"lost\"") && line.contains("nowhere"), "{line}");
    let line = person.refused(&[("AWS_PROFILE", "first"), ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")]);
    assert!(line.contains("profile \"first\"") && line.contains("); check the network"), "{line}");
}

#[test]
fn a_role_is_assumed_from_the_environment_an_instance_or_a_token() {
    let Some(person) = Person::new() else { return };
    let token = person.write("token", "a-token");
    person.write(
        ".aws/config",
        &format!(
            "[profile instance]\n{SECOND}credential_source = Ec2InstanceMetadata\n\
             [profile environment]\n{SECOND}credential_source = Environment\n\
             [profile web]\n{READER}web_identity_token_file = {token}\n"
        ),
    );
    let sts = Service::before(&person.s3.endpoint);
    let url = sts.url();
    let at = ("AWS_ENDPOINT_URL_STS", url.as_str());
    let session = person.session();
    let service = metadata_service(session.clone());
    person.reads(&[("AWS_PROFILE", "instance"), at, ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
    assert!(service.asked()[0].is("PUT", "/latest/api/token"), "{:?}", service.asked());
    person.reads(&[
        ("AWS_PROFILE", "environment"),
        at,
        ("AWS_ACCESS_KEY_ID", &session.key),
        ("AWS_SECRET_ACCESS_KEY", &session.secret),
        ("AWS_SESSION_TOKEN", &session.token),
    ]);
    person.reads(&[("AWS_PROFILE", "web"), at]);
    let asked = actions(&sts);
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[2].contains("Action=AssumeRoleWithWebIdentity&"), "{asked:?}");
    assert!(asked[2].contains("WebIdentityToken=a-token"), "{asked:?}");
}

/// IAM Identity Center: tokens for refresh tokens, and credentials of a lifetime for tokens.
fn identity_center(session: Session, lifetime: Duration) -> Service {
    Service::start(move |asked| {
        if asked.is("POST", "/token") {
            let form: Value = serde_json::from_str(&asked.body).unwrap_or_default();
            let given =
                ["grantType", "refreshToken", "clientId", "clientSecret"].map(|field| form[field].as_str());
            if given != ["refresh_token", "a-refresh-token", "an-id", "a-secret"].map(Some) {
                return Answer::json(400, &json!({"error": "invalid_grant"}))
                    .with("x-amzn-ErrorType", "InvalidGrantException");
            }
            let token = json!({"accessToken": "renewed", "tokenType": "Bearer", "expiresIn": 28_800});
            return Answer::json(200, &token);
        }
        let is_known = ["a-token", "renewed"].map(Some).contains(&asked.field("x-amz-sso_bearer_token"));
        if !is_known {
            let refusal = json!({"message": "Session token not found or invalid"});
            return Answer::json(401, &refusal).with("x-amzn-ErrorType", "UnauthorizedException");
        }
        let is_ours = asked.is("GET", "/federation/credentials?")
            && asked.target.contains("role_name=Reader")
            && asked.target.contains("account_id=123456789012");
        if !is_ours {
            return Answer::json(403, &json!({"message": "No access"}))
                .with("x-amzn-ErrorType", "ForbiddenException");
        }
        let expires = SystemTime::now() + lifetime;
        let expires = expires.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis();
        let given = json!({
            "accessKeyId": session.key, "secretAccessKey": session.secret, "sessionToken": session.token,
            "expiration": u64::try_from(expires).expect("a small number"),
        });
        Answer::json(200, &json!({"roleCredentials": given}))
    })
}

const HOUR: Duration = Duration::from_secs(3600);

/// The endpoints of a service.
fn sso<'u>(profile: &'u str, url: &'u str) -> [(&'u str, &'u str); 3] {
    [("AWS_PROFILE", profile), ("AWS_ENDPOINT_URL_SSO", url), ("AWS_ENDPOINT_URL_SSO_OIDC", url)]
}

fn write_sessions(person: &Person) {
    person.write(
        ".aws/config",
        &format!(
            "[sso-session dev]\nsso_region = us-east-1\nsso_start_url = {START}\n\
             [profile new]\nsso_session = dev\nsso_account_id = 123456789012\nsso_role_name = Reader\n\
             [profile old]\nsso_start_url = {START}\nsso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = Reader\n\
             [profile role]\n{SECOND}source_profile = new\n"
        ),
    );
}

#[test]
fn a_session_of_identity_center_gives_credentials_also_for_a_role() {
    let Some(person) = Person::new() else { return };
    write_sessions(&person);
    let token =
        json!({"accessToken": "a-token", "expiresAt": LATER, "region": "us-east-1", "startUrl": START});
    person.write(OF_DEV, &token.to_string());
    person.write(OF_START, &token.to_string());
    let service = identity_center(person.session(), HOUR);
    let url = service.url();
    person.reads(&sso("new", &url));
    person.reads(&sso("old", &url));
    assert_eq!(service.asked().len(), 2, "each asked once: {:?}", service.asked());
    person.reads(&[&sso("role", &url)[..], &[("AWS_ENDPOINT_URL_STS", &person.s3.endpoint)]].concat());
}

#[test]
fn credentials_that_soon_expire_are_renewed_before_they_do() {
    let Some(person) = Person::new() else { return };
    write_sessions(&person);
    person.write(OF_DEV, &json!({"accessToken": "a-token", "expiresAt": LATER}).to_string());
    let service = identity_center(person.session(), Duration::from_secs(4 * 60));
    person.reads(&sso("new", &service.url()));
    assert!(service.asked().len() >= 2, "each request to the store renews them: {:?}", service.asked());
}

#[test]
fn a_session_of_identity_center_is_refreshed_or_the_error_says_how_to_sign_in() {
    let Some(person) = Person::new() else { return };
    write_sessions(&person);
    let service = identity_center(person.session(), HOUR);
    let url = service.url();
    let signs_in = |line: &str, profile: &str| {
        assert!(line.contains(&format!("profile \"{profile}\"")), "{line}");
        assert!(line.contains("run: aws sso login --profile"), "{line}");
    };
    signs_in(&person.refused(&sso("new", &url)), "new");
    signs_in(&person.refused(&sso("old", &url)), "old");
    let past = "2020-01-01T00:00:00Z";
    person.write(OF_DEV, &json!({"accessToken": "a-token", "expiresAt": past}).to_string());
    signs_in(&person.refused(&sso("new", &url)), "new");
    let line = person.refused(&sso("role", &url));
    assert!(line.ends_with("run: aws sso login --profile new"), "{line}");
    person.write(OF_DEV, &json!({"accessToken": "revoked", "expiresAt": LATER}).to_string());
    let line = person.refused(&sso("new", &url));
    assert!(line.contains("Session token not found or invalid"), "{line}");
    signs_in(&line, "new");
    let refreshable = json!({
        "accessToken": "a-token", "expiresAt": past, "clientId": "an-id", "clientSecret": "a-secret",
        "refreshToken": "a-refresh-token", "registrationExpiresAt": LATER, "region": "us-east-1", "startUrl": START,
    });
    person.write(OF_DEV, &refreshable.to_string());
    person.reads(&sso("new", &url));
    let cached = std::fs::read_to_string(person.path(OF_DEV)).expect("it is there");
    assert!(cached.contains("renewed"), "Amazon's tools find the new token: {cached}");
}
