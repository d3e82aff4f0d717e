//! Credentials that the environment of a machine, a container or a Pod leads to.

use shardd_tests::certificate_of_localhost;
use shardd_tests::services::{Answer, Service};

use super::{Person, Session};

/// The metadata service of an instance, version 2: without a session token, nothing.
pub(super) fn metadata_service(session: Session) -> Service {
    const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";
    const ROLE: &str = "/latest/meta-data/iam/security-credentials/";
    Service::start(move |asked| {
        if asked.is("PUT", "/latest/api/token") {
            let ttl = asked.field(TTL).map(str::to_owned).unwrap_or_else(|| "0".to_owned());
            return match ttl.parse() {
                Ok(1..=21_600) => Answer::text(200, "the-metadata-token").with(TTL, &ttl),
                _ => Answer::text(400, "Bad Request"),
            };
        }
        if asked.field("x-aws-ec2-metadata-token") != Some("the-metadata-token") {
            return Answer::text(401, "Unauthorized");
        }
        match asked.target.strip_prefix(ROLE) {
            Some("") => Answer::text(200, "reader"),
            Some("reader") => Answer::json(200, &session.document()),
            _ => Answer::text(404, "Not Found"),
        }
    })
}

#[test]
fn an_instance_has_the_credentials_of_its_role() {
    let Some(person) = Person::new() else { return };
    let service = metadata_service(person.session());
    person.reads(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
    let asked = service.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[0].is("PUT", "/latest/api/token"), "{asked:?}");
    let line = person.refused(&[
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]);
    assert!(line.contains("AWS_EC2_METADATA_DISABLED"), "{line}");
    assert_eq!(service.asked().len(), 3, "it was not asked again");
}

#[test]
fn a_task_of_ecs_has_the_credentials_of_its_role() {
    let Some(person) = Person::new() else { return };
    let session = person.session();
    // The address is the same in each container: it is reached over a proxy here.
    let service = Service::start(move |asked| match asked.target.as_str() {
        "http://169.254.170.2/v2/credentials/the-task" => Answer::json(200, &session.document()),
        _ => Answer::text(404, "Not Found"),
    });
    person.reads(&[
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/credentials/the-task"),
        ("HTTP_PROXY", &service.url()),
        ("NO_PROXY", "localhost"),
    ]);
    assert_eq!(service.asked().len(), 1);
}

#[test]
fn a_pod_of_eks_has_the_credentials_of_its_role() {
    let Some(person) = Person::new() else { return };
    let session = person.session();
    let service = Service::start(move |asked| match asked.field("authorization") {
        Some("the-pod-token") if asked.is("GET", "/v1/credentials") => Answer::json(200, &session.document()),
        _ => Answer::text(401, "Unauthorized"),
    });
    let url = format!("{}/v1/credentials", service.url());
    let token = person.write("token", "the-pod-token");
    let uri = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str());
    person.reads(&[uri, ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token)]);
    let line = person.refused(&[uri, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a-secret")]);
    assert!(line.contains("needs AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), "{line}");
    assert_eq!(service.asked().len(), 1);
}

#[test]
fn a_web_identity_of_the_environment_assumes_its_role_behind_a_certificate_of_aws_ca_bundle() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (cert, key) = certificate_of_localhost(dir.path());
    let Some(person) = Person::over(&["--tls", &cert, &key]) else { return };
    let token = person.write("token", "a-secret");
    let identity = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.as_str()),
        ("AWS_ENDPOINT_URL_STS", person.s3.endpoint.as_str()),
        ("AWS_CA_BUNDLE", cert.as_str()),
    ];
    let role = ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader");
    person.reads(&[&identity[..], &[role]].concat());
    let line = person.refused(&identity);
    assert!(line.contains("AWS_WEB_IDENTITY_TOKEN_FILE needs AWS_ROLE_ARN"), "{line}");
    let line = person.refused(&[&identity[..2], &[role]].concat());
    assert!(line.contains("certificate"), "{line}");
}
