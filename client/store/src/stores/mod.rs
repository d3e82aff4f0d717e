//! Object stores of other services, by URL: Amazon S3 and compatible services, Google Cloud Storage, Azure
//! Blob Storage, plain web servers. Settings and credentials come from the environment, under the names that
//! each service's own tools use; [`StoreOptions`] win over them.
//!
//! Requests are made again when they fail for a while (`retries`), a second time when an answer is late (`hedge.rs`), no faster
//! than allowed (`pace.rs`), and no more often than the store takes them (`throttle.rs`); all of them are counted (`wire.rs`). Knows
//! nothing of what lies in a store.

mod args;
mod cloud;
mod endpoint;
mod hedge;
mod pace;
mod profile;
mod refusal;
#[cfg(test)]
mod tests;
mod throttle;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::{BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig};
use serde::{Deserialize, Serialize};
use shardfmt::ByteSize;

pub use self::args::BadVariable;
#[cfg(feature = "cli")]
pub use self::args::StoreArgs;
pub use self::endpoint::{BadEndpoint, check_endpoint};
pub use self::refusal::{Refusal, Service};
pub(crate) use self::wire::Wire;

/// How a store is reached, beyond its URL. All of it is optional, none of it secret.
///
/// ```
/// use shardd_store::stores::StoreOptions;
///
/// let own = StoreOptions { region: Some("eu-west-1".into()), ..StoreOptions::default() };
/// let fallback = StoreOptions { region: Some("us-east-1".into()), anonymous: true, ..own.clone() };
/// let options = own.or(&fallback);
/// assert_eq!(options.region.as_deref(), Some("eu-west-1"));
/// assert!(options.anonymous);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct StoreOptions {
    /// Address of the service, where it is not the cloud's own: `https://minio.example.org:9000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Region of the bucket, of Amazon S3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// A file of certificates (PEM) that are trusted beside the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ca: Option<PathBuf>,
    /// Ask without credentials, for public buckets.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// The most bytes a second, sent and received together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub bandwidth: Option<ByteSize>,
}

impl StoreOptions {
    /// These, and where they say nothing, those.
    #[must_use]
    pub fn or(self, fallback: &StoreOptions) -> StoreOptions {
        StoreOptions {
            endpoint: self.endpoint.or_else(|| fallback.endpoint.clone()),
            region: self.region.or_else(|| fallback.region.clone()),
            ca: self.ca.or_else(|| fallback.ca.clone()),
            anonymous: self.anonymous || fallback.anonymous,
            bandwidth: self.bandwidth.or(fallback.bandwidth),
        }
    }
}

/// A store that was opened: nothing was asked of it yet.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use shardd_store::stores::{Late, Service, StoreOptions, open};
///
/// let options = StoreOptions { anonymous: true, ..StoreOptions::default() };
/// let opened = open("s3://a-bucket", &options, Late::AskedAgain)?;
/// assert_eq!(opened.service, Service::S3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Opened {
    /// The store, with the retries and limits of its options.
    pub store: Arc<dyn ObjectStore>,
    /// The service that holds it.
    pub service: Service,
    /// Whether no setting has credentials, so that the metadata service of the cloud is asked for them.
    pub asks_metadata_service: bool,
    pub(crate) wire: Arc<Wire>,
}

/// Whether URLs of this scheme lead to stores of other services.
pub(crate) fn is_remote(scheme: &str) -> bool {
    Service::of(scheme).is_some()
}

/// For how long a store is asked again.
const ASKED_AGAIN_FOR: Duration = Duration::from_secs(40);
/// Before it is asked again for the first time.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// The reaction to a read whose answer is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It is asked a second time: a caller waits for it.
    AskedAgain,
    /// It is waited for: there is enough else to do. A person waits for the first answer, so an address to which no
    /// connection is made is given up after five seconds.
    WaitedFor,
}

/// Opens the bucket, container or web server that a URL begins with; what follows its name is left to the caller.
///
/// # Errors
/// When the URL is none, when options make no sense together, or a file that they name cannot be read.
pub fn open(url: &str, options: &StoreOptions, late: Late) -> Result<Opened, Refusal> {
    crate::tls::use_ring();
    let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
    let service =
        Service::of(scheme).ok_or(Refusal::Unnamed { reason: "it is no URL of a store".to_owned() })?;
    let name = rest.split('/').next().unwrap_or_default();
    if name.is_empty() {
        let reason = match service {
            Service::Web => "names no host".to_owned(),
            _ => format!("names no bucket; give it as {scheme}://BUCKET/FOLDER"),
        };
        return Err(Refusal::Unnamed { reason });
    }
    // A person waits for an ingest, and the address of a node is easily taken for that of a web server.
    let gives_up_soon = late == Late::WaitedFor || service == Service::Web;
    let wire = Arc::new(Wire::new(certificates(service, options)?, options.bandwidth, late, gives_up_soon));
    let address = format!("{scheme}://{name}");
    let mut asks_metadata_service = false;
    let store = match service {
        Service::S3 => cloud::amazon(&address, options, &wire).map(|amazon| {
            asks_metadata_service = amazon.asks_metadata_service;
            amazon.store
        }),
        Service::Google => cloud::google(&address, options, &wire),
        Service::Azure => cloud::azure(&address, options, &wire),
        Service::Web => cloud::web(&address, &wire),
    };
    let store = store.map_err(|error| match error {
        cloud::Unusable::Endpoint(fault) => Refusal::Endpoint { fault },
        cloud::Unusable::Settings(error) => Refusal::unusable(service, &error),
    })?;
    Ok(Opened { store, service, asks_metadata_service, wire })
}

/// Opens one file of a web server, at [`Path::ROOT`](object_store::path::Path::ROOT): its URL may have a query.
///
/// # Errors
/// When the URL is none.
pub fn open_file(url: &str, client: ClientOptions) -> object_store::Result<Arc<dyn ObjectStore>> {
    cloud::http(url, client, &Arc::new(Wire::new(Vec::new(), None, Late::WaitedFor, true)))
}

/// How long a store is asked again when it fails or is out of reach: half a minute at least, and a little longer than a
/// silence within a request may last.
fn retries() -> RetryConfig {
    // Each wait is drawn between the shortest and `base` times the one before: with 2 they would not grow.
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: SHORTEST_WAIT,
            max_backoff: Duration::from_secs(4),
            base: 4.0,
        },
        // Time alone decides: there is none for more.
        max_retries: (ASKED_AGAIN_FOR.as_millis() / SHORTEST_WAIT.as_millis()) as usize,
        retry_timeout: ASKED_AGAIN_FOR,
    }
}

/// The certificates of the options, and those of the variable that Amazon's tools have for it.
fn certificates(service: Service, options: &StoreOptions) -> Result<Vec<Certificate>, Refusal> {
    let bundle = std::env::var_os("AWS_CA_BUNDLE").filter(|path| service == Service::S3 && !path.is_empty());
    let paths = options.ca.clone().into_iter().chain(bundle.map(PathBuf::from));
    let mut all = Vec::new();
    for path in paths {
        let refused = |reason: String| Refusal::Ca { path: path.clone(), reason };
        let pem = std::fs::read(&path).map_err(|error| refused(error.to_string()))?;
        let found = Certificate::from_pem_bundle(&pem).map_err(|_| refused("it is not PEM".to_owned()))?;
        if found.is_empty() {
            return Err(refused("there is no certificate in it".to_owned()));
        }
        all.extend(found);
    }
    Ok(all)
}
