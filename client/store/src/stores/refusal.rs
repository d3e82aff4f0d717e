//! The refusals of stores and web servers, with a way out.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use object_store::Error;
use object_store::client::HttpError;

use super::endpoint::BadEndpoint;
use super::profile::ProfileError;
use super::wire::NotImplemented;
use crate::causes::{causes, last_cause, short};

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Amazon S3, or a compatible service.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server, which is only read.
    Web,
}

/// What to check if S3 knows who asks, and refuses.
const NO_ACCESS: &str = "check the policies of the bucket and of the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE; AWS_SKIP_SIGNATURE=true for a public bucket); a requester-pays bucket needs AWS_REQUEST_PAYER=requester";

impl Service {
    /// Who is meant by the scheme of a URL.
    pub(crate) fn of(scheme: &str) -> Option<Service> {
        match scheme {
            "s3" | "s3a" => Some(Service::S3),
            "gs" => Some(Service::Google),
            "az" | "abfs" | "abfss" | "adl" | "azure" => Some(Service::Azure),
            "http" | "https" => Some(Service::Web),
            _ => None,
        }
    }

    /// Where its credentials come from.
    fn credentials(self) -> &'static str {
        match self {
            Service::S3 => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN where there is one), AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for a public bucket"
            }
            Service::Google => {
                "set GOOGLE_APPLICATION_CREDENTIALS to a key file, or GOOGLE_SKIP_SIGNATURE=true for a public bucket"
            }
            Service::Azure => {
                "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for a public container"
            }
            Service::Web => "give a URL that needs none, such as a signed one",
        }
    }

    /// How to agree to pay, if the service asks for that.
    fn requester_pays(self, text: &str) -> Option<&'static str> {
        let asks = text.contains("UserProjectMissing") || text.to_lowercase().contains("requester pays");
        match self {
            Service::S3 if asks => Some("set AWS_REQUEST_PAYER=requester to pay for your requests"),
            Service::Google if asks => {
                Some("copy the data to a bucket of yours: requests here name no project that pays")
            }
            _ => None,
        }
    }

    /// Where its address comes from.
    fn address(self) -> &'static str {
        match self {
            Service::S3 => "check the network, AWS_REGION, and AWS_ENDPOINT_URL if the store is not Amazon's",
            Service::Google => "check the network, and STORAGE_EMULATOR_HOST if it is set",
            Service::Azure => {
                "check the network, the account's name, and AZURE_STORAGE_ENDPOINT if it is set"
            }
            Service::Web => "check the URL and the network",
        }
    }
}

/// Why a store or server refused or failed a request. Each message has the way out.
///
/// ```
/// use shardd_store::stores::{Late, Refusal, StoreOptions, open};
///
/// let refused = open("ftp://a-server/folder", &StoreOptions::default(), Late::WaitedFor);
/// assert!(matches!(refused, Err(Refusal::Unnamed { .. })));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Not the URL of a store.
    #[error("{reason}")]
    Unnamed {
        /// The missing right.
        reason: String,
    },
    /// The address of the service is none.
    #[error("--store-endpoint or AWS_ENDPOINT_URL: {fault}")]
    Endpoint {
        /// The fault, with the right form.
        fault: BadEndpoint,
    },
    /// The certificates that are to be trusted cannot be read.
    #[error("{}: cannot be trusted ({reason}); give a file of certificates in PEM", .path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// No bucket or container of that name.
    #[error("there is no such bucket; check its name, and {way_out}")]
    NoBucket {
        /// Other possible faults.
        way_out: &'static str,
    },
    /// Nothing of that name in there.
    #[error("there is nothing of that name; check the URL, names differ by upper and lower case")]
    NotFound,
    /// Credentials that are wrong, missing, or do not suffice.
    #[error("access denied ({reason}); {way_out}")]
    Denied {
        /// The message of the service.
        reason: String,
        /// Which settings decide.
        way_out: &'static str,
    },
    /// A profile of Amazon's tools gives no credentials.
    #[error("{fault}")]
    Profile {
        /// The fault, with the profile and the way out.
        fault: String,
    },
    /// The bucket is elsewhere.
    #[error("the bucket is in another region ({reason}); set AWS_REGION")]
    Region {
        /// The message of the service.
        reason: String,
    },
    /// No answer, or not in time.
    #[error("cannot be reached ({reason}); {way_out}")]
    Unreachable {
        /// The message of the system.
        reason: String,
        /// Which settings decide.
        way_out: &'static str,
    },
    /// Its bytes are not those that were listed, or it is gone.
    #[error("it differs from the listed object")]
    Changed,
    /// Something else.
    #[error("{reason}")]
    Other {
        /// The message of the service.
        reason: String,
    },
}

impl Refusal {
    /// The meaning of a store's error.
    pub fn of(service: Service, error: &Error) -> Refusal {
        if let Some(fault) = causes(error).find_map(|cause| cause.downcast_ref::<ProfileError>()) {
            return Refusal::Profile { fault: fault.to_string() };
        }
        let text = error.to_string();
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let message = between(&text, "<Message>", "</Message>").unwrap_or_default();
        let status = status(&text);
        let reason = match (code, status) {
            ("", Some(status)) => format!("status {status}"),
            ("", None) => last_cause(error),
            (code, _) if message.is_empty() => code.to_owned(),
            (code, _) => short(&format!("{code}: {message}")),
        };
        let is_region =
            ["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"]
                .contains(&code)
                || text.contains("incorrectly configured region");
        if ["NoSuchBucket", "ContainerNotFound"].contains(&code) {
            return Refusal::NoBucket { way_out: service.address() };
        }
        if is_region && service == Service::S3 {
            return Refusal::Region { reason };
        }
        if let Some(way_out) = service.requester_pays(&text) {
            return Refusal::Denied { reason, way_out };
        }
        match status {
            // The message is the same if the bucket bills those who ask.
            Some(403) if service == Service::S3 && code == "AccessDenied" => {
                Refusal::Denied { reason, way_out: NO_ACCESS }
            }
            Some(401 | 403) => Refusal::Denied { reason, way_out: service.credentials() },
            Some(404 | 410) => Refusal::NotFound,
            Some(412) => Refusal::Changed,
            Some(_) => Refusal::Other { reason },
            None => match error {
                Error::NotFound { .. } => Refusal::NotFound,
                Error::Precondition { .. } => Refusal::Changed,
                _ if asked_for_credentials(&text) => Refusal::no_credentials(service),
                _ if causes(error).any(|cause| cause.is::<NotImplemented>()) => Refusal::Other { reason },
                _ if causes(error).any(|cause| cause.is::<HttpError>()) => {
                    Refusal::Unreachable { reason, way_out: service.address() }
                }
                _ => Refusal::Other { reason },
            },
        }
    }

    /// The refusal of a machine without credentials, in no cloud that would give it some.
    pub fn no_credentials(service: Service) -> Refusal {
        let reason = "no credentials, and the metadata service of a cloud does not answer";
        Refusal::Denied { reason: reason.to_owned(), way_out: service.credentials() }
    }

    /// Whether a store that answers like this has decided, and did nothing.
    pub(crate) fn is_final(error: &Error) -> bool {
        // A service answers an unknown request with 501 or as malformed.
        matches!(status(&error.to_string()), Some(400 | 401 | 403 | 404 | 405 | 501))
    }

    /// The missing settings of a store.
    pub(crate) fn unusable(service: Service, error: &Error) -> Refusal {
        match causes(error).find_map(|cause| cause.downcast_ref::<ProfileError>()) {
            Some(fault) => Refusal::Profile { fault: fault.to_string() },
            None => Refusal::Denied { reason: last_cause(error), way_out: service.credentials() },
        }
    }

    /// The meaning of a web server's answer that is not a success.
    pub fn of_status(status: u16) -> Refusal {
        let reason = format!("status {status}");
        match status {
            401 | 403 => Refusal::Denied { reason, way_out: Service::Web.credentials() },
            404 | 410 => Refusal::NotFound,
            _ => Refusal::Other { reason: format!("the server answers with {reason}; try again later") },
        }
    }

    /// The meaning of a web server that was not reached, or fell silent.
    pub fn of_request(error: &reqwest::Error) -> Refusal {
        Refusal::Unreachable { reason: last_cause(error), way_out: Service::Web.address() }
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        let kind = match refusal {
            Refusal::Changed | Refusal::NotFound => ErrorKind::StaleNetworkFileHandle,
            Refusal::Denied { .. } | Refusal::Profile { .. } => ErrorKind::PermissionDenied,
            _ => ErrorKind::Other,
        };
        io::Error::new(kind, refusal)
    }
}

/// Whether it was a service for machines in a cloud that did not answer.
fn asked_for_credentials(text: &str) -> bool {
    ["169.254.169.254", "169.254.170.2", "metadata.google.internal"].iter().any(|host| text.contains(host))
}

fn between<'t>(text: &'t str, start: &str, end: &str) -> Option<&'t str> {
    text.split_once(start)?.1.split_once(end).map(|(inside, _)| inside)
}

/// The status of an answer that was no success, as stores put it.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}
