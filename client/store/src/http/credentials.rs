//! What a client shows to nodes, and whom it believes to be one.

use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fmt, fs};

use ureq::config::ConfigBuilder;
use ureq::http::{HeaderValue, Request, Response};
use ureq::middleware::MiddlewareNext;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body, SendBody};

/// A token to show, and an authority to trust. Neither is needed where nodes listen on loopback only.
///
/// ```
/// use shardd_store::http::Credentials;
///
/// let credentials = Credentials { token: Some("a-secret".into()), ca: None };
/// assert!(!format!("{credentials:?}").contains("a-secret"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A token that a node made; shown to nodes behind TLS, and to those of this machine.
    pub token: Option<String>,
    /// A file of certificates (PEM) that nodes' certificates must come from, in place of those that the system trusts.
    pub ca: Option<PathBuf>,
}

/// Why credentials cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCredentials {
    /// The file of certificates.
    #[error("{}: no certificates to trust ({reason}); give a file in PEM (--ca, SHARDD_CA)", .path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The file of the token.
    #[error("{}: no token in it ({reason}); give the file that holds one (--token-file, SHARDD_TOKEN_FILE)", .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A token that everybody on the way could read.
    #[error(
        "{url}: a token is not sent over http, where others can read it; use https, or leave the token out"
    )]
    Readable {
        /// The address of the request.
        url: String,
    },
    /// A token that cannot stand in a header.
    #[error("the token is malformed; copy the whole line that `shardctl token create` printed")]
    Token,
}

impl Credentials {
    /// Those of the environment: `SHARDD_TOKEN`, or the file that `SHARDD_TOKEN_FILE` names; `SHARDD_CA`.
    ///
    /// # Errors
    /// When the file of the token cannot be read.
    pub fn of_env() -> Result<Credentials, BadCredentials> {
        Credentials::default().or_env()
    }

    /// These, and where they lack something, those of the environment.
    ///
    /// # Errors
    /// When the file of a token cannot be read that is needed.
    pub fn or_env(self) -> Result<Credentials, BadCredentials> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let token = match (self.token, set("SHARDD_TOKEN")) {
            (None, Some(token)) => Some(token.into_string().map_err(|_| BadCredentials::Token)?),
            (token, _) => token,
        };
        let (file, ca) = (set("SHARDD_TOKEN_FILE"), set("SHARDD_CA"));
        Credentials { token, ca: self.ca }.or_files(file.map(PathBuf::from), ca.map(PathBuf::from))
    }

    /// These, and where they lack something, the token in that file and that file of certificates.
    ///
    /// # Errors
    /// When the file of the token cannot be read and is needed.
    pub fn or_files(
        self,
        token_file: Option<PathBuf>,
        ca: Option<PathBuf>,
    ) -> Result<Credentials, BadCredentials> {
        let token = match (self.token, token_file) {
            (None, Some(path)) => Some(token_in(path)?),
            (token, _) => token,
        };
        Ok(Credentials { token, ca: self.ca.or(ca) })
    }

    /// Lets every request of a client use them.
    pub(super) fn put_into(
        &self,
        config: ConfigBuilder<AgentScope>,
    ) -> Result<ConfigBuilder<AgentScope>, BadCredentials> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder().unversioned_rustls_crypto_provider(provider).root_certs(self.roots()?);
        // A token is for the addressed server only, and not for a server it redirects to.
        let config = config.tls_config(tls.build()).max_redirects(0);
        let Some(token) = &self.token else { return Ok(config) };
        let header = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| BadCredentials::Token)?;
        let show = move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
            if !may_be_shown_to(request.uri()) {
                return Err(ureq::Error::Other(Box::new(Readable)));
            }
            request.headers_mut().insert("authorization", header.clone());
            next.handle(request)
        };
        Ok(config.middleware(show))
    }

    fn roots(&self) -> Result<RootCerts, BadCredentials> {
        let Some(path) = &self.ca else { return Ok(RootCerts::PlatformVerifier) };
        let refused = |reason: String| BadCredentials::Ca { path: path.clone(), reason };
        let pem = fs::read(path).map_err(|error| refused(error.to_string()))?;
        let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        match certificates.is_empty() {
            true => Err(refused("there is none in it".to_owned())),
            false => Ok(RootCerts::new_with_certs(&certificates)),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Credentials").field("token", &token).field("ca", &self.ca).finish()
    }
}

/// The variable that the token of the environment comes from, with its file.
pub(super) fn token_source() -> Option<String> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if set("SHARDD_TOKEN").is_some() {
        return Some("SHARDD_TOKEN".to_owned());
    }
    set("SHARDD_TOKEN_FILE").map(|file| format!("{} (SHARDD_TOKEN_FILE)", PathBuf::from(file).display()))
}

fn token_in(path: PathBuf) -> Result<String, BadCredentials> {
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Ok(_) => Err(BadCredentials::TokenFile { path, reason: "it is empty".to_owned() }),
        Err(error) => Err(BadCredentials::TokenFile { path, reason: error.to_string() }),
    }
}

/// A token is shown where no third party can read it: behind TLS, and on this machine.
fn may_be_shown_to(uri: &ureq::http::Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    uri.scheme_str() == Some("https") || is_here
}

/// Why a request that would show the token to everybody on the way is not made.
#[derive(Debug, thiserror::Error)]
#[error("a token would travel readable")]
struct Readable;

/// Whether that is why there was no answer.
pub(super) fn is_readable(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Other(reason) if reason.is::<Readable>())
}

impl super::HttpClient {
    /// An agent that uses the credentials.
    pub(super) fn agent(
        config: ConfigBuilder<AgentScope>,
        credentials: &Credentials,
    ) -> Result<Agent, BadCredentials> {
        Ok(credentials.put_into(config.middleware(name_the_span))?.build().into())
    }
}

/// Lets the server continue the trace of this process, where it has one.
fn name_the_span(
    mut request: Request<SendBody<'_>>,
    next: MiddlewareNext<'_>,
) -> Result<Response<Body>, ureq::Error> {
    if let Some(span) = shardd_telemetry::traceparent().and_then(|span| HeaderValue::try_from(span).ok()) {
        request.headers_mut().insert(shardd_telemetry::TRACEPARENT, span);
    }
    next.handle(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_behind_tls_and_on_this_machine_only() {
        let table = [
            ("https://example.org:7700/v1", true),
            ("http://127.0.0.1:7700/v1", true),
            ("http://[::1]:7700/v1", true),
            ("http://localhost/v1", true),
            ("http://10.0.0.1:7700/v1", false),
            ("http://example.org/v1", false),
            ("http://127.0.0.1.example.org/v1", false),
        ];
        for (uri, may) in table {
            assert_eq!(may_be_shown_to(&uri.parse().expect("a URI")), may, "{uri}");
        }
    }

    #[test]
    fn nobody_reads_a_token_by_accident() {
        let credentials = Credentials { token: Some("secret".to_owned()), ca: None };
        assert!(!format!("{credentials:?}").contains("secret"));
    }

    #[test]
    fn what_is_given_comes_before_files_and_a_file_that_is_not_needed_is_not_read() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(file.path(), "  secret\n").expect("it can be written");
        let (token, ca) = (file.path().to_owned(), PathBuf::from("ca.pem"));
        let read = Credentials::default().or_files(Some(token), Some(ca.clone())).expect("it can be read");
        assert_eq!(read, Credentials { token: Some("secret".to_owned()), ca: Some(ca) });
        let again = read.clone().or_files(Some("/not/there".into()), Some("other.pem".into()));
        assert_eq!(again, Ok(read));
        let missing = Credentials::default().or_files(Some("/not/there".into()), None);
        assert!(missing.expect_err("it is not there").to_string().contains("/not/there"));
    }

    #[test]
    fn what_is_no_authority_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for (path, says) in
            [("/not/there.pem".as_ref(), "/not/there.pem"), (file.path(), "there is none in it")]
        {
            let credentials = Credentials { token: None, ca: Some(path.to_owned()) };
            let error = credentials.roots().expect_err("no authority").to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
