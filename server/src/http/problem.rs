//! Errors as HTTP answers: which status fits what the parts below say, as problem documents (RFC 9457).

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use shardd_client::catalog::CatalogError;
use shardd_client::engine::EngineError;
use shardd_client::metastore::MetaError;
use shardd_client::origin::OriginError;
use shardd_client::problem::{self, Problem};

/// A problem as an answer. The error of every route.
#[derive(Debug)]
pub(crate) struct Refusal(Box<Problem>);

/// 400: the request cannot be understood.
pub(crate) fn bad_request(detail: impl ToString) -> Refusal {
    Refusal::from(Problem::new(problem::INVALID, 400, detail))
}

/// 422: understood, but it cannot be.
pub(crate) fn invalid(detail: impl ToString) -> Refusal {
    Refusal::from(Problem::invalid(detail))
}

/// 404: there is no such thing.
pub(crate) fn not_found(detail: impl ToString) -> Refusal {
    Refusal::from(Problem::not_found(detail))
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
    fn into_response(self) -> Response {
        let Refusal(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(status = problem.status, detail = problem.detail, "request failed");
        }
        let body = serde_json::to_vec(&problem).expect("a problem is plain data");
        let kind = HeaderValue::from_static(problem::MEDIA_TYPE);
        (status, [(CONTENT_TYPE, kind)], body).into_response()
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Refusal {
        Refusal(Box::new(problem))
    }
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Refusal {
        match error {
            CatalogError::Origin(error) => error.into(),
            CatalogError::Meta(error) => error.into(),
            error => Refusal::from(Problem { detail: chain(&error), ..error.to_problem() }),
        }
    }
}

impl From<OriginError> for Refusal {
    fn from(error: OriginError) -> Refusal {
        let detail = chain(&error);
        Refusal::from(match error {
            OriginError::NotFound { .. } => Problem::not_found(detail),
            OriginError::Mismatch { .. } => Problem::new(problem::CORRUPT, 422, detail),
            OriginError::Corrupt { .. } => Problem::new(problem::CORRUPT, 500, detail),
            OriginError::ReadOnly { .. } => Problem::invalid(detail),
            OriginError::BadUrl { .. }
            | OriginError::Refused { .. }
            | OriginError::Unavailable { .. }
            | OriginError::Unusable { .. } => Problem::unavailable(detail),
        })
    }
}

impl From<MetaError> for Refusal {
    fn from(error: MetaError) -> Refusal {
        Refusal::from(match &error {
            MetaError::Conflict { .. } => Problem::new(problem::CONFLICT, 409, error),
            MetaError::TooLarge { .. } | MetaError::BadKey { .. } => Problem::invalid(error),
            MetaError::LeaseLost { .. } | MetaError::Unavailable { .. } => Problem::unavailable(error),
            MetaError::Damaged { .. } => Problem::new(problem::CORRUPT, 500, error),
        })
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        let detail = chain(&error);
        match error {
            EngineError::UnknownRun { .. } | EngineError::UnknownPlan { .. } => not_found(detail),
            EngineError::RunConflict { .. } => Refusal::from(Problem::new(problem::CONFLICT, 409, detail)),
            EngineError::RankOutside { .. } | EngineError::NoSuchGrain { .. } | EngineError::Plan(_) => {
                invalid(detail)
            }
            EngineError::Busy { .. } => Refusal::from(Problem::unavailable(detail)),
            EngineError::Meta(error) => error.into(),
            EngineError::Origin(error) => error.into(),
            _ => Refusal::from(Problem::new(problem::CORRUPT, 500, detail)),
        }
    }
}
