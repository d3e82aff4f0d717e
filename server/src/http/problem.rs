//! Errors as HTTP answers: problem documents (RFC 9457) of the kinds in the one error table.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use shardd_api::lookup::LookupError;
use shardd_api::problem::{Kind, MEDIA_TYPE, Problem};
use shardd_client::loader::LoadError;
use shardd_engine::engine::EngineError;
use shardd_plan::PlanError;
use shardd_store::catalog::CatalogError;
use shardd_store::metastore::MetaError;
use shardd_store::origin::OriginError;

use crate::ca::IssueError;
use crate::keeping::RelocationError;

/// The `Retry-After` of a temporary refusal, in seconds.
const COME_BACK_AFTER: &str = "1";

/// A problem as an answer. The error of every route. It becomes a document where the request's id is known.
#[derive(Debug, Clone)]
pub(crate) struct Refusal(Box<Problem>);

impl Refusal {
    /// A refusal of `kind`.
    pub(crate) fn of(kind: Kind, detail: impl ToString) -> Self {
        Self::from(Problem::new(kind, detail))
    }

    /// The document, as the answer to the request of that id.
    pub(super) fn document(self, request: &str) -> Response {
        let problem = self.0.of_request(request);
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(
                status = problem.status,
                kind = problem.kind,
                detail = problem.detail,
                "request failed"
            );
        } else {
            tracing::debug!(status = problem.status, kind = problem.kind, detail = problem.detail, "refused");
        }
        let body = serde_json::to_vec(&problem).expect("a problem is plain data");
        let mut response = (status, [(CONTENT_TYPE, MEDIA_TYPE)], body).into_response();
        if let Some(Kind::TooMany | Kind::Unavailable | Kind::NotReady) = problem.kind() {
            let after = axum::http::HeaderValue::from_static(COME_BACK_AFTER);
            response.headers_mut().insert(RETRY_AFTER, after);
        }
        response
    }
}

/// 400: the request cannot be understood.
pub(crate) fn bad_request(detail: impl ToString) -> Refusal {
    Refusal::of(Kind::Malformed, detail)
}

/// 422: understood, but it cannot be.
pub(crate) fn invalid(detail: impl ToString) -> Refusal {
    Refusal::of(Kind::Invalid, detail)
}

/// 404: there is no such thing.
pub(crate) fn not_found(detail: impl ToString) -> Refusal {
    Refusal::of(Kind::NotFound, detail)
}

/// An error with what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text.replace('\n', " ")
}

impl IntoResponse for Refusal {
    /// An answer without a body; [`request::observed`](super::request::observed) writes the document.
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(Box::new(problem))
    }
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Refusal {
        Refusal::from(Problem { detail: chain(&error), ..error.to_problem() })
    }
}

/// An error as a refusal of the kind that the table has for it.
macro_rules! refused {
    ($($error:ty),*) => {$(
        impl From<$error> for Refusal {
            fn from(error: $error) -> Refusal {
                Refusal::of(Kind::from(&error), chain(&error))
            }
        }
    )*};
}

refused!(EngineError, IssueError, MetaError, OriginError, RelocationError);

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Refusal {
        let parameter = if let LoadError::Plan(error) = &error { parameter(error) } else { "" };
        Refusal::of(Kind::from(&error), format!("{parameter}{}", chain(&error)))
    }
}

impl From<LookupError> for Refusal {
    fn from(error: LookupError) -> Refusal {
        let parameter = if let LookupError::Plan(error) = &error { parameter(error) } else { "" };
        Refusal::of(Kind::from(&error), format!("{parameter}{}", chain(&error)))
    }
}

/// The parameter that does not fit a plan.
fn parameter(error: &PlanError) -> &'static str {
    match error {
        PlanError::VirtualRanks { .. } => "virtual_ranks: ",
        PlanError::World { .. } => "world: ",
        _ => "",
    }
}
