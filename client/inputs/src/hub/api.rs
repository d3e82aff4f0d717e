//! Requests to the Hub: the commit of a revision, and the files of a folder. The token goes to the endpoint and to no other
//! place.

use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ClientOptions;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shardd_store::stores::Refusal;

use super::place::{Settings, Token};
use crate::refusals::{of_hub_answer, of_hub_request};
use crate::web::{CONNECT_TIMEOUT, PART_TIMEOUT, READ_TIMEOUT};

/// How long the Hub is asked again when it fails, or is asked too often.
const ASKED_AGAIN_FOR: Duration = Duration::from_secs(40);
/// How long it is, if it never answered.
const FIRST_CONTACT: Duration = Duration::from_secs(5);
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(4);

/// The Hub, or a server that behaves as the Hub.
#[derive(Debug)]
pub(super) struct Hub {
    client: Client,
    endpoint: Url,
    token: Option<HeaderValue>,
}

/// A file or folder of a repository.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    pub(super) path: String,
    #[serde(default)]
    size: u64,
    /// The digest of its content, as git has it.
    oid: String,
    /// The content itself, where git has only a pointer.
    lfs: Option<Lfs>,
}

#[derive(Clone, Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    pub(super) fn is_file(&self) -> bool {
        self.kind == "file"
    }

    pub(super) fn is_folder(&self) -> bool {
        self.kind == "directory"
    }

    pub(super) fn bytes(&self) -> u64 {
        self.lfs.as_ref().map_or(self.size, |lfs| lfs.size)
    }

    /// The digest of its content.
    pub(super) fn digest(&self) -> &str {
        self.lfs.as_ref().map_or(&self.oid, |lfs| &lfs.oid)
    }
}

impl Hub {
    pub(super) fn new(settings: &Settings) -> Result<Hub, Refusal> {
        let unnamed = |reason: &str| Refusal::Unnamed { reason: reason.to_owned() };
        let endpoint = Url::parse(&settings.endpoint).map_err(|_| unnamed("HF_ENDPOINT is no URL"))?;
        let token = match &settings.token {
            Token::Is(token) => Some(token.clone()),
            // Public datasets can be read without one.
            Token::In(path) => std::fs::read_to_string(path).ok(),
            Token::Nowhere => None,
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        let header = token.map(|token| HeaderValue::try_from(format!("Bearer {token}"))).transpose();
        let mut token = header.map_err(|_| unnamed("the token for the Hub is none; set HF_TOKEN to it"))?;
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        let client = Client::builder()
            .https_only(endpoint.scheme() == "https")
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .build()
            .map_err(|error| of_hub_request(&error))?;
        Ok(Hub { client, endpoint, token })
    }

    /// The commit that a revision stands for now.
    pub(super) async fn commit(&self, dataset: [&str; 2], revision: &str) -> Result<String, Refusal> {
        #[derive(Deserialize)]
        struct Revision {
            sha: String,
        }
        let [owner, name] = dataset;
        let mut url = self.url(&["api", "datasets", owner, name, "revision", revision]);
        url.query_pairs_mut().append_pair("expand", "sha");
        let (_, found): (_, Revision) = self.ask(&url).await?;
        Ok(found.sha)
    }

    /// What lies in a folder, and with `recursive` below it.
    pub(super) async fn tree(
        &self,
        dataset: [&str; 2],
        commit: &str,
        path: &str,
        recursive: bool,
    ) -> Result<Vec<Entry>, Refusal> {
        let [owner, name] = dataset;
        let mut steps = vec!["api", "datasets", owner, name, "tree", commit];
        steps.extend(path.split('/').filter(|step| !step.is_empty()));
        let mut url = self.url(&steps);
        url.query_pairs_mut().append_pair("recursive", if recursive { "true" } else { "false" });
        let mut entries = Vec::new();
        loop {
            let (next, page): (_, Vec<Entry>) = self.ask(&url).await?;
            entries.extend(page);
            match next {
                None => return Ok(entries),
                Some(next) if next == url => {
                    let reason = "the Hub's list of files leads back to a page before; try again later";
                    return Err(Refusal::Other { reason: reason.to_owned() });
                }
                Some(next) => url = next,
            }
        }
    }

    /// The address of all files of a commit, and how they are asked for.
    pub(super) fn files(&self, dataset: [&str; 2], commit: &str) -> (String, ClientOptions) {
        let [owner, name] = dataset;
        let mut headers = HeaderMap::new();
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        let options = ClientOptions::new()
            .with_allow_http(self.endpoint.scheme() == "http")
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(READ_TIMEOUT)
            .with_timeout(PART_TIMEOUT)
            .with_default_headers(headers);
        (self.url(&["datasets", owner, name, "resolve", commit]).into(), options)
    }

    fn url(&self, steps: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(steps);
        }
        url
    }

    /// The answer, and the page that follows it. The Hub is asked again while it fails.
    async fn ask<T: DeserializeOwned>(&self, url: &Url) -> Result<(Option<Url>, T), Refusal> {
        let (began, mut wait, mut has_answered) = (Instant::now(), SHORTEST_WAIT, false);
        loop {
            let refusal = match self.ask_once(url).await {
                Ok((next, body)) => {
                    let parsed = serde_json::from_slice(&body);
                    let unread =
                        |error| Refusal::Other { reason: format!("the Hub's answer is not read: {error}") };
                    return Ok((next, parsed.map_err(unread)?));
                }
                Err(Failed { refusal, may_pass: false, .. }) => return Err(refusal),
                Err(failed) => {
                    has_answered |= failed.is_answer;
                    failed.refusal
                }
            };
            let limit = if has_answered { ASKED_AGAIN_FOR } else { FIRST_CONTACT };
            if began.elapsed() + wait > limit {
                return Err(refusal);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    async fn ask_once(&self, url: &Url) -> Result<(Option<Url>, Bytes), Failed> {
        let mut request = self.client.get(url.clone());
        if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let lost = |error: &reqwest::Error| Failed {
            refusal: of_hub_request(error),
            may_pass: !error.is_builder() && !error.is_redirect(),
            is_answer: false,
        };
        let answer = request.send().await.map_err(|error| lost(&error))?;
        let status = answer.status().as_u16();
        if !answer.status().is_success() {
            let header =
                |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let refusal = of_hub_answer(status, header("x-error-code"), header("x-error-message"));
            return Err(Failed { refusal, may_pass: status == 429 || status >= 500, is_answer: true });
        }
        let link = answer.headers().get("link").and_then(|link| link.to_str().ok()).and_then(next);
        let next = link.and_then(|link| url.join(link).ok());
        let body = answer.bytes().await.map_err(|error| lost(&error))?;
        Ok((next, body))
    }
}

/// A request that failed.
struct Failed {
    refusal: Refusal,
    /// Whether it may be answered when it is made again.
    may_pass: bool,
    is_answer: bool,
}

/// The page that follows one with this `Link` header.
fn next(link: &str) -> Option<&str> {
    link.split(',').find_map(|link| {
        let (url, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = |part: &str| matches!(part.trim(), "rel=\"next\"" | "rel=next");
        rest.split(';').any(is_next).then_some(url)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_followed_by_the_next_and_no_other() {
        assert_eq!(next("<https://h/x?cursor=a,b>; rel=\"next\""), None, "a comma ends a link");
        assert_eq!(next("<https://h/x?cursor=ab%2C>; rel=\"next\""), Some("https://h/x?cursor=ab%2C"));
        assert_eq!(next("</a>; rel=\"prev\", </b>; title=x; rel=next"), Some("/b"));
        assert_eq!(next("</a>; rel=\"prev\""), None);
        assert_eq!(next("nonsense"), None);
    }
}
