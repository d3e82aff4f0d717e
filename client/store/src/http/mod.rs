//! A blocking HTTP client for the API of a node: JSON in and out, problem documents as errors.

mod credentials;
mod lines;
mod living;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use rustls::CertificateError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shardd_api::problem::Problem;

pub use self::credentials::{BadCredentials, Credentials};
pub use self::lines::Lines;
pub use self::living::living_first;

/// The most that an answer may hold: the manifest of some million shards.
const MAX_ANSWER: u64 = 1 << 30;

/// Asks nodes over HTTP. Cheap to clone; connections are kept and reused.
#[derive(Debug, Clone)]
pub struct HttpClient {
    agent: Result<ureq::Agent, BadCredentials>,
    /// The source of the token, which errors about the token name.
    token_source: Option<String>,
}

/// Why a node's HTTP API did not answer a request.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum HttpError {
    /// No answer, or not in time. Another node may answer.
    #[error(
        "no shardd answers at {url} ({reason}); start one with `shardd serve`, or name another with --server"
    )]
    Unreachable { url: String, reason: String },
    /// A server answers, but cannot show that it is the right one.
    #[error("{url} shows a certificate that is not trusted ({reason}); {way_out}")]
    Untrusted { url: String, reason: String, way_out: &'static str },
    /// It cannot be asked with the token or authority given.
    #[error(transparent)]
    Credentials(#[from] BadCredentials),
    /// It answered with a problem.
    #[error("{detail}")]
    Problem { url: String, status: u16, kind: String, detail: String },
    /// It answered something that is no answer.
    #[error("{url}: {reason}")]
    Protocol { url: String, reason: String },
}

impl HttpError {
    /// Whether asking another node would bring the same answer: the request itself is at fault.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Problem { status: 400..=499, .. } | Self::Credentials(_))
    }

    /// The HTTP status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem { status, .. } => Some(*status),
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::Protocol { .. }
            | Self::Credentials(_) => None,
        }
    }
}

impl HttpClient {
    /// A client whose requests take at most `within`, answers included, with the credentials of the environment.
    pub fn new(within: Duration) -> Self {
        match Credentials::of_env() {
            Ok(credentials) => Self::with(within, &credentials).with_token_of(credentials::token_source()),
            Err(error) => Self { agent: Err(error), token_source: None },
        }
    }

    /// The same, with these credentials. If they cannot be used, every request says so.
    pub fn with(within: Duration, credentials: &Credentials) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // Nodes are near; a proxy of the environment is for distant servers, and would read the token.
            .proxy(None)
            .timeout_connect(Some(Duration::from_secs(2)))
            .timeout_global(Some(within));
        Self { agent: Self::agent(config, credentials), token_source: None }
    }

    /// The same client, which names `source` in errors about its token.
    #[must_use]
    pub fn with_token_of(self, source: Option<String>) -> Self {
        Self { token_source: source, ..self }
    }

    fn ask(&self) -> Result<&ureq::Agent, HttpError> {
        self.agent.as_ref().map_err(|error| HttpError::Credentials(error.clone()))
    }

    /// GET, JSON out.
    ///
    /// # Errors
    /// No answer, a problem document, or JSON of another shape.
    pub fn get_json<T: DeserializeOwned>(&self, url: &str) -> Result<T, HttpError> {
        parse(url, &self.get(url)?)
    }

    /// GET of a list, JSON out: all its pages, or as many as it takes to have `most` elements.
    ///
    /// # Errors
    /// As [`get_json`](Self::get_json).
    pub fn get_list<T: DeserializeOwned>(&self, url: &str, most: usize) -> Result<Vec<T>, HttpError> {
        self.get_aged_list(url, most).map(|(all, _)| all)
    }

    /// The same, and the age in seconds of the server's copy, if it cannot give the present state.
    ///
    /// # Errors
    /// As [`get_json`](Self::get_json).
    pub fn get_aged_list<T: DeserializeOwned>(
        &self,
        url: &str,
        most: usize,
    ) -> Result<(Vec<T>, Option<u64>), HttpError> {
        let (mut all, mut age) = (Vec::new(), None);
        let mut next = Some(url.to_owned());
        while let Some(url) = next.filter(|_| all.len() < most) {
            let answer = self.ask()?.get(&url).call();
            let link = answer.as_ref().ok().and_then(|answer| next_page(&url, answer.headers()));
            let told = answer.as_ref().ok().and_then(|answer| answer.headers().get("age"));
            age = age.or(told.and_then(|age| age.to_str().ok()?.parse().ok()));
            let page: Vec<T> = parse(&url, &self.read(&url, answer)?)?;
            // A server that gives nothing and yet more would be asked without end.
            next = link.filter(|_| !page.is_empty());
            all.extend(page);
        }
        all.truncate(most);
        Ok((all, age))
    }

    /// GET, bytes out.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn get(&self, url: &str) -> Result<Bytes, HttpError> {
        self.read(url, self.ask()?.get(url).call())
    }

    /// GET of some bytes, at least one; fewer where there are no more, and none beyond the end.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn get_range(&self, url: &str, range: Range<u64>) -> Result<Bytes, HttpError> {
        let wanted = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let answer = self.ask()?.get(url).header("range", wanted).call();
        let is_part = answer.as_ref().is_ok_and(|answer| answer.status() == 206);
        match self.read(url, answer) {
            Ok(part) if is_part => Ok(part),
            // Ranges are for servers to ignore.
            Ok(whole) => {
                let at = |place: u64| usize::try_from(place).map_or(whole.len(), |at| at.min(whole.len()));
                Ok(whole.slice(at(range.start)..at(range.end)))
            }
            Err(HttpError::Problem { status: 416, .. }) => Ok(Bytes::new()),
            Err(error) => Err(error),
        }
    }

    /// HEAD: whether there is something.
    ///
    /// # Errors
    /// No answer, or a status that says there is not.
    pub fn head(&self, url: &str) -> Result<(), HttpError> {
        self.read(url, self.ask()?.head(url).call()).map(drop)
    }

    /// POST of JSON, JSON out.
    ///
    /// # Errors
    /// No answer, a problem document, or JSON of another shape.
    pub fn post_json<B: Serialize, T: DeserializeOwned>(&self, url: &str, body: &B) -> Result<T, HttpError> {
        parse(url, &self.post_for_bytes(url, body)?)
    }

    /// POST of JSON, bytes out.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn post_for_bytes<B: Serialize>(&self, url: &str, body: &B) -> Result<Bytes, HttpError> {
        self.read(url, self.ask()?.post(url).send_json(body))
    }

    /// PUT of JSON, bytes out.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn put_json<B: Serialize>(&self, url: &str, body: &B) -> Result<Bytes, HttpError> {
        self.read(url, self.ask()?.put(url).send_json(body))
    }

    /// PUT of bytes.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn put(&self, url: &str, body: &[u8]) -> Result<Bytes, HttpError> {
        self.read(url, self.ask()?.put(url).send(body))
    }

    /// DELETE.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn delete(&self, url: &str) -> Result<Bytes, HttpError> {
        self.read(url, self.ask()?.delete(url).call())
    }

    /// The body of an answer. An error about the token names its source.
    fn read(
        &self,
        url: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Bytes, HttpError> {
        read(url, answer).map_err(|error| match (error, &self.token_source) {
            (HttpError::Problem { url, status: status @ (401 | 403), kind, detail }, Some(source)) => {
                HttpError::Problem { url, status, kind, detail: about_token_of(source, detail) }
            }
            (error, _) => error,
        })
    }
}

/// The refusal of a token, with the token's source.
fn about_token_of(source: &str, detail: String) -> String {
    match detail.strip_prefix("the token ") {
        Some(rest) => format!("the token of {source} {rest}"),
        None => detail,
    }
}

/// The address of the next part of a list, if there is one (RFC 8288): only at the server that was asked.
fn next_page(url: &str, headers: &ureq::http::HeaderMap) -> Option<String> {
    let link = headers.get("link")?.to_str().ok()?;
    let (target, parameters) = link.strip_prefix('<')?.split_once('>')?;
    if !parameters.contains("rel=\"next\"") || !target.starts_with('/') || target.starts_with("//") {
        return None;
    }
    let host = url.find("://")? + 3;
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    Some(format!("{}{target}", &url[..end]))
}

fn parse<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, HttpError> {
    let body = if body.is_empty() { b"null" } else { body };
    serde_json::from_slice(body).map_err(|error| HttpError::Protocol {
        url: url.into(),
        reason: format!("not the JSON expected: {error}"),
    })
}

fn read(
    url: &str,
    answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Bytes, HttpError> {
    let unreachable = |error: ureq::Error| match bad_certificate(&error) {
        Some(bad) => untrusted(url, bad),
        None if credentials::is_readable(&error) => BadCredentials::Readable { url: url.into() }.into(),
        None => HttpError::Unreachable { url: url.into(), reason: error.to_string() },
    };
    let mut answer = answer.map_err(unreachable)?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().map_err(unreachable)?;
    if status.is_success() {
        return Ok(body.into());
    }
    let (kind, detail) = match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => (problem.kind, problem.detail),
        Err(_) => ("about:blank".into(), format!("{url} answered {status}")),
    };
    Err(HttpError::Problem { url: url.into(), status: status.as_u16(), kind, detail })
}

/// The fault of the certificate of the other side, if that is why it was not asked.
fn bad_certificate(error: &ureq::Error) -> Option<&CertificateError> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    match error {
        rustls::Error::InvalidCertificate(bad) => Some(bad),
        _ => None,
    }
}

fn untrusted(url: &str, bad: &CertificateError) -> HttpError {
    let (reason, way_out) = match bad {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            ("it names others".to_owned(), "ask by a name or address that stands in it")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ("it has expired".to_owned(), "the operator of the node has to renew it")
        }
        bad => (
            match bad {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    "its issuer is unknown".to_owned()
                }
                bad => bad.to_string(),
            },
            "name the authority that it comes from with --ca FILE or SHARDD_CA: that of a node that made its own is tls/ca.pem in its data directory, and `shardctl certs authority` fetches it",
        ),
    };
    HttpError::Untrusted { url: url.into(), reason, way_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_token_is_named_by_its_source() {
        let named =
            |detail: &str| about_token_of("/srv/trainers.token (SHARDD_TOKEN_FILE)", detail.to_owned());
        assert_eq!(
            named("the token has the role read; this needs admin"),
            "the token of /srv/trainers.token (SHARDD_TOKEN_FILE) has the role read; this needs admin"
        );
        assert_eq!(named("this needs a token"), "this needs a token");
    }

    #[test]
    fn lists_go_on_at_the_server_that_was_asked() {
        let next = |link: &str| {
            let headers = [(ureq::http::header::LINK, link.parse().expect("a header"))].into_iter().collect();
            next_page("http://host:1/v1/plans?limit=2", &headers)
        };
        let expected = Some("http://host:1/v1/plans?page=61".to_owned());
        assert_eq!(next("</v1/plans?page=61>; rel=\"next\""), expected);
        for other in [
            "</v1/plans>; rel=\"prev\"",
            "<http://elsewhere/x>; rel=\"next\"",
            "<//elsewhere/x>; rel=\"next\"",
            "x",
        ] {
            assert_eq!(next(other), None, "{other}");
        }
    }
}
