//! Garbage: what nothing in the catalog reaches, and its deletion.

use std::time::Duration;

use shardd_store::catalog::{GcOptions, GcReport};

use super::{Answer, State, ValidJson, json};

/// Objects put in this time and never committed stay in any case: an ingest may be under way.
const UPLOADS_LAST: Duration = Duration::from_secs(3600);

/// Delete unreachable objects, or list them
///
/// Objects put within the last hour and never committed stay, whatever the value of `older_than_s`: an ingest
/// may be about to.
#[utoipa::path(post, path = "/v1/gc", tag = "cluster", operation_id = "gc", request_body = GcOptions,
    responses((status = 200, description = "The deleted objects, or those to delete",
        body = GcReport), (status = 409)))]
pub(super) async fn collect(state: State, ValidJson(options): ValidJson<GcOptions>) -> Answer {
    json(&state.api.catalog.gc_sparing(&options, UPLOADS_LAST).await?)
}
