//! What the HTTP API answers when it does not do what it was asked: RFC 9457 problem documents.
//!
//! One type for both ends, so that what a server says is what a client can react to. Knows nothing of HTTP libraries.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shardfmt::VersionId;

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// A problem document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    /// Names the kind of problem; one of the `kind` constants here, or `about:blank` for what the status says already.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// The kind, for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status it came with.
    #[serde(default)]
    pub status: u16,
    /// What happened, to which thing, and what can be done.
    #[serde(default)]
    pub detail: String,
    /// Facts of the kind, beside the others in the document.
    #[serde(flatten)]
    pub facts: Map<String, Value>,
}

/// Kind: nothing has the name or id that was asked for.
pub const NOT_FOUND: &str = "urn:shardd:problem:not-found";
/// Kind: the request is malformed or does not fit what it refers to.
pub const INVALID: &str = "urn:shardd:problem:invalid";
/// Kind: someone else changed it first. Facts: `actual`, the present version or null.
pub const CONFLICT: &str = "urn:shardd:problem:conflict";
/// Kind: bytes that were sent or stored do not match their digest.
pub const CORRUPT: &str = "urn:shardd:problem:corrupt";
/// Kind: it cannot be done now; later perhaps.
pub const UNAVAILABLE: &str = "urn:shardd:problem:unavailable";

impl Problem {
    /// A problem of `kind` that came with `status`.
    pub fn new(kind: &str, status: u16, detail: impl ToString) -> Self {
        let title = match kind {
            NOT_FOUND => "not found",
            INVALID => "invalid request",
            CONFLICT => "conflict",
            CORRUPT => "corrupt bytes",
            UNAVAILABLE => "unavailable",
            _ => "problem",
        };
        let (kind, title, detail) = (kind.to_owned(), title.to_owned(), detail.to_string());
        Self { kind, title, status, detail, facts: Map::new() }
    }

    /// 404: there is no such thing.
    pub fn not_found(detail: impl ToString) -> Self {
        Self::new(NOT_FOUND, 404, detail)
    }

    /// 422: what was asked cannot be.
    pub fn invalid(detail: impl ToString) -> Self {
        Self::new(INVALID, 422, detail)
    }

    /// 409: a dataset's reference points elsewhere than expected.
    pub fn version_conflict(actual: Option<VersionId>, detail: impl ToString) -> Self {
        Self::new(CONFLICT, 409, detail).with("actual", actual.map(|version| version.to_string()))
    }

    /// 503: not now.
    pub fn unavailable(detail: impl ToString) -> Self {
        Self::new(UNAVAILABLE, 503, detail)
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// The present version that a [`CONFLICT`] reports.
    pub fn actual_version(&self) -> Option<VersionId> {
        self.facts.get("actual")?.as_str()?.parse().ok()
    }
}

fn about_blank() -> String {
    "about:blank".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_lie_beside_the_members_of_the_standard() {
        let version = VersionId::of(b"v");
        let problem = Problem::version_conflict(Some(version), "dataset d was changed");
        let json = serde_json::to_value(&problem).expect("plain data");
        assert_eq!(json["type"], CONFLICT);
        assert_eq!(json["status"], 409);
        assert_eq!(json["actual"], version.to_string());
        let back: Problem = serde_json::from_value(json).expect("own document");
        assert_eq!(back.actual_version(), Some(version));
        assert_eq!(back, problem);
    }

    #[test]
    fn documents_of_others_are_read_too() {
        let problem: Problem = serde_json::from_str(r#"{"status":502,"instance":"/x"}"#).expect("a document");
        assert_eq!((problem.kind.as_str(), problem.status), ("about:blank", 502));
    }
}
