//! Names brought back that the metadata lost.

use shardd_client::catalog::{RecoverOptions, RecoverReport};

use super::{Answer, Posted, State, json};

/// Bring back names, tags, plans and runs that the metadata lost and the store knows, or say what would come back
///
/// They come from the copy of the metadata in the store and from its commits. What the metadata has stays as it is.
#[utoipa::path(post, path = "/v1/recover", tag = "cluster", operation_id = "recover", request_body = RecoverOptions,
    responses((status = 200, description = "What came back, or would come back", body = RecoverReport)))]
pub(super) async fn recover(state: State, Posted(options): Posted<RecoverOptions>) -> Answer {
    json(&state.api.catalog.recover(options).await?)
}
