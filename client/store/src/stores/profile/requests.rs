//! Credentials that services give for a profile: roles of Amazon's STS, sessions of IAM Identity Center. Amazon's own
//! crate follows the profile; its requests go through the HTTP client and the TLS of object stores.

use std::error::Error as StdError;
use std::io;
use std::time::{Duration, SystemTime};

use aws_config::Region;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::provider::ProvideCredentials;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::error::ErrorMetadata;
use http_body_util::BodyExt;
use object_store::aws::AwsCredential;
use object_store::client::{self, HttpConnector as _, HttpErrorKind, HttpRequestBody, ReqwestConnector};
use object_store::{Certificate, ClientOptions};

use crate::causes::{causes, last_cause};

/// A service for credentials answers within this time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks the services that a profile names.
///
/// # Errors
/// With the message of the service, or that of a cause on this side. It holds no secret.
pub(super) async fn request(
    name: &str,
    region: String,
    certificates: &[Certificate],
) -> Result<(AwsCredential, Option<SystemTime>), String> {
    let config = ProviderConfig::without_region()
        .with_region(Some(Region::new(region)))
        .with_http_client(Client { certificates: certificates.to_vec() });
    let profile = ProfileFileCredentialsProvider::builder().configure(&config).profile_name(name).build();
    let given = profile.provide_credentials().await.map_err(|error| reason(&error))?;
    let credential = AwsCredential {
        key_id: given.access_key_id().to_owned(),
        secret_key: given.secret_access_key().to_owned(),
        token: given.session_token().map(str::to_owned),
    };
    Ok((credential, given.expiry()))
}

/// The answer of the service, or the first cause. The way down to it may print responses, which hold secrets.
fn reason(error: &(dyn StdError + 'static)) -> String {
    let answer = causes(error).find_map(|cause| cause.downcast_ref::<ErrorMetadata>());
    match answer.and_then(|answer| Some((answer.code()?, answer.message()))) {
        Some((code, Some(message))) => format!("{code}: {message}"),
        Some((code, None)) => code.to_owned(),
        None => match causes(error).collect::<Vec<_>>().as_slice() {
            // The system does not name the file or the address.
            [.., before, last] if last.is::<io::Error>() => format!("{before}: {last}"),
            _ => last_cause(error),
        },
    }
}

/// What to do about a refusal, by the codes of the services. `last` is the profile that the chain of roles begins with.
pub(super) fn way_out(reason: &str, name: &str, last: &str) -> String {
    let says = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if says(&["Signature expired", "Signature not yet current", "RequestExpired", "RequestTimeTooSkewed"]) {
        return "set the clock of this machine".to_owned();
    }
    if says(&["onnect", "timed out", "timeout", "dns error"]) {
        return "check the network, and AWS_ENDPOINT_URL_STS or AWS_ENDPOINT_URL_SSO if it is set".to_owned();
    }
    if says(&["UnauthorizedException", "SSO", "sso/cache", "cached SSO token"]) {
        return format!("run: aws sso login --profile {last}");
    }
    if says(&["AccessDenied"]) {
        return "let the trust policy of the role name who asks, and check role_arn and external_id"
            .to_owned();
    }
    if says(&["InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"]) {
        return format!("renew the credentials of profile {last:?}");
    }
    if says(&["InvalidIdentityToken", "IDPRejectedClaim", "IDPCommunicationError"]) {
        return "check the token in web_identity_token_file, and the identity provider of the role"
            .to_owned();
    }
    format!("compare with: aws sts get-caller-identity --profile {name}")
}

/// The client of HTTP that stores have, with the proxies of the environment.
#[derive(Debug)]
struct Client {
    certificates: Vec<Certificate>,
}

#[derive(Debug)]
struct Connection(client::HttpClient);

/// There is no client, because of settings.
#[derive(Debug)]
struct Unconnected(String);

impl HttpClient for Client {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout(settings.read_timeout().unwrap_or(TIMEOUT))
            .with_connect_timeout(settings.connect_timeout().unwrap_or(TIMEOUT));
        let trusting = |options: ClientOptions, ca: &Certificate| options.with_root_certificate(ca.clone());
        let options = self.certificates.iter().fold(options, trusting);
        match ReqwestConnector::default().connect(&options) {
            Ok(client) => SharedHttpConnector::new(Connection(client)),
            Err(error) => SharedHttpConnector::new(Unconnected(last_cause(&error))),
        }
    }
}

impl HttpConnector for Unconnected {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::ready(Err(ConnectorError::user(self.0.clone().into())))
    }
}

impl HttpConnector for Connection {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let client = self.0.clone();
        HttpConnectorFuture::new(async move { send(&client, request).await })
    }
}

async fn send(client: &client::HttpClient, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(ConnectorError::user)?.to_bytes();
    let request = client::HttpRequest::from_parts(parts, HttpRequestBody::from(body));
    let (parts, body) = client.execute(request).await.map_err(unanswered)?.into_parts();
    let body = body.collect().await.map_err(unanswered)?.to_bytes();
    let response = hyper::Response::from_parts(parts, SdkBody::from(body));
    HttpResponse::try_from(response).map_err(|error| ConnectorError::user(error.into()))
}

fn unanswered(error: client::HttpError) -> ConnectorError {
    match error.kind() {
        HttpErrorKind::Timeout => ConnectorError::timeout(error.into()),
        _ => ConnectorError::io(error.into()),
    }
}
