//! The error table: every kind of problem that a node can answer with, its status, its meaning and the way out.
//! HTTP sends an RFC 9457 document, QUIC the kind and one line. `docs/API.md` is written from the table.
//!
//! One type serves both ends, so a client can react to each answer of a server. An error type states its kinds
//! in a `From` beside it: this module knows no other module and no HTTP library.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shardfmt::VersionId;

/// The media type of a problem document.
pub const MEDIA_TYPE: &str = "application/problem+json";
/// The prefix of every `type`.
const URN: &str = "urn:shardd:problem:";
/// The prefix of every `instance`; the id of the request follows.
const INSTANCE: &str = "urn:shardd:request:";

/// The key by which a program distinguishes problems. The name of a kind never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the table below says what each means")]
pub enum Kind {
    Malformed,
    Unauthorized,
    Forbidden,
    ForeignOrigin,
    NotFound,
    MethodNotAllowed,
    TooSlow,
    Conflict,
    PreconditionFailed,
    TooLong,
    UnsupportedMediaType,
    RangeNotSatisfiable,
    Misdirected,
    ForeignHost,
    Invalid,
    Mismatch,
    PreconditionRequired,
    TooMany,
    Corrupt,
    Unavailable,
    NotReady,
}

/// A line of the error table.
#[derive(Debug)]
pub struct KindInfo {
    /// The kind.
    pub kind: Kind,
    /// The last part of its `type`.
    pub name: &'static str,
    /// The HTTP status it comes with, always.
    pub status: u16,
    /// The `title`.
    pub title: &'static str,
    /// The event.
    pub meaning: &'static str,
    /// The caller's way out.
    pub way_out: &'static str,
}

const fn line(
    kind: Kind,
    name: &'static str,
    status: u16,
    [title, meaning, way_out]: [&'static str; 3],
) -> KindInfo {
    KindInfo { kind, name, status, title, meaning, way_out }
}

/// The table, in the order of [`Kind`].
pub const TABLE: &[KindInfo] = &[
    line(
        Kind::Malformed,
        "malformed",
        400,
        [
            "malformed request",
            "a name, a parameter or the body does not fit the operation",
            "correct the request; the detail names the part and the values it takes",
        ],
    ),
    line(
        Kind::Unauthorized,
        "unauthorized",
        401,
        [
            "unauthorized",
            "the request has no token, or an invalid one",
            "send one, `authorization: Bearer shardd_...`; an administrator makes it with `shardctl token create`",
        ],
    ),
    line(
        Kind::Forbidden,
        "forbidden",
        403,
        [
            "forbidden",
            "the token has a lesser role or is for other datasets, or the secret of the cluster is wrong",
            "ask an administrator for the right that the detail names",
        ],
    ),
    line(
        Kind::ForeignOrigin,
        "foreign-origin",
        403,
        [
            "foreign origin",
            "the request comes from a web page of another origin, by `origin` or `sec-fetch-site`",
            "ask from a program that is no web page; a proxy passes on `host` as it is",
        ],
    ),
    line(
        Kind::NotFound,
        "not-found",
        404,
        ["not found", "there is no object of this name or id", "list the objects; names are exact"],
    ),
    line(
        Kind::MethodNotAllowed,
        "method-not-allowed",
        405,
        [
            "method not allowed",
            "the path exists, but not for this method",
            "use one of those in the `allow` header",
        ],
    ),
    line(
        Kind::TooSlow,
        "too-slow",
        408,
        [
            "too slow",
            "the body of the request came too slowly, and lost its place to others",
            "send it again, over a better network or in smaller shards",
        ],
    ),
    line(
        Kind::Conflict,
        "conflict",
        409,
        [
            "conflict",
            "another client changed it first, or it is in use; `actual` is the present version, if there is one",
            "read the present state, decide again, and send the request with it",
        ],
    ),
    line(
        Kind::PreconditionFailed,
        "precondition-failed",
        412,
        [
            "precondition failed",
            "the present state does not fit `if-match` or `if-none-match`; the answer has its `etag`",
            "read it, decide again, and send the new tag",
        ],
    ),
    line(
        Kind::TooLong,
        "too-long",
        413,
        ["too long", "the body is longer than the operation takes", "send less: the detail has the limit"],
    ),
    line(
        Kind::UnsupportedMediaType,
        "unsupported-media-type",
        415,
        [
            "unsupported media type",
            "the operation takes JSON, and the body has another type",
            "send `content-type: application/json`",
        ],
    ),
    line(
        Kind::RangeNotSatisfiable,
        "range-not-satisfiable",
        416,
        [
            "range not satisfiable",
            "no byte of the object lies in the ranges",
            "send ranges within the size in `content-range`",
        ],
    ),
    line(
        Kind::Misdirected,
        "misdirected",
        421,
        ["misdirected", "another node serves this", "send the request to the node that the detail names"],
    ),
    line(
        Kind::ForeignHost,
        "foreign-host",
        421,
        [
            "foreign host",
            "`host` names another machine than this node, and the node requires no tokens",
            "ask by `localhost` or the IP address; for other names start the node with `--allowed-hosts`",
        ],
    ),
    line(
        Kind::Invalid,
        "invalid",
        422,
        [
            "invalid request",
            "the request is well-formed, but does not fit the objects it names",
            "the detail names values that fit",
        ],
    ),
    line(
        Kind::Mismatch,
        "mismatch",
        422,
        [
            "mismatch",
            "the bytes do not hash to their name, or are of another kind",
            "send the right bytes: these were damaged or mistaken on the way",
        ],
    ),
    line(
        Kind::PreconditionRequired,
        "precondition-required",
        428,
        [
            "precondition required",
            "this change needs the state that it starts from",
            "send `if-match` with the tag you read, or `if-none-match: *` for a new object",
        ],
    ),
    line(
        Kind::TooMany,
        "too-many",
        429,
        [
            "too many at once",
            "this node has its limit of such requests under way",
            "wait for the seconds in `retry-after`, or use another node",
        ],
    ),
    line(
        Kind::Corrupt,
        "corrupt",
        500,
        [
            "corrupt",
            "the stored object is damaged, or a part of it is missing",
            "`shardctl verify` finds damage and repairs the parts it can; restore the rest",
        ],
    ),
    line(
        Kind::Unavailable,
        "unavailable",
        503,
        [
            "unavailable",
            "the store, the metadata or another node does not answer, or another operation has to end first",
            "repeat the request after `retry-after`, here or at another node",
        ],
    ),
    line(
        Kind::NotReady,
        "not-ready",
        503,
        [
            "not ready",
            "the node is starting, filling its cache, or stopping; it still answers other requests",
            "send new work to another node until it is ready",
        ],
    ),
];

impl Kind {
    /// The kind's line of the table.
    pub fn info(self) -> &'static KindInfo {
        &TABLE[self as usize]
    }

    /// The `type` of its documents.
    pub fn urn(self) -> String {
        format!("{URN}{}", self.info().name)
    }

    /// The kind for an answer of which only the status is known: the first kind with that status, or of its
    /// class.
    pub fn of_status(status: u16) -> Self {
        let fits = |line: &&KindInfo| line.status == status;
        match TABLE.iter().find(fits) {
            Some(line) => line.kind,
            None if (400..500).contains(&status) => Self::Malformed,
            None => Self::Unavailable,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

/// No kind that this release knows has such a `type`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a type of problem known to this release")]
pub struct UnknownKind(String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(urn: &str) -> Result<Self, UnknownKind> {
        let line = urn.strip_prefix(URN).and_then(|name| TABLE.iter().find(|line| line.name == name));
        line.map(|line| line.kind).ok_or_else(|| UnknownKind(urn.to_owned()))
    }
}

/// The answer to a refused request: an RFC 9457 problem document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Names the kind of problem, as `urn:shardd:problem:` and a name; `about:blank` only from servers that are not shardd.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// The kind, for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status it came with.
    #[serde(default)]
    pub status: u16,
    /// The event, its object, and the way out.
    #[serde(default)]
    pub detail: String,
    /// `urn:shardd:request:` and the id of the request, which is also in its `x-request-id` and in the node's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub instance: Option<String>,
    /// Facts of the kind, beside the others in the document.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, Value>))]
    pub facts: Map<String, Value>,
}

impl Problem {
    /// A problem of `kind`.
    pub fn new(kind: Kind, detail: impl ToString) -> Self {
        let KindInfo { status, title, .. } = kind.info();
        Self {
            kind: kind.urn(),
            title: (*title).to_owned(),
            status: *status,
            detail: detail.to_string(),
            instance: None,
            facts: Map::new(),
        }
    }

    /// The request it is the answer to.
    #[must_use]
    pub fn of_request(mut self, id: &str) -> Self {
        self.instance = Some(format!("{INSTANCE}{id}"));
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// The kind, if this release knows it.
    pub fn kind(&self) -> Option<Kind> {
        self.kind.parse().ok()
    }

    /// The present version that a conflict reports.
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
        let problem = Problem::new(Kind::Conflict, "dataset d was changed")
            .with("actual", version.to_string())
            .of_request("r1");
        let json = serde_json::to_value(&problem).expect("plain data");
        assert_eq!(json["type"], "urn:shardd:problem:conflict");
        assert_eq!(json["instance"], "urn:shardd:request:r1");
        assert_eq!(json["status"], 409);
        assert_eq!(json["actual"], version.to_string());
        let back: Problem = serde_json::from_value(json).expect("own document");
        assert_eq!((back.actual_version(), back.kind()), (Some(version), Some(Kind::Conflict)));
        assert_eq!(back, problem);
    }

    #[test]
    fn documents_of_others_are_read_too() {
        let problem: Problem = serde_json::from_str(r#"{"status":502,"instance":"/x"}"#).expect("a document");
        assert_eq!((problem.kind.as_str(), problem.status), ("about:blank", 502));
        assert_eq!(problem.kind(), None);
    }

    #[test]
    fn each_kind_has_one_line_and_one_name_everywhere() {
        for (at, line) in TABLE.iter().enumerate() {
            assert_eq!(line.kind as usize, at, "{}", line.name);
            assert_eq!(line.kind.urn().parse(), Ok(line.kind));
            assert_eq!(serde_json::to_value(line.kind).expect("a name"), line.name);
            assert!((400..600).contains(&line.status));
            assert_eq!(Kind::of_status(line.status).info().status, line.status);
        }
        assert_eq!((Kind::of_status(499), Kind::of_status(599)), (Kind::Malformed, Kind::Unavailable));
    }
}
