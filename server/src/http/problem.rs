//! Errors as HTTP tells them: problem documents (RFC 9457) whose detail says what happened and what to do.

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use shardd_client::engine::EngineError;
use shardd_client::metastore::MetaError;
use shardd_client::origin::OriginError;
use serde_json::json;

/// What went wrong with a request.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: String,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl ToString,
    ) -> Problem {
        Problem { status, kind, title, detail: detail.to_string() }
    }

    /// 400: the request cannot be understood.
    pub(crate) fn bad_request(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad-request", "bad request", detail)
    }

    /// 404: there is no such thing.
    pub(crate) fn not_found(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "not-found", "not found", detail)
    }

    /// 409: something else is there already.
    pub(crate) fn conflict(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::CONFLICT, "conflict", "conflict", detail)
    }

    /// 413: more than will be taken.
    pub(crate) fn too_large(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "too large", detail)
    }

    /// 422: understood, but wrong.
    pub(crate) fn wrong(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong-content", "wrong content", detail)
    }

    /// 503: not now.
    pub(crate) fn unavailable(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "unavailable", detail)
    }

    /// 500: this node is at fault.
    pub(crate) fn internal(detail: impl ToString) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), detail = self.detail, "request failed");
        }
        let document = json!({
            "type": format!("urn:shardd:problem:{}", self.kind),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let mut response = (self.status, Json(document)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}

impl From<MetaError> for Problem {
    fn from(error: MetaError) -> Problem {
        match &error {
            MetaError::Conflict { .. } => Problem::conflict(error),
            MetaError::TooLarge { .. } => Problem::too_large(error),
            MetaError::BadKey { .. } => Problem::bad_request(error),
            MetaError::LeaseLost { .. } | MetaError::Unavailable { .. } => Problem::unavailable(error),
            MetaError::Damaged { .. } => Problem::internal(error),
        }
    }
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
    text
}
