//! Garbage: what nothing in the catalog reaches, and its deletion.

use shardd_client::catalog::{GcOptions, GcReport};

use super::{Answer, Posted, State, json};

/// Delete what nothing reaches, or say what that would be
#[utoipa::path(post, path = "/v1/gc", tag = "cluster", operation_id = "gc", request_body = GcOptions,
    responses((status = 200, description = "What went, or would go", body = GcReport), (status = 409)))]
pub(super) async fn collect(state: State, Posted(options): Posted<GcOptions>) -> Answer {
    json(&state.api.catalog.gc(&options).await?)
}
