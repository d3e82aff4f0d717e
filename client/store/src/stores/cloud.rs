//! The clients of each service, made of a URL, the environment and options.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ClientOptions, Error, ObjectStore};

use super::endpoint::{BadEndpoint, check_endpoint};
use super::profile::Profile;
use super::wire::{Connector, Wire};
use super::{StoreOptions, retries};

type Built = Result<Arc<dyn ObjectStore>, Unusable>;

/// Why there is no client for a service.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    /// Its address is none.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// Settings are missing, or make no sense.
    #[error(transparent)]
    Settings(#[from] Error),
}

/// A client of S3.
pub(super) struct Amazon {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Whether no setting has credentials, so that the metadata service of the cloud is asked for them.
    pub(super) asks_metadata_service: bool,
}

/// A request takes no longer than this, a silence within it no longer than that.
const TIMEOUTS: [(ClientConfigKey, &str); 2] =
    [(ClientConfigKey::Timeout, "5 minutes"), (ClientConfigKey::ReadTimeout, "30 seconds")];

pub(super) fn amazon(url: &str, options: &StoreOptions, wire: &Arc<Wire>) -> Result<Amazon, Unusable> {
    let mut has_credentials = false;
    let mut builder = AmazonS3Builder::from_env().with_url(url).with_retry(retries());
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    let is_set = |builder: &AmazonS3Builder, key: AmazonS3ConfigKey| builder.get_config_value(&key).is_some();
    if let Some(endpoint) = set("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
        builder = builder.with_metadata_endpoint(endpoint.trim_end_matches('/'));
    }
    // A request without credentials needs none of a profile.
    let profile =
        Profile::of_user(wire.certificates()).filter(|profile| profile.is_ok() || !options.anonymous);
    if let Some(profile) = profile {
        let profile = profile.map_err(|error| Error::Generic { store: "S3", source: error.into() })?;
        if !is_set(&builder, AmazonS3ConfigKey::Region)
            && let Some(region) = profile.region()
        {
            builder = builder.with_region(region);
        }
        if !is_set(&builder, AmazonS3ConfigKey::Endpoint)
            && !is_set(&builder, AmazonS3ConfigKey::S3Endpoint)
            && let Some(endpoint) = profile.endpoint()
        {
            builder = builder.with_endpoint(endpoint);
        }
        builder = builder.with_credentials(Arc::new(profile));
        has_credentials = true;
    }
    has_credentials |= [
        AmazonS3ConfigKey::AccessKeyId,
        AmazonS3ConfigKey::WebIdentityTokenFile,
        AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
        AmazonS3ConfigKey::ContainerCredentialsFullUri,
    ]
    .into_iter()
    .any(|key| is_set(&builder, key));
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    endpoint.as_deref().map_or(Ok(()), check_endpoint)?;
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let is_signed = builder.get_config_value(&AmazonS3ConfigKey::SkipSignature).as_deref() != Some("true");
    if is_signed {
        check_environment(has_credentials)?;
    }
    let store = Arc::new(builder.with_http_connector(Connector(wire.clone())).build()?);
    Ok(Amazon { store, asks_metadata_service: is_signed && !has_credentials })
}

/// Settings of the environment that object_store passes over, to ask a metadata service in their place.
fn check_environment(has_credentials: bool) -> Result<(), Unusable> {
    let is_set = |variable| set(variable).is_some();
    let has_keys = is_set("AWS_ACCESS_KEY_ID") || is_set("AWS_PROFILE");
    let reason = if has_keys {
        return Ok(());
    } else if is_set("AWS_WEB_IDENTITY_TOKEN_FILE") && !is_set("AWS_ROLE_ARN") {
        "AWS_WEB_IDENTITY_TOKEN_FILE needs AWS_ROLE_ARN, the role to assume with the token"
    } else if is_set("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        && !is_set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        && !is_set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI needs AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, a file with the token"
    } else if !has_credentials
        && set("AWS_EC2_METADATA_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    {
        "no credentials, and AWS_EC2_METADATA_DISABLED forbids to ask the metadata service"
    } else {
        return Ok(());
    };
    Err(Error::Generic { store: "S3", source: reason.into() }.into())
}

/// Credentials of Google whose kind object_store does not know. Its own message is about the form of JSON.
fn check_kind_of_google(builder: &GoogleCloudStorageBuilder) -> Result<(), Unusable> {
    let path = builder.get_config_value(&GoogleConfigKey::ApplicationCredentials).map(PathBuf::from);
    let default = || {
        let home = set("HOME").map(PathBuf::from)?;
        Some(home.join(".config/gcloud/application_default_credentials.json"))
    };
    let Some(path) = path.or_else(default) else { return Ok(()) };
    let text = fs::read_to_string(&path).unwrap_or_default();
    let kind = serde_json::from_str::<serde_json::Value>(&text).ok();
    let kind = kind.as_ref().and_then(|file| file["type"].as_str()).unwrap_or("service_account");
    if ["service_account", "authorized_user"].contains(&kind) {
        return Ok(());
    }
    let reason =
        format!("{}: credentials of type {kind} are not supported; use a service account", path.display());
    Err(Error::Generic { store: "GCS", source: reason.into() }.into())
}

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

pub(super) fn google(url: &str, options: &StoreOptions, wire: &Arc<Wire>) -> Built {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retries());
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    if let Ok(host) = env::var("STORAGE_EMULATOR_HOST") {
        let address = if host.contains("://") { host } else { format!("http://{host}") };
        builder = builder.with_base_url(&address).with_skip_signature(true);
    }
    if let Some(endpoint) = &options.endpoint {
        check_endpoint(endpoint)?;
        builder = builder.with_base_url(endpoint);
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    if builder.get_config_value(&GoogleConfigKey::SkipSignature).as_deref() != Some("true") {
        check_kind_of_google(&builder)?;
    }
    Ok(Arc::new(builder.with_http_connector(Connector(wire.clone())).build()?))
}

pub(super) fn azure(url: &str, options: &StoreOptions, wire: &Arc<Wire>) -> Built {
    let mut builder = MicrosoftAzureBuilder::from_env();
    // What Microsoft's own tools call them.
    for (variable, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        if let Ok(value) = env::var(variable) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in env::var("AZURE_STORAGE_CONNECTION_STRING").iter().flat_map(|text| parts(text)) {
        builder = match name {
            "AccountName" => builder.with_config(AzureConfigKey::AccountName, value),
            "AccountKey" => builder.with_config(AzureConfigKey::AccessKey, value),
            "SharedAccessSignature" => builder.with_config(AzureConfigKey::SasKey, value),
            "BlobEndpoint" => builder.with_config(AzureConfigKey::Endpoint, value),
            "UseDevelopmentStorage" => builder.with_config(AzureConfigKey::UseEmulator, value),
            _ => builder,
        };
    }
    for (key, value) in TIMEOUTS {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    endpoint.as_deref().map_or(Ok(()), check_endpoint)?;
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    let builder = builder.with_url(url).with_retry(retries());
    Ok(Arc::new(builder.with_http_connector(Connector(wire.clone())).build()?))
}

/// A web server, which is only read.
pub(super) fn web(url: &str, wire: &Arc<Wire>) -> Built {
    let mut options = ClientOptions::new().with_allow_http(true);
    for (key, value) in TIMEOUTS {
        options = options.with_config(key, value);
    }
    Ok(http(url, options, wire)?)
}

pub(super) fn http(
    url: &str,
    options: ClientOptions,
    wire: &Arc<Wire>,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let builder = HttpBuilder::new().with_url(url).with_client_options(options).with_retry(retries());
    Ok(Arc::new(builder.with_http_connector(Connector(wire.clone())).build()?))
}

/// The `name=value` pairs of a connection string.
fn parts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(';').filter_map(|part| part.trim().split_once('='))
}
