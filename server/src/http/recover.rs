//! Names brought back that the metadata lost.

use shardd_store::catalog::{RecoverOptions, RecoverReport};

use super::{Answer, State, ValidJson, json};

/// Restore names, tags, plans and runs that the metadata lost and the store knows, or list them
///
/// They come from the copy of the metadata in the store and from its commits. What the metadata has stays as it is.
#[utoipa::path(post, path = "/v1/recover", tag = "cluster", operation_id = "recover", request_body = RecoverOptions,
    responses((status = 200, description = "The restored entries, or those to restore",
        body = RecoverReport)))]
pub(super) async fn recover(state: State, ValidJson(options): ValidJson<RecoverOptions>) -> Answer {
    json(&state.api.catalog.recover(options).await?)
}
