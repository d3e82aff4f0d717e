//! Lists while the metadata is unreachable: the last known entries, with their age.

use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::{AGE, WARNING};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use shardd_store::catalog::{CatalogBackend, CatalogError};
use shardd_store::metastore::MetaError;

use super::{Answer, State};

/// What RFC 9111 calls a response that is older than it should be.
const IS_STALE: HeaderValue =
    HeaderValue::from_static("110 shardd \"the metadata is unavailable: this is the last known state\"");

/// One of a list, and whether it is the last known state.
#[derive(Serialize)]
pub(super) struct WithStaleness<T> {
    #[serde(flatten)]
    pub(super) what: T,
    #[serde(skip_serializing_if = "is_fresh")]
    pub(super) stale: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_fresh(stale: &bool) -> bool {
    !stale
}

/// The catalog's answer, or else, while the metadata is unavailable, this node's copy of it, and its age.
pub(super) async fn or_recalled<T, F>(
    state: &State,
    ask: impl Fn(CatalogBackend) -> F,
) -> Result<(T, Option<Duration>), CatalogError>
where
    F: Future<Output = Result<T, CatalogError>>,
{
    match ask(state.api.catalog.clone()).await {
        Err(error @ CatalogError::Meta(MetaError::Unavailable { .. })) => {
            let recalled = state.api.engine.recalled();
            let catalog = CatalogBackend::new(state.api.catalog.origin().clone(), recalled.clone());
            let told = ask(catalog).await.map_err(|_| error)?;
            Ok((told, Some(recalled.age().unwrap_or_default())))
        }
        told => Ok((told?, None)),
    }
}

/// All of a list, each marked.
pub(super) fn told<T>(all: Vec<T>, age: Option<Duration>) -> Vec<WithStaleness<T>> {
    all.into_iter().map(|what| WithStaleness { what, stale: age.is_some() }).collect()
}

/// The answer, which says how old it is.
pub(super) fn aged(answer: Answer, age: Option<Duration>) -> Answer {
    let Some(age) = age else { return answer };
    let mut response: Response = answer?.into_response();
    let headers = response.headers_mut();
    headers.insert(AGE, age.as_secs().into());
    headers.insert(WARNING, IS_STALE);
    Ok(response)
}
